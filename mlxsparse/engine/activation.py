"""GELU and SiLU over the rows of a sparse tensor: MLX's CPU build takes 15 to 40 ns for each number."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
import mlx.nn
import numpy as np

from ..backend import executor
from ..backend.autodiff import differentiable
from ..backend.host import empty, parallel, view32

CHUNK = 1 << 14  # numbers whose steps in between stay in cache
# erfc(z) = exp(-z^2) * polynomial in 1 / (1 + RATE z), within 1.5e-7 (Abramowitz and Stegun 7.1.26)
RATE = np.float32(0.3275911)
SERIES = tuple(np.float32(a) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
RISE, CUBE = np.float32(math.sqrt(8 / math.pi)), np.float32(0.044715)  # of GELU's approximation
# (share, its slope if that is asked for) of numbers a, for an activation a * share(a).
Parts = Callable[[np.ndarray, bool], tuple[np.ndarray, np.ndarray | None]]


def gelu(x: mx.array, count: int) -> mx.array:
    """x * Phi(x), Phi the normal distribution, of the first `count` rows of x (capacity, C); others are 0."""
    return _activated("GELU", x, count, _normal, mlx.nn.gelu)


def gelu_approx(x: mx.array, count: int) -> mx.array:
    """As gelu, by MLX's gelu_approx, which has a tanh."""
    return _activated("GELU", x, count, _tanh, mlx.nn.gelu_approx)


def silu(x: mx.array, count: int) -> mx.array:
    """As gelu, x / (1 + exp(-x))."""
    return _activated("SiLU", x, count, _logistic, mlx.nn.silu)


def _activated(
    name: str, x: mx.array, count: int, parts: Parts, theirs: Callable[[mx.array], mx.array]
) -> mx.array:
    if executor() == "kernel":
        if not len(x):
            return x  # MLX compiles it, and divides by the number of rows on CUDA
        live = (mx.arange(len(x)) < count)[:, None]
        return theirs(x if count == len(x) else mx.where(live, x, mx.zeros((), x.dtype)))
    dtype = x.dtype

    def forward(x: mx.array) -> mx.array:
        out, y = empty(tuple(x.shape), mx.float32)
        values = view32(x)

        def work(a: np.ndarray, to: np.ndarray) -> None:
            np.multiply(a, parts(a, False)[0], out=to)

        _by_chunk(work, count, y, values)
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        values, g = view32(x), view32(ct)

        def work(a: np.ndarray, to: np.ndarray, g: np.ndarray) -> None:
            share, slope = parts(a, True)
            assert slope is not None
            slope *= a
            slope += share
            np.multiply(g, slope, out=to)

        _by_chunk(work, count, dx, values, g)
        return out.astype(dtype)

    return differentiable(name, forward, (gradient,), x)


def _by_chunk(
    work: Callable[..., None], count: int, out: np.ndarray, values: np.ndarray, *more: np.ndarray
) -> None:
    size = count * out.shape[1]
    flat = [a.reshape(-1) for a in (values, out, *more)]
    out[count:] = 0

    def one(i: int) -> None:
        work(*(a[i * CHUNK : min((i + 1) * CHUNK, size)] for a in flat))

    parallel(one, -(-size // CHUNK), small=size < 4 * CHUNK)


def _normal(x: np.ndarray, slope: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Phi(x) and its slope."""
    z = np.abs(x)
    z *= np.float32(math.sqrt(0.5))
    t = z * RATE
    t += np.float32(1)
    np.divide(np.float32(1), t, out=t)
    z *= z
    np.negative(z, out=z)
    density = np.exp(z, out=z)
    tail = t * SERIES[0]
    for a in SERIES[1:]:
        tail += a
        tail *= t
    tail *= density
    tail *= np.float32(0.5)
    share = np.where(x > 0, np.float32(1) - tail, tail)
    if slope:
        density *= np.float32(1 / math.sqrt(2 * math.pi))
    return share, density if slope else None


def _logistic(x: np.ndarray, slope: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """1 / (1 + exp(-x)) and its slope."""
    share = np.negative(x)
    np.exp(share, out=share)
    share += np.float32(1)
    np.divide(np.float32(1), share, out=share)
    return share, share * (np.float32(1) - share) if slope else None


def _tanh(x: np.ndarray, slope: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """(1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) with 2u = RISE (x + CUBE x^3), and its slope."""
    x = np.clip(x, np.float32(-12), np.float32(12))  # it is 0 or 1 there, and x^3 does not overflow
    square = x * x
    square *= RISE * CUBE
    x *= square + RISE
    share, bend = _logistic(x, slope)
    if bend is not None:
        square *= np.float32(3)
        square += RISE
        bend *= square
    return share, bend
