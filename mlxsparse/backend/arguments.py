"""What a kernel is called with: arrays that are checked, long enough for every backend, filled or counted."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import CapacityError, DTypeError, MLXSparseError, ShapeError
from .mail import read_ints

SMALL = 8  # inputs below it lie in another address space on Metal


def padded(a: mx.array) -> mx.array:
    """`a` with at least SMALL elements, zeros after its own."""
    if a.size >= SMALL:
        return a
    if a.size == 0:
        return mx.zeros((SMALL,), a.dtype)
    return mx.concatenate([a.reshape(-1), mx.zeros((SMALL - a.size,), a.dtype)])


def sizes(name: str, values: Sequence[int | mx.array]) -> mx.array:
    """The `dims` of kernel `name`: integers, or int32 arrays of one or more of them."""
    if set(map(type, values)) == {int}:
        return _constant(name, tuple(values))
    known: list[int] = []
    arrays: list[tuple[int, mx.array]] = []  # (place of its first, array)
    for v in values:
        if isinstance(v, mx.array):
            arrays.append((len(known), v.astype(mx.int32).reshape(-1)))
            known += [0] * v.size
        else:
            known.append(int(v))
    total = _constant(name, tuple(known))
    # Sums, which MLX fuses inside a trace, in place of a copy for each number.
    for first, v in arrays:
        if v.size == 1:
            total = total + v * _one(first, total.size)
        else:
            total = total + mx.pad(v, (first, total.size - first - v.size))
    return total


@functools.lru_cache(maxsize=1024)
def _one(place: int, size: int) -> mx.array:
    """`size` zeros but for a 1 at `place`."""
    return mx.array([int(i == place) for i in range(size)], dtype=mx.int32)


@functools.lru_cache(maxsize=1024)
def _constant(name: str, values: tuple[int, ...]) -> mx.array:
    check_sizes(name, values)
    return mx.array([*values, *[0] * (SMALL - len(values))], dtype=mx.int32)


def check_sizes(name: str, values: Sequence[Any]) -> None:
    """CapacityError for a size that a kernel cannot take."""
    for value in (min(values, default=0), max(values, default=0)):
        if not -(2**31) <= value < 2**31:
            raise CapacityError(f"{name}: the size {value} does not fit 32 bits; split the input")


def filled(shape: Sequence[int], value: float, dtype: mx.Dtype) -> mx.array:
    """An array full of `value`. Without elements it is made on the host: some GPU operations on no
    elements leave an array without memory, and reading it ends the process.
    """
    if math.prod(shape) == 0:
        return mx.array(np.empty(tuple(shape), np.float32), dtype)
    return mx.full(tuple(shape), value, dtype)


def numbers(n: int) -> mx.array:
    """0, 1, .. n - 1 int32."""
    return mx.arange(n, dtype=mx.int32) if n else filled((0,), 0, mx.int32)


# ---------------------------------------------------------------- checks of an operator


def check_array(name: str, a: mx.array, ndim: int, dtype: mx.Dtype | None = None) -> None:
    """ShapeError or DTypeError unless `a` has `ndim` axes and `dtype`."""
    if a.ndim != ndim:
        raise ShapeError(f"{name} has shape {tuple(a.shape)}, wanted {ndim} axes")
    if dtype is not None and a.dtype != dtype:
        raise DTypeError(f"{name} is {a.dtype}, wanted {dtype}; cast with .astype({dtype})")


def check_coords(name: str, coords: mx.array) -> None:
    check_array(name, coords, 2, mx.int32)
    if coords.shape[1] != 4:
        raise ShapeError(f"{name} has shape {tuple(coords.shape)}, wanted (N, 4): batch, x, y, z")


def check_index(name: str, index: mx.array, limit: int) -> None:
    """MLXSparseError unless each element of an int32 array is -1 or a row below `limit`. Waits for it."""
    if index.dtype != mx.int32:
        raise DTypeError(f"{name} is {index.dtype}, wanted int32; cast with .astype(mx.int32)")
    if index.size:
        low, high = read_ints(index.min(), index.max())
        if low < -1 or high >= limit:
            raise MLXSparseError(f"{name}: row index out of range: [{low}, {high}] for {limit} rows")
