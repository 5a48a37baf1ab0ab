"""Coordinate keys and the manager that derives coordinate sets and kernel maps from them.

A key is an identity; its record (coordinates, index, derived records, maps) lives in it, so lifetime
is reference counting: parents hold derived children, children hold their parent weakly, and a map
holds arrays only. No cycle keeps a scan alive.

MLX's transformations (`value_and_grad` too) rebuild a tensor from its arrays, with a new identity.
The arrays still share the buffer of the coordinates, so the new key finds the live record by that
buffer (on a GPU: by their values) and nothing is computed twice.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import executor, fast
from ..backend.device import trace, tracing
from ..backend.host import to_mlx, view
from ..backend.status import found_again
from ..engine import neighbors, supports
from ..engine.device_map import DeviceMap
from ..engine.index import build_index
from ..engine.sorting import bounds_of, columns_of
from ..errors import CapacityError, ShapeError
from . import device, static
from .checks import check_coordinates, check_duplicates, check_keys, check_map, check_range, items_up_to
from .geometry import Kernel, Triple, TripleLike, divide, multiply, parent_shape, triple, whole
from .kernel_map import KernelMap
from .keys import (
    PADDING,
    CoordinateMapKey,
    Record,
    Rule,
    host_rows,
    items_of,
    live_record,
    note_record,
    sorted_record,
)


class CoordinateManager:
    """Makes keys and caches what is derived from them; one process-wide default is enough.

    The manager holds a lock, statistics and weak references to the live keys, never the records.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._keys: weakref.WeakSet[CoordinateMapKey] = weakref.WeakSet()
        self._hits = {"coordinates": 0, "maps": 0}
        self._built = {"keys": 0, "coordinates": 0, "maps": 0}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a new manager: what this one made lives in the keys, which keep it."""
        return CoordinateManager, ()

    # ------------------------------------------------------------ keys

    def insert(
        self,
        coords: mx.array | np.ndarray,
        stride: TripleLike = 1,
        active_rows: int | mx.array | np.ndarray | None = None,
        *,
        batch_size: int | None = None,
        spatial_shape: TripleLike | None = None,
        validate: bool = True,
    ) -> CoordinateMapKey:
        """Key of (capacity, 4) int32 coordinates (batch, x, y, z), in units of the own lattice.

        Rows at and past `active_rows`, an integer or a scalar array, are padding. Validation builds the
        sorted index, which the first kernel map then reuses. Raises ShapeError, DTypeError,
        CoordinateRangeError (batch < 0 or >= batch_size, a coordinate at or past +-2**30, a site outside
        `spatial_shape`) and DuplicateCoordinatesError.
        """
        mode = executor()
        array = check_coordinates(coords)
        # NumPy's hang on no transformation, and mx.checkpoint takes no result that is cut off.
        cut = mx.stop_gradient if isinstance(coords, mx.array) else lambda a: a
        lattice = triple(stride, "stride", least=1)
        shape = None if spatial_shape is None else triple(spatial_shape, "spatial_shape", least=0)
        size = array.shape[0]
        if isinstance(active_rows, mx.array):
            active_rows = view(active_rows)
        if isinstance(active_rows, np.ndarray):
            active_rows = active_rows[()]
        count = size if active_rows is None else whole(active_rows, "active_rows")
        if batch_size is not None:
            batch_size = whole(batch_size, "batch_size")
        if not 0 <= count <= size:
            raise ShapeError(f"active_rows must lie in [0, {size}] (the rows of coords), got {count}")
        if mode == "kernel":
            array = cut(device.padded(array, count, size))
            record = device.inserted(array, count, lattice, batch_size, shape, validate)
            return self._key(record)
        rows = view(array)
        active = rows[:count]
        # Compiled loops read the rows as they lie.
        columns = list(active.T) if fast.available() else columns_of(active)
        bounds = bounds_of(active) if count else None
        if bounds is not None:  # counts need batch numbers in range
            check_range(bounds, batch_size, shape if validate else None)
        if batch_size is None:
            batch_size = items_up_to(bounds.high[0]) if bounds is not None else 0
        if count < len(rows):
            array = mx.concatenate(
                [array[:count], mx.broadcast_to(mx.array(PADDING), (len(rows) - count, 4))]
            )
        array = cut(array)
        mx.eval(array)
        index = build_index(view(array)[:count], columns=columns, bounds=bounds) if validate else None
        if index is not None:
            check_duplicates(index, rows)
        batch = columns[0] if index is None else index.coords[:, 0]
        counts = items_of(batch, batch_size, ascending=index is not None)
        key = self._key(Record(array, count, lattice, batch_size, counts, shape, False))
        key._record.index = index
        return key

    def _key(self, record: Record, parent: CoordinateMapKey | None = None) -> CoordinateMapKey:
        key = CoordinateMapKey(self, record, parent)
        with self.lock:
            self._keys.add(key)
            self._built["keys"] += 1
            if len(record.coords) and record.known is not None:
                note_record(record)
        return key

    def adopt(
        self,
        coords: mx.array,
        active_rows: int,
        stride: Triple,
        batch_size: int,
        spatial_shape: Triple | None,
    ) -> CoordinateMapKey:
        """A new key for coordinates that a transformation of MLX handed back, unchecked.

        It shares the record of a live key with the same buffer; else one is made.
        """
        record = live_record(coords, stride, active_rows, batch_size, spatial_shape)
        if record is not None:
            key = self._key(record)
        else:
            on_device = executor() == "kernel"  # one read there checks all
            # A copy: what still hangs on the arguments of a transformation cannot leave it again.
            key = self.insert(
                host_rows(coords),
                stride,
                active_rows,
                batch_size=batch_size,
                spatial_shape=spatial_shape,
                validate=on_device,
            )
            if not on_device:
                check_duplicates(key.index, view(coords))
        key.rebuilt = True
        return key

    def adopt_traced(
        self, coords: mx.array, *leaves: Any, parent: CoordinateMapKey | None = None
    ) -> CoordinateMapKey:
        """A new key for coordinates whose count the host does not know: of a fixed capacity, unchecked.

        leaves: active_rows, status, stride, batch_size and spatial_shape of the tensor.
        """
        key = self._key(static.rebuilt(coords, *leaves), parent)
        key.rebuilt = True
        return key

    def stride(
        self,
        key: CoordinateMapKey,
        stride: TripleLike,
        *,
        kernel_size: TripleLike | None = None,
        padding: TripleLike = 0,
        dilation: TripleLike = 1,
        support: str = "parents",
        capacity: int | None = None,
    ) -> CoordinateMapKey:
        """The derived key that a strided or generative operator writes to, made once.

        support: "parents" floor(c / stride); "touched" every site that a tap reaches; "generative"
        every site that a transposed tap reaches (its stride divides the key's). Sorted by (batch, x,
        y, z). `capacity` pads the rows; CapacityError if it is too small.
        """
        check_keys(key=key)
        kernel = Kernel.of(stride if kernel_size is None else kernel_size, stride, padding, dilation)
        shape = key.spatial_shape
        if support == "generative":
            bounds = None if shape is None else kernel.transposed_shape(shape)
            lattice = divide(key.stride, kernel.stride)
            rule: Rule = ("generative", kernel)
        elif support in ("touched", "parents"):
            lattice = multiply(key.stride, kernel.stride)
            bounds = None if shape is None else parent_shape(shape, kernel.stride)
            if support == "touched" and shape is not None:
                bounds = kernel.output_shape(shape)
            # Windows that tile the lattice touch exactly the parents, unless a bound cuts the last.
            whole = shape is None or bounds == parent_shape(shape, kernel.stride)
            if support == "parents" or (kernel.covers_once and whole):
                support, rule = "parents", ("parents", kernel.stride)
            else:
                rule = ("touched", kernel)
        else:
            raise ShapeError(f'support must be "touched" or "parents", got {support!r}')
        capacity = _derived_capacity(key, capacity, support, kernel)
        rule += (capacity,)
        with self.lock:
            found = key._derived.get(rule)
            record = key._record.derived.get(rule) if found is None else found._record
            if record is not None:
                self._hits["coordinates"] += 1
                found_again(record.status)
            else:
                if executor() == "kernel":
                    record = device.derived(key, kernel, support, lattice, bounds, capacity)
                else:
                    record = _derive(key, kernel, support, lattice, bounds, capacity)
                key._record.derived[rule] = record
                self._built["coordinates"] += 1
                if tracing():
                    trace(f"coordinates {support} {_sites(key._record)} -> {_sites(record)}")
            if found is None:
                found = key._derived[rule] = self._key(record, key)
        return found

    def created(
        self,
        sites: np.ndarray,
        stride: TripleLike,
        batch_size: int,
        *,
        spatial_shape: Triple | None = None,
    ) -> CoordinateMapKey:
        """Key of distinct (n, 4) sites already sorted by (batch, x, y, z), within range."""
        shape = None if spatial_shape is None else triple(spatial_shape, "spatial_shape", least=0)
        return self._key(sorted_record(sites, triple(stride, "stride", least=1), batch_size, shape, None))

    def resized(self, key: CoordinateMapKey, capacity: int, *, fixed: bool) -> CoordinateMapKey:
        """A key with the active rows of `key` and another capacity; the index is shared."""
        old = key._record
        if old.known is None:
            return self._key(static.resized(old, capacity), key.parent)
        if executor() == "kernel":
            coords = device.padded(old.coords, old.count, capacity)
        else:
            rows = np.empty((capacity, 4), np.int32)
            rows[: key.count] = view(key.coords)[: key.count]
            rows[key.count :] = PADDING
            coords = to_mlx(rows)
        record = Record(
            coords, old.count, old.stride, old.batch_size, old._counts, old.spatial_shape, fixed, old._extent,
            old.status,
        )  # fmt: skip
        record.index, record.presorted = old.index, old.presorted
        return self._key(record, key.parent)

    def another(self, key: CoordinateMapKey) -> CoordinateMapKey:
        """A key of the same rows, which is not `key`."""
        return self._key(key._record, key.parent)

    # ------------------------------------------------------------ maps

    def kernel_map(self, in_key: CoordinateMapKey, out_key: CoordinateMapKey, kernel: Kernel) -> KernelMap:
        """Pairs with ``in = out * s - p + k * d``, made once for (in_key, out_key, kernel).

        A transposed operator asks with the fine key as `in_key` and the coarse one as `out_key` and
        reads the pairs backwards, so an encoder's map serves its decoder.
        """
        if not (type(in_key) is type(out_key) is CoordinateMapKey and type(kernel) is Kernel):
            check_map(in_key, out_key, kernel)
        place = executor(), kernel  # a tensor may meet operators of both devices
        with self.lock:
            maps = in_key._record.maps.get(out_key._record)
            if maps is None:
                maps = in_key._record.maps[out_key._record] = {}
            found = maps.get(place)
            if found is not None:
                self._hits["maps"] += 1
                return found
            check_map(in_key, out_key, kernel)
            found = maps[place] = KernelMap(kernel, _relation(in_key, out_key, kernel))
            self._built["maps"] += 1
        if tracing():
            pairs = "" if isinstance(found.relation, DeviceMap) else f", {found.num_pairs} pairs"
            trace(f"kernel map {kernel.size} {_sites(in_key._record)} -> {_sites(out_key._record)}{pairs}")
        return found

    def stats(self) -> dict[str, int]:
        """Live keys, maps and their bytes; how many were built and how often the caches served."""
        with self.lock:
            keys = list(self._keys)
            records = {id(key._record): key._record for key in keys}.values()
            maps = [m for r in records for by_kernel in list(r.maps.values()) for m in by_kernel.values()]
            return {
                "live_keys": len(keys),
                "live_maps": len(maps),
                "map_bytes": sum(m.nbytes for m in maps),
                "keys_built": self._built["keys"],
                "coordinates_built": self._built["coordinates"],
                "maps_built": self._built["maps"],
                "coordinate_hits": self._hits["coordinates"],
                "map_hits": self._hits["maps"],
            }

    def clear(self) -> None:
        """Drop derived keys, indexes and maps of every live key; they are rebuilt when asked for."""
        with self.lock:
            for key in list(self._keys):
                r = key._record
                for known in (key._derived, r.derived, r.maps, r.parents, r.windows, r.groups, r.own):
                    known.clear()
                r.index = None
                r.__dict__.pop("identity", None)


_default = CoordinateManager()


def default_manager() -> CoordinateManager:
    """The process-wide manager that tensors use unless they name another."""
    return _default


def unpickled(
    coords: mx.array,
    count: int,
    stride: Triple,
    batch_size: int,
    spatial_shape: Triple | None,
    fixed_capacity: bool,
    presorted: bool,
) -> CoordinateMapKey:
    """A key of rows that were a key's before."""
    key = _default.insert(
        coords, stride, count, batch_size=batch_size, spatial_shape=spatial_shape, validate=False
    )
    key._record.fixed_capacity, key._record.presorted = fixed_capacity, presorted
    return key


