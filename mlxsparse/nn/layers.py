"""Linear, BatchNorm, ReLU and Sequential on the active rows of sparse tensors."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx.nn import Module

from .. import ops
from ..errors import ShapeError
from ..tensor import SparseTensor, zero_padding


class Linear(Module):
    """y = x W^T + b on every active row; weight (output_dims, input_dims)."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True):
        super().__init__()
        scale = 1 / math.sqrt(input_dims)
        self.weight = mx.random.uniform(-scale, scale, (output_dims, input_dims))
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (output_dims,))

    def __call__(self, x: SparseTensor) -> SparseTensor:
        return ops.linear(x, self.weight, self.get("bias"))

    def _extra_repr(self) -> str:
        return f"input_dims={self.weight.shape[1]}, output_dims={self.weight.shape[0]}, bias={'bias' in self}"


class BatchNorm(Module):
    """Batch normalisation over the active rows of all batch items, per channel.

    y = (x - mean) / sqrt(var + eps) * weight + bias with the biased variance of the rows in
    training, and the running statistics in evaluation, which training moves by `momentum` (with
    the unbiased variance). Statistics are float32 for every feature type. Parameters and names are
    those of mlx.nn.BatchNorm.
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
            self.freeze(keys=["running_mean", "running_var"], recurse=False)

    def unfreeze(self, *args: Any, **kwargs: Any) -> Module:
        """As Module.unfreeze, but running statistics stay untrained."""
        super().unfreeze(*args, **kwargs)
        return self.freeze(keys=["running_mean", "running_var"], recurse=False)

    def __call__(self, x: SparseTensor) -> SparseTensor:
        if x.num_channels != self.num_features:
            raise ShapeError(f"BatchNorm({self.num_features}) got {x.num_channels} channels")
        if self.training or not self.track_running_stats:
            mean, var, n = active_statistics(x)
            if self.training and self.track_running_stats:
                keep, unbiased = 1 - self.momentum, n / mx.maximum(n - 1, 1)
                # A batch without rows says nothing about the data.
                seen = n > 0
                self.running_mean = mx.where(
                    seen, keep * self.running_mean + self.momentum * mean, self.running_mean
                )
                self.running_var = mx.where(
                    seen, keep * self.running_var + self.momentum * var * unbiased, self.running_var
                )
        else:
            mean, var = self.running_mean, self.running_var
        scale = mx.rsqrt(var + self.eps)
        shift = -mean * scale
        if "weight" in self:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        return x.replace((live_rows(x).astype(mx.float32) * scale + shift).astype(x.dtype))

    def _extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={'weight' in self}"


def live_rows(x: SparseTensor) -> mx.array:
    """Features with padding rows as 0, whatever they hold: (capacity, C)."""
    if x._key is not None and x._key.count == x.capacity:
        return x.feats
    return zero_padding(x.feats, x.active_rows)


def active_statistics(x: SparseTensor) -> tuple[mx.array, mx.array, mx.array]:
    """float32 (mean (C,), biased variance (C,), number of rows); zeros for no rows."""
    rows = live_rows(x).astype(mx.float32)
    n = x.active_rows.astype(mx.float32)
    share = 1 / mx.maximum(n, 1)
    mean = rows.sum(axis=0) * share
    off = rows - mean
    # Padding rows hold 0, so each adds mean**2 to the sum.
    spread = off.square().sum(axis=0) - (x.capacity - n) * mean.square()
    return mean, mx.maximum(spread * share, 0), n


class ReLU(Module):
    """max(x, 0) on features."""

    def __call__(self, x: SparseTensor) -> SparseTensor:
        return x.replace(mx.maximum(x.feats, 0))


class Sequential(Module):
    """Layers called one after the other."""

    def __init__(self, *layers: Module):
        super().__init__()
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x
