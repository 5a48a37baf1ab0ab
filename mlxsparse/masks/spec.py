"""What of one region attends to what of another: mask specifications and boxes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..errors import DTypeError, MLXSparseError, ShapeError

KINDS = ("full", "tile", "sparse")
FALLBACKS = ("drop", "full", "error")
Ranges: TypeAlias = tuple[tuple[int, int], ...]


class RectArgumentsError(ShapeError, TypeError):
    """The arguments of Rect are not pairs of bounds."""


class Rect:
    """A box of lattice cells: half-open ranges [lo, hi), one per axis; immutable, hashable.

    ``Rect(ranges=((lo, hi), ..))``, ``Rect(((lo, hi), ..))`` or flat ``Rect(lo0, hi0, lo1, hi1, ..)``.
    lo == hi is a box without cells. `t0`, `t1`, `h0`, `h1`, `w0`, `w1` are the bounds of the first three axes
    (0 where there is no such axis). Raises ShapeError for lo > hi, DTypeError for other than integers, and an
    error that is both a ShapeError and a TypeError for an odd number of flat arguments.
    """

    __slots__ = ("ranges",)
    ranges: Ranges

    def __init__(self, *args: Any, ranges: Iterable[Iterable[int]] | None = None):
        if args and ranges is not None:
            raise RectArgumentsError("Rect takes bounds or ranges=, got both")
        if ranges is None and len(args) == 1 and isinstance(args[0], (tuple, list)):
            ranges = args[0]
        if ranges is None:
            if len(args) < 2 or len(args) % 2:
                raise RectArgumentsError(
                    f"Rect got {len(args)} bounds, wanted pairs: Rect(lo0, hi0, lo1, hi1, ..) or "
                    "Rect(ranges=((lo, hi), ..))"
                )
            ranges = zip(args[::2], args[1::2])
        object.__setattr__(self, "ranges", tuple(_range(i, r) for i, r in enumerate(ranges)))

    @classmethod
    def _of(cls, ranges: Ranges) -> Rect:
        """Without checks."""
        made = cls.__new__(cls)
        object.__setattr__(made, "ranges", ranges)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Rect is immutable: {name} cannot be set")

    def __reduce__(self) -> Any:
        return Rect, (self.ranges,)

    @property
    def ndim(self) -> int:
        return len(self.ranges)

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple(hi - lo for lo, hi in self.ranges)

    @property
    def volume(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """What selects the box in an array."""
        return tuple(slice(lo, hi) for lo, hi in self.ranges)

    def _bound(self, axis: int, end: int) -> int:
        return self.ranges[axis][end] if axis < len(self.ranges) else 0

    t0 = property(lambda self: self._bound(0, 0))
    t1 = property(lambda self: self._bound(0, 1))
    h0 = property(lambda self: self._bound(1, 0))
    h1 = property(lambda self: self._bound(1, 1))
    w0 = property(lambda self: self._bound(2, 0))
    w1 = property(lambda self: self._bound(2, 1))

    def __eq__(self, other: object) -> bool:
        return self.ranges == other.ranges if isinstance(other, Rect) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"Rect(ranges={self.ranges})"


def integer(name: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise DTypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise DTypeError(f"{name} must be an integer, got {value!r}") from None


def _range(axis: int, pair: Any) -> tuple[int, int]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise RectArgumentsError(f"Rect: axis {axis} is {pair!r}, wanted (lo, hi)")
    lo, hi = (integer(f"Rect: a bound of axis {axis}", v) for v in pair)
    if lo > hi:
        raise ShapeError(f"Rect: axis {axis} runs from lo={lo} to hi={hi}, wanted lo <= hi")
    return lo, hi


@dataclass(frozen=True, eq=False)
class MaskSpec:
    """Which keys of a region `dst` the queries of a region `src` see.

    kind: "full", all; "tile", those in the same tile of space; "sparse", as `mask` says.
    tile_h, tile_w, or tile_shape: cells of a tile along the spatial axes; axes that are not named have 1.
    mask: bool, for "sparse". Shaped as the box of `src`, its True cells see all of `dst`; shaped (number of
    src positions, number of dst positions), True where the one sees the other. Without one all is seen.
    shift: moves the tiles' edges, for "tile"; cells along the spatial axes.

    Equal and hashed by content. Raises MLXSparseError for an unknown kind and for fields of another kind,
    ShapeError for tiles below 1 cell or tile_shape beside tile_h or tile_w, DTypeError for a mask that is not
    bool.
    """

    kind: str = "full"
    tile_h: int = 1
    tile_w: int = 1
    tile_shape: tuple[int, ...] | None = None
    mask: Any = None
    shift: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MLXSparseError(f"kind must be one of {KINDS}, got {self.kind!r}")
        if self.tile_shape is not None and (self.tile_h, self.tile_w) != (1, 1):
            raise ShapeError(
                f"tile_shape={self.tile_shape} together with tile_h={self.tile_h}, tile_w={self.tile_w}; "
                "wanted one of the two"
            )
        if self.tile_shape is not None:
            sides = self.tile_shape
            if not isinstance(sides, (tuple, list)) or not sides:
                raise ShapeError(f"tile_shape must be a tuple of at least one side, got {sides!r}")
            object.__setattr__(self, "tile_shape", tuple(integer("tile_shape", v) for v in sides))
        for name, side in (("tile_h", self.tile_h), ("tile_w", self.tile_w)):
            object.__setattr__(self, name, integer(name, side))
        if min(self.tile) < 1:
            raise ShapeError(f"a tile has at least 1 cell along each axis, got {self.tile}")
        if self.shift is not None:
            if not isinstance(self.shift, (tuple, list)):
                raise ShapeError(f"shift must be a tuple of integers, got {self.shift!r}")
            object.__setattr__(self, "shift", tuple(integer("shift", v) for v in self.shift))
        if self.kind != "tile" and (self.tile != (1, 1) or self.shift is not None):
            raise MLXSparseError(f'tiles and shift belong to kind="tile", got kind={self.kind!r}')
        if self.mask is not None:
            if self.kind != "sparse":
                raise MLXSparseError(f'mask belongs to kind="sparse", got kind={self.kind!r}')
            mask = np.array(self.mask)
            if mask.dtype != bool:
                raise DTypeError(f"mask is {mask.dtype}, wanted bool; use mask != 0")
            if mask.ndim == 0:
                raise ShapeError("mask has no axes, wanted the region's, or (src positions, dst positions)")
            mask.flags.writeable = False
            object.__setattr__(self, "mask", mask)

    @property
    def tile(self) -> tuple[int, ...]:
        """Sides of a tile as they were given: tile_shape or (tile_h, tile_w)."""
        return (self.tile_h, self.tile_w) if self.tile_shape is None else self.tile_shape

    def along(self, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(sides of a tile, shift) for `axes` spatial axes; ShapeError if there are more sides than axes."""
        tile, shift = self.tile, self.shift or ()
        # (1, 1) is what nobody set; it fits any space.
        for name, sides, rest in (("tile", tile, 1), ("shift", shift, 0)):
            if len(sides) > axes and any(v != rest for v in sides[axes:]):
                raise ShapeError(f"{name} {sides} has {len(sides)} axes, the layout has {axes} of space")
        tile, shift = tile[:axes], shift[:axes]
        return tile + (1,) * (axes - len(tile)), shift + (0,) * (axes - len(shift))

    def _content(self) -> tuple[Any, ...]:
        mask = None if self.mask is None else (self.mask.shape, np.packbits(self.mask).tobytes())
        return self.kind, self.tile, self.shift, mask

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, MaskSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content())
