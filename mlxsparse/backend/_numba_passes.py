"""Passes over rows that workers share, for backend/fast_rows.py; imported only where numba is installed."""

from __future__ import annotations

import numpy as np

from ._numba_jit import njit
from ._numba_team import floats, share, words

PIECES = 8  # thousands of values of a part


@njit(nogil=True, cache=True, error_model="numpy")
def factors_of(
    mean: np.ndarray, var: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float, n: int, length: int
) -> np.ndarray:
    """(2, length): what `length` values, whole rows of n, are multiplied by and what is added; 0 past C."""
    factors = np.zeros((2, length), np.float32)
    for c in range(len(mean)):
        scale = np.float32(1) / np.sqrt(var[c] + eps)
        shift = -mean[c] * scale
        if len(weight):
            scale, shift = scale * weight[c], shift * weight[c] + bias[c]
        for i in range(c, length, n):
            factors[0, i], factors[1, i] = scale, shift
    return factors


@njit(nogil=True, cache=True, error_model="numpy")
def activate(
    crew: tuple[int, int, bool],
    job: int,
    x: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    eps: float,
    add: np.ndarray,
    relu: bool,
    length: int,
    y: np.ndarray,
) -> int:
    """engine.pointwise._activate: whole rows, flat, `length` values at a time. What is empty is left out."""
    factors = factors_of(mean, var, weight, bias, eps, len(mean), length if len(mean) else 0)
    step = PIECES * length
    a = np.empty(11, np.int64)
    a[0], a[1], a[2], a[3] = x.ctypes.data, len(x), factors.ctypes.data, factors.shape[1]
    a[4], a[5], a[6], a[7], a[8] = add.ctypes.data, len(add), relu, length, y.ctypes.data
    a[9], a[10] = len(y), step
    share(crew[0], job, a.ctypes.data, -(-len(y) // step), crew[1], crew[2])
    return len(a) + len(factors)  # they live until here


def activate_part(arguments: int, part: int) -> None:
    """Compiled by `team.job`."""
    a = words(arguments, 11)
    length, size = a[7], a[9]
    source, factors = floats(a[0], a[1]), floats(a[2], 2 * a[3]).reshape(2, a[3])
    more, relu, y = floats(a[4], a[5]), a[6] != 0, floats(a[8], size)
    for first in range(part * a[10], min((part + 1) * a[10], size), length):
        activate_piece(source, factors, more, relu, first, min(length, size - first), y)


@njit(nogil=True, error_model="numpy")
def activate_piece(
    x: np.ndarray, factors: np.ndarray, add: np.ndarray, relu: bool, first: int, size: int, y: np.ndarray
) -> None:
    part, factor, offset = y[first : first + size], factors[0], factors[1]
    if len(x):
        value = x[first : first + size]
        for i in range(size):
            part[i] = value[i]
    # One array in and out: LLVM makes vectors of such loops.
    if len(factor):
        for i in range(size):
            part[i] = part[i] * factor[i] + offset[i]
    if len(add):
        more = add[first : first + size]
        for i in range(size):
            part[i] += more[i]
    if relu:
        for i in range(size):
            part[i] = np.float32(0) if part[i] < 0 else part[i]  # NaN stays


@njit(nogil=True, cache=True, error_model="numpy")
def put_columns(crew: tuple[int, int, bool], job: int, source: np.ndarray, y: np.ndarray, first: int) -> int:
    """y[:, first : first + C] = source."""
    a = np.empty(7, np.int64)
    rows, channels = source.shape
    step = max(1, PIECES * 1024 // max(channels, 1))
    a[0], a[1], a[2], a[3] = source.ctypes.data, rows, channels, y.ctypes.data
    a[4], a[5], a[6] = y.shape[1], first, step
    share(crew[0], job, a.ctypes.data, -(-rows // step), crew[1], crew[2])
    return len(a)  # it lives until here


def put_columns_part(arguments: int, part: int) -> None:
    """Compiled by `team.job`."""
    a = words(arguments, 7)
    rows, channels, first = a[1], a[2], a[5]
    source = floats(a[0], rows * channels).reshape(rows, channels)
    y = floats(a[3], rows * a[4]).reshape(rows, a[4])
    fours = channels // 4 * 4
    for i in range(part * a[6], min((part + 1) * a[6], rows)):
        for c in range(0, fours, 4):  # rows are too short for LLVM's own vectors
            p, q, r, s = source[i, c], source[i, c + 1], source[i, c + 2], source[i, c + 3]
            y[i, first + c], y[i, first + c + 1] = p, q
            y[i, first + c + 2], y[i, first + c + 3] = r, s
        for c in range(fours, channels):
            y[i, first + c] = source[i, c]
