"""Normalisation layers on the active rows of sparse tensors.

Names, arguments and parameters are those of mlx.nn. Statistics are float32 for every feature type,
the result has the type of the features, and padding takes no part.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Identity, Module

from ..backend import executor
from ..backend.kernel_norm import Running
from ..backend.untrained import never_train
from ..coords.geometry import whole
from ..engine import norm, norm_kernel, pointwise
from ..engine.spans import Spans
from ..errors import MLXSparseError, ShapeError
from ..ops.check import check_tensor
from ..tensor import SparseTensor, require_same_key
from ..transforms import recomputing
from .activations import ReLU, live_rows
from .conv import Conv3d, ConvTranspose3d, GenerativeConvTranspose3d, SubmConv3d
from .fixed import by_statistics

# Whose results are new, and nobody else's unless somebody put another method there to look at them.
_FRESH: dict[Any, Any] = {
    layer: layer.__call__ for layer in (SubmConv3d, Conv3d, ConvTranspose3d, GenerativeConvTranspose3d)
}


def norm_act(
    norm: Module,
    act: Module,
    x: SparseTensor,
    add: SparseTensor | None = None,
    *,
    made_by: Module | None = None,
) -> SparseTensor:
    """``act(norm(x) + add)``, without `add` ``act(norm(x))``, for layers and a tensor with x's key.

    One pass over the features where the layers are a BatchNorm and a ReLU, where kernels run back as well;
    on the host in evaluation, and after an Identity too.
    made_by: the convolution that made x, if x is not used again; the result may then get its memory.
    """
    check_tensor(x)
    if add is not None:
        check_tensor(add, "add")
    if type(act) is ReLU and type(norm) in (BatchNorm, Identity):
        done = _in_one_pass(norm, x, add, relu=True, own=makes_new(made_by))
        if done is not None:
            return done
        alike = add is None or (add.feats.shape == x.feats.shape and add.dtype == x.dtype)
        if type(norm) is BatchNorm and alike and executor() == "kernel":
            return norm._apply(x, relu=True, add=add)
    if not callable(act):
        raise MLXSparseError(f"norm_act: act must be a layer such as ReLU(), got {act!r}")
    y = norm(x)
    return act(y if add is None else y + add)


def fixed_vectors(norm: Module) -> tuple[mx.array, ...] | None:
    """Running mean and variance, weight and bias; none for an Identity. None where they are not used."""
    if isinstance(norm, Identity):
        return ()
    if norm.training or not norm.track_running_stats:
        return None
    found = norm["running_mean"], norm["running_var"]
    return (*found, norm["weight"], norm["bias"]) if "weight" in norm else found


def makes_new(layer: Module | None) -> bool:
    found = _FRESH.get(type(layer))
    return found is not None and type(layer).__call__ is found


def _in_one_pass(
    norm: Module, x: SparseTensor, add: SparseTensor | None = None, *, relu: bool = False, own: bool = False
) -> SparseTensor | None:
    """norm(x) + add and a ReLU on the host, in x's memory if it is our own; None where not possible."""
    if executor() != "host":
        return None
    vectors, plain = fixed_vectors(norm), isinstance(norm, Identity)
    if vectors is None:
        return None
    feats, more = live_rows(x), None if add is None else live_rows(add)
    if more is None:
        possible = pointwise.direct(feats, *vectors)
    else:
        possible = more.shape == feats.shape and pointwise.direct(feats, more, *vectors)
    if not possible:
        return None
    if add is not None:
        require_same_key(x, add, "+")
    if not plain:
        _check(x, norm.num_features, norm)
    made = pointwise.activated(feats, vectors, more, eps=0.0 if plain else norm.eps, relu=relu, own=own)
    y = x.replace(made, clean=plain)
    return y if add is None else y.noting(add)


