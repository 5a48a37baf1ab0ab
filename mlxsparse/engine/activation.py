"""GELU, SiLU and ELU over the rows of a sparse tensor: MLX's CPU build takes 15 to 40 ns for each number."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import mlx.core as mx
import mlx.nn
import numpy as np

from ..backend import executor
from ..backend.autodiff import differentiable
from ..backend.host import empty, parallel, require_values, view32
from ..errors import TracedOnHostError

CHUNK = 1 << 14  # numbers whose steps in between stay in cache
# erfc(z) = exp(-z^2) * polynomial in 1 / (1 + RATE z), within 1.5e-7 (Abramowitz and Stegun 7.1.26)
RATE = np.float32(0.3275911)
SERIES = tuple(np.float32(a) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
RISE, CUBE = np.float32(math.sqrt(8 / math.pi)), np.float32(0.044715)  # of GELU's approximation
Curve = Callable[[np.ndarray, bool], np.ndarray]  # an activation of numbers, or if True its slope there


def gelu(x: mx.array, count: int) -> mx.array:
    """x * Phi(x), Phi the normal distribution, of the first `count` rows of x (capacity, C); others are 0."""
    return _activated("GELU", x, count, _of_share(_normal), mlx.nn.gelu)


def gelu_approx(x: mx.array, count: int) -> mx.array:
    """As gelu, by MLX's gelu_approx, which has a tanh."""
    return _activated("GELU", x, count, _of_share(_tanh), mlx.nn.gelu_approx)


def silu(x: mx.array, count: int) -> mx.array:
    """As gelu, x / (1 + exp(-x))."""
    return _activated("SiLU", x, count, _of_share(_logistic), mlx.nn.silu)


def elu(x: mx.array, count: int, alpha: float) -> mx.array:
    """As gelu, x where it is positive, else alpha (exp(x) - 1)."""
    return _activated("ELU", x, count, _elu(np.float32(alpha)), lambda x: elu_graph(x, alpha))


@functools.partial(mx.compile, shapeless=True)
def elu_graph(x: mx.array, alpha: float) -> mx.array:
    """mlx.nn.elu, whose gradient is NaN where exp(x) is infinite: past 11 in float16, past 88 in float32."""
    return mx.where(x > 0, x, alpha * (mx.exp(mx.where(x > 0, 0, x)) - 1))


def _activated(
    name: str, x: mx.array, count: int, curve: Curve, graph: Callable[[mx.array], mx.array]
) -> mx.array:
    if executor() == "kernel" or not _known(x):
        if not len(x):
            return x  # MLX compiles it, and divides by the number of rows on CUDA
        live = (mx.arange(len(x)) < count)[:, None]
        return graph(x if count == len(x) else mx.where(live, x, mx.zeros((), x.dtype)))
    dtype = x.dtype

    def forward(x: mx.array) -> mx.array:
        out, y = empty(tuple(x.shape), mx.float32)
        values = view32(x)

        def work(a: np.ndarray, to: np.ndarray) -> None:
            to[:] = curve(a, False)

        _by_chunk(work, count, y, values)
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        values, g = view32(x), view32(ct)

        def work(a: np.ndarray, to: np.ndarray, g: np.ndarray) -> None:
            np.multiply(g, curve(a, True), out=to)

        _by_chunk(work, count, dx, values, g)
        return out.astype(dtype)

    return differentiable(name, forward, (gradient,), x)


def _known(x: mx.array) -> bool:
    """False inside of mx.compile and mx.vmap, whose arrays have no values: what follows is MLX's alone."""
    try:
        require_values(x)
    except TracedOnHostError:
        return False
    return True


def _by_chunk(
    work: Callable[..., None], count: int, out: np.ndarray, values: np.ndarray, *more: np.ndarray
) -> None:
    size = count * out.shape[1]
    flat = [a.reshape(-1) for a in (values, out, *more)]
    out[count:] = 0

    def one(i: int) -> None:
        work(*(a[i * CHUNK : min((i + 1) * CHUNK, size)] for a in flat))

    parallel(one, -(-size // CHUNK), small=size < 4 * CHUNK)


def _of_share(share_of: Callable[[np.ndarray, bool], tuple[np.ndarray, np.ndarray | None]]) -> Curve:
    """x * share(x); `share_of` gives the share, and its slope if that is asked for."""

    def curve(x: np.ndarray, slope: bool) -> np.ndarray:
        share, bend = share_of(x, slope)
        if bend is None:
            share *= x
            return share
        bend *= x
        bend += share
        return bend

    return curve


def _elu(alpha: np.float32) -> Curve:
    def curve(x: np.ndarray, slope: bool) -> np.ndarray:
        low = np.minimum(x, np.float32(0))
        np.exp(low, out=low)
        if slope:
            low *= alpha
            return np.where(x > 0, np.float32(1), low)
        low -= np.float32(1)
        low *= alpha
        low += np.maximum(x, np.float32(0))
        return low

    return curve


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
