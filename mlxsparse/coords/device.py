"""Coordinate sets and kernel maps on a GPU: what manager.py does with host indexes, by kernels.

Nothing waits for the device but the checks of a new set, and the count of a created one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..backend import kernel_bits, kernel_coords, kernel_sites
from ..backend.host import require_values
from ..backend.kernel_bits import Geometry, InWindows, Marked
from ..backend.kernel_coords import CoordTable
from ..backend.kernel_sites import Extent, Reached
from ..backend.library import MAX_GRID_YZ, begin
from ..backend.tap_tiles import TapTiles, tap_tiles
from ..engine import supports
from ..engine.dense_grid import Grid
from ..engine.device_map import BEGUN, ByRow, DeviceMap, Side, submanifold
from ..engine.index import LIMIT, build_index
from ..engine.sorting import bounds_of
from ..errors import CapacityError, CoordinateRangeError, MLXSparseError
from . import ahead, static
from .checks import check_duplicates, check_range, items_up_to
from .geometry import Kernel, Triple
from .keys import PADDING, CoordinateMapKey, Record, host_rows


def inserted(
    coords: mx.array,
    count: int,
    stride: Triple,
    batch_size: int | None,
    spatial_shape: Triple | None,
    validate: bool,
) -> Record:
    """Record of (capacity, 4) coordinates with padding past `count`, checked in one read."""
    if count == 0 or (not validate and batch_size is not None):
        require_values(coords)
    if not validate and batch_size is not None:
        return Record(coords, count, stride, batch_size, None, spatial_shape, False)
    if count == 0:
        extent = Extent((0, 0, 0), (1, 1, 1), batch_size or 0)
        return Record(coords, 0, stride, batch_size or 0, None, spatial_shape, False, extent)
    root, many = (batch_size, stride, spatial_shape), coords.shape[0] >= BEGUN
    bounds = ahead.bounds(root)
    plan = [] if bounds is None else ahead.planned(root, bounds, coords.shape[0])
    table = kernel_coords.hash_table(coords, rows=count)
    if many and plan:  # it takes the GPU longer than the host what follows
        begin(table.table)
    own: dict[Kernel, TapTiles] = {}
    expected = ahead.next_map(root)

    def map_ahead() -> None:
        assert expected is not None
        own[expected] = tiles = _looked_up(table, expected, count)
        if not many:  # else they have begun
            begin(*tiles.arrays)

    meanwhile = None if expected is None else map_ahead
    marks, (repeated, ends, counts) = kernel_bits.counted(coords, ahead.boxes(plan), table, meanwhile)
    if validate and (_range_is_wrong(ends, batch_size, spatial_shape) or repeated):
        rows = host_rows(coords[:count])
        check_range(bounds_of(rows), batch_size, spatial_shape)  # the same errors as on the host
        check_duplicates(build_index(rows), rows)
        raise MLXSparseError(
            "coords were refused by the device's check and pass the host's; please report this"
        )
    size = items_up_to(ends[1][0]) if batch_size is None else batch_size
    extent = kernel_sites.extent_between(ends, size)
    record = Record(coords, count, stride, size, None, spatial_shape, False, extent)
    record.steps, record.own = root, own
    if not own and bounds is None:  # of a set like one before it is known what is asked of it
        record.table = table
    ahead.seen(root, extent)
    if bounds is not None and ahead.inside(extent, bounds):
        record.ahead = ahead.chained(plan, marks, counts)
    return record


def _range_is_wrong(
    ends: tuple[list[int], list[int]], batch_size: int | None, shape: Triple | None
) -> bool:
    (first, *low), (last, *high) = ends
    if first < 0 or (batch_size is not None and last >= batch_size):
        return True
    if min(low) <= -LIMIT or max(high) >= LIMIT:
        return True
    return shape is not None and (min(low) < 0 or any(h >= s for h, s in zip(high, shape)))


def padded(coords: mx.array, count: int, capacity: int) -> mx.array:
    """The first `count` rows of coordinates, and padding."""
    if capacity == count == coords.shape[0]:
        return coords
    rows = coords[:count]
    if capacity == count:
        return rows
    return mx.concatenate([rows, mx.broadcast_to(mx.array(PADDING, mx.int32), (capacity - count, 4))])


def derived(
    key: CoordinateMapKey,
    kernel: Kernel,
    support: str,
    lattice: Triple,
    bounds: Triple | None,
    capacity: int | None,
) -> Record:
    """Record of a created set; its count is read, but for one made from a set of fixed capacity."""
    source = key._record
    if key.fixed_capacity and capacity is not None:
        # Where the host knows that the sites lie too far apart to be numbered, it reads the count after all.
        bound = static.reached(source, kernel, support)
        if source._extent is None or (bound is not None and bound.fits):
            return static.derived(key, kernel, support, lattice, bounds, capacity)
    forward = support != "generative"
    size, stride, padding, dilation = shape = static.geometry(kernel, support)
    within = None if support == "parents" else bounds
    geometry = Geometry(*shape, within, forward)
    if source.ahead is not None and source.ahead.step == geometry:
        return _marked(source, source.ahead.marks.extent, geometry, support, lattice, bounds, capacity)
    extent = kernel_sites.reached_extent(source.extent, *shape, forward)
    close = kernel_bits.takes(size, dilation) and 0 not in (within or ())
    if close and kernel_bits.worthwhile(extent, source.coords.shape[0]):
        return _marked(source, extent, geometry, support, lattice, bounds, capacity)
    made: Reached | None = None
    if extent.fits:
        made = kernel_sites.reached(
            source.coords, extent, size, stride, padding, dilation, within, forward=forward
        )
        _check_inside(int(made.outside), support, extent)
        sites = made.sites
    elif support == "parents":  # coordinates too far apart for numbers of 63 bits
        sites = kernel_coords.parents(source.coords[: source.count], stride)
    else:
        build = kernel_coords.touched if forward else kernel_coords.generated
        try:
            sites = build(source.coords[: source.count], size, stride, padding, dilation, within)
        except CoordinateRangeError:  # along an axis before the others are looked at, which may drop the site
            host = supports.made(support, key.index.coords, size, stride, padding, dilation, within)
            sites = mx.array(host.astype(np.int32))
    count = sites.shape[0]
    _check_capacity(count, capacity)
    coords = padded(sites, count, count if capacity is None else capacity)
    record = Record(coords, count, lattice, source.batch_size, None, bounds, capacity is not None, extent)
    record.presorted = True
    if support == "parents" and made is not None:
        source.windows[kernel.stride] = weakref.ref(record), made
    return record


def _check_inside(outside: int, support: str, extent: Extent) -> None:
    if outside:
        raise CoordinateRangeError(
            f"the {support} support leaves (-2**30, 2**30): it reaches from {extent.low} over {extent.span}"
        )


def _check_capacity(count: int, capacity: int | None) -> None:
    if capacity is not None and count > capacity:
        raise CapacityError(f"capacity={capacity} is too small: the output has {count} sites")


# ---------------------------------------------------------------- sets as bits

def _marked(
    source: Record,
    extent: Extent,
    geometry: Geometry,
    support: str,
    lattice: Triple,
    bounds: Triple | None,
    capacity: int | None,
) -> Record:
    """As `derived`, by marking sites over their bounds."""
    known, source.ahead = source.ahead, None
    if known is None or known.step != geometry:
        plan = [(geometry, extent, geometry)]
        if capacity is None:
            plan = ahead.planned(source.steps, source.extent, source.coords.shape[0], geometry)
        marks, (_, _, counts) = kernel_bits.counted(source.coords, ahead.boxes(plan))
        _check_inside(counts[0][1], support, extent)
        known = ahead.chained(plan, marks, counts)
        assert known is not None
    _check_capacity(known.rows, capacity)
    coords = kernel_bits.sites(known.marks, known.rows if capacity is None else capacity)
    record = Record(
        coords, known.rows, lattice, source.batch_size, None, bounds, capacity is not None, known.marks.extent
    )
    record.presorted, record.marks = True, known.marks
    if capacity is None:
        record.ahead, record.steps = known.then, (*source.steps, geometry)
        ahead.followed(source.steps, geometry)
    return record


class Makers(NamedTuple):
    """What makes one side of a map (engine/device_map.py); without a table, the other side's is flipped."""

    table: Callable[[], mx.array] | None = None
    by_row: Callable[[], ByRow] | None = None
    tiles: Callable[[], TapTiles] | None = None


