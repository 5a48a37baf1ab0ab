"""Coordinates on the GPU: hash table, kernel maps, sorted and created coordinate sets.

Coordinates are (N, 4) int32 rows (batch, x, y, z), x, y and z over the full range of int32; a row with a
negative batch is padding. Everything is deterministic: the table keeps the lowest row of equal coordinates,
and sorts run on keys that hold the row, so they do not depend on how a sort treats equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import CapacityError, CoordinateRangeError, StrideError
from .digit_order import places_by_key
from .library import (
    MAX_GRID_YZ,
    MAX_THREADS,
    blocks,
    check_array,
    check_coords,
    filled,
    launch,
    numbers,
    read_ints,
    sequence,
)
from .running import running_sums
from .tap_tiles import PLACES, TapTiles, tap_order, tap_tiles, turns_of, window_rows

Triple = tuple[int, int, int]
MAX_ROWS = 2**30  # so that a table of twice as many slots has a 32-bit size
SLOTS = 16  # of a table at least: four buckets


class CoordTable(NamedTuple):
    """Coordinates and the hash table of their blocks of 2 x 2 x 2 sites (kernels/coord_hash.h)."""

    coords: mx.array  # (N, 4) int32
    table: mx.array  # uint32: slots, eight cells of each row, status (kernels/coord_hash_insert.metal)
    capacity: int  # slots

    @property
    def status(self) -> int:
        """Where the status begins in the table, in eights."""
        return self.capacity // 8 + self.coords.shape[0]


class NeighbourMap(NamedTuple):
    """A kernel map from both sides; -1 where there is no pair."""

    nbr: mx.array  # (T, M) int32 input row of each tap and output row
    back: mx.array  # (T, N) int32 output row of each tap and input row


def hash_table(coords: mx.array, capacity: int | None = None, rows: int | None = None) -> CoordTable:
    """Table of the rows of (N, 4) int32 coordinates; of equal ones the lowest row.

    capacity: slots, a power of two of at least N and 16; default at least 2 N. rows: the first that the
    bounds of the coordinates are of; default all.
    """
    check_coords("coords", coords)
    n = coords.shape[0]
    if n > MAX_ROWS:
        raise CapacityError(f"coords has {n} rows, at most {MAX_ROWS} fit a table; split the input")
    # Half full at most, most clouds have a third as many blocks: a lookup that finds nothing is soon over.
    size = capacity or min(max(64, 1 << max(2 * n - 1, 1).bit_length()), 1 << 31)
    if size < max(n, SLOTS) or size & (size - 1):
        raise CapacityError(f"capacity {size} must be a power of two, at least {SLOTS} and the {n} rows")
    groups = (blocks(n, MAX_THREADS), 1, 1)
    dims = [n, size, n if rows is None else rows]
    # One array, which MLX fills at once; of two axes, as one may be too long for 32 bits.
    shape = (blocks(size + 8 * n + 16, 16), 16)
    return CoordTable(coords, launch("coord_hash_insert", [coords], dims, [shape], groups, init=0)[0], size)


def find_rows(table: CoordTable, queries: mx.array) -> mx.array:
    """Row of each of (M, 4) int32 queries in the table's coordinates, (M,) int32; -1 where there is none."""
    check_coords("queries", queries)
    m = queries.shape[0]
    dims = [table.coords.shape[0], table.capacity, m]
    inputs = [table.coords, table.table, queries]
    return launch("coord_hash_lookup", inputs, dims, [(m,)], (blocks(m, MAX_THREADS), 1, 1))[0]


