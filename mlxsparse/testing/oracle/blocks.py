"""Block-sparse products, softmax and attention as dense float64 formulas under an element mask."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def element_mask(mask: Array, block: tuple[int, int], shape: tuple[int, int]) -> Array:
    """bool (H, M, N) of a block mask (H, R, C)."""
    h, _, _ = mask.shape
    out = np.zeros((h, *shape), bool)
    for head, i, j in np.argwhere(mask).tolist():
        out[head, i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]] = True
    return out


def block_pack(dense: Array, mask: Array, block: tuple[int, int]) -> Array:
    """(Z, H, M, N) -> (Z, nnz, br, bc), blocks in the order of np.argwhere(mask), 0 outside the matrix."""
    (br, bc), places = block, np.argwhere(mask).tolist()
    out = np.zeros((len(dense), len(places), br, bc), dense.dtype)
    for n, (head, i, j) in enumerate(places):
        part = dense[:, head, i * br : (i + 1) * br, j * bc : (j + 1) * bc]
        out[:, n, : part.shape[1], : part.shape[2]] = part
    return out


def block_unpack(
    values: Array, mask: Array, block: tuple[int, int], shape: tuple[int, int], fill: float = 0.0
) -> Array:
    """(Z, nnz, br, bc) -> (Z, H, M, N), `fill` where no block is stored."""
    (br, bc), (m, n) = block, shape
    out = np.full((len(values), mask.shape[0], m, n), fill, values.dtype)
    for place, (head, i, j) in enumerate(np.argwhere(mask).tolist()):
        rows, cols = min(br, m - i * br), min(bc, n - j * bc)
        out[:, head, i * br : i * br + rows, j * bc : j * bc + cols] = values[:, place, :rows, :cols]
    return out


def _stored(a: Array, transposed: bool) -> Array:
    return a.swapaxes(-1, -2) if transposed else a


def block_matmul(
    mode: str,
    a: Array,
    b: Array,
    mask: Array,
    block: tuple[int, int],
    shape: tuple[int, int],
    trans_a: bool = False,
    trans_b: bool = False,
) -> Array:
    """The product of `mode`, with the sparse operand or result dense and zero where no block is stored.

    a, b: dense (Z, H, rows, columns) as stored. -> (Z, H, M, N) dense.
    """
    keep = element_mask(mask, block, shape)
    if mode == "dsd":
        a = np.where(keep, a, 0)
    if mode == "dds":
        b = np.where(keep, b, 0)
    y: Array = _stored(a, trans_a) @ _stored(b, trans_b)
    return np.where(keep, y, 0) if mode == "sdd" else y


def block_matmul_gradients(
    mode: str,
    a: Array,
    b: Array,
    ct: Array,
    mask: Array,
    block: tuple[int, int],
    shape: tuple[int, int],
    trans_a: bool = False,
    trans_b: bool = False,
) -> tuple[Array, Array]:
    """Gradients of a and b, dense, for a cotangent of block_matmul's result."""
    keep = element_mask(mask, block, shape)
    if mode == "dsd":
        a = np.where(keep, a, 0)
    if mode == "dds":
        b = np.where(keep, b, 0)
    if mode == "sdd":
        ct = np.where(keep, ct, 0)
    left, right = _stored(a, trans_a), _stored(b, trans_b)
    da = _stored(ct @ right.swapaxes(-1, -2), trans_a)
    db = _stored(left.swapaxes(-1, -2) @ ct, trans_b)
    if mode == "dsd":
        da = np.where(keep, da, 0)
    if mode == "dds":
        db = np.where(keep, db, 0)
    return da, db


def masked_softmax(scores: Array, allowed: Array) -> tuple[Array, Array]:
    """Softmax over the last axis where `allowed`, and its log-sum-exp; a row without any: 0 and -inf."""
    t = np.where(allowed, scores, -np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = t.max(axis=-1, keepdims=True, initial=-np.inf)
        e = np.where(allowed, np.exp(t - np.where(np.isfinite(top), top, 0)), 0)
        total = e.sum(axis=-1, keepdims=True)
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[..., 0]
    return e / np.where(total > 0, total, 1), lse


def attention(
    q: Array, k: Array, v: Array, allowed: Array, scale: float, bias: Array | None = None
) -> tuple[Array, Array]:
    """(out, lse) of dense masked attention in float64.

    q (Z, Hq, M, D), k (Z, Hk, N, D), v (Z, Hk, N, Dv), Hq a multiple of Hk; allowed (bool) and bias broadcast
    to (Z, Hq, M, N). A query without any allowed key gives 0 and -inf.
    """
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, axis=1), np.repeat(v, repeat, axis=1)
    scores = scale * (q @ k.swapaxes(-1, -2))
    if bias is not None:
        scores = scores + bias
    p, lse = masked_softmax(scores, np.broadcast_to(allowed, scores.shape))
    return p @ v, lse
