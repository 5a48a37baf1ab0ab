"""Derivatives by central differences in float64, tensors with poisoned padding, and how BLAS sums."""

from __future__ import annotations

import functools

import mlx.core as mx
import numpy as np

import mlxsparse as ms


def numeric_gradient(f, value, cotangent, step=1e-6):
    """Gradient of sum(cotangent * f(value)) in `value`, element by element."""
    value = np.array(value, np.float64)
    gradient = np.zeros_like(value)
    for place in np.ndindex(value.shape):
        ahead, behind = value.copy(), value.copy()
        ahead[place] += step
        behind[place] -= step
        gradient[place] = (cotangent * (f(ahead) - f(behind))).sum() / (2 * step)
    return gradient


def poisoned(x, extra=5):
    """The same sites in a larger capacity whose padding rows hold NaN."""
    leaves = list(x.with_capacity(x.capacity + extra))
    nan = mx.full((extra, x.num_channels), float("nan"), x.dtype)
    leaves[1] = mx.concatenate([x.feats, nan])
    return ms.SparseTensor(leaves)


@functools.cache
def blas_sums_in_order():
    """Whether NumPy's float32 products are one fused multiply-add after the other, as in compiled loops.

    OpenBLAS's kernels for AVX-512 do so, those for AVX2 take some rows in another order.
    """
    rng = np.random.default_rng(0)
    for k, n in ((8, 16), (16, 8)):
        x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((1001, k), (k, n)))
        total = np.zeros((1001, n), np.float32)
        for a, b in zip(x.T.astype(np.float64), w.astype(np.float64)):
            total = (a[:, None] * b + total).astype(np.float32)
        if not np.array_equal(x @ w, total):
            return False
    return True


def equal_sums(a, b):
    """Assert that products have the same bits where BLAS sums in order, else to the rounding of float32."""
    if blas_sums_in_order():
        np.testing.assert_array_equal(a, b)
    else:
        largest = np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6 * largest)