def neighbour_map(
    table: CoordTable,
    queries: mx.array,
    size: Triple,
    stride: Triple = (1, 1, 1),
    padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
) -> NeighbourMap:
    """Pairs with ``input = output * stride - padding + k * dilation``, tap t = (kx * Ky + ky) * Kz + kz.

    table: the input sites, distinct; queries (M, 4) int32 output sites, distinct. The map of a transposed
    convolution is this one with the sites swapped, read from the other side. CapacityError past 65535 taps.
    """
    check_coords("queries", queries)
    n, m, taps = table.coords.shape[0], queries.shape[0], size[0] * size[1] * size[2]
    if taps > MAX_GRID_YZ:
        raise CapacityError(f"a kernel of {size} has {taps} taps, at most {MAX_GRID_YZ} are supported")
    _check_positive("stride", stride)
    dims = [n, table.capacity, m, *size, *stride, *padding, *dilation]
    inputs = [table.coords, table.table, queries]
    groups = (blocks(m, MAX_THREADS), taps, 1)
    return NeighbourMap(*launch("neighbour_map", inputs, dims, [(taps, m), (taps, n)], groups, init=-1))


def flipped(nbr: mx.array, rows: int) -> mx.array:
    """A map (T, M) from the other side, which has `rows` rows: (T, rows) int32, -1 none."""
    check_array("nbr", nbr, 2, mx.int32)
    taps, m = nbr.shape
    groups = (blocks(m, MAX_THREADS), taps, 1)
    return launch("flip_map", [nbr], [m, rows], [(taps, rows)], groups, init=-1)[0]


class OwnMap(NamedTuple):
    """A kernel map of a set onto itself, and what orders its rows by their taps (tap_tiles.py)."""

    nbr: mx.array  # (T, N), by row (N, T), int32 row of each tap and row, -1 where there is no pair
    keys: mx.array  # (N,) uint32


def submanifold_map(
    table: CoordTable,
    size: Triple,
    dilation: Triple = (1, 1, 1),
    *,
    by_row: bool = False,
) -> OwnMap:
    """Map of the table's distinct sites onto themselves, centred, odd sizes."""
    n, taps = table.coords.shape[0], size[0] * size[1] * size[2]
    if taps > MAX_GRID_YZ or any(k % 2 == 0 for k in size):
        raise CapacityError(f"size must be odd on every axis and at most {MAX_GRID_YZ} taps, got {size}")
    bits, nodes, none = tap_order(size)
    inputs = [table.coords, table.table, bits]
    dims = [n, table.capacity, *size, *dilation, int(by_row), nodes, none]
    shapes = [(n, taps) if by_row else (taps, n), (n,)]
    groups = (blocks(n, MAX_THREADS), 1, 1)
    return OwnMap(*launch("submanifold_map", inputs, dims, shapes, groups))


class NearBlocks(NamedTuple):
    """Where the neighbours of each row of a table lie, of 3 x 3 x 3 taps."""

    near: mx.array  # (N, 8) uint32, see kernels/near_blocks.metal
    keys: mx.array  # (N,) uint32, by which tiles order the rows


def near_blocks(table: CoordTable) -> NearBlocks:
    """The eight blocks around each of the table's distinct sites: a third of the bytes of their map."""
    return NearBlocks(*_near_blocks([table.coords, table.table], table.capacity))


def _near_blocks(arrays: Sequence[mx.array], capacity: int) -> Sequence[mx.array]:
    coords, table = arrays
    n = coords.shape[0]
    bits, nodes, none = tap_order((3, 3, 3))
    dims, groups = [n, capacity, nodes, none], (blocks(n, MAX_THREADS), 1, 1)
    return launch("near_blocks", [coords, table, bits], dims, [(n, 8), (n,)], groups)


def near_tiles(table: CoordTable, active: int | None = None, found: NearBlocks | None = None) -> TapTiles:
    """The ordered map of 3 x 3 x 3 taps of the table's distinct sites onto themselves.

    As tap_tiles of `submanifold_map`, whose table by row it does without. found: its `near_blocks`, if made.
    """
    n = table.coords.shape[0]
    if n == 0:
        return tap_tiles(filled((27, 0), -1, mx.int32), 0)
    sizes = table.capacity, window_rows()
    if found is None:
        made = sequence(_near, [table.coords, table.table], *sizes)
    else:
        made = _near_tiles([table.table, *found], *sizes)
    tiled, rows, masks, *turns = made
    return TapTiles(
        tiled, rows, masks, n, n, n if active is None else min(active, n), turns=turns[0] if turns else None
    )


