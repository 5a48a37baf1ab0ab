"""Sorted coordinate index: any int32 coordinates, no packing limit.

Sites sorted by (batch, x, y, z) form a three-level tree: slabs (batch, x), columns (slab, y), sites
(column, z). Each level's key is one int64, ``parent << 32 | coordinate + 2**31``, sorted, so a
coordinate is found by three binary searches whatever its range. A site's place in this order is its
*rank*; `order` turns a rank into a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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


def pack(columns: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, list[int]]] | None:
    """One int64 per column of (4, n) int64 coordinates, ordered as they are; None past 62 bits."""
    low, high = columns.min(axis=1), columns.max(axis=1)
    bits = [int(span).bit_length() for span in high - low]
    if sum(bits) > 62:
        return None
    key = columns[0] - low[0]
    for axis in (1, 2, 3):
        key <<= bits[axis]
        key += columns[axis] - low[axis]
    return key, (low, bits)


def unpack(key: np.ndarray, layout: tuple[np.ndarray, list[int]]) -> np.ndarray:
    """Inverse of `pack`: (n, 4) int64."""
    low, bits = layout
    out = np.empty((len(key), 4), np.int64)
    for axis in (3, 2, 1):
        np.bitwise_and(key, (1 << bits[axis]) - 1, out=out[:, axis])
        key = key >> bits[axis]
    out[:, 0] = key
    out += low
    return out


def lexicographic_order(coords: np.ndarray) -> np.ndarray | None:
    """Rows of (n, 4) in lexicographic order, ties by row, int64; None when already in order."""
    n = len(coords)
    if n < 2:
        return None
    columns = np.ascontiguousarray(coords.T, dtype=np.int64)
    packed = pack(columns)
    if packed is None:
        order = np.lexsort(columns[::-1])
        return None if np.array_equal(order, np.arange(n)) else order
    key, (_, bits) = packed
    if np.all(key[1:] >= key[:-1]):
        return None
    row_bits = int(n - 1).bit_length()
    if sum(bits) + row_bits <= 63:
        # Sorting key and row together is several times faster than argsort.
        key <<= row_bits
        key |= np.arange(n)
        key.sort()
        key &= (1 << row_bits) - 1
        return key
    return np.argsort(key, kind="stable")


def sorted_unique(coords: np.ndarray) -> np.ndarray:
    """Distinct rows of (n, 4) integers, sorted by (batch, x, y, z), int64."""
    if len(coords) == 0:
        return np.empty((0, 4), np.int64)
    columns = np.ascontiguousarray(coords.T, dtype=np.int64)
    packed = pack(columns)
    if packed is not None:
        key, layout = packed
        if not np.all(key[1:] > key[:-1]):
            key.sort()
            key = key[np.concatenate(([True], key[1:] != key[:-1]))]
        return unpack(key, layout)
    rows = columns.T[np.lexsort(columns[::-1])]
    return rows[np.concatenate(([True], np.any(rows[1:] != rows[:-1], axis=1)))]


def _level(parent: np.ndarray, coordinate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys of one tree level over sorted rows: (distinct keys and sentinel, group of each row)."""
    key = (parent.astype(np.int64) << 32) + (coordinate + BIAS)
    first = np.empty(len(key), bool)
    first[:1] = True
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return np.append(key[first], _END), np.cumsum(first, dtype=np.int32) - np.int32(1)


def build_index(coords: np.ndarray) -> CoordIndex:
    """Index of (n, 4) int32 coordinates; duplicates are reported, not raised."""
    order = lexicographic_order(coords)
    rows = coords if order is None else np.take(coords, order, axis=0)
    slab_keys, slab = _level(rows[:, 0], rows[:, 1])
    column_keys, column = _level(slab, rows[:, 2])
    first = np.empty(len(rows), bool)
    first[:1] = True
    np.not_equal(column[1:], column[:-1], out=first[1:])
    site_keys = np.append((column.astype(np.int64) << 32) + (rows[:, 3] + BIAS), _END)
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
    return np.where(keys[place] == wanted, place, -1).astype(np.int32)


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
