"""Batch normalisation in evaluation with what follows it, in one pass over the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
from mlx.nn import Module

from ..backend.library import fused
from ..errors import ShapeError
from ..ops.check import check_tensor
from ..tensor import SparseTensor, require_same_key
from .activations import ReLU
from .norm import BatchNorm


def norm_act(
    norm: Module, act: Module, x: SparseTensor, shortcut: SparseTensor | None = None
) -> SparseTensor:
    """``act(norm(x))``, or ``act(norm(x) + shortcut)``: the same bits, with less memory read and written
    where `norm` is a BatchNorm that uses its running statistics and `act` a ReLU.
    """
    if type(norm) is not BatchNorm or type(act) is not ReLU or norm.training or not norm.track_running_stats:
        y = norm(x)
        return act(y if shortcut is None else y + shortcut)
    check_tensor(x)
    if x.num_channels != norm.num_features:
        raise ShapeError(f"BatchNorm({norm.num_features}) got {x.num_channels} channels")
    feats, parts = x.feats, []
    if shortcut is not None:
        check_tensor(shortcut, "shortcut")
        require_same_key(x, shortcut, "norm_act")
        if shortcut.feats.shape != feats.shape or shortcut.dtype != feats.dtype:
            return act(norm(x) + shortcut)
        parts.append(shortcut.feats)
    key = x.key
    if not key.full:
        parts.append(key.live)
    weight, bias = norm.get("weight"), norm.get("bias")
    if weight is None:
        weight, bias = _ones(norm.num_features), _zeros(norm.num_features)
    run = _pass(shortcut is not None, not key.full)
    y = run(feats, norm["running_mean"], norm["running_var"], _scalar(norm.eps), weight, bias, *parts)
    made = x.replace(y, clean=True)
    return made if shortcut is None else made.noting(shortcut)


@functools.cache
def _pass(added: bool, masked: bool) -> Callable[..., mx.array]:
    """x, running statistics, eps, weight, bias; then what is added, and which rows are live."""

    def run(
        x: mx.array, mean: mx.array, var: mx.array, eps: mx.array, w: mx.array, b: mx.array, *parts: mx.array
    ) -> mx.array:
        scale = mx.rsqrt(var + eps)
        shift = -mean * scale
        y = (x.astype(mx.float32) * (scale * w) + (shift * w + b)).astype(x.dtype)
        y = mx.maximum(y + parts[0] if added else y, 0)  # rounded in between, as two layers do
        return mx.where(parts[-1], y, 0) if masked else y

    return fused(run)


@functools.lru_cache(maxsize=64)
def _scalar(value: float) -> mx.array:
    return mx.array(value)


@functools.lru_cache(maxsize=64)
def _ones(size: int) -> mx.array:
    return mx.ones((size,))


@functools.lru_cache(maxsize=64)
def _zeros(size: int) -> mx.array:
    return mx.zeros((size,))
