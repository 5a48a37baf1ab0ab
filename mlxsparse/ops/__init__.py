"""Operators on sparse tensors: SparseTensor in, SparseTensor or array out."""

from __future__ import annotations

from .algebra import add, cat, maximum, mul, sub
from .attention import batch_attention, rope3d, serialized_attention, varlen_attention, window_attention
from .batch import broadcast_add, broadcast_mul, collate, decollate
from .collect import collect
from .conv import Taps, conv3d, conv_transpose3d, coverage, generative_conv_transpose3d, subm_conv3d
from .dense import dense, from_dense
from .linear import linear
from .normalized import normalized_conv3d
from .pool import avg_pool3d, global_avg_pool, global_max_pool, global_sum_pool, max_pool3d, sum_pool3d
from .search import knn, radius
from .select import crop, intersection, lookup, prune, topk, union
from .sort import serialize, sort
from .upsample import pool_transpose3d, subdivide, upsample_nearest, upsample_trilinear
from .voxel import Voxels, coalesce, voxelize

__all__ = [
    "Taps",
    "Voxels",
    "add",
    "avg_pool3d",
    "batch_attention",
    "broadcast_add",
    "broadcast_mul",
    "cat",
    "coalesce",
    "collate",
    "collect",
    "conv3d",
    "conv_transpose3d",
    "coverage",
    "crop",
    "decollate",
    "dense",
    "from_dense",
    "generative_conv_transpose3d",
    "global_avg_pool",
    "global_max_pool",
    "global_sum_pool",
    "intersection",
    "knn",
    "linear",
    "lookup",
    "max_pool3d",
    "maximum",
    "mul",
    "normalized_conv3d",
    "pool_transpose3d",
    "prune",
    "radius",
    "rope3d",
    "serialize",
    "serialized_attention",
    "sort",
    "sub",
    "subdivide",
    "subm_conv3d",
    "sum_pool3d",
    "topk",
    "union",
    "upsample_nearest",
    "upsample_trilinear",
    "varlen_attention",
    "voxelize",
    "window_attention",
]
