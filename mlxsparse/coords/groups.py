"""Rows of a coordinate set by window, patch along a curve, or batch item: made once, kept in its record."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ..engine.curves import curve_order
from ..engine.segments import Segments, Side
from ..engine.sorting import group_runs
from .geometry import Triple
from .keys import CoordinateMapKey, Record, Rule

Kept = TypeVar("Kept")


def kept(key: CoordinateMapKey, rule: Rule, make: Callable[[], Kept]) -> Kept:
    """What `rule` names, from the record of `key`, or made."""
    with key.manager.lock:
        groups = key._record.groups
        if rule not in groups:
            groups[rule] = make()
        found: Kept = groups[rule]
        return found


def windows(key: CoordinateMapKey, window: Triple, shift: Triple) -> Segments:
    """Sites of one floor((c + shift) / window), in the order of their coordinates."""
    shift = (shift[0] % window[0], shift[1] % window[1], shift[2] % window[2])

    def make() -> Segments:
        index = key.index
        batch, *axes = index.columns
        cells = ((c + np.int32(s)) // np.int32(w) for c, s, w in zip(axes, shift, window))
        runs = group_runs([batch, *cells])
        side = Side(_rows(index.order, runs.order, index.size), np.append(runs.starts, index.size))
        return Segments(side, side)

    return kept(key, ("windows", window, shift), make)


def items(key: CoordinateMapKey) -> Side:
    """Sites of each batch item, in the order of their coordinates."""

    def make() -> Side:
        index = key.index
        starts = np.concatenate(([0], np.cumsum(key.counts))).astype(np.int64)
        return Side(_rows(index.order, None, index.size), starts)

    return kept(key, ("items",), make)


def whole_items(key: CoordinateMapKey) -> Segments:
    """Each batch item with itself."""

    def make() -> Segments:
        side = items(key)
        return Segments(side, side)

    return kept(key, ("whole items",), make)


def items_with(key: CoordinateMapKey, other: CoordinateMapKey) -> Segments:
    """Each batch item of `key` with the same item of `other`; kept while both live."""
    pairs: weakref.WeakKeyDictionary[Record, Segments] = kept(key, ("items with",), weakref.WeakKeyDictionary)
    with key.manager.lock:
        found = pairs.get(other._record)
        if found is None:
            found = pairs[other._record] = Segments(items(key), items(other))
        return found


def patches(
    key: CoordinateMapKey, size: int, order: str, depth: int | None, borrow: bool
) -> tuple[Segments, np.ndarray | None]:
    """Patches of `size` sites along a curve, item by item; with `borrow` the row of each key position.

    borrow: the last patch of an item also has the keys before it, `size` in all, so that a row can be the
    key of two patches. Its key positions are not rows; None where no row is.
    """

    def make() -> tuple[Segments, np.ndarray | None]:
        rows = curve_order(key._record.rows(), order, depth).astype(np.int32)
        counts = key.counts
        number = -(-counts // size)
        item = np.repeat(np.arange(len(counts)), number)
        first = np.cumsum(counts) - counts
        inside = (np.arange(len(item)) - np.repeat(np.cumsum(number) - number, number)) * size
        begin = first[item] + inside
        side = Side(rows, np.append(begin, len(rows)))
        end = np.append(begin[1:], len(rows))
        low = np.where(end - begin < size, np.maximum(end - size, first[item]), begin) if borrow else begin
        if np.array_equal(low, begin):
            return Segments(side, side), None
        lengths = end - low
        starts = np.concatenate(([0], np.cumsum(lengths)))
        place = np.arange(starts[-1]) + np.repeat(low - starts[:-1], lengths)
        keys = Side(np.arange(starts[-1], dtype=np.int32), starts)
        return Segments(side, keys), rows[place]

    return kept(key, ("patches", size, order, depth, borrow), make)


def _rows(order: np.ndarray | None, ranks: np.ndarray | None, size: int) -> np.ndarray:
    if ranks is None:
        return np.arange(size, dtype=np.int32) if order is None else order.astype(np.int32)
    return (ranks if order is None else order.take(ranks)).astype(np.int32)
