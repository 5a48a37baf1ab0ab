"""Local pooling over tap pairs, on the host, blocked by output rank like the convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from ..backend import executor, fast
from ..backend.autodiff import differentiable
from ..backend.host import empty, parallel, view32
from ..backend.library import filled
from . import pooling_kernel
from .device_map import DeviceMap
from .gather_gemm import BLOCK, Scratch, add_rows, by_rank, for_each_block, reader
from .neighbors import TapPairs, Windows
from .spans import Spans, short_maxima, short_sums

Relation: TypeAlias = "TapPairs | Windows | DeviceMap"
Parts = list[tuple[int, np.ndarray, "slice | np.ndarray"]]


def by_taps(relation: Relation) -> TapPairs:
    """The pairs of each tap."""
    return relation if isinstance(relation, TapPairs) else relation.pairs


def sum_pool(
    x: mx.array, relation: Relation, rows: int, scale: np.ndarray | mx.array | None = None
) -> mx.array:
    """y[o] = scale[o] * sum of x[i] over pairs (i, o): (capacity, C) -> (rows, C), fp32 sums.

    scale: `mean_scale` or `constant_scale` of the relation, or None for 1.
    """
    if executor() == "kernel":
        return pooling_kernel.sum_pool(x, relation, rows, scale)
    assert not isinstance(relation, DeviceMap) and not isinstance(scale, mx.array)
    dtype = x.dtype

    def forward(x: mx.array) -> mx.array:
        if isinstance(relation, Windows):
            return _pool_windows(view32(x), relation, rows, np.add, scale).astype(dtype)
        return _sum(view32(x), relation, rows, None, scale).astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        back = by_taps(relation).transposed()
        return _sum(view32(ct), back, x.shape[0], scale, None).astype(dtype)

    return differentiable("sum pooling", forward, (gradient,), x)


def mean_scale(relation: Relation) -> np.ndarray | mx.array:
    """1 / active inputs of each output, 1 where there are none: float32 by rank, of a device map by row."""
    if isinstance(relation, DeviceMap):
        return 1.0 / mx.maximum(relation.counts(), 1).astype(mx.float32)
    return (1.0 / np.maximum(pair_counts(relation), 1)).astype(np.float32)


def constant_scale(relation: Relation, value: float) -> np.ndarray | mx.array:
    """`value` for each output, as in mean_scale."""
    if isinstance(relation, DeviceMap):
        return filled((relation.rows_out,), value, mx.float32)
    return np.full(relation.num_out, value, np.float32)


def pair_counts(pairs: TapPairs | Windows) -> np.ndarray:
    """Active inputs of each output rank: (num_out,) int64."""
    if isinstance(pairs, Windows):
        return pairs.counts
    return np.bincount(pairs.out_rank, minlength=pairs.num_out)


def max_pool(x: mx.array, relation: Relation, rows: int) -> mx.array:
    """Maximum over each output's pairs: (capacity, C) -> (rows, C); 0 where there is none.

    NaN wins over numbers. The gradient goes to the first tap that attains the maximum.
    """
    if executor() == "kernel":
        return pooling_kernel.max_pool(x, relation, rows)
    assert not isinstance(relation, DeviceMap)
    dtype = x.dtype

    def forward(x: mx.array) -> mx.array:
        if isinstance(relation, Windows):
            return _pool_windows(view32(x), relation, rows, np.maximum, None).astype(dtype)
        return _max(view32(x), relation, rows).astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return _max_gradient(view32(ct), view32(x), by_taps(relation)).astype(dtype)

    return differentiable("max pooling", forward, (gradient,), x)


def _sum(
    x: np.ndarray, pairs: TapPairs, rows: int, before: np.ndarray | None, after: np.ndarray | None
) -> mx.array:
    out, y = empty((rows, x.shape[1]), mx.float32)
    y[pairs.num_out :] = 0
    if before is not None:
        x = by_rank(x, pairs.in_order, pairs.num_in) * before[:, None]
        pairs = replace(pairs, in_order=None)
    read, places = reader(x, pairs.in_order), _places(pairs)

    scratch = Scratch()

    def work(first: int, last: int, parts: Parts) -> None:
        total = np.zeros((last - first, x.shape[1]), np.float32)
        buffer, sums = scratch(x.shape[1], x.shape[1])
        for _, ranks, target in parts:
            if fast.available() and not isinstance(target, slice):
                fast.add_gathered(total, target, x, places(ranks))
            else:
                add_rows(total, target, read(ranks, buffer), sums)
        if after is not None:
            total *= after[first:last, None]
        y[slice(first, last) if pairs.out_order is None else pairs.out_order[first:last]] = total

    for_each_block(pairs, work, blas=False)
    return out


def _pool_windows(
    x: np.ndarray, windows: Windows, rows: int, combine: np.ufunc, scale: np.ndarray | None
) -> mx.array:
    """Sum or maximum over windows that tile the lattice, in order of taps, times scale (num_out,)."""
    channels = x.shape[1]
    out, y = empty((rows, channels), mx.float32)
    y[windows.num_out :] = 0
    scratch = Scratch()

    def work(i: int) -> None:
        block = slice(i * BLOCK, min((i + 1) * BLOCK, windows.num_out))
        starts, counts = windows.starts[block], windows.counts[block]
        if fast.available():
            fast.pool_windows(x, windows.rows, starts, counts, combine is np.maximum, scale, y, block)
            return
        # Largest windows first: those with a k-th input are then the first so many, in place.
        order = np.argsort(-counts.astype(np.int16 if windows.volume < 2**15 else np.int64), kind="stable")
        buffer, merged = scratch(channels, channels)
        place, result = starts.take(order), merged[: len(starts)]
        np.take(x, windows.rows.take(place), axis=0, out=result, mode="clip")
        more = np.cumsum(np.bincount(counts)[::-1])[::-1]  # windows with at least k inputs
        for n in more[2:].tolist():
            place = place[:n] + 1
            value = np.take(x, windows.rows.take(place), axis=0, out=buffer[:n], mode="clip")
            combine(result[:n], value, out=result[:n])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        result = np.take(result, back, axis=0, out=y[block], mode="clip")
        if scale is not None:
            result *= scale[block, None]

    parallel(work, -(-windows.num_out // BLOCK))
    return out


def _places(pairs: TapPairs) -> Callable[[np.ndarray], np.ndarray]:
    """Input rows of input ranks."""
    order = pairs.in_order
    return (lambda ranks: ranks) if order is None else order.take


def _max(x: np.ndarray, pairs: TapPairs, rows: int) -> mx.array:
    channels = x.shape[1]
    out, y = empty((rows, channels), mx.float32)
    y[pairs.num_out :] = 0
    read, places = reader(x, pairs.in_order), _places(pairs)
    scratch = Scratch()

    def work(first: int, last: int, parts: Parts) -> None:
        n = last - first
        buffer, larger, block = scratch(channels, channels, channels)
        best = y[first:last] if pairs.out_order is None else block[:n]
        best.fill(-np.inf)
        for _, ranks, target in parts:
            if fast.available() and not isinstance(target, slice):
                fast.max_rows(best, target, x, places(ranks))
                continue
            value = read(ranks, buffer)
            if isinstance(target, slice):
                np.maximum(best, value, out=best)
            else:
                current = np.take(best, target, axis=0, out=larger[: len(target)], mode="clip")
                best[target] = np.maximum(current, value, out=current)
        unreached = np.flatnonzero(~_reached(n, parts))
        best[unreached] = 0
        if pairs.out_order is not None:
            y[pairs.out_order[first:last]] = best

    for_each_block(pairs, work, blas=False)
    return out


def _reached(n: int, parts: Parts) -> np.ndarray:
    """Which of a block's n outputs have a pair: (n,) bool."""
    reached = np.zeros(n, bool)
    for _, _, target in parts:
        reached[target] = True
    return reached


