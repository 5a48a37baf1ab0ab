"""Coordinate keys and the records behind them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx
import numpy as np

from ..backend.device import executor
from ..backend.host import require_values, to_mlx, view
from ..backend.kernel_bits import Marked, counted
from ..backend.kernel_coords import CoordTable, hash_table
from ..backend.kernel_items import item_segments
from ..backend.kernel_rows import Segments
from ..backend.kernel_sites import Extent, Reached, box_of, extent_between
from ..backend.library import begin
from ..backend.mail import read_ints
from ..backend.status import clear
from ..backend.tap_tiles import TapTiles
from ..engine.device_map import identity
from ..engine.index import CoordIndex, build_index
from ..engine.sorting import Packed
from ..errors import CapacityError
from .ahead import Ahead, Steps
from .geometry import Kernel, Triple
from .kernel_map import KernelMap

if TYPE_CHECKING:
    from .manager import CoordinateManager

PADDING = (-1, 0, 0, 0)  # coordinates of a padding row
Rule: TypeAlias = tuple[Any, ...]


class Record:
    """What is known of one coordinate set: coordinates, index, derived records, maps.

    What the host or the device can find out is found out when it is asked for.
    """

    def __init__(
        self,
        coords: mx.array,
        count: int | mx.array,
        stride: Triple,
        batch_size: int,
        counts: np.ndarray | None,
        spatial_shape: Triple | None,
        fixed_capacity: bool,
        extent: Extent | None = None,
        status: mx.array | None = None,
    ):
        self.coords = coords
        self.alike: _Alike | None = None
        self.home = executor()  # where it was made
        self.known = None if isinstance(count, mx.array) else count  # rows, where the host knows them
        self.stride = stride
        self.batch_size = batch_size
        self.spatial_shape = spatial_shape
        self.fixed_capacity = fixed_capacity
        # A number given by the host has its value: nothing to wait for.
        self.active_rows = count if isinstance(count, mx.array) else mx.array(count, mx.int32)
        self.status = clear() if status is None else status
        self.presorted = False  # rows are sorted by (batch, x, y, z)
        self.index: CoordIndex | None = None
        self.derived: dict[Rule, Record] = {}
        # By stride: the parents derived from here, and order and starts of their sites (neighbors.Windows).
        self.parents: dict[Triple, tuple[weakref.ref[Record], np.ndarray | None, np.ndarray]] = {}
        # The same on a GPU: what their window map is made from.
        self.windows: dict[Triple, tuple[weakref.ref[Record], Reached]] = {}
        self.marks: Marked | None = None  # on a GPU: the rows as bits, in their order
        self.ahead: Ahead | None = None  # on a GPU: a set made from these rows that was counted in advance
        self.own: dict[Kernel, TapTiles] = {}  # on a GPU: maps onto itself that were made in advance
        self.steps: Steps = ()  # what led here (ahead.py)
        # By output record, held weakly (a map dies with either end), then executor and kernel.
        self.maps: weakref.WeakKeyDictionary[Record, dict[tuple[str, Kernel], KernelMap]]
        self.maps = weakref.WeakKeyDictionary()
        # Rows by window, patch or batch item (groups.py).
        self.groups: dict[Rule, Any] = {}
        self._counts = counts
        self._extent = extent

    @property
    def count(self) -> int:
        """Active rows. Waits for them where the device alone knows them; not inside a trace."""
        if self.known is None:
            (self.known,) = read_ints(self.active_rows)
        return self.known

    @property
    def active(self) -> int | mx.array:
        """Active rows as the executor takes them: the number, on a GPU its array where that is not known."""
        return self.active_rows if self.known is None and executor() == "kernel" else self.count

    @cached_property
    def live(self) -> mx.array:
        """(capacity, 1) bool: which rows are sites."""
        live = (mx.arange(self.coords.shape[0]) < self.active_rows)[:, None]
        begin(live)
        return live

    @cached_property
    def items(self) -> Segments:
        """Rows of each batch item, on a GPU."""
        return item_segments(self.coords[:, 0], self.batch_size, ascending=self.presorted)

    @cached_property
    def box(self) -> mx.array:
        """(2, 3) int32 least and largest x, y, z of the active rows, on the device."""
        if self._extent is not None:
            low, span = np.array(self._extent.low), np.array(self._extent.span)
            return mx.array(np.stack([low, low + span - 1]).astype(np.int32))
        return box_of(self.coords, self.live)

    def rows(self) -> np.ndarray:
        """(count, 4) int32 active coordinates on the host."""
        return host_rows(self.coords)[: self.count]

    @property
    def counts(self) -> np.ndarray:
        """(B,) int64 rows of each batch item, on the host."""
        if self._counts is None:
            batch = self.rows()[:, 0]
            self._counts = items_of(batch, self.batch_size, ascending=self.presorted)
        return self._counts

    @cached_property
    def batch_counts(self) -> mx.array:
        """(B,) int32 rows of each batch item."""
        if self._counts is None and (self.known is None or self.batch_size <= 256):
            # Not begun: few calls read it.
            return (self.coords[:, :1] == _numbers(self.batch_size)).sum(axis=0)
        return to_mlx(self.counts.astype(np.int32))

    @cached_property
    def identity(self) -> KernelMap:
        """Each active row to itself, on a GPU: the map of a dense layer."""
        return KernelMap(Kernel((1, 1, 1)), identity(self.coords.shape[0], self.active))

    @cached_property
    def table(self) -> CoordTable:
        """Hash table of the rows, on a GPU."""
        return hash_table(self.coords)

    @property
    def extent(self) -> Extent:
        """Bounds of the active coordinates; reads them where they are not known."""
        if self._extent is None:
            if self.count == 0:
                self._extent = Extent((0, 0, 0), (1, 1, 1), self.batch_size)
            else:
                table = hash_table(self.coords, rows=self.count)  # whose kernel finds them
                self._extent = extent_between(counted(self.coords, [], table)[1].ends, self.batch_size)
                self.__dict__.setdefault("table", table)
        return self._extent


@functools.lru_cache(maxsize=64)
def _numbers(count: int) -> mx.array:
    return mx.array([[*range(count)]], mx.int32)


def host_rows(coords: mx.array) -> np.ndarray:
    """Coordinates as a NumPy array. On a GPU of a copy: a view would move the array itself to the host."""
    on_host = mx.default_device().type == mx.DeviceType.cpu
    return view(coords if on_host or coords.size == 0 else coords + 0)


class CoordinateMapKey:
    """Identity of a coordinate set: tensors with the same key have the same rows.

    Attributes: ``coords`` (capacity, 4) int32, ``count`` active rows, ``capacity``, ``stride``,
    ``batch_size``, ``batch_counts`` (B,) int32, ``active_rows`` int32 scalar array,
    ``spatial_shape``, ``manager``, ``parent``. Equality is identity; equal coordinates do not make
    equal keys.
    """

    def __init__(self, manager: CoordinateManager, record: Record, parent: CoordinateMapKey | None = None):
        self.manager = manager
        self.rebuilt = False  # made anew for a tensor that a transformation of MLX put together
        self._record = record
        self._parent = None if parent is None else weakref.ref(parent)
        self._derived: dict[Rule, CoordinateMapKey] = {}

    @property
    def coords(self) -> mx.array:
        return self._record.coords

    @property
    def count(self) -> int:
        return self._record.count

    @property
    def capacity(self) -> int:
        """Rows including padding."""
        return self._record.coords.shape[0]

    @property
    def stride(self) -> Triple:
        return self._record.stride

    @property
    def batch_size(self) -> int:
        return self._record.batch_size

    @property
    def counts(self) -> np.ndarray:
        """(B,) int64 rows of each batch item, on the host."""
        return self._record.counts

    @property
    def spatial_shape(self) -> Triple | None:
        return self._record.spatial_shape

    @property
    def fixed_capacity(self) -> bool:
        """Outputs keep a capacity instead of being trimmed."""
        return self._record.fixed_capacity

    @property
    def active(self) -> int | mx.array:
        """Active rows: an int where the host knows them, else a scalar array."""
        return self._record.active

    @property
    def live(self) -> mx.array:
        """(capacity, 1) bool: which rows are sites."""
        return self._record.live

    @property
    def static(self) -> bool:
        """Whether operators on these rows read nothing on the host: a fixed capacity on a GPU."""
        return self._record.fixed_capacity and executor() == "kernel"

    @property
    def items(self) -> Segments:
        """Rows of each batch item, on a GPU."""
        return self._record.items

    @property
    def full(self) -> bool:
        """Whether the host knows that there is no padding."""
        return self._record.known == self.capacity

    @property
    def batch_counts(self) -> mx.array:
        return self._record.batch_counts

    @property
    def active_rows(self) -> mx.array:
        return self._record.active_rows

    @property
    def status(self) -> mx.array:
        return self._record.status

    @property
    def parent(self) -> CoordinateMapKey | None:
        """The key that this one was derived from, while something else keeps it alive."""
        return None if self._parent is None else self._parent()

    @property
    def index(self) -> CoordIndex:
        """Sorted index of the active rows, built at first use."""
        with self.manager.lock:
            if self._record.index is None:
                self._record.index = build_index(self._record.rows(), presorted=self._record.presorted)
            return self._record.index

    def __reduce__(self) -> tuple[Any, ...]:
        """Its rows: what was derived and cached is made anew, by the default manager."""
        from .manager import unpickled

        r = self._record
        told = r.coords, r.count, r.stride, r.batch_size, r.spatial_shape, r.fixed_capacity, r.presorted
        return unpickled, told

    def __repr__(self) -> str:
        sites = "on the device" if self._record.known is None else self._record.known
        return f"CoordinateMapKey(sites={sites}, stride={self.stride}, batch_size={self.batch_size})"


class _Alike:
    """The live records whose coordinates are one buffer, the first one first. They hold it."""

    def __init__(self) -> None:
        self._found: list[weakref.ref[Record]] = []

    def add(self, record: Record) -> None:
        self._found = [ref for ref in self._found if ref() not in (None, record)] + [weakref.ref(record)]
        record.alike = self

    def __iter__(self) -> Iterator[Record]:
        return (record for ref in self._found if (record := ref()) is not None)


# Live records by the buffer of their coordinates. A record keeps its buffer alive, so an address
# cannot come to mean another one.
_records: weakref.WeakValueDictionary[tuple[Any, ...], _Alike] = weakref.WeakValueDictionary()


def note_record(record: Record) -> None:
    """Have `live_record` find it, in no place of one that it found before."""
    if record.alike is None:
        at = buffer(record.coords)
        alike = _records.get(at) or _Alike()
        _records[at] = alike
        alike.add(record)


def buffer(coords: mx.array) -> tuple[Any, ...]:
    """What tells the coordinates of a live record; on a GPU the array: nobody hands out its address."""
    if executor() == "kernel":
        return (id(coords),)
    rows = view(coords)
    return rows.__array_interface__["data"][0], rows.shape, rows.strides


def live_record(
    coords: mx.array, stride: Triple, count: int, batch_size: int, spatial_shape: Triple | None
) -> Record | None:
    """The live record with these rows, None if there is none.

    On a GPU MLX hands the same buffer back as another array, which nothing tells but its values: they are
    compared with those of every live record of the same size, in one read. A record of the host counts last:
    maps of sets that were made there have another order of sums.
    """

    def fits(record: Record) -> bool:
        known = record.stride, record.count, record.batch_size, record.spatial_shape
        return known == (stride, count, batch_size, spatial_shape) and record.coords.shape == coords.shape

    if len(coords) == 0:
        return None
    found = list(_records.get(buffer(coords), ()))
    if executor() == "host" or found:
        return next(filter(fits, found), None)
    everywhere = [r for there in list(_records.values()) for r in there]
    alike = sorted(filter(fits, everywhere), key=lambda r: r.home == "host")
    if not alike:
        return None
    same = mx.stack([mx.array_equal(r.coords, coords) for r in alike])
    require_values(same)
    return next((r for r, equal in zip(alike, np.array(same).tolist()) if equal), None)


def sorted_record(
    sites: np.ndarray,
    stride: Triple,
    batch_size: int,
    spatial_shape: Triple | None,
    capacity: int | None,
    packed: Packed | None = None,
) -> Record:
    """Record of distinct sorted (n, 4) sites, padded to `capacity`; CapacityError if too small."""
    count = len(sites)
    if capacity is not None and count > capacity:
        raise CapacityError(f"capacity={capacity} is too small: the output has {count} sites")
    rows = sites
    if capacity is not None:
        rows = np.empty((capacity, 4), np.int32)
        rows[:count] = sites
        rows[count:] = PADDING
    counts = items_of(sites[:, 0], batch_size, ascending=True)
    record = Record(to_mlx(rows), count, stride, batch_size, counts, spatial_shape, capacity is not None)
    record.presorted = True
    if packed is not None:
        record.index = build_index(record.rows(), presorted=True, packed=packed)
    return record


def items_of(batch: np.ndarray, batch_size: int, *, ascending: bool) -> np.ndarray:
    """Rows of each batch item: (B,) int64."""
    if not ascending:
        return np.bincount(batch, minlength=batch_size)
    return np.diff(np.searchsorted(batch, np.arange(batch_size + 1)))
