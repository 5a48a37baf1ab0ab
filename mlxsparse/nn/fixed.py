"""Normalisation by statistics that are given, with a sum and a ReLU after it, in one pass over the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx

from ..backend import executor
from ..backend.autodiff import Gradient, prepared
from ..backend.kernel_fixed import fixed_norm
from ..backend.library import factory
from ..tensor import SparseTensor
from .activations import live_rows


def by_statistics(
    x: SparseTensor,
    mean: mx.array,
    var: mx.array,
    weight: mx.array,
    bias: mx.array,
    eps: float,
    *,
    relu: bool = False,
    add: SparseTensor | None = None,
) -> SparseTensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias``, plus `add`, and 0 where that is less (relu).

    mean, var, weight, bias: (C,), as BatchNorm's in evaluation; `add` on x's rows, of its shape and dtype.
    """
    parameters = mean, var, weight, bias
    added = () if add is None else (live_rows(add),)
    run = _by_kernel if executor() == "kernel" else _by_layers
    made = x.replace(run(x, parameters, added, eps, relu), clean=True)
    return made if add is None else made.noting(add)


def _by_layers(
    x: SparseTensor, parameters: tuple[mx.array, ...], added: tuple[mx.array, ...], eps: float, relu: bool
) -> mx.array:
    return _formula(eps, relu, None if x.key.full else x.key.live, x.feats, *parameters, *added)


def _formula(eps: float, relu: bool, live: mx.array | None, x: mx.array, *rest: mx.array) -> mx.array:
    """rest: mean, variance, weight, bias, what is added; live (N, 1): rows that are no padding, or None."""
    mean, var, w, b, *added = rest
    zero = mx.zeros((), x.dtype)
    x = x if live is None else mx.where(live, x, zero)
    scale = mx.rsqrt(var + mx.array(eps))
    y = x.astype(mx.float32) * (scale * w) + (b - mean * scale * w)
    y = y + added[0].astype(mx.float32) if added else y
    y = (mx.maximum(y, 0) if relu else y).astype(x.dtype)
    return y if live is None else mx.where(live, y, zero)


def _by_kernel(
    x: SparseTensor, parameters: tuple[mx.array, ...], added: tuple[mx.array, ...], eps: float, relu: bool
) -> mx.array:
    feats, key = x.feats, x.key
    dtype = feats.dtype
    if any(a.dtype != dtype for a in parameters):
        parameters = tuple(a.astype(mx.float32) for a in parameters)
    kind = parameters[0].dtype
    calls = key._record.identity.calls  # kept with the rows, whose number a launch needs
    case = "norm", feats.shape, dtype, kind, eps, relu, len(added), factory()
    call = calls.get(case)
    if call is None:
        call = calls[case] = _kernel(x, kind, eps, relu, len(added))
    return call(feats, *parameters, *added)


def _kernel(x: SparseTensor, kind: mx.Dtype, eps: float, relu: bool, added: int) -> Callable[..., mx.array]:
    live = None if x.key.full else x.key.live
    forward = fixed_norm(x.feats.shape, x.dtype, kind, eps, x.key.active, added=added == 1, relu=relu)

    def gradient(place: int) -> Gradient:
        def of(ct: mx.array, *inputs: mx.array) -> mx.array:
            return mx.vjp(functools.partial(_formula, eps, relu, live), list(inputs), [ct])[1][place]

        return of

    return prepared("normalization", forward, [gradient(i) for i in range(5 + added)], mx.default_device())
