"""Created coordinate sets of a fixed capacity on a GPU: nothing is read on the host, inside a trace or not.

Counts stay on the device. What would raise after a look at values becomes a bit of the status
(backend/status.py): a set that needs more rows than it has keeps the first ones in order; a set that leaves
its range has no sites.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import mlx.core as mx

from ..backend import kernel_bits, kernel_coords, kernel_sites
from ..backend.kernel_bits import Geometry
from ..backend.kernel_coords import MAX_ROWS
from ..backend.kernel_sites import Extent
from ..backend.library import begin
from ..backend.status import combined, fitted
from ..errors import CapacityError
from .geometry import Kernel, Triple, whole
from .keys import PADDING, CoordinateMapKey, Record


def geometry(kernel: Kernel, support: str) -> tuple[Triple, Triple, Triple, Triple]:
    """Size, stride, padding and dilation by which a set is made."""
    if support == "parents":
        return kernel.stride, kernel.stride, (0, 0, 0), (1, 1, 1)
    return kernel.size, kernel.stride, kernel.padding, kernel.dilation


def reached(source: Record, kernel: Kernel, support: str) -> Extent | None:
    """Bounds of a set made from `source`, where the host knows them without a read."""
    extent = source._extent
    if extent is None and source.spatial_shape is not None:
        extent = Extent((0, 0, 0), source.spatial_shape, source.batch_size)
    if extent is None:
        return None
    return kernel_sites.reached_extent(extent, *geometry(kernel, support), support != "generative")


def derived(
    key: CoordinateMapKey,
    kernel: Kernel,
    support: str,
    lattice: Triple,
    bounds: Triple | None,
    capacity: int,
) -> Record:
    """Record of a created set of `capacity` rows."""
    source = key._record
    forward = support != "generative"
    shape = geometry(kernel, support)
    within = None if support == "parents" else bounds
    extent = reached(source, kernel, support)
    rows = source.coords.shape[0]
    if extent is not None and kernel_bits.worthwhile(extent, rows) and 0 not in (within or ()):
        return _marked(source, extent, Geometry(*shape, within, forward), lattice, bounds, capacity)
    known = extent is not None and extent.fits
    box = kernel_sites.reached_box(source.box, *shape, forward)
    made = kernel_sites.reached(
        source.coords, extent if known and extent is not None else box, *shape, within, forward=forward,
        capacity=capacity,
    )  # fmt: skip
    outside = mx.array(made.outside) != 0
    if not known:
        outside = outside | kernel_sites.box_is_wide(box, source.batch_size)
    record = _record(source, made.sites, made.total, outside, lattice, bounds, capacity)
    if known:
        record._extent = extent
    else:
        record.box = box  # of a superset of the sites, which is as good
    if support == "parents":
        places = mx.where(outside, 0, made.places)
        source.windows[kernel.stride] = weakref.ref(record), made._replace(places=places)
    return record


def _marked(
    source: Record, extent: Extent, shape: Geometry, lattice: Triple, bounds: Triple | None, capacity: int
) -> Record:
    """As `derived`, by marking sites over bounds that are known."""
    marks = kernel_bits.marked(source.coords, extent, shape)
    outside = marks.outside != 0
    record = _record(
        source, kernel_bits.sites(marks, capacity), marks.total, outside, lattice, bounds, capacity
    )
    record._extent = extent
    # Rows past the last are none (site_bits.h); bits that are 0 would be eight times as many.
    record.marks = marks._replace(before=mx.where(outside, mx.array(MAX_ROWS, mx.int32), marks.before))
    return record


def _record(
    source: Record,
    sites: mx.array,
    total: mx.array,
    outside: mx.array,
    lattice: Triple,
    bounds: Triple | None,
    capacity: int,
) -> Record:
    """Record of created sites, sorted; none where some lie `outside`."""
    sites = mx.where(outside, mx.array(PADDING, mx.int32), sites)
    rows, found = fitted(total, capacity, outside, lattice)
    status = combined(source.status, found)
    begin(sites, rows, status)
    record = Record(sites, rows, lattice, source.batch_size, None, bounds, True, None, status)
    record.presorted = True
    return record


def rebuilt(
    coords: mx.array,
    active_rows: mx.array,
    status: mx.array,
    stride: Triple,
    batch_size: int,
    spatial_shape: Triple | None,
) -> Record:
    """Record of what a transformation of MLX handed back: `active_rows` is not known, nothing is checked."""
    return Record(coords, active_rows, stride, batch_size, None, spatial_shape, True, None, status)


def resized(source: Record, capacity: int) -> Record:
    """Record of the same sites in another number of rows."""
    size = source.coords.shape[0]
    coords = source.coords[:capacity]
    if capacity > size:
        padding = mx.broadcast_to(mx.array(PADDING, mx.int32), (capacity - size, 4))
        coords = mx.concatenate([coords, padding])
    rows, status = source.active_rows, source.status
    if capacity < size:
        rows, found = fitted(rows, capacity, mx.array(False), source.stride)
        status = combined(status, found)
    record = _like(source, coords, rows, status)
    record.presorted, record._extent = source.presorted, source._extent
    return record


def selected(key: CoordinateMapKey, keep: mx.array) -> tuple[CoordinateMapKey, mx.array]:
    """New key of the sites where `keep` (capacity,) is True, in their order; their rows, -1 past the last."""
    source = key._record
    keep = keep & source.live[:, 0]
    rows = kernel_coords.flagged(keep, key.capacity)
    record = _like(source, _rows(source.coords, rows), keep.sum().astype(mx.int32), source.status)
    record.presorted, record._extent = source.presorted, source._extent
    begin(record.coords, record.active_rows)
    return key.manager._key(record), rows


def joined(keys: Sequence[CoordinateMapKey], capacity: int, *, common: bool) -> CoordinateMapKey:
    """New key of the sites of all keys (common) or of any, sorted, in `capacity` rows."""
    if (capacity := whole(capacity, "capacity", -1)) < 0:
        raise CapacityError(f"capacity must be at least 0, got {capacity}")
    first, sources = keys[0]._record, [key._record for key in keys]
    coords = first.coords if common else mx.concatenate([source.coords for source in sources])
    n = coords.shape[0]
    for other in sources[1:] if common else ():
        there = kernel_coords.find_rows(other.table, coords) >= 0
        coords = mx.where(there[:, None], coords, mx.array(PADDING, mx.int32))
    # Whole coordinates are sorted, so that no range is too wide.
    coords = coords[kernel_coords.sorted_order(coords)] if n else coords
    new = mx.concatenate([mx.ones((min(n, 1),), mx.bool_), (coords[1:] != coords[:-1]).any(axis=1)])
    new = new & (coords[:, 0] >= 0)
    total = new.sum().astype(mx.int32)
    sites = _rows(coords, kernel_coords.flagged(new, capacity))
    rows, status = fitted(total, capacity, mx.array(False), first.stride)
    record = _like(first, sites, rows, combined(status, *(source.status for source in sources)))
    record.presorted = True
    begin(sites, rows, record.status)
    return keys[0].manager._key(record)


def rows_of(key: CoordinateMapKey, coords: mx.array) -> mx.array:
    """Row of each of (m, 4) coords in the key, -1 where it has none."""
    return kernel_coords.find_rows(key._record.table, coords)


def _rows(coords: mx.array, rows: mx.array) -> mx.array:
    if coords.shape[0] == 0:
        return mx.broadcast_to(mx.array(PADDING, mx.int32), (rows.shape[0], 4))
    return mx.where(rows[:, None] < 0, mx.array(PADDING, mx.int32), coords[mx.maximum(rows, 0)])


def _like(source: Record, coords: mx.array, rows: mx.array, status: mx.array) -> Record:
    return Record(
        coords, rows, source.stride, source.batch_size, None, source.spatial_shape, True, None, status
    )
