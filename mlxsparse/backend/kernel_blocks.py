"""Block-sparse products, softmax and attention on the GPU; dense arrays (Z, H, rows, columns), values (Z, nnz, br, bc).

Sums run in fp32 in a fixed order and are rounded once; the same input gives the same bits.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import mlx.core as mx

from ..errors import MLXSparseError
from .kernel_conv import FP32_MODES
from .library import SMALL, blocks, check_array, filled, launch, numbers, unread

DSD, DDS, SDD = 0, 1, 2


class Tile(NamedTuple):
    """A threadgroup's piece of the result, BM x BN, over WM x WN simdgroups; STAGES buffers."""

    bm: int
    bn: int
    wm: int
    wn: int
    stages: int = 2

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn


class Lines(NamedTuple):
    """Block rows or columns and their entries, int32 arrays (kernels/block_gemm.metal), and their sizes.

    lines of a head, nnz, elements of a block along the lines' axis and along the other, and of the matrix.
    """

    ptr: mx.array
    block: mx.array
    other: mx.array
    lines: int
    nnz: int
    size: int
    other_size: int
    extent: int
    other_extent: int


def fp32_mode(dtype: mx.Dtype) -> int:
    """How CUDA multiplies float32 (kernels/tile.h): MLXSPARSE_FP32 = near (default), exact or tf32."""
    mode = os.environ.get("MLXSPARSE_FP32", "")
    if mode not in FP32_MODES:
        raise MLXSparseError(f'MLXSPARSE_FP32 must be "near", "exact" or "tf32", got {mode!r}')
    return FP32_MODES[mode] if dtype == mx.float32 else 0


def on_cuda() -> bool:
    return bool(getattr(mx, "cuda", None) and mx.cuda.is_available())


def tile_of(mode: int, size: int, dtype: mx.Dtype, turned: bool) -> Tile:
    """A tile for lines of `size` elements; `turned`: the dense operand is staged with rows along the free axis.

    Twice the tile on CUDA in 16 bits, where it fits 48 KB; a Metal threadgroup has 32 KB.
    """
    forced = os.environ.get("MLXSPARSE_BLOCK_TILE")  # "BM,BN,WM,WN,STAGES" of dsd and sdd, for measurements
    if forced:
        bm, bn, wm, wn, stages = (int(v) for v in forced.split(","))
        found = Tile(bm, bn, wm, wn, stages)
    elif size <= 16:
        found = Tile(16, 128, 1, 4)
    elif size <= 32:
        found = Tile(32, 128, 1, 4)
    elif on_cuda() and dtype != mx.float32:
        found = Tile(64, 128, 1, 4, 3) if turned else Tile(64, 256, 2, 4)
    else:
        found = Tile(64, 128, 2, 2)
    if mode == DDS:
        return Tile(found.bn, found.bm, found.wn, found.wm, found.stages)
    return found


def block_gemm(
    mode: int,
    a: mx.array,
    b: mx.array,
    lines: Lines,
    trans_a: bool,
    trans_b: bool,
    heads: int,
    tile: Tile,
    sub: int = 16,
) -> mx.array:
    """One of the three products. `lines` of sdd: see kernels/block_gemm.metal and `sdd_groups` of the engine."""
    for name, array in (("a", a), ("b", b)):
        check_array(name, array, 4, a.dtype)
    batch, pieces = a.shape[0], blocks(lines.other_size, sub)
    groups = lines.ptr.size if mode == SDD else 0
    if mode == DSD:
        width = b.shape[2 if trans_b else 3]
        grid = (lines.lines * blocks(lines.size, tile.bm), blocks(width, tile.bn), batch * heads)
        shape: tuple[int, ...] = (batch, heads, lines.extent, width)
    elif mode == DDS:
        width = a.shape[3 if trans_a else 2]
        grid = (lines.lines * blocks(lines.size, tile.bn), blocks(width, tile.bm), batch * heads)
        shape = (batch, heads, width, lines.extent)
    else:
        width = a.shape[2 if trans_a else 3]
        grid = (groups, blocks(lines.size, tile.bm), batch)
        shape = (batch, lines.nnz, lines.size, lines.other_size)
    if 0 in shape:
        return filled(shape, 0, a.dtype)
    sizes = [lines.lines, lines.nnz, lines.size, lines.other_size, lines.extent, lines.other_extent]
    return launch(
        "block_gemm",
        [a, b, lines.ptr, lines.block, lines.other],
        [*sizes, width, heads, pieces, groups],
        [shape],
        grid,
        tile.threads,
        dtype=a.dtype,
        MODE=mode,
        TA=int(trans_a),
        TB=int(trans_b),
        BM=tile.bm,
        BN=tile.bn,
        WM=tile.wm,
        WN=tile.wn,
        SUB=sub,
        STAGES=tile.stages,
        EXACT=fp32_mode(a.dtype),
    )[0]


