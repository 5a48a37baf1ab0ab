"""Convolution and linear maps by kernels: gather_gemm.py and dense.py on a GPU."""

from __future__ import annotations

import mlx.core as mx

from ..backend import kernel_conv, kernel_tiles
from ..backend.autodiff import Gradient, differentiable
from ..backend.library import numbers, on_cuda
from ..backend.tuning import PATHS, Case, choose
from . import conv_gather
from .device_map import DeviceMap, Side, submanifold
from .neighbors import TapPairs
from .tables import column_sums, device_map


def convolve(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    relation: TapPairs | DeviceMap,
    rows: int,
    groups: int,
) -> mx.array:
    """As gather_gemm.convolve. The weight is used in x's dtype, as x is."""
    return _product("convolution", x, weight, bias, device_map(relation, x.shape[0], rows), groups)


def linear(x: mx.array, weight: mx.array, bias: mx.array | None, count: int | mx.array) -> mx.array:
    """As dense.linear: a convolution with one tap, from each active row to itself.

    MLX's own product multiplies float32 in TF32 on CUDA, which is a thousand times less exact.
    """
    size = x.shape[0]

    def itself() -> mx.array:
        rows = numbers(size)
        return mx.where(rows < count, rows, mx.array(-1, mx.int32))[None]

    return _product("linear", x, weight[:, None, :], bias, submanifold(itself, size, count, (1,)), 1)


def _path(name: str, x: mx.array, weight: mx.array, pairs: DeviceMap, groups: int) -> str:
    if groups > 1:
        possible: tuple[str, ...] = ("rows",)
    elif x.dtype == mx.float32 and on_cuda() and kernel_conv.fp32_mode(x.dtype) != 0:
        possible = ("tiles", "rows")  # MLX multiplies in TF32
    else:
        possible = PATHS
    if name != "convolution":
        return possible[0]
    channels_out, taps, channels_in = weight.shape
    dtype = str(x.dtype).removeprefix("mlx.core.")
    return choose(Case(dtype, pairs.rows_out, taps, channels_in * groups, channels_out), possible)


def _product(
    name: str, x: mx.array, weight: mx.array, bias: mx.array | None, pairs: DeviceMap, groups: int
) -> mx.array:
    """By one of the paths of backend/tuning.py."""
    dtype, count = x.dtype, pairs.num_out
    path = _path(name, x, weight, pairs, groups)
    if path == "gather":
        return conv_gather.convolve(x, weight, bias, pairs)
    tiled = path == "tiles"

    def forward(x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        start, w = b[0] if b else None, w.astype(dtype)
        active = count if b else None  # without a bias, rows without a pair are 0 as they are
        if tiled:
            return kernel_tiles.forward(x, w, pairs.output.tiles, start, active=active)
        return kernel_conv.conv_forward(x, w, pairs.output.table, start, groups=groups, active=active)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        w = w.astype(dtype)
        if not tiled:
            return kernel_conv.conv_input_grad(ct, w, pairs.input.table, groups=groups)
        side: Side = pairs.output if pairs.symmetric else pairs.input
        return kernel_tiles.input_grad(ct, w, side.tiles, flip=pairs.symmetric)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        if tiled:
            return kernel_tiles.weight_grad(ct, x, pairs.output.tiles).astype(w.dtype)
        return kernel_conv.conv_weight_grad(ct, x, pairs.output.table, groups=groups).astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return column_sums(ct, count).astype(b.dtype)

    gradients: tuple[Gradient, ...] = (input_gradient, weight_gradient)
    if bias is None:
        return differentiable(name, forward, gradients, x, weight)
    return differentiable(name, forward, (*gradients, bias_gradient), x, weight, bias)
