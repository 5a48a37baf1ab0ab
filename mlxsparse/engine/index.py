"""Sorted coordinate index: any int32 coordinates, no packing limit.

Sites sorted by (batch, x, y, z) form a three-level tree: slabs (batch, x), columns (slab, y), sites
(column, z). Each level's key is one int64, ``parent << 32 | coordinate + 2**31``, sorted, so a
coordinate is found by three binary searches whatever its range. A site's place in this order is its
*rank*; `order` turns a rank into a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .sorting import columns_of, lexicographic_order

BIAS = np.int64(2**31)
LIMIT = 2**30  # coordinates lie in (-LIMIT, LIMIT)
_END = np.int64(2**63 - 1)


class CoordIndex(NamedTuple):
    """Index of `n` sites; arrays by rank, key arrays with one closing sentinel."""

    order: np.ndarray | None  # (n,) int32 row of each rank; None: rows are in rank order
    coords: np.ndarray  # (n, 4) int32, sorted
    slab_keys: np.ndarray  # (S + 1,) int64 batch << 32 | x
    column_slab: np.ndarray  # (M,) int32
    column_keys: np.ndarray  # (M + 1,) int64 slab << 32 | y
    site_column: np.ndarray  # (n,) int32
    site_keys: np.ndarray  # (n + 1,) int64 column << 32 | z
    duplicate: tuple[int, int] | None  # two rows with the same coordinates

    @property
    def size(self) -> int:
        return len(self.coords)


def _level(parent: np.ndarray, coordinate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys of one tree level over sorted rows: (distinct keys and sentinel, group of each row)."""
    key = (parent.astype(np.int64) << 32) + (coordinate + BIAS)
    first = np.empty(len(key), bool)
    first[:1] = True
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return np.append(key[first], _END), np.cumsum(first, dtype=np.int32) - np.int32(1)


def build_index(coords: np.ndarray, *, presorted: bool = False) -> CoordIndex:
    """Index of (n, 4) int32 coordinates; duplicates are reported, not raised.

    presorted: the rows are known to be in order.
    """
    columns = columns_of(coords)
    order = None if presorted else lexicographic_order(columns)
    rows = coords if order is None else np.take(coords, order, axis=0)
    b, x, y, z = columns if order is None else [np.take(column, order) for column in columns]
    slab_keys, slab = _level(b, x)
    column_keys, column = _level(slab, y)
    first = np.empty(len(rows), bool)
    first[:1] = True
    np.not_equal(column[1:], column[:-1], out=first[1:])
    site_keys = np.append((column.astype(np.int64) << 32) + (z + BIAS), _END)
    same = np.flatnonzero(site_keys[1:-1] == site_keys[:-2])
    duplicate = None
    if len(same):
        a = int(same[0])
        duplicate = (a, a + 1) if order is None else (int(order[a]), int(order[a + 1]))
    return CoordIndex(
        order=None if order is None else order.astype(np.int32),
        coords=np.ascontiguousarray(rows),
        slab_keys=slab_keys,
        column_slab=slab[first],
        column_keys=column_keys,
        site_column=column,
        site_keys=site_keys,
        duplicate=duplicate,
    )


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
