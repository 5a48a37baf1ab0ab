"""Batch normalisation folded into the layer before it, for evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn
from mlx.nn import Identity, Module

from ..backend.untrained import may_train
from ..errors import MLXSparseError, ShapeError
from ..tensor import SparseTensor, sequence_like
from .conv import NormalizedConv3d, _Conv
from .layers import Linear, Sequential
from .masked import SUFFIX, effective, plainly_called
from .norm import BatchNorm


def fold_batch_norm(conv: Module, norm: BatchNorm) -> Module:
    """A copy of a convolution or Linear layer that does ``norm(conv(x))`` as it is in evaluation.

    weight * s and (bias - running_mean) * s + norm.bias with s = norm.weight / sqrt(running_var +
    eps), computed in float32 and rounded to the layer's type. MLXSparseError for another layer or a
    norm without running statistics, ShapeError if the channels differ.
    """
    if not _folds(conv, norm):
        raise MLXSparseError(
            f"fold_batch_norm takes a convolution or Linear layer and a BatchNorm with running statistics, "
            f"got {type(conv).__name__} and {type(norm).__name__}"
        )
    weight = effective(conv, "weight")
    if weight.shape[0] != norm.num_features:
        raise ShapeError(
            f"the layer makes {weight.shape[0]} channels, the BatchNorm takes {norm.num_features}"
        )
    scale = mx.rsqrt(norm.running_var.astype(mx.float32) + norm.eps)
    shift = -norm.running_mean * scale
    if "weight" in norm:
        gain = effective(norm, "weight")
        scale, shift = scale * gain, shift * gain + effective(norm, "bias")
    if "bias" in conv:
        shift = effective(conv, "bias") * scale + shift
    folded = _copy(conv)
    if "bias" + SUFFIX in conv:  # what was pruned has a shift now
        del folded["bias" + SUFFIX]
        may_train(folded, "bias" + SUFFIX)
    folded["weight"] = (weight * scale.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype)
    folded["bias"] = shift.astype(weight.dtype)
    return folded


def fold_batch_norms(model: Module, pairs: Sequence[tuple[str, str]] = (("conv", "norm"),)) -> Module:
    """A copy of `model` in which every BatchNorm right after its convolution is folded into it.

    Found are neighbours in a Sequential, and in any module the children named in `pairs`, (layer,
    norm), of which the module must call the norm on the layer's result and nothing else; the default
    fits models.MinkUNet. An Identity takes the norm's place. The copy is in evaluation mode; `model`
    is not changed.
    """
    return _fold(model, tuple(pairs)).eval()


def _folds(layer: Any, norm: Any) -> bool:
    return (
        isinstance(layer, (_Conv, Linear))
        and plainly_called(layer)
        and not isinstance(layer, NormalizedConv3d)  # its size, too, is made of the weight
        and isinstance(norm, BatchNorm)
        and plainly_called(norm)
        and norm.track_running_stats
    )


def _fold(value: Any, pairs: tuple[tuple[str, str], ...]) -> Any:
    if isinstance(value, Module):
        folded = _copy(value)
        for name, child in value.items():
            folded[name] = _fold(child, pairs)
        for layer, norm in pairs:
            if _folds(value.get(layer), value.get(norm)):
                folded[layer], folded[norm] = fold_batch_norm(value[layer], value[norm]), Identity()
        if isinstance(value, (Sequential, mlx.nn.Sequential)):
            layers = value.layers
            for i, (layer, norm) in enumerate(zip(layers, layers[1:])):
                if _folds(layer, norm):
                    folded.layers[i], folded.layers[i + 1] = fold_batch_norm(layer, norm), Identity()
        return folded
    if isinstance(value, dict):
        return {name: _fold(child, pairs) for name, child in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, SparseTensor):
        return sequence_like(value, [_fold(child, pairs) for child in value])
    return value


def _copy(module: Module) -> Module:
    copied = copy.copy(module)
    copied._no_grad = copy.copy(module._no_grad)
    return copied
