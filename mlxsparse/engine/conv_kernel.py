"""Convolution and linear maps by kernels: gather_gemm.py and dense.py on a GPU."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import kernel_conv
from ..backend.autodiff import Gradient, differentiable
from .neighbors import TapPairs
from .tables import column_sums, integers, neighbour_tables


def convolve(
    x: mx.array, weight: mx.array, bias: mx.array | None, pairs: TapPairs, rows: int, groups: int
) -> mx.array:
    """As gather_gemm.convolve. The weight is used in x's dtype, as x is."""
    nbr, back = neighbour_tables(pairs, x.shape[0], rows)
    return _product("convolution", x, weight, bias, nbr, back, pairs.num_out, groups)


def linear(x: mx.array, weight: mx.array, bias: mx.array | None, count: int) -> mx.array:
    """As dense.linear: a convolution with one tap, from each active row to itself.

    MLX's own product multiplies float32 in TF32 on CUDA, which is a thousand times less exact.
    """
    rows = np.arange(x.shape[0])
    rows[count:] = -1
    itself = integers(rows[None])
    y = _product("linear", x, weight[:, None, :], bias, itself, itself, count, 1)
    return y


def _product(
    name: str,
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    nbr: mx.array,
    back: mx.array,
    count: int,
    groups: int,
) -> mx.array:
    dtype = x.dtype

    def forward(x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        return kernel_conv.conv_forward(
            x, w.astype(dtype), nbr, b[0] if b else None, groups=groups, active=count
        )

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        return kernel_conv.conv_input_grad(ct, w.astype(dtype), back, groups=groups)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        return kernel_conv.conv_weight_grad(ct, x, nbr, groups=groups).astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return column_sums(ct, count).astype(b.dtype)

    gradients: tuple[Gradient, ...] = (input_gradient, weight_gradient)
    if bias is None:
        return differentiable(name, forward, gradients, x, weight)
    return differentiable(name, forward, (*gradients, bias_gradient), x, weight, bias)
