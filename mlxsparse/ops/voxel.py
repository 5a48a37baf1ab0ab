"""Points to voxels and back; rows of one site merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import host
from ..coords import CoordinateManager, default_manager
from ..coords.geometry import TripleLike
from ..coords.keys import check_coordinates
from ..engine.index import LIMIT, lexicographic_order, lookup
from ..engine.rows import Segments, segment_reduce, take_rows
from ..errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from ..tensor import SparseTensor, _check_feats

FLOAT32_CELLS = 2.0**22  # beyond it a float32 quotient resolves less than a quarter of a voxel
REDUCTIONS = ("mean", "sum", "max", "min", "first")


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
        """Features at points: (N, C); 0 where a point's voxel is not there.

        points (N, 3) in the unit of the voxelized ones, default those themselves; batch (N,) their
        batch numbers. feats: the tensor to read, for example a network's output on these voxels;
        default `tensor`. "nearest" is the voxel that contains the point.
        """
        if mode != "nearest":
            raise MLXSparseError(f'mode must be "nearest", got {mode!r}')
        source = self.tensor if feats is None else feats
        if not isinstance(source, SparseTensor) or isinstance(points, SparseTensor):
            raise DTypeError(
                "devoxelize(points, feats=tensor): points is an array (N, 3), feats a SparseTensor"
            )
        if source.stride != self.tensor.stride:
            raise MLXSparseError(f"feats has stride {source.stride}, the voxels {self.tensor.stride}")
        if points is None:
            if source.key is not self.tensor.key:
                rows = lookup(source.key.index, host.view(self.tensor.coords))
                at = host.view(self.point_to_voxel)
                rows = np.where(at < 0, np.int32(-1), rows[at]) if len(rows) else at
            else:
                rows = host.view(self.point_to_voxel)
        else:
            xyz, wide = _points(points)
            cells, valid = _quantise(xyz, wide, np.array(self.origin), np.array(self.voxel_size), None)
            sites = np.zeros((len(xyz), 4), np.int64)
            sites[:, 0] = 0 if batch is None else _batch(batch, len(xyz))
            sites[valid, 1:] = cells
            rows = lookup(source.key.index, sites)
            rows[~valid] = -1
        return take_rows(source.feats, rows)


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
    manager: CoordinateManager | None = None,
) -> Voxels:
    """Group points into voxels: site = floor((p - origin) / voxel_size) on each axis.

    NumPy points are computed in float64. MLX float32 points use the same expression in float32 and
    raise CoordinateRangeError where |p - origin| / voxel_size > 2**22.

    Args:
        points: (N, 3) x, y, z.
        feats: (N, C) float features, differentiable when an MLX array; default points - origin.
        voxel_size: edge length, one number or (x, y, z), in the points' unit.
        batch: (N,) integers, the batch item of each point; default 0.
        origin: corner of site (0, 0, 0); default the lower bound, else 0.
        bounds: (lower, upper), each (x, y, z), half-open; points outside are dropped.
        reduce: "mean", "sum", "max", "min" or "first" (by point index) of a voxel's points.
        max_points: only the first so many points of a voxel count; the others keep its row.
        max_voxels: keeps the voxels that are met first by point index.

    Dropped points have -1 in `point_to_voxel`; none vanishes unseen.
    """
    xyz, wide = _points(points)
    if voxel_size is None:
        raise MLXSparseError("voxelize needs voxel_size, the edge length in the points' unit")
    size = _three(voxel_size, "voxel_size")
    if not np.all(np.isfinite(size)) or np.any(size <= 0):
        raise MLXSparseError(f"voxel_size must be finite and above 0, got {voxel_size}")
    limits = None if bounds is None else np.asarray(bounds, np.float64).reshape(-1)
    if limits is not None and (limits.shape != (6,) or not np.all(limits[:3] <= limits[3:])):
        raise MLXSparseError(
            f"bounds must be (lower, upper), each (x, y, z) with lower <= upper, got {bounds}"
        )
    start = (np.zeros(3) if limits is None else limits[:3]) if origin is None else _three(origin, "origin")
    for name, value in (("max_points", max_points), ("max_voxels", max_voxels)):
        if value is not None and value < 1:
            raise MLXSparseError(f"{name} must be at least 1, got {value}")
    if reduce not in REDUCTIONS:
        raise MLXSparseError(f"reduce must be one of {REDUCTIONS}, got {reduce!r}")
    values = mx.array((xyz - start).astype(np.float32)) if feats is None else _check_feats(feats)
    if values.shape[0] != len(xyz):
        raise ShapeError(f"feats has {values.shape[0]} rows for {len(xyz)} points")

    cells, valid = _quantise(xyz, wide, start, size, limits)
    items = None if batch is None else _batch(batch, len(xyz))
    if batch_size is None:
        batch_size = 1 if items is None else (int(items.max()) + 1 if len(items) else 0)
    elif items is not None and len(items) and int(items.max()) >= batch_size:
        raise CoordinateRangeError(f"batch has number {int(items.max())}, but batch_size={batch_size}")
    sites = np.zeros((len(cells), 4), np.int64)
    sites[:, 1:] = cells
    if items is not None:
        sites[:, 0] = items[valid]

    voxels, group, place = _group(sites, max_voxels)
    full = np.full(len(xyz), -1, np.int32)
    full[valid] = group
    used = full
    if max_points is not None:
        used = full.copy()
        used[np.flatnonzero(valid)[place >= max_points]] = -1
    segments = Segments(used, len(voxels))
    key = (manager or default_manager()).created(voxels, 1, batch_size)
    tensor = SparseTensor._of(key, segment_reduce(values, segments, reduce))
    return Voxels(
        tensor,
        host.to_mlx(full),
        host.to_mlx(segments.counts.astype(np.int32)),
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
    manager: CoordinateManager | None = None,
) -> SparseTensor:
    """Merge rows of the same site: "sum", "mean", "max", "min" or "first" (lowest row).

    coords (n, 4) int32, feats (n, C) -> rows sorted by (batch, x, y, z).
    """
    if reduce not in REDUCTIONS:
        raise MLXSparseError(f"reduce must be one of {REDUCTIONS}, got {reduce!r}")
    values = _check_feats(feats)
    rows = host.view(check_coordinates(coords))
    if len(rows) != values.shape[0]:
        raise ShapeError(f"coords has {len(rows)} rows, feats has {values.shape[0]}; they must agree")
    sites, group, _ = _group(rows, None)
    manager = manager or default_manager()
    # insert checks the range and the batch numbers, as for any tensor.
    key = manager.insert(sites.astype(np.int32), stride, batch_size=batch_size)
    return SparseTensor._of(key, segment_reduce(values, Segments(group, len(sites)), reduce))


# ---------------------------------------------------------------- parts


def _three(value: Any, name: str) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.shape not in ((), (3,)):
        raise MLXSparseError(f"{name} must be one number or three (x, y, z), got {value}")
    return np.broadcast_to(array, (3,)).copy()


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
        xyz = points.astype(np.float64, copy=False)
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


def _quantise(
    xyz: np.ndarray, wide: bool, origin: np.ndarray, size: np.ndarray, limits: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """(cells of the valid points (m, 3) int64, valid (N,) bool)."""
    kind = np.float64 if wide else np.float32
    valid = np.isfinite(xyz).all(axis=1)
    if limits is not None:
        with np.errstate(invalid="ignore"):
            valid &= ((xyz >= limits[:3].astype(kind)) & (xyz < limits[3:].astype(kind))).all(axis=1)
    kept = xyz if valid.all() else xyz[valid]
    quotient = (kept - origin.astype(kind)) / size.astype(kind)
    reach = float(np.abs(quotient).max()) if quotient.size else 0.0
    if not wide and reach > FLOAT32_CELLS:
        raise CoordinateRangeError(
            f"float32 points reach {reach:.3g} voxels from the origin, past 2**22 where float32 misplaces "
            "them: pass NumPy points (float64), or a nearer origin="
        )
    if reach >= LIMIT:
        raise CoordinateRangeError(
            f"points reach {reach:.3g} voxels from the origin, at most 2**30: pass origin="
        )
    return np.floor(quotient).astype(np.int64), valid


def _group(sites: np.ndarray, max_voxels: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct sites (sorted), the site row of each input (or -1), and its place among its site's inputs."""
    n = len(sites)
    order = lexicographic_order(sites)
    ranked = sites if order is None else sites[order]
    order = np.arange(n) if order is None else order
    first = np.ones(n, bool)
    first[1:] = np.any(ranked[1:] != ranked[:-1], axis=1)
    starts = np.flatnonzero(first)
    number = np.cumsum(first) - 1
    group = np.empty(n, np.int32)
    place = np.empty(n, np.int64)
    group[order] = number
    place[order] = np.arange(n) - starts[number]
    voxels = ranked[starts]
    if max_voxels is not None and len(starts) > max_voxels:
        # Inputs of a site are in input order, so its first one is at its start.
        kept = np.sort(np.argsort(order[starts], kind="stable")[:max_voxels])
        renumber = np.full(len(starts), -1, np.int32)
        renumber[kept] = np.arange(max_voxels, dtype=np.int32)
        group, voxels = renumber[group], voxels[kept]
    return voxels, group, place
