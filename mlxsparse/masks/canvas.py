"""CanvasLayout: named regions of a dense grid (time and space), and the index pairs that masks mean there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from ..blocksparse.check import whole_number, whole_numbers
from ..errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from .cover import rect_cover
from .spec import MaskSpec, Rect, RegionSpec, as_rect

FALLBACKS = ("drop", "full", "error")
Pair = tuple[list[int], list[int]]


class CanvasLayout:
    """A grid (T, *spatial_shape) of positions with named regions; a position's index is row-major.

    Args:
        T: time steps.
        H, W: spatial size, or
        spatial_shape: the same with any number of axes.
        d_model: channels of a position; kept for the caller.
        regions: name -> bounds (flat, pairs or a Rect, over time and space) or a RegionSpec.
        t_current: positions at or past this time are outputs.

    Raises ShapeError for a region of another rank or an empty one, CoordinateRangeError for one that reaches
    outside the grid, each naming the region.
    """

    def __init__(
        self,
        T: int,
        H: int | None = None,
        W: int | None = None,
        d_model: int | None = None,
        regions: Mapping[str, Any] | None = None,
        t_current: int = 0,
        *,
        spatial_shape: Sequence[int] | None = None,
    ):
        if (spatial_shape is None) == (H is None and W is None):
            raise MLXSparseError("CanvasLayout takes H and W, or spatial_shape; pass one of the two")
        space: Any = (H, W) if spatial_shape is None else spatial_shape
        self.T = whole_number("T", T, 1)
        self.spatial_shape = whole_numbers("spatial_shape", space, 1)
        self.d_model = d_model
        self.t_current = whole_number("t_current", t_current)
        if not isinstance(regions, (Mapping, type(None))):
            raise DTypeError(f"regions is a {type(regions).__name__}, wanted a mapping of names to regions")
        self.regions = {name: self._checked(name, region) for name, region in (regions or {}).items()}

    def _checked(self, name: str, region: Any) -> RegionSpec:
        spec = region if isinstance(region, RegionSpec) else RegionSpec(as_rect(f"region {name!r}", region))
        rect: Rect = spec.bounds
        if spec.stride not in (None, (1, 1, 1)):
            raise ShapeError(f"region {name!r} has stride {spec.stride}; regions of a canvas have none")
        if rect.ndim != len(self.shape):
            raise ShapeError(f"region {name!r} has {rect.ndim} axes, the canvas has {len(self.shape)}")
        for axis, ((lo, hi), size) in enumerate(zip(rect.ranges, self.shape)):
            if lo < 0 or hi > size:
                raise CoordinateRangeError(
                    f"region {name!r} covers [{lo}, {hi}) on axis {axis}, the canvas [0, {size})"
                )
        if rect.volume == 0:
            raise ShapeError(f"region {name!r} is empty: {rect}")
        return spec

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, *spatial_shape)."""
        return (self.T, *self.spatial_shape)

    @property
    def H(self) -> int:
        return self.spatial_shape[0]

    @property
    def W(self) -> int:
        return self.spatial_shape[1]

    @property
    def num_positions(self) -> int:
        return int(np.prod(self.shape))

    def region_spec(self, name: str) -> RegionSpec:
        """The region of a name; MLXSparseError where there is none."""
        if name not in self.regions:
            raise MLXSparseError(f"there is no region {name!r}; the layout has {sorted(self.regions)}")
        return self.regions[name]

    def bounds(self, name: str) -> Rect:
        """The box of a region."""
        found: Rect = self.region_spec(name).bounds
        return found

    def region_size(self, name: str) -> tuple[int, ...]:
        """Positions along each axis."""
        return self.bounds(name).shape

    def region_numel(self, name: str) -> int:
        """Positions in a region."""
        return self.bounds(name).volume

    def region_indices(self, name: str) -> list[int]:
        """Flat indices of a region, ascending."""
        found: list[int] = self.indices(self.bounds(name)).tolist()
        return found

    def region_indices_at_t(self, name: str, t_abs: int) -> list[int]:
        """Flat indices of a region at one time step; none where it does not reach."""
        (lo, hi), *space = self.bounds(name).ranges
        if not lo <= t_abs < hi:
            return []
        found: list[int] = self.indices(Rect([(t_abs, t_abs + 1), *space])).tolist()
        return found

    def region_timesteps(self, name: str) -> list[int]:
        """Time steps that a region covers."""
        return list(range(*self.bounds(name).ranges[0]))

    def output_mask(self) -> list[int]:
        """Flat indices at and past t_current."""
        step = self.num_positions // self.T
        return list(range(min(self.t_current, self.T) * step, self.num_positions))

    def indices(self, rect: Rect) -> np.ndarray:
        """Flat indices of a box within the grid, ascending, int64."""
        found = np.zeros((), np.int64)
        for (lo, hi), size in zip(rect.ranges, self.shape):
            found = found[..., None] * size + np.arange(lo, hi)
        return found.reshape(-1)

    def index_pairs(
        self, mask_spec: MaskSpec, src: str, dst: str, *, fallback: str = "full"
    ) -> list[Pair]:
        """`mask_to_index_pairs` of this layout."""
        return mask_to_index_pairs(mask_spec, self, src, dst, fallback=fallback)

    def __repr__(self) -> str:
        return f"CanvasLayout(shape={self.shape}, regions={list(self.regions)})"


