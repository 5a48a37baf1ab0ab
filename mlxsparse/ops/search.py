"""Nearest sites of a sparse tensor, exactly."""

from __future__ import annotations

from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from ..backend import executor, host
from ..engine.search import Found, nearest
from ..errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError, StrideError
from ..tensor import SparseTensor
from .check import check_tensor

Queries: TypeAlias = "SparseTensor | mx.array | np.ndarray"
FAR = 2.0**60  # a query's coordinates stay below it, so that squared distances are finite


def knn(
    x: SparseTensor, queries: Queries, k: int, *, batch: mx.array | np.ndarray | None = None
) -> tuple[mx.array, mx.array]:
    """The k sites of x nearest to each query, in its batch item: rows (Q, k) int32, distances (Q, k) float32.

    Nearest first, ties by lower row; -1 and inf where the item has fewer than k sites. Distances are
    Euclidean, in lattice units of x, from the query to the integer coordinates of a site (a voxel's
    corner: the centre of the voxel that holds point p is at ``(p - origin) / voxel_size - 0.5``).
    Exact in float64. Neither has a gradient.

    Args:
        queries: positions (Q, 3), any real numbers; or coordinates (Q, 4) int32 (batch, x, y, z); or a
            SparseTensor of the same stride, whose padding rows find nothing.
        batch: (Q,) integers, the batch item of each position (Q, 3); default 0 if x has one item.

    Raises ShapeError, DTypeError, StrideError, CoordinateRangeError (positions not finite, batch
    numbers that x has not).
    """
    k = _positive(k, "k")
    found = nearest(*_arguments(x, queries, batch), k)
    return _neighbours(found, queries)


def radius(
    x: SparseTensor,
    queries: Queries,
    r: float,
    max_neighbors: int,
    *,
    batch: mx.array | np.ndarray | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """Sites of x within distance r (inclusive) of each query, in its batch item, nearest first.

    Returns rows (Q, max_neighbors) int32 and distances (Q, max_neighbors) float32, padded with -1 and
    inf, and counts (Q,) int32 of all sites within r: one above max_neighbors tells that the farthest
    were left out. Queries, units, ties and errors as in `knn`.
    """
    most = _positive(max_neighbors, "max_neighbors")
    if isinstance(r, bool) or not isinstance(r, (int, float, np.number)) or not 0 <= r < FAR:
        raise MLXSparseError(f"r must be a finite distance of at least 0, in lattice units, got {r!r}")
    found = nearest(*_arguments(x, queries, batch), most, float(r) * float(r))
    counts = _padded(found.counts.astype(np.int32), 0, queries)
    return *_neighbours(found, queries), host.to_mlx(counts)


def _neighbours(found: Found, queries: Queries) -> tuple[mx.array, mx.array]:
    distances = np.sqrt(found.squares).astype(np.float32)
    return (
        host.to_mlx(_padded(found.rows, -1, queries)),
        host.to_mlx(_padded(distances, np.inf, queries)),
    )


def _padded(values: np.ndarray, fill: float, queries: Queries) -> np.ndarray:
    """One row for each query; the padding rows of a SparseTensor get `fill`."""
    if not isinstance(queries, SparseTensor) or len(values) == queries.capacity:
        return values
    rest = np.full((queries.capacity - len(values), *values.shape[1:]), fill, values.dtype)
    return np.concatenate([values, rest])


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ShapeError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def _arguments(
    x: SparseTensor, queries: Queries, batch: mx.array | np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sites (n, 4) by row, positions (Q, 3) float64, batch (Q,) int64), checked."""
    check_tensor(x)
    executor()
    sites = host.view(x.key.coords)[: x.key.count]
    if isinstance(queries, SparseTensor):
        if queries.stride != x.stride:
            raise StrideError(
                f"queries has stride {queries.stride}, x has {x.stride}; pass positions (Q, 3) in lattice "
                "units of x, and batch="
            )
        if queries.batch_size != x.batch_size:
            raise ShapeError(f"queries has batch_size {queries.batch_size}, x has {x.batch_size}")
        if batch is not None:
            raise ShapeError("queries is a SparseTensor, which has its own batch numbers: leave batch out")
        rows = host.view(queries.key.coords)[: queries.key.count].astype(np.int64)
        return sites, rows[:, 1:].astype(np.float64), rows[:, 0]
    positions = host.view(queries) if isinstance(queries, mx.array) else queries
    if not isinstance(positions, np.ndarray):
        raise DTypeError(
            f"queries must be an array (Q, 3) or (Q, 4), or a SparseTensor, got {type(queries).__name__}"
        )
    if positions.dtype.kind not in "fiu":
        raise DTypeError(f"queries must be numbers, got {positions.dtype}")
    if positions.ndim != 2 or positions.shape[1] not in (3, 4):
        raise ShapeError(
            f"queries must have shape (Q, 3) = (x, y, z) or (Q, 4) = (batch, x, y, z), got {positions.shape}"
        )
    if positions.shape[1] == 4:
        if positions.dtype != np.int32:
            raise DTypeError(
                f"queries of shape (Q, 4) are coordinates, int32, got {positions.dtype}; pass positions as "
                "(Q, 3) and batch="
            )
        if batch is not None:
            raise ShapeError("queries of shape (Q, 4) have their own batch numbers: leave batch out")
        batch, positions = positions[:, 0], positions[:, 1:]
    points = positions.astype(np.float64)
    if points.size and not np.abs(points).max() < FAR:  # NaN fails it too
        raise CoordinateRangeError("queries must be finite, and below 2**60")
    return sites, points, _items(batch, len(points), x.batch_size)


def _items(batch: Any, n: int, batch_size: int) -> np.ndarray:
    if batch is None:
        if batch_size > 1:
            raise ShapeError(f"x has {batch_size} batch items: pass batch=, the item of each query (Q,)")
        return np.zeros(n, np.int64)
    items = host.view(batch) if isinstance(batch, mx.array) else np.asarray(batch)
    if items.shape != (n,):
        raise ShapeError(f"batch must have shape ({n},), one number per query, got {items.shape}")
    if items.dtype.kind not in "iu":
        raise DTypeError(f"batch must hold integers, got {items.dtype}")
    if n and not 0 <= int(items.min()) <= int(items.max()) < batch_size:
        raise CoordinateRangeError(
            f"batch must lie in [0, {batch_size}), the batch items of x, got {items.min()}..{items.max()}"
        )
    return items.astype(np.int64)
