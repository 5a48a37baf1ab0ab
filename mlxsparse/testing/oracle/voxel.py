"""Points to voxels and back, one point at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from mlxsparse.errors import CoordinateRangeError
from mlxsparse.testing.oracle.sets import REDUCE, sorted_sites

Array = np.ndarray[Any, Any]
Size = float | Sequence[float]


def _scaled(points: Array, voxel_size: Size, origin: Sequence[float] | None, dtype: type) -> Array:
    """(p - origin) / voxel_size, evaluated in `dtype`."""
    start: Array = np.zeros(3, dtype) if origin is None else np.asarray(origin, dtype)
    with np.errstate(invalid="ignore"):
        return np.asarray((np.asarray(points).astype(dtype) - start) / np.asarray(voxel_size, dtype))


def voxelize(
    points: Array,
    feats: Array,
    voxel_size: Size,
    *,
    batch: Array | None = None,
    origin: Sequence[float] | None = None,
    bounds: tuple[Sequence[float], Sequence[float]] | None = None,
    reduce: str = "mean",
    max_points: int | None = None,
    max_voxels: int | None = None,
    spatial_shape: Sequence[int] | None = None,
    dtype: type = np.float64,
) -> tuple[Array, Array, Array, Array]:
    """(coords, feats, point_to_voxel, counts) of points (P, 3), voxel = floor((p - origin) / voxel_size).

    Voxels are sorted by (batch, x, y, z). `bounds` = (lo, hi) keeps lo <= p < hi, and then lo is the default
    origin, which is 0 otherwise. `max_voxels` keeps the voxels met first by point index. `max_points`
    reduces only the first points of each voxel, and `counts` is how many those are; later points of the voxel
    keep its index. Points that are not finite, out of bounds, of a voxel outside [0, spatial_shape) or of one
    that was dropped have index -1.
    `dtype` is the type in which the expression is evaluated.
    """
    points, feats = np.asarray(points), np.asarray(feats, dtype=np.float64)
    if origin is None and bounds is not None:
        origin = bounds[0]
    scaled = _scaled(points, voxel_size, origin, dtype)
    voxel_of_point: list[tuple[int, ...] | None] = []
    members: dict[tuple[int, ...], list[int]] = {}
    for i, point in enumerate(points.astype(np.float64)):
        inside = bool(np.isfinite(point).all())
        if inside and bounds is not None:
            inside = all(lo <= c < hi for lo, c, hi in zip(bounds[0], point, bounds[1], strict=True))
        voxel = None
        if inside:
            voxel = (0 if batch is None else int(batch[i]), *(int(np.floor(c)) for c in scaled[i]))
            if spatial_shape is not None and not all(0 <= c < n for c, n in zip(voxel[1:], spatial_shape)):
                voxel = None
        if voxel is not None:
            if max(abs(c) for c in voxel[1:]) >= 2**30:
                raise CoordinateRangeError(f"point {i} lies in voxel {voxel[1:]}, past 2^30")
            if voxel not in members and max_voxels is not None and len(members) == max_voxels:
                voxel = None
            else:
                members.setdefault(voxel, []).append(i)
        voxel_of_point.append(voxel)
    coords = sorted_sites(members)
    row = {tuple(site): r for r, site in enumerate(coords.tolist())}
    used = [members[tuple(site)][:max_points] for site in coords.tolist()]
    merged = np.array([REDUCE[reduce](feats[u]) for u in used], dtype=np.float64).reshape(
        len(coords), feats.shape[1]
    )
    point_to_voxel = np.array([-1 if v is None else row[v] for v in voxel_of_point], dtype=np.int64)
    return coords, merged, point_to_voxel, np.array([len(u) for u in used], dtype=np.int64)


def devoxelize_nearest(
    points: Array,
    coords: Array,
    feats: Array,
    voxel_size: Size,
    *,
    batch: Array | None = None,
    origin: Sequence[float] | None = None,
) -> Array:
    """Features (P, C) of the voxel that contains each point; 0 where there is none."""
    rows = {
        tuple(site): row
        for site, row in zip(np.asarray(coords).tolist(), np.asarray(feats, dtype=np.float64), strict=True)
    }
    found = np.zeros((len(points), np.shape(feats)[1]))
    for i, scaled in enumerate(_scaled(points, voxel_size, origin, np.float64)):
        if np.isfinite(scaled).all():
            voxel = (0 if batch is None else int(batch[i]), *(int(np.floor(c)) for c in scaled))
            found[i] = rows.get(voxel, found[i])
    return found


def devoxelize_trilinear(
    points: Array,
    coords: Array,
    feats: Array,
    voxel_size: Size,
    *,
    batch: Array | None = None,
    origin: Sequence[float] | None = None,
) -> Array:
    """Features (P, C) interpolated between the 8 nearest voxel centres; missing ones share out their weight.

    The centre of voxel v is origin + (v + 0.5) * voxel_size. A point without any such voxel is 0.
    """
    rows = {
        tuple(site): row
        for site, row in zip(np.asarray(coords).tolist(), np.asarray(feats, dtype=np.float64), strict=True)
    }
    found = np.zeros((len(points), np.shape(feats)[1]))
    for i, scaled in enumerate(_scaled(points, voxel_size, origin, np.float64) - 0.5):
        if not np.isfinite(scaled).all():
            continue
        low, total = np.floor(scaled), 0.0
        for corner in product((0, 1), repeat=3):
            near = low + np.array(corner)
            weight = float(np.prod(1 - np.abs(scaled - near)))
            voxel = (0 if batch is None else int(batch[i]), *(int(c) for c in near))
            if voxel in rows and weight > 0:
                found[i] += weight * rows[voxel]
                total += weight
        if total > 0:
            found[i] /= total
    return found
