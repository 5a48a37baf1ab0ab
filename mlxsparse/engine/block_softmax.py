"""Softmax over the stored blocks of a block-sparse matrix, differentiable in scores, scale and addends."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..backend import executor
from ..backend.autodiff import Gradient, differentiable
from ..backend.host import empty, view, view32
from . import block_kernel, block_softmax_host
from .block_index import BlockIndex
from .block_terms import Terms, dense_sum, key_sum


class Added(NamedTuple):
    """Addends of the scores: arrays, or None. rpe (Z or 1, H or 1, M, N), or packed (Z or 1, nnz, br, bc).

    keys (Z, N) and pairs (M, N), where -inf masks. Segments int32 (M,) and (N,); causal: keys past i + causal
    are masked.
    """

    rpe: mx.array | None = None
    packed: bool = False
    keys: mx.array | None = None
    pairs: mx.array | None = None
    q_segments: mx.array | None = None
    k_segments: mx.array | None = None
    causal: int | None = None

    def real(self) -> dict[str, mx.array]:
        """The addends that are differentiable inputs, by name."""
        named = {"rpe": self.rpe, "keys": self.keys, "pairs": self.pairs}
        return {name: a for name, a in named.items() if a is not None}


def softmax(x: mx.array, scale: mx.array, added: Added, index: BlockIndex, with_lse: bool) -> list[mx.array]:
    """[y (Z, nnz, br, bc) of x's dtype], and lse (Z, H, M) float32 with `with_lse`."""
    names = list(added.real())
    held: dict[str, mx.array] = {}  # y in float32, from the forward pass to the gradients
    size, batch = x.size, x.shape[0]
    run: Any = block_kernel if executor() == "kernel" else _Host

    def both(x: mx.array, scale: mx.array, *addends: mx.array) -> tuple[mx.array, mx.array]:
        given: dict[str, Any] = dict(zip(names, addends))
        now = added._replace(**given)
        y, lse = run.softmax(x, scale, now, index)
        held["y"] = y
        return y, lse

    def forward(x: mx.array, scale: mx.array, *addends: mx.array) -> mx.array:
        y, lse = both(x, scale, *addends)
        if not with_lse:
            return y.astype(x.dtype)
        return mx.concatenate([y.astype(x.dtype).astype(mx.float32).reshape(-1), lse.reshape(-1)])

    def score_gradient(ct: mx.array, x: mx.array, scale: mx.array, *addends: mx.array) -> mx.array:
        y = held["y"] if "y" in held else both(x, scale, *addends)[0]
        lse_ct = ct[size:].reshape(batch, index.grid[0], index.shape[0]) if with_lse else None
        y_ct = ct[:size].reshape(x.shape) if with_lse else ct
        dt: mx.array = run.score_gradient(y_ct, y, lse_ct, index)
        return dt

    def x_gradient(ct: mx.array, x: mx.array, scale: mx.array, *addends: mx.array) -> mx.array:
        dt = score_gradient(ct, x, scale, *addends)
        return (dt * scale.astype(mx.float32)).astype(x.dtype)

    def scale_gradient(ct: mx.array, x: mx.array, scale: mx.array, *addends: mx.array) -> mx.array:
        dt = score_gradient(ct, x, scale, *addends)
        product = mx.where(dt == 0, mx.array(0.0), dt * x.astype(mx.float32))  # masked scores may be NaN
        return product.sum().astype(scale.dtype).reshape(scale.shape)

    def addend_gradient(i: int) -> Gradient:
        def gradient(ct: mx.array, x: mx.array, scale: mx.array, *addends: mx.array) -> mx.array:
            dt = score_gradient(ct, x, scale, *addends)
            found: mx.array = run.addend_gradient(names[i], dt, addends[i], added.packed, index)
            return found

        return gradient

    gradients = [x_gradient, scale_gradient, *(addend_gradient(i) for i in range(len(names)))]
    inputs = [x, scale, *added.real().values()]
    y = differentiable("block-sparse softmax", forward, gradients, *inputs)
    if not with_lse:
        return [y]
    lse = y[size:].reshape(batch, index.grid[0], index.shape[0])
    return [y[:size].reshape(x.shape).astype(x.dtype), lse]


def host_terms(added: Added) -> Terms:
    """The same addends as NumPy arrays."""

    def seen(a: mx.array | None) -> np.ndarray | None:
        return None if a is None else view32(a)

    def whole(a: mx.array | None) -> np.ndarray | None:
        return None if a is None else view(a)

    keys = seen(added.keys)
    return Terms(
        bias=seen(added.rpe),
        packed=added.packed,
        keys=None if keys is None else keys[:, None],
        pairs=seen(added.pairs),
        q_segments=whole(added.q_segments),
        k_segments=whole(added.k_segments),
        causal=added.causal,
    )


def host_addend_gradient(
    name: str, dt: mx.array, addend: mx.array, packed: bool, index: BlockIndex
) -> mx.array:
    """Gradient of one addend (a name of Added) from that of the scores (Z, nnz, br, bc)."""
    d = view32(dt)
    out, gradient = empty(tuple(addend.shape), mx.float32)
    if name == "keys":
        key_sum(d, index, gradient)
    elif name == "pairs":
        dense_sum(d, index, 1, 1, gradient[None, None])
    elif packed:
        gradient[:] = d if len(gradient) == len(d) else d.sum(axis=0, keepdims=True)
    else:
        dense_sum(d, index, addend.shape[0], addend.shape[1], gradient)
    return out.astype(addend.dtype)


class _Host:
    """The host executor; block_kernel has functions of the same names."""

    @staticmethod
    def softmax(x: mx.array, scale: mx.array, added: Added, index: BlockIndex) -> tuple[mx.array, mx.array]:
        out, y = empty(tuple(x.shape), mx.float32)
        lse_out, lse = empty((x.shape[0], index.grid[0], index.shape[0]), mx.float32)
        block_softmax_host.softmax(view32(x), view32(scale).item(), host_terms(added), index, y, lse)
        return out, lse_out

    @staticmethod
    def score_gradient(ct: mx.array, y: mx.array, lse_ct: mx.array | None, index: BlockIndex) -> mx.array:
        out, dt = empty(tuple(y.shape), mx.float32)
        seen = None if lse_ct is None else view32(lse_ct)
        block_softmax_host.score_gradient(view32(ct), view32(y), seen, index, dt)
        return out

    addend_gradient = staticmethod(host_addend_gradient)
