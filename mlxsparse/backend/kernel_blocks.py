"""Block-sparse products, softmax and attention on the GPU.

Dense arrays are (Z, H, rows, columns), values (Z, nnz, br, bc). Sums run in fp32 in a fixed order and are
rounded once; the same input gives the same bits.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from ..errors import MLXSparseError
from .kernel_block_attend import MAX_DIM as MAX_DIM
from .kernel_block_attend import AttentionTile as AttentionTile
from .kernel_block_attend import FlashTile as FlashTile
from .kernel_block_attend import GroupFlash as GroupFlash
from .kernel_block_attend import attention_tile as attention_tile
from .kernel_block_attend import flash_shape as flash_shape
from .kernel_block_attend import flash_tile as flash_tile
from .kernel_conv import FP32_MODES
from .library import SMALL, blocks, check_array, filled, launch, on_cuda, ready, unread

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

    def sizes(self) -> dict[str, int]:
        """As template parameters of block_gemm.metal."""
        return {name.upper(): value for name, value in self._asdict().items()}


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


def tile_of(mode: int, size: int, dtype: mx.Dtype, turned: bool, cuda: bool | None = None) -> Tile:
    """A tile for lines of `size` elements. turned: the dense operand is staged with rows along its free axis.

    Twice the tile on CUDA in 16 bits, where it fits 48 KB; a Metal threadgroup has 32 KB.
    """
    cuda = on_cuda() if cuda is None else cuda
    forced = os.environ.get("MLXSPARSE_BLOCK_TILE")  # "BM,BN,WM,WN,STAGES" of dsd and sdd, for measurements
    if forced:
        bm, bn, wm, wn, stages = (int(v) for v in forced.split(","))
        found = Tile(bm, bn, wm, wn, stages)
    elif size <= 16:
        found = Tile(16, 128, 1, 4)
    elif size <= 32:
        found = Tile(32, 128, 1, 4)
    elif cuda and dtype != mx.float32:
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
    """One of the three products. `lines` of sdd: kernels/block_gemm.metal, `sdd_groups` of the engine."""
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
        SUB=sub,
        **tile.sizes(),
        EXACT=fp32_mode(a.dtype),
    )[0]


# ---------------------------------------------------------------- softmax


@functools.cache
def _no_ids() -> mx.array:
    """What stands for ids that a call leaves out."""
    return mx.array([0] * SMALL, dtype=mx.int32)


class Addends(NamedTuple):
    """What block_softmax.metal adds to scores: float32 arrays, int32 ids, or None. causal: an offset or None.

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
        return [a if a is not None else _no_ids() for a in (self.q_ids, self.k_ids)]

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
    """(y (Z, nnz, br, bc) of x's dtype, lse (Z, H, M) float32); `lines`: block rows; scale float32 (1,)."""
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


# ---------------------------------------------------------------- attention


def block_marks(k: mx.array, v: mx.array, keys: mx.array | None) -> mx.array:
    """(Z, KH, N) float32 addend of scores: -inf for masked keys, NaN where k or v is not finite, else 0.

    k (Z, KH, N, D), v (Z, KH, N, DV); keys (Z, N) float32, 0 or -inf.
    """
    z, heads, n, d = k.shape
    rows = z * heads * n
    dims = [rows, d, v.shape[3], heads, n, int(keys is not None)]
    inputs = [k, v, unread() if keys is None else keys]
    return launch("block_marks", inputs, dims, [(z, heads, n)], (blocks(rows, 32), 1, 1), dtype=k.dtype)[0]


@functools.lru_cache(maxsize=64)
def _factor(scale: float) -> mx.array:
    return mx.array([scale] * SMALL, dtype=mx.float32)


def block_attend(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scale: float,
    marks: mx.array | None,
    addends: Addends,
    lines: Lines,
    layout_heads: int,
    tile: AttentionTile | FlashTile | GroupFlash,
    order: mx.array | None = None,
) -> Callable[[mx.array, mx.array, mx.array], Sequence[mx.array]]:
    """Attention of arrays like q, k and v: [out (Z, H, M, DV) of q's dtype, lse (Z, H, M) float32].

    The bias is not packed, keys are `marks`. order: of the block rows of each head, but for an AttentionTile;
    marks may be None where it has none.
    """
    for name, a in (("q", q), ("k", k), ("v", v)):
        check_array(name, a, 4, q.dtype)
    z, heads, m, d = q.shape
    key_heads, outs = k.shape[1], v.shape[3]
    kind, zb, hb, _, _, ids, causal, offset = addends.sizes()
    sizes = [lines.lines, lines.size, lines.other_size, m, lines.other_extent, heads, key_heads, layout_heads]
    bias = unread() if addends.bias is None else addends.bias
    others = [unread() if marks is None else marks, _factor(scale), bias, *addends.ids()]
    others += [lines.ptr, lines.other, *([order] if order is not None else [])]
    run = ready(
        tile.kernel,
        [*sizes, lines.nnz, d, outs, kind, zb, hb, ids, causal, offset],
        [(z, heads, m, outs), (z, heads, m)],
        (lines.lines * blocks(lines.size, tile.bm), heads, z),
        tile.threads,
        dtype=q.dtype,
        group_bytes=tile.group_bytes(q.dtype.size),
        fit=tile.fit,
        **tile.sizes(),
        **({"EXACT": fp32_mode(q.dtype)} if isinstance(tile, AttentionTile) else {}),
    )
    return lambda q, k, v: run([q, k, v, *others])
