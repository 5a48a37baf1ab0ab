"""Coordinate sets that strided and transposed kernels reach, on the host.

All are sorted by (batch, x, y, z). Both relations factor by axis, so a support is built one axis at
a time, distinct rows only in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import CoordinateRangeError
from .index import LIMIT, CoordIndex
from .sorting import Columns, Packed, Runs, columns_of, group_runs, halved_runs, sorted_unique

Triple = tuple[int, int, int]
# (coordinates along one axis, axis, tap) -> (outputs, which of them exist or None for all)
Candidates = Callable[[np.ndarray, int, int], tuple[np.ndarray, np.ndarray | None]]


def parents(index: CoordIndex, stride: Triple) -> tuple[Runs, Packed | None]:
    """Distinct ``floor(c / stride)`` of indexed sites and the sites of each, by rank; and these packed."""
    if index.packed is not None and all(s & (s - 1) == 0 for s in stride):
        sx, sy, sz = (s.bit_length() - 1 for s in stride)
        found = halved_runs(index.packed, (sx, sy, sz))
        if found is not None:
            return found
    batch, *axes = index.columns
    return group_runs([batch, *(_floor_divide(c, s) for c, s in zip(axes, stride))]), None


def _floor_divide(c: np.ndarray, s: int) -> np.ndarray:
    if s & (s - 1) == 0:  # a power of two: shifting rounds down as well, in half the time
        return c if s == 1 else np.right_shift(c, s.bit_length() - 1)
    return np.floor_divide(c, s)


def made(support: str, coords: np.ndarray, *shape: Any) -> np.ndarray:
    """Sites (n, 4) of "touched" or "generative"; shape: as `touched` takes it. CoordinateRangeError."""
    sites = (touched if support == "touched" else generated)(coords, *shape)
    if len(sites) and (int(sites[:, 1:].min()) <= -LIMIT or int(sites[:, 1:].max()) >= LIMIT):
        raise CoordinateRangeError(
            f"the {support} support leaves (-2**30, 2**30): [{sites[:, 1:].min()}, {sites[:, 1:].max()}]"
        )
    return sites


def touched(
    coords: np.ndarray, size: Triple, stride: Triple, padding: Triple, dilation: Triple, bounds: Triple | None
) -> np.ndarray:
    """Every o with ``o*s - p + k*d`` an active site for some tap k, within [0, bounds)."""

    def candidates(c: np.ndarray, axis: int, k: int) -> tuple[np.ndarray, np.ndarray | None]:
        o = c.astype(np.int64) + (padding[axis] - k * dilation[axis])
        s = stride[axis]
        if s == 1:
            return o, None
        quotient = np.floor_divide(o, s)
        return quotient, quotient * s == o

    return _expand(coords, size, candidates, bounds)


def generated(
    coords: np.ndarray, size: Triple, stride: Triple, padding: Triple, dilation: Triple, bounds: Triple | None
) -> np.ndarray:
    """Every ``c*s - p + k*d`` of an active site c and tap k, within [0, bounds)."""

    def candidates(c: np.ndarray, axis: int, k: int) -> tuple[np.ndarray, np.ndarray | None]:
        return c.astype(np.int64) * stride[axis] + (k * dilation[axis] - padding[axis]), None

    return _expand(coords, size, candidates, bounds)


def _expand(coords: np.ndarray, size: Triple, candidates: Candidates, bounds: Triple | None) -> np.ndarray:
    columns: Columns = columns_of(coords)
    for axis in range(3):
        pieces: list[list[np.ndarray]] = []
        for k in range(size[axis]):
            o, keep = candidates(columns[axis + 1], axis, k)
            if bounds is not None:
                inside = (o >= 0) & (o < bounds[axis])
                keep = inside if keep is None else keep & inside
            piece = [o if i == axis + 1 else c for i, c in enumerate(columns)]
            if keep is not None:
                kept = np.flatnonzero(keep)
                piece = [c.take(kept) for c in piece]
            pieces.append(piece)
        columns = pieces[0] if len(pieces) == 1 else [np.concatenate(parts) for parts in zip(*pieces)]
        # Sites met twice are merged before the next axis multiplies them; the last time is below.
        if len(pieces) > 1 and axis < 2:
            columns = columns_of(sorted_unique(columns))
    return sorted_unique(columns)
