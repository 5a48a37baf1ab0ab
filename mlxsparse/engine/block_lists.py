"""What the tiles of block-sparse products compute (kernels/block_tiles.metal), made once for a layout."""

from __future__ import annotations

import numpy as np

from ..backend.kernel_block_tiles import SEARCHED, SampleTile, Tile, TileLists
from ..backend.kernel_blocks import SDD
from .block_index import BlockIndex, Side
from .block_samples import sampled
from .sorting import distinct
from .tables import integers

ALIKE = 1 << 26  # pieces of lines x places up to which those that share blocks are looked for


def tile_lists(index: BlockIndex, side: Side, mode: int, tile: Tile) -> TileLists:
    """Lists of a product's tiles over the lines of `side`; kept."""
    made: tuple[np.ndarray, ...]
    places, slots = tile.reads(mode)
    cluster = tile.CLUSTER if isinstance(tile, SampleTile) else 1
    key = (mode, side.by_row, tile.SIDE, places, slots, cluster)
    held: TileLists | None = index.groups.get(key)
    if held is None:
        if not places:
            made = merged(side, index.grid[0], tile.SIDE, slots)
        elif slots > places and index.nnz * index.block[0] * index.block[1] > SEARCHED * tile.SIDE**2:
            made = scattered(index, places, tile.SIDE)
        else:
            made = sampled(index, places, slots, tile.SIDE)
        if mode == SDD:  # tiles that read most start first
            order = np.argsort(-(made[0] >= 0).sum(axis=1), kind="stable")
            made = tuple(a[order] for a in made)
        if isinstance(tile, SampleTile):
            row, column = (extent // tile.SIDE for extent in index.shape)
            made = clustered(made, row, column, cluster)
        line, ptr, block, other = (integers(a.reshape(-1)) for a in made)
        held = index.groups[key] = TileLists(line, ptr, block, other, len(made[0]), np.diff(made[1]))
    return held


def merged(side: Side, heads: int, piece: int, together: int) -> tuple[np.ndarray, ...]:
    """line (groups, together), ptr, block (entries, together), other of dsd and dds; the longest list first.

    A group is `together` (1, 2 or 4) pieces of lines of one head, which share many places.
    """
    parts = side.size // piece
    units = side.lines * parts
    per_head = -(-units // together)
    groups = heads * per_head
    places = max(1, -(-side.other_extent // side.other_size))
    order = _together(side, heads, parts, places, per_head * together, together)
    line = np.where(order < units, np.arange(heads)[:, None] * units + order, -1).reshape(groups, together)
    seat = np.argsort(order, axis=1)  # of each piece in its head
    counts = np.diff(side.ptr)
    at = np.repeat(np.arange(len(counts)), counts)  # line of each entry
    head, first = at // side.lines, at % side.lines * parts
    unit = seat[head[:, None], first[:, None] + np.arange(parts)]
    group = head[:, None] * per_head + unit // together
    keys = group * places + side.other.astype(np.int64)[:, None]
    # Groups are numbered by the length of their merged list.
    length = np.bincount(distinct(keys.reshape(-1)) // places, minlength=groups)
    order = np.argsort(-length, kind="stable")
    rank = np.empty(groups, np.int64)
    rank[order] = np.arange(groups)
    found, entry = np.unique(rank[group] * places + keys % places, return_inverse=True)
    block = np.full((len(found), together), -1, np.int64)
    block[entry.reshape(-1), (unit % together).reshape(-1)] = np.repeat(side.block, parts)
    ptr = np.concatenate(([0], np.cumsum(length[order])))
    return line[order], ptr, block, found % places


def _together(
    side: Side, heads: int, parts: int, places: int, seats: int, together: int
) -> np.ndarray:
    """(heads, seats): the pieces of a head, each `together` of which share many places; last, none."""
    units = side.lines * parts
    found = np.tile(np.arange(seats), (heads, 1))
    if together == 1 or heads * units * places > ALIKE:
        return found
    for head, order in enumerate(found):
        ptr = side.ptr[head * side.lines : (head + 1) * side.lines + 1]
        sets = np.zeros((seats, places), np.float32)
        line = np.repeat(np.arange(side.lines), np.diff(ptr))
        for part in range(parts):
            sets[line * parts + part, side.other[ptr[0] : ptr[-1]]] = 1
        size = 1
        while size < together:
            pairs = _alike(sets)
            order[:] = order.reshape(-1, size)[pairs].reshape(-1)
            sets = np.maximum(sets[pairs[0::2]], sets[pairs[1::2]])
            size *= 2
        order[:] = np.sort(order.reshape(-1, together), axis=1).reshape(-1)
    return found


def _alike(sets: np.ndarray, span: int = 64) -> np.ndarray:
    """The rows of 0 and 1 in pairs of those that share most; an even number of them, `span` at a time."""
    found = []
    for first in range(0, len(sets), span):
        some = sets[first : first + span]
        shared = np.where(np.arange(len(some))[:, None] < np.arange(len(some)), some @ some.T, -1)
        for _ in range(len(some) // 2):
            pair = np.divmod(int(shared.argmax()), len(some))
            found += [first + int(i) for i in pair]
            shared[list(pair)] = -1
            shared[:, list(pair)] = -1
    return np.array(found, np.int64)


def scattered(index: BlockIndex, p: int, piece: int) -> tuple[np.ndarray, ...]:
    """line (groups, P + 1), ptr, block and other (groups, P) of sdd: P = p places of piece x piece a tile.

    Of two neighbouring rows of pieces, P / 2 columns that both have make a tile; what is left makes tiles of
    P places of a row; the rest of both rows goes together where its pieces fit.
    """
    h, r, c = index.grid
    down, across = index.block[0] // piece, index.block[1] // piece
    cell = np.arange(index.nnz * down * across)
    block = cell // (down * across)
    row = index.rows[block].astype(np.int64) * down + cell // across % down
    col = index.cols[block].astype(np.int64) * across + cell % across
    head = index.heads[block].astype(np.int64)
    units, columns = r * down, max(1, c * across)
    pairs = -(-units // 2)
    pair, bit = head * pairs + row // 2, row % 2
    # Columns of both rows, and how many of them come before in their pair.
    key = pair * columns + col
    order = np.lexsort((bit, key))
    pair, bit, col, cell, key, head, row = (a[order] for a in (pair, bit, col, cell, key, head, row))
    same = np.zeros(len(key), bool)
    same[1:] = key[1:] == key[:-1]
    both = same.copy()
    both[:-1] |= same[1:]
    most = max(1, p // 2)
    k = _before(pair, same)  # whole columns before
    whole = both & (k < (_total(pair, same) // most * most)) & (p > 1)
    # Rows: places that are left, how many come before in their row.
    line = pair * 2 + bit
    by_line = np.lexsort((col, line))
    k_line, left = np.empty(len(key), np.int64), np.empty(len(key), np.int64)
    k_line[by_line] = _before(line[by_line], ~whole[by_line])
    left[by_line] = _total(line[by_line], ~whole[by_line])
    full = ~whole & (k_line < left // p * p)
    rest = ~whole & ~full
    counts = np.bincount(pair[rest], minlength=h * pairs)
    apart = np.bincount(distinct(key[rest]) // columns, minlength=h * pairs)
    joined = (counts <= p) & (apart <= p - 1)
    # A number for each tile: pair, then whole columns, full rows, the rest.
    span = 4 * (columns + 2)
    number = np.where(whole, k // most, 0)
    number = np.where(full, (1 + bit) * (columns + 2) + k_line // p, number)
    number = np.where(rest, 3 * (columns + 2) + np.where(joined[pair], 0, bit), number)
    names, group = np.unique(pair * span + number, return_inverse=True)
    group = group.reshape(-1)
    count = len(names)
    order = np.lexsort((col, bit, group))
    group, bit, col, cell, head, row = (a[order] for a in (group, bit, col, cell, head, row))
    place = _before(group, np.ones(len(group), bool))
    # Pieces of op(A): the rows of a tile; of op(B): its columns, ascending.
    has = np.zeros((count, 2), bool)
    has[group, bit] = True
    rows = has.sum(axis=1)
    left_slot = np.where(has[group, 0], bit, 0)
    names, at = np.unique(group * columns + col, return_inverse=True)
    at = at.reshape(-1)
    right = _before(names // columns, np.ones(len(names), bool)) + rows[names // columns]
    lines = np.full((count, p + 1), -1, np.int64)
    lines[group, left_slot] = head * units + row
    lines[names // columns, right] = names % columns
    blocks = np.full((count, p), -1, np.int64)
    other = np.zeros((count, p), np.int64)
    blocks[group, place] = cell
    other[group, place] = left_slot + 256 * right[at]
    return lines, rows, blocks, other


def clustered(
    tiles: tuple[np.ndarray, ...], units: int, columns: int, cluster: int
) -> tuple[np.ndarray, ...]:
    """Lists of block_samples.metal for `cluster` (1 or 2) threadgroups together, from those of `sampled`.

    units, columns: pieces of op(A) and op(B) of a head. Tiles that share pieces come together; slots of what
    they share are the first. ptr: a bit for each of those.
    """
    line, rows, block, other = tiles
    head = line[:, :1] // max(1, units)
    pieces = np.where(np.arange(line.shape[1]) < rows[:, None], 2 * line, 2 * (head * columns + line) + 1)
    pieces = np.where(line < 0, -1, pieces)
    if cluster == 1:
        return pieces, np.zeros(len(line), np.int64), block, other
    pad = len(line) % 2
    pieces, block = (np.pad(a, ((0, pad), (0, 0)), constant_values=-1) for a in (pieces, block))
    other = np.pad(other, ((0, pad), (0, 0)))
    names, at = np.unique(pieces, return_inverse=True)
    if len(pieces) * len(names) <= ALIKE:
        sets = np.zeros((len(pieces), len(names)), np.float32)
        np.put_along_axis(sets, at.reshape(pieces.shape), 1, axis=1)
        sets[:, names < 0] = 0
        order = _alike(sets, 512)
        pieces, block, other = pieces[order], block[order], other[order]
    if pad:  # what it reads is its neighbour's, as the two go step by step
        lone = int(np.flatnonzero((pieces < 0).all(axis=1))[0])
        pieces[lone] = pieces[lone ^ 1]
    first, second = pieces[0::2, :, None], pieces[1::2, None, :]
    same = (first == second) & (first >= 0)
    shared = np.stack([same.any(axis=2), same.any(axis=1)], axis=1).reshape(pieces.shape)
    # Shared pieces first, in the same order; then others; then none.
    kind = np.where(shared, 0, np.where(pieces >= 0, 1, 2))
    order = np.lexsort((pieces, kind), axis=1)
    seat = np.argsort(order, axis=1)
    left, right = (np.take_along_axis(seat, slot, axis=1) for slot in (other % 256, other // 256))
    other = np.where(block < 0, 0, left + 256 * right)
    masks = (1 << same.any(axis=2).sum(axis=1)) - 1
    return np.take_along_axis(pieces, order, axis=1), masks, block, other


def _before(group: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Counted elements of the same group before each, itself excluded; `group` ascends."""
    if not len(group):
        return np.zeros(0, np.int64)
    seen = np.cumsum(counted) - counted
    start = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    return np.asarray(seen - np.repeat(seen[start], np.diff(np.append(start, len(group)))))


def _total(group: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Counted elements of each one's group; `group` ascends."""
    sums = np.bincount(group, counted, minlength=1)
    return np.asarray(sums[group].astype(np.int64))
