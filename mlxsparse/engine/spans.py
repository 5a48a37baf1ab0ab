"""Spans of consecutive ranks, such as batch items, and sums over them, on the host.

Spans without rows cost nothing, and those of few rows are worked on side by side: one at a time, to call
NumPy costs more than to add. How a span is summed depends on its own rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CHUNK = 1 << 16  # values of one chunk
TILE = 32  # rows that one vector operation spans, since a row alone is short
SHORT = 64  # rows of a span that is worked on beside others
FEW = 512  # spans times channels whose rows are summed span by span in less time


class Chunk(NamedTuple):
    """A piece of one span, or several short ones, that stays in cache."""

    start: int  # first span
    stop: int  # span after the last one
    first: int  # rank
    last: int
    short: bool  # whole short spans


class Spans(NamedTuple):
    """What shares its statistics: consecutive ranks, and channels of one group."""

    order: np.ndarray | None  # (n,) row of each rank; None: the rank itself
    counts: np.ndarray  # (S,) rows of each span
    group: np.ndarray | None = None  # (C,) group number of each channel; None: each its own

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def filled(self) -> tuple[Spans, np.ndarray]:
        """The spans that have rows, as what follows takes them, and their numbers."""
        which = np.flatnonzero(self.counts)
        return self._replace(counts=self.counts[which]), which

    def runs(self, rows: int) -> list[Chunk]:
        """Each span of many rows, and short ones that follow each other, about `rows` together."""
        ends = np.cumsum(self.counts)
        starts, short = ends - self.counts, self.counts <= SHORT
        place = np.where(short, starts // rows, -1)
        heads = np.flatnonzero(~short | (place != np.append([-1], place[:-1])))
        stops = np.append(heads[1:], len(ends))[: len(heads)]
        edges = heads, stops, starts[heads], ends[stops - 1], short[heads]
        return [Chunk(*edge) for edge in zip(*(edge.tolist() for edge in edges))]

    def chunks(self, channels: int) -> list[Chunk]:
        """As `runs`, with long spans in pieces."""
        step = max(1, CHUNK // (max(channels, 1) * TILE)) * TILE
        found = []
        for run in self.runs(step):
            if run.short or run.last - run.first <= step:
                found.append(run)
            else:
                firsts = range(run.first, run.last, step)
                found += [run._replace(first=a, last=min(a + step, run.last)) for a in firsts]
        return found

    def rows(self, chunk: Chunk) -> np.ndarray:
        """(k,) rows of each span that a chunk holds."""
        if not chunk.short:
            return np.array([chunk.last - chunk.first])
        return self.counts[chunk.start : chunk.stop]

    def number(self, chunk: Chunk) -> int | np.ndarray:
        """The span of a chunk, of several the span of each row."""
        if not chunk.short:
            return chunk.start
        return np.repeat(np.arange(chunk.start, chunk.stop), self.rows(chunk))

    def sums(self, chunk: Chunk, values: np.ndarray) -> np.ndarray:
        """(n, C) of a chunk's rows -> (k, C) sums of its spans, in the type of the values."""
        if not chunk.short:
            return (np.ones(len(values), values.dtype) @ values)[None]
        return short_sums(values, self.rows(chunk))

    def pooled(self, per_channel: np.ndarray) -> np.ndarray:
        """(S, C) with each channel's value replaced by the mean of its group."""
        if self.group is None:
            return per_channel
        member = np.eye(int(self.group.max(initial=-1)) + 1)[self.group]  # (C, G)
        return (per_channel @ member / member.sum(axis=0)) @ member.T


def short_sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums of spans of `counts` > 0 rows, in the order of rows: (n, C) -> (k, C)."""
    if len(counts) == 1 or len(counts) <= min(counts.max(), FEW // max(values.shape[1], 1)):
        # A call a span, not a row; it adds in order, as `sum` does not for one channel.
        return np.concatenate([part.cumsum(axis=0)[-1:] for part in _apart(values, counts)])
    order, place, more = _by_length(counts)
    total = values[place]
    for n in more:
        place = place[:n] + 1
        total[:n] += values[place]
    out = np.empty_like(total)
    out[order] = total
    return out


def short_maxima(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """As `short_sums`, the first row with NaN, else with the maximum: (n, C) -> (k, C) int64."""
    if len(counts) <= 2 * counts.max():
        rows = [part.argmax(axis=0) for part in _apart(values, counts)]
        return np.stack(rows) + (np.cumsum(counts) - counts)[:, None]
    order, place, more = _by_length(counts)
    best, row = values[place], np.repeat(place[:, None], values.shape[1], axis=1)
    for n in more:
        place = place[:n] + 1
        value, top = values[place], best[:n]
        better = (value > top) | ((value != value) & (top == top))
        np.copyto(top, value, where=better)
        np.copyto(row[:n], place[:, None], where=better)
    out = np.empty_like(row)
    out[order] = row
    return out


def _apart(values: np.ndarray, counts: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of each span."""
    ends = np.cumsum(counts)
    return (values[first:last] for first, last in zip((ends - counts).tolist(), ends.tolist()))


def _by_length(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Spans, longest first; the first row of each; and how many have a second row, a third, and so on."""
    order = np.argsort(-counts, kind="stable")
    more = np.cumsum(np.bincount(counts)[::-1])[::-1]
    return order, (np.cumsum(counts) - counts)[order], more[2:].tolist()
