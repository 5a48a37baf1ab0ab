"""Points to lattice sites, on the host."""

from __future__ import annotations

import numpy as np

from ..backend.host import parallel
from ..errors import CoordinateRangeError
from .index import LIMIT
from .sorting import Columns, group

FLOAT32_CELLS = 2.0**22  # beyond it a float32 quotient resolves less than a quarter of a voxel


def quantise(
    xyz: np.ndarray, wide: bool, origin: np.ndarray, size: np.ndarray, limits: np.ndarray | None
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """floor((p - origin) / size) of (N, 3) points: three int64 columns of the valid ones, and (N,) valid.

    valid is None when all are: finite, and within `limits` (lower x, y, z, upper x, y, z; half-open).
    wide: in float64, else float32. CoordinateRangeError past 2**30 voxels (2**22 in float32).
    """
    kind = np.float64 if wide else np.float32
    quotients: list[np.ndarray] = [np.empty(0)] * 3
    reach = [0.0] * 3

    def divide(axis: int) -> None:
        quotient = xyz[:, axis].astype(kind)
        if origin[axis]:
            quotient -= kind(origin[axis])
        quotient /= kind(size[axis])
        quotients[axis] = quotient
        # NaN and infinity pass through minimum and maximum.
        reach[axis] = max(abs(float(quotient.min())), abs(float(quotient.max()))) if len(quotient) else 0.0

    parallel(divide, 3, small=len(xyz) < 50_000)
    valid = None
    if limits is not None or not np.isfinite(sum(reach)):
        valid = np.isfinite(xyz).all(axis=1)
        if limits is not None:
            with np.errstate(invalid="ignore"):
                valid &= ((xyz >= limits[:3].astype(kind)) & (xyz < limits[3:].astype(kind))).all(axis=1)
        quotients = [quotient[valid] for quotient in quotients]
        reach = [float(np.abs(quotient).max()) if len(quotient) else 0.0 for quotient in quotients]
    far = max(reach)
    if not wide and far > FLOAT32_CELLS:
        raise CoordinateRangeError(
            f"float32 points reach {far:.3g} voxels from the origin, past 2**22 where float32 misplaces "
            "them: pass NumPy points (float64), or a nearer origin="
        )
    if far >= LIMIT:
        raise CoordinateRangeError(
            f"points reach {far:.3g} voxels from the origin, at most 2**30: pass origin="
        )
    cells: list[np.ndarray] = [np.empty(0)] * 3

    def floor(axis: int) -> None:
        cells[axis] = np.floor(quotients[axis], out=quotients[axis]).astype(np.int64)

    parallel(floor, 3, small=len(xyz) < 50_000)
    return cells, valid


def merge(columns: Columns, max_sites: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Distinct sites (u, 4), the site of each position (n,) int32, and the order that groups positions.

    With `max_sites` only the sites that are met first stay; positions of the others get -1.
    """
    n = len(columns[0])
    groups = group(columns)
    sites, numbers = groups.sites, groups.numbers(n)
    if max_sites is not None and len(sites) > max_sites:
        # Positions of a site keep their order, so its first one is at its start.
        first = groups.starts if groups.order is None else groups.order[groups.starts]
        kept = np.sort(np.argsort(first, kind="stable")[:max_sites])
        renumber = np.full(len(sites), -1, np.int32)
        renumber[kept] = np.arange(max_sites, dtype=np.int32)
        return sites[kept], renumber[numbers], groups.order
    return sites, numbers, groups.order


def place_in_group(numbers: np.ndarray, num_groups: int) -> np.ndarray:
    """How many earlier positions have the same number: (n,) int64."""
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers[numbers >= 0], minlength=num_groups)
    starts = np.cumsum(counts) - counts + np.count_nonzero(numbers < 0)
    place = np.empty(len(numbers), np.int64)
    # Position -1, "no group", sorts before all and so counts from 0.
    starts = np.append(starts, 0)
    place[order] = np.arange(len(numbers)) - starts[numbers[order]]
    return place
