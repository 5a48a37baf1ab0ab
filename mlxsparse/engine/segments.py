"""Segments: windows, patches or batch items, each with its queries and its keys, as lists of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

Kept = TypeVar("Kept")


class Side(NamedTuple):
    """Queries or keys. A position is a place in the list of rows; segments are consecutive positions."""

    order: np.ndarray  # (P,) int32 row of each position, no row twice
    starts: np.ndarray  # (S + 1,) int64 first position of each segment, and P


class Segments:
    """S pairs of a query segment and a key segment: every query attends to all keys of its segment."""

    def __init__(self, q: Side, k: Side):
        self.q, self.k = q, k
        self._kept: dict[Any, Any] = {}
        self._turned: Segments | None = None

    def kept(self, name: Any, make: Callable[[], Kept]) -> Kept:
        """What an executor made from the segments, made once."""
        if name not in self._kept:
            self._kept[name] = make()
        found: Kept = self._kept[name]
        return found

    @property
    def count(self) -> int:
        return len(self.q.starts) - 1

    @property
    def turned(self) -> Segments:
        """Keys as queries, and queries as keys."""
        if self.q is self.k:
            return self  # which keeps no reference to itself: it goes with the last one to it
        if self._turned is None:
            self._turned = Segments(self.k, self.q)
        return self._turned

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """(S,) queries and keys of each segment."""
        return np.diff(self.q.starts), np.diff(self.k.starts)

    @cached_property
    def span(self) -> np.ndarray:
        """(P, 2) int32: the key positions [lo, hi) that each query position sees."""
        both = np.stack([self.k.starts[:-1], self.k.starts[1:]], axis=1).astype(np.int32)
        return np.repeat(both, self.lengths[0], axis=0)

    def partial(self, rows: int) -> bool:
        """Whether some of `rows` rows hold no query that sees a key."""
        lq, lk = self.lengths
        return int(lq[lk > 0].sum()) < rows

    def tiles(self, size: int) -> np.ndarray:
        """(W, 4) int32 (first query, queries, first key, keys) of tiles of at most `size` queries.

        A tile holds whole segments, as many as follow each other and fit, or a piece of one that does not.
        Tiles with the most keys come first.
        """
        return self.kept(("tiles", size), lambda: _tiles(self.q.starts, self.k.starts, size))


def _tiles(starts: np.ndarray, keys: np.ndarray, size: int) -> np.ndarray:
    # What follows a segment that starts a tile: the last one that still ends inside it.
    after = np.searchsorted(starts, starts[:-1] + size, side="right") - 1
    jump = np.maximum(after, np.arange(1, len(starts))).tolist()
    heads, at = [], 0
    while at < len(jump):
        heads.append(at)
        at = jump[at]
    first = np.array(heads, np.int64)
    last = np.append(first[1:], len(jump))[: len(first)]
    pieces = np.maximum(-(-(starts[last] - starts[first]) // size), 0)
    tile = np.repeat(np.arange(len(first)), pieces)
    piece = np.arange(len(tile)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = starts[first][tile] + piece * size
    end = np.minimum(begin + size, starts[last][tile])
    low, high = keys[first][tile], keys[last][tile]
    found = np.stack([begin, end - begin, low, high - low], axis=1).astype(np.int32)
    return found[np.argsort(low - high, kind="stable")]
