"""Layouts of attention among voxels: which blocks of rows hold voxels that are near each other.

A pattern is called with coordinates (N, 4) (batch, x, y, z) and gives a BlockLayout (N, N) over their rows as
they stand. It stores a block where at least one pair of its voxels is near, so it has few blocks where rows
that are near each other in space are so in memory: sort them first (ops.sort).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np

from ..engine.index import LIMIT, build_index, lookup
from ..engine.sorting import columns_of, distinct, group
from ..errors import CoordinateRangeError, DTypeError, DuplicateCoordinatesError, ShapeError
from .check import whole_number, whole_numbers
from .layout import BlockLayout


def _rows(coords: Any) -> np.ndarray:
    rows = np.asarray(coords)
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise ShapeError(f"coords has shape {rows.shape}, wanted (N, 4) (batch, x, y, z)")
    if rows.dtype.kind not in "iu":
        raise DTypeError(f"coords is {rows.dtype}, wanted integers")
    if rows.size and np.abs(rows.astype(np.int64)).max() >= LIMIT:
        raise CoordinateRangeError(f"coords must lie in (-{LIMIT}, {LIMIT})")
    return np.ascontiguousarray(rows, np.int32)


def _three(name: str, value: Any, least: int | None) -> tuple[int, int, int]:
    single = isinstance(value, (int, np.integer))
    sides = (value,) * 3 if single else whole_numbers(name, value, -(2**62))
    if len(sides) != 3:
        raise ShapeError(f"{name} must be an int or three ints (x, y, z), got {value!r}")
    if least is None:
        return tuple(whole_number(name, abs(s)) * (1 if s >= 0 else -1) for s in sides)  # type: ignore[return-value]
    return tuple(whole_number(name, s, least) for s in sides)  # type: ignore[return-value]


def _layout(pairs: np.ndarray, n: int, block: int, heads: int) -> BlockLayout:
    return BlockLayout.from_pairs(pairs, block, shape=(n, n), heads=heads)


@dataclass(frozen=True)
class VoxelWindow:
    """Voxels of one batch item in one 3-D window see each other.

    Args:
        num_heads, block: heads, and rows of a block.
        window: its size (x, y, z), or one number.
        shift: a voxel is in window floor((coordinate + shift) / window), as in ops.window_attention.

    Attention over the layout alone lets a block's other voxels in; with ``segments=pattern.segments(coords)``
    it is exact.
    """

    num_heads: int
    block: int
    window: int | tuple[int, int, int] = 8
    shift: int | tuple[int, int, int] = 0

    def __post_init__(self) -> None:
        whole_number("num_heads", self.num_heads, 1)
        whole_number("block", self.block, 1)
        object.__setattr__(self, "window", _three("window", self.window, 1))
        object.__setattr__(self, "shift", _three("shift", self.shift, None))

    def _windows(self, rows: np.ndarray) -> np.ndarray:
        window: Any = self.window
        shift: Any = self.shift
        if not len(rows):
            return np.zeros(0, np.int32)
        batch, *space = columns_of(rows)
        cells = [((c.astype(np.int64) + s) // w).astype(np.int32) for c, s, w in zip(space, shift, window)]
        return group([batch, *cells]).numbers.copy()

    def segments(self, coords: Any) -> mx.array:
        """(N,) int32: a number for each window, for block_sparse_attention(segments=)."""
        return mx.array(self._windows(_rows(coords)))

    def __call__(self, coords: Any) -> BlockLayout:
        """BlockLayout (N, N) of coords (N, 4). Raises ShapeError, DTypeError and CoordinateRangeError."""
        rows = _rows(coords)
        n, height = len(rows), -(-len(rows) // self.block)
        windows = self._windows(rows).astype(np.int64)
        window, at = np.divmod(
            distinct(windows * max(height, 1) + np.arange(n) // self.block), max(height, 1)
        )
        counts = np.bincount(window) if len(window) else np.zeros(0, np.int64)
        start = np.cumsum(counts) - counts
        per = counts * counts
        mine = np.repeat(np.arange(len(counts)), per)
        place = np.arange(int(per.sum())) - np.repeat(np.cumsum(per) - per, per)
        row, col = np.divmod(place, counts[mine] if len(mine) else 1)
        pairs = np.column_stack([at[start[mine] + row], at[start[mine] + col]])
        return _layout(pairs, n, self.block, self.num_heads)

    make_layout = __call__


@dataclass(frozen=True)
class Neighbor3d:
    """Blocks that hold two voxels of one batch item at most `radius` apart on every axis.

    Args:
        num_heads, block: heads, and rows of a block.
        radius: (x, y, z), or one number; (2 * radius + 1)^3 places around each voxel are looked up.
    """

    num_heads: int
    block: int
    radius: int | tuple[int, int, int] = 1

    def __post_init__(self) -> None:
        whole_number("num_heads", self.num_heads, 1)
        whole_number("block", self.block, 1)
        object.__setattr__(self, "radius", _three("radius", self.radius, 0))

    def __call__(self, coords: Any) -> BlockLayout:
        """BlockLayout (N, N) of distinct coords (N, 4).

        Raises ShapeError, DTypeError, CoordinateRangeError and DuplicateCoordinatesError.
        """
        rows = _rows(coords)
        n, height = len(rows), max(1, -(-len(rows) // self.block))
        index = build_index(rows)
        if index.duplicate is not None:
            a, b = index.duplicate
            raise DuplicateCoordinatesError(f"rows {a} and {b} have the same coordinates {rows[a].tolist()}")
        own = np.arange(n, dtype=np.int64) // self.block
        radius: Any = self.radius
        found = [distinct(own * (height + 1))]
        for offset in product(*(range(-r, r + 1) for r in radius)):
            if offset > (0, 0, 0):
                near = lookup(index, rows.astype(np.int64) + np.array([0, *offset]))
                there = near >= 0
                other = near[there].astype(np.int64) // self.block
                found += [distinct(own[there] * height + other), distinct(other * height + own[there])]
        return _layout(
            np.column_stack(np.divmod(distinct(np.concatenate(found)), height)),
            n,
            self.block,
            self.num_heads,
        )

    make_layout = __call__
