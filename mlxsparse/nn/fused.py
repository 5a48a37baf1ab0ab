"""Layers that a convolution does to its own rows in its own pass."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn import Identity, Module

from ..backend import executor
from ..backend.fast_rows import Finish
from ..engine import finish, pointwise
from ..ops.check import check_tensor
from ..tensor import SparseTensor, require_same_key
from .activations import ReLU, live_rows
from .conv import SubmConv3d
from .layers import Linear
from .norm import BatchNorm, fixed_vectors, makes_new, norm_act

_LINEAR = Linear.__call__


def conv_norm_act(
    conv: Module,
    norm: Module,
    act: Module,
    x: SparseTensor,
    add: SparseTensor | None = None,
    *,
    through: Module | None = None,
    **kwargs: Any,
) -> SparseTensor:
    """``norm_act(norm, act, conv(x, **kwargs), add)``, or with ``through(add)`` where that is given.

    In evaluation the convolution finishes its rows itself, if the layers are a convolution of this package, a
    BatchNorm (on the host an Identity, too), a ReLU, and `through` a Linear without bias: on the host while
    they are in cache, kernels where no gradient is asked for.
    """
    if add is not None:
        check_tensor(add, "add")
    known = type(act) is ReLU and type(norm) is BatchNorm and makes_new(conv)
    vectors = fixed_vectors(norm) if known and executor() == "kernel" else None
    if vectors is not None:
        return _by_kernels(conv, norm, act, x, add, through, vectors, kwargs)
    steps = _steps(conv, norm, act, x, add, through)
    if steps is None:
        y = conv(x, **kwargs)
        more = add if add is None or through is None else through(add)
        return norm_act(norm, act, y, more, made_by=conv)
    pointwise.then(steps)
    try:
        y = conv(x, **kwargs)
    finally:
        left = pointwise.then(None)
    assert left is None  # layers of these types convolve once
    return y if add is None else y.noting(add)


def _by_kernels(
    conv: Module,
    norm: Module,
    act: Module,
    x: SparseTensor,
    add: SparseTensor | None,
    through: Module | None,
    vectors: tuple[mx.array, ...],
    kwargs: dict[str, Any],
) -> SparseTensor:
    if len(vectors) == 2:
        vectors = (*vectors, mx.ones((norm.num_features,)), mx.zeros((norm.num_features,)))
    mix = None
    if add is not None and through is not None:
        if _mixes(through):
            mix = through["weight"]
        else:
            add = through(add)
    follows = finish.Norm(vectors, norm.eps, True, None if add is None else add.feats, mix)
    before = finish.want(follows)
    try:
        y: SparseTensor = conv(x, **kwargs)
    finally:
        finish.want(before)
    if not follows.done:
        more = add if add is None or mix is None or through is None else through(add)
        return norm_act(norm, act, y, more, made_by=conv)
    if add is None:
        return y
    require_same_key(y, add, "+")
    return y.noting(add)


def _mixes(layer: Module) -> bool:
    """Whether a layer is a product with a weight and nothing else."""
    return type(layer) is Linear and Linear.__call__ is _LINEAR and "bias" not in layer


def _steps(
    conv: Module, norm: Module, act: Module, x: SparseTensor, add: SparseTensor | None, through: Module | None
) -> Finish | None:
    """What the convolution can do with its rows itself; None where it cannot."""
    if type(act) is not ReLU or type(norm) not in (BatchNorm, Identity) or not makes_new(conv):
        return None
    if executor() != "host" or not isinstance(x, SparseTensor):
        return None
    weight, bias, vectors = conv["weight"], conv.get("bias"), fixed_vectors(norm)
    if vectors is None or (vectors and norm.num_features != weight.shape[0]):
        return None
    more = mix = None
    if add is not None:
        if type(conv) is not SubmConv3d or x._key is None or add._key is not x._key:
            return None
        more, channels = live_rows(add), weight.shape[0]
        if through is not None:
            if not _mixes(through):
                return None
            mix, channels = through["weight"], through["weight"].shape[1]
            if mix.shape[0] != weight.shape[0]:
                return None
        if more.shape[1] != channels:
            return None
    arrays = x.feats, weight, *vectors, *(a for a in (bias, more, mix) if a is not None)
    if not pointwise.direct(*arrays):
        return None
    return pointwise.finish(vectors, more, eps=norm.eps if vectors else 0.0, relu=True, through=mix)
