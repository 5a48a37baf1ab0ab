"""Programs over sparse voxels: regions become rows, masks become relations, both a block layout."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Collection, Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from ..blocksparse.check import as_mask, whole_number
from ..coords import CoordinateMapKey, default_manager
from ..coords.keys import Record, host_rows
from ..errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from ..tensor import SparseTensor
from .attend import CompiledProgram
from .canvas import check_fallback
from .program import Connection, connections, replace_earlier
from .relation import Relation, lay_out, numbered
from .spec import MaskSpec, Rect, RegionSpec, as_rect

# Compiled programs live as long as the coordinates that they were compiled over: by the record that a key
# shares with those of tensors which a transformation of MLX took apart and put together again.
_compiled: weakref.WeakKeyDictionary[Record, dict[Any, CompiledProgram]]
_compiled = weakref.WeakKeyDictionary()
PROGRAMS = 32  # that one set of coordinates keeps, the latest: masks may be drawn anew in every step
NO_LINKS = np.zeros((0, 2), np.int64)


class VoxelLayout:
    """Named regions of the voxels of a tensor.

    Args:
        coords: a SparseTensor, its `key`, or int32 (N, 4) coordinates (batch, x, y, z).
        regions: name -> bounds over (x, y, z) or (batch, x, y, z), half-open, in units of the voxels' own
            lattice (flat, pairs or a Rect); a RegionSpec, with a stride of its own; bool (N,) over the
            rows; or a function of the (N, 4) coordinates that returns that. Regions may overlap.
        allow_empty: a region without voxels is legal; its queries are none, its keys are none.

    Raises ShapeError, DTypeError, MLXSparseError for a region without voxels and CoordinateRangeError for one
    that reaches outside the batch or the tensor's `spatial_shape`; each names the region.
    """

    def __init__(self, coords: Any, regions: Mapping[str, Any], *, allow_empty: bool = False):
        if not isinstance(regions, Mapping):
            raise DTypeError(f"regions is a {type(regions).__name__}, wanted a mapping of names to regions")
        if isinstance(coords, SparseTensor):
            coords = coords.key
        key = coords if isinstance(coords, CoordinateMapKey) else default_manager().insert(coords)
        self.key: CoordinateMapKey = key
        self.coords = np.ascontiguousarray(host_rows(key.coords)[: key.count])
        self.regions: dict[str, RegionSpec | None] = {}
        self._member: dict[str, np.ndarray] = {}
        content = hashlib.sha256()
        for name, region in regions.items():
            spec, member = self._resolve(name, region)
            if not allow_empty and not member.any():
                raise MLXSparseError(f"region {name!r} has no voxels; allow_empty=True makes that legal")
            self.regions[name], self._member[name] = spec, member
            content.update(repr((name, spec)).encode() + np.packbits(member).tobytes())
        self._content = content.hexdigest()

    def _resolve(self, name: str, region: Any) -> tuple[RegionSpec | None, np.ndarray]:
        if callable(region):
            region = region(self.coords)
        if isinstance(region, mx.array) or (isinstance(region, np.ndarray) and region.dtype == bool):
            member = as_mask(f"region {name!r}", region)
            if member.shape != (len(self.coords),):
                raise ShapeError(
                    f"region {name!r} has shape {member.shape}, wanted ({len(self.coords)},), one per voxel"
                )
            return None, member.copy()  # the caller may change its own
        spec = region if isinstance(region, RegionSpec) else RegionSpec(as_rect(f"region {name!r}", region))
        rect: Rect = spec.bounds
        if rect.ndim not in (3, 4):
            raise ShapeError(f"region {name!r} has {rect.ndim} axes, wanted (x, y, z) or (batch, x, y, z)")
        if rect.ndim == 4:
            lo, hi = rect.ranges[0]
            if lo < 0 or hi > self.key.batch_size:
                raise CoordinateRangeError(
                    f"region {name!r} covers the items [{lo}, {hi}) of a batch of {self.key.batch_size}"
                )
        shape = self.key.spatial_shape
        if shape is not None:
            own = self.key.stride
            scale: Any = spec.stride or own
            for axis, (lo, hi) in enumerate(rect.ranges[-3:]):
                if lo < 0 or hi * scale[axis] > -(-shape[axis] * own[axis] // scale[axis]) * scale[axis]:
                    raise CoordinateRangeError(
                        f"region {name!r} covers [{lo}, {hi}) on axis {'xyz'[axis]}, the tensor's "
                        f"spatial_shape is {shape}"
                    )
        cells = self._cells(spec)
        member = np.ones(len(self.coords), bool)
        for axis, (lo, hi) in enumerate(rect.ranges, 4 - rect.ndim):
            member &= (cells[axis] >= lo) & (cells[axis] < hi)
        return spec, member

    def _cells(self, spec: RegionSpec) -> list[np.ndarray]:
        """(batch, x, y, z) of each voxel in units of a region's bounds."""
        batch, *space = self.coords.T
        if spec.stride is None or spec.stride == self.key.stride:
            return [batch, *space]
        scale: Any = spec.stride
        return [batch, *(c.astype(np.int64) * s // r for c, s, r in zip(space, self.key.stride, scale))]

    def region_rows(self, name: str) -> np.ndarray:
        """(n,) int32 rows of a region, ascending."""
        if name not in self._member:
            raise MLXSparseError(f"there is no region {name!r}; the layout has {sorted(self.regions)}")
        return np.flatnonzero(self._member[name]).astype(np.int32)

    def compile(
        self,
        program: Any,
        *,
        block: int | None = None,
        fallback: str = "drop",
        fired: Collection[str] = (),
    ) -> CompiledProgram:
        """The block layout and row order in which `program` is attention: ``layout, rows = compiled``.

        A query that several connections give keys has one softmax over their union. Only voxels of the same
        batch item see each other.

        program: Connections, or a mapping (src, dst) -> ConnectionProgram or MaskSpec. block: rows of a
        block; by default what costs least. fallback, for a query in a tile without any key: "drop" no keys,
        output 0; "full" the whole target region of its batch item; "error". With write_mode="replace" such a
        query, and a matrix's row without a key, loses its earlier keys too (over a canvas it keeps them);
        queries that a mask of the source's box leaves out keep theirs. fired: triggers of the
        connections that count. Cached by coordinate key, regions and arguments, the last 32 of a key. Raises
        MLXSparseError, ShapeError and DTypeError.
        """
        check_fallback(fallback)
        size = None if block is None else whole_number("block", block, 1)
        items = connections(program, self.regions, fired)
        cache = _compiled.setdefault(self.key._record, {})
        wanted = (self._content, items, size, fallback)
        made = cache.pop(wanted, None)
        if made is None:
            found: list[Relation] = []
            owner: list[int] = []
            for number, item in enumerate(items):
                relations = self._relations(item, fallback)
                found += relations
                owner += [number] * len(relations)
            replace_earlier([r.query for r in found], items, owner)
            made = lay_out(found, len(self.coords), size)
        cache[wanted] = made  # last, as the latest
        if len(cache) > PROGRAMS:
            cache.pop(next(iter(cache)), None)
        return made

    # ------------------------------------------------------------ relations of a connection

    def _relations(self, item: Connection, fallback: str) -> list[Relation]:
        spec: MaskSpec = item.program.mask_spec
        source, target = self._member[item.src], self._member[item.dst]
        if spec.kind == "tile":
            return self._tiles(item, source, target, spec, fallback)
        if spec.kind == "full":
            return [self._all(source, target)]
        if spec.mask is None:
            raise MLXSparseError(
                f'"sparse" of {item.src!r} -> {item.dst!r} has no mask: pass MaskSpec("sparse", mask=...), '
                'or MaskSpec("full") for all of the target'
            )
        mask: np.ndarray = spec.mask
        if mask.ndim == 2:
            return [self._matrix(item, source, target, mask)]
        region = self.regions[item.src]
        if region is None:
            raise ShapeError(
                f"mask of {item.src!r} -> {item.dst!r} has {mask.ndim} axes, and {item.src!r} is no box; "
                "pass a matrix source x target"
            )
        rect: Rect = region.bounds
        if mask.shape != rect.shape:
            raise ShapeError(
                f"mask of {item.src!r} -> {item.dst!r} has shape {mask.shape}, wanted the region's "
                f"{rect.shape} or a matrix {(int(source.sum()), int(target.sum()))}"
            )
        cells = self._cells(region)[4 - rect.ndim :]
        inside = np.flatnonzero(source)
        chosen = source.copy()
        chosen[inside] = mask[tuple(c[inside] - lo for c, (lo, _) in zip(cells, rect.ranges))]
        return [self._all(chosen, target)]

    def _batches(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batch = self.coords[:, 0]
        return np.where(source, batch, -1).astype(np.int32), np.where(target, batch, -1).astype(np.int32)

    def _all(self, source: np.ndarray, target: np.ndarray) -> Relation:
        """Everything sees everything, within a batch item."""
        query, key = self._batches(source, target)
        return Relation(query, key, _equal(query, key, self.key.batch_size))

    def _tiles(
        self, item: Connection, source: np.ndarray, target: np.ndarray, spec: MaskSpec, fallback: str
    ) -> list[Relation]:
        if len(spec.tiles) != 3:
            raise ShapeError(
                f"tiles of {item.src!r} -> {item.dst!r} have sides {spec.tiles}; voxels have three axes: "
                "pass tile_shape=(x, y, z)"
            )
        tile, total = tile_numbers(self.coords, spec.tiles, spec.offset)
        query, key = (np.where(member, tile, -1).astype(np.int32) for member in (source, target))
        links = _equal(query, key, total)
        found = [Relation(query, key, links)]
        if fallback != "drop":
            met = np.zeros(total + 1, bool)  # the last for label -1
            met[links[:, 0]] = True
            alone = source & ~met[query]
            if fallback == "error" and alone.any():
                raise MLXSparseError(
                    f"{int(alone.sum())} voxels of {item.src!r} meet no voxel of {item.dst!r} in their "
                    'tiles; fallback="drop" gives them 0, "full" the whole region'
                )
            if alone.any():
                query[alone] = -1
                found.append(self._all(alone, target))
        return found

    def _matrix(self, item: Connection, source: np.ndarray, target: np.ndarray, mask: np.ndarray) -> Relation:
        rows, cols = np.flatnonzero(source), np.flatnonzero(target)
        if mask.shape != (len(rows), len(cols)):
            raise ShapeError(
                f"mask of {item.src!r} -> {item.dst!r} has shape {mask.shape}, wanted one entry per pair of "
                f"voxels, {(len(rows), len(cols))}"
            )
        batches = self.key.batch_size
        labels, patterns = [], []
        for place, lines in ((rows, mask), (cols, mask.T)):
            bits = np.packbits(lines, axis=1)
            _, first, number = np.unique(bits, axis=0, return_index=True, return_inverse=True)
            label = np.full(len(self.coords), -1, np.int32)
            label[place] = number.reshape(-1) * batches + self.coords[place, 0]
            labels.append(label)
            patterns.append(first)
        links = np.argwhere(mask[np.ix_(*patterns)])
        links = (links[:, None] * batches + np.arange(batches)[None, :, None]).reshape(-1, 2)
        return Relation(labels[0], labels[1], links)


def _equal(query: np.ndarray, key: np.ndarray, total: int) -> np.ndarray:
    """(m, 2) links of each label with itself, for labels that both sides have."""
    there = np.zeros((2, total + 1), bool)
    there[0, query] = there[1, key] = True
    both = np.flatnonzero(there[:, :total].all(axis=0))
    return np.column_stack([both, both]) if len(both) else NO_LINKS


def tile_numbers(coords: np.ndarray, tile: tuple[int, ...], shift: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Number of each voxel's tile (batch, floor((coordinate + shift) / tile)), and the number of tiles."""
    if len(coords) == 0:
        return np.zeros(0, np.int32), 0
    batch, *space = coords.T
    cells = [(c + np.int64(s)) // t for c, s, t in zip(space, shift, tile)]
    numbers, first = numbered([batch, *cells])
    return numbers, len(first)
