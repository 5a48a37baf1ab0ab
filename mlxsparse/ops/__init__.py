"""Operators on sparse tensors: SparseTensor in, SparseTensor or array out."""

from __future__ import annotations

from .algebra import add, cat, maximum, mul, sub
from .conv import conv3d, conv_transpose3d, coverage, generative_conv_transpose3d, subm_conv3d
from .dense import dense, from_dense
from .linear import linear
from .pool import avg_pool3d, global_avg_pool, global_max_pool, global_sum_pool, max_pool3d, sum_pool3d
from .voxel import Voxels, coalesce, voxelize

__all__ = [
    "Voxels",
    "add",
    "avg_pool3d",
    "cat",
    "coalesce",
    "conv3d",
    "conv_transpose3d",
    "coverage",
    "dense",
    "from_dense",
    "generative_conv_transpose3d",
    "global_avg_pool",
    "global_max_pool",
    "global_sum_pool",
    "linear",
    "max_pool3d",
    "maximum",
    "mul",
    "sub",
    "subm_conv3d",
    "sum_pool3d",
    "voxelize",
]
