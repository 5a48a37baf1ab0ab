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

from ..backend import fast
from ..backend.host import num_threads, parallel, scratch

SPLIT = 200_000  # keys from which a second thread pays
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
    n = len(columns[0])
    # In pieces that stay in cache: one pass over the columns instead of nine.
    pieces = [slice(start, start + _PIECE) for start in range(0, n, _PIECE)]
    lows, highs = np.empty((len(pieces), 4), np.int64), np.empty((len(pieces), 4), np.int64)

    def measure(i: int) -> None:
        for axis, column in enumerate(columns):
            part = column[pieces[i]]
            lows[i, axis], highs[i, axis] = part.min(), part.max()

    small = n < SPLIT
    parallel(measure, len(pieces), small=small)
    low: list[int] = lows.min(axis=0).tolist()
    bits = [(high - least).bit_length() for high, least in zip(highs.max(axis=0).tolist(), low)]
    if sum(bits) > 62:
        return None
    key = scratch(n, np.int64)

    def fill(i: int) -> None:
        part = key[pieces[i]]
        np.subtract(columns[0][pieces[i]], low[0], out=part, casting="unsafe", dtype=np.int64)
        for column, least, width in zip(columns[1:], low[1:], bits[1:]):
            if not width:  # one value, which is `least`
                continue
            part <<= width
            part += column[pieces[i]]
            if least:
                part -= least

    parallel(fill, len(pieces), small=small)
    return key, Layout(low, bits)


def unpack(key: np.ndarray, layout: Layout) -> np.ndarray:
    """Inverse of `pack`: (n, 4) int32, or int64 where int32 does not hold them."""
    fits = all(-(2**31) <= low and low + (1 << width) <= 2**31 for low, width in zip(*layout))
    out = np.empty((len(key), 4), np.int32 if fits else np.int64)
    starts = range(0, len(key), _PIECE)

    def work(i: int) -> None:
        part = key[starts[i] : starts[i] + _PIECE]
        rows = out[starts[i] : starts[i] + _PIECE]
        for axis in (3, 2, 1):
            width, low = layout.bits[axis], layout.low[axis]
            np.add(part & ((1 << width) - 1), low, out=rows[:, axis], casting="unsafe")
            part = part >> width
        np.add(part, layout.low[0], out=rows[:, 0], casting="unsafe")

    parallel(work, len(starts), small=len(key) < SPLIT)
    return out


def stable_argsort(key: np.ndarray, bits: int) -> np.ndarray:
    """Order of non-negative int64 keys below 2**bits, ties by position, int64."""
    n = len(key)
    row_bits = int(max(n - 1, 0)).bit_length()
    if bits + row_bits <= 63 and (fast.available() or _vector_sort()):
        both = (key << row_bits) | np.arange(n)
        if fast.available():
            both = fast.sort_bits(both, row_bits, row_bits + bits)
        else:
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
    """Positions grouped by the site they hold."""

    sites: np.ndarray  # (u, 4) int32 distinct, sorted; int64 where int32 does not hold them
    numbers: np.ndarray  # (n,) int32 group of each position
    first: np.ndarray  # (u,) int64 lowest position of each group


def group(columns: Columns) -> Groups:
    """Distinct sites of four columns, and which positions hold them."""
    n = len(columns[0])
    if n == 0:
        return Groups(np.empty((0, 4), np.int64), np.empty(0, np.int32), np.empty(0, np.int64))
    packed = pack(columns)
    if packed is not None:
        key, layout = packed
        distinct, numbers, first = _group_keys(key, sum(layout.bits))
        return Groups(unpack(distinct, layout), numbers, first)
    order = np.lexsort(columns[::-1])
    rows = np.stack([c[order] for c in columns], axis=1).astype(np.int64)
    new = np.ones(n, bool)
    np.any(rows[1:] != rows[:-1], axis=1, out=new[1:])
    starts = np.flatnonzero(new)
    numbers = np.empty(n, np.int32)
    numbers[order] = _running_number(new)
    return Groups(rows[starts], numbers, order[starts])


def _running_number(new: np.ndarray) -> np.ndarray:
    number = np.cumsum(new, dtype=np.int32)
    number -= 1
    return number


def _group_keys(key: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(distinct keys sorted, (n,) int32 group of each position, lowest position of each group)."""
    n = len(key)
    if np.all(key[1:] >= key[:-1]):
        new = np.ones(n, bool)
        np.not_equal(key[1:], key[:-1], out=new[1:])
        first = np.flatnonzero(new)
        return key.take(first), _running_number(new), first
    if fast.available() and (compiled := fast.group_keys(key, bits)) is not None:
        return compiled
    # Each thread takes the keys of one range, so that ranges only have to be put end to end.
    edges = _quantiles(key, 1 if n < SPLIT else num_threads())
    parts = len(edges) + 1
    inside = [_between(key, edges, i) for i in range(parts)]
    ends = np.cumsum([0] + [np.count_nonzero(b) for b in inside]) if parts > 1 else np.array([0, n])
    ranked, rows, place, numbers = (scratch(n, d) for d in (np.int64, np.int64, np.int64, np.int32))
    found: list[np.ndarray] = [key] * parts

    def sort(i: int) -> None:
        here = slice(ends[i], ends[i + 1])
        if parts > 1:
            place[here] = np.flatnonzero(inside[i])
            part = np.take(key, place[here], out=ranked[here], mode="clip")
            order = stable_argsort(part, bits)
            np.take(place[here], order, out=rows[here], mode="clip")
            np.take(key, rows[here], out=ranked[here], mode="clip")
        else:
            rows[:] = stable_argsort(key, bits)
            np.take(key, rows, out=ranked, mode="clip")
        new = np.ones(ends[i + 1] - ends[i], bool)
        np.not_equal(ranked[here][1:], ranked[here][:-1], out=new[1:])
        found[i] = np.flatnonzero(new)
        place[here] = np.cumsum(new, out=place[here])

    parallel(sort, parts)
    offsets = np.cumsum([0] + [len(starts) for starts in found])

    def number(i: int) -> None:
        here = slice(ends[i], ends[i + 1])
        place[here] += offsets[i] - 1
        numbers[rows[here]] = place[here]

    parallel(number, parts)
    starts = np.concatenate([starts + end for starts, end in zip(found, ends)])
    return ranked.take(starts), numbers, rows.take(starts)


def _between(key: np.ndarray, edges: np.ndarray, i: int) -> np.ndarray:
    """Which keys lie in the i-th range that `edges` cut."""
    if len(edges) == 0:
        return np.ones(0, bool)
    if i == 0:
        return key < edges[0]
    return key >= edges[i - 1] if i == len(edges) else (key >= edges[i - 1]) & (key < edges[i])


def _quantiles(key: np.ndarray, parts: int) -> np.ndarray:
    """At most parts - 1 distinct keys that cut `key` into ranges of about equal size."""
    if parts == 1:
        return key[:0]
    sample = np.sort(key[:: max(1, len(key) // 1024)])
    return np.unique(sample[np.arange(1, parts) * len(sample) // parts])


def sorted_unique(columns: Columns) -> np.ndarray:
    """Distinct sites sorted by (batch, x, y, z): (u, 4) int32 (int64 if it takes that)."""
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