def _sites(record: Record) -> str:
    return f"at most {len(record.coords)} sites" if record.known is None else f"{record.known} sites"


def _derived_capacity(
    key: CoordinateMapKey, capacity: int | None, support: str, kernel: Kernel
) -> int | None:
    """Rows of the derived set: as asked, or the input's where the input has a fixed capacity."""
    if capacity is not None:
        if whole(capacity, "capacity", -1) < 0:
            raise CapacityError(f"capacity must be at least 0, got {capacity}")
        return int(capacity)
    if not key.fixed_capacity:
        return None
    if support == "parents" or (support == "touched" and kernel.reaches_one):
        return key.capacity  # never more of them than sites
    raise CapacityError(
        "the input has a fixed capacity and this operator can make more sites than it takes: pass capacity="
    )


def _derive(
    key: CoordinateMapKey,
    kernel: Kernel,
    support: str,
    lattice: Triple,
    bounds: Triple | None,
    capacity: int | None,
) -> Record:
    coords = key.index.coords
    if support == "parents":
        runs, packed = supports.parents(key.index, kernel.stride)
        record = sorted_record(runs.sites, lattice, key.batch_size, bounds, capacity, packed)
        key._record.parents[kernel.stride] = weakref.ref(record), runs.order, runs.starts
        return record
    shape = kernel.size, kernel.stride, kernel.padding, kernel.dilation
    sites = supports.made(support, coords, *shape, bounds)
    return sorted_record(sites, lattice, key.batch_size, bounds, capacity)


def _relation(
    in_key: CoordinateMapKey, out_key: CoordinateMapKey, kernel: Kernel
) -> neighbors.TapPairs | neighbors.Windows | DeviceMap:
    if executor() == "kernel":
        return device.relation(in_key, out_key, kernel)
    known = in_key._record.parents.get(kernel.stride) if kernel.covers_once else None
    if known is not None and known[0]() is out_key._record:
        return neighbors.Windows(in_key.index, out_key.index, kernel.stride, *known[1:])
    return neighbors.tap_pairs(
        in_key.index, out_key.index, kernel.size, kernel.stride, kernel.padding, kernel.dilation
    )