def _by_bits(source: Record, target: Record, kernel: Kernel) -> tuple[Makers, Makers] | None:
    """Output and input side of a map of two sets of which one is there as bits, None if neither is."""
    if not kernel_bits.takes(kernel.size, kernel.dilation):
        return None
    shape = Geometry(kernel.size, kernel.stride, kernel.padding, kernel.dilation)
    rows_in, rows_out = source.coords.shape[0], target.coords.shape[0]
    if target.marks is not None:
        there = target.marks._replace(geometry=shape)
        output, inputs = _from_marked(source.coords, there, rows_out), Makers()
        if kernel.covers_once and kernel.volume <= kernel_bits.MOST_WINDOW_TAPS:
            windows = _Windows(source, target, target.marks, kernel.stride)
            inputs = inputs._replace(tiles=windows.input)
            if kernel.volume <= 8:  # a sort would cost more than it saves
                output = output._replace(tiles=windows.output)
        return output, inputs
    if source.marks is not None:
        back = source.marks._replace(geometry=shape._replace(forward=False))
        return Makers(), _from_marked(target.coords, back, rows_in)
    return None


class _Windows:
    """Tiles of both sides of a map to windows that tile the lattice.

    Of at most 8 taps whose output side is made first, the bits are let go of then: they are several times as
    much as what the input side is made from, and a U-Net asks for that at its end.
    """

    def __init__(self, source: Record, target: Record, marks: Marked, stride: Triple):
        self._active = source.known, target.known
        self._find: Callable[[], InWindows] | None = partial(
            kernel_bits.in_windows, source.coords, marks, stride, target.coords.shape[0]
        )
        self._found: InWindows | None = None

    def output(self) -> TapTiles:
        return kernel_bits.windows_output(self._rows(), self._active[1])

    def input(self) -> TapTiles:
        return kernel_bits.windows_input(self._rows(), self._active[0])

    def _rows(self) -> InWindows:
        if self._find is not None:
            self._found, self._find = self._find(), None
        assert self._found is not None
        return self._found


