"""Sites chosen from a sparse tensor, sets of sites, and the rows of given sites."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import host
from ..backend.kernel_coords import inside
from ..coords import CoordinateMapKey, static
from ..coords.checks import check_coordinates
from ..coords.geometry import Triple, whole
from ..engine import index as engine
from ..engine import rows_kernel
from ..engine.rows import take_rows
from ..engine.sorting import columns_of, sorted_unique
from ..errors import CapacityError, DTypeError, MLXSparseError, ShapeError, StrideError
from ..tensor import SparseTensor
from .check import check_tensor


def prune(x: SparseTensor, mask: mx.array | np.ndarray) -> SparseTensor:
    """The sites where `mask` is True, in input order, on a new key.

    mask: bool, (active rows,) or (capacity,); its values on padding rows do not matter. A fixed
    capacity of x stays. Raises ShapeError and DTypeError. The mask has no gradient.
    """
    check_tensor(x)
    if x.key.static:
        return _take_flagged(x, _flags(x, mask))
    keep = _per_row(x, mask, "mask")
    if keep.dtype != bool:
        raise DTypeError(f"mask must be bool (True keeps the site), got {keep.dtype}; compare, as scores > 0")
    return take_sites(x, np.flatnonzero(keep))


def crop(x: SparseTensor, lo: Any, hi: Any) -> SparseTensor:
    """The sites with lo <= (x, y, z) < hi, in input order, on a new key; coordinates stay as they are.

    lo, hi: an int or three ints, in units of x's own lattice. A box with lo == hi on an axis is empty;
    lo > hi raises ShapeError.
    """
    check_tensor(x)
    low, high = _corner(lo, "lo"), _corner(hi, "hi")
    if np.any(low > high):
        raise ShapeError(f"crop: lo must be at most hi on every axis, got lo={lo!r}, hi={hi!r}")
    if x.key.static:
        return _take_flagged(x, inside(x.key.coords[:, 1:], low, high))
    sites = host.view(x.key.coords)[: x.key.count, 1:]
    return take_sites(x, np.flatnonzero(((sites >= low) & (sites < high)).all(axis=1)))


def topk(
    x: SparseTensor,
    k: int,
    scores: mx.array | np.ndarray | None = None,
    *,
    per_batch: bool = True,
    allow_fewer: bool = False,
) -> SparseTensor:
    """The k sites with the largest scores, of each batch item or of all; in input order, on a new key.

    Of equal scores the lower row is kept. An item with fewer than k sites raises ShapeError;
    allow_fewer=True keeps all of its sites. The choice has no gradient, the kept features have.

    Args:
        scores: numbers, (active rows,) or (capacity,); default the features if C == 1.
    """
    check_tensor(x)
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 0:
        raise ShapeError(f"k must be a whole number of at least 0, got {k!r}")
    if scores is None:
        if x.num_channels != 1:
            raise ShapeError(
                f"topk: x has {x.num_channels} channels, so it does not say which is the score: pass "
                "scores=, for example x.feats[:, 0]"
            )
        scores = x.feats[:, 0]
    values = _per_row(x, scores, "scores")
    if values.dtype.kind not in "fiu":
        raise DTypeError(f"scores must be numbers, got {values.dtype}")
    if np.isnan(values).any():
        raise MLXSparseError(
            f"scores has {int(np.isnan(values).sum())} NaN, which has no rank; mx.nan_to_num"
        )
    counts = x.key.counts if per_batch else np.array([x.key.count])
    if not allow_fewer and len(counts) and k > counts.min():
        where = f"batch item {int(counts.argmin())} has" if per_batch else "x has"
        raise ShapeError(
            f"topk: k={k}, but {where} {int(counts.min())} sites; pass allow_fewer=True to keep them all"
        )
    n = len(values)
    ranked = (n - 1) - np.argsort(values[::-1], kind="stable")[::-1]  # falling, ties by row
    if not per_batch:
        return take_sites(x, np.sort(ranked[:k]))
    batch = host.view(x.key.coords)[:n, 0][ranked]
    by_item = np.argsort(batch, kind="stable")
    place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    return take_sites(x, np.sort(ranked[by_item[place < k]]))


def union(
    a: SparseTensor | CoordinateMapKey, b: SparseTensor | CoordinateMapKey, *, capacity: int | None = None
) -> CoordinateMapKey:
    """Key of the sites of a or b, sorted by (batch, x, y, z); usable as ``out=`` of a convolution.

    a and b have the same stride (StrideError), batch_size and spatial_shape (ShapeError). capacity
    pads the rows; a or b with a fixed capacity needs it (CapacityError).
    """
    return union_key((_key(a, "a"), _key(b, "b")), "union", capacity)


def intersection(
    a: SparseTensor | CoordinateMapKey, b: SparseTensor | CoordinateMapKey, *, capacity: int | None = None
) -> CoordinateMapKey:
    """Key of the sites of both a and b, sorted by (batch, x, y, z); usable as ``out=`` of a convolution.

    As `union`, except that a fixed capacity, the smaller one of two, stays if `capacity` is not given.
    """
    return intersection_key((_key(a, "a"), _key(b, "b")), "intersection", capacity)


def lookup(x: SparseTensor | CoordinateMapKey, coords: mx.array | np.ndarray) -> mx.array:
    """Row of each of coords (m, 4) int32 (batch, x, y, z) in x: (m,) int32, -1 where x has no such site."""
    if _key(x, "x").static:
        return static.rows_of(_key(x, "x"), mx.array(check_coordinates(coords)))
    return host.to_mlx(engine.lookup(_key(x, "x").index, host.view(check_coordinates(coords))))


# ---------------------------------------------------------------- shared with joins and sorting


def take_sites(x: SparseTensor, rows: np.ndarray) -> SparseTensor:
    """The given active rows of x, distinct, in the given order, on a new key; a fixed capacity stays."""
    key = x.key
    coords = np.take(host.view(key.coords), rows, axis=0)
    new = key.manager.insert(
        coords, key.stride, batch_size=key.batch_size, spatial_shape=key.spatial_shape, validate=False
    )
    if key.fixed_capacity:
        new = key.manager.resized(new, key.capacity, fixed=True)
    return SparseTensor._of(new, take_rows(x.feats, padded(rows, new.capacity)), x)


def _flags(x: SparseTensor, mask: Any) -> mx.array:
    """A mask on rows that the device alone counts: (capacity,) bool."""
    if not isinstance(mask, (mx.array, np.ndarray)):
        raise DTypeError(f"mask must be an mlx or numpy array, got {type(mask).__name__}")
    if mask.dtype not in (mx.bool_, bool):
        raise DTypeError(f"mask must be bool (True keeps the site), got {mask.dtype}; compare, as scores > 0")
    lack = x.capacity - x.active if isinstance(x.active, int) else 0
    if lack and mask.shape == (x.active,):
        return mx.concatenate([mx.array(mask), mx.zeros((lack,), mx.bool_)])
    if tuple(mask.shape) != (x.capacity,):
        raise ShapeError(
            f"mask must have shape ({x.capacity},), the fixed capacity of x, got {tuple(mask.shape)}"
        )
    return mx.array(mask)


def _take_flagged(x: SparseTensor, keep: mx.array) -> SparseTensor:
    key, rows = static.selected(x.key, keep)
    return SparseTensor._of(key, rows_kernel.take_distinct(x.feats, rows), x)


def padded(rows: np.ndarray, capacity: int) -> np.ndarray:
    """rows followed by -1 up to `capacity`."""
    if len(rows) == capacity:
        return rows
    return np.concatenate([rows, np.full(capacity - len(rows), -1, rows.dtype)])


def union_key(keys: tuple[CoordinateMapKey, ...], name: str, capacity: int | None) -> CoordinateMapKey:
    """Key of the sites of any of the keys."""
    check_lattices(keys, name)
    if capacity is not None and any(key.static for key in keys):
        return static.joined(keys, capacity, common=False)
    if capacity is None and any(key.static for key in keys):
        raise CapacityError(
            f"{name}: an operand has a fixed capacity and the union can have more sites: pass capacity="
        )
    sites = sorted_unique(columns_of(np.concatenate([key.index.coords for key in keys])))
    if capacity is None and any(key.fixed_capacity for key in keys):
        raise CapacityError(
            f"{name}: an operand has a fixed capacity and the union can have more sites ({len(sites)} now): "
            "pass capacity="
        )
    return _created(keys[0], sites, capacity, name)


def intersection_key(keys: tuple[CoordinateMapKey, ...], name: str, capacity: int | None) -> CoordinateMapKey:
    """Key of the sites of all the keys."""
    check_lattices(keys, name)
    if any(key.static for key in keys):
        fixed = min(key.capacity for key in keys) if capacity is None else capacity
        return static.joined(keys, fixed, common=True)
    sites = keys[0].index.coords
    for key in keys[1:]:
        sites = sites[engine.lookup(key.index, sites) >= 0]
    if capacity is None:
        capacity = min((key.capacity for key in keys if key.fixed_capacity), default=None)
    return _created(keys[0], sites, capacity, name)


def _created(key: CoordinateMapKey, sites: np.ndarray, capacity: int | None, name: str) -> CoordinateMapKey:
    if capacity is not None and (capacity := whole(capacity, "capacity", -1)) < len(sites):
        raise CapacityError(f"{name}: capacity={capacity} is too small, the result has {len(sites)} sites")
    manager = key.manager
    new = manager.created(sites, key.stride, key.batch_size, spatial_shape=key.spatial_shape)
    return new if capacity is None else manager.resized(new, capacity, fixed=True)


def check_lattices(keys: tuple[CoordinateMapKey, ...], name: str) -> None:
    first = keys[0]
    for key in keys[1:]:
        if key.stride != first.stride:
            raise StrideError(
                f"{name} needs operands of one stride, got {first.stride} and {key.stride}; bring one to the "
                "other's lattice with a strided convolution or an upsampling"
            )
        if key.batch_size != first.batch_size:
            raise ShapeError(
                f"{name} needs operands of one batch_size, got {first.batch_size} and {key.batch_size}; give "
                "both the same batch_size= at construction"
            )
        if key.spatial_shape != first.spatial_shape:
            raise ShapeError(
                f"{name} needs operands of one spatial_shape, got {first.spatial_shape} and "
                f"{key.spatial_shape}; give both the same spatial_shape= at construction, or neither"
            )


def _key(x: Any, name: str) -> CoordinateMapKey:
    if isinstance(x, CoordinateMapKey):
        return x
    check_tensor(x, name)
    key: CoordinateMapKey = x.key
    return key


def _per_row(x: SparseTensor, values: Any, name: str) -> np.ndarray:
    """`values` on the active rows, on the host."""
    if not isinstance(values, (mx.array, np.ndarray)):
        raise DTypeError(f"{name} must be an mlx or numpy array, got {type(values).__name__}")
    count, capacity = x.key.count, x.capacity
    if tuple(values.shape) not in ((count,), (capacity,)):
        wanted = f"({count},)" if count == capacity else f"({count},), the active rows, or ({capacity},)"
        raise ShapeError(f"{name} must have shape {wanted}, got {tuple(values.shape)}")
    return (host.view(values) if isinstance(values, mx.array) else values)[:count]


def _corner(value: Any, name: str) -> Triple:
    corner = np.asarray(value)
    if corner.shape not in ((), (3,)) or corner.dtype.kind not in "iu":
        raise ShapeError(f"{name} must be an int or three ints (x, y, z), got {value!r}")
    x, y, z = np.broadcast_to(corner, (3,)).tolist()
    return x, y, z
