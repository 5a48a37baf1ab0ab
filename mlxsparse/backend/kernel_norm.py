"""Batch normalisation over columns on the GPU, with the sum and the ReLU that often follow in the same pass.

Sums run in fp32 in a fixed order, which depends on the active rows and not on padding. A pass forward reads x
twice and writes y; the pass back reads x and the cotangent twice and writes one gradient, or with a sum two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import ShapeError
from .library import Factory, blocks, check_array, factory, filled, ready, unread

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


def coefficients(
    x: mx.array,
    weight: mx.array,
    bias: mx.array,
    eps: float,
    active: int | mx.array,
    running: Running | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """What normalises the first `active` rows of x (N, C), N > 0, and the moved statistics of `running`.

    weight, bias (C,) of one dtype -> (6, C) float32: mean, what float32 leaves of it, biased variance, and
    what kernels/norm_coef.metal says. Sums are of x less its first row: a large mean costs nothing.
    """
    check_array("x", x, 2)
    (n, channels), most = x.shape, _parts(x.shape[0])
    for name, v in (("weight", weight), ("bias", bias)):
        if v.shape != (channels,):
            raise ShapeError(f"{name} has shape {tuple(v.shape)}, wanted ({channels},)")
    dims = (n, channels, active, most)
    parts = _call("norm_moments", x.dtype, dims, ((most + 1, 2, channels),))([x])[0]
    if running is None:
        old, more, shape = (unread(), unread()), (_bits(eps), 0, 0), (0,)
    else:
        old, more, shape = running[:2], (_bits(eps), _bits(running.momentum), 1), (channels,)
    call = _call("norm_coef", weight.dtype, (*dims, *more), ((6, channels), shape, shape))
    coef, mean, var = call([parts, weight, bias, *old])
    return coef, mean, var


def apply(
    x: mx.array, coef: mx.array, active: int | mx.array, *, relu: bool = False, add: mx.array | None = None
) -> mx.array:
    """The first `active` rows of x (N, C) normalised, plus `add` (N, C), then a ReLU; other rows are 0."""
    _check(x, add=add)
    dims = (*x.shape, active, int(relu), int(add is not None), _rows(x))
    return _call("norm_apply", x.dtype, dims, (tuple(x.shape),))([x, x if add is None else add, coef])[0]


def gradients(
    ct: mx.array,
    x: mx.array,
    coef: mx.array,
    active: int | mx.array,
    dtype: mx.Dtype,
    *,
    relu: bool = False,
    y: mx.array | None = None,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Gradients of x, of weight and bias (C,) in `dtype`, and of what was added, where y is given.

    ct: cotangent of apply's result; y: that result where something was added before the ReLU.
    """
    _check(x, ct=ct, y=y)
    mode = 0 if not relu else 1 if y is None else 2
    parts, g = _sums(ct, x, coef, active, mode, y)
    dims = (*x.shape, active, parts.shape[0])
    shapes = ((2, x.shape[1]), (x.shape[1],), (x.shape[1],))
    slopes, dw, db = _call("norm_slope", dtype, dims, shapes)([parts, coef])
    dims = (*x.shape, active, int(mode == 1), _rows(x))
    dx = _call("norm_grad", x.dtype, dims, (tuple(x.shape),))([x, g, coef, slopes])[0]
    return dx, dw, db, g


def column_sums(x: mx.array, active: int | mx.array) -> mx.array:
    """Sums (C,) float32 of the first `active` rows of x (N, C), N > 0."""
    zero = filled((6, x.shape[1]), 0, mx.float32)
    parts, _ = _sums(x, x, zero, active, 0, None)
    dims = (*x.shape, active, parts.shape[0])
    shapes = ((2, x.shape[1]), (x.shape[1],), (x.shape[1],))
    return _call("norm_slope", mx.float32, dims, shapes)([parts, zero])[2]


def _sums(
    ct: mx.array, x: mx.array, coef: mx.array, active: int | mx.array, mode: int, y: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Parts of norm_sums; what of ct passes a ReLU in mode 2, else ct."""
    check_array("ct", ct, 2)
    (n, channels), most = x.shape, _parts(x.shape[0])
    shapes = (most, 2, channels), (n if mode == 2 else 0, channels)
    call = _call("norm_sums", x.dtype, (n, channels, active, most, mode), shapes)
    parts, g = call([x, ct, x if y is None else y, coef])
    return parts, g if mode == 2 else ct


def _check(x: mx.array, **others: mx.array | None) -> None:
    check_array("x", x, 2)
    for name, a in others.items():
        if a is not None and a.shape != x.shape:
            raise ShapeError(f"{name} has shape {tuple(a.shape)}, x {tuple(x.shape)}; they must be equal")


@functools.lru_cache(maxsize=64)
def _bits(value: float) -> int:
    """A float32 as the integer of its bits."""
    return int(np.float32(value).view(np.int32))


def _across(channels: int, dtype: mx.Dtype) -> tuple[int, int]:
    """Threads across a row, and threadgroups."""
    pieces = blocks(channels, 16 // dtype.size)
    return min(pieces, LANES), blocks(pieces, LANES)


def _parts(n: int) -> int:
    """Partial sums of n rows. Parts of n active rows among more are the same (norm_rows)."""
    return min(PARTS, blocks(n, LEAST))


def _rows(x: mx.array) -> int:
    """Rows of a threadgroup that only passes over them."""
    return 256 // _across(x.shape[1], x.dtype)[0] * ROWS


def _call(
    name: str, dtype: mx.Dtype, dims: tuple[int | mx.array, ...], shapes: tuple[tuple[int, ...], ...]
) -> Callable[[Sequence[mx.array]], list[mx.array]]:
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
) -> Callable[[Sequence[mx.array]], list[mx.array]]:
    n, channels, _, parts, *rest = dims
    if name in ("norm_coef", "norm_slope"):
        groups = 1, blocks(int(channels), 8), 1
    else:
        down = int(parts) if name in ("norm_moments", "norm_sums") else blocks(int(n), int(rest[-1]))
        groups = down, _across(int(channels), dtype)[1], 1
    return ready(name, dims, shapes, groups, dtype=dtype, fit=FIT.get(name, 0))
