"""Morton and Hilbert order, one site at a time, by recursion over octants."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# The Hilbert curve of a cube visits its octants (high half of x, y, z) in this order. In each it is the
# curve of the smaller cube, turned: axis a of the octant is that curve's axis axes[a], reversed if flips[a].
Axes = tuple[int, ...]
OCTANTS: tuple[tuple[Axes, Axes, Axes], ...] = (
    ((0, 0, 0), (1, 2, 0), (0, 0, 0)),
    ((0, 0, 1), (1, 0, 2), (0, 0, 0)),
    ((0, 1, 1), (0, 1, 2), (0, 0, 0)),
    ((0, 1, 0), (2, 1, 0), (1, 0, 1)),
    ((1, 1, 0), (2, 1, 0), (0, 0, 0)),
    ((1, 1, 1), (0, 1, 2), (0, 0, 0)),
    ((1, 0, 1), (1, 0, 2), (1, 1, 0)),
    ((1, 0, 0), (1, 2, 0), (1, 0, 1)),
)


def morton_index(cell: tuple[int, ...], levels: int) -> int:
    """Place of a cell of [0, 2**levels)**3: the bits of x, y and z in turn, x highest."""
    place = 0
    for level in reversed(range(levels)):
        for c in cell:
            place = place * 2 + (c >> level & 1)
    return place


def hilbert_index(cell: tuple[int, ...], levels: int) -> int:
    """Place of a cell of [0, 2**levels)**3 on the Hilbert curve."""
    if levels == 0:
        return 0
    half = 1 << (levels - 1)
    octant = tuple(int(c >= half) for c in cell)
    number = [entry[0] for entry in OCTANTS].index(octant)
    _, axes, flips = OCTANTS[number]
    inner = [0, 0, 0]
    for axis in range(3):
        local = cell[axis] % half
        inner[axes[axis]] = half - 1 - local if flips[axis] else local
    return number * half**3 + hilbert_index(tuple(inner), levels - 1)


def curve_rows(coords: Array, order: str, depth: int | None = None) -> list[int]:
    """Rows batch by batch along a curve over [-2**30, 2**30), or over [0, 2**depth) on each axis."""
    bias, levels = (2**30, 31) if depth is None else (0, depth)

    def place(row: int) -> Any:
        batch, *xyz = np.asarray(coords)[row].tolist()
        if order == "lexicographic":
            return batch, xyz
        if order.endswith("-trans"):
            xyz[0], xyz[1] = xyz[1], xyz[0]
        cell = tuple(c + bias for c in xyz)
        return batch, (hilbert_index if order.startswith("hilbert") else morton_index)(cell, levels)

    return sorted(range(len(coords)), key=place)