class BatchNorm(Module):
    """Batch normalisation over the active rows of all batch items, per channel.

    y = (x - mean) / sqrt(var + eps) * weight + bias with the biased variance of the rows in
    training, and the running statistics in evaluation, which training moves by `momentum` (with
    the unbiased variance). Parameters and names are those of mlx.nn.BatchNorm.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ):
        super().__init__()
        num_features = whole(num_features, "num_features", 1)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        if affine:
            self.weight = mx.ones((num_features,))
            self.bias = mx.zeros((num_features,))
        if track_running_stats:
            self.running_mean = mx.zeros((num_features,))
            self.running_var = mx.ones((num_features,))
            never_train(self, "running_mean", "running_var")

    def __call__(self, x: SparseTensor) -> SparseTensor:
        return self._apply(x)

    def _apply(self, x: SparseTensor, relu: bool = False, add: SparseTensor | None = None) -> SparseTensor:
        """The layer, then plus `add`, then a ReLU: on a GPU in one pass; `add` only with `relu`."""
        _check(x, self.num_features, self)
        if add is not None:
            require_same_key(x, add, "+")
        weight, bias = self.get("weight"), self.get("bias")
        if not self.training and self.track_running_stats:
            done = None if relu else _in_one_pass(self, x)
            if done is not None:
                return done
            if weight is None or bias is None:
                weight, bias = mx.ones((self.num_features,)), mx.zeros((self.num_features,))
            known = self.running_mean, self.running_var, weight, bias
            return by_statistics(x, *known, self.eps, relu=relu, add=add)
        n, track = x.active, self.training and self.track_running_stats and not recomputing()
        more = None if add is None else add.feats
        if executor() == "host":
            y, mean, var = norm.normalize_all(x.feats, weight, bias, n, self.eps)
            if track:
                self._track(mean[0], var[0], n)
        else:
            running = None
            if track:
                old = self["running_mean"].astype(mx.float32), self["running_var"].astype(mx.float32)
                running = Running(*old, self.momentum)
            y, mean, var = norm.normalize_all(
                x.feats, weight, bias, n, self.eps, relu=relu, add=more, running=running
            )
            if track:
                self["running_mean"], self["running_var"] = mean, var
        made = x.replace(y, clean=True)
        made = made if add is None else made.noting(add)
        made._made = True
        return made

    def _track(self, mean: mx.array, var: mx.array, n: int | mx.array) -> None:
        assert isinstance(n, int)  # the host knows it
        if n == 0:  # no rows say nothing about the data
            return
        unbiased = var * (n / max(n - 1, 1))
        for name, value in (("running_mean", mean), ("running_var", unbiased)):
            self[name] = (1 - self.momentum) * self[name] + self.momentum * value

    def _extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={'weight' in self}"


class GroupNorm(Module):
    """Normalisation over the active rows and a group of channels, per batch item.

    Channel c is of group c % num_groups, as in mlx.nn.GroupNorm; with `pytorch_compatible`, groups
    are blocks of dims / num_groups consecutive channels.
    """

    def __init__(
        self,
        num_groups: int,
        dims: int,
        eps: float = 1e-5,
        affine: bool = True,
        pytorch_compatible: bool = False,
    ):
        super().__init__()
        num_groups, dims = whole(num_groups, "num_groups", 1), whole(dims, "dims", 1)
        if dims % num_groups:
            raise ShapeError(f"num_groups={num_groups} must divide dims={dims}")
        if affine:
            self.weight = mx.ones((dims,))
            self.bias = mx.zeros((dims,))
        self.num_groups = num_groups
        self.dims = dims
        self.eps = eps
        self.pytorch_compatible = pytorch_compatible

    def __call__(self, x: SparseTensor) -> SparseTensor:
        _check(x, self.dims, self)
        channel = np.arange(self.dims)
        size = self.dims // self.num_groups
        group = channel // size if self.pytorch_compatible else channel % self.num_groups
        return _by_item(x, self, group)

    def _extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.dims}, eps={self.eps}, affine={'weight' in self}, "
            f"pytorch_compatible={self.pytorch_compatible}"
        )


class InstanceNorm(Module):
    """Normalisation over the active rows of each batch item, per channel."""

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = False):
        super().__init__()
        dims = whole(dims, "dims", 1)
        if affine:
            self.weight = mx.ones((dims,))
            self.bias = mx.zeros((dims,))
        self.dims = dims
        self.eps = eps

    def __call__(self, x: SparseTensor) -> SparseTensor:
        _check(x, self.dims, self)
        return _by_item(x, self, None)

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"


class LayerNorm(Module):
    """Normalisation of each active row over its channels."""

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = True, bias: bool = True):
        super().__init__()
        dims = whole(dims, "dims", 1)
        if affine:
            self.weight = mx.ones((dims,))
            if bias:
                self.bias = mx.zeros((dims,))
        self.dims = dims
        self.eps = eps

    def __call__(self, x: SparseTensor) -> SparseTensor:
        _check(x, self.dims, self)
        weight, bias = self.get("weight"), self.get("bias")
        return x.replace(norm.normalize_rows(x.feats, weight, bias, x.active, self.eps, centre=True))

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"


class RMSNorm(Module):
    """Each active row over the root of the mean square of its channels, times a weight."""

    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        dims = whole(dims, "dims", 1)
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x: SparseTensor) -> SparseTensor:
        _check(x, self.weight.shape[0], self)
        return x.replace(
            norm.normalize_rows(x.feats, self.weight, None, x.active, self.eps, centre=False)
        )

    def _extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def _check(x: SparseTensor, dims: int, layer: Module) -> None:
    check_tensor(x)
    if x.num_channels != dims:
        raise ShapeError(f"{type(layer).__name__}({dims}) got {x.num_channels} channels")


def _by_item(x: SparseTensor, layer: GroupNorm | InstanceNorm, group: np.ndarray | None) -> SparseTensor:
    spans: Spans | norm_kernel.Items
    if x.key.static:
        spans = norm_kernel.Items(x.key.items, group)
    else:
        spans = Spans(x.key.index.order, x.key.counts, group)
    y, _, _ = norm.normalize(x.feats, layer.get("weight"), layer.get("bias"), spans, layer.eps)
    return x.replace(y)