def _from_marked(coords: mx.array, marks: Marked, rows: int) -> Makers:
    """The side of the marked set, which has `rows` rows."""
    make = partial(kernel_bits.site_map, coords, marks, rows)
    return Makers(make, lambda: (make(by_row=True), None))


def _onto_itself(source: Record, kernel: Kernel, grid: Grid | None) -> DeviceMap:
    marks, steps = source.marks, source.steps
    made = source.own.pop(kernel, None)
    if made is None and marks is not None:
        shape = kernel.size, kernel.dilation
        by_row = partial(kernel_bits.submanifold_map, source.coords, marks, *shape, by_row=True)
        source.marks = None  # more memory than a hash table, and most sets need no other map
        return _own_map(source.coords, source.active, kernel, grid, by_row)
    if made is not None:
        make = lambda: made  # noqa: E731
    else:
        make = partial(_looked_up, source.table, kernel, source.active)
        del source.table  # 40 bytes a row, and most sets need no other map

    def tiles() -> TapTiles:
        ahead.mapped(steps, kernel)
        return make()

    return _own_map(source.coords, source.active, kernel, grid, tiles=tiles)


def _looked_up(table: CoordTable, kernel: Kernel, active: int | mx.array) -> TapTiles:
    """Ordered map of a set onto itself; of many rows each step is started while the host goes on."""
    rows = table.coords.shape[0]
    start: Callable[..., object] = begin if rows >= BEGUN else lambda *_: None
    known = active if isinstance(active, int) else None
    start(table.table)
    if kernel.size == (3, 3, 3) and kernel.dilation == (1, 1, 1):
        tiles = kernel_coords.near_tiles(table, known)
    else:
        nbr, keys = kernel_coords.submanifold_map(table, kernel.size, kernel.dilation, by_row=True)
        start(nbr)
        tiles = tap_tiles(nbr, rows, kernel.size, known, keys, by_row=True)
    start(*tiles.arrays)
    return tiles


def _own_map(
    coords: mx.array,
    active: int | mx.array,
    kernel: Kernel,
    grid: Grid | None,
    by_row: Callable[[], ByRow] | None = None,
    tiles: Callable[[], TapTiles] | None = None,
) -> DeviceMap:
    def table() -> mx.array:  # few operators read it
        made = kernel_coords.hash_table(coords)
        return kernel_coords.submanifold_map(made, kernel.size, kernel.dilation).nbr

    return submanifold(table, coords.shape[0], active, kernel.size, by_row, tiles, grid)


def relation(in_key: CoordinateMapKey, out_key: CoordinateMapKey, kernel: Kernel) -> DeviceMap:
    """The kernel map of two sets. CapacityError past 65535 taps."""
    if kernel.volume > MAX_GRID_YZ:
        raise CapacityError(
            f"a kernel of {kernel.size} has {kernel.volume} taps, on a GPU at most {MAX_GRID_YZ}: use "
            "several smaller ones"
        )
    source, target = in_key._record, out_key._record
    rows_in, rows_out = source.coords.shape[0], target.coords.shape[0]
    if kernel.is_centred and source is target:
        return _onto_itself(source, kernel, _grid(source, source, kernel))
    sides = _by_bits(source, target, kernel)
    if sides is None:
        known = source.windows.get(kernel.stride) if kernel.covers_once else None
        if known is not None and known[0]() is target:
            sites = known[1]._replace(sites=target.coords)
            nbr, back = kernel_sites.window_map(source.coords, sites, kernel.stride)
        else:
            nbr, back = kernel_coords.neighbour_map(
                source.table, target.coords, kernel.size, kernel.stride, kernel.padding, kernel.dilation
            )
        sides = Makers(lambda: nbr), Makers(lambda: back)
    output, inputs = (partial(_side, makers, kernel.size) for makers in sides)
    if sides[0].table is None:
        far = inputs(rows_out, source.active)
        near = output(rows_in, target.active, far)
    else:
        near = output(rows_in, target.active)
        far = inputs(rows_out, source.active, near)
    return DeviceMap(near, far, source.active, target.active, grid=_grid(source, target, kernel))


def _grid(source: Record, target: Record, kernel: Kernel) -> Grid | None:
    """Where the rows of both sets lie, if that is known and they fill enough of it."""
    if target._extent is None:
        return None
    shape = kernel.size, kernel.stride, kernel.padding, kernel.dilation
    made = Grid(source.coords, target.coords, target._extent, *shape)
    return made if made.worthwhile else None


def _side(
    makers: Makers,
    size: Triple,
    sources: int,
    count: int | mx.array,
    other: Side | None = None,
) -> Side:
    def turned() -> mx.array:
        assert other is not None
        return kernel_coords.flipped(other.untiled(), other.sources)

    return Side(makers.table or turned, sources, size, count, *makers[1:])
