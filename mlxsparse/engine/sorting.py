"""Sorting and grouping of sites, on the host: coordinates as four columns (batch, x, y, z).

Four coordinates are packed into one int64 where their extents allow (62 bits), which is nearly
always; otherwise a four-column sort does the same, slower.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Columns = Sequence[np.ndarray]  # four (n,) integer arrays
_PIECE = 1 << 16


class Layout(NamedTuple):
    """How `pack` laid four columns into an int64."""

    low: list[int]
    bits: list[int]


def columns_of(coords: np.ndarray) -> list[np.ndarray]:
    """(n, 4) -> four contiguous columns."""
    return list(np.ascontiguousarray(coords.T))


def pack(columns: Columns) -> tuple[np.ndarray, Layout] | None:
    """One int64 per site, ordered as the sites are; None where 62 bits do not hold the extents."""
    low = [int(c.min()) for c in columns]
    bits = [(int(c.max()) - least).bit_length() for c, least in zip(columns, low)]
    if sum(bits) > 62:
        return None
    n = len(columns[0])
    key = np.empty(n, np.int64)
    # In pieces that stay in cache: this is one pass over the columns instead of nine.
    for start in range(0, n, _PIECE):
        part = key[start : start + _PIECE]
        np.subtract(columns[0][start : start + _PIECE], low[0], out=part, casting="unsafe", dtype=np.int64)
        for column, least, width in zip(columns[1:], low[1:], bits[1:]):
            part <<= width
            part += column[start : start + _PIECE]
            if least:
                part -= least
    return key, Layout(low, bits)


def unpack(key: np.ndarray, layout: Layout) -> np.ndarray:
    """Inverse of `pack`: (n, 4) int64."""
    out = np.empty((len(key), 4), np.int64)
    for axis in (3, 2, 1):
        width = layout.bits[axis]
        out[:, axis] = (key & ((1 << width) - 1)) + layout.low[axis]
        key = key >> width
    out[:, 0] = key + layout.low[0]
    return out


def stable_argsort(key: np.ndarray, bits: int) -> np.ndarray:
    """Order of non-negative int64 keys below 2**bits, ties by position, int64."""
    n = len(key)
    row_bits = int(max(n - 1, 0)).bit_length()
    if bits + row_bits <= 63 and _vector_sort():
        both = (key << row_bits) | np.arange(n)
        both.sort()
        both &= (1 << row_bits) - 1
        return both
    # NumPy's stable sort of 16-bit integers is a radix sort; a pass per 16 bits beats one of 64.
    order: np.ndarray | None = None
    for shift in range(0, max(bits, 1), 16):
        digit = (key >> shift).astype(np.uint16)
        if order is None:
            order = digit.argsort(kind="stable")
        else:
            order = order.take(digit.take(order).argsort(kind="stable"))
    assert order is not None
    return order


@lru_cache(maxsize=1)
def _vector_sort() -> bool:
    """Whether NumPy sorts int64 by vector instructions on this machine (measured once)."""
    values = (np.arange(1 << 15, dtype=np.int64) * 2654435761) & ((1 << 31) - 1)
    spent = []
    for _ in range(3):
        copy = values.copy()
        start = time.perf_counter()
        copy.sort()
        spent.append(time.perf_counter() - start)
    return min(spent) < 15e-9 * len(values)


def lexicographic_order(columns: Columns) -> np.ndarray | None:
    """Positions in order of (batch, x, y, z), ties by position, int64; None when already so."""
    n = len(columns[0])
    if n < 2:
        return None
    packed = pack(columns)
    if packed is None:
        order = np.lexsort(columns[::-1])
        return None if np.array_equal(order, np.arange(n)) else order
    key, layout = packed
    return None if np.all(key[1:] >= key[:-1]) else stable_argsort(key, sum(layout.bits))


class Groups(NamedTuple):
    """Sites grouped by value."""

    sites: np.ndarray  # (u, 4) int64 distinct, sorted
    order: np.ndarray | None  # (n,) positions in sorted order, ties by position; None: as given
    starts: np.ndarray  # (u,) start of each group in that order

    def numbers(self, n: int) -> np.ndarray:
        """Group of each of the n positions, int32."""
        counts = np.diff(self.starts, append=n)
        sorted_numbers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        if self.order is None:
            return sorted_numbers
        out = np.empty(n, np.int32)
        out[self.order] = sorted_numbers
        return out


def group(columns: Columns) -> Groups:
    """Distinct sites of four columns, and which positions hold them."""
    n = len(columns[0])
    if n == 0:
        return Groups(np.empty((0, 4), np.int64), None, np.empty(0, np.int64))
    packed = pack(columns)
    first = np.ones(n, bool)
    if packed is not None:
        key, layout = packed
        order = None if np.all(key[1:] >= key[:-1]) else stable_argsort(key, sum(layout.bits))
        ranked = key if order is None else key.take(order)
        np.not_equal(ranked[1:], ranked[:-1], out=first[1:])
        starts = np.flatnonzero(first)
        return Groups(unpack(ranked.take(starts), layout), order, starts)
    order = np.lexsort(columns[::-1])
    rows = np.stack([c[order] for c in columns], axis=1).astype(np.int64)
    first[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    starts = np.flatnonzero(first)
    return Groups(rows[starts], order, starts)


def sorted_unique(columns: Columns) -> np.ndarray:
    """Distinct sites sorted by (batch, x, y, z): (u, 4) int64."""
    if len(columns[0]) == 0 or (packed := pack(columns)) is None:
        return group(columns).sites
    key, layout = packed
    if not np.all(key[1:] > key[:-1]):
        if _vector_sort():
            key.sort()
        else:
            key = key.take(stable_argsort(key, sum(layout.bits)))
        key = key.take(np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))))
    return unpack(key, layout)
