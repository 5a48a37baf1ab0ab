"""A boolean grid as disjoint boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DTypeError, ShapeError
from .spec import Rect, integer


def rect_cover(mask: Any, min_area: int = 4) -> list[Rect]:
    """Disjoint boxes that cover exactly the True cells of a bool array of any rank, sorted by lowest corner.

    Runs along one axis are joined along the next where their bounds agree, and so on; of the orders of axes
    that are turns of each other the one with the fewest boxes wins. Boxes of fewer than `min_area` cells do
    not grow beyond runs along the last axis, which are contiguous in memory. O(cells log cells). Raises
    DTypeError unless the mask is bool, ShapeError if it has no axes.
    """
    grid = np.asarray(mask)
    if grid.dtype != bool:
        raise DTypeError(f"mask is {grid.dtype}, wanted bool; use mask != 0")
    if grid.ndim == 0:
        raise ShapeError("mask has no axes, wanted at least one")
    least = integer("min_area", min_area)
    n = grid.ndim
    turns = [tuple(np.roll(np.arange(n), t).tolist()) for t in range(n)]
    boxes = min((_sweep(grid, axes) for axes in turns), key=len)
    small = np.prod(boxes[:, 1] - boxes[:, 0], axis=1) < least
    if n > 1 and small.any():
        boxes = np.concatenate([boxes[~small], _lines(boxes[small])])
    boxes = boxes[np.lexsort(boxes[:, 0].T[::-1])]
    columns = [list(zip(boxes[:, 0, d].tolist(), boxes[:, 1, d].tolist())) for d in range(n)]
    return [Rect._of(ranges) for ranges in zip(*columns)]


def _sweep(grid: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """(boxes, 2, ndim) lowest corners and ends; joined along the last of `axes` first."""
    turned = grid.transpose(axes)
    padded = np.zeros((*turned.shape[:-1], turned.shape[-1] + 2), np.int8)
    padded[..., 1:-1] = turned
    step = np.diff(padded, axis=-1)
    # C order of both: the i-th start and the i-th end belong together.
    lo = np.argwhere(step == 1)
    hi = lo + 1
    hi[:, -1] = np.nonzero(step == -1)[-1]
    for axis in range(grid.ndim - 2, -1, -1):
        rest = [c for d in range(grid.ndim) if d != axis for c in (lo[:, d], hi[:, d])]
        order = np.lexsort((lo[:, axis], *rest))
        lo, hi = lo[order], hi[order]
        new = np.ones(len(lo), bool)
        other = np.arange(grid.ndim) != axis
        new[1:] = (
            (lo[1:, axis] != hi[:-1, axis])
            | (lo[1:, other] != lo[:-1, other]).any(axis=1)
            | (hi[1:, other] != hi[:-1, other]).any(axis=1)
        )
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(lo)) - 1 if len(lo) else first
        lo, hi = lo[first], hi[last]
    back = np.argsort(axes)
    return np.stack([lo[:, back], hi[:, back]], axis=1)


def _lines(boxes: np.ndarray) -> np.ndarray:
    """The boxes taken apart into runs along the last axis."""
    shape = boxes[:, 1] - boxes[:, 0]
    shape[:, -1] = 1
    count = np.prod(shape, axis=1)
    box = np.repeat(np.arange(len(boxes)), count)
    place = np.arange(len(box)) - np.repeat(np.cumsum(count) - count, count)
    lines = boxes[box]
    for axis in range(boxes.shape[2] - 2, -1, -1):
        lines[:, 0, axis] += place % shape[box, axis]
        lines[:, 1, axis] = lines[:, 0, axis] + 1
        place //= shape[box, axis]
    return lines