# ---------------------------------------------------------------- softmax


class Addends(NamedTuple):
    """What block_softmax.metal adds to scores: float32 arrays, ids int32, or None; `causal` an offset or None.

    bias (Z or 1, H or 1, M, N), or `packed` (Z or 1, nnz, br, bc); keys (Z, KH, N); pairs (M, N).
    """

    bias: mx.array | None = None
    packed: bool = False
    keys: mx.array | None = None
    pairs: mx.array | None = None
    q_ids: mx.array | None = None
    k_ids: mx.array | None = None
    causal: int | None = None

    def arrays(self) -> list[mx.array]:
        return [a if a is not None else unread() for a in (self.bias, self.keys, self.pairs)]

    def ids(self) -> list[mx.array]:
        return [a if a is not None else numbers(SMALL) for a in (self.q_ids, self.k_ids)]

    def sizes(self) -> list[int]:
        """dims[7:15] of block_softmax.metal."""
        kind = 0 if self.bias is None else 2 if self.packed else 1
        batch, heads = (1, 1) if self.bias is None else self.bias.shape[:2]
        key_heads = 0 if self.keys is None else self.keys.shape[1]
        flags = [int(a is not None) for a in (self.pairs, self.q_ids, self.causal)]
        return [kind, batch, heads, key_heads, *flags, self.causal or 0]


def _row_grid(lines: Lines, heads: int, batch: int) -> tuple[int, int, int]:
    return blocks(heads * lines.lines * lines.size, 8), batch, 1


def block_softmax(
    x: mx.array, scale: mx.array, addends: Addends, lines: Lines, heads: int
) -> tuple[mx.array, mx.array]:
    """(y (Z, nnz, br, bc) of x's dtype, lse (Z, H, M) float32); `lines` are the block rows, scale is float32 (1,)."""
    check_array("x", x, 4)
    batch = x.shape[0]
    sizes = [lines.lines, lines.nnz, lines.size, lines.other_size, lines.extent, lines.other_extent, heads]
    inputs = [x, scale, *addends.arrays(), *addends.ids(), lines.ptr, lines.other]
    shapes = [x.shape, (batch, heads, lines.extent)]
    y, lse = launch(
        "block_softmax",
        inputs,
        [*sizes, *addends.sizes(), batch],
        shapes,
        _row_grid(lines, heads, batch),
        dtype=x.dtype,
    )
    return y, lse


def block_softmax_grad(
    ct: mx.array, y: mx.array, lse_ct: mx.array | None, lines: Lines, heads: int
) -> mx.array:
    """Gradient of the scores, float32 (Z, nnz, br, bc), from those of y and of lse (Z, H, M)."""
    check_array("ct", ct, 4, y.dtype)
    sizes = [lines.lines, lines.nnz, lines.size, lines.other_size, lines.extent, lines.other_extent, heads]
    inputs = [ct, y, unread() if lse_ct is None else lse_ct, lines.ptr, lines.other]
    grid = _row_grid(lines, heads, y.shape[0])
    dims = [*sizes, int(lse_ct is not None)]
    return launch("block_softmax_grad", inputs, dims, [y.shape], grid, dtype=y.dtype)[0]
