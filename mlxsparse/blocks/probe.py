"""Channels behind functions of features that labels do not survive, found by changing labels.

Every channel that a layer makes has one value, and another one in runs in which it is chosen: for each bit
of the labels' numbers those that have it, then those that have it not. A channel of features that comes from
one label changes in just one run of each such pair, and these say which label it is.

A function may be of one channel at these values alone, as a norm that is clipped from 10 on. So what is
found is run again with values of several scales: what a channel is then follows from its label's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np

from ..errors import CouplingError
from .labels import Diverged, Flow, Known, alike, lost, rows_of

PLAIN, CHOSEN = 0.3, -0.8  # between the ends of a ReLU6 and of clips, of both signs, and unlike when rounded
LARGE = 1e3
SCALES = -LARGE, -1.0, -1e-3, 1e-3, 1.0, LARGE


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


def at_all_scales(follow: Callable[[Flow], None], flow: Flow) -> list[Flow]:
    """Runs of what `flow` found with other values; CouplingError where a channel takes from other labels.

    A channel must be the same, or NaN, wherever its label has the same value: it may saturate or overflow
    there. A run that goes another way says nothing, unless all do so.
    """
    places = [where for where, labels, _ in flow._read for _ in labels]
    labels = [label for _, found, _ in flow._read for label in found]
    runs, done = list[Flow](), list[tuple[np.ndarray, np.ndarray]]()
    problem: Exception | None = Diverged()
    for i, values in enumerate(_assignments(len(flow._parent))):
        run = Valued(flow, values)
        try:
            follow(run)
        except CouplingError:
            raise
        except Exception as error:  # of the model's own code, which may refuse such values
            problem = problem and error
            continue
        given, got = values[labels], np.concatenate([row for _, _, row in run._read])
        if len(got) != len(given):
            continue
        if i >= len(SCALES):  # values beside other ones
            problem = None
        for before, its in done:
            unlike = (given == before) & (got != its) & ~(np.isnan(got) & np.isnan(its))
            if unlike.any():
                raise lost(places[int(unlike.argmax())])
        runs.append(run)
        done.append((given, got))
    if problem is not None:
        raise CouplingError(
            f"the model does not run on values from {SCALES[0]:g} to {LARGE:g} in place of features, or goes "
            f"another way on them; they find its channels behind functions of arrays: {problem!r}"
        )
    return runs


def _assignments(count: int) -> Iterator[np.ndarray]:
    """float32 values of `count` labels: one for all, then large ones beside any, so that of every two labels
    each is large, of both signs, where the other is not chosen to be."""
    random, numbers = np.random.default_rng(0), np.arange(count)
    for value in SCALES:
        yield np.full(count, value, np.float32)
    for bit in range(count.bit_length()):
        for chosen in (0, 1):
            for large in (LARGE, -LARGE):
                between = random.choice([-1, 1], count) * 10 ** random.uniform(-3, 3, count)
                others = np.where(random.random(count) < 0.25, between, random.choice(SCALES, count))
                yield np.where(numbers >> bit & 1 == chosen, large, others).astype(np.float32)


class Valued(Flow):
    """A run of what `first` found in which labels have these values, and may become anything."""

    def __init__(self, first: Flow, values: np.ndarray):
        super().__init__()
        self._first, self._values = iter(first._read), values
        self._near = 1e-3, 1e-5  # vectors and single values of a large sine, or of a small logarithm

    def codes(self, labels: list[int]) -> mx.array:
        return mx.array(self._values[labels])

    def labels_of(self, x: object, where: str) -> list[int]:
        place, labels, _ = next(self._first, ("", [], None))
        rows = rows_of(x)
        if place != where or rows.shape[1] != len(labels) or not len(rows):
            raise Diverged
        if not alike(rows):
            raise lost(where)
        self._read.append((where, labels, rows[0].copy()))
        return labels


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
        if not len(rows) or not alike(rows):
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
