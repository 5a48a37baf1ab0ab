"""What kernels read of the host's indexes: neighbour tables, segments and row numbers, uploaded once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import kernel_norm, kernel_rows
from ..backend.library import filled, numbers
from .device_map import DeviceMap, of_pairs
from .neighbors import TapPairs, Windows


def integers(values: np.ndarray) -> mx.array:
    """Host integers as an int32 array."""
    return mx.array(np.ascontiguousarray(values, np.int32))


def floats(values: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(values, np.float32))


def device_map(relation: TapPairs | Windows | DeviceMap, rows_in: int, rows_out: int) -> DeviceMap:
    """`relation` as tables over `rows_in` and `rows_out` rows, padding included; kept with host pairs."""
    if isinstance(relation, DeviceMap):
        return relation
    pairs = relation.pairs if isinstance(relation, Windows) else relation
    source, target = (rows_out, rows_in) if pairs.flipped else (rows_in, rows_out)
    held: DeviceMap | None = pairs.tables.get((source, target))
    if held is None:
        held = of_pairs(pairs.transposed() if pairs.flipped else pairs, source, target)
        pairs.tables[source, target] = held
    return held.transposed() if pairs.flipped else held


def by_row(by_rank: np.ndarray, order: np.ndarray | None, size: int) -> mx.array:
    """(n,) float32 values of ranks as (size,) values of rows, 0 in padding."""
    out = np.zeros(size, np.float32)
    out[slice(0, len(by_rank)) if order is None else order] = by_rank
    return mx.array(out)


def item_of_rows(order: np.ndarray | None, counts: np.ndarray, size: int) -> mx.array:
    """(size,) int32 batch item of each row, -1 in padding; items own consecutive ranks."""
    if order is None and len(counts) == 1:
        return live_item(size, int(counts[0]))
    item = np.full(size, -1, np.int32)
    ranked = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    item[slice(0, len(ranked)) if order is None else order] = ranked
    return mx.array(item)


def rows_of_ranks(order: np.ndarray | None, total: int) -> mx.array:
    """(total,) int32 row of each rank."""
    return numbers(total) if order is None else integers(order)


def live_item(size: int, count: int | mx.array) -> mx.array:
    """(size,) int32: 0 in the first `count` rows, -1 in the others."""
    if size == 0:
        return numbers(0)
    return mx.where(numbers(size) < count, mx.array(0, mx.int32), mx.array(-1, mx.int32))


def segments_of(group: np.ndarray, size: int) -> kernel_rows.Segments:
    """Segments of (n,) group numbers below `size`, -1 for items in none."""
    counts = np.bincount(group[group >= 0], minlength=size) if len(group) else np.zeros(size, np.int64)
    ptr = np.concatenate(([0], np.cumsum(counts))) + (len(group) - int(counts.sum()))
    return kernel_rows.Segments(integers(group), integers(np.argsort(group, kind="stable")), integers(ptr))


def span_sums(x: mx.array, order: mx.array, counts: np.ndarray) -> mx.array:
    """Sums (S, C) float32 of the rows of each span; `order` lists the rows, span by span."""
    if x.size == 0 or order.size == 0:
        return filled((len(counts), x.shape[1]), 0, mx.float32)
    return kernel_rows.batch_reduce(x, order, counts, "sum")[0]


def column_sums(x: mx.array, count: int | mx.array) -> mx.array:
    """Sum (C,) float32 of the first `count` rows."""
    return kernel_norm.column_sums(x, count) if x.size else filled((x.shape[1],), 0, mx.float32)
