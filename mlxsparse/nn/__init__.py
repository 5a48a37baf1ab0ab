"""Modules over mlxsparse.ops: SparseTensor in, SparseTensor (or array) out."""

from __future__ import annotations

from .conv import Conv3d, ConvTranspose3d, GenerativeConvTranspose3d, SubmConv3d
from .layers import BatchNorm, Linear, ReLU, Sequential
from .pool import AvgPool3d, GlobalAvgPool, GlobalMaxPool, GlobalSumPool, MaxPool3d, SumPool3d

__all__ = [
    "AvgPool3d",
    "BatchNorm",
    "Conv3d",
    "ConvTranspose3d",
    "GenerativeConvTranspose3d",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "GlobalSumPool",
    "Linear",
    "MaxPool3d",
    "ReLU",
    "Sequential",
    "SubmConv3d",
    "SumPool3d",
]
