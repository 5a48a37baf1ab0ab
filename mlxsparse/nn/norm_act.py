"""Batch normalisation in evaluation with what follows it, in one pass over the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
from mlx.nn import Module

from ..backend import executor
from ..backend.autodiff import Gradient, prepared
from ..backend.kernel_fixed import fixed_norm
from ..backend.library import factory
from ..errors import ShapeError
from ..ops.check import check_tensor
from ..tensor import SparseTensor, require_same_key
from .activations import ReLU, live_rows
from .norm import BatchNorm


def norm_act(
    norm: Module, act: Module, x: SparseTensor, shortcut: SparseTensor | None = None
) -> SparseTensor:
    """``act(norm(x))``, or ``act(norm(x) + shortcut)``, in one pass where `norm` is a BatchNorm that uses
    its running statistics and `act` a ReLU.
    """
    if type(norm) is not BatchNorm or type(act) is not ReLU or norm.training or not norm.track_running_stats:
        y = norm(x)
        return act(y if shortcut is None else y + shortcut)
    check_tensor(x)
    if x.num_channels != norm.num_features:
        raise ShapeError(f"BatchNorm({norm.num_features}) got {x.num_channels} channels")
    added: tuple[mx.array, ...] = ()
    if shortcut is not None:
        check_tensor(shortcut, "shortcut")
        require_same_key(x, shortcut, "norm_act")
        if shortcut.feats.shape != x.feats.shape or shortcut.dtype != x.dtype:
            return act(norm(x) + shortcut)
        added = (live_rows(shortcut),)
    parameters = norm["running_mean"], norm["running_var"], *_affine(norm)
    y = (_by_kernel if executor() == "kernel" else _by_layers)(x, parameters, added, norm.eps)
    made = x.replace(y, clean=True)
    return made if shortcut is None else made.noting(shortcut)


def _affine(norm: BatchNorm) -> tuple[mx.array, mx.array]:
    weight = norm.get("weight")
    return _neutral(norm.num_features) if weight is None else (weight, norm["bias"])


@functools.lru_cache(maxsize=64)
def _neutral(size: int) -> tuple[mx.array, mx.array]:
    return mx.ones((size,)), mx.zeros((size,))


def _by_layers(
    x: SparseTensor, parameters: tuple[mx.array, ...], added: tuple[mx.array, ...], eps: float
) -> mx.array:
    return _formula(eps, None if x.key.full else x.key.live, x.feats, *parameters, *added)


def _formula(eps: float, live: mx.array | None, x: mx.array, *rest: mx.array) -> mx.array:
    """rest: mean, variance, weight, bias, what is added; live (N, 1): rows that are no padding, or None."""
    mean, var, w, b, *added = rest
    zero = mx.zeros((), x.dtype)
    x = x if live is None else mx.where(live, x, zero)
    scale = mx.rsqrt(var + mx.array(eps))
    shift = -mean * scale
    y = (x.astype(mx.float32) * (scale * w) + (shift * w + b)).astype(x.dtype)
    y = mx.maximum(y + added[0] if added else y, 0)
    return y if live is None else mx.where(live, y, zero)


def _by_kernel(
    x: SparseTensor, parameters: tuple[mx.array, ...], added: tuple[mx.array, ...], eps: float
) -> mx.array:
    feats, key = x.feats, x.key
    if any(a.dtype != feats.dtype for a in parameters):
        parameters = tuple(a.astype(mx.float32) for a in parameters)
    kind = parameters[0].dtype
    calls = key._record.identity.calls  # kept with the rows, whose number a launch needs
    case = "norm and ReLU", feats.shape, feats.dtype, kind, eps, len(added), factory()
    call = calls.get(case)
    if call is None:
        live = None if key.full else key.live
        call = calls[case] = _kernel(feats, kind, eps, key.active, live, len(added))
    return call(feats, *parameters, *added)


def _kernel(
    x: mx.array, kind: mx.Dtype, eps: float, active: int | mx.array, live: mx.array | None, added: int
) -> Callable[..., mx.array]:
    forward = fixed_norm(x.shape, x.dtype, kind, eps, active, added=added == 1, relu=True)

    def gradient(place: int) -> Gradient:
        def of(ct: mx.array, *inputs: mx.array) -> mx.array:
            return mx.vjp(functools.partial(_formula, eps, live), list(inputs), [ct])[1][place]

        return of

    return prepared("normalization", forward, [gradient(i) for i in range(5 + added)], mx.default_device())
