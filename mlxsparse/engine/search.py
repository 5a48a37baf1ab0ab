"""Nearest sites, exactly, on the host: a tree of bounding boxes over sites in Hilbert order.

Sites and queries are put in one Hilbert order. Runs of LEAF sites of one batch item are leaves;
every FAN boxes make a box of the next level. Runs of GROUP queries descend the tree together and
keep the boxes that may hold one of their neighbours; the sites of the kept leaves are compared one
by one. A box that lies in range as a whole, and holds none of the k nearest, is only counted.
Distances are float64, ((x - qx)**2 + (y - qy)**2) + (z - qz)**2; a box's bounds are rounded in the
same steps, so they are never above, or below, the distance of a site in it: no neighbour is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..backend.host import parallel
from .curves import curve_order
from .index import LIMIT

LEAF, FAN, GROUP = 4, 8, 8
TASK = 1024  # groups of one thread's task
PAIRS = 1 << 17  # (group, box) pairs that descend together
CANDIDATES = 1 << 17  # (query, site) distances of one block


class Boxes(NamedTuple):
    """One level of the tree: (m, 3) float64 corners, (m,) range of batch items, (m,) number of sites."""

    low: np.ndarray
    high: np.ndarray
    first_batch: np.ndarray
    last_batch: np.ndarray
    sites: np.ndarray


class Found(NamedTuple):
    """Neighbours of each query, nearest first: (Q, k) rows, -1 where there is none; (Q, k) float64
    squared distances, inf where there is none; (Q,) number of sites in range."""

    rows: np.ndarray
    squares: np.ndarray
    counts: np.ndarray


def nearest(
    sites: np.ndarray, queries: np.ndarray, batch: np.ndarray, k: int, square: float = np.inf
) -> Found:
    """The k nearest sites of each query's batch item within a squared distance; ties by lower row.

    sites (n, 4) integers by row, queries (Q, 3) float64, batch (Q,) integers. counts are the
    sites within `square`, and mean nothing without one.
    """
    found = Found(
        np.full((len(queries), k), -1, np.int32),
        np.full((len(queries), k), np.inf),
        np.zeros(len(queries), np.int64),
    )
    if len(sites) == 0 or len(queries) == 0:
        return found
    cells = np.empty((len(sites) + len(queries), 4), np.int64)
    cells[: len(sites)] = sites
    cells[len(sites) :, 0] = batch
    np.clip(np.floor(queries), 1 - LIMIT, LIMIT - 1, out=cells[len(sites) :, 1:], casting="unsafe")
    order = curve_order(cells, "hilbert")
    is_query = order >= len(sites)
    site_order, query_order = order[~is_query], order[is_query] - len(sites)
    xyz = sites[site_order, 1:].astype(np.float64)
    items = sites[site_order, 0]

    # Runs of sites (leaves) and of queries (groups) that stay within a batch item.
    leaf_start, leaf_stop = _runs(items, LEAF)
    group_start, group_stop = _runs(batch[query_order], GROUP)
    members = np.minimum(group_start[:, None] + np.arange(GROUP), group_stop[:, None] - 1)
    members = query_order[members]  # (G, GROUP) rows of queries; a short group repeats its last
    points = queries[members]
    group_batch = batch[members[:, 0]]
    low, high = points.min(axis=1), points.max(axis=1)
    reach = np.full(len(queries), square)
    if square == np.inf:
        place = np.cumsum(~is_query)[is_query]
        reach[query_order] = _first_bound(xyz, items, queries, batch, query_order, place, k)
    bound = reach[members].max(axis=1)
    np.minimum(reach, np.finfo(np.float64).max, out=reach)  # padding lies at infinity

    levels = _tree(xyz, items, leaf_start, leaf_stop)
    by_row = np.full((3, len(sites) + 1), np.inf)  # the last column is that of padding
    by_row[:, :-1] = sites[:, 1:].T
    padded = np.append(site_order, len(sites))
    whole = np.zeros(len(members), np.int64)  # sites of boxes that are counted as a whole

    def work(i: int) -> None:
        part = np.arange(i * TASK, min((i + 1) * TASK, len(members)))
        for groups, leaves in _descend(levels, part, low, high, group_batch, bound, k, square, whole):
            for first, counts in _blocks(groups):
                group = groups[first]
                rows = _candidates(leaves, first, counts, leaf_start, leaf_stop, padded)
                step = GROUP if len(first) > 1 else max(1, CANDIDATES // rows.size)
                for q in range(0, GROUP, step):
                    some = slice(q, q + step)
                    _select(
                        found, members[group, some], points[group, some], rows, by_row, k, reach, whole[group]
                    )

    parallel(work, -(-len(members) // TASK))
    return found


def _runs(items: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(start, stop) of runs of at most `length` entries of sorted `items`, one item a run."""
    n = len(items)
    first = np.empty(n, bool)
    first[0] = True
    np.not_equal(items[1:], items[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    place = np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))
    start = np.flatnonzero(place % length == 0)
    return start, np.append(start[1:], n)


