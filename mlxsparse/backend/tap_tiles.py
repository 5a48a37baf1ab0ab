"""Kernel maps in the order that tiles use: rows that have the same taps lie together.

A `TapTiles` is one side of a kernel map in that order, with the taps of every 32 places; it is made once per
map on the device, without reading anything back.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import CapacityError
from .digit_order import CHUNK, places_by_key
from .library import MAX_THREADS, SMALL, blocks, check_array, filled, launch, sequence
from .tap_tree import LEAF, TREE, nodes

PLACES = 256  # a multiple of every tile's rows
WINDOW = 1 << 20  # rows that are ordered by taps together
KEY_BITS = 27  # taps that a sort key tells apart
# Times PLACES, where turns pay: fewer all run at once, of more the last ones matter little.
FEWEST, MOST = 64, 1024
FEW_TAPS = 8  # up to which they differ too little


class Layout(NamedTuple):
    """What a launch over TapTiles depends on but for their arrays."""

    taps: int
    sources: int
    size: int
    places: int
    steps: tuple[int, int]
    turned: bool
    packed: bool


class TapTiles(NamedTuple):
    """One side of a kernel map, its rows ordered by the taps that they have."""

    nbr: mx.array  # (P / 32, T, 32) int32 row read through each tap, -1 none; see `alone` and `kept`
    rows: mx.array  # (P,) int32 row of each place, -1 past the last
    masks: mx.array  # (P / 32, ceil(T / 32)) uint32 taps of 32 places
    sources: int  # rows on the other side
    size: int  # rows on this side
    active: int  # of these, the first that can have pairs
    alone: int = 0  # T, where each PLACES places have one tap and nbr, (P / 32, 1, 32), is of that
    turns: mx.array | None = None  # (P / PLACES,) int32 which PLACES are computed first; None: the last
    kept: int = 0  # T, where nbr, (numbers,), is packed: of taps that PLACES have alone (kernels/packed.h)

    @property
    def arrays(self) -> list[mx.array]:
        """All that a convolution reads of the map."""
        return [self.nbr, self.rows, self.masks, *([] if self.turns is None else [self.turns])]

    @property
    def taps(self) -> int:
        return self.alone or self.kept or self.nbr.shape[-2]

    @property
    def places(self) -> int:
        return self.rows.shape[0]

    @property
    def used(self) -> int:
        """Places from which on there is no pair: a multiple of PLACES, at least one."""
        found = self.active // PLACES + self.alone if self.alone else blocks(self.active, PLACES)
        return max(1, found) * PLACES

    @property
    def steps(self) -> tuple[int, int]:
        """From 32 places to the next 32, and from a tap to the next, in elements of nbr."""
        if self.kept:
            return 32, PLACES
        return (32, 0) if self.alone else (32 * self.taps, 32)

    @property
    def layout(self) -> Layout:
        turned, packed = self.turns is not None, self.kept > 0
        return Layout(self.taps, self.sources, self.size, self.places, self.steps, turned, packed)


class TapOrder(NamedTuple):
    """What sort keys of rows follow from (kernels/tap_key.h)."""

    bits: mx.array  # (T + nodes,) int32: the bit of each tap, then a tree that asks for bits
    nodes: int  # of the tree; 0: there is none
    none: int  # key of rows without a tap, the largest there is


@functools.lru_cache(maxsize=64)
def tap_order(size: tuple[int, ...]) -> TapOrder:
    """By what rows of a kernel map are ordered.

    3 x 3 x 3 kernels have a tree. Of others taps far from the middle, which few rows have, get high bits.
    """
    if size == (3, 3, 3):
        tree = nodes()
        return TapOrder(mx.array([*range(27), *tree], mx.int32), len(tree), TREE.count(LEAF))
    taps = np.indices(size).reshape(len(size), -1)
    middle = (np.array(size)[:, None] - 1) / 2
    far = np.abs(taps - middle).sum(axis=0)
    rank = np.empty(far.size, np.int64)
    rank[np.argsort(far, kind="stable")] = np.arange(far.size)
    bits = rank // -(-far.size // KEY_BITS)
    return TapOrder(mx.array(bits.astype(np.int32)), 0, 1 << (int(bits.max(initial=0)) + 1))


def window_rows() -> int:
    """Rows of a window."""
    return blocks(int(os.environ.get("MLXSPARSE_WINDOW", WINDOW)), CHUNK) * CHUNK


def tap_tiles(
    nbr: mx.array,
    sources: int,
    size: tuple[int, ...] | None = None,
    active: int | None = None,
    keys: mx.array | None = None,
    *,
    sort: bool = True,
    by_row: bool = False,
) -> TapTiles:
    """Order one side of a kernel map: nbr (T, M), by row (M, T), int32, -1 where there is no pair.

    sources: rows on the other side; a larger number in nbr is no pair. size: of the kernel, its product T.
    active: rows from here on have no pair; order and sums depend on it and not on M. keys: of a map that was
    made with them. sort: False leaves the rows as they are.
    """
    check_array("nbr", nbr, 2, mx.int32)
    taps, m = reversed(nbr.shape) if by_row else nbr.shape
    words = blocks(taps, 32)
    active = m if active is None else min(active, m)
    if m == 0 or taps == 0:
        return TapTiles(
            filled((0, taps, 32), -1, mx.int32),
            filled((0,), -1, mx.int32),
            filled((0, words), 0, mx.uint32),
            sources,
            m,
            active,
        )
    own = sort and sources == m and taps > FEW_TAPS  # of a map that several convolutions read
    if taps == 1 or not sort:  # nothing to tell apart
        made = _tiled([nbr, mx.arange(m, dtype=mx.int32)], sources, int(by_row), int(own))
    else:
        known = size if size is not None and math.prod(size) == taps else (taps,)
        if keys is None:
            bits, tree, none = tap_order(known)
            groups = (blocks(m, MAX_THREADS), 1, 1)
            keys = launch("tap_keys", [nbr, bits], [m, taps, int(by_row), tree, none], [(m,)], groups)[0]
        sizes = sources, int(by_row), int(own), tap_order(known).none, window_rows()
        made = sequence(_ordered, [nbr, keys], *sizes)
    tiled, rows, masks, *turns = made
    return TapTiles(tiled, rows, masks, sources, m, active, turns=turns[0] if turns else None)


def _ordered(
    arrays: Sequence[mx.array], sources: int, by_row: int, own: int, last: int, window: int
) -> Sequence[mx.array]:
    nbr, keys = arrays
    return _tiled([nbr, places_by_key(keys, last, window)], sources, by_row, own)


def _tiled(arrays: Sequence[mx.array], sources: int, by_row: int, own: int) -> Sequence[mx.array]:
    """nbr, rows, masks and, if they pay, turns of a map (T, M) in an order."""
    nbr, _ = arrays
    taps, m = reversed(nbr.shape) if by_row else nbr.shape
    places, words = blocks(m, PLACES) * PLACES, blocks(taps, 32)
    shapes = [(places // 32, taps, 32), (places,), (places // 32, words)]
    dims = [sources, m, taps, places, 32 * taps, 32, by_row]
    made = launch("tap_tiles", arrays, dims, shapes, (places // MAX_THREADS, words, 1))
    turns = turns_of(made[2]) if own else None
    return [*made, *([] if turns is None else [turns])]


def turns_of(masks: mx.array) -> mx.array | None:
    """`tile_turns` where they pay."""
    return tile_turns(masks) if FEWEST <= masks.shape[0] * 32 // PLACES <= MOST else None


def tile_turns(masks: mx.array) -> mx.array:
    """Which PLACES of a map are computed first: those with most taps, so that none is waited for.

    masks: of TapTiles, of at most MOST times PLACES; else CapacityError. Returns (P / PLACES,) int32.
    """
    tiles, words = masks.shape[0] * 32 // PLACES, masks.shape[1]
    if tiles > MOST:
        raise CapacityError(f"turns of {tiles} tiles, at most {MOST} are supported")
    return launch("tile_turns", [masks], [tiles, words], [(tiles,)], (blocks(tiles, MAX_THREADS), 1, 1))[0]


class Starts(NamedTuple):
    """Where what tiles keep lies once they are packed."""

    heads: mx.array  # (2 P / PLACES, or more) int32: of each PLACES where theirs begin, a bit for each tap
    total: mx.array  # (1,) int32 numbers of the packed map


def can_pack(tiles: TapTiles) -> bool:
    """Whether `packed` takes them, and they have enough taps to become smaller."""
    whole = tiles.alone == tiles.kept == 0 < tiles.places
    return whole and FEW_TAPS < tiles.taps <= 32 and (tiles.taps + 1) * tiles.places < 2**31


def starts(tiles: TapTiles) -> Starts:
    """What `packed` needs to know, of tiles that `can_pack`."""
    count = tiles.places // PLACES
    shapes = [(max(2 * count, SMALL),), (1,)]
    return Starts(*launch("tile_starts", [tiles.masks], [count], shapes, (1, 1, 1)))


def packed(tiles: TapTiles, found: Starts, total: int) -> TapTiles:
    """The same tiles in less memory. total: the value of ``found.total``."""
    dims = [tiles.places // PLACES, *tiles.steps, total]
    nbr = launch("tile_pack", [tiles.nbr, found.heads], dims, [(total,)], (dims[0], 1, 1))[0]
    return tiles._replace(nbr=nbr, kept=tiles.taps)


def _unpacked(tiles: TapTiles) -> mx.array:
    """(P / 32, T, 32) of packed tiles."""
    heads = tiles.nbr[: 2 * tiles.places // PLACES].reshape(-1, 2)
    own = heads[:, 1:] >> mx.arange(tiles.taps, dtype=mx.int32) & 1
    taps = mx.arange(tiles.taps)
    before = mx.where(taps[:, None] > taps, own[:, None], 0).sum(axis=-1)  # (blocks, T)
    there = own != 0
    at = mx.where(there, heads[:, :1] + PLACES * before, 0)  # behind the last tap of all is nothing to read
    nbr = mx.where(there[..., None], tiles.nbr[at[..., None] + mx.arange(PLACES, dtype=mx.int32)], -1)
    return nbr.reshape(-1, tiles.taps, PLACES // 32, 32).swapaxes(1, 2).reshape(-1, tiles.taps, 32)


def table_of(tiles: TapTiles) -> mx.array:
    """The table that tiles were made from: (T, M) int32, -1 where there is no pair."""
    if tiles.size == 0 or tiles.taps == 0:
        return filled((tiles.taps, tiles.size), -1, mx.int32)
    nbr = _unpacked(tiles) if tiles.kept else tiles.nbr
    if tiles.alone:
        own = tiles.masks >> mx.arange(tiles.taps, dtype=mx.uint32) & 1
        nbr = mx.where(own[:, :, None] != 0, nbr, -1)
    by_tap = nbr.swapaxes(0, 1).reshape(tiles.taps, -1)
    last = mx.array(tiles.size, mx.int32)
    places = mx.argsort(mx.where(tiles.rows < 0, last, tiles.rows))[: tiles.size]
    return mx.take(by_tap, places, axis=1)


def itself(size: int, count: int | mx.array) -> TapTiles:
    """Tiles of the map with one tap of each of the first `count` of `size` rows to itself."""
    active = count if isinstance(count, int) else size
    if size == 0:
        return tap_tiles(filled((1, 0), -1, mx.int32), 0)
    places = blocks(size, PLACES) * PLACES
    numbers = mx.arange(places, dtype=mx.int32)
    rows = mx.where(numbers < size, numbers, -1)
    nbr = rows if isinstance(count, int) and count == size else mx.where(numbers < count, numbers, -1)
    masks = (numbers[::32] < count).astype(mx.uint32)[:, None]
    return TapTiles(nbr.reshape(-1, 1, 32), rows, masks, size, size, active)
