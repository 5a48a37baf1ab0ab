"""Points to lattice sites, on the host."""

from __future__ import annotations

import numpy as np

from ..backend.host import parallel, scratch
from ..errors import CoordinateRangeError
from .index import LIMIT
from .sorting import Columns, group

CHUNK = 1 << 15  # points whose temporaries stay in cache
FLOAT32_CELLS = 2.0**22  # beyond it a float32 quotient resolves less than a quarter of a voxel


def quantise(
    xyz: np.ndarray, wide: bool, origin: np.ndarray, size: np.ndarray, limits: np.ndarray | None
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """floor((p - origin) / size) of (N, 3) points: three int32 columns of the valid ones, and (N,) valid.

    valid is None when all are: finite, and within `limits` (lower x, y, z, upper x, y, z; half-open).
    wide: in float64, else float32. CoordinateRangeError past 2**30 voxels (2**22 in float32).
    """
    kind = np.float64 if wide else np.float32
    if not wide:
        with np.errstate(over="ignore", under="ignore"):
            narrow = size.astype(np.float32)
        if not (narrow > 0).all() or not np.isfinite(narrow).all():
            raise CoordinateRangeError(
                f"voxels of {size.tolist()} are no float32 numbers: pass NumPy points (float64)"
            )
    cells, low, high = _cells(xyz, kind, origin, size)
    valid = None
    if limits is not None or not np.isfinite([low, high]).all():
        valid = np.isfinite(xyz).all(axis=1)
        if limits is not None:
            with np.errstate(invalid="ignore"):
                valid &= ((xyz >= limits[:3].astype(kind)) & (xyz < limits[3:].astype(kind))).all(axis=1)
        cells, low, high = _cells(xyz[valid], kind, origin, size)
    far = max(-low, high)
    if not wide and far > FLOAT32_CELLS:
        raise CoordinateRangeError(
            f"float32 points reach {far:.3g} voxels from the origin, past 2**22 where float32 misplaces "
            "them: pass NumPy points (float64), or a nearer origin="
        )
    if max(-np.floor(low), high) >= LIMIT:  # -2**30 + 0.5 lies in site -2**30, which is none
        raise CoordinateRangeError(
            f"points reach {far:.3g} voxels from the origin, at most 2**30: larger voxels or another origin"
        )
    return list(cells), valid


def _cells(
    xyz: np.ndarray, kind: type, origin: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """(3, N) int32 floors of the quotients, the lowest and the highest quotient (NaN if there is one)."""
    n = len(xyz)
    cells = scratch((3, n), np.int32)
    chunks = -(-n // CHUNK)
    reach = np.zeros((chunks, 3, 2))

    def work(i: int) -> None:
        rows = slice(i * CHUNK, min((i + 1) * CHUNK, n))
        # A value that does not fit is found by `reach`, whatever its cast gives.
        with np.errstate(invalid="ignore", over="ignore"):
            for axis in range(3):
                quotient: np.ndarray = xyz[rows, axis].astype(kind)
                if origin[axis]:
                    quotient -= kind(origin[axis])
                quotient /= kind(size[axis])
                # NaN and infinity pass through minimum and maximum.
                reach[i, axis] = quotient.min(), quotient.max()
                cells[axis, rows] = np.floor(quotient, out=quotient)

    parallel(work, chunks)
    return cells, float(reach[..., 0].min(initial=0)), float(reach[..., 1].max(initial=0))


def merge(columns: Columns, max_sites: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct sites (u, 4), the site of each position (n,) int32, and the positions of each (u,) int64.

    With `max_sites` only the sites that are met first stay; positions of the others get -1.
    """
    sites, numbers, first, counts = group(columns)
    if max_sites is None or len(sites) <= max_sites:
        return sites, numbers, counts
    kept = np.sort(np.argsort(first, kind="stable")[:max_sites])
    renumber = np.full(len(sites), -1, np.int32)
    renumber[kept] = np.arange(max_sites, dtype=np.int32)
    return sites[kept], renumber[numbers], counts[kept]


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