def _tree(xyz: np.ndarray, items: np.ndarray, start: np.ndarray, stop: np.ndarray) -> list[Boxes]:
    """Levels of boxes, leaves first; the last level has at most FAN."""
    level = Boxes(
        np.minimum.reduceat(xyz, start, axis=0),
        np.maximum.reduceat(xyz, start, axis=0),
        items[start],
        items[start],
        stop - start,
    )
    levels = [level]
    while len(level.sites) > FAN:
        at = np.arange(0, len(level.sites), FAN)
        level = Boxes(
            np.minimum.reduceat(level.low, at, axis=0),
            np.maximum.reduceat(level.high, at, axis=0),
            level.first_batch[at],
            level.last_batch[np.append(at[1:], len(level.sites)) - 1],
            np.add.reduceat(level.sites, at),
        )
        levels.append(level)
    return levels


def _first_bound(
    xyz: np.ndarray,
    items: np.ndarray,
    queries: np.ndarray,
    batch: np.ndarray,
    query_order: np.ndarray,
    place: np.ndarray,
    k: int,
) -> np.ndarray:
    """A squared distance within which each query, in curve order, has k sites; inf where it has not k.

    It is the k-th distance among the sites before and after it on the curve.
    """
    wanted = batch[query_order]
    start, stop = np.searchsorted(items, wanted), np.searchsorted(items, wanted, side="right")
    bound = np.full(len(query_order), np.inf)
    window = min(2 * k + 8, int((stop - start).max()))
    if window < k:
        return bound
    begin = np.maximum(np.minimum(place - window // 2, stop - window), start)
    step = max(1, CANDIDATES // window)

    def work(i: int) -> None:
        rows = slice(i * step, (i + 1) * step)
        at = begin[rows, None] + np.arange(window)
        inside = at < stop[rows, None]
        squares = _squares(xyz[np.minimum(at, len(xyz) - 1)], queries[query_order[rows], None])
        squares[~inside] = np.inf
        bound[rows] = np.partition(squares, k - 1, axis=1)[:, k - 1]

    parallel(work, -(-len(query_order) // step))
    return bound


def _squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances of points in the last axis, broadcast."""
    total = np.square(a[..., 0] - b[..., 0])
    for axis in (1, 2):
        difference = a[..., axis] - b[..., axis]
        difference *= difference
        total += difference
    return total


def _descend(
    levels: list[Boxes],
    groups: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    batch: np.ndarray,
    bound: np.ndarray,
    k: int,
    square: float,
    whole: np.ndarray,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(groups, leaves) of the pairs that may hold a neighbour, groups ascending, block by block.

    bound: the squared distance within which the k nearest of each group's queries lie; a box of k sites or
    more lowers it. Within a finite `square`, sites past the bound are wanted too, for the counts: those of
    boxes that lie within it as a whole are added to `whole` (G,).
    """
    boxes = np.arange(len(levels[-1].sites))
    stack = [(len(levels) - 1, np.repeat(groups, len(boxes)), np.tile(boxes, len(groups)))]
    while stack:
        depth, groups, boxes = stack.pop()
        if len(groups) > PAIRS and groups[0] != groups[-1]:
            middle = int(np.searchsorted(groups, groups[len(groups) // 2]))
            middle = middle or int(np.searchsorted(groups, groups[0], side="right"))
            stack += [(depth, groups[:middle], boxes[:middle]), (depth, groups[middle:], boxes[middle:])]
            continue
        level = levels[depth]
        gap = np.zeros(len(groups))
        for axis in range(3):
            after = level.low[boxes, axis] - high[groups, axis]
            before = low[groups, axis] - level.high[boxes, axis]
            gap += np.square(np.maximum(np.maximum(after, before), 0.0))
        item = batch[groups]
        same = (level.first_batch[boxes] <= item) & (level.last_batch[boxes] >= item)
        near = np.flatnonzero(same & (gap <= (bound[groups] if square == np.inf else square)))
        groups, boxes, gap = groups[near], boxes[near], gap[near]
        if depth:
            _lower(bound, level, groups, boxes, low, high, k)
        kept = gap <= bound[groups]
        if square < np.inf:
            past = np.flatnonzero(~kept)
            far = _farthest(level, groups[past], boxes[past], low, high)
            one = level.first_batch[boxes[past]] == level.last_batch[boxes[past]]
            inner = one & (far <= square)
            np.add.at(whole, groups[past[inner]], level.sites[boxes[past[inner]]])
            kept[past] = ~inner
        groups, boxes = groups[kept], boxes[kept]
        if depth == 0:
            if len(groups):
                yield groups, boxes
            continue
        children = boxes[:, None] * FAN + np.arange(FAN)
        there = children < len(levels[depth - 1].sites)
        stack.append((depth - 1, np.repeat(groups, FAN)[there.ravel()], children[there]))


def _lower(
    bound: np.ndarray,
    level: Boxes,
    groups: np.ndarray,
    boxes: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    k: int,
) -> None:
    """Lower the bound of groups that see a box of k sites: all lie within the farthest corner's distance."""
    full = (level.sites[boxes] >= k) & (level.first_batch[boxes] == level.last_batch[boxes])
    groups, boxes = groups[full], boxes[full]
    if len(groups) == 0:
        return
    reach = _farthest(level, groups, boxes, low, high)
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    at = groups[starts]
    bound[at] = np.minimum(bound[at], np.minimum.reduceat(reach, starts))


def _farthest(
    level: Boxes, groups: np.ndarray, boxes: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The squared distance within which all sites of a box lie of all queries of a group."""
    reach = np.zeros(len(groups))
    for axis in range(3):
        above = level.high[boxes, axis] - low[groups, axis]
        below = high[groups, axis] - level.low[boxes, axis]
        reach += np.square(np.maximum(above, below))
    return reach


def _blocks(groups: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """(start, number) of the pairs of each group, in blocks of groups with about as many pairs."""
    first = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    counts = np.diff(np.append(first, len(groups)))
    order = np.argsort(counts, kind="stable")
    first, counts = first[order], counts[order]
    blocks, begin = [], 0
    while begin < len(first):
        least = int(counts[begin])
        end = begin + max(1, CANDIDATES // (GROUP * LEAF * least))
        end = min(end, int(np.searchsorted(counts, least + least // 4, side="right")))
        blocks.append((first[begin:end], counts[begin:end]))
        begin = end
    return blocks


def _candidates(
    leaves: np.ndarray,
    first: np.ndarray,
    counts: np.ndarray,
    start: np.ndarray,
    stop: np.ndarray,
    padded: np.ndarray,
) -> np.ndarray:
    """Rows (g, m) of the sites in each group's leaves, ascending, then padding (the number of sites)."""
    place = np.arange(int(counts[-1]))
    leaf = leaves[np.minimum(first[:, None] + place, len(leaves) - 1)]
    end = np.where(place < counts[:, None], stop[leaf], 0)
    rank = start[leaf][..., None] + np.arange(LEAF)
    rows = padded[np.where(rank < end[..., None], rank, len(padded) - 1).reshape(len(first), -1)]
    rows.sort(axis=1)
    return rows


def _select(
    found: Found,
    members: np.ndarray,
    points: np.ndarray,
    rows: np.ndarray,
    by_row: np.ndarray,
    k: int,
    reach: np.ndarray,
    whole: np.ndarray,
) -> None:
    """Write the k nearest of each query: members (g, q), points (g, q, 3), rows (g, m).

    reach (Q,): the squared distance within which each query's neighbours lie. whole (g,): sites in range that
    are not among the rows.
    """
    squares = np.zeros((*members.shape, rows.shape[1]))
    for axis in range(3):
        difference = by_row[axis][rows][:, None] - points[..., axis, None]
        difference *= difference
        squares += difference
    squares = squares.reshape(-1, rows.shape[1])
    query = members.ravel()
    inside = squares <= reach[query, None]
    counts = np.count_nonzero(inside, axis=1)
    found.counts[query] = counts + np.repeat(whole, members.shape[1])
    if counts.max() > 4 * k + 16:
        inside &= squares <= np.partition(squares, k - 1, axis=1)[:, k - 1 : k]
        counts = np.count_nonzero(inside, axis=1)
    # Sites in reach of each query, side by side; in row order, so that a stable sort settles ties.
    near = np.flatnonzero(inside)
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(near)) - np.repeat(np.cumsum(counts) - counts, counts)
    value = np.full((len(counts), int(counts.max())), np.inf)
    value[owner, place] = squares.ravel()[near]
    label = np.full(value.shape, -1, np.int64)
    label[owner, place] = rows[owner // members.shape[1], near - owner * rows.shape[1]]
    order = np.argsort(value, axis=1, kind="stable")[:, :k]
    found.rows[query, : order.shape[1]] = np.take_along_axis(label, order, axis=1)
    found.squares[query, : order.shape[1]] = np.take_along_axis(value, order, axis=1)
