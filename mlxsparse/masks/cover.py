"""Exact partition of a mask into boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..blocksparse.check import as_mask, whole_number
from ..errors import ShapeError
from .spec import Rect


def rect_cover(mask: Any, min_area: int = 4) -> list[Rect]:
    """Boxes that are disjoint, hold every True and no False of `mask`: largest first, ties by position.

    mask: bool of one axis or more, NumPy or MLX. Boxes grow from runs along one axis, merged along the
    others. Those with less than `min_area` positions are given up and their positions tried along the next
    axis; what is small along every axis is covered as it is. A partition of the mask, in O(n log n).
    """
    rest = np.array(as_mask("mask", mask))
    if rest.ndim == 0:
        raise ShapeError("mask is a scalar, wanted at least one axis")
    least = whole_number("min_area", min_area)
    found: list[np.ndarray] = []
    last = np.zeros((0, rest.ndim, 2), np.int64)
    for axis in reversed(range(rest.ndim)):
        last = _boxes(rest, axis)
        large = (last[:, :, 1] - last[:, :, 0]).prod(axis=1) >= least
        if large.all():
            break
        if axis:
            found.append(last[large])
            _clear(rest, last[large])
    found.append(last)
    boxes = np.concatenate(found)
    volume = (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1)
    order = np.lexsort((*reversed(boxes[:, :, 0].T), -volume))
    return [_rect(box) for box in boxes[order].tolist()]


def _rect(box: list[list[int]]) -> Rect:
    """A Rect of bounds that are known to be right."""
    made = Rect.__new__(Rect)
    object.__setattr__(made, "ranges", tuple((lo, hi) for lo, hi in box))
    return made


def _boxes(mask: np.ndarray, first: int) -> np.ndarray:
    """(n, ndim, 2) partition of `mask`: runs along axis `first`, merged along the other axes in turn."""
    others = [axis for axis in range(mask.ndim) if axis != first]
    line = np.moveaxis(mask, first, -1)
    padded = np.zeros((*line.shape[:-1], line.shape[-1] + 1), bool)
    padded[..., :-1] = line
    change = np.diff(padded.reshape(-1).view(np.int8), prepend=np.int8(0))
    start, end = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
    wide = padded.shape[-1]
    bounds = np.empty((len(start), mask.ndim, 2), np.int64)
    bounds[:, first] = np.column_stack([start % wide, end % wide])
    places = np.unravel_index(start // wide, line.shape[:-1]) if others else ()
    for axis, place in zip(others, places):
        bounds[:, axis, 0], bounds[:, axis, 1] = place, place + 1
    for axis in reversed(others):
        bounds = _merged(bounds, axis, mask.shape)
    return bounds


def _merged(bounds: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    """Boxes that touch along `axis` and agree on all others become one."""
    if len(bounds) < 2:
        return bounds
    columns = [bounds[:, a, side] for a in range(bounds.shape[1]) if a != axis for side in (0, 1)]
    sizes = [size + 1 for a, size in enumerate(shape) if a != axis for _ in (0, 1)]
    start = bounds[:, axis, 0]
    if np.prod(sizes, dtype=object) * (shape[axis] + 1) < 2**62:
        key = np.zeros(len(bounds), np.int64)
        for column, size in zip([*columns, start], [*sizes, shape[axis] + 1]):
            key = key * size + column
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort((start, *reversed(columns)))
    ranked = bounds[order]
    goes_on = ranked[1:, axis, 0] == ranked[:-1, axis, 1]
    for a in range(bounds.shape[1]):
        if a != axis:
            goes_on &= (ranked[1:, a] == ranked[:-1, a]).all(axis=1)
    begin = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    end = np.append(begin[1:], len(ranked)) - 1
    made = ranked[begin]
    made[:, axis, 1] = ranked[end, axis, 1]
    return made


def _clear(mask: np.ndarray, boxes: np.ndarray) -> None:
    """Set the positions in `boxes` to False, through the corners of each and running sums."""
    if not len(boxes):
        return
    corners = np.zeros(tuple(n + 1 for n in mask.shape), np.int32)
    for choice in np.ndindex(*(2,) * mask.ndim):
        place = tuple(boxes[:, axis, side] for axis, side in enumerate(choice))
        np.add.at(corners, place, 1 - 2 * (sum(choice) % 2))
    for axis in range(mask.ndim):
        np.cumsum(corners, axis=axis, out=corners)
    mask &= corners[tuple(slice(n) for n in mask.shape)] == 0