def mask_to_index_pairs(
    mask_spec: MaskSpec, layout: CanvasLayout, src: str, dst: str, *, fallback: str = "full"
) -> list[Pair]:
    """Pairs (source indices, target indices): queries of the first see keys of the second.

    "full" gives one pair. "tile" gives one per tile of the source region, tiles counted from its first corner
    over space and holding all time steps; the keys are those of the target region in the same box of space.
    A tile without any: fallback="full" gives it the whole target, "drop" leaves it out, "error" raises.
    "sparse" gives one pair without a mask, one per box of `rect_cover` for a mask of the source region's
    shape, and one per distinct row for a matrix source x target; rows without a key are left out. A query
    that is left out is none of this connection's: write_mode="replace" lets it keep its earlier keys
    (VoxelLayout.compile takes them away). As blocks: BlockLayout.from_maskspec.
    """
    check_fallback(fallback)
    if not isinstance(mask_spec, MaskSpec):
        raise DTypeError(f"mask_spec is a {type(mask_spec).__name__}, wanted a MaskSpec")
    source, target = layout.bounds(src), layout.bounds(dst)
    if mask_spec.kind == "tile":
        return _tile_pairs(mask_spec, layout, (src, source), (dst, target), fallback)
    if mask_spec.mask is None:
        return [(layout.region_indices(src), layout.region_indices(dst))]
    mask: np.ndarray = mask_spec.mask
    if mask.shape == source.shape:
        corner = [lo for lo, _ in source.ranges]
        boxes = [[(a + lo, b + lo) for (a, b), lo in zip(box.ranges, corner)] for box in rect_cover(mask)]
        return [(layout.indices(Rect(box)).tolist(), layout.region_indices(dst)) for box in boxes]
    if mask.shape != (source.volume, target.volume):
        raise ShapeError(
            f"mask of {src!r} -> {dst!r} has shape {mask.shape}, wanted the region's {source.shape} or a "
            f"matrix {(source.volume, target.volume)}"
        )
    rows, cols = layout.indices(source), layout.indices(target)
    bits = np.packbits(mask, axis=1)
    _, first, number = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    same = number.reshape(-1)
    return [
        (rows[same == same[at]].tolist(), cols[mask[at]].tolist())
        for at in np.sort(first).tolist()
        if mask[at].any()
    ]


def check_fallback(fallback: str) -> None:
    if fallback not in FALLBACKS:
        raise MLXSparseError(f"fallback must be one of {FALLBACKS}, got {fallback!r}")


def _tile_pairs(
    spec: MaskSpec, layout: CanvasLayout, src: tuple[str, Rect], dst: tuple[str, Rect], fallback: str
) -> list[Pair]:
    (name, source), (other, target) = src, dst
    sides, space = spec.tiles, source.ranges[1:]
    if len(sides) != len(space):
        raise ShapeError(f"tiles of {sides} need {len(sides)} spatial axes, the canvas has {len(space)}")
    if spec.offset != (0, 0, 0):
        raise MLXSparseError("shift is for voxels; tiles of a canvas start at the source region's corner")
    pairs: list[Pair] = []
    for corner in product(*(range(lo, hi, side) for (lo, hi), side in zip(space, sides))):
        tile = [(lo, min(lo + side, hi)) for lo, side, (_, hi) in zip(corner, sides, space)]
        seen = [(max(a, lo), min(b, hi)) for (a, b), (lo, hi) in zip(tile, target.ranges[1:])]
        keys = target
        if all(lo < hi for lo, hi in seen):
            keys = Rect([target.ranges[0], *seen])
        elif fallback == "error":
            raise MLXSparseError(f"tile {tile} of region {name!r} meets nothing of region {other!r}")
        elif fallback == "drop":
            continue
        rows = layout.indices(Rect([source.ranges[0], *tile]))
        pairs.append((rows.tolist(), layout.indices(keys).tolist()))
    return pairs
