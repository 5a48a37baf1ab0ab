"""Who sees whom, as labels of queries and keys: joined over connections, and laid out in blocks.

Rows that have the same labels everywhere are one class: their queries see the same keys, their keys are seen
by the same queries. A program is then a relation between classes, and attention over it is exact in blocks
once the rows of a class are next to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..blocksparse import BlockLayout
from ..engine.sorting import distinct, group, starts_of
from ..errors import MLXSparseError
from .attend import CompiledProgram

BLOCKS = (64, 32, 16, 8, 4, 2, 1)
# What things cost beside the pairs of rows in blocks, in pairs.
PER_BLOCK = 256
PER_RUN = 8192  # block rows of one class that are met at a time
PER_ROW = 256
SEGMENTS = 1.25  # how much dearer a pair is where segments are compared
RUN_ROWS = 128
MAX_PAIRS = 2**26


class Relation(NamedTuple):
    """query, key (n,) integer labels of each row, -1 for none; links (m, 2) distinct pairs (query, key)."""

    query: np.ndarray
    key: np.ndarray
    links: np.ndarray


def ranges(counts: np.ndarray) -> np.ndarray:
    """0, .. counts[0] - 1, 0, .. counts[1] - 1, .."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def numbered(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n,) of distinct rows of columns, sorted by them, and one place (u,) of each."""
    n = len(columns[0])
    ids, first = np.zeros(n, np.int32), np.zeros(min(n, 1), np.int64)
    for start in range(0, len(columns), 3):
        some = [*columns[start : start + 3], *(np.zeros(n, np.int32),) * 2][:3]
        found = group([ids, *(np.ascontiguousarray(c, np.int32) for c in some)])
        ids, first = found.numbers.copy(), found.first.copy()
    return ids, first


def relation_of_pairs(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], n: int) -> Relation:
    """What index pairs say, of which no two share a query: equal key sets are one label, and so are keys
    that are in the same sets."""
    query, key = np.full((2, n), -1, np.int32)
    known: dict[bytes, int] = {}
    sets = [np.zeros(0, np.int64)]
    for queries, keys in pairs:
        seen = np.asarray(keys, np.int64)
        label = known.setdefault(seen.tobytes(), len(known))
        if len(known) == len(sets):
            sets.append(seen)
        query[np.asarray(queries, np.int64)] = label
    cols = np.concatenate(sets)
    labels = np.repeat(np.arange(len(sets)) - 1, [len(s) for s in sets])
    order = np.argsort(cols, kind="stable")
    cols, labels = cols[order], labels[order]
    starts = starts_of(cols)
    counts = np.diff(starts, append=len(cols))
    # The labels of the sets that a key is in, one after the other, tell it from others.
    ids, made, rest = np.zeros(len(starts), np.int64), 1, np.arange(len(starts))
    for depth in range(int(counts.max(initial=0))):
        rest = rest[counts[rest] > depth]
        code = ids[rest] * len(sets) + labels[starts[rest] + depth]
        found, number = np.unique(code, return_inverse=True)
        ids[rest] = made + number
        made += len(found)
    _, first, number = np.unique(ids, return_index=True, return_inverse=True)
    key[cols[starts]] = number
    seen_by = labels[np.repeat(starts[first], counts[first]) + ranges(counts[first])]
    links = np.column_stack([seen_by, np.repeat(np.arange(len(first)), counts[first])])
    return Relation(query, key, links)


class Classes(NamedTuple):
    """Rows that take part, by class: order (r,) rows, counts (u,), and the pairs (m,) of classes that see."""

    order: np.ndarray
    counts: np.ndarray
    queries: np.ndarray
    keys: np.ndarray


def classes_of(relations: Sequence[Relation], n: int) -> Classes:
    none = np.zeros(0, np.int64)
    if n == 0 or not relations:
        return Classes(none, none, none, none)
    columns = [labels for r in relations for labels in (r.query, r.key)]
    ids, first = numbered(columns)
    total = len(first)
    found = [none]
    for r in relations:
        found.append(_class_pairs(r.query[first], r.key[first], r.links) @ np.array([total, 1]))
    queries, keys = np.divmod(distinct(np.concatenate(found)), total)
    # Classes that see nothing and are not seen have no place.
    used = np.zeros(total, bool)
    used[queries] = used[keys] = True
    number = np.cumsum(used) - 1
    order = np.argsort(ids, kind="stable")
    counts = np.bincount(ids, minlength=total)
    order = order[np.repeat(used, counts)]
    return Classes(order, counts[used], number[queries], number[keys])


