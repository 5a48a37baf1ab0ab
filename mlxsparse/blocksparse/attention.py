"""Attention over the stored blocks of a layout."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..engine import block_attention
from ..engine.block_softmax import Added
from ..engine.queries import scaled
from ..errors import DTypeError, ShapeError
from .check import check_float, check_same_dtype, check_shape
from .layout import BlockLayout, check_layout
from .matmul import Sparse
from .softmax import check_bias, masked_addend

CAUSAL_ROWS = 64  # block rows of so many leave out blocks past the diagonal; smaller ones are met together


def block_sparse_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    layout: BlockLayout,
    *,
    scale: float | mx.array | None = None,
    bias: Sparse | None = None,
    key_padding_mask: mx.array | None = None,
    segments: mx.array | tuple[mx.array, mx.array] | None = None,
    causal: bool = False,
    return_lse: bool = False,
) -> Any:
    """softmax(q k^T * scale + bias) v over the layout's blocks; the scores are never stored.

    q (Z, Hq, M, D), k (Z, Hk, N, D), v (Z, Hk, N, Dv), Hq a multiple of Hk: query head h reads key head
    h * Hk // Hq. layout: (M, N) in elements with Hq heads, or one head that all share. scale: 1 / sqrt(D) by
    default; an MLX array of one element may be learned. bias: (Z or 1, Hq or 1, M, N), or a BlockSparseTensor
    of a layout with Hq heads; -inf masks. key_padding_mask: bool (Z, N), False masks a key. segments: int32
    sequence numbers, (N,) of queries and keys or a pair (M,), (N,); only equal ones attend. causal: query i
    sees keys up to i + N - M.

    -> (Z, Hq, M, Dv) of q's dtype, float32 inside; with return_lse also (Z, Hq, M) float32. A query without
    any key has 0 and -inf, and gradient 0. Masked keys may hold NaN; a query that attends to a key or value
    that is not finite becomes NaN. Differentiable in q, k, v, bias and such a scale. Raises ShapeError and
    DTypeError.
    """
    check_heads(q, k, v)
    q, factor = scaled(q, scale)
    z, heads, m, _ = q.shape
    n = k.shape[2]
    check_layout(layout)
    if layout.shape != (m, n):
        raise ShapeError(f"layout has shape {layout.shape}, wanted ({m}, {n}) to fit q and k")
    if layout.num_heads not in (1, heads):
        raise ShapeError(f"layout has {layout.num_heads} heads, wanted 1 or {heads}")
    if bias is not None and not isinstance(bias, mx.array):
        layout = layout.with_heads(heads)
    added_bias, packed = check_bias("bias", bias, layout, z, heads)
    if causal and not packed and layout.block[0] >= CAUSAL_ROWS:
        layout = layout._causal or layout
    pair = _segments(segments, m, n)
    added = Added(
        rpe=added_bias,
        packed=packed,
        keys=_kept_keys(key_padding_mask, z, n),
        q_segments=pair[0],
        k_segments=pair[1],
        causal=n - m if causal else None,
    )
    found = block_attention.attention(q, k, v, factor, added, layout.index, return_lse)
    return tuple(found) if return_lse else found[0]


def check_heads(q: mx.array, k: mx.array, v: mx.array) -> None:
    """ShapeError or DTypeError where queries, keys and values do not fit."""
    for name, a in (("q", q), ("k", k), ("v", v)):
        check_float(name, a)
        if a.ndim != 4:
            check_shape(name, a, (None,) * 4, " (Z, H, tokens, channels)")
    check_same_dtype(q=q, k=k, v=v)
    z, heads, _, d = q.shape
    key_z, key_heads, n, key_d = k.shape
    if (key_z, key_d) != (z, d):
        check_shape("k", k, (z, None, None, d), f" to fit q {tuple(q.shape)}")
    if v.shape[:3] != k.shape[:3]:
        check_shape("v", v, (z, key_heads, n, None), f" to fit k {tuple(k.shape)}")
    if key_heads == 0 or heads % key_heads:
        raise ShapeError(f"q has {heads} heads, k has {key_heads}; wanted a divisor of {heads}")


def _kept_keys(mask: Any, z: int, n: int) -> mx.array | None:
    if mask is None:
        return None
    if not isinstance(mask, mx.array):
        raise DTypeError(f"key_padding_mask is a {type(mask).__name__}, wanted an MLX array: mx.array(...)")
    if mask.dtype != mx.bool_:
        raise DTypeError(
            f"key_padding_mask is {mask.dtype}, wanted a bool array, True for keys that count; use mask != 0"
        )
    check_shape("key_padding_mask", mask, (z, n), " (Z, N)")
    return masked_addend(mask)


def _segments(segments: Any, m: int, n: int) -> tuple[mx.array | None, mx.array | None]:
    if segments is None:
        return None, None
    pair = segments if isinstance(segments, (tuple, list)) else (segments, segments)
    if len(pair) != 2:
        raise ShapeError(f"segments must be one array or a pair for queries and keys, got {len(pair)}")
    for a, size in zip(pair, (m, n)):
        if not isinstance(a, mx.array):
            kind = type(a).__name__
            raise DTypeError(f"segments is a {kind}, wanted an MLX array: mx.array(..., mx.int32)")
        if a.dtype != mx.int32:
            raise DTypeError(f"segments is {a.dtype}, wanted int32; cast with .astype(mx.int32)")
        check_shape("segments", a, (size,), "")
    return pair[0], pair[1]
