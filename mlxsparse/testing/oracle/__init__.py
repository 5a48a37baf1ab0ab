"""The oracle: sparse operators in NumPy and dictionaries, float64, obviously right rather than fast.

One frozen relation, per axis, with lattice coordinates of the operator's own input and output:

    convolution, pooling      in  = o * s - p + k * d
    transposed convolution    o   = in * s - p + k * d
    submanifold convolution   s = 1, outputs are the inputs, and p = ((K - 1) // 2) * d unless given

`k` runs over the kernel, 0 <= k < K on each axis. Tap t = (kx * Ky + ky) * Kz + kz. A weight has shape
(Co, Kx, Ky, Kz, Ci / groups), output channel co reads the input channels of group co // (Co / groups), and
tap k of the weight meets input `in` as written above: a cross-correlation, nothing is flipped.

Coordinates are (N, 4) integers (batch, x, y, z), features are (N, C). Supports that are made (touched,
parents, generative) are sorted by (batch, x, y, z). An output row that no active input reaches is the bias
after a convolution and 0 after a pooling. Nothing here knows how the library computes, so that the two can
disagree.
"""

from __future__ import annotations

from mlxsparse.testing.oracle.attention import grouped_attention, patch_allowed, window_groups
from mlxsparse.testing.oracle.batch import broadcast, collate, decollate, item_sums
from mlxsparse.testing.oracle.blocks import (
    attention,
    block_matmul,
    block_matmul_gradients,
    block_pack,
    block_unpack,
    element_mask,
    masked_softmax,
)
from mlxsparse.testing.oracle.conv import (
    conv3d,
    conv_gradients,
    conv_transpose3d,
    conv_transpose_gradients,
    dense_conv3d,
    generative_conv_transpose3d,
    subm_conv3d,
)
from mlxsparse.testing.oracle.curves import curve_rows, hilbert_index, morton_index
from mlxsparse.testing.oracle.masks import allowed_of_pairs, positions_of, tile_pairs, voxel_mask
from mlxsparse.testing.oracle.norm import group_norm, layer_norm, normalized_conv3d, rms_norm
from mlxsparse.testing.oracle.pool import (
    avg_pool3d,
    avg_pool3d_gradient,
    batch_norm,
    global_avg_pool,
    global_max_pool,
    global_sum_pool,
    max_pool3d,
    max_pool3d_gradient,
    sum_pool3d,
    sum_pool3d_gradient,
)
from mlxsparse.testing.oracle.relation import (
    Pair,
    conv_pairs,
    conv_transpose_pairs,
    generative_support,
    parent_support,
    subm_padding,
    taps,
    touched_support,
)
from mlxsparse.testing.oracle.search import neighbours
from mlxsparse.testing.oracle.select import (
    collect,
    crop_rows,
    intersection,
    join,
    lookup,
    mode,
    topk_rows,
    union,
)
from mlxsparse.testing.oracle.sets import add, cat, coalesce, dense, from_dense
from mlxsparse.testing.oracle.upsample import (
    pool_transpose3d,
    trilinear_weights,
    upsample_nearest,
    upsample_trilinear,
)
from mlxsparse.testing.oracle.voxel import devoxelize_nearest, devoxelize_trilinear, voxelize

__all__ = [
    "Pair",
    "add",
    "allowed_of_pairs",
    "attention",
    "avg_pool3d",
    "avg_pool3d_gradient",
    "batch_norm",
    "block_matmul",
    "block_matmul_gradients",
    "block_pack",
    "block_unpack",
    "broadcast",
    "cat",
    "coalesce",
    "collate",
    "collect",
    "conv3d",
    "conv_gradients",
    "conv_pairs",
    "conv_transpose3d",
    "conv_transpose_gradients",
    "conv_transpose_pairs",
    "crop_rows",
    "curve_rows",
    "decollate",
    "dense",
    "dense_conv3d",
    "devoxelize_nearest",
    "devoxelize_trilinear",
    "element_mask",
    "from_dense",
    "generative_conv_transpose3d",
    "generative_support",
    "global_avg_pool",
    "global_max_pool",
    "global_sum_pool",
    "group_norm",
    "grouped_attention",
    "hilbert_index",
    "intersection",
    "item_sums",
    "join",
    "layer_norm",
    "lookup",
    "masked_softmax",
    "max_pool3d",
    "max_pool3d_gradient",
    "mode",
    "morton_index",
    "neighbours",
    "normalized_conv3d",
    "parent_support",
    "patch_allowed",
    "pool_transpose3d",
    "positions_of",
    "rms_norm",
    "subm_conv3d",
    "subm_padding",
    "sum_pool3d",
    "sum_pool3d_gradient",
    "taps",
    "tile_pairs",
    "topk_rows",
    "touched_support",
    "trilinear_weights",
    "union",
    "upsample_nearest",
    "upsample_trilinear",
    "voxel_mask",
    "voxelize",
    "window_groups",
]
