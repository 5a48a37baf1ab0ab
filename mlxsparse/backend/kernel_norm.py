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
from .library import Factory, blocks, check_array, factory, filled, launch, ready, unread

PARTS = 512  # partial sums of a column, at most
LEAST = 32  # rows of a part: norm_rows of kernels/norm.h
ROWS = 8  # of one thread of norm_apply and norm_grad
LANES = 32  # threads across a row, at most
FIT: dict[str, int] = {}  # threadgroups that one core shall hold, by kernel: limits registers on CUDA


class Affine(NamedTuple):
    """What is done to the columns: x (N, C) -> (x - mean) / sqrt(var + eps) * weight + bias, then a ReLU."""

    stats: mx.array  # (3, C) float32: mean, what float32 leaves of it, biased variance
    weight: mx.array  # (C,) float32
    bias: mx.array
    eps: float
    relu: bool = False


def moments(x: mx.array, active: int | mx.array) -> mx.array:
    """Mean, what float32 leaves of it, and variance of the first `active` rows of x (N, C), N > 0.

    -> (3, C) float32. Sums are of x less its first row: a large mean costs nothing.
    """
    check_array("x", x, 2)
    n, channels = x.shape
    most = _parts(n)
    parts = _call("norm_moments", x, [n, channels, active, most], ((most + 1, 2, channels),))([x])[0]
    return _total([parts, unread()], [n, channels, active, most, 0, 0])


def apply(x: mx.array, norm: Affine, active: int | mx.array, add: mx.array | None = None) -> mx.array:
    """`norm` of the first `active` rows of x (N, C), plus `add` (N, C) before the ReLU; others are 0."""
    check_array("x", x, 2)
    _check(norm, x, add=add)
    n, channels = x.shape
    dims = [n, channels, active, _bits(norm.eps), int(norm.relu), int(add is not None), _rows(x)]
    inputs = [x, x if add is None else add, norm.stats, norm.weight, norm.bias]
    return _call("norm_apply", x, dims, ((n, channels),))(inputs)[0]


def gradient_sums(
    ct: mx.array, x: mx.array, norm: Affine, active: int | mx.array, y: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Sums over rows of g, of g * (x - mean), of that / deviation, (3, C) float32; and g.

    g is ct, the cotangent of apply's y, past its ReLU.
    y: the result of apply, with which g is written, the gradient of `add`. Without it ct is
    returned in its place, as `input_gradient` takes it.
    """
    check_array("ct", ct, 2)
    _check(norm, x, ct=ct, y=y)
    (n, channels), most = x.shape, _parts(x.shape[0])
    mode = 0 if not norm.relu else 1 if y is None else 2
    dims = [n, channels, active, most, _bits(norm.eps), mode]
    shapes = (most, 2, channels), (n if mode == 2 else 0, channels)
    inputs = [x, ct, x if y is None else y, norm.stats, norm.weight, norm.bias]
    parts, g = _call("norm_sums", x, dims, shapes)(inputs)
    total = _total([parts, norm.stats], [n, channels, active, most, 1, _bits(norm.eps)])
    return total, g if mode == 2 else ct


def input_gradient(
    g: mx.array, x: mx.array, norm: Affine, sums: mx.array, active: int | mx.array
) -> mx.array:
    """Gradient of x, from what gradient_sums gave; norm.relu: g is still apply's cotangent."""
    check_array("g", g, 2)
    _check(norm, x, g=g)
    dims = [*x.shape, active, _bits(norm.eps), int(norm.relu), _rows(x)]
    inputs = [x, g, norm.stats, sums, norm.weight, norm.bias]
    return _call("norm_grad", x, dims, (tuple(x.shape),))(inputs)[0]


def column_sums(x: mx.array, active: int | mx.array) -> mx.array:
    """Sums (C,) float32 of the first `active` rows of x (N, C), N > 0."""
    zero = filled((3, x.shape[1]), 0, mx.float32)
    return gradient_sums(x, x, Affine(zero, zero[0], zero[0], 1.0), active)[0][0]


def _check(norm: Affine, x: mx.array, **others: mx.array | None) -> None:
    for name, a in others.items():
        if a is not None and a.shape != x.shape:
            raise ShapeError(f"{name} has shape {tuple(a.shape)}, x {tuple(x.shape)}; they must be equal")
    for name, v in (("weight", norm.weight), ("bias", norm.bias)):
        if v.shape != (x.shape[1],):
            raise ShapeError(f"{name} has shape {tuple(v.shape)}, wanted ({x.shape[1]},)")


@functools.lru_cache(maxsize=64)
def _bits(value: float) -> int:
    """A float32 as the integer of its bits."""
    return int(np.float32(value).view(np.int32))


def _across(x: mx.array) -> tuple[int, int]:
    """Threads across a row, and threadgroups."""
    pieces = blocks(x.shape[1], 16 // x.dtype.size)
    return min(pieces, LANES), blocks(pieces, LANES)


def _parts(n: int) -> int:
    """Partial sums of n rows. Parts of n active rows among more are the same (norm_rows)."""
    return min(PARTS, blocks(n, LEAST))


def _rows(x: mx.array) -> int:
    """Rows of a threadgroup that only passes over them."""
    return 256 // _across(x)[0] * ROWS


def _call(
    name: str, x: mx.array, dims: Sequence[int | mx.array], shapes: tuple[tuple[int, ...], ...]
) -> Callable[[Sequence[mx.array]], list[mx.array]]:
    prepare = _prepared if all(isinstance(v, int) for v in dims) else _prepared.__wrapped__
    down = _parts(x.shape[0]) if name in ("norm_moments", "norm_sums") else blocks(x.shape[0], _rows(x))
    return prepare(factory(), name, x.dtype, tuple(dims), shapes, (down, _across(x)[1], 1))


# What follows from sizes alone is derived once.
@functools.lru_cache(maxsize=1024)
def _prepared(
    make: Factory,
    name: str,
    dtype: mx.Dtype,
    dims: tuple[int | mx.array, ...],
    shapes: tuple[tuple[int, ...], ...],
    groups: tuple[int, int, int],
) -> Callable[[Sequence[mx.array]], list[mx.array]]:
    return ready(name, dims, shapes, groups, dtype=dtype, fit=FIT.get(name, 0))


def _total(inputs: list[mx.array], dims: list[int | mx.array]) -> mx.array:
    channels = inputs[0].shape[2]
    return launch("norm_total", inputs, dims, [(3, channels)], (1, blocks(channels, 8), 1))[0]
