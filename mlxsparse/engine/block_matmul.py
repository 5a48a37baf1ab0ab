"""Products of dense and block-sparse matrices: sparse x dense (dsd), dense x sparse (dds), and the stored
blocks of dense x dense (sdd). Differentiable in both operands; each gradient is another of the three.

Dense operands are (Z, H, rows, columns), stored blocks (Z, nnz, br, bc). trans_a and trans_b say that an
operand is stored transposed. float32 sums, rounded once.
"""

from __future__ import annotations

import math
from typing import Protocol

import mlx.core as mx
import numpy as np

from ..backend import executor, trace
from ..backend.autodiff import again, differentiable
from ..backend.host import empty, view32
from ..backend.kernel_blocks import DDS, DSD, SDD
from ..backend.library import factory, native
from ..backend.pace import weight_of
from . import block_host, block_kernel
from .block_index import BlockIndex

# Density of blocks above which the whole matrix is multiplied. On a GPU nobody can look whether NaN would
# then pass through absent blocks, so there only a layout without absent ones is.
DENSE_DENSITY = {"host": 0.6, "kernel": 1 - 1e-9}
DENSE_DENSITY_SMALL = {"host": 0.2, "kernel": 1 - 1e-9}  # a side of the block under 16


MODES = {"sdd": SDD, "dsd": DSD, "dds": DDS}


class Products(Protocol):
    """The three products of one executor."""

    def sdd(
        self, a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool
    ) -> mx.array: ...

    def dsd(
        self, s: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool
    ) -> mx.array: ...

    def dds(
        self, a: mx.array, s: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool
    ) -> mx.array: ...


