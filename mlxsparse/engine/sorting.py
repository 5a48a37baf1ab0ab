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
_WIDE = 256


ALIGN = 16  # coordinates are packed from a multiple of it on, so that fields halve as coordinates do


class Layout(NamedTuple):
    """How `pack` laid four columns into an int64: side by side, a value is ``(low + field) >> shift``."""

    low: list[int]
    bits: list[int]
    shift: tuple[int, ...] = (0, 0, 0, 0)


class Packed(NamedTuple):
    """Sites as one int64 each, sorted as they are."""

    key: np.ndarray  # (n,) int64
    layout: Layout


def columns_of(coords: np.ndarray) -> list[np.ndarray]:
    """(n, 4) -> four contiguous columns."""
    return list(np.ascontiguousarray(coords.T))


class Bounds(NamedTuple):
    """Least and largest value of four columns."""

    low: list[int]
    high: list[int]


def bounds_of(coords: np.ndarray) -> Bounds:
    """Bounds of the columns of (n, 4) contiguous coordinates, n > 0."""
    wide = len(coords) // _WIDE * _WIDE  # NumPy is quick where the axis that stays is long
    body = coords[:wide].reshape(-1, 4 * _WIDE) if wide else coords[:1]
    low, high = body.min(axis=0).reshape(-1, 4).min(axis=0), body.max(axis=0).reshape(-1, 4).max(axis=0)
    rest = coords[wide:] if wide < len(coords) else coords[:1]
    low, high = np.minimum(low, rest.min(axis=0)), np.maximum(high, rest.max(axis=0))
    return Bounds(low.tolist(), high.tolist())


def _bounds_of(columns: Columns) -> Bounds:
    n = len(columns[0])
    pieces = [slice(start, start + _PIECE) for start in range(0, n, _PIECE)]
    lows, highs = np.empty((len(pieces), 4), np.int64), np.empty((len(pieces), 4), np.int64)

    def measure(i: int) -> None:
        for axis, column in enumerate(columns):
            part = column[pieces[i]]
            lows[i, axis], highs[i, axis] = part.min(), part.max()

    parallel(measure, len(pieces), small=n < SPLIT)
    return Bounds(lows.min(axis=0).tolist(), highs.max(axis=0).tolist())


def pack(columns: Columns, bounds: Bounds | None = None) -> tuple[np.ndarray, Layout] | None:
    """One int64 per site, ordered as the sites are; None where 62 bits do not hold the extents."""
    n = len(columns[0])
    low, high = _bounds_of(columns) if bounds is None else bounds
    low = [low[0], *(least // ALIGN * ALIGN for least in low[1:])]
    bits = [(most - least).bit_length() for most, least in zip(high, low)]
    if sum(bits) > 62:
        return None
    key = scratch(n, np.int64)
    # In pieces that stay in cache: one pass over the columns instead of seven.
    pieces = [slice(start, start + _PIECE) for start in range(0, n, _PIECE)]
    compiled = fast.available() and all(c.dtype == np.int32 for c in columns)

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

    parallel(fill, len(pieces), small=n < SPLIT)
    return key, Layout(low, bits)


def unpack(key: np.ndarray, layout: Layout) -> np.ndarray:
    """Inverse of `pack`: (n, 4) int32, or int64 where int32 does not hold them."""
    low, bits, shift = layout
    fits = all(-(2**31) <= least and least + (1 << width) <= 2**31 for least, width in zip(low, bits))
    out = np.empty((len(key), 4), np.int32 if fits else np.int64)
    starts = range(0, len(key), _PIECE)

    def work(i: int) -> None:
        part = key[starts[i] : starts[i] + _PIECE]
        rows = out[starts[i] : starts[i] + _PIECE]
        if fits and fast.available():
            fast.unpack(part, low, bits, shift, rows)
            return
        for axis in (3, 2, 1, 0):
            field = part if axis == 0 else part & ((1 << bits[axis]) - 1)
            if shift[axis]:
                np.right_shift(field + low[axis], shift[axis], out=rows[:, axis], casting="unsafe")
            else:
                np.add(field, low[axis], out=rows[:, axis], casting="unsafe")
            part = part >> bits[axis]

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


class Order(NamedTuple):
    """Four columns in order of (batch, x, y, z), ties by position."""

    order: np.ndarray | None  # (n,) int64 positions; None when already so
    twice: int | None  # a place in that order whose site is the one before it; None without duplicates
    packed: Packed | None  # the sites in that order; None where 62 bits do not hold them


def lexicographic_order(columns: Columns, bounds: Bounds | None = None) -> Order:
    n = len(columns[0])
    if n < 2:
        return Order(None, None, None)
    packed = pack(columns, bounds)
    if packed is None:
        slow = np.lexsort(columns[::-1])
        same = np.ones(n - 1, bool)
        for column in columns:
            ranked = column.take(slow)
            same &= ranked[1:] == ranked[:-1]
        twice = int(same.argmax()) + 1 if same.any() else None
        return Order(None if np.array_equal(slow, np.arange(n)) else slow, twice, None)
    key, layout = packed
    order, ranked = (None, key) if is_sorted(key) else sort_keys(key, sum(layout.bits))
    same = ranked[1:] == ranked[:-1]
    return Order(order, int(same.argmax()) + 1 if same.any() else None, Packed(ranked, layout))


def is_sorted(key: np.ndarray) -> bool:
    return bool(np.all(key[1:] >= key[:-1]))


def starts_of(ranked: np.ndarray) -> np.ndarray:
    """Where runs of equal sorted keys start, int64."""
    new = np.ones(len(ranked), bool)
    np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
    return np.flatnonzero(new)


def distinct(key: np.ndarray) -> np.ndarray:
    """Distinct keys, sorted: np.unique of them alone hashes, which from NumPy 2.3 takes ten times as long."""
    ranked = key if is_sorted(key) else np.sort(key)
    return ranked[starts_of(ranked)]


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


def halved_runs(sites: Packed, shift: tuple[int, int, int]) -> tuple[Runs, Packed] | None:
    """Runs of ``c >> shift`` of sorted sites, and these packed; None where the layout does not allow it.

    Dropping low bits keeps the order of batch and x, so each thread sorts a stretch of its own.
    """
    key, (low, bits, had) = sites
    n = len(key)
    moved = (0, *(a + b for a, b in zip(had[1:], shift)))
    if n == 0 or any(least & ((1 << s) - 1) for least, s in zip(low, moved)):
        return None
    places = [bits[1] + bits[2] + bits[3], bits[2] + bits[3], bits[3], 0]
    gone = sum((1 << min(s, width)) - 1 << place for s, width, place in zip(moved, bits, places))
    layout = Layout(low, bits, moved)
    middle = (int(key[n // 2]) & ~gone) >> places[1] << places[1]
    ends = [0, int(np.searchsorted(key, middle)), n]
    ends = [0, n] if n < SPLIT // 4 or ends[1] == 0 or num_threads() == 1 else ends
    order, ranked = scratch(n, np.int64), scratch(n, np.int64)

    def sort(i: int) -> None:
        here = slice(ends[i], ends[i + 1])
        part = np.bitwise_and(key[here], ~gone, out=ranked[here])
        found = fast.sort_part(part, sum(bits)) if fast.available() else None
        if found is None:
            local = _argsort(part, sum(bits))
            found = local, part.take(local)
        np.add(found[0], ends[i], out=order[here])
        ranked[here] = found[1]

    parallel(sort, len(ends) - 1)
    starts = starts_of(ranked)
    coarse = Packed(ranked.take(starts), layout)
    return Runs(unpack(coarse.key, layout), order, starts), coarse


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
