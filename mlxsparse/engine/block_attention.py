"""Attention over the stored blocks of a layout, streaming: scores are never kept.

Differentiable in q, k, v and the bias. Keys that are masked may hold anything; a query that may attend to a
key or value that is not finite becomes NaN, others do not.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import executor
from ..backend.autodiff import Gradient, differentiable
from ..backend.host import empty, view32
from . import block_attention_host as host
from . import block_kernel
from .block_index import BlockIndex
from .block_softmax import Added, host_addend_gradient, host_terms


def attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, added: Added, index: BlockIndex, with_lse: bool
) -> list[mx.array]:
    """[out (Z, Hq, M, Dv) of q's dtype], and lse (Z, Hq, M) float32 with `with_lse`.

    q (Z, Hq, M, D), k (Z, Hk, N, D), v (Z, Hk, N, Dv); the layout has Hq heads, or one that all share (then
    `added.rpe` is not packed). added.keys is 0 or -inf.
    """
    run: Any = block_kernel if executor() == "kernel" else _Host
    held: dict[str, Any] = {}  # what the forward pass leaves for the gradients
    shape = (*q.shape[:3], v.shape[3])
    size = math.prod(shape)

    def both(q: mx.array, k: mx.array, v: mx.array, *bias: mx.array) -> tuple[mx.array, mx.array]:
        now = added._replace(rpe=bias[0]) if bias else added
        out, lse = run.attention(q, k, v, scale, now, index)
        held["out"], held["lse"] = out, lse
        return out, lse

    def forward(q: mx.array, k: mx.array, v: mx.array, *bias: mx.array) -> mx.array:
        out, lse = both(q, k, v, *bias)
        if not with_lse:
            return out.astype(q.dtype)
        return mx.concatenate([out.astype(q.dtype).astype(mx.float32).reshape(-1), lse.reshape(-1)])

    def gradient_of(name: str) -> Gradient:
        def gradient(ct: mx.array, q: mx.array, k: mx.array, v: mx.array, *bias: mx.array) -> mx.array:
            if "out" not in held:
                both(q, k, v, *bias)
            out, lse = held["out"], held["lse"]
            lse_ct = ct[size:].reshape(lse.shape) if with_lse else None
            out_ct = ct[:size].reshape(shape) if with_lse else ct
            now = added._replace(rpe=bias[0]) if bias else added
            found: mx.array = run.attention_gradient(
                name, out_ct, lse_ct, out, lse, q, k, v, scale, now, index
            )
            return found

        return gradient

    inputs = [q, k, v] if added.rpe is None else [q, k, v, added.rpe]
    gradients = [gradient_of(name) for name in ("q", "k", "v", "bias")[: len(inputs)]]
    y = differentiable("block-sparse attention", forward, gradients, *inputs)
    if not with_lse:
        return [y]
    return [y[:size].reshape(shape).astype(q.dtype), y[size:].reshape(shape[:3])]


class _Host:
    """The host executor; block_kernel has functions of the same names."""

    @staticmethod
    def attention(
        q: mx.array, k: mx.array, v: mx.array, scale: float, added: Added, index: BlockIndex
    ) -> tuple[mx.array, mx.array]:
        out, y = empty((*q.shape[:3], v.shape[3]), mx.float32)
        lse_out, lse = empty(tuple(q.shape[:3]), mx.float32)
        host.forward(_job(q, k, v, scale, added, index), y, lse)
        return out, lse_out

    @staticmethod
    def attention_gradient(
        name: str,
        ct: mx.array,
        lse_ct: mx.array | None,
        out: mx.array,
        lse: mx.array,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        scale: float,
        added: Added,
        index: BlockIndex,
    ) -> mx.array:
        """Gradient of q, k, v or the bias."""
        if name == "bias":
            index = index.with_heads(q.shape[1])
        job = _job(q, k, v, scale, added, index)
        job, saved = _saved(
            job, view32(ct), None if lse_ct is None else view32(lse_ct), view32(out), view32(lse)
        )
        if name == "bias":
            assert added.rpe is not None
            ds_out, ds = empty((q.shape[0], index.nnz, *index.block), mx.float32)
            ds[:] = 0
            host.query_gradient(job, saved, None, ds)
            return host_addend_gradient("rpe", ds_out, added.rpe, added.packed, index)
        like = {"q": q, "k": k, "v": v}[name]
        result, gradient = empty(tuple(like.shape), mx.float32)
        if name == "q":
            host.query_gradient(job, saved, gradient, None)
        else:
            host.key_gradient(job, saved, gradient, name == "v")
        return result.astype(like.dtype)


def _job(q: mx.array, k: mx.array, v: mx.array, scale: float, added: Added, index: BlockIndex) -> host.Job:
    """The inputs as NumPy; keys and values that are not finite become 0 and mark their key with NaN."""
    terms = host_terms(added)
    keys, values = view32(k), view32(v)
    if not (np.isfinite(keys.sum()) and np.isfinite(values.sum())):
        fine = np.isfinite(keys).all(axis=3) & np.isfinite(values).all(axis=3)
        mark = np.where(fine, np.float32(0), np.float32(np.nan))
        if terms.keys is not None:
            mark = np.where(terms.keys == -np.inf, terms.keys, mark)
        terms = terms._replace(keys=mark.astype(np.float32))
        keys, values = (np.where(fine[..., None], a, np.float32(0)) for a in (keys, values))
    return host.Job(view32(q), keys, values, scale, terms, index)


def _saved(
    job: host.Job, ct: np.ndarray, lse_ct: np.ndarray | None, out: np.ndarray, lse: np.ndarray
) -> tuple[host.Job, host.Saved]:
    """What the gradients read. Rows masked throughout are 0; one that is not finite marks its scores."""
    delta = np.einsum("zhmd,zhmd->zhm", ct, out)
    if lse_ct is not None:
        delta = delta - lse_ct
    empty_row = lse == -np.inf
    if all(np.isfinite(a.sum()) for a in (lse, delta, job.q, ct)):
        return job, host.Saved(ct, lse, delta)
    fine = (
        np.isfinite(delta) & np.isfinite(lse) & np.isfinite(job.q).all(axis=3) & np.isfinite(ct).all(axis=3)
    )
    fine |= empty_row
    used = (fine & ~empty_row)[..., None]
    ct, q = np.where(used, ct, np.float32(0)), np.where(used, job.q, np.float32(0))
    delta = np.where(fine & ~empty_row, delta, np.float32(0))
    rows = np.where(fine, np.float32(0), np.float32(np.nan))
    job = job._replace(q=q, terms=job.terms._replace(rows=rows))
    return job, host.Saved(ct, np.where(fine, lse, np.float32(0)), delta)