def _near(arrays: Sequence[mx.array], capacity: int, window: int) -> Sequence[mx.array]:
    return _near_tiles([arrays[1], *_near_blocks(arrays, capacity)], capacity, window)


def _near_tiles(arrays: Sequence[mx.array], capacity: int, window: int) -> Sequence[mx.array]:
    table, near, keys = arrays
    n = near.shape[0]
    order = places_by_key(keys, tap_order((3, 3, 3)).none, window)
    places = blocks(n, PLACES) * PLACES
    shapes, groups = [(places // 32, 27, 32), (places,), (places // 32, 1)], (places // MAX_THREADS, 1, 1)
    made = launch("near_tiles", [near, table, order], [n, capacity, places], shapes, groups)
    turns = turns_of(made[2])
    return [*made, *([] if turns is None else [turns])]


def map_of_pairs(
    in_rows: np.ndarray, out_rows: np.ndarray, tap_ptr: np.ndarray, rows_in: int, rows_out: int
) -> NeighbourMap:
    """A NeighbourMap of pairs made on the host: tap t owns pairs [tap_ptr[t], tap_ptr[t + 1]).

    rows_in, rows_out: rows of both sides with their padding, which no pair names.
    """
    tap = np.repeat(np.arange(len(tap_ptr) - 1), np.diff(tap_ptr))
    nbr = np.full((len(tap_ptr) - 1, rows_out), -1, np.int32)
    back = np.full((len(tap_ptr) - 1, rows_in), -1, np.int32)
    nbr[tap, out_rows] = in_rows
    back[tap, in_rows] = out_rows
    return NeighbourMap(mx.array(nbr), mx.array(back))


def _check_positive(name: str, values: Triple) -> None:
    if min(values) < 1:
        raise StrideError(f"{name} must be at least 1 on every axis, got {values}")


# ---------------------------------------------------------------- order


def _sort_pass(order: mx.array, column: mx.array) -> mx.array:
    """`order` sorted by `column` (a value of each row), equal values as they were."""
    # Value and place in one key: distinct keys need no stable sort. Flipping the sign bit orders negatives.
    value = column[order].view(mx.uint32) ^ mx.array(0x80000000, mx.uint32)
    place = mx.arange(order.size, dtype=mx.uint32).astype(mx.uint64)
    key = mx.sort((value.astype(mx.uint64) << mx.array(32, mx.uint64)) | place)
    return order[(key & mx.array(0xFFFFFFFF, mx.uint64)).astype(mx.uint32)]


def sorted_order(coords: mx.array) -> mx.array:
    """Rows of (N, 4) int32 coordinates in lexicographic order, ties by row: (N,) int32."""
    check_coords("coords", coords)
    order = numbers(coords.shape[0])
    if coords.shape[0] < 2:
        return order
    for axis in (3, 2, 1, 0):
        order = _sort_pass(order, coords[:, axis])
    return order


def stable_order(values: mx.array) -> mx.array:
    """Places of (n,) int32 values in ascending order, ties by place: (n,) int32."""
    check_array("values", values, 1, mx.int32)
    order = numbers(values.size)
    return order if values.size < 2 else _sort_pass(order, values)


def flagged(flags: mx.array, capacity: int | None = None) -> mx.array:
    """Numbers of the flagged items, ascending, int32.

    flags (n,) bool. Without a capacity their count is read and is the length; with it the length is
    `capacity`, filled up with -1.
    """
    n = flags.size
    if n == 0:
        return filled((capacity or 0,), -1, mx.int32)
    places = running_sums(flags.astype(mx.int32))
    if capacity is None:
        capacity = read_ints(places[-1])[0]
    inputs = [flags.astype(mx.uint32), places]
    return launch("compact", inputs, [n, capacity], [(capacity,)], (blocks(n, MAX_THREADS), 1, 1), init=-1)[0]


def distinct_rows(coords: mx.array) -> mx.array:
    """Lowest row of each distinct site, ascending, int32; padding is left out. Reads one count."""
    if coords.shape[0] == 0:
        return filled((0,), 0, mx.int32)
    first = find_rows(hash_table(coords), coords)
    return flagged(first == numbers(coords.shape[0]))


def sorted_unique(coords: mx.array) -> mx.array:
    """Distinct sites of (N, 4) int32 coordinates, sorted: (M, 4) int32. Reads one count."""
    return _in_order(_rows_of(coords, distinct_rows(coords)))


def _rows_of(coords: mx.array, rows: mx.array) -> mx.array:
    return coords[rows] if rows.size else filled((0, 4), 0, mx.int32)


def _in_order(sites: mx.array) -> mx.array:
    return _rows_of(sites, sorted_order(sites))


# ---------------------------------------------------------------- created sets


def parents(coords: mx.array, stride: Triple) -> mx.array:
    """Distinct ``floor(c / stride)``, sorted: (M, 4) int32."""
    check_coords("coords", coords)
    _check_positive("stride", stride)
    if coords.shape[0] == 0:
        return filled((0, 4), 0, mx.int32)
    return sorted_unique(mx.concatenate([coords[:, :1], floor_divide(coords[:, 1:], stride)], axis=1))


def floor_divide(c: mx.array, stride: Triple) -> mx.array:
    s = mx.array(stride, dtype=mx.int32)
    quotient = c // s
    # MLX rounds a negative quotient down or towards zero, depending on the backend: the remainder tells.
    return mx.where(c - quotient * s < 0, quotient - 1, quotient)


def inside(places: mx.array, low: Triple, high: Triple) -> mx.array:
    """(N,) bool: whether low <= place < high; (N, 3) places in (-2^30, 2^30), corners may lie anywhere."""
    ends = [[min(max(c, -(2**30)), 2**30) for c in corner] for corner in (low, high)]
    return ((places >= mx.array(ends[0], mx.int32)) & (places < mx.array(ends[1], mx.int32))).all(axis=1)


def touched(
    coords: mx.array, size: Triple, stride: Triple, padding: Triple, dilation: Triple, bounds: Triple | None
) -> mx.array:
    """Every o with ``o * s - p + k * d`` an active site for some tap k, within [0, bounds): sorted (M, 4).

    CoordinateRangeError where one lies outside (-2^30, 2^30).
    """
    return _expanded(coords, size, stride, padding, dilation, bounds, forward=True)


def generated(
    coords: mx.array, size: Triple, stride: Triple, padding: Triple, dilation: Triple, bounds: Triple | None
) -> mx.array:
    """Every ``c * s - p + k * d`` of an active site c and tap k, within [0, bounds): sorted (M, 4).

    CoordinateRangeError where one lies outside (-2^30, 2^30).
    """
    return _expanded(coords, size, stride, padding, dilation, bounds, forward=False)


def _expanded(
    coords: mx.array,
    size: Triple,
    stride: Triple,
    padding: Triple,
    dilation: Triple,
    bounds: Triple | None,
    forward: bool,
) -> mx.array:
    """Axis by axis, distinct sites only in between, so that the candidates stay few. Sorted at the end."""
    check_coords("coords", coords)
    _check_positive("stride", stride)
    for axis in range(3):
        n, taps = coords.shape[0], size[axis]
        if n * taps >= 2**31:
            raise CapacityError(
                f"{n} sites times {taps} taps need more than 2^31 candidates; split the input"
            )
        bound = 0 if bounds is None else bounds[axis]
        dims = [n, taps, axis, stride[axis], padding[axis], dilation[axis], int(forward), bound]
        groups = (blocks(n * taps, MAX_THREADS), 1, 1)
        coords, status = launch("candidates", [coords], dims, [(n * taps, 4), (8,)], groups, init=0)
        coords = _rows_of(coords, distinct_rows(coords))
        if n and read_ints(status[0])[0]:
            raise CoordinateRangeError(
                f"coords: the kernel reaches a site outside (-2^30, 2^30) along {'xyz'[axis]}; "
                "shift the coordinates"
            )
    return _in_order(coords)
