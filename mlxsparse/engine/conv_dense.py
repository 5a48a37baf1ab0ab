"""Convolution by MLX's own on a dense grid: for sets that fill most of their bounds, or are tiny.

Nothing is looked up but the cell of each row: no kernel map is made. What is not there is 0, and is
multiplied, so that a weight that is infinite or NaN makes every output NaN.
"""

from __future__ import annotations

import math

import mlx.core as mx

from .dense_grid import Grid, shape_of
from .rows_kernel import put_distinct, take_distinct


def convolve(
    x: mx.array, weight: mx.array, bias: mx.array | None, grid: Grid, count: int | mx.array
) -> mx.array:
    """As gather_gemm.convolve, groups = 1: x (N, Ci), weight (Co, Kx, Ky, Kz, Ci) or (Co, T, Ci) -> (M, Co).

    count: active output rows, to which the bias is added, in float32.
    """
    dtype, inside, outside = x.dtype, shape_of(grid.reach), shape_of(grid.extent)
    taps = weight.astype(dtype).reshape(weight.shape[0], *grid.size, weight.shape[-1])
    if math.prod(inside):
        spread = put_distinct(x, grid.input_cells, math.prod(inside), 0).reshape(*inside, x.shape[1])
        made = mx.conv_general(spread, taps, stride=grid.stride, kernel_dilation=grid.dilation)
    else:
        made = mx.zeros((*outside, taps.shape[0]), dtype)
    y = take_distinct(made.reshape(-1, taps.shape[0]), grid.output_cells)
    if bias is None:
        return y
    live = mx.arange(y.shape[0])[:, None] < count
    return mx.where(live, y.astype(mx.float32) + bias.astype(mx.float32), 0).astype(dtype)
