"""Convolution by MLX's own on a dense grid: for sets that fill most of their bounds, or are tiny.

Nothing is looked up but the cell of each row: no kernel map is made. What is not there is 0, and is
multiplied, so that a weight that is infinite or NaN makes every output NaN.
"""

from __future__ import annotations

import mlx.core as mx

from .conv_gather import biased
from .device_map import DeviceMap


def _spread(x: mx.array, rows: mx.array, shape: tuple[int, ...]) -> mx.array:
    """x (N, C) on a grid of `shape`, 0 where there is no row."""
    if x.shape[0] == 0:
        return mx.zeros((*shape, x.shape[1]), x.dtype)
    there = mx.where((rows >= 0)[:, None], x[mx.maximum(rows, 0)], mx.zeros((), x.dtype))
    return there.reshape(*shape, x.shape[1])


def _taken(grid: mx.array, cells: mx.array) -> mx.array:
    """(N, C) rows of a grid, 0 where there is no cell."""
    if grid.size == 0 or cells.size == 0:
        return mx.zeros((cells.size, grid.shape[-1]), grid.dtype)
    flat = grid.reshape(-1, grid.shape[-1])
    there = (cells < flat.shape[0])[:, None]
    return mx.where(there, flat[mx.minimum(cells, flat.shape[0] - 1)], mx.zeros((), grid.dtype))


def convolve(x: mx.array, weight: mx.array, bias: mx.array | None, pairs: DeviceMap) -> mx.array:
    """As gather_gemm.convolve, groups = 1, by the map's grid."""
    dtype, grid = x.dtype, pairs.grid
    assert grid is not None
    inside, outside = (grid.items, *grid.reach), (grid.items, *grid.span)

    def on_grid(x: mx.array, w: mx.array) -> mx.array:
        if x.size == 0:
            return mx.zeros((*outside, w.shape[0]), dtype)
        return mx.conv_general(x, w, stride=grid.stride, kernel_dilation=grid.dilation)

    def taps(w: mx.array) -> mx.array:
        return w.astype(dtype).reshape(w.shape[0], *grid.size, w.shape[-1])

    def product(x: mx.array, w: mx.array) -> mx.array:
        return _taken(on_grid(_spread(x, grid.input_rows, inside), taps(w)), grid.output_cells)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        zeros, spread = mx.zeros((*inside, x.shape[1]), dtype), _spread(ct, grid.output_rows, outside)
        return _taken(mx.vjp(lambda a: on_grid(a, taps(w)), [zeros], [spread])[1][0], grid.input_cells)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        there, spread = _spread(x, grid.input_rows, inside), _spread(ct, grid.output_rows, outside)
        found = mx.vjp(lambda v: on_grid(there, v), [mx.zeros_like(taps(w))], [spread])[1][0]
        return found.reshape(w.shape).astype(w.dtype)

    return biased(product, (input_gradient, weight_gradient), x, weight, bias, pairs.num_out)
