"""Queries, and the scale of their products with keys."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from ..backend.autodiff import differentiable
from ..backend.features import scalar
from ..errors import MLXSparseError


def scaled(q: mx.array, scale: Any) -> tuple[mx.array, float]:
    """(queries, number by which their products with keys are multiplied); D is the last axis of q.

    scale: a finite number, 1 / sqrt(D) if None; or an MLX array of one element, which may be learned: q is
    multiplied by it in float32 and rounded once. MLXSparseError for anything else.
    """
    if scale is None:
        return q, 1 / math.sqrt(max(q.shape[-1], 1))
    known = scalar(scale)
    if isinstance(known, mx.array):
        return differentiable("scale", _times, (_query_gradient, _scale_gradient), q, known), 1.0
    if known is None or not math.isfinite(known):
        raise MLXSparseError(f"scale must be a finite number or an MLX array of one, got {scale!r}")
    return q, float(known)


def _times(q: mx.array, scale: mx.array) -> mx.array:
    return (q.astype(mx.float32) * scale.astype(mx.float32)).astype(q.dtype)


def _query_gradient(ct: mx.array, q: mx.array, scale: mx.array) -> mx.array:
    return _times(ct, scale)


def _scale_gradient(ct: mx.array, q: mx.array, scale: mx.array) -> mx.array:
    """Rows that see no key, padding too, may hold NaN; their cotangent is 0."""
    product = mx.where(ct == 0, mx.array(0.0), ct.astype(mx.float32) * q.astype(mx.float32))
    return product.sum().astype(scale.dtype)
