"""Block-sparse operators by kernels: block_matmul.py, block_softmax.py and block_attention.py on a GPU."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import kernel_blocks
from ..backend.kernel_blocks import DDS, DSD, SDD, Lines, Tile
from ..backend.library import blocks
from .block_index import BlockIndex, Side
from .tables import integers


def _lines(index: BlockIndex, side: Side) -> Lines:
    found = index.row_tables if side.by_row else index.col_tables
    return Lines(
        found.ptr,
        found.block,
        found.other,
        side.lines,
        index.nnz,
        side.size,
        side.other_size,
        side.extent,
        side.other_extent,
    )


def sdd_groups(index: BlockIndex, per_group: int, sub: int) -> Lines:
    """Pieces of `sub` columns of the stored blocks, `per_group` of one block row together; kept by the index."""
    held = index.groups.get((per_group, sub))
    if held is None:
        side = index.by_row
        pieces = blocks(side.other_size, sub)
        counts = np.diff(side.ptr) * pieces
        groups = -(-counts // per_group)
        line = np.repeat(np.arange(len(counts)), groups)
        item = np.full((int(groups.sum()), per_group), -1, np.int64)
        # The k-th piece of a row goes to place k of the row's groups.
        row = np.repeat(np.arange(len(counts)), counts)
        start = np.concatenate(([0], np.cumsum(counts)))[:-1]
        k = np.arange(int(counts.sum())) - start[row]
        first = np.concatenate(([0], np.cumsum(groups)))[:-1]
        place = first[row] * per_group + k
        item.reshape(-1)[place] = np.arange(len(place))
        other = np.where(item < 0, -1, side.other[np.maximum(item, 0) // pieces] if len(place) else -1)
        held = index.groups[per_group, sub] = Lines(
            integers(line),
            integers(item),
            integers(other),
            side.lines,
            index.nnz,
            side.size,
            side.other_size,
            side.extent,
            side.other_extent,
        )
    return held


class _Kernel:
    """The products of block_matmul.py; `dense` multiplies the whole matrix by MLX."""

    def sdd(self, a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        if dense:
            return pack(_seen(a, ta) @ _seen(b, tb), index)
        tile = kernel_blocks.tile_of(SDD, index.block[0], a.dtype, tb)
        sub = min(tile.bn, max(16, 1 << (index.block[1] - 1).bit_length()))
        lines = sdd_groups(index, tile.bn // sub, sub)
        return kernel_blocks.block_gemm(SDD, a, b, lines, ta, tb, index.grid[0], tile, sub)

    def dsd(self, s: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        if dense:
            return _seen(unpack(s, index, 0.0), ta) @ _seen(b, tb)
        side = index.by_col if ta else index.by_row
        tile = kernel_blocks.tile_of(DSD, side.size, b.dtype, tb)
        return kernel_blocks.block_gemm(DSD, s, b, _lines(index, side), ta, tb, index.grid[0], tile)

    def dds(self, a: mx.array, s: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        if dense:
            return _seen(a, ta) @ _seen(unpack(s, index, 0.0), tb)
        side = index.by_row if tb else index.by_col
        tile: Tile = kernel_blocks.tile_of(DDS, side.size, a.dtype, not ta)
        return kernel_blocks.block_gemm(DDS, a, s, _lines(index, side), ta, tb, index.grid[0], tile)


KERNEL = _Kernel()


def _seen(a: mx.array, transposed: bool) -> mx.array:
    return a.swapaxes(2, 3) if transposed else a


def pack(x: mx.array, index: BlockIndex) -> mx.array:
    """Stored blocks of x (Z, H, M, N), 0 outside the matrix."""
    (h, r, c), (br, bc), (m, n) = index.grid, index.block, index.shape
    if index.ragged:
        x = mx.pad(x, [(0, 0), (0, 0), (0, r * br - m), (0, c * bc - n)])
    blocked = x.reshape(len(x), h, r, br, c, bc).swapaxes(3, 4).reshape(len(x), h * r * c, br, bc)
    line = (index.heads.astype(np.int64) * r + index.rows) * c + index.cols
    return mx.take(blocked, mx.array(line), axis=1)


def unpack(values: mx.array, index: BlockIndex, fill: float) -> mx.array:
    """The matrix of the stored blocks, `fill` elsewhere."""
    (h, r, c), (br, bc), (m, n) = index.grid, index.block, index.shape
    z = values.shape[0]
    absent = mx.full((z, 1, br, bc), fill, values.dtype)
    places = np.where(index.places < 0, index.nnz, index.places).reshape(-1)
    whole = mx.take(mx.concatenate([values, absent], axis=1), mx.array(places), axis=1)
    return whole.reshape(z, h, r, c, br, bc).swapaxes(3, 4).reshape(z, h, r * br, c * bc)[:, :, :m, :n]
