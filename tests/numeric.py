"""Derivatives by central differences in float64, and tensors with poisoned padding."""

from __future__ import annotations

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
