"""The points of each voxel side by side."""

from __future__ import annotations

from typing import Literal, overload

import mlx.core as mx
import numpy as np

from ..backend import executor, host
from ..backend.features import as_features
from ..engine.quantise import place_in_group
from ..engine.rows import take_rows
from ..errors import DTypeError, ShapeError
from .voxel import Voxels


@overload
def collect(
    voxels: Voxels,
    feats: mx.array | np.ndarray,
    max_points: int,
    *,
    return_counts: Literal[False] = False,
) -> mx.array: ...


@overload
def collect(
    voxels: Voxels, feats: mx.array | np.ndarray, max_points: int, *, return_counts: Literal[True]
) -> tuple[mx.array, mx.array]: ...


def collect(
    voxels: Voxels, feats: mx.array | np.ndarray, max_points: int, *, return_counts: bool = False
) -> mx.array | tuple[mx.array, mx.array]:
    """Features of the first `max_points` points of each voxel: (V, max_points, C), 0 past the last.

    Points come by index, voxels in the row order of `voxels.tensor`: the layout of PointPillars and
    VoxelNet. Differentiable in feats. With return_counts also (V,) int32, how many of each voxel's
    places are taken.

    Args:
        voxels: what `voxelize` returned. Its own max_points does not matter here.
        feats: (N, C) float32, float16 or bfloat16, a row for each of the points that were voxelized.
    """
    executor()
    if not isinstance(voxels, Voxels):
        raise DTypeError(f"voxels must be what mlxsparse.voxelize returns, got {type(voxels).__name__}")
    values = as_features(feats)
    number = host.view(voxels.point_to_voxel)
    if values.shape[0] != len(number):
        raise ShapeError(f"feats has {values.shape[0]} rows, but {len(number)} points were voxelized")
    if isinstance(max_points, bool) or not isinstance(max_points, (int, np.integer)) or max_points < 1:
        raise ShapeError(f"max_points must be a whole number of at least 1, got {max_points!r}")
    count = voxels.tensor.num_active
    place = place_in_group(number, count)
    kept = np.flatnonzero((number >= 0) & (place < max_points))
    rows = np.full(count * max_points, -1, np.int64)
    rows[number[kept].astype(np.int64) * max_points + place[kept]] = kept
    grouped = take_rows(values, rows).reshape(count, max_points, values.shape[1])
    if not return_counts:
        return grouped
    counts = np.bincount(number[kept], minlength=count)
    return grouped, host.to_mlx(counts.astype(np.int32))
