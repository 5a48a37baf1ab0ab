"""Sorted coordinate index: any int32 coordinates, no packing limit.

Sites sorted by (batch, x, y, z) form a three-level tree: slabs (batch, x), columns (slab, y), sites
(column, z). Each level's key is one int64, ``parent << 32 | coordinate + 2**31``, sorted, so a
coordinate is found by three binary searches whatever its range. A site's place in this order is its
*rank*; `order` turns a rank into a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..backend import fast
from .sorting import Bounds, Columns, Packed, columns_of, lexicographic_order, unpack

BIAS = np.int64(2**31)
LIMIT = 2**30  # coordinates lie in (-LIMIT, LIMIT)
_END = np.int64(2**63 - 1)


@dataclass(frozen=True, eq=False)
class CoordIndex:
    """Index of sites; arrays by rank. The tree is built when a search first asks for it."""

    order: np.ndarray | None  # (n,) int32 row of each rank; None: rows are in rank order
    coords: np.ndarray  # (n, 4) int32, sorted
    duplicate: tuple[int, int] | None  # two rows with the same coordinates
    packed: Packed | None = None  # `coords` as one number each, where 62 bits hold them

    @property
    def size(self) -> int:
        return len(self.coords)

    @cached_property
    def columns(self) -> list[np.ndarray]:
        """The four columns of `coords`, contiguous."""
        return columns_of(self.coords)

    @cached_property
    def _slabs(self) -> tuple[np.ndarray, np.ndarray]:
        return _level(self.columns[0], self.columns[1])

    @cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        return _level(self._slabs[1], self.columns[2])

    @property
    def slab_keys(self) -> np.ndarray:
        """(S + 1,) int64 batch << 32 | x, and a closing sentinel."""
        return self._slabs[0]

    @property
    def column_keys(self) -> np.ndarray:
        """(M + 1,) int64 slab << 32 | y, and a closing sentinel."""
        return self._columns[0]

    @property
    def site_column(self) -> np.ndarray:
        """(n,) int32 column of each site."""
        return self._columns[1]

    @cached_property
    def column_slab(self) -> np.ndarray:
        """(M,) int32 slab of each column."""
        first = np.empty(self.size, bool)
        first[:1] = True
        np.not_equal(self.site_column[1:], self.site_column[:-1], out=first[1:])
        return self._slabs[1][first]

    @cached_property
    def site_keys(self) -> np.ndarray:
        """(n + 1,) int64 column << 32 | z, and a closing sentinel."""
        return np.append((self.site_column.astype(np.int64) << 32) + (self.columns[3] + BIAS), _END)


def _level(parent: np.ndarray, coordinate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys of one tree level over sorted rows: (distinct keys and sentinel, group of each row)."""
    key = (parent.astype(np.int64) << 32) + (coordinate + BIAS)
    first = np.empty(len(key), bool)
    first[:1] = True
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return np.append(key[first], _END), np.cumsum(first, dtype=np.int32) - np.int32(1)


def build_index(
    coords: np.ndarray,
    *,
    columns: Columns | None = None,
    bounds: Bounds | None = None,
    presorted: bool = False,
    packed: Packed | None = None,
) -> CoordIndex:
    """Index of (n, 4) int32 coordinates; duplicates are reported, not raised.

    columns, bounds: those of `coords`, if the caller has them. presorted: the rows are known to be in
    order, and distinct; `packed` may come with them.
    """
    if presorted:
        return CoordIndex(None, np.ascontiguousarray(coords), None, packed)
    order, twice, packed = lexicographic_order(columns_of(coords) if columns is None else columns, bounds)
    if order is None:
        pair = None if twice is None else (twice - 1, twice)
        return CoordIndex(None, np.ascontiguousarray(coords), pair, packed)
    pair = None if twice is None else (int(order[twice - 1]), int(order[twice]))
    # Compiled, writing them anew is faster than reading rows that lie anywhere.
    anew = packed is not None and fast.available()
    ranked = unpack(*packed) if anew and packed else np.take(coords, order, axis=0)
    return CoordIndex(order.astype(np.int32), ranked, pair, packed)


def find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Position of each wanted key in a sorted key array with sentinel, int32; -1 where absent."""
    place = np.searchsorted(keys, wanted)
    found = place.astype(np.int32)
    found[keys.take(place) != wanted] = -1
    return found


def child_keys(parent: np.ndarray, coordinate: np.ndarray) -> np.ndarray:
    """Search keys ``parent << 32 | coordinate``; -1 (never found) for no parent or out of range."""
    valid = (parent >= 0) & (coordinate > -LIMIT) & (coordinate < LIMIT)
    return np.where(valid, (parent.astype(np.int64) << 32) + (coordinate + BIAS), np.int64(-1))


def lookup(index: CoordIndex, coords: np.ndarray) -> np.ndarray:
    """Row of each of (m, 4) integer coordinates, int32; -1 where there is no such site."""
    c = coords.astype(np.int64)
    slab = find(index.slab_keys, child_keys(c[:, 0], c[:, 1]))
    column = find(index.column_keys, child_keys(slab, c[:, 2]))
    rank = find(index.site_keys, child_keys(column, c[:, 3]))
    if index.order is None or index.size == 0:
        return rank
    return np.where(rank < 0, np.int32(-1), index.order[rank])
