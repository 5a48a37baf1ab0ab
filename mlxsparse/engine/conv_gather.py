"""Convolution by MLX's own operations: rows gathered for all taps, one matrix product over taps and channels.

No order and no kernel of ours: good for sets that are small or meet most of their taps, and where the matrix
units of a GPU are reached by MLX alone. Memory is bounded by pieces of rows.
"""

from __future__ import annotations

import mlx.core as mx

from ..backend.autodiff import Gradient, differentiable
from ..backend.library import blocks, filled
from .device_map import DeviceMap
from .tables import column_sums

PIECE_BYTES = 1 << 28  # of gathered rows


def convolve(x: mx.array, weight: mx.array, bias: mx.array | None, pairs: DeviceMap) -> mx.array:
    """As gather_gemm.convolve, groups = 1."""
    dtype, count = x.dtype, pairs.num_out

    def forward(x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        taps = w.astype(dtype).reshape(w.shape[0], -1).T
        y = _product(x, pairs.output.table, taps)
        if not b:
            return y
        live = mx.arange(y.shape[0])[:, None] < count
        return mx.where(live, y.astype(mx.float32) + b[0].astype(mx.float32), 0).astype(dtype)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        back = w.astype(dtype).transpose(1, 0, 2).reshape(-1, w.shape[2])
        return _product(ct, pairs.input.table, back)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        table = pairs.output.table
        total = mx.zeros((w.shape[0], w.shape[1] * w.shape[2]), mx.float32)
        for rows in _pieces(table, x):
            part = ct[rows].T @ _gathered(x, table[:, rows])
            total = total + part.astype(mx.float32)
        return total.reshape(w.shape).astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return column_sums(ct, count).astype(b.dtype)

    gradients: tuple[Gradient, ...] = (input_gradient, weight_gradient)
    if bias is None:
        return differentiable("convolution", forward, gradients, x, weight)
    return differentiable("convolution", forward, (*gradients, bias_gradient), x, weight, bias)


def _pieces(table: mx.array, x: mx.array) -> list[slice]:
    taps, rows = table.shape
    if x.size == 0:  # MLX takes nothing from no rows
        return []
    step = max(1, PIECE_BYTES // max(1, taps * x.shape[1] * x.dtype.size))
    return [slice(i * step, min((i + 1) * step, rows)) for i in range(blocks(rows, step))]


def _gathered(x: mx.array, table: mx.array) -> mx.array:
    """(rows, T * C): x of each tap, 0 where there is no pair."""
    there = (table >= 0).T[:, :, None]
    found = x[mx.maximum(table, 0).T]
    return mx.where(there, found, mx.zeros((), x.dtype)).reshape(table.shape[1], -1)


def _product(x: mx.array, table: mx.array, taps: mx.array) -> mx.array:
    """(M, outs) from x (N, C), table (T, M) and taps (T * C, outs)."""
    shape = table.shape[1], taps.shape[1]
    if x.size == 0 or 0 in shape or table.shape[0] == 0:
        return filled(shape, 0, x.dtype)
    parts = [_gathered(x, table[:, rows]) @ taps for rows in _pieces(table, x)]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)
