"""mlx.nn's pointwise and per-row layers on the active rows of sparse tensors, under MLX's names.

Arguments and parameters are MLX's own. A layer with f(0) != 0 leaves padding rows at 0, and a half
type stays one whatever the type of a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn
from mlx.nn import Identity, Module

from ..backend.features import zero_padding
from ..engine import activation, pointwise
from ..errors import ShapeError
from ..ops.check import check_tensor
from ..tensor import SparseTensor

__all__ = ["Identity"]  # takes anything as it is


def live_rows(x: SparseTensor) -> mx.array:
    """Features with padding rows as 0, whatever they hold: (capacity, C)."""
    return x.feats if x.clean else zero_padding(x.feats, x.active_rows)


def _gelu(layer: Any, x: mx.array) -> mx.array:
    if layer._approx == "fast":
        return mlx.nn.gelu_fast_approx(x)
    return (activation.gelu if layer._approx == "none" else activation.gelu_approx)(x, len(x))


def _log_softmax(_: Any, x: mx.array) -> mx.array:
    """MLX 0.32 writes past the memory of its own where there is one channel; then it is log 1."""
    return x - x if x.shape[1] == 1 else mlx.nn.log_softmax(x)


def _on_rows(
    layer: Any, *, zero: bool = False, function: Callable[[Any, mx.array], mx.array] | None = None
) -> Any:
    """The module class `layer` of mlx.nn as one that maps a SparseTensor's features.

    zero: f(0) = 0. function: of the layer and features, in place of the layer's own call.
    """
    of_rows: Callable[[Any, mx.array], mx.array] = layer.__call__ if function is None else function

    def call(self: Module, x: SparseTensor) -> SparseTensor:
        check_tensor(x)
        if layer is mlx.nn.GLU and x.num_channels % 2:
            raise ShapeError(f"GLU halves the channels: got {x.num_channels}, an odd number")
        if layer is mlx.nn.PReLU and self["weight"].size not in (1, x.num_channels):
            raise ShapeError(
                f"PReLU({self['weight'].size}) got {x.num_channels} channels; it takes as many slopes, or one"
            )
        live = live_rows(x)
        if layer is mlx.nn.ReLU and pointwise.direct(live):
            return x.replace(pointwise.activated(live), clean=True)
        # Many are compiled by MLX, whose CUDA build divides by the number of rows of what it compiled.
        rows = of_rows(self, live if len(live) else mx.zeros((1, x.num_channels), x.dtype))
        rows = rows if len(live) else rows[:0]
        return x.replace(rows.astype(x.dtype), clean=zero)

    text = f"mlx.nn.{layer.__name__} on the features of a sparse tensor; same arguments."
    return type(layer.__name__, (layer,), {"__call__": call, "__doc__": text, "__module__": __name__})


CELU = _on_rows(mlx.nn.CELU)
Dropout = _on_rows(mlx.nn.Dropout)  # elementwise; nothing in evaluation
ELU = _on_rows(mlx.nn.ELU, zero=True, function=lambda layer, x: activation.elu(x, len(x), layer._alpha))
GELU = _on_rows(mlx.nn.GELU, zero=True, function=_gelu)
GLU = _on_rows(mlx.nn.GLU)  # halves the channels
HardShrink = _on_rows(mlx.nn.HardShrink)
HardTanh = _on_rows(mlx.nn.HardTanh)
Hardswish = _on_rows(mlx.nn.Hardswish)
LeakyReLU = _on_rows(mlx.nn.LeakyReLU, zero=True)
LogSigmoid = _on_rows(mlx.nn.LogSigmoid)
LogSoftmax = _on_rows(mlx.nn.LogSoftmax, function=_log_softmax)  # over the channels, as Softmax and Softmin
Mish = _on_rows(mlx.nn.Mish)
PReLU = _on_rows(mlx.nn.PReLU)
ReLU = _on_rows(mlx.nn.ReLU, zero=True)
ReLU2 = _on_rows(mlx.nn.ReLU2, zero=True)
ReLU6 = _on_rows(mlx.nn.ReLU6, zero=True)
SELU = _on_rows(mlx.nn.SELU, function=lambda _, x: activation.elu_graph(x, 1.67326) * 1.0507)
SiLU = _on_rows(mlx.nn.SiLU, zero=True, function=lambda _, x: activation.silu(x, len(x)))
Sigmoid = _on_rows(mlx.nn.Sigmoid)
Softmax = _on_rows(mlx.nn.Softmax)
Softmin = _on_rows(mlx.nn.Softmin)
Softplus = _on_rows(mlx.nn.Softplus)
Softshrink = _on_rows(mlx.nn.Softshrink)
Softsign = _on_rows(mlx.nn.Softsign)
Step = _on_rows(mlx.nn.Step)
Tanh = _on_rows(mlx.nn.Tanh, zero=True)
