"""Boxes, regions and mask specifications: what a program is written in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..blocksparse.check import as_mask, whole_number, whole_numbers
from ..coords.geometry import Triple, TripleLike, triple
from ..errors import DTypeError, MLXSparseError, ShapeError

KINDS = ("full", "tile", "sparse")


def integer(name: str, value: Any) -> int:
    """Any integer, negative ones too."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise DTypeError(f"{name} must be integers, got {value!r}")
    return int(value)


class BoundsError(ShapeError, TypeError):
    """Bounds of a Rect that are no pairs; a TypeError too, as canvas-engineering raises."""


@dataclass(frozen=True, init=False)
class Rect:
    """A half-open box of any number of axes: lo <= position < hi on each; hashable.

    ``Rect(((t0, t1), (h0, h1), (w0, w1)))``, ``Rect(ranges=...)`` or flat ``Rect(t0, t1, h0, h1, w0, w1)``.
    BoundsError (a ShapeError and a TypeError) for what are no pairs, ShapeError where lo > hi.
    """

    ranges: tuple[tuple[int, int], ...]

    def __init__(self, *bounds: Any, ranges: Sequence[Sequence[int]] | None = None):
        if ranges is not None and bounds:
            raise BoundsError("Rect takes ranges= or bounds, got both")
        if len(bounds) == 1:
            ranges, bounds = bounds[0], ()
        if ranges is None:
            if len(bounds) % 2:
                raise BoundsError(
                    f"Rect takes pairs of bounds, got {len(bounds)}: {bounds}; write Rect(t0, t1, h0, h1, ..)"
                )
            ranges = [bounds[i : i + 2] for i in range(0, len(bounds), 2)]
        try:
            pairs = [tuple(pair) for pair in ranges]
        except TypeError:
            raise BoundsError(f"Rect takes pairs ((lo, hi), ..), got {ranges!r}") from None
        found = []
        for axis, pair in enumerate(pairs):
            if len(pair) != 2:
                raise BoundsError(f"Rect takes pairs (lo, hi), got {pair} on axis {axis}")
            lo, hi = (integer("bounds of a Rect", v) for v in pair)
            if lo > hi:
                raise ShapeError(f"Rect has lo {lo} > hi {hi} on axis {axis}; bounds are half-open, lo <= hi")
            found.append((lo, hi))
        object.__setattr__(self, "ranges", tuple(found))

    @property
    def ndim(self) -> int:
        return len(self.ranges)

    @property
    def shape(self) -> tuple[int, ...]:
        """Positions along each axis."""
        return tuple(hi - lo for lo, hi in self.ranges)

    @property
    def volume(self) -> int:
        """Positions in the box."""
        return int(np.prod(self.shape, dtype=object)) if self.ranges else 0

    @property
    def slices(self) -> tuple[slice, ...]:
        """For indexing an array whose first element is position 0."""
        return tuple(slice(lo, hi) for lo, hi in self.ranges)

    def __repr__(self) -> str:
        return f"Rect({self.ranges})"


def as_rect(name: str, bounds: Any) -> Rect:
    """A Rect of pairs, or of flat bounds in one sequence."""
    if isinstance(bounds, Rect):
        return bounds
    try:
        items = list(bounds)
    except TypeError:
        raise DTypeError(f"{name} must be bounds or a Rect, got {bounds!r}") from None
    flat = all(np.ndim(item) == 0 for item in items)
    return Rect(*items) if flat and len(items) != 1 else Rect(items)


@dataclass(frozen=True)
class RegionSpec:
    """A named region's bounds: a Rect, or what makes one.

    stride: lattice units per unit of the bounds, for regions over voxels; None means the voxels' own
    lattice. With one, a voxel lies in the region whose cell holds its corner.
    """

    bounds: Any
    stride: TripleLike | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", as_rect("bounds", self.bounds))
        if self.stride is not None:
            object.__setattr__(self, "stride", triple(self.stride, "stride", least=1))


@dataclass(frozen=True)
class MaskSpec:
    """Which queries of a source region see which keys of a target region.

    Args:
        kind: "full" (all of them), "tile" (those in the same spatial tile), "sparse" (what `mask` says).
        tile_h, tile_w: for "tile", the size with two spatial axes.
        tile_shape: the same with any number of spatial axes; an int stands for all three of voxels.
        shift: for "tile" over voxels: a voxel is in the tile floor((coordinate + shift) / tile_shape), as in
            ops.window_attention.
        mask: for "sparse", bool: one entry per position of the source region's box (True sees the whole
            target), or a matrix source x target. Without it "sparse" means "full" over a canvas, as in
            canvas-engineering; over voxels it is refused.

    Frozen; equal and hashed by content. MLXSparseError, ShapeError and DTypeError for what does not go
    together.
    """

    kind: str = "full"
    tile_h: int = 1
    tile_w: int = 1
    tile_shape: int | tuple[int, ...] | None = None
    shift: TripleLike = 0
    mask: Any = field(default=None, compare=False, repr=False)
    _content: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MLXSparseError(f"kind must be one of {KINDS}, got {self.kind!r}")
        for name in ("tile_h", "tile_w"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        if self.tile_shape is not None:
            if (self.tile_h, self.tile_w) != (1, 1):
                raise MLXSparseError("tile_shape excludes tile_h and tile_w; pass one or the other")
            shape = self.tile_shape
            sides: Any = (shape,) * 3 if isinstance(shape, (int, np.integer)) else shape
            object.__setattr__(self, "tile_shape", whole_numbers("tile_shape", sides, 1))
        object.__setattr__(self, "shift", triple(self.shift, "shift"))
        if self.kind != "tile":
            defaults = {"tile_h": 1, "tile_w": 1, "tile_shape": None, "shift": (0, 0, 0)}
            for name, default in defaults.items():
                if getattr(self, name) != default:
                    raise MLXSparseError(f'{name} needs kind="tile", got {self.kind!r}')
        if self.mask is None:
            return
        if self.kind != "sparse":
            raise MLXSparseError(f'mask needs kind="sparse", got {self.kind!r}')
        mask = np.array(as_mask("mask", self.mask))
        if mask.ndim < 2:
            raise ShapeError(
                f"mask has shape {mask.shape}, wanted the source region's box, or source x target"
            )
        mask.flags.writeable = False
        object.__setattr__(self, "mask", mask)
        digest = hashlib.sha256(repr(mask.shape).encode() + np.packbits(mask).tobytes()).hexdigest()
        object.__setattr__(self, "_content", digest)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Size of a tile on each spatial axis."""
        shape: Any = self.tile_shape
        return (self.tile_h, self.tile_w) if shape is None else shape

    @property
    def offset(self) -> Triple:
        """`shift` as (x, y, z)."""
        shift: Any = self.shift
        return shift
