"""Sorting and grouping of sites, on the host: coordinates as four columns (batch, x, y, z).

Four coordinates are packed into one int64 where their extents allow (62 bits), which is nearly
always; otherwise a four-column sort does the same, slower.
"""

from __future__ import annotations

import sys
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
    compiled = fast.available() and all(c.dtype == np.int32 and c.flags.c_contiguous for c in columns)

    def fill(i: int) -> None:
        part = key[pieces[i]]
        if compiled:
            fast.pack([c[pieces[i]] for c in columns], low, bits, part)
            return
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
    return sort_keys(key, bits)[0]


def sort_keys(key: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """As `stable_argsort`, and the keys in that order."""
    n = len(key)
    if fast.available() and (compiled := fast.sort_keys(key, bits)) is not None:
        return compiled
    # Each thread takes the keys of one range, so that ranges only have to be put end to end.
    edges = _quantiles(key, 1 if n < SPLIT else num_threads())
    if len(edges) == 0:
        order = _argsort(key, bits)
        return order, key.take(order)
    inside = [_between(key, edges, i) for i in range(len(edges) + 1)]
    ends = np.cumsum([0] + [np.count_nonzero(b) for b in inside])
    order, ranked, place = (scratch(n, np.int64) for _ in range(3))

    def sort(i: int) -> None:
        here = slice(ends[i], ends[i + 1])
        place[here] = np.flatnonzero(inside[i])
        part = np.take(key, place[here], out=ranked[here], mode="clip")
        np.take(place[here], _argsort(part, bits), out=order[here], mode="clip")
        np.take(key, order[here], out=ranked[here], mode="clip")

    parallel(sort, len(inside))
    return order, ranked


def _argsort(key: np.ndarray, bits: int) -> np.ndarray:
    n = len(key)
    row_bits = int(max(n - 1, 0)).bit_length()
    if bits + row_bits <= 63 and _vector_sort():
        both = (key << row_bits) | np.arange(n)
        both.sort()
        both &= (1 << row_bits) - 1
        return both
    # NumPy's stable sort of 16-bit integers is a radix sort; a pass per 16 bits beats one of 64.
    digits = np.ascontiguousarray(key).view(np.uint16).reshape(n, 4)
    digits = digits if sys.byteorder == "little" else digits[:, ::-1]
    digit = scratch(n, np.uint16)
    digit[:] = digits[:, 0]
    order = digit.argsort(kind="stable")
    for i in range(1, -(-bits // 16)):
        np.take(digits[:, i], order, out=digit, mode="clip")
        order = np.take(order, digit.argsort(kind="stable"), out=scratch(n, np.int64), mode="clip")
    return order


def _between(key: np.ndarray, edges: np.ndarray, i: int) -> np.ndarray:
    """Which keys lie in the i-th range that `edges` cut."""
    if i == 0:
        return key < edges[0]
    return key >= edges[i - 1] if i == len(edges) else (key >= edges[i - 1]) & (key < edges[i])


def _quantiles(key: np.ndarray, parts: int) -> np.ndarray:
    """At most parts - 1 distinct keys that cut `key` into ranges of about equal size."""
    if parts == 1:
        return key[:0]
    sample = np.sort(key[:: max(1, len(key) // 1024)])
    return np.unique(sample[np.arange(1, parts) * len(sample) // parts])


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


def lexicographic_order(columns: Columns) -> tuple[np.ndarray | None, int | None]:
    """(positions in order of (batch, x, y, z), ties by position, int64; None when already so,
    a place in that order whose site is the one before it; None without duplicates)."""
    n = len(columns[0])
    if n < 2:
        return None, None
    packed = pack(columns)
    if packed is None:
        slow = np.lexsort(columns[::-1])
        same = np.ones(n - 1, bool)
        for column in columns:
            ranked = column.take(slow)
            same &= ranked[1:] == ranked[:-1]
        twice = int(same.argmax()) + 1 if same.any() else None
        return None if np.array_equal(slow, np.arange(n)) else slow, twice
    key, layout = packed
    order, ranked = (None, key) if is_sorted(key) else sort_keys(key, sum(layout.bits))
    same = ranked[1:] == ranked[:-1]
    return order, int(same.argmax()) + 1 if same.any() else None


def is_sorted(key: np.ndarray) -> bool:
    return bool(np.all(key[1:] >= key[:-1]))


def starts_of(ranked: np.ndarray) -> np.ndarray:
    """Where runs of equal sorted keys start, int64."""
    new = np.ones(len(ranked), bool)
    np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
    return np.flatnonzero(new)


class Groups(NamedTuple):
    """Positions grouped by the site they hold."""

    sites: np.ndarray  # (u, 4) int32 distinct, sorted; int64 where int32 does not hold them
    numbers: np.ndarray  # (n,) int32 group of each position
    first: np.ndarray  # (u,) int64 lowest position of each group
    counts: np.ndarray  # (u,) int64 positions of each group


def group(columns: Columns) -> Groups:
    """Distinct sites of four columns, and which positions hold them."""
    n = len(columns[0])
    if n and fast.available() and (packed := pack(columns)) is not None:
        key, layout = packed
        compiled = None if is_sorted(key) else fast.group_keys(key, sum(layout.bits))
        if compiled is not None:
            return Groups(unpack(compiled[0], layout), *compiled[1:])
    runs = group_runs(columns)
    order, starts = runs.order, runs.starts
    numbers = scratch(n, np.int32)
    counts = np.diff(starts, append=n)
    # In two halves of the groups, a thread each.
    half = len(starts) // 2

    def number(i: int) -> None:
        low, high = (half, len(starts)) if i else (0, half)
        mine = np.repeat(np.arange(low, high, dtype=np.int32), counts[low:high])
        here = slice(starts[low] if low < len(starts) else n, n if high == len(starts) else starts[high])
        numbers[here if order is None else order[here]] = mine

    parallel(number, 2, small=n < SPLIT)
    return Groups(runs.sites, numbers, starts if order is None else order.take(starts), counts)


class Runs(NamedTuple):
    """Positions in the order of the site they hold."""

    sites: np.ndarray  # (u, 4) as in Groups
    order: np.ndarray | None  # (n,) int64 positions by site, ties by position; None: as given
    starts: np.ndarray  # (u,) int64 start of each site in that order


def group_runs(columns: Columns) -> Runs:
    """As `group`, by order instead of by number."""
    n = len(columns[0])
    if n == 0:
        return Runs(np.empty((0, 4), np.int32), None, np.empty(0, np.int64))
    packed = pack(columns)
    if packed is not None:
        key, layout = packed
        order, ranked = (None, key) if is_sorted(key) else sort_keys(key, sum(layout.bits))
        starts = starts_of(ranked)
        return Runs(unpack(ranked.take(starts), layout), order, starts)
    order = np.lexsort(columns[::-1])
    rows = np.stack([c[order] for c in columns], axis=1).astype(np.int64)
    new = np.ones(n, bool)
    np.any(rows[1:] != rows[:-1], axis=1, out=new[1:])
    starts = np.flatnonzero(new)
    return Runs(rows[starts], order, starts)


def sorted_unique(columns: Columns) -> np.ndarray:
    """Distinct sites sorted by (batch, x, y, z): (u, 4) int32 (int64 if it takes that)."""
    if len(columns[0]) == 0 or (packed := pack(columns)) is None:
        return group_runs(columns).sites
    key, layout = packed
    if not np.all(key[1:] > key[:-1]):
        if _vector_sort() and not fast.available():
            key.sort()
        else:
            key = sort_keys(key, sum(layout.bits))[1]
        key = key.take(starts_of(key))
    return unpack(key, layout)
