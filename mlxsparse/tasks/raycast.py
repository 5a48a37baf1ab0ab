"""Where rays from one point meet simple shapes. NumPy, float64; no state and no scene in here.

origin: (3,). directions: (M, 3), unit length, so every t is a distance. Results are inf where a ray misses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def ray_ground(origin: np.ndarray, directions: np.ndarray,
               height: Callable[[np.ndarray, np.ndarray], np.ndarray], low: float, high: float,
               max_range: float) -> np.ndarray:
    """Distances (M,) to the surface z = height(x, y), which lies between `low` and `high`, below the origin.

    The stretch of a ray between the two heights is searched for its first crossing in 16 steps, then halved;
    features narrower than a step may be missed where a ray grazes the ground.
    """
    t = np.full(len(directions), np.inf)
    down = np.flatnonzero(directions[:, 2] < -1e-9)
    d = directions[down]
    start = np.minimum((high - origin[2]) / d[:, 2], max_range)
    stop = np.minimum((low - origin[2]) / d[:, 2], max_range)

    def above(distance: np.ndarray) -> np.ndarray:
        point = origin + distance[:, None] * d
        return point[:, 2] - height(point[:, 0], point[:, 1])

    steps = 16
    near, far = start, np.full(len(d), np.inf)
    for i in range(1, steps + 1):
        here = start + (stop - start) * (i / steps)
        searching = np.isinf(far)
        crossed = searching & (above(here) <= 0)
        far = np.where(crossed, here, far)
        near = np.where(searching & ~crossed, here, near)
    hit = np.isfinite(far)
    far = np.where(hit, far, near)
    for _ in range(12):
        middle = (near + far) / 2
        under = above(middle) <= 0
        near, far = np.where(under, near, middle), np.where(under, middle, far)
    t[down] = np.where(hit, far, np.inf)
    return t


def ray_boxes(origin: np.ndarray, directions: np.ndarray, centers: np.ndarray, half_sizes: np.ndarray,
              yaws: np.ndarray) -> np.ndarray:
    """Distances (M, B) to boxes turned by `yaws` (B,) radians about z; centers and half_sizes (B, 3)."""
    cos, sin = np.cos(yaws), np.sin(yaws)

    def to_local(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return cos * x + sin * y, cos * y - sin * x, z

    offset = origin - centers
    o = to_local(offset[:, 0], offset[:, 1], offset[:, 2])
    d = to_local(*(directions[:, axis, None] for axis in range(3)))
    near, far = -np.inf, np.inf
    for axis in range(3):
        with np.errstate(divide="ignore"):
            inverse = 1 / np.where(d[axis] == 0, 1e-300, d[axis])
        a, b = (-half_sizes[:, axis] - o[axis]) * inverse, (half_sizes[:, axis] - o[axis]) * inverse
        near, far = np.maximum(near, np.minimum(a, b)), np.minimum(far, np.maximum(a, b))
    return np.where((near <= far) & (near > 0), near, np.inf)


def ray_cylinders(origin: np.ndarray, directions: np.ndarray, centers: np.ndarray, radii: np.ndarray,
                  bottoms: np.ndarray, tops: np.ndarray) -> np.ndarray:
    """Distances (M, B) to the mantles of upright cylinders; centers (B, 2), radii, bottoms, tops (B,)."""
    o = origin[:2] - centers
    d = directions[:, None, :2]
    a = np.maximum((d * d).sum(-1), 1e-12)
    b = (o * d).sum(-1)
    root = b * b - a * ((o * o).sum(-1) - radii**2)
    t = (-b - np.sqrt(np.maximum(root, 0))) / a
    z = origin[2] + t * directions[:, 2, None]
    return np.where((root >= 0) & (t > 0) & (z >= bottoms) & (z <= tops), t, np.inf)


def ray_spheres(origin: np.ndarray, directions: np.ndarray, centers: np.ndarray,
                radii: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances (M, B) where rays enter and leave ellipsoids; centers (B, 3), radii (B, 3) along x, y, z."""
    o = (origin - centers) / radii
    d = directions[:, None, :] / radii
    a = (d * d).sum(-1)
    b = (o * d).sum(-1)
    root = b * b - a * ((o * o).sum(-1) - 1)
    width = np.sqrt(np.maximum(root, 0))
    near, far = (-b - width) / a, (-b + width) / a
    hit = (root >= 0) & (near > 0)
    return np.where(hit, near, np.inf), np.where(hit, far, np.inf)
