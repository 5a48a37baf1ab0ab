"""Points to voxels and back; rows of one site merged."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import host
from ..backend.features import as_features, check_features
from ..coords import CoordinateManager
from ..coords.checks import check_coordinates, items_up_to, manager_of
from ..coords.geometry import Triple, TripleLike, triple, whole
from ..engine import interpolate
from ..engine.index import lookup
from ..engine.labels import HIGHEST, majority
from ..engine.quantise import merge, place_in_group, quantise
from ..engine.rows import Segments, segment_reduce, take_rows
from ..engine.sorting import columns_of
from ..errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError, StrideError
from ..tensor import SparseTensor

REDUCTIONS = ("mean", "sum", "max", "min", "first")
COARSE = 16  # steps of float32 that a voxel is wide at least where positions are features


@dataclass(frozen=True)
class Voxels:
    """Voxels of a point cloud and the way back.

    tensor: one row per voxel, sorted by (batch, x, y, z). point_to_voxel: (N,) int32 row of the
    voxel that holds each input point; -1 for a dropped point (NaN, infinite, out of bounds, or in a
    voxel past max_voxels). counts: (V,) int32 points that each voxel's features come from. origin,
    voxel_size: (x, y, z) in the points' unit.
    """

    tensor: SparseTensor
    point_to_voxel: mx.array
    counts: mx.array
    origin: tuple[float, float, float]
    voxel_size: tuple[float, float, float]

    def devoxelize(
        self,
        points: mx.array | np.ndarray | None = None,
        mode: str = "nearest",
        *,
        feats: SparseTensor | None = None,
        batch: mx.array | np.ndarray | None = None,
    ) -> mx.array:
        """Features at points: (N, C), differentiable in the voxels' features.

        points (N, 3) in the unit of the voxelized ones, "nearest" by default those themselves; batch
        (N,) their batch numbers, needed where there are several items. feats: the tensor to read, for
        example a network's output on these voxels; default `tensor`. Of a coarser level, whose stride is
        a multiple, the voxels are as much larger (StrideError for other strides).

        "nearest" is the voxel that contains the point, 0 where that is not there. "trilinear"
        interpolates between the 8 voxel centres around the point; voxels that are not there share
        out their weight, and without any of the 8 the value is 0.
        """
        if mode not in ("nearest", "trilinear"):
            raise MLXSparseError(f'mode must be "nearest" or "trilinear", got {mode!r}')
        source = self.tensor if feats is None else feats
        if not isinstance(source, SparseTensor) or isinstance(points, SparseTensor):
            raise DTypeError(
                "devoxelize(points, feats=tensor): points is an array (N, 3), feats a SparseTensor"
            )
        times = self._times_larger(source.stride)
        if points is None and mode == "trilinear":
            raise MLXSparseError('devoxelize(mode="trilinear") needs points: pass the cloud')
        if points is None and batch is not None:
            raise MLXSparseError("devoxelize: batch says which items `points` are of, and there are none")
        if points is None:
            if source.key is not self.tensor.key:
                sites = host.view(self.tensor.coords)
                if times != (1, 1, 1):
                    sites = sites // np.array([1, *times], np.int32)
                rows = lookup(source.key.index, sites)
                at = host.view(self.point_to_voxel)
                rows = np.where(at < 0, np.int32(-1), rows[at]) if len(rows) else at
            else:
                rows = host.view(self.point_to_voxel)
        else:
            xyz, wide = _points(points)
            cells, valid = quantise(xyz, wide, np.array(self.origin), np.array(self.voxel_size), None)
            if batch is None and source.batch_size > 1:
                raise MLXSparseError(f"the voxels are of {source.batch_size} batch items: pass batch (N,)")
            items = np.zeros(len(xyz), np.int64) if batch is None else _batch(batch, len(xyz))
            if mode == "trilinear":
                xyz = xyz.astype(np.float64 if wide else np.float32)
                return self._between(source, xyz, np.array(self.voxel_size) * times, items, valid)
            if times != (1, 1, 1):
                cells = [c // n for c, n in zip(cells, times)]
            if valid is None:
                rows = lookup(source.key.index, np.stack([items, *cells], axis=1))
            else:
                rows = np.full(len(xyz), -1, np.int32)
                rows[valid] = lookup(source.key.index, np.stack([items[valid], *cells], axis=1))
        return take_rows(source.feats, rows)

    def _times_larger(self, stride: Triple) -> Triple:
        """Voxels of `tensor` along one of a tensor of that stride."""
        x, y, z = zip(stride, self.tensor.stride)
        if any(n % own for n, own in (x, y, z)):
            raise StrideError(
                f"feats has stride {stride}, no multiple of the voxels' {self.tensor.stride}: bring it there "
                "with ops.upsample_nearest or a strided operator"
            )
        return x[0] // x[1], y[0] // y[1], z[0] // z[1]

    def _between(
        self,
        source: SparseTensor,
        xyz: np.ndarray,
        size: np.ndarray,
        items: np.ndarray,
        valid: np.ndarray | None,
    ) -> mx.array:
        """Features at points (N, 3), interpolated in their float type; 0 where not `valid`."""
        n = len(xyz)
        kept = np.arange(n) if valid is None else np.flatnonzero(valid)
        low, part = [], []
        for axis in range(3):
            kind = xyz.dtype.type
            place = (xyz[kept, axis] - kind(self.origin[axis])) / kind(size[axis]) - kind(0.5)
            below = np.floor(place)
            low.append(below.astype(np.int64))
            part.append(place - below)
        rows, weights = np.full((n, 8), -1, np.int32), np.zeros((n, 8), np.float32)
        rows[kept], weights[kept] = interpolate.corners(source.key.index, items[kept], low, part)
        return interpolate.interpolate(source.feats, rows, weights, n)

    def mode(self, labels: mx.array | np.ndarray, num_classes: int | None = None) -> mx.array:
        """Most frequent label of each voxel's points: (V,) int32; of equals the smallest.

        labels (N,) integers from 0, below num_classes if that is given; -1 is no label, and a voxel
        without a labelled point gets -1. All points of a voxel vote, those past max_points too.
        Raises ShapeError, DTypeError, and MLXSparseError for other numbers.
        """
        values = host.view(labels) if isinstance(labels, mx.array) else np.asarray(labels)
        if values.shape != tuple(self.point_to_voxel.shape):
            raise ShapeError(
                f"labels must have shape {tuple(self.point_to_voxel.shape)}, one per voxelized point, got "
                f"{values.shape}"
            )
        if values.dtype.kind not in "iu":
            raise DTypeError(f"labels must be integers, got {values.dtype}; convert them with .astype")
        top = HIGHEST if num_classes is None else num_classes - 1
        if len(values) and (int(values.min()) < -1 or int(values.max()) > top):
            raise MLXSparseError(
                f"labels must lie in [0, {top}], or be -1 for no label, got {values.min()}..{values.max()}"
            )
        rows = host.view(self.point_to_voxel)
        return host.to_mlx(majority(rows, values, self.tensor.num_active))

    @property
    def num_dropped_points(self) -> int:
        """Points without a voxel: not finite, outside of bounds or spatial_shape, past max_voxels."""
        return int((host.view(self.point_to_voxel) < 0).sum())

    @property
    def num_overfull_points(self) -> int:
        """Points whose voxel had max_points already: they keep its row, its features leave them out."""
        kept = self.point_to_voxel.shape[0] - self.num_dropped_points
        return kept - int(host.view(self.counts).sum())


def voxelize(
    points: mx.array | np.ndarray,
    feats: mx.array | np.ndarray | None = None,
    voxel_size: float | Sequence[float] | None = None,
    *,
    batch: mx.array | np.ndarray | None = None,
    batch_size: int | None = None,
    origin: float | Sequence[float] | None = None,
    bounds: Any = None,
    reduce: str = "mean",
    max_points: int | None = None,
    max_voxels: int | None = None,
    spatial_shape: TripleLike | None = None,
    manager: CoordinateManager | None = None,
) -> Voxels:
    """Group points into voxels: site = floor((p - origin) / voxel_size) on each axis.

    NumPy points are computed in float64. MLX float32 points use the same expression in float32 and
    raise CoordinateRangeError where |p - origin| / voxel_size > 2**22.

    Args:
        points: (N, 3) x, y, z.
        feats: (N, C) float features, differentiable when an MLX array; default points - origin, with a
            warning where float32 is coarse beside the voxels.
        voxel_size: edge length, one number or (x, y, z), in the points' unit.
        batch: (N,) integers, the batch item of each point; default 0.
        origin: corner of site (0, 0, 0); default the lower bound, else 0.
        bounds: (lower, upper), each (x, y, z), half-open; points outside are dropped.
        reduce: "mean", "sum", "max", "min" or "first" (by point index) of a voxel's points.
        max_points: only the first so many points of a voxel count; the others keep its row.
        max_voxels: keeps the voxels that are met first by point index.
        spatial_shape: the tensor's, in voxels from the origin; points outside of it are dropped.

    Dropped points have -1 in `point_to_voxel`; none vanishes unseen.
    """
    xyz, wide = _points(points)
    if voxel_size is None:
        raise MLXSparseError("voxelize needs voxel_size, the edge length in the points' unit")
    size = _three(voxel_size, "voxel_size")
    if not np.all(np.isfinite(size)) or np.any(size <= 0):
        raise MLXSparseError(f"voxel_size must be finite and above 0, got {voxel_size}")
    limits = None
    if bounds is not None:
        limits = _numbers(bounds)
        flat = np.array([]) if limits is None else limits.reshape(-1)
        if limits is None or limits.shape not in ((2, 3), (6,)) or not np.all(flat[:3] <= flat[3:]):
            raise MLXSparseError(
                f"bounds must be (lower, upper), each (x, y, z) with lower <= upper, got {bounds!r}"
            )
        limits = flat
    start = (np.zeros(3) if limits is None else limits[:3]) if origin is None else _three(origin, "origin")
    if not np.all(np.isfinite(start)):
        raise MLXSparseError(f"origin and the lower bound must be finite, got {start.tolist()}")
    grid = None if spatial_shape is None else triple(spatial_shape, "spatial_shape", least=0)
    if grid is not None:  # wider than it is, as float32 rounds: which points lie in the grid their sites tell
        end = start + size * np.array(grid)
        more = size + np.maximum(np.abs(start), np.abs(end)) * 2.0**-20
        low, high = (-np.inf, np.inf) if limits is None else (limits[:3], limits[3:])
        limits = np.concatenate([np.maximum(start - more, low), np.minimum(end + more, high)])
    for name, value in (("max_points", max_points), ("max_voxels", max_voxels)):
        if value is not None:
            whole(value, name, 1)
    if reduce not in REDUCTIONS:
        raise MLXSparseError(f"reduce must be one of {REDUCTIONS}, got {reduce!r}")
    values: mx.array | np.ndarray
    far = False
    if feats is not None:
        values = check_features(feats)
    elif isinstance(points, mx.array):  # differentiable in them
        values = points - mx.array(start.astype(np.float32))
    else:
        values, far = _from_origin(xyz, start)
    if values.shape[0] != len(xyz):
        raise ShapeError(f"feats has {values.shape[0]} rows for {len(xyz)} points")

    cells, valid = quantise(xyz, wide, start, size, limits)
    if grid is not None:
        cells, valid = _within(cells, valid, grid)
    if feats is None and isinstance(values, np.ndarray):
        kept = values if valid is None else values[valid]
        if far and not np.isfinite(kept).all():
            raise CoordinateRangeError("points lie past float32 from the origin: scale them, or pass feats")
        _warn_of_coarse(kept, size)
    items = None if batch is None else _batch(batch, len(xyz))
    last = -1 if len(xyz) == 0 else 0 if items is None else int(items.max())
    if batch_size is None:
        batch_size = 1 if items is None else items_up_to(last)
    elif last >= whole(batch_size, "batch_size"):
        raise CoordinateRangeError(f"batch has number {last}, but batch_size={batch_size}")
    if items is None:
        items = np.zeros(len(xyz), np.int32)
    sites, number, counts = merge([items if valid is None else items[valid], *cells], max_voxels)
    full = number
    if valid is not None:
        full = np.full(len(xyz), -1, np.int32)
        full[valid] = number
    segments = Segments(full, len(sites), counts)
    if max_points is not None:
        used = np.where(place_in_group(full, len(sites)) < max_points, full, np.int32(-1))
        segments = Segments(used, len(sites))
    key = manager_of(manager).created(sites, 1, batch_size, spatial_shape=grid)
    tensor = SparseTensor._of(key, segment_reduce(values, segments, reduce))
    return Voxels(
        tensor,
        host.to_mlx(full),
        host.to_mlx(segments.counts),
        (float(start[0]), float(start[1]), float(start[2])),
        (float(size[0]), float(size[1]), float(size[2])),
    )


def coalesce(
    coords: mx.array | np.ndarray,
    feats: mx.array | np.ndarray,
    reduce: str = "sum",
    *,
    stride: TripleLike = 1,
    batch_size: int | None = None,
    spatial_shape: TripleLike | None = None,
    manager: CoordinateManager | None = None,
) -> SparseTensor:
    """Merge rows of the same site: "sum", "mean", "max", "min" or "first" (lowest row).

    coords (n, 4) int32, feats (n, C) -> rows sorted by (batch, x, y, z). stride, batch_size, spatial_shape
    and manager as for SparseTensor.
    """
    if reduce not in REDUCTIONS:
        raise MLXSparseError(f"reduce must be one of {REDUCTIONS}, got {reduce!r}")
    values = as_features(feats)
    rows = host.view(check_coordinates(coords))
    if len(rows) != values.shape[0]:
        raise ShapeError(f"coords has {len(rows)} rows, feats has {values.shape[0]}; they must agree")
    sites, number, counts = merge(columns_of(rows))
    # insert checks the range and the batch numbers, as for any tensor.
    made = sites.astype(np.int32)
    key = manager_of(manager).insert(made, stride, batch_size=batch_size, spatial_shape=spatial_shape)
    return SparseTensor._of(key, segment_reduce(values, Segments(number, len(sites), counts), reduce))


# ---------------------------------------------------------------- parts


def _within(
    cells: list[np.ndarray], valid: np.ndarray | None, grid: Triple
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Of sites, those in [0, grid), and which points they belong to, as `quantise` gives both."""
    inside = np.logical_and.reduce([(c >= 0) & (c < n) for c, n in zip(cells, grid)])
    if inside.all():
        return cells, valid
    if valid is None:
        return [c[inside] for c in cells], inside
    valid[valid] = inside
    return [c[inside] for c in cells], valid