def _winner(x: np.ndarray, pairs: TapPairs) -> np.ndarray:
    """First tap that attains the maximum, by output rank: (num_out, C) int32, -1 without inputs."""
    read = reader(x, pairs.in_order)
    winner = np.full((pairs.num_out, x.shape[1]), -1, np.int32)

    def work(first: int, last: int, parts: Parts) -> None:
        best = np.zeros((last - first, x.shape[1]), np.float32)
        tap_of = winner[first:last]
        buffer = np.empty_like(best)
        for tap, ranks, target in parts:
            value = read(ranks, buffer)
            current, owner = best[target], tap_of[target]
            # First tap, larger value, or NaN meeting a number; comparisons with NaN are False.
            better = (owner < 0) | (value > current) | ((value != value) & (current == current))
            best[target] = np.where(better, value, current)
            tap_of[target] = np.where(better, np.int32(tap), owner)

    for_each_block(pairs, work, blas=False)
    return winner


def _max_gradient(ct: np.ndarray, x: np.ndarray, pairs: TapPairs) -> mx.array:
    out, dx = empty((x.shape[0], ct.shape[1]), mx.float32)
    dx[pairs.num_in :] = 0
    grads = by_rank(ct, pairs.out_order, pairs.num_out)
    winner = _winner(x, pairs)

    def work(first: int, last: int, parts: Parts) -> None:
        total = np.zeros((last - first, ct.shape[1]), np.float32)
        for tap, ranks, target in parts:
            total[target] += np.where(winner[ranks] == tap, grads[ranks], np.float32(0))
        dx[slice(first, last) if pairs.in_order is None else pairs.in_order[first:last]] = total

    for_each_block(pairs.transposed(), work, blas=False)
    return out


