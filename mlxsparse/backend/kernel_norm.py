"""Batch normalisation over columns on the GPU, with the sum and the ReLU that often follow in the same pass.

Sums run in fp32 in a fixed order, which depends on the active rows and not on padding. A pass forward reads x
twice and writes y; the pass back reads x and the cotangent twice and writes one gradient, or with a sum two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from ..errors import ShapeError
from .kernel_fixed import bits
from .library import Factory, Launch, blocks, check_array, factory, filled, ready, unread

PARTS = 256  # partial sums of a column, at most
LEAST = 32  # rows of a part: norm_rows of kernels/norm.h
ROWS = 4  # of one thread of norm_apply and norm_grad
LANES = 32  # threads across a row, at most
# Threadgroups that one core shall hold, by kernel: limits registers on CUDA.
FIT = {"norm_apply": 3, "norm_grad": 3}


class Running(NamedTuple):
    """Statistics that a batch moves: mean and unbiased variance (C,) float32, and the batch's share."""

    mean: mx.array
    var: mx.array
    momentum: float


class Columns:
    """The passes over arrays (N, C) of a dtype, N > 0, of which the first `active` rows count.

    Each is a function for many calls; weight is the dtype of weight and bias.
    """

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype, weight: mx.Dtype, active: int | mx.array):
        self.shape, self.dtype, self.weight, self.active = shape, dtype, weight, active
        self._parts = _parts(shape[0])
        self._rows = _rows(shape, dtype)

    def coefficients(self, eps: float, momentum: float | None = None) -> Callable[..., Sequence[mx.array]]:
        """`coefficients` of x, weight and bias; with a momentum of running mean and variance, too."""
        (n, channels), most = self.shape, self._parts
        dims = (n, channels, self.active, most)
        moments = _call("norm_moments", self.dtype, dims, ((most + 1, 2, channels),))
        if momentum is None:
            more, kept = (bits(eps), 0, 0), (0,)
        else:
            more, kept = (bits(eps), bits(momentum), 1), (channels,)
        call = _call("norm_coef", self.weight, (*dims, *more), ((6, channels), kept, kept))
        if momentum is None:
            call = call.holding(unread(), unread())
        return lambda x, *vectors: call([moments([x])[0], *vectors])

    def apply(self, relu: bool, added: bool) -> Callable[..., mx.array]:
        """`apply` of x, what is added, and coefficients."""
        dims = (*self.shape, self.active, int(relu), int(added), self._rows)
        call = _call("norm_apply", self.dtype, dims, (self.shape,))
        if added:
            return lambda x, add, coef: call([x, add, coef])[0]
        return lambda x, coef: call([x, x, coef])[0]

    def gradients(self, relu: bool, added: bool) -> Callable[..., list[mx.array]]:
        """`gradients` of the cotangent, x, coefficients and, where something was added before a ReLU, y."""
        mode = 0 if not relu else 2 if added else 1
        sums = _sums(self.shape, self.dtype, self.active, mode)
        slope = _slope(self.shape, self.weight, self.active)
        dims = (*self.shape, self.active, int(mode == 1), self._rows)
        grad = _call("norm_grad", self.dtype, dims, (self.shape,))

        def run(ct: mx.array, x: mx.array, coef: mx.array, y: mx.array | None = None) -> list[mx.array]:
            parts, g = sums([x, ct, x if y is None else y, coef])
            g = g if mode == 2 else ct
            slopes, dw, db = slope([parts, coef])
            return [*grad([x, g, coef, slopes]), dw, db, g]

        return run


def coefficients(
    x: mx.array,
    weight: mx.array,
    bias: mx.array,
    eps: float,
    active: int | mx.array,
    running: Running | None = None,
) -> Sequence[mx.array]:
    """What normalises the first `active` rows of x (N, C), N > 0, and the moved statistics of `running`.

    weight, bias (C,) of one dtype -> (6, C) float32: mean, what float32 leaves of it, biased variance, and
    what kernels/norm_coef.metal says. Sums are of x less its first row: a large mean costs nothing.
    """
    check_array("x", x, 2)
    for name, v in (("weight", weight), ("bias", bias)):
        if v.shape != x.shape[1:]:
            raise ShapeError(f"{name} has shape {tuple(v.shape)}, wanted {tuple(x.shape[1:])}")
    old, momentum = ((), None) if running is None else (running[:2], running.momentum)
    return Columns(x.shape, x.dtype, weight.dtype, active).coefficients(eps, momentum)(x, weight, bias, *old)


