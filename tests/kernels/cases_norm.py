"""Batch normalisation with its sum and ReLU, forward and back, against float64."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_norm
from mlxsparse.backend.kernel_norm import Affine

from .common import DTYPES, Case, close, equal, repeats, rng, sized, values

EPS = 1e-3


def _padded(seed: int, n: int, c: int, active: int, dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Random rows, NaN from `active` on; the active ones in float64."""
    x, x64 = values(seed, (n, c), dtype)
    nan = mx.full((n - active, c), float("nan"), dtype)
    return mx.concatenate([x[:active] + 2, nan]), np.array((x + 2).astype(mx.float32))[:active].astype(float)


def _affine(x: mx.array, active: int | mx.array, relu: bool) -> tuple[Affine, np.ndarray, np.ndarray]:
    r, c = rng(5), x.shape[1]
    w, b = r.uniform(0.5, 2, c).astype(np.float32), r.standard_normal(c).astype(np.float32)
    return Affine(kernel_norm.moments(x, active), mx.array(w), mx.array(b), EPS, relu), w, b


def norm(
    dtype: mx.Dtype, n: int, c: int, active: int, relu: bool = False, add: bool = False, traced: bool = False
) -> None:
    """Statistics, result and all gradients; padding of NaN has no part and gives 0."""
    (x, live), (more, more64), (ct, g) = (_padded(s, n, c, active, dtype) for s in (1, 2, 3))
    count = mx.array(active, mx.int32) if traced else active
    affine, w, b = _affine(x, count, relu)
    mean, var = live.mean(axis=0), live.var(axis=0)
    close(affine.stats[0] + affine.stats[1], mean, mx.float32, "mean", least=1.0)
    close(affine.stats[2], var, mx.float32, "variance", least=1.0)
    y = kernel_norm.apply(x, affine, count, more if add else None)
    rest = np.zeros((n - active, c))
    wanted = (live - mean) / np.sqrt(var + EPS) * w + b + (more64 if add else 0)
    wanted = np.maximum(wanted, 0) if relu else wanted
    close(y, np.concatenate([wanted, rest]), dtype, "y", least=1.0)
    if relu:  # of the result as it was rounded
        g = g * (np.array(y.astype(mx.float32))[:active] > 0)
    sums, kept = kernel_norm.gradient_sums(ct, x, affine, count, y if add else None)
    crossed = (g * (live - mean)).sum(axis=0)
    close(sums[0], g.sum(axis=0), mx.float32, "sum", least=n**0.5)
    close(sums[1], crossed, mx.float32, "product", least=n**0.5)
    close(sums[2], crossed / np.sqrt(var + EPS), mx.float32, "weight gradient", least=n**0.5)
    if add:
        close(kept, np.concatenate([g, rest]), dtype, "gradient of add", least=1.0)
        affine = affine._replace(relu=False)
    dx = kernel_norm.input_gradient(kept, x, affine, sums, count)
    slope = crossed / active / (var + EPS)
    gradient = (g - g.mean(axis=0) - (live - mean) * slope) / np.sqrt(var + EPS) * w
    close(dx, np.concatenate([gradient, rest]), dtype, "input gradient", least=1.0)


def nothing(dtype: mx.Dtype) -> None:
    """No active row: statistics and results of zeros, whatever padding holds."""
    x, _ = _padded(1, 40, 24, 0, dtype)
    affine, _, _ = _affine(x, 0, True)
    equal(affine.stats, np.zeros((3, 24)))
    for y in (None, kernel_norm.apply(x, affine, 0, x)):
        sums, kept = kernel_norm.gradient_sums(x, x, affine, 0, y)
        equal(sums, np.zeros((3, 24)))
        equal(kernel_norm.input_gradient(kept, x, affine, sums, 0).astype(mx.float32), np.zeros((40, 24)))
    equal(kernel_norm.apply(x, affine, 0).astype(mx.float32), np.zeros((40, 24)))