class _Host:
    def sdd(self, a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        left, right = _seen(a, ta), _seen(b, tb)
        out, values = empty((a.shape[0], index.nnz, *index.block), mx.float32)
        if dense:
            whole = np.empty((*left.shape[:3], right.shape[3]), np.float32)
            np.matmul(left, right, out=whole)
            block_host.pack(whole, index, values)
        else:
            block_host.sampled(left, right, index, values)
        return out.astype(a.dtype)

    def dsd(self, s: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        values, right = view32(s), _seen(b, tb)
        side = index.by_col if ta else index.by_row
        out, y = empty((*b.shape[:2], side.extent, right.shape[3]), mx.float32)
        if not (dense and block_host.dense_times(values, index, ta, right, y)):
            block_host.times(values, side, right, y)
        return out.astype(b.dtype)

    def dds(self, a: mx.array, s: mx.array, index: BlockIndex, ta: bool, tb: bool, dense: bool) -> mx.array:
        # y^T = op(S)^T op(a)^T, through views.
        values, left = view32(s), _seen(a, ta).swapaxes(2, 3)
        side = index.by_row if tb else index.by_col
        out, y = empty((*a.shape[:2], left.shape[3], side.extent), mx.float32)
        turned = y.swapaxes(2, 3)
        if not (dense and block_host.dense_times(values, index, not tb, left, turned)):
            block_host.times(values, side, left, turned)
        return out.astype(a.dtype)


def _seen(a: mx.array, transposed: bool) -> np.ndarray:
    v = view32(a)
    return v.swapaxes(2, 3) if transposed else v


HOST = _Host()


def products() -> Products:
    """The products of the executor of the default device."""
    return block_kernel.KERNEL if executor() == "kernel" else HOST


def takes_dense(index: BlockIndex, path: str | None) -> bool:
    """Whether the whole matrix is multiplied: where `path` says so, by default above a measured density."""
    on = executor()
    held: bool | None = index.plans.get((path, on))
    if held is None:
        limit = (DENSE_DENSITY_SMALL if min(index.block) < 16 else DENSE_DENSITY)[on]
        held = index.nnz > limit * max(1, math.prod(index.grid)) if path is None else path == "dense"
        index.plans[path, on] = held
        way = "dense" if held else "blocks"
        trace(f"block product: {way} path for {index.nnz} of {index.grid}", once=True)
    return held


def known(
    mode: str, a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, path: str | None
) -> mx.array | None:
    """The product where a call with arrays of these shapes and dtypes was one launch before; else None.

    Nothing is checked again and MLX hears of no custom function, which takes longer than a launch.
    """
    if not index.plans or executor() != "kernel":
        return None
    key = (factory(), mode, ta, tb, path, a.dtype, b.dtype, a.shape, b.shape)
    run = index.calls.get(key)
    if run is None:
        plan = block_kernel.plan_of(MODES[mode], a, b, index, ta, tb)
        if plan is None or a.dtype != b.dtype or takes_dense(index, path):
            return None
        width = block_kernel.width_of(MODES[mode], a, b, ta, tb)
        weight = weight_of(math.prod((a.shape[0], index.nnz, *index.block, width)))
        run = index.calls[key] = again(plan, native(), weight)
    found: mx.array | None = run(a, b)
    return found


def sdd(a: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, path: str | None = None) -> mx.array:
    """Stored blocks of op(a) @ op(b): (Z, nnz, br, bc), 0 where a block lies outside the matrix."""
    p, dense = products(), takes_dense(index, path)

    def grad_a(ct: mx.array, a: mx.array, b: mx.array) -> mx.array:
        return p.dds(b, ct, index, tb, True, dense) if ta else p.dsd(ct, b, index, False, not tb, dense)

    def grad_b(ct: mx.array, a: mx.array, b: mx.array) -> mx.array:
        return p.dsd(ct, a, index, True, ta, dense) if tb else p.dds(a, ct, index, not ta, False, dense)

    return differentiable("sdd", lambda a, b: p.sdd(a, b, index, ta, tb, dense), (grad_a, grad_b), a, b)


def dsd(s: mx.array, b: mx.array, index: BlockIndex, ta: bool, tb: bool, path: str | None = None) -> mx.array:
    """op(S) @ op(b): (Z, H, M, N)."""
    p, dense = products(), takes_dense(index, path)

    def grad_s(ct: mx.array, s: mx.array, b: mx.array) -> mx.array:
        if ta:
            return p.sdd(b, ct, index, tb, True, dense)
        return p.sdd(ct, b, index, False, not tb, dense)

    def grad_b(ct: mx.array, s: mx.array, b: mx.array) -> mx.array:
        return p.dds(ct, s, index, True, ta, dense) if tb else p.dsd(s, ct, index, not ta, False, dense)

    return differentiable("dsd", lambda s, b: p.dsd(s, b, index, ta, tb, dense), (grad_s, grad_b), s, b)


def dds(a: mx.array, s: mx.array, index: BlockIndex, ta: bool, tb: bool, path: str | None = None) -> mx.array:
    """op(a) @ op(S): (Z, H, M, N)."""
    p, dense = products(), takes_dense(index, path)

    def grad_a(ct: mx.array, a: mx.array, s: mx.array) -> mx.array:
        return p.dsd(s, ct, index, tb, True, dense) if ta else p.dds(ct, s, index, False, not tb, dense)

    def grad_s(ct: mx.array, a: mx.array, s: mx.array) -> mx.array:
        if tb:
            return p.sdd(ct, a, index, True, ta, dense)
        return p.sdd(a, ct, index, not ta, False, dense)

    return differentiable("dds", lambda a, s: p.dds(a, s, index, ta, tb, dense), (grad_a, grad_s), a, s)


def pack(x: mx.array, index: BlockIndex) -> mx.array:
    """Stored blocks of x (Z, H, M, N): (Z, nnz, br, bc) of x's dtype."""
    gradient = lambda ct, x: _unpack(ct, index, 0.0)  # noqa: E731
    return differentiable("pack", lambda x: _pack(x, index), (gradient,), x)


def unpack(values: mx.array, index: BlockIndex, fill: float = 0.0) -> mx.array:
    """The matrix of the stored blocks, `fill` where none is: (Z, nnz, br, bc) -> (Z, H, M, N)."""
    gradient = lambda ct, v: _pack(ct, index)  # noqa: E731
    return differentiable("unpack", lambda v: _unpack(v, index, fill), (gradient,), values)


def _pack(x: mx.array, index: BlockIndex) -> mx.array:
    if executor() == "kernel":
        return block_kernel.pack(x, index)
    out, values = empty((x.shape[0], index.nnz, *index.block), mx.float32)
    block_host.pack(view32(x), index, values)
    return out.astype(x.dtype)


def _unpack(values: mx.array, index: BlockIndex, fill: float) -> mx.array:
    if executor() == "kernel":
        return block_kernel.unpack(values, index, fill)
    whole = block_host.unpack(view32(values), index, fill)
    out, y = empty(whole.shape, mx.float32)
    y[:] = whole
    return out.astype(values.dtype)