def apply(
    x: mx.array, coef: mx.array, active: int | mx.array, *, relu: bool = False, add: mx.array | None = None
) -> mx.array:
    """The first `active` rows of x (N, C) normalised, plus `add` (N, C), then a ReLU; other rows are 0."""
    _check(x, add=add)
    call = Columns(x.shape, x.dtype, x.dtype, active).apply(relu, add is not None)
    return call(x, coef) if add is None else call(x, add, coef)


def gradients(
    ct: mx.array,
    x: mx.array,
    coef: mx.array,
    active: int | mx.array,
    dtype: mx.Dtype,
    *,
    relu: bool = False,
    y: mx.array | None = None,
) -> list[mx.array]:
    """Gradients of x, of weight and bias (C,) in `dtype`, and of what was added, where y is given.

    ct: cotangent of apply's result; y: that result where something was added before the ReLU.
    """
    _check(x, ct=ct, y=y)
    return Columns(x.shape, x.dtype, dtype, active).gradients(relu, y is not None)(ct, x, coef, y)


def column_sums(x: mx.array, active: int | mx.array) -> mx.array:
    """Sums (C,) float32 of the first `active` rows of x (N, C), N > 0."""
    zero = filled((6, x.shape[1]), 0, mx.float32)
    parts, _ = _sums(x.shape, x.dtype, active, 0)([x, x, x, zero])
    return _slope(x.shape, mx.float32, active)([parts, zero])[2]


def _sums(shape: tuple[int, ...], dtype: mx.Dtype, active: int | mx.array, mode: int) -> Launch:
    """Parts of sums of x, ct, y and coefficients; what of ct passes a ReLU in mode 2, else nothing."""
    (n, channels), most = shape, _parts(shape[0])
    shapes = (most, 2, channels), (n if mode == 2 else 0, channels)
    return _call("norm_sums", dtype, (n, channels, active, most, mode), shapes)


def _slope(shape: tuple[int, ...], weight: mx.Dtype, active: int | mx.array) -> Launch:
    """What norm_grad needs, and gradients of weight and bias, of parts and coefficients."""
    n, channels = shape
    shapes = ((2, channels), (channels,), (channels,))
    return _call("norm_slope", weight, (n, channels, active, _parts(n)), shapes)


def _check(x: mx.array, **others: mx.array | None) -> None:
    check_array("x", x, 2)
    for name, a in others.items():
        if a is not None and a.shape != x.shape:
            raise ShapeError(f"{name} has shape {tuple(a.shape)}, x {tuple(x.shape)}; they must be equal")


def _across(channels: int, dtype: mx.Dtype) -> tuple[int, int]:
    """Threads across a row, and threadgroups."""
    pieces = blocks(channels, 16 // dtype.size)
    return min(pieces, LANES), blocks(pieces, LANES)


def _parts(n: int) -> int:
    """Partial sums of n rows. Parts of n active rows among more are the same (norm_rows)."""
    return min(PARTS, blocks(n, LEAST))


def _rows(shape: tuple[int, ...], dtype: mx.Dtype) -> int:
    """Rows of a threadgroup that only passes over them."""
    return 256 // _across(shape[1], dtype)[0] * ROWS


def _call(
    name: str, dtype: mx.Dtype, dims: tuple[int | mx.array, ...], shapes: tuple[tuple[int, ...], ...]
) -> Launch:
    prepare = _prepared if isinstance(dims[2], int) else _prepared.__wrapped__
    return prepare(factory(), name, dtype, dims, shapes)


# What follows from sizes alone is derived once.
@functools.lru_cache(maxsize=512)
def _prepared(
    make: Factory,
    name: str,
    dtype: mx.Dtype,
    dims: tuple[int | mx.array, ...],
    shapes: tuple[tuple[int, ...], ...],
) -> Launch:
    n, channels, _, parts, *rest = dims
    if name in ("norm_coef", "norm_slope"):
        groups = 1, blocks(int(channels), 8), 1
    else:
        down = int(parts) if name in ("norm_moments", "norm_sums") else blocks(int(n), int(rest[-1]))
        groups = down, _across(int(channels), dtype)[1], 1
    return ready(name, dims, shapes, groups, dtype=dtype, fit=FIT.get(name, 0))
