"""Between sparse tensors and dense grids (B, X, Y, Z, C)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import host
from ..backend.features import check_floats, filling
from ..backend.status import OUTSIDE, report
from ..coords import CoordinateManager
from ..coords.checks import manager_of
from ..coords.geometry import TripleLike, triple
from ..engine import rows_kernel
from ..engine.rows import put_rows, take_rows
from ..errors import CoordinateRangeError, DTypeError, ShapeError
from ..tensor import SparseTensor
from .check import check_tensor


def dense(
    x: SparseTensor,
    shape: TripleLike | None = None,
    origin: TripleLike | None = None,
    fill: float = 0,
) -> mx.array:
    """Grid (B, X, Y, Z, C) with the features at their sites and `fill` elsewhere.

    shape: (X, Y, Z); default `spatial_shape`; where that is not known, or an origin is given, as far as
    the sites reach. origin: the site of grid cell 0; default (0, 0, 0). CoordinateRangeError if a site
    lies outside: none is dropped. With a fixed capacity on a GPU nothing is read: shape is needed, and
    mlxsparse.compile raises that error.
    """
    check_tensor(x)
    fill = filling(fill)
    if x.key.static:
        return _static_dense(x, shape, origin, fill)
    index = x.key.index
    start = np.array((0, 0, 0) if origin is None else triple(origin, "origin"), np.int64)
    local = index.coords[:, 1:].astype(np.int64) - start
    if shape is None:
        shape = x.spatial_shape if origin is None else None
    if shape is None:
        size = np.maximum(local.max(axis=0) + 1, 0) if len(local) else np.zeros(3, np.int64)
    else:
        size = np.array(triple(shape, "shape", least=0), np.int64)
    if len(local) and (local.min() < 0 or np.any(local.max(axis=0) >= size)):
        low, high = index.coords[:, 1:].min(axis=0).tolist(), index.coords[:, 1:].max(axis=0).tolist()
        raise CoordinateRangeError(
            f"dense: sites reach from {low} to {high}, outside the grid of shape {size.tolist()} at origin "
            f"{start.tolist()}; pass origin= and shape= that hold them, or ops.crop first"
        )
    cells = _cells(x.batch_size, size.tolist())
    flat = index.coords[:, 0].astype(np.int64)
    for axis in range(3):
        flat = flat * size[axis] + local[:, axis]
    rows = flat
    if index.order is not None:
        rows = np.empty_like(flat)
        rows[index.order] = flat
    grid = put_rows(x.feats, rows, cells, fill)
    return grid.reshape(x.batch_size, *size.tolist(), x.num_channels)


def _cells(batch_size: int, size: Sequence[int]) -> int:
    cells = batch_size * math.prod(size)
    if cells > 2**31 - 1:
        raise ShapeError(f"dense: {cells} grid cells; pass a smaller shape= or crop first")
    return cells


def _static_dense(
    x: SparseTensor, shape: TripleLike | None, origin: TripleLike | None, fill: float
) -> mx.array:
    if shape is None:
        shape = x.spatial_shape if origin is None else None
    if shape is None:
        raise ShapeError("dense: the extent of a fixed capacity is not read: pass shape= and origin=")
    size = triple(shape, "shape", least=0)
    cells = _cells(x.batch_size, size)
    local = x.coords[:, 1:] - mx.array((0, 0, 0) if origin is None else triple(origin, "origin"), mx.int32)
    inside = ((local >= 0) & (local < mx.array(size, mx.int32))).all(axis=1)
    live = x.key.live[:, 0]
    report(mx.any(live & ~inside), OUTSIDE)
    flat = x.coords[:, 0]
    for axis in range(3):
        flat = flat * size[axis] + local[:, axis]
    rows = mx.where(live & inside, flat, -1).astype(mx.int32)
    grid = rows_kernel.put_distinct(x.feats, rows, cells, fill)
    return grid.reshape(x.batch_size, *size, x.num_channels)


def from_dense(
    grid: mx.array | np.ndarray,
    *,
    mask: mx.array | np.ndarray | None = None,
    stride: TripleLike = 1,
    manager: CoordinateManager | None = None,
) -> SparseTensor:
    """Sites of a grid (B, X, Y, Z, C) where any channel is not 0, or where `mask` (B, X, Y, Z) is True.

    Rows are sorted by (batch, x, y, z); `spatial_shape` is (X, Y, Z). NaN counts as not 0.
    A grid is float32, float16 or bfloat16; DTypeError for others, which are not narrowed.
    """
    check_floats(grid, "grid", "(B, X, Y, Z, C)")
    if grid.ndim != 5:
        raise ShapeError(f"grid must have shape (B, X, Y, Z, C), got {tuple(grid.shape)}")
    if isinstance(grid, np.ndarray):
        grid = mx.array(np.ascontiguousarray(grid))
    b, x, y, z, c = grid.shape
    chosen = host.view(grid).any(axis=-1) if mask is None else _mask(mask, (b, x, y, z))
    flat = np.flatnonzero(chosen)
    sites = (
        np.stack(np.unravel_index(flat, (b, x, y, z)), axis=1) if flat.size else np.empty((0, 4), np.int64)
    )
    key = manager_of(manager).created(sites, stride, b, spatial_shape=(x, y, z))
    return SparseTensor._of(key, take_rows(grid.reshape(b * x * y * z, c), flat))


def _mask(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(mask, (mx.array, np.ndarray)):
        raise DTypeError(f"mask must be an mlx or numpy array, got {type(mask).__name__}")
    if tuple(mask.shape) != shape or mask.dtype not in (mx.bool_, bool):
        raise ShapeError(f"mask must be bool of shape {shape}, got {mask.dtype} {tuple(mask.shape)}")
    return host.view(mask) if isinstance(mask, mx.array) else mask