def unaligned(dtype: mx.Dtype) -> None:
    """Rows that start anywhere in a buffer."""
    whole, whole64 = values(7, (1 + 200 * 16,), dtype)
    x, live = whole[1:].reshape(200, 16), whole64[1:].reshape(200, 16)
    affine, w, b = _affine(x, 200, False)
    wanted = (live - live.mean(axis=0)) / np.sqrt(live.var(axis=0) + EPS) * w + b
    close(kernel_norm.apply(x, affine, 200), wanted, dtype, "y")
    sums, kept = kernel_norm.gradient_sums(x, x, affine, 200)
    close(sums[1], (live * (live - live.mean(axis=0))).sum(axis=0), mx.float32, "product", least=10.0)
    kernel_norm.input_gradient(kept, x, affine, sums, 200)


def large_mean() -> None:
    """A mean of a million costs neither the variance nor the mean anything."""
    x = mx.array(1e6 + np.arange(512)[:, None] % 2 + np.zeros((1, 8)), mx.float32)
    affine, w, b = _affine(x, 512, False)
    close(affine.stats[2], np.full(8, 0.25), mx.float32, "variance")
    unit = np.where(np.arange(512) % 2, 0.5, -0.5)[:, None] / np.sqrt(0.25 + EPS)
    close(kernel_norm.apply(x, affine, 512), unit * w + b, mx.float32, "y")
    sums, _ = kernel_norm.gradient_sums(x - 1e6, x, affine, 512)
    close(sums[1], np.full(8, 128.0), mx.float32, "product")


def spread() -> None:
    """A first row far from all others costs the mean a small part of the deviation."""
    x, live = values(3, (4000, 8), mx.float32)
    x[0], live[0] = 1000.0, 1000.0
    stats = kernel_norm.moments(x, 4000)
    close(stats[2], live.var(axis=0), mx.float32, "variance")
    close(stats[0] + stats[1], live.mean(axis=0), mx.float32, "mean", least=live.std())


def same_bits(dtype: mx.Dtype) -> None:
    """From run to run, and with another amount of padding."""
    (x, _), (ct, _) = (_padded(s, 900, 40, 700, dtype) for s in (1, 2))

    def run(rows: int) -> list[mx.array]:
        a, g = x[:rows], ct[:rows]
        affine, _, _ = _affine(a, 700, True)
        y = kernel_norm.apply(a, affine, 700, g)
        sums, kept = kernel_norm.gradient_sums(g, a, affine, 700, y)
        plain = affine._replace(relu=False)
        dx = kernel_norm.input_gradient(kept, a, plain, sums, 700)
        return [affine.stats, y[:700], sums, kept[:700], dx[:700]]

    repeats(lambda: run(900))
    for a, b in zip(run(900), run(701)):
        equal(a.astype(mx.float32), np.array(b.astype(mx.float32)))


def column_sums(dtype: mx.Dtype) -> None:
    x, live = _padded(1, 500, 20, 333, dtype)
    close(kernel_norm.column_sums(x, 333), live.sum(axis=0), mx.float32, "sum")


CASES: dict[str, Case] = {}
_LARGE = sized(700, 200_000)
for _name, _dtype in DTYPES.items():
    for _n, _c, _active in ((1, 3, 1), (600, 40, 590), (70, 300, 64), (_LARGE, 32, _LARGE - 3)):
        CASES[f"norm_{_n}x{_c}-{_name}"] = partial(norm, _dtype, _n, _c, _active)
    CASES[f"norm_relu-{_name}"] = partial(norm, _dtype, _LARGE, 48, _LARGE - 9, relu=True)
    CASES[f"norm_relu_traced-{_name}"] = partial(norm, _dtype, 600, 6, 512, relu=True, traced=True)
    CASES[f"norm_add-{_name}"] = partial(norm, _dtype, _LARGE, 64, _LARGE, relu=True, add=True)
    CASES[f"norm_add_traced-{_name}"] = partial(norm, _dtype, 600, 24, 512, relu=True, add=True, traced=True)
    for _case in (nothing, unaligned, same_bits, column_sums):
        CASES[f"{_case.__name__}-{_name}"] = partial(_case, _dtype)
CASES["large_mean-f32"] = large_mean
CASES["first_row_far-f32"] = spread