def _class_pairs(query: np.ndarray, key: np.ndarray, links: np.ndarray) -> np.ndarray:
    """(m, 2) pairs of classes that the links join; query, key: labels of the classes."""
    sides = []
    for labels, wanted in ((query, links[:, 0]), (key, links[:, 1])):
        order = np.argsort(labels, kind="stable")
        ranked = labels[order]
        start = np.searchsorted(ranked, wanted)
        sides.append((order, start, np.searchsorted(ranked, wanted, side="right") - start))
    (q_order, q_start, q_count), (k_order, k_start, k_count) = sides
    per_link = q_count * k_count
    _limit(int(per_link.sum()), "pairs of classes")
    link = np.repeat(np.arange(len(links)), per_link)
    place = ranges(per_link)
    width = k_count[link]
    return np.column_stack(
        [q_order[q_start[link] + place // width], k_order[k_start[link] + place % width]]
    ).astype(np.int64)


def _limit(count: int, what: str) -> None:
    if count > MAX_PAIRS:
        raise MLXSparseError(
            f"the program has {count} {what}, at most {MAX_PAIRS}; use larger tiles or fewer regions"
        )


class Places(NamedTuple):
    """Where classes lie: start, end (u,) positions, of `size`; their blocks [first, last) of `block` rows."""

    start: np.ndarray
    end: np.ndarray
    size: int
    block: int
    aligned: bool

    @property
    def first(self) -> np.ndarray:
        return self.start // self.block

    @property
    def last(self) -> np.ndarray:
        return -(-self.end // self.block)

    def nnz(self, c: Classes) -> int:
        """Blocks of the pairs, shared ones counted twice."""
        height = self.last - self.first
        return int((height[c.queries] * height[c.keys]).sum())

    def cost(self, c: Classes) -> float:
        pairs = self.block * self.block * (1.0 if self.aligned else SEGMENTS)
        runs = int((-(-c.counts // RUN_ROWS)).sum()) if self.aligned else -(-self.size // self.block)
        return self.nnz(c) * (pairs + PER_BLOCK) + runs * PER_RUN + self.size * PER_ROW


def places(c: Classes, block: int, aligned: bool) -> Places:
    room = -(-c.counts // block) * block if aligned else c.counts
    start = np.cumsum(room) - room
    return Places(start, start + c.counts, int(room.sum()), block, aligned)


def lay_out(relations: Sequence[Relation], n: int, block: int | None) -> CompiledProgram:
    """The cheapest layout: classes padded to whole blocks, or, where each class sees just one and is seen by
    just one, packed, with segments that keep the neighbours in a block apart."""
    c = classes_of(relations, n)
    matching = all(len(distinct(side)) == len(side) for side in (c.queries, c.keys))
    sizes = BLOCKS if block is None else (block,)
    tried = [places(c, b, aligned) for b in sizes for aligned in ((True, False) if matching else (True,))]
    best = min(tried, key=lambda p: p.cost(c))
    _limit(best.nnz(c), f"blocks of {best.block}")
    side = -(-best.size // best.block)
    keys = distinct(_block_pairs(c, best) @ np.array([side, 1]))
    square = (best.block, best.block)
    layout = BlockLayout._of((1, side, side), square, (best.size, best.size), keys)
    rows = np.full(best.size, -1, np.int32)
    place = np.repeat(best.start, c.counts) + ranges(c.counts)
    rows[place] = c.order
    segments = None
    if not best.aligned:
        numbers = np.full((2, len(c.counts)), -1, np.int32)
        numbers[1] = -2
        numbers[0, c.queries] = numbers[1, c.keys] = np.arange(len(c.queries))
        q, k = (np.repeat(side, c.counts) for side in numbers)
        segments = mx.array(q), mx.array(k)
    return CompiledProgram(layout, rows, n, segments)


def _block_pairs(c: Classes, p: Places) -> np.ndarray:
    first, height = p.first, p.last - p.first
    rows, cols = height[c.queries], height[c.keys]
    per_pair = rows * cols
    pair = np.repeat(np.arange(len(per_pair)), per_pair)
    place = ranges(per_pair)
    width = cols[pair]
    return np.column_stack([first[c.queries][pair] + place // width, first[c.keys][pair] + place % width])
