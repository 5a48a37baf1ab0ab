"""Pooling and batch items by kernels: pooling.py and broadcast.py on a GPU."""

from __future__ import annotations

from typing import TypeAlias

import mlx.core as mx
import numpy as np

from ..backend import kernel_items, kernel_rows
from ..backend.autodiff import differentiable
from ..backend.library import filled
from .device_map import DeviceMap
from .neighbors import TapPairs, Windows
from .tables import by_row, device_map, floats, item_of_rows, rows_of_ranks, span_sums

Relation: TypeAlias = "TapPairs | Windows | DeviceMap"


def sum_pool(
    x: mx.array, relation: Relation, rows: int, scale: np.ndarray | mx.array | None = None
) -> mx.array:
    """As pooling.sum_pool; a device map's scale is an array by row."""
    pairs = device_map(relation, x.shape[0], rows)
    after = scale if scale is None or isinstance(scale, mx.array) else by_row(scale, _order(relation), rows)

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.gather_sum(x, pairs.output.table, after=after)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return kernel_rows.gather_sum(ct, pairs.input.table, before=after)

    return differentiable("sum pooling", forward, (gradient,), x)


def _order(relation: Relation) -> np.ndarray | None:
    """Row of each output rank of a host relation."""
    assert not isinstance(relation, DeviceMap)
    return relation.query.order if isinstance(relation, Windows) else relation.out_order


def max_pool(x: mx.array, relation: Relation, rows: int) -> mx.array:
    """As pooling.max_pool."""
    pairs = device_map(relation, x.shape[0], rows)

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.max_pool(x, pairs.output.table, winner=False)[0]

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        winner = kernel_rows.max_pool(x, pairs.output.table)[1]
        return kernel_rows.max_pool_grad(ct, winner, pairs.input.table)

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


def reduce_items(x: mx.array, items: kernel_rows.Segments, mode: str) -> mx.array:
    """As batch_reduce, of rows that the device alone counts."""
    dtype = x.dtype

    def forward(x: mx.array) -> mx.array:
        return kernel_items.reduce_items(x, items, mode)[0].astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        if mode == "max":
            return kernel_rows.winner_grad(ct, kernel_items.reduce_items(x, items, mode)[1], items.group)
        share = 1 / mx.maximum(items.counts, 1).astype(mx.float32) if mode == "mean" else None
        return kernel_rows.gather_sum(ct, items.group[None], before=share)

    return differentiable(f"global {mode} pooling", forward, (gradient,), x)


def spread_items(g: mx.array, items: kernel_rows.Segments) -> mx.array:
    """As repeat_items, to rows that the device alone counts."""
    dtype = g.dtype

    def gradient(ct: mx.array, g: mx.array) -> mx.array:
        return kernel_items.reduce_items(ct, items, "sum")[0].astype(dtype)

    return differentiable(
        "broadcast over batch items", lambda g: kernel_rows.gather_sum(g, items.group[None]), (gradient,), g
    )


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
