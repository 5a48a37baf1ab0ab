"""Pooling and batch items by kernels: pooling.py and broadcast.py on a GPU."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import kernel_rows
from ..backend.autodiff import differentiable
from ..backend.library import filled
from .neighbors import TapPairs
from .tables import by_row, floats, item_of_rows, neighbour_tables, rows_of_ranks, span_sums


def sum_pool(x: mx.array, pairs: TapPairs, rows: int, scale: np.ndarray | None = None) -> mx.array:
    """As pooling.sum_pool."""
    nbr, back = neighbour_tables(pairs, x.shape[0], rows)
    after = None if scale is None else by_row(scale, pairs.out_order, rows)

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.gather_sum(x, nbr, after=after)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return kernel_rows.gather_sum(ct, back, before=after)

    return differentiable("sum pooling", forward, (gradient,), x)


def max_pool(x: mx.array, pairs: TapPairs, rows: int) -> mx.array:
    """As pooling.max_pool."""
    nbr, back = neighbour_tables(pairs, x.shape[0], rows)

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.max_pool(x, nbr)[0]

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return kernel_rows.max_pool_grad(ct, kernel_rows.max_pool(x, nbr)[1], back)

    return differentiable("max pooling", forward, (gradient,), x)


def batch_reduce(x: mx.array, order: np.ndarray | None, counts: np.ndarray, mode: str) -> mx.array:
    """As pooling.batch_reduce, with float32 sums of 256 rows, then of these."""
    dtype, size = x.dtype, x.shape[0]
    rows = rows_of_ranks(order, int(counts.sum()))
    item = item_of_rows(order, counts, size)
    share = floats(1 / np.maximum(counts, 1)) if mode == "mean" else None

    def reduced(x: mx.array) -> tuple[mx.array, mx.array]:
        if x.size == 0 or rows.size == 0:
            shape = (len(counts), x.shape[1])
            return filled(shape, 0, mx.float32), filled(shape, -1, mx.int32)
        return kernel_rows.batch_reduce(x, rows, counts, mode)

    def forward(x: mx.array) -> mx.array:
        return reduced(x)[0].astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        if mode == "max":
            return kernel_rows.winner_grad(ct, reduced(x)[1], item)
        return kernel_rows.gather_sum(ct, item[None], before=share)

    return differentiable(f"global {mode} pooling", forward, (gradient,), x)


def repeat_items(g: mx.array, order: np.ndarray | None, counts: np.ndarray, size: int) -> mx.array:
    """As broadcast.repeat_items."""
    dtype = g.dtype
    rows = rows_of_ranks(order, int(counts.sum()))
    item = item_of_rows(order, counts, size)

    def forward(g: mx.array) -> mx.array:
        return kernel_rows.gather_sum(g, item[None])

    def gradient(ct: mx.array, g: mx.array) -> mx.array:
        return span_sums(ct, rows, counts).astype(dtype)

    return differentiable("broadcast over batch items", forward, (gradient,), g)
