"""Row operators on the GPU: pooling over neighbour tables, segments, gathers and scatters of rows.

Sums run in fp32 in a fixed order; maxima keep the first of equals and NaN wins over numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import MLXSparseError, ShapeError
from .kernel_coords import stable_order
from .library import (
    MAX_THREADS,
    blocks,
    check_array,
    check_index,
    filled,
    launch,
    numbers,
    row_groups,
    unread,
)

PARTS = 1024  # partial sums of a column, at most
MODES = {"sum": 0, "mean": 1, "max": 2, "min": 3, "first": 4}
PIECE = 1024  # rows of one partial sum of a long segment


def _optional(name: str, a: mx.array | None, shape: tuple[int, ...]) -> mx.array:
    """A float32 array, or a stand-in that the kernel does not read."""
    if a is None:
        return unread()
    if tuple(a.shape) != shape:
        raise ShapeError(f"{name} has shape {tuple(a.shape)}, wanted {shape}")
    return a.astype(mx.float32)


# ---------------------------------------------------------------- over neighbour tables


def gather_sum(
    x: mx.array,
    nbr: mx.array,
    *,
    weight: mx.array | None = None,
    before: mx.array | None = None,
    after: mx.array | None = None,
    active: int | mx.array | None = None,
) -> mx.array:
    """y[o] = after[o] * sum over t of weight[t, o] * before[j] * x[j] with j = nbr[t, o].

    x (N, C); nbr (T, M) int32, -1 where there is no pair; weight (T, M), before (N,), after (M,) float32 or
    None for 1. -> (M, C) of x's dtype; rows at and past `active` (default M) are 0. With the table read from
    the other side, and `before` and `after` swapped, it is its own gradient.
    """
    check_array("x", x, 2)
    check_array("nbr", nbr, 2, mx.int32)
    (n, channels), (taps, m) = x.shape, nbr.shape
    inputs = [
        x,
        nbr,
        _optional("weight", weight, (taps, m)),
        _optional("before", before, (n,)),
        _optional("after", after, (m,)),
    ]
    has = [int(a is not None) for a in (weight, before, after)]
    dims = [n, channels, taps, m, *has, m if active is None else active]
    return launch("gather_sum", inputs, dims, [(m, channels)], row_groups(m, channels), dtype=x.dtype)[0]


def max_pool(x: mx.array, nbr: mx.array, *, winner: bool = True) -> tuple[mx.array, mx.array]:
    """Maximum over the pairs of each output and the first tap that attains it.

    x (N, C); nbr (T, M) int32 -> (M, C) of x's dtype, 0 where there is no pair; (M, C) int32, -1 there;
    without `winner` what is not to be read.
    """
    check_array("x", x, 2)
    check_array("nbr", nbr, 2, mx.int32)
    (n, channels), (taps, m) = x.shape, nbr.shape
    vector = 16 // x.dtype.size
    each = vector if channels % vector == 0 else 1
    lanes = min(32, 1 << (channels // each - 1).bit_length()) if channels else 1
    dims = [n, channels, taps, m, int(winner), lanes, each]
    shapes = [(m, channels), (m, channels) if winner else (1,)]
    groups = (blocks(m, MAX_THREADS // lanes), blocks(channels, lanes * each), 1)
    y, taken = launch("max_pool", [x, nbr], dims, shapes, groups, dtype=x.dtype)
    return y, taken


def max_pool_grad(ct: mx.array, winner: mx.array, back: mx.array) -> mx.array:
    """Gradient of max_pool's x: ct, winner (M, C), back (T, N) int32 -> (N, C) of ct's dtype."""
    check_array("ct", ct, 2)
    check_array("back", back, 2, mx.int32)
    if winner.shape != ct.shape:
        raise ShapeError(f"winner has shape {tuple(winner.shape)}, ct {tuple(ct.shape)}; they must be equal")
    taps, n = back.shape
    m, channels = ct.shape
    dims = [n, channels, taps, m]
    groups = row_groups(n, channels)
    return launch("max_pool_grad", [ct, winner, back], dims, [(n, channels)], groups, dtype=ct.dtype)[0]


# ---------------------------------------------------------------- rows


def take_rows(x: mx.array, rows: mx.array, *, check: bool = True) -> mx.array:
    """y[i] = x[rows[i]], 0 where rows[i] is -1: x (N, C), rows (M,) int32 -> (M, C).

    check: read the range of `rows` and raise MLXSparseError where one is outside; else such a row is a 0.
    """
    check_array("rows", rows, 1, mx.int32)
    if check:
        check_index("rows", rows, x.shape[0])
    return gather_sum(x, rows[None])


def put_rows(x: mx.array, rows: mx.array, size: int, fill: float = 0.0, *, check: bool = True) -> mx.array:
    """y[rows[i]] = x[i], `fill` elsewhere: x (N, C), rows (n <= N,) int32 distinct or -1 -> (size, C)."""
    check_array("x", x, 2)
    check_array("rows", rows, 1, mx.int32)
    if check:
        check_index("rows", rows, size)
    if rows.size > x.shape[0]:
        raise ShapeError(f"rows has {rows.size} elements, x only {x.shape[0]} rows")
    n, channels = rows.size, x.shape[1]
    dims = [n, channels, size]
    groups = row_groups(n, channels)
    return launch("scatter_rows", [x, rows], dims, [(size, channels)], groups, dtype=x.dtype, init=fill)[0]


# ---------------------------------------------------------------- segments


class Segments(NamedTuple):
    """Items grouped by a segment number, -1 in none; each segment's items in ascending order."""

    group: mx.array  # (n,) int32
    order: mx.array  # (n,) int32 items by segment
    ptr: mx.array  # (G + 1,) int32: segment g owns order[ptr[g] : ptr[g + 1]]

    @property
    def size(self) -> int:
        return self.ptr.size - 1

    @property
    def counts(self) -> mx.array:
        return self.ptr[1:] - self.ptr[:-1]


