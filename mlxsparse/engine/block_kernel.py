"""Block-sparse operators by kernels: block_matmul.py, block_softmax.py and block_attention.py on a GPU."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from ..backend import kernel_block_tiles, kernel_blocks
from ..backend.kernel_block_tiles import Sizes
from ..backend.kernel_blocks import DDS, DSD, SDD, Addends, Lines, Tile
from ..backend.kernel_conv import FP32_MODES, fp32_mode, products_in_tf32
from ..backend.library import blocks, factory, filled
from .block_index import BlockIndex, Side
from .block_lists import tile_lists
from .tables import integers

if TYPE_CHECKING:
    from .block_softmax import Added


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
    """Pieces of `sub` columns of the stored blocks, `per_group` of a block row together; kept."""
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


def plan_of(mode: int, a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool) -> Any:
    """The launch of a product in large tiles that such a call made before; None: none, or not one launch."""
    return index.plans.get((factory(), mode, ta, tb, a.dtype, a.shape, b.shape))


def width_of(mode: int, a: mx.array, b: mx.array, ta: bool, tb: bool) -> int:
    """Elements of the dense operand's own axis, of sdd of the reduced one."""
    dense, turned = (b, tb) if mode == DSD else (a, ta != (mode == DDS))
    return dense.shape[2 if turned else 3]


def _tiled(
    mode: int, a: mx.array, b: mx.array, index: BlockIndex, by_row: bool, ta: bool, tb: bool
) -> mx.array | None:
    """A product in large tiles, None where it has none; all but the arrays is kept with the layout."""
    key = (factory(), mode, ta, tb, a.dtype, a.shape, b.shape)
    run = index.plans.get(key, index)
    if run is index:
        side, width = index.by_row if by_row else index.by_col, width_of(mode, a, b, ta, tb)
        sizes = Sizes(index.nnz, side.size, side.other_size, side.extent, side.other_extent)
        tile = kernel_block_tiles.block_tile(mode, sizes, width, a.shape[0] * index.grid[0], a.dtype)
        run = None
        if tile is not None:
            lists = tile_lists(index, side, mode, tile)
            run = kernel_block_tiles.block_tiles(mode, a, b, lists, sizes, ta, tb, index.grid[0], tile)
        index.plans[key] = run
    return None if run is None else run(a, b)