def _from_origin(xyz: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, bool]:
    """float32, and whether some lie past it."""
    try:
        with np.errstate(over="raise"):
            return (xyz - start).astype(np.float32), False
    except FloatingPointError:
        with np.errstate(over="ignore"):
            return (xyz - start).astype(np.float32), True


def _warn_of_coarse(values: np.ndarray, size: np.ndarray) -> None:
    """Where the spacing of float32 is coarse beside the voxels."""
    largest = max(-float(values.min(initial=0)), float(values.max(initial=0)))
    apart = np.spacing(np.float32(largest))
    if COARSE * apart > size.min():
        warnings.warn(
            f"the features are points - origin in float32, whose numbers are {apart:.2g} apart at "
            f"{largest:.7g}, and voxels {size.min():.2g} wide: pass an origin near the points, or feats",
            stacklevel=3,
        )


def _three(value: Any, name: str) -> np.ndarray:
    array = _numbers(value)
    if array is None or array.shape not in ((), (3,)):
        raise MLXSparseError(f"{name} must be one number or three (x, y, z), got {value!r}")
    return np.broadcast_to(array, (3,)).copy()


def _numbers(value: Any) -> np.ndarray | None:
    """float64, None for what is no array of numbers."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):  # text, rows of unequal length
        return None


def _points(points: Any) -> tuple[np.ndarray, bool]:
    """(N, 3) points and whether to compute in float64."""
    if isinstance(points, mx.array):
        if points.dtype != mx.float32:
            raise DTypeError(
                f"MLX points must be float32, got {points.dtype}; NumPy points are taken in float64"
            )
        xyz = host.view(points)
    elif isinstance(points, np.ndarray):
        if points.dtype.kind not in "fiu":
            raise DTypeError(f"points must be numbers, got numpy {points.dtype}")
        xyz = points  # columns are widened one at a time
    else:
        raise DTypeError(f"points must be an mlx or numpy array (N, 3), got {type(points).__name__}")
    if xyz.ndim != 2 or xyz.shape[1] != 3:
        raise ShapeError(f"points must have shape (N, 3) = (x, y, z), got {tuple(xyz.shape)}")
    return xyz, not isinstance(points, mx.array)


def _batch(batch: Any, n: int) -> np.ndarray:
    items = host.view(batch) if isinstance(batch, mx.array) else np.asarray(batch)
    if items.shape != (n,):
        raise ShapeError(f"batch must have shape ({n},), one number per point, got {items.shape}")
    if items.dtype.kind not in "iu":
        raise DTypeError(f"batch must hold integers, got {items.dtype}")
    if n and (int(items.min()) < 0 or int(items.max()) >= 2**31):
        raise CoordinateRangeError(
            f"batch numbers must lie in [0, 2**31), got {int(items.min())}..{int(items.max())}"
        )
    return items