def segments(group: mx.array, size: int, *, check: bool = True) -> Segments:
    """Segments of (n,) int32 segment numbers below `size`, -1 for items in none."""
    check_array("group", group, 1, mx.int32)
    if check:
        check_index("group", group, size)
    order = stable_order(group)
    dims = [group.size, size]
    ranked = group[order] if group.size else group
    ptr = launch(
        "segment_bounds", [ranked], dims, [(size + 1,)], (blocks(size + 1, MAX_THREADS), 1, 1)
    )[0]
    return Segments(group, order, ptr)


def segment_reduce(
    x: mx.array, parts: Segments, mode: str, *, weight: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Reduce the items of each segment: (G, C) float32, 0 for an empty one; (G, C) int32 winning item.

    x (N, C); item e of `parts` reads row e % N, so that the T * N pairs of a neighbour table can be items;
    fewer items than N are the first rows.
    mode: "sum", "mean", "max", "min" or "first"; the winner is -1 for sum and mean. weight: float32 by item.
    """
    check_array("x", x, 2)
    if mode not in MODES:
        raise MLXSparseError(f"mode must be one of {sorted(MODES)}, got {mode!r}")
    n, channels = x.shape
    items = parts.order.size
    if items > n and (n == 0 or items % n):
        raise ShapeError(f"{items} items are neither at most nor a multiple of the {n} rows of x")
    shape = (parts.size, channels)
    dims = [n, channels, parts.size, items, MODES[mode], int(weight is not None)]
    inputs = [x, parts.order, parts.ptr, _optional("weight", weight, (items,))]
    groups = row_groups(*shape)
    y, winner = launch("segment_reduce", inputs, dims, [shape, shape], groups, dtype=x.dtype)
    return y, winner


def winner_grad(ct: mx.array, winner: mx.array, group: mx.array) -> mx.array:
    """Gradient of a segment max, min or first, from ct and winner (G, C) and group (N,) int32: (N, C)."""
    check_array("ct", ct, 2)
    check_array("group", group, 1, mx.int32)
    if winner.shape != ct.shape:
        raise ShapeError(f"winner has shape {tuple(winner.shape)}, ct {tuple(ct.shape)}; they must be equal")
    shape = (group.size, ct.shape[1])
    dims = [*shape, ct.shape[0]]
    return launch("winner_grad", [ct, winner, group], dims, [shape], row_groups(*shape), dtype=ct.dtype)[0]


def batch_reduce(x: mx.array, order: mx.array, counts: np.ndarray, mode: str) -> tuple[mx.array, mx.array]:
    """Reduce the rows of each batch item: (B, C) float32, 0 for an empty one; (B, C) int32 winning row.

    x (N, C); order (n,) int32 rows by batch item; counts (B,) rows of each item, on the host; mode "sum",
    "mean" or "max". Long items are summed in pieces of PIECE rows, in order.
    """
    if mode not in ("sum", "mean", "max"):
        raise MLXSparseError(f'mode must be "sum", "mean" or "max", got {mode!r}')
    ends = np.concatenate(([0], np.cumsum(counts)))
    pieces = -(-np.asarray(counts) // PIECE)
    first = np.concatenate(([0], np.cumsum(pieces)))  # pieces of item b: [first[b], first[b + 1])
    within = np.arange(first[-1]) - np.repeat(first[:-1], pieces)
    starts = np.repeat(ends[:-1], pieces) + PIECE * within
    bounds = mx.array(np.append(starts, ends[-1]).astype(np.int32))
    partial = Segments(order, order, bounds)
    kind = "max" if mode == "max" else "sum"
    y, winner = segment_reduce(x, partial, kind)
    every = numbers(int(first[-1]))
    total, piece = segment_reduce(y, Segments(every, every, mx.array(first.astype(np.int32))), kind)
    if mode == "mean" and total.size:
        total = total / mx.array(np.maximum(counts, 1).astype(np.float32))[:, None]
    if mode != "max" or first[-1] == 0:
        return total, filled(total.shape, -1, mx.int32)
    row = mx.take_along_axis(winner, mx.maximum(piece, 0), axis=0)
    return total, mx.where(piece < 0, mx.array(-1, mx.int32), row)


# ---------------------------------------------------------------- columns


def column_moments(x: mx.array, active: int | mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """shift, mean - shift and biased variance of the first `active` rows of x (N, C), float32 (C,) each.

    The shift is the first row, so that a large mean costs the variance and the rest of the mean nothing.
    """
    check_array("x", x, 2)
    shift = x[0].astype(mx.float32) if x.shape[0] else filled((x.shape[1],), 0, mx.float32)
    mean, var = _columns(x, x, shift, unread_columns(x), active, 0)
    return shift, mean, var


def column_sums_with(
    ct: mx.array, x: mx.array, shift: mx.array, mean: mx.array, active: int | mx.array
) -> tuple[mx.array, mx.array]:
    """Sums over the first `active` rows of ct, and of ct * (x - shift - mean): float32 (C,) each."""
    check_array("ct", ct, 2)
    if ct.shape != x.shape:
        raise ShapeError(f"ct has shape {tuple(ct.shape)}, x {tuple(x.shape)}; they must be equal")
    sums = _columns(x, ct, shift, mean, active, 1)
    return sums[0], sums[1]


def unread_columns(x: mx.array) -> mx.array:
    return filled((x.shape[1],), 0, mx.float32)


def _columns(
    x: mx.array, ct: mx.array, shift: mx.array, delta: mx.array, active: int | mx.array, mode: int
) -> mx.array:
    n, channels = x.shape
    rows = blocks(max(256, blocks(n, PARTS)), 8) * 8
    parts = blocks(n, rows)
    across = blocks(channels, 32)
    dims = [n, channels, active, rows, mode]
    inputs = [x, ct.astype(x.dtype), shift, delta]
    made = launch("column_parts", inputs, dims, [(parts, 2, channels)], (parts, across, 1), dtype=x.dtype)[0]
    dims = [parts, channels, active, rows, mode]
    return launch("column_total", [made], dims, [(2, channels)], (1, across, 1))[0]