class _Kernel:
    """The products of block_matmul.py; `dense` multiplies the whole matrix by MLX."""

    def sdd(self, a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        if dense:
            return pack(_product(_seen(a, ta), _seen(b, tb)), index)
        found = _tiled(SDD, a, b, index, True, ta, tb)
        if found is not None:
            return found
        tile = kernel_blocks.tile_of(SDD, index.block[0], a.dtype, tb)
        sub = min(tile.bn, max(16, 1 << (index.block[1] - 1).bit_length()))
        lines = sdd_groups(index, tile.bn // sub, sub)
        return kernel_blocks.block_gemm(SDD, a, b, lines, ta, tb, index.grid[0], tile, sub)

    def dsd(self, s: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        if dense:
            return _product(_seen(unpack(s, index, 0.0), ta), _seen(b, tb))
        found = _tiled(DSD, s, b, index, not ta, ta, tb)
        if found is not None:
            return found
        side = index.by_col if ta else index.by_row
        tile = kernel_blocks.tile_of(DSD, side.size, b.dtype, tb)
        return kernel_blocks.block_gemm(DSD, s, b, _lines(index, side), ta, tb, index.grid[0], tile)

    def dds(self, a: mx.array, s: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        if dense:
            return _product(_seen(a, ta), _seen(unpack(s, index, 0.0), tb))
        found = _tiled(DDS, a, s, index, tb, ta, tb)
        if found is not None:
            return found
        side = index.by_row if tb else index.by_col
        tile: Tile = kernel_blocks.tile_of(DDS, side.size, a.dtype, not ta)
        return kernel_blocks.block_gemm(DDS, a, s, _lines(index, side), ta, tb, index.grid[0], tile)


KERNEL = _Kernel()


def _seen(a: mx.array, transposed: bool) -> mx.array:
    return a.swapaxes(2, 3) if transposed else a


def _product(a: mx.array, b: mx.array) -> mx.array:
    """a @ b by MLX, of float32 in parts of 11 bits on a GPU with TF32, which keeps no more of each factor.

    Two parts of each factor are near fp32, three of them exact (MLXSPARSE_FP32, backend/kernel_conv.py).
    """
    mode = fp32_mode(a.dtype)
    if a.dtype != mx.float32 or mode == FP32_MODES["tf32"] or not products_in_tf32():
        return a @ b
    parts = 3 if mode == FP32_MODES["exact"] else 2
    left, right = _in_parts(a, parts), _in_parts(b, parts)
    sums = reversed(range(parts))  # small terms first
    products = [left[i] @ right[k - i] for k in sums for i in range(k + 1)]
    return functools.reduce(operator.add, products)


def _in_parts(a: mx.array, parts: int) -> list[mx.array]:
    """Arrays with at most 11 significant bits, which add up to float32 `a` but for what is below the last."""
    found = []
    for _ in range(parts):
        high = (a.view(mx.uint32) & mx.array(0xFFFFE000, mx.uint32)).view(mx.float32)
        found.append(high)
        a = a - high
    return found


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


# ---------------------------------------------------------------- softmax


def _addends(added: Added, keys: mx.array | None) -> Addends:
    def single(a: mx.array | None) -> mx.array | None:
        return None if a is None else a.astype(mx.float32)

    return Addends(
        bias=single(added.rpe),
        packed=added.packed,
        keys=keys,
        pairs=single(added.pairs),
        q_ids=added.q_segments,
        k_ids=added.k_segments,
        causal=added.causal,
    )


def softmax(x: mx.array, scale: mx.array, added: Added, index: BlockIndex) -> tuple[mx.array, mx.array]:
    """(y (Z, nnz, br, bc) of x's dtype, lse (Z, H, M) float32)."""
    keys = None if added.keys is None else added.keys.astype(mx.float32)[:, None]
    factor = scale.astype(mx.float32).reshape(1)
    return _softmax(x, factor, _addends(added, keys), index)


def _softmax(x: mx.array, scale: mx.array, addends: Addends, index: BlockIndex) -> tuple[mx.array, mx.array]:
    if index.nnz == 0:
        return x, filled((x.shape[0], index.grid[0], index.shape[0]), -float("inf"), mx.float32)
    return kernel_blocks.block_softmax(x, scale, addends, _lines(index, index.by_row), index.grid[0])


def score_gradient(ct: mx.array, y: mx.array, lse_ct: mx.array | None, index: BlockIndex) -> mx.array:
    """Gradient of the scores (Z, nnz, br, bc) float32."""
    if index.nnz == 0:
        return filled(y.shape, 0, mx.float32)
    lines = _lines(index, index.by_row)
    return kernel_blocks.block_softmax_grad(ct.astype(y.dtype), y, lse_ct, lines, index.grid[0])


def addend_gradient(name: str, dt: mx.array, addend: mx.array, packed: bool, index: BlockIndex) -> mx.array:
    """Gradient of one addend (a name of block_softmax.Added) from that of the scores."""
    if dt.size == 0:
        return filled(addend.shape, 0, addend.dtype)
    if name == "keys":
        bc, r = index.block[1], index.grid[1]
        narrow = BlockIndex(index.grid, (1, bc), (r, index.shape[1]), index.heads, index.rows, index.cols)
        whole = unpack(dt.sum(axis=2, keepdims=True), narrow, 0.0)
        return whole.sum(axis=(1, 2)).astype(addend.dtype)
    if name == "pairs":
        return unpack(dt.sum(axis=0, keepdims=True), index, 0.0).sum(axis=(0, 1)).astype(addend.dtype)
    if addend.shape[0] < dt.shape[0]:
        dt = dt.sum(axis=0, keepdims=True)
    if packed:
        return dt.astype(addend.dtype)
    whole = unpack(dt, index, 0.0)
    if addend.shape[1] < whole.shape[1]:
        whole = whole.sum(axis=1, keepdims=True)
    return whole.astype(addend.dtype)


# ---------------------------------------------------------------- attention


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, added: Added, index: BlockIndex
) -> tuple[mx.array, mx.array]:
    """(out (Z, Hq, M, Dv) of q's dtype or float32, lse (Z, Hq, M) float32).

    In one kernel where the channels fit; else through scores of the stored blocks, in float32.
    """
    terms = added.rpe is not None or added.q_segments is not None or added.causal is not None
    key = (factory(), scale, q.dtype, *q.shape, *k.shape, *v.shape)
    run = None if terms or added.keys is not None else index.plans.get(key)
    if run is not None:
        out, lse = run(q, k, v)
        return out, lse
    flash = kernel_blocks.flash_tile(
        q.shape[3], v.shape[3], index.block, scale, q.dtype, terms, added.keys is not None
    )
    tile = flash or kernel_blocks.attention_tile(max(q.shape[3], v.shape[3]), index.block[0], q.dtype)
    if tile is not None and not added.packed and 0 not in (*q.shape, *k.shape, *v.shape):
        marks = None if flash and not flash.marks else kernel_blocks.block_marks(k, v, added.keys)
        order = index.row_order if flash else None
        lines, addends = _lines(index, index.by_row), _addends(added, None)
        run = kernel_blocks.block_attend(q, k, v, scale, marks, addends, lines, index.grid[0], tile, order)
        if marks is None:  # all but q, k and v belongs to the layout
            index.plans[key] = run
        out, lse = run(q, k, v)
        return out, lse
    index, k, v, addends = _prepared(q, k, v, added, index)
    p, lse = _probabilities(q, k, scale, addends, index)
    return KERNEL.dsd(p, _widened(v, q.shape[1]), index, False, False, False), lse


def _prepared(
    q: mx.array, k: mx.array, v: mx.array, added: Added, index: BlockIndex
) -> tuple[BlockIndex, mx.array, mx.array, Addends]:
    """Keys and values that are masked or not finite become 0, and mark their key with -inf or NaN."""
    fine = mx.isfinite(k).all(axis=3) & mx.isfinite(v).all(axis=3)
    mark = mx.where(fine, mx.array(0.0), mx.array(float("nan")))
    if added.keys is not None:
        mark = mx.where(added.keys[:, None] == -float("inf"), mx.array(-float("inf")), mark)
    keep = (mark == 0)[..., None]
    zero = mx.array(0, k.dtype)
    k, v = mx.where(keep, k, zero), mx.where(keep, v, zero)
    return index.with_heads(q.shape[1]), k, v, _addends(added, mark)


def _widened(a: mx.array, heads: int) -> mx.array:
    """Key heads repeated for their query heads, float32."""
    a = a.astype(mx.float32)
    return a if a.shape[1] == heads else mx.repeat(a, heads // a.shape[1], axis=1)


def _probabilities(
    q: mx.array, k: mx.array, scale: float, addends: Addends, index: BlockIndex
) -> tuple[mx.array, mx.array]:
    scores = KERNEL.sdd(q.astype(mx.float32), _widened(k, q.shape[1]), index, False, True, False)
    return _softmax(scores, mx.array([scale], mx.float32), addends, index)


def attention_gradient(
    name: str,
    ct: mx.array,
    lse_ct: mx.array | None,
    out: mx.array,
    lse: mx.array,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    added: Added,
    index: BlockIndex,
) -> mx.array:
    """Gradient of q, k, v or the bias."""
    heads = q.shape[1]
    index, k, v, addends = _prepared(q, k, v, added, index)
    # Queries without any key count for nothing, whatever they hold; those that are not finite reach the
    # keys that they see, and no other: their scores become NaN, and what is multiplied by a score 0.
    empty_row, zero = (lse == -float("inf"))[..., None], mx.array(0.0)
    fine = mx.isfinite(q).all(axis=3) & mx.isfinite(ct).all(axis=3) & mx.isfinite(lse)
    usable = fine[..., None] & ~empty_row
    scored = mx.where(empty_row, zero, mx.where(usable, q.astype(mx.float32), mx.array(float("nan"))))
    factor, ct = mx.where(usable, q.astype(mx.float32), zero), mx.where(usable, ct.astype(mx.float32), zero)
    p, _ = _probabilities(scored, k, scale, addends, index)
    if name == "v":
        return _folded(KERNEL.dsd(p, ct, index, True, False, False), v)
    dp = KERNEL.sdd(ct, _widened(v, heads), index, False, True, False)
    ds = score_gradient(dp, p, lse_ct, index)
    if name == "bias":
        assert added.rpe is not None
        return addend_gradient("rpe", ds, added.rpe, added.packed, index)
    if name == "q":
        return (KERNEL.dsd(ds, _widened(k, heads), index, False, False, False) * scale).astype(q.dtype)
    return _folded(KERNEL.dsd(ds, factor, index, True, False, False) * scale, k)


def _folded(wide: mx.array, like: mx.array) -> mx.array:
    """Sum over the query heads of each key head."""
    z, heads, n, d = wide.shape
    key_heads = like.shape[1]
    if heads != key_heads:
        wide = wide.reshape(z, key_heads, heads // key_heads, n, d).sum(axis=2)
    return wide.astype(like.dtype)
