"""Batch normalisation with its sum and ReLU, forward and back, against float64."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_norm
from mlxsparse.backend.kernel_norm import Running

from .common import DTYPES, Case, close, equal, repeats, sized, values

EPS = 1e-3


def _padded(seed: int, n: int, c: int, active: int, dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Random rows, NaN from `active` on; the active ones in float64."""
    x, _ = values(seed, (n, c), dtype)
    nan = mx.full((n - active, c), float("nan"), dtype)
    return mx.concatenate([x[:active] + 2, nan]), np.array((x + 2).astype(mx.float32))[:active].astype(float)


def _affine(c: int, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array, np.ndarray, np.ndarray]:
    (w, w64), (b, b64) = (values(s, (c,), dtype) for s in (5, 6))
    return w, b, w64, b64


def norm(
    dtype: mx.Dtype,
    n: int,
    c: int,
    active: int,
    relu: bool = False,
    add: bool = False,
    traced: bool = False,
    weights: mx.Dtype = mx.float32,
) -> None:
    """Statistics, result and all gradients; padding of NaN has no part and gives 0."""
    (x, live), (more, more64), (ct, g) = (_padded(s, n, c, active, dtype) for s in (1, 2, 3))
    count = mx.array(active, mx.int32) if traced else active
    w, b, w64, b64 = _affine(c, weights)
    (old_mean, mean64), (old_var, var64) = (values(s, (c,), mx.float32) for s in (8, 9))
    coef, *moved = kernel_norm.coefficients(x, w, b, EPS, count, Running(old_mean, old_var, 0.25))
    mean, var = live.mean(axis=0), live.var(axis=0)
    close(coef[0] + coef[1], mean, mx.float32, "mean", least=1.0)
    close(coef[2], var, mx.float32, "variance", least=1.0)
    close(moved[0], 0.75 * mean64 + 0.25 * mean, mx.float32, "moved mean", least=1.0)
    unbiased = var * active / max(active - 1, 1)
    close(moved[1], 0.75 * var64 + 0.25 * unbiased, mx.float32, "moved variance", least=1.0)
    y = kernel_norm.apply(x, coef, count, relu=relu, add=more if add else None)
    rest, scale = np.zeros((n - active, c)), w64 / np.sqrt(var + EPS)
    wanted = (live - mean) * scale + b64 + (more64 if add else 0)
    wanted = np.maximum(wanted, 0) if relu else wanted
    close(y, np.concatenate([wanted, rest]), dtype, "y", least=1.0)
    if relu:  # of the result as it was rounded
        g = g * (np.array(y.astype(mx.float32))[:active] > 0)
    dx, dw, db, kept = kernel_norm.gradients(ct, x, coef, count, weights, relu=relu, y=y if add else None)
    crossed = (g * (live - mean)).sum(axis=0)
    close(db, g.sum(axis=0), weights, "bias gradient", least=n**0.5)
    # g has a mean of 2: what float32 leaves of the mean of x counts in every term
    close(dw, crossed / np.sqrt(var + EPS), weights, "weight gradient", least=max(0.2 * n, 16 * n**0.5))
    gradient = (g - g.mean(axis=0) - (live - mean) * (crossed / active / (var + EPS))) * scale
    close(dx, np.concatenate([gradient, rest]), dtype, "input gradient", least=1.0)
    if add:
        close(kept, np.concatenate([g, rest]), dtype, "gradient of add", least=1.0)


def nothing(dtype: mx.Dtype) -> None:
    """No active row: coefficients and results of zeros, whatever padding holds; running statistics stay."""
    x, _ = _padded(1, 40, 24, 0, dtype)
    w, b, _, _ = _affine(24)
    coef, mean, var = kernel_norm.coefficients(x, w, b, EPS, 0, Running(w, b, 0.5))
    equal(coef[:3], np.zeros((3, 24)))
    equal(mean, np.array(w))
    equal(var, np.array(b))
    for add in (None, x):
        y = kernel_norm.apply(x, coef, 0, relu=True, add=add)
        equal(y.astype(mx.float32), np.zeros((40, 24)))
        found = kernel_norm.gradients(x, x, coef, 0, dtype, relu=True, y=None if add is None else y)
        for gradient in found[: 3 if add is None else 4]:
            equal(gradient.astype(mx.float32), np.zeros(gradient.shape))


def long_parts(dtype: mx.Dtype) -> None:
    """Threads that take many rows, as those of large sets do."""
    before, kernel_norm.PARTS = kernel_norm.PARTS, 2
    try:
        norm(dtype, 700, 24, 690, relu=True)
        norm(dtype, 500, 40, 487, relu=True, add=True)
    finally:
        kernel_norm.PARTS = before


def ties(dtype: mx.Dtype) -> None:
    """Where the result is 0 the ReLU lets no gradient pass."""
    x, _ = values(1, (100, 24), dtype)
    zero = mx.zeros((24,))
    coef = kernel_norm.coefficients(x, zero, zero, EPS, 100)[0]
    for add in (None, mx.zeros_like(x)):
        y = kernel_norm.apply(x, coef, 100, relu=True, add=add)
        found = kernel_norm.gradients(x, x, coef, 100, mx.float32, relu=True, y=None if add is None else y)
        for gradient in (y, *found[: 3 if add is None else 4]):
            equal(gradient.astype(mx.float32), np.zeros(gradient.shape))
    live = np.tile([[-1.0], [0.0], [1.0]], (30, 24))  # a third of the rows is the mean
    x, ct = mx.array(live, dtype), mx.ones((90, 24), dtype)
    coef = kernel_norm.coefficients(x, mx.ones((24,)), zero, EPS, 90)[0]
    dx = kernel_norm.gradients(ct, x, coef, 90, mx.float32, relu=True)[0]
    g, var = (live > 0).astype(float), live.var()
    wanted = (g - g.mean() - live * (g * live).mean() / (var + EPS)) / np.sqrt(var + EPS)
    close(dx, wanted, dtype, "input gradient")


