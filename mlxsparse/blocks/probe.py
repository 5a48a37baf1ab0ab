"""Channels behind functions of features that labels do not survive, found by changing labels.

Every channel that a layer makes has one value, and another one in runs in which it is chosen: for each bit
of the labels' numbers those that have it, then those that have it not. A channel of features that comes from
one label changes in just one run of each such pair, and these say which label it is.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from .labels import Flow, Known, lost, rows_of

PLAIN, CHOSEN = 0.3, -0.8  # between the ends of a ReLU6 and of clips, of both signs, and unlike when rounded


def probed(follow: Callable[[Flow], None]) -> Flow:
    """The flow of what `follow` runs; CouplingError where a channel comes from several labels, or none."""
    base = Probe(np.zeros(0, bool))
    follow(base)
    numbers = np.arange(base.count)
    places = [np.zeros(len(row), int) for _, row in base.reads]
    for bit in range(base.count.bit_length()):
        pair = []
        for value in (1, 0):
            other = Probe(numbers >> bit & 1 == value)
            follow(other)
            pair.append(base.changed(other))
        for (where, _), place, has, has_not in zip(base.reads, places, *pair):
            if (has == has_not).any():
                raise lost(where)
            place += has.astype(int) << bit
    known = Known([(where, place.tolist()) for (where, _), place in zip(base.reads, places)])
    follow(known)
    return known


class Probe(Flow):
    """A run in which chosen labels have another value; what a place holds is noted, whatever it is.

    Labels are numbered as in Flow; what was read gets negative ones, and is passed on as it was.
    """

    def __init__(self, chosen: np.ndarray):
        super().__init__()
        self.count, self.reads, self._chosen = 0, list[tuple[str, np.ndarray]](), chosen
        self._held: list[float] = []

    def new(self, count: int) -> list[int]:
        self.count += count
        return list(range(self.count - count, self.count))

    def unite(self, a: list[int], b: list[int]) -> None:
        pass

    def fix(self, labels: list[int], reason: str) -> None:
        pass

    def codes(self, labels: list[int]) -> mx.array:
        chosen = self._chosen
        values = [
            self._held[-1 - i] if i < 0 else CHOSEN if i < len(chosen) and chosen[i] else PLAIN
            for i in labels
        ]
        return mx.array(values, mx.float32)

    def labels_of(self, x: object, where: str) -> list[int]:
        rows = rows_of(x)
        if not len(rows) or not np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape), equal_nan=True):
            raise lost(where)
        self.reads.append((where, rows[0].copy()))
        self._held.extend(rows[0].tolist())
        return [-1 - i for i in range(len(self._held) - len(rows[0]), len(self._held))]

    def changed(self, other: Probe) -> list[np.ndarray]:
        """Which channels of each read are others in another run; CouplingError where it went another way."""
        found = []
        for i, (where, mine) in enumerate(self.reads):
            place, its = other.reads[i] if i < len(other.reads) else ("", mine)
            if place != where or its.shape != mine.shape:
                raise lost(where)
            found.append((mine != its) & ~(np.isnan(mine) & np.isnan(its)))
        return found
