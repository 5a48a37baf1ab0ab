"""Row movement: gather, scatter to distinct rows, sums and means of row segments, on the host."""

from __future__ import annotations

from functools import cached_property

import mlx.core as mx
import numpy as np

from ..backend import executor, fast
from ..backend.autodiff import differentiable
from ..backend.host import empty, parallel, scratch, view, view32
from ..errors import MLXSparseError
from . import rows_kernel


def _check(rows: np.ndarray, limit: int) -> None:
    if len(rows) and (int(rows.min()) < -1 or int(rows.max()) >= limit):
        raise MLXSparseError(f"row index out of range: [{rows.min()}, {rows.max()}] for {limit} rows")


class Segments:
    """Items (points, rows) grouped by a group number; -1 belongs to no group.

    Sums run over the items in their given order, in float64, so they depend on nothing else.
    """

    def __init__(self, group: np.ndarray, num_groups: int, counts: np.ndarray | None = None):
        """counts (num_groups,) int64 of each group, where the caller has them and vouches for `group`."""
        self.group = group
        self.num_groups = num_groups
        if counts is None:
            _check(group, num_groups)
            counts = fast.count(group, num_groups) if fast.available() else self._count()
        self.counts = counts

    @cached_property
    def kept(self) -> np.ndarray | None:
        """Items that belong to a group; None: all."""
        return None if (self.group >= 0).all() else np.flatnonzero(self.group >= 0)

    @cached_property
    def ids(self) -> np.ndarray:
        """Groups of the kept items."""
        return self.group if self.kept is None else self.group[self.kept]

    def _count(self) -> np.ndarray:
        return np.bincount(self.ids, minlength=self.num_groups)

    def share(self, mode: str) -> np.ndarray | None:
        """What "mean" multiplies each group's sum by, float64; None for "sum"."""
        if mode == "sum":
            return None
        share = scratch(self.num_groups, np.float64)
        np.maximum(self.counts, 1, out=share, casting="unsafe")
        return np.divide(1.0, share, out=share)

    def sum(self, values: np.ndarray, out: np.ndarray, share: np.ndarray | None = None) -> None:
        """out[g] = share[g] * sum of the rows of group g: (n, C) float32 -> (num_groups, C) float32."""
        if fast.available():
            fast.segment_sum(values, self.group, share, out)
            return
        kept = values if self.kept is None else values[self.kept]
        ids, weights = scratch(len(kept), np.int64), scratch((2, len(kept)), np.float64)
        ids[:] = self.ids
        # bincount holds Python's lock, so only the copies can share the work of two threads.
        for c in range(0, kept.shape[1], 2):
            pair = kept[:, c : c + 2]

            def widen(i: int, pair: np.ndarray = pair) -> None:
                weights[i] = pair[:, i]

            parallel(widen, pair.shape[1], small=len(kept) < 100_000)
            for i in range(pair.shape[1]):
                # Without items bincount forgets that its weights are floats.
                total = np.bincount(ids, weights=weights[i], minlength=self.num_groups).astype(
                    np.float64, copy=False
                )
                out[:, c + i] = total if share is None else np.multiply(total, share, out=total)


def take_rows(x: mx.array, rows: np.ndarray, fill: float = 0.0) -> mx.array:
    """y[i] = x[rows[i]], or `fill` where rows[i] is -1: (n, C) -> (len(rows), C). Rows may repeat."""
    mode = executor()
    _check(rows, x.shape[0])
    if mode == "kernel":
        return rows_kernel.take_rows(x, rows, fill)
    dtype = x.dtype
    missing = rows < 0
    any_missing = bool(missing.any())

    def forward(x: mx.array) -> mx.array:
        wide = x.dtype == mx.bfloat16
        source = view32(x) if wide else view(x)
        out, y = empty((len(rows), x.shape[1]), mx.float32 if wide else dtype)
        if len(source):
            np.take(source, rows, axis=0, out=y, mode="clip")
        y[missing if any_missing else slice(0, 0)] = fill
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        Segments(rows, x.shape[0]).sum(view32(ct), dx)
        return out.astype(dtype)

    return differentiable("row gather", forward, (gradient,), x)


