"""Checks that coordinates pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from ..engine.index import LIMIT, CoordIndex
from ..engine.sorting import Bounds
from ..errors import CoordinateRangeError, DTypeError, DuplicateCoordinatesError, ShapeError, StrideError
from .geometry import Kernel, Triple, multiply
from .keys import CoordinateMapKey

if TYPE_CHECKING:
    from .manager import CoordinateManager

MOST_ITEMS = 1 << 24  # that are assumed without a word: each takes 8 bytes and more


def items_up_to(last: int) -> int:
    """Batch items where `last` is the highest number; CoordinateRangeError where that can hardly be meant."""
    if last >= MOST_ITEMS:
        raise CoordinateRangeError(
            f"the batch number {last} would make {last + 1} items: pass batch_size= if so many are meant, "
            "active_rows= if it marks padding"
        )
    return last + 1


def check_coordinates(coords: Any) -> mx.array:
    """`coords` as an (n, 4) int32 MLX array; ShapeError or DTypeError."""
    if not isinstance(coords, (mx.array, np.ndarray)):
        raise DTypeError(f"coords must be an mlx or numpy int32 array (n, 4), got {type(coords).__name__}")
    if coords.ndim != 2 or coords.shape[1] != 4:
        raise ShapeError(
            f"coords must have shape (n, 4) = (batch, x, y, z), got {tuple(coords.shape)}"
            + ("; put a batch column of zeros in front" if coords.ndim == 2 and coords.shape[1] == 3 else "")
        )
    if coords.dtype not in (mx.int32, np.int32):
        raise DTypeError(f"coords must be int32, got {coords.dtype}; convert them with .astype of int32")
    return mx.array(np.ascontiguousarray(coords)) if isinstance(coords, np.ndarray) else coords


def check_range(bounds: Bounds, batch_size: int | None, shape: Triple | None) -> None:
    low, high = bounds
    if low[0] < 0:
        raise CoordinateRangeError(
            f"coords has a negative batch number ({low[0]}); padding rows go past active_rows"
        )
    if batch_size is not None and high[0] >= batch_size:
        raise CoordinateRangeError(f"coords has batch number {high[0]}, but batch_size={batch_size}")
    if min(low[1:]) <= -LIMIT or max(high[1:]) >= LIMIT:
        raise CoordinateRangeError(
            f"coords must lie in (-2**30, 2**30), got [{min(low[1:])}, {max(high[1:])}]; shift the origin"
        )
    if shape is not None and (min(low[1:]) < 0 or any(h >= s for h, s in zip(high[1:], shape))):
        raise CoordinateRangeError(
            f"coords must lie in [0, spatial_shape={shape}), got {tuple(low[1:])} to {tuple(high[1:])}"
        )


def check_duplicates(index: CoordIndex, rows: np.ndarray) -> None:
    """DuplicateCoordinatesError if two rows of the index name one site."""
    if index.duplicate is not None:
        a, b = index.duplicate
        raise DuplicateCoordinatesError(
            f"coords rows {a} and {b} are the same site {tuple(rows[a].tolist())}; "
            "merge duplicates with mlxsparse.coalesce(coords, feats, reduce=...)"
        )


def check_keys(**keys: Any) -> None:
    """DTypeError, which says what is taken, for what is no key."""
    for name, key in keys.items():
        if not isinstance(key, CoordinateMapKey):
            raise DTypeError(f"{name} must be a CoordinateMapKey, such as x.key, got {type(key).__name__}")


def manager_of(manager: Any) -> CoordinateManager:
    """`manager`, the process-wide one for None; DTypeError for what is no manager."""
    from .manager import CoordinateManager, default_manager

    if manager is None:
        return default_manager()
    if not isinstance(manager, CoordinateManager):
        raise DTypeError(
            f"manager must be a CoordinateManager, such as x.manager, got {type(manager).__name__}"
        )
    return manager


def check_map(in_key: Any, out_key: Any, kernel: Any) -> None:
    """DTypeError for other types than those of a map, StrideError if `out_key` is not on its lattice."""
    check_keys(in_key=in_key, out_key=out_key)
    if not isinstance(kernel, Kernel):
        raise DTypeError(f"kernel must be a Kernel, such as Kernel.of(2, 2), got {kernel!r}")
    if out_key.stride != multiply(in_key.stride, kernel.stride):
        raise StrideError(
            f"a map of stride {kernel.stride} leads from stride {in_key.stride} to "
            f"{multiply(in_key.stride, kernel.stride)}, but out_key has {out_key.stride}"
        )
