"""Norms of blocks and the group lasso's proximal step; blocks are rows (.., block_numel)."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import mlx.core as mx

from ..errors import MLXSparseError


def check_order(p: Any) -> None:
    """MLXSparseError unless `p` is the order of a norm: above 0, or inf."""
    if not (isinstance(p, Real) and float(p) > 0):
        raise MLXSparseError(f"p of a norm must be above 0, or inf, got {p!r}")


def norms_of(blocks: mx.array, p: float = 2) -> mx.array:
    """p-norm over the last axis in float32: p > 0, or inf. At a block of zeros the gradient is 0."""
    check_order(p)
    size = mx.abs(blocks.astype(mx.float32))
    if p == math.inf:
        return size.max(axis=-1)
    if p == 1:
        return size.sum(axis=-1)
    total = (size * size if p == 2 else size**p).sum(axis=-1)
    zero = total == 0
    # The root of a safe number: where(zero, 0, root(0)) would have the gradient inf * 0.
    return mx.where(zero, 0, mx.where(zero, 1, total) ** (1 / p))


def block_prox(
    x: mx.array, t: float | mx.array, h: mx.array | None, max_iter: int, atol: float, eps: float
) -> mx.array:
    """argmin over z of 1/2 (z - x)' H (z - x) + t |z|, block by block; H = 1 without `h`. In float32."""
    x32 = x.astype(mx.float32)
    t = mx.array(t, mx.float32) if not isinstance(t, mx.array) else t.astype(mx.float32)
    norm = norms_of(x32)
    if h is None:
        z = x32 * mx.maximum(0, 1 - t / (norm + eps))[..., None]
    else:
        z = _conditioned(x32, t, h.astype(mx.float32), max_iter, eps)
    z = mx.where((norms_of(z) <= atol)[..., None], 0, z)  # NaN is not at most atol
    return z.astype(x.dtype)


def _conditioned(x: mx.array, t: mx.array, h: mx.array, max_iter: int, eps: float) -> mx.array:
    """z = x H / (H + mu) with mu |z| = t: mu |x H / (H + mu)| grows with mu, so mu is halved in on.

    mu lies between t Hmin / (|Hx| - t) and t Hmax / (|Hx| - t). Blocks with |Hx| <= t are 0.
    """
    pull = norms_of(h * x)
    alive = mx.logical_not(pull <= t)  # NaN stays NaN
    rest = mx.where(alive, pull - t, 1) + eps
    low, high = t * h.min(axis=-1) / rest, t * h.max(axis=-1) / rest
    for _ in range(max_iter):
        mu = (low + high) / 2
        too_small = mu * norms_of(x * h / (h + mu[..., None])) < t
        low, high = mx.where(too_small, mu, low), mx.where(too_small, high, mu)
    mu = ((low + high) / 2)[..., None]
    return mx.where(alive[..., None], x * h / (h + mu), 0)