def unaligned(dtype: mx.Dtype) -> None:
    """Rows that start anywhere in a buffer."""
    whole, whole64 = values(7, (1 + 200 * 16,), dtype)
    x, live = whole[1:].reshape(200, 16), whole64[1:].reshape(200, 16)
    w, b, w64, b64 = _affine(16)
    coef = kernel_norm.coefficients(x, w, b, EPS, 200)[0]
    rstd = 1 / np.sqrt(live.var(axis=0) + EPS)
    off = live - live.mean(axis=0)
    wanted = np.maximum(off * rstd * w64 + b64 + live, 0)
    close(kernel_norm.apply(x, coef, 200, relu=True, add=x), wanted, dtype)
    dw = kernel_norm.gradients(x, x, coef, 200, mx.float32)[1]
    close(dw, (live * off).sum(axis=0) * rstd, mx.float32, "weight gradient", least=10.0)


def large_mean(c: int) -> None:
    """A mean of a million costs neither the variance nor the mean anything."""
    x = mx.array(1e6 + np.arange(512)[:, None] % 3 + np.zeros((1, c)), mx.float32)
    live = np.array(x).astype(float)
    w, b, w64, b64 = _affine(c)
    coef = kernel_norm.coefficients(x, w, b, EPS, 512)[0]
    var = live.var(axis=0)
    close(coef[2], var, mx.float32, "variance")
    rstd, off = 1 / np.sqrt(var + EPS), live - live.mean(axis=0)
    close(kernel_norm.apply(x, coef, 512), off * rstd * w64 + b64, mx.float32, "y")
    dw = kernel_norm.gradients(x - 1e6, x, coef, 512, mx.float32)[1]
    close(dw, (off * (live - 1e6)).sum(axis=0) * rstd, mx.float32, "weight gradient")


def spread() -> None:
    """A first row far from all others costs the mean a small part of the deviation."""
    x, live = values(3, (4000, 8), mx.float32)
    x[0], live[0] = 1000.0, 1000.0
    coef = kernel_norm.coefficients(x, *_affine(8)[:2], EPS, 4000)[0]
    close(coef[2], live.var(axis=0), mx.float32, "variance")
    close(coef[0] + coef[1], live.mean(axis=0), mx.float32, "mean", least=live.std())


def same_bits(dtype: mx.Dtype) -> None:
    """From run to run, and with another amount of padding."""
    (x, _), (ct, _) = (_padded(s, 900, 40, 700, dtype) for s in (1, 2))
    w, b, _, _ = _affine(40)

    def run(rows: int) -> list[mx.array]:
        a, g = x[:rows], ct[:rows]
        coef = kernel_norm.coefficients(a, w, b, EPS, 700)[0]
        y = kernel_norm.apply(a, coef, 700, relu=True, add=g)
        dx, dw, db, kept = kernel_norm.gradients(g, a, coef, 700, dtype, relu=True, y=y)
        return [coef, y[:700], dx[:700], dw, db, kept[:700]]

    repeats(lambda: run(900))
    for a, b_ in zip(run(900), run(701)):
        equal(a.astype(mx.float32), np.array(b_.astype(mx.float32)))


def column_sums(dtype: mx.Dtype) -> None:
    x, live = _padded(1, 500, 20, 333, dtype)
    close(kernel_norm.column_sums(x, 333), live.sum(axis=0), mx.float32, "sum")


CASES: dict[str, Case] = {}
_LARGE = sized(700, 200_000)
for _name, _dtype in DTYPES.items():
    for _n, _c, _active in ((1, 3, 1), (40, 7, 40), (600, 40, 590), (70, 300, 70), (_LARGE, 32, _LARGE - 3)):
        CASES[f"norm_{_n}x{_c}-{_name}"] = partial(norm, _dtype, _n, _c, _active)
    CASES[f"norm_relu-{_name}"] = partial(norm, _dtype, _LARGE, 48, _LARGE - 9, relu=True)
    CASES[f"norm_relu_traced-{_name}"] = partial(
        norm, _dtype, 600, 6, 512, relu=True, traced=True, weights=_dtype
    )
    CASES[f"norm_add-{_name}"] = partial(norm, _dtype, _LARGE, 64, _LARGE, relu=True, add=True)
    CASES[f"norm_add_traced-{_name}"] = partial(norm, _dtype, 600, 24, 512, relu=True, add=True, traced=True)
    for _case in (nothing, ties, unaligned, same_bits, column_sums, long_parts):
        CASES[f"{_case.__name__}-{_name}"] = partial(_case, _dtype)
for _c in (8, 64):
    CASES[f"large_mean_{_c}-f32"] = partial(large_mean, _c)
CASES["first_row_far-f32"] = spread
