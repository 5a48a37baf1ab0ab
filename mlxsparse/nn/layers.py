"""Linear, Sequential and SqueezeExcitation on sparse tensors."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn
from mlx.nn import Module

from .. import ops
from ..arithmetic import HINT
from ..coords.geometry import whole
from ..errors import DTypeError, ShapeError
from ..ops.check import check_tensor
from ..tensor import SparseTensor
from .activations import ReLU
from .norm import BatchNorm, norm_act


class Linear(Module):
    """y = x W^T + b on every active row; weight (output_dims, input_dims)."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True):
        super().__init__()
        input_dims, output_dims = whole(input_dims, "input_dims", 1), whole(output_dims, "output_dims", 1)
        scale = 1 / math.sqrt(input_dims)
        self.weight = mx.random.uniform(-scale, scale, (output_dims, input_dims))
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (output_dims,))

    def __call__(self, x: SparseTensor) -> SparseTensor:
        return ops.linear(x, self["weight"], self.get("bias"))

    def _extra_repr(self) -> str:
        return f"input_dims={self.weight.shape[1]}, output_dims={self.weight.shape[0]}, bias={'bias' in self}"


class Sequential(Module):
    """Layers called one after the other; a ReLU right after a BatchNorm in the same pass (norm_act)."""

    def __init__(self, *layers: Module):
        super().__init__()
        for layer in layers:
            if not callable(layer):
                raise DTypeError(f"Sequential takes layers, one an argument, got {type(layer).__name__}")
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        done = False
        layers = self["layers"]
        for layer, after in zip(layers, [*layers[1:], self]):
            if done:  # together with the layer before
                done = False
            elif type(layer) is BatchNorm and type(after) is ReLU:
                x, done = norm_act(layer, after, x), True
            else:
                x = _called(layer, x)
        return x


def _called(layer: Any, x: Any) -> Any:
    kind = type(layer)
    of_mlx = kind.__module__.startswith("mlx.nn.layers.") and kind is not mlx.nn.Sequential
    if not of_mlx or not isinstance(x, SparseTensor):
        return layer(x)
    try:
        return layer(x)  # which those do that give back what they got: Identity, a Dropout in evaluation
    except Exception as error:  # MLX's own names neither
        raise DTypeError(f"mlx.nn.{kind.__name__} takes no SparseTensor. {HINT}") from error


class SqueezeExcitation(Module):
    """Channels scaled by a gate that two dense layers make of their means over each batch item.

    sigmoid(expand(relu(squeeze(mean)))), with ``channels // reduction`` values in the middle (at
    least 1). An item without sites has mean 0.
    """

    def __init__(self, channels: int, reduction: int = 16):
        super().__init__()
        channels, reduction = whole(channels, "channels", 1), whole(reduction, "reduction", 1)
        middle = max(1, channels // reduction)
        self.squeeze = mlx.nn.Linear(channels, middle)
        self.expand = mlx.nn.Linear(middle, channels)

    def __call__(self, x: SparseTensor) -> SparseTensor:
        check_tensor(x)
        wanted = self.squeeze.weight.shape[1]
        if x.num_channels != wanted:
            raise ShapeError(f"SqueezeExcitation({wanted}) got a tensor of {x.num_channels} channels")
        gate = mx.sigmoid(self.expand(mx.maximum(self.squeeze(ops.global_avg_pool(x)), 0)))
        return ops.broadcast_mul(x, gate.astype(x.dtype))
