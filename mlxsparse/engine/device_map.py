"""A kernel map on a GPU: neighbour tables of both sides and their tiles, each made when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from ..backend.library import begin, numbers
from ..backend.mail import Sent, send, shared
from ..backend.tap_tiles import Starts, TapTiles, can_pack, itself, packed, starts, table_of, tap_tiles
from .dense_grid import Grid
from .neighbors import TapPairs

# The transpose of a table, (rows, T), and by what tiles order its rows, where that was made with it.
ByRow: TypeAlias = "tuple[mx.array, mx.array | None]"
BEGUN = 1 << 18  # rows from which on a GPU is kept busy while the host goes on: starting costs as well
PACKED = 1 << 16  # rows from which on the memory of tiles is worth three launches
_packing = threading.Lock()  # held by who packs: others go on with what is there


class Side:
    """One side of a map: the row on the other side of each tap and row.

    Once there are tiles, what they were made from is let go of: a table follows from them.
    """

    def __init__(
        self,
        make: Callable[[], mx.array],
        sources: int,
        size: tuple[int, ...],
        count: int | mx.array,
        by_row: Callable[[], ByRow] | None = None,
        tiles: Callable[[], TapTiles] | None = None,
    ):
        self._make: Callable[[], mx.array] | None = make
        self._by_row = by_row  # from which tiles are made faster
        self._make_tiles = tiles  # where they are made without the table
        self.sources = sources  # rows on the other side
        self.size = size  # of the kernel
        self.count = count  # active rows of this side: what follows them has no pair
        self._starts: tuple[Starts, Sent] | None = None  # where packed tiles begin, on its way to the host

    @cached_property
    def table(self) -> mx.array:
        """(T, rows) int32, -1 where there is no pair."""
        return self.untiled()

    def untiled(self) -> mx.array:
        """The table, not kept."""
        return table_of(self.tiles) if self._make is None else self._make()

    @cached_property
    def tiles(self) -> TapTiles:
        """The table in the order that tiles use."""
        if self._make_tiles is not None:
            tiles = self._make_tiles()
        else:
            active = self.count if isinstance(self.count, int) else None
            if self._by_row is not None:
                rows, keys = self._by_row()
                tiles = tap_tiles(rows, self.sources, self.size, active, keys, by_row=True)
            else:
                table = self.__dict__["table"] if "table" in self.__dict__ else self.untiled()
                tiles = tap_tiles(table, self.sources, self.size, active)
        # What is sorted takes the GPU long enough.
        if tiles.size >= BEGUN and self._make_tiles is None:
            begin(*tiles.arrays)
        self._make = self._by_row = self._make_tiles = None
        return tiles

    def pack(self) -> bool | None:
        """Keep the tiles in less memory. None: not yet, as there are none, their size is on its way or
        another thread is here; else whether that was done.

        Nothing waits: who computes with the tiles often enough asks again.
        """
        if not _packing.acquire(blocking=False):
            return None
        try:
            return self._pack()
        finally:
            _packing.release()

    def _pack(self) -> bool | None:
        tiles: TapTiles | None = self.__dict__.get("tiles")
        if tiles is None:
            return None
        if tiles.size < PACKED or not isinstance(self.count, int) or not can_pack(tiles) or not shared():
            return False
        if self._starts is None:
            found = starts(tiles)
            self._starts = found, send(found.total)
        found, sent = self._starts
        there = sent.arrived
        if there is False:
            return None
        self._starts = None
        if there is None:
            return False
        ((total,),) = sent.read()
        if 4 * total > 3 * tiles.nbr.size:
            return False
        small = packed(tiles, found, total)
        if not begin(small.nbr):
            return False
        self.__dict__["tiles"] = small
        return True

    @property
    def nbytes(self) -> int:
        made = self.__dict__
        tables = [made["table"]] if "table" in made else []
        return sum(a.nbytes for a in [*tables, *(made["tiles"].arrays if "tiles" in made else ())])


@dataclass(frozen=True, eq=False)
class DeviceMap:
    """Pairs of a kernel map as tables; ``output`` has a row of each output, ``input`` one of each input.

    symmetric: a map of a set onto itself in which tap t reads back what tap T - 1 - t reads.
    grid: where the rows lie, if they fill enough of their bounds for a dense convolution.
    """

    output: Side
    input: Side
    num_in: int | mx.array  # active rows; an array where they are not known on the host
    num_out: int | mx.array
    symmetric: bool = False
    grid: Grid | None = None

    @property
    def rows_in(self) -> int:
        return self.output.sources

    @property
    def rows_out(self) -> int:
        return self.input.sources

    def transposed(self) -> DeviceMap:
        """The same pairs read from output to input."""
        return DeviceMap(self.input, self.output, self.num_out, self.num_in, self.symmetric)

    def counts(self) -> mx.array:
        """(rows_out,) int32 active inputs of each output row."""
        return (self.output.table >= 0).sum(axis=0).astype(mx.int32)

    @property
    def pairs(self) -> TapPairs:
        """The pairs on the host, by row: for inspection."""
        table = np.array(self.output.table)
        tap, out = np.nonzero(table >= 0)
        counts = np.bincount(tap, minlength=len(table))
        return TapPairs(
            table[tap, out].astype(np.int32),
            out.astype(np.int32),
            np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
            None,
            None,
            int(self.num_in),
            int(self.num_out),
        )

    def of_taps(self, taps: Sequence[int]) -> DeviceMap:
        """The pairs of some taps, which must ascend."""

        def some(side: Side) -> Side:
            index = mx.array(list(taps), mx.int32)
            return Side(lambda: mx.take(side.table, index, axis=0), side.sources, (len(taps),), side.count)

        return DeviceMap(some(self.output), some(self.input), self.num_in, self.num_out)

    @property
    def nbytes(self) -> int:
        """Bytes of what was made so far."""
        return self.output.nbytes + self.input.nbytes


def submanifold(
    make: Callable[[], mx.array],
    rows: int,
    count: int | mx.array,
    size: tuple[int, ...],
    by_row: Callable[[], ByRow] | None = None,
    tiles: Callable[[], TapTiles] | None = None,
    grid: Grid | None = None,
) -> DeviceMap:
    """Map of a set onto itself, symmetric under t -> T - 1 - t; `make` gives its table."""
    output = Side(make, rows, size, count, by_row, tiles)
    mirrored = Side(lambda: output.table[::-1], rows, size, count)
    return DeviceMap(output, mirrored, count, count, True, grid)


def identity(size: int, count: int | mx.array) -> DeviceMap:
    """Each of the first `count` rows to itself."""

    def table() -> mx.array:
        rows = numbers(size)
        return mx.where(rows < count, rows, mx.array(-1, mx.int32))[None]

    return submanifold(table, size, count, (1,), tiles=lambda: itself(size, count))


def of_pairs(pairs: TapPairs, rows_in: int, rows_out: int) -> DeviceMap:
    """Pairs made on the host, over `rows_in` and `rows_out` rows, padding included."""
    taps = len(pairs.tap_ptr) - 1
    tap = np.repeat(np.arange(taps), np.diff(pairs.tap_ptr))

    def table(of: np.ndarray, to: np.ndarray, rows: int) -> Callable[[], mx.array]:
        def make() -> mx.array:
            made = np.full((taps, rows), -1, np.int32)
            made[tap, of] = to
            return mx.array(made)

        return make

    one, other = pairs.in_rows(), pairs.out_rows()
    return DeviceMap(
        Side(table(other, one, rows_out), rows_in, (taps,), pairs.num_out),
        Side(table(one, other, rows_in), rows_out, (taps,), pairs.num_in),
        pairs.num_in,
        pairs.num_out,
    )