def put_rows(x: mx.array, rows: np.ndarray, size: int, fill: float = 0.0) -> mx.array:
    """y[rows[i]] = x[i], `fill` elsewhere: (capacity, C) -> (size, C). Rows are distinct."""
    mode = executor()
    _check(rows, size)
    if mode == "kernel":
        return rows_kernel.put_rows(x, rows, size, fill)
    dtype = x.dtype

    def forward(x: mx.array) -> mx.array:
        wide = x.dtype == mx.bfloat16
        out, y = empty((size, x.shape[1]), mx.float32 if wide else dtype)
        y[:] = fill
        y[rows] = (view32(x) if wide else view(x))[: len(rows)]
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        dx[: len(rows)] = view32(ct)[rows]
        dx[len(rows) :] = 0
        return out.astype(dtype)

    return differentiable("row scatter", forward, (gradient,), x)


def segment_reduce(x: mx.array | np.ndarray, segments: Segments, mode: str) -> mx.array:
    """Reduce the rows of each group: (n, C) -> (num_groups, C); 0 for an empty group.

    mode: "mean", "sum", "max", "min", or "first" (lowest row). max and min give their gradient to
    the first row that attains them. A NumPy x is a constant, read where it lies if that is possible.
    """
    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x)
        if executor() == "host" and mode in ("mean", "sum") and x.dtype == np.float32:
            out, y = empty((segments.num_groups, x.shape[1]), mx.float32)
            segments.sum(x, y, segments.share(mode))
            return out
        x = mx.array(x)
    if executor() == "kernel":
        return rows_kernel.segment_reduce(x, segments.group, segments.num_groups, mode)
    if mode in ("mean", "sum"):
        return _segment_sum(x, segments, mode)
    dtype = x.dtype
    winner: list[np.ndarray] = []

    def forward(x: mx.array) -> mx.array:
        values = view32(x)
        winner[:] = [_segment_winner(values, segments, mode)]
        out, y = empty((segments.num_groups, x.shape[1]), mx.float32)
        rows = winner[0]
        if len(values):
            y[:] = np.take_along_axis(values, np.maximum(rows, 0), axis=0)
        y[segments.counts == 0] = 0
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        dx[:] = 0
        filled = segments.counts > 0
        np.put_along_axis(dx, winner[0][filled], view32(ct)[filled], axis=0)
        return out.astype(dtype)

    return differentiable(f"segment {mode}", forward, (gradient,), x)


def _segment_winner(values: np.ndarray, segments: Segments, mode: str) -> np.ndarray:
    """(num_groups, C) row that each group's value comes from, -1 for an empty group."""
    rows = np.flatnonzero(segments.group >= 0)
    rows = rows[np.argsort(segments.group[rows], kind="stable")]
    filled = np.flatnonzero(segments.counts)
    winner = np.full((segments.num_groups, values.shape[1]), -1, np.int64)
    if len(filled) == 0:
        return winner
    counts = segments.counts[filled]
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    if mode == "first":
        winner[filled] = rows[starts][:, None]
        return winner
    ranked = values[rows]
    best = (np.maximum if mode == "max" else np.minimum).reduceat(ranked, starts, axis=0)
    best = np.repeat(best, counts, axis=0)
    hit = (ranked == best) | (np.isnan(ranked) & np.isnan(best))
    place = np.where(hit, rows[:, None], len(values))
    winner[filled] = np.minimum.reduceat(place, starts, axis=0)
    return winner


def _segment_sum(x: mx.array, segments: Segments, mode: str) -> mx.array:
    dtype = x.dtype
    share = segments.share(mode)

    def forward(x: mx.array) -> mx.array:
        out, y = empty((segments.num_groups, x.shape[1]), mx.float32)
        segments.sum(view32(x), y, share)
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        g = view32(ct) if share is None else view32(ct) * share.astype(np.float32)[:, None]
        out, dx = empty(tuple(x.shape), mx.float32)
        if segments.num_groups:
            np.take(g, segments.group, axis=0, out=dx, mode="clip")
        dx[segments.group < 0] = 0
        return out.astype(dtype)

    return differentiable(f"segment {mode}", forward, (gradient,), x)