# ---------------------------------------------------------------- whole batch items


def batch_reduce(x: mx.array, order: np.ndarray | None, counts: np.ndarray, mode: str) -> mx.array:
    """Reduce the rows of each batch item: (capacity, C) -> (B, C); "sum", "mean" or "max".

    counts (B,) rows of each item, which are consecutive in rank order. Sums run in float64. An
    empty item gives 0. The gradient of max goes to the first row by rank that attains it.
    """
    if executor() == "kernel":
        return pooling_kernel.batch_reduce(x, order, counts, mode)
    dtype = x.dtype
    total, items = int(counts.sum()), len(counts)
    spans, filled = Spans(None, counts).filled()
    winner: list[np.ndarray] = []

    def forward(x: mx.array) -> mx.array:
        values = by_rank(view32(x), order, total)
        out, y = empty((items, x.shape[1]), mx.float32)
        y[:] = 0
        best = np.zeros((len(filled), x.shape[1]), np.int64)
        runs = spans.runs(BLOCK)

        def work(i: int) -> None:
            run = runs[i]
            here, part, rows = slice(run.start, run.stop), values[run.first : run.last], run.last - run.first
            if mode == "max":  # the first NaN, else the first maximum
                found = short_maxima(part, spans.rows(run)) if run.short else np.argmax(part, axis=0)[None]
                y[filled[here]] = np.take_along_axis(part, found, axis=0)
                best[here] = found + run.first
            elif run.short:
                sums, each = short_sums(part.astype(np.float64), spans.rows(run)), spans.rows(run)[:, None]
                y[filled[here]] = sums / each if mode == "mean" else sums
            else:
                y[filled[run.start]] = part.sum(axis=0, dtype=np.float64) / (rows if mode == "mean" else 1)

        parallel(work, len(runs))
        winner[:] = [best]
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        g = view32(ct)
        out, dx = empty((x.shape[0], x.shape[1]), mx.float32)
        dx[total:] = 0
        ranked = np.zeros((total, x.shape[1]), np.float32) if mode == "max" else None
        if ranked is not None:
            ranked[winner[0], np.arange(x.shape[1])] = g[filled]
        else:
            share = g / np.maximum(counts, 1).astype(np.float32)[:, None] if mode == "mean" else g
            ranked = np.repeat(share, counts, axis=0)
        dx[slice(0, total) if order is None else order] = ranked
        return out.astype(dtype)

    return differentiable(f"global {mode} pooling", forward, (gradient,), x)
