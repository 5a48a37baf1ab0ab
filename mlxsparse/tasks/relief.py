"""How a point lies to the lowest points around it, seen from above: what tells ground from the rest.

A convolution sees voxels; these columns carry what is finer than a voxel (centimetres above the surface)
and what is wider than its reach (metres above the street).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Cells, in voxels, of the height above the lowest point, and of the distance from the plane of low points.
LOW_CELLS = (1, 2, 4, 8, 16, 32)
PLANE_CELLS = (0.75, 1.5, 3)
NEAR_CELLS = 4096  # sums over cells are taken from a corner at most this far off


def relief(points: np.ndarray, voxel_size: float) -> np.ndarray:
    """(N, len(LOW_CELLS) + len(PLANE_CELLS)) float64, in the points' unit; z is up. NaN rows give zeros.

    For each of LOW_CELLS the height above the lowest point in 3 x 3 square cells around the point's; for each
    of PLANE_CELLS the signed vertical distance from the plane that best fits the lowest points of those.
    """
    result = np.zeros((len(points), len(LOW_CELLS) + len(PLANE_CELLS)))
    finite = np.isfinite(points).all(axis=1)
    if not finite.any():
        return result
    xyz = points[finite] - points[finite].min(axis=0)
    columns = [xyz[:, 2] - _lowest(xyz, size * voxel_size) for size in LOW_CELLS]
    columns += [_above_plane(xyz, size * voxel_size) for size in PLANE_CELLS]
    result[finite] = np.stack(columns, axis=1)
    return result


class _Cells:
    """Square cells of the points (n, 3) seen from above: which are there, and the nine around each."""

    def __init__(self, xyz: np.ndarray, size: float):
        cell = np.floor(xyz[:, :2] / size).astype(np.int64) + 1
        width = int(cell[:, 1].max()) + 2
        self.keys, self.of_point = np.unique(cell[:, 0] * width + cell[:, 1], return_inverse=True)
        shifts = [dx * width + dy for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
        self.around = np.stack([self._find(self.keys + shift) for shift in shifts])

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Rows of the keys; one past the last where a cell is not there."""
        at = np.searchsorted(self.keys, keys).clip(0, len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, len(self.keys))

    def nine(self, values: np.ndarray, absent: float) -> np.ndarray:
        """(9, cells, ...): `values` (cells, ...) of each cell and its eight neighbours."""
        return np.concatenate([values, np.full((1, *values.shape[1:]), absent)])[self.around]


def _lowest(xyz: np.ndarray, size: float) -> np.ndarray:
    cells = _Cells(xyz, size)
    low = np.full(len(cells.keys), np.inf)
    np.minimum.at(low, cells.of_point, xyz[:, 2])
    return np.asarray(cells.nine(low, np.inf).min(axis=0)[cells.of_point])


def _above_plane(xyz: np.ndarray, size: float) -> np.ndarray:
    cells = _Cells(xyz, size)
    order = np.lexsort((xyz[:, 2], cells.of_point))
    first = np.r_[True, np.diff(cells.of_point[order]) != 0]
    low = xyz[order[first]]  # the lowest point of each cell, in the order of the cells
    # Seen from a corner near by: squares of large coordinates would leave no digits to the variances.
    corner = np.floor(low / (NEAR_CELLS * size)) * (NEAR_CELLS * size)
    m = np.zeros((len(low), 9))
    for near, there in zip(cells.nine(low, 0.0), cells.around < len(low)):
        x, y, z = (near - corner).T
        moments = np.stack([np.ones_like(x), x, y, z, x * x, x * y, y * y, x * z, y * z], axis=1)
        m += np.where(there[:, None], moments, 0.0)
    m = m / m[:, :1]
    mean_x, mean_y, mean_z = m[:, 1], m[:, 2], m[:, 3]
    # A ridge keeps the plane level where the points do not span one.
    ridge = 0.01 * size * size
    xx, xy, yy = m[:, 4] - mean_x**2 + ridge, m[:, 5] - mean_x * mean_y, m[:, 6] - mean_y**2 + ridge
    xz, yz = m[:, 7] - mean_x * mean_z, m[:, 8] - mean_y * mean_z
    scale = xx * yy - xy * xy
    along_x, along_y = (xz * yy - yz * xy) / scale, (yz * xx - xz * xy) / scale
    of = cells.of_point
    x, y, z = (xyz - corner[of]).T
    height = mean_z[of] + along_x[of] * (x - mean_x[of]) + along_y[of] * (y - mean_y[of])
    return np.asarray(z - height)


def scales_of(columns: Sequence[np.ndarray]) -> list[float]:
    """For each relief column of training clouds, its median size, by which `squashed` divides."""
    sizes = np.median(np.abs(np.concatenate(columns)), axis=0)
    return [float(size) if size > 0 else 1.0 for size in sizes]


def squashed(columns: np.ndarray, scales: Sequence[float]) -> np.ndarray:
    """asinh(v / scale) as float32: linear for small values, logarithmic for large ones."""
    return (np.arcsinh(columns / np.asarray(scales)) / 2).astype(np.float32)
