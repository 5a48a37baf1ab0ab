"""Coordinate sets that strided and transposed kernels reach, on the host.

All are sorted by (batch, x, y, z). Both relations factor by axis, so a support is built one axis at
a time, distinct rows only in between.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .index import sorted_unique

Triple = tuple[int, int, int]
Candidates = Callable[[np.ndarray, int, int], tuple[np.ndarray, np.ndarray | None]]


def parents(coords: np.ndarray, stride: Triple) -> np.ndarray:
    """Distinct ``floor(c / stride)``: (n, 4) integers -> (m, 4) int64."""
    if tuple(stride) == (1, 1, 1):
        return sorted_unique(coords)
    return sorted_unique(np.floor_divide(coords, np.array((1, *stride), coords.dtype)))


def touched(
    coords: np.ndarray, size: Triple, stride: Triple, padding: Triple, dilation: Triple, bounds: Triple | None
) -> np.ndarray:
    """Every o with ``o*s - p + k*d`` an active site for some tap k, within [0, bounds): int64."""

    def candidates(c: np.ndarray, axis: int, k: int) -> tuple[np.ndarray, np.ndarray | None]:
        o = c + (padding[axis] - k * dilation[axis])
        if stride[axis] == 1:
            return o, None
        o, rest = np.divmod(o, stride[axis])
        return o, rest == 0

    return _expand(coords, size, candidates, bounds)


def generated(
    coords: np.ndarray, size: Triple, stride: Triple, padding: Triple, dilation: Triple, bounds: Triple | None
) -> np.ndarray:
    """Every ``c*s - p + k*d`` of an active site c and tap k, within [0, bounds): int64."""

    def candidates(c: np.ndarray, axis: int, k: int) -> tuple[np.ndarray, np.ndarray | None]:
        return c * stride[axis] + (k * dilation[axis] - padding[axis]), None

    return _expand(coords, size, candidates, bounds)


def _expand(coords: np.ndarray, size: Triple, candidates: Candidates, bounds: Triple | None) -> np.ndarray:
    rows = coords.astype(np.int64)
    for axis in range(3):
        pieces = []
        for k in range(size[axis]):
            o, keep = candidates(rows[:, axis + 1], axis, k)
            if bounds is not None:
                inside = (o >= 0) & (o < bounds[axis])
                keep = inside if keep is None else keep & inside
            piece = rows.copy()
            piece[:, axis + 1] = o
            pieces.append(piece if keep is None else piece[keep])
        rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        # Axes that cannot produce a site twice leave the sorting to the end.
        if len(pieces) > 1 and axis < 2:
            rows = sorted_unique(rows)
    return sorted_unique(rows)
