"""A point cloud as an image: perspective, nearest point in front, edges darkened by depth. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

BACKGROUND = (0.055, 0.065, 0.09)


@dataclass
class Camera:
    """Looks at `target` from `distance` away, `azimuth` and `elevation` in degrees; z is up.

    width, height: pixels. view: vertical opening angle in degrees. point: diameter of a point in the units of
    the cloud; it spans at least two pixels.
    """

    target: tuple[float, float, float]
    distance: float
    azimuth: float = 225.0
    elevation: float = 35.0
    width: int = 900
    height: int = 700
    view: float = 40.0
    point: float = 0.1


def render(points: np.ndarray, colours: np.ndarray, camera: Camera) -> np.ndarray:
    """(height, width, 3) float RGB in [0, 1] of points (N, 3) with colours (N, 3) in [0, 1].

    Points that are not finite, behind the camera or outside the picture are not drawn.
    """
    u, v, depth, pixels = _project(points, camera)
    near = np.isfinite(depth) & (depth > 0.05 * camera.distance)
    u, v, depth, shade = u[near], v[near], depth[near], colours[near]
    size = np.clip(camera.point * pixels / depth, 2, 12)
    image = np.empty((camera.height, camera.width, 3))
    image[:] = BACKGROUND
    distance = np.full((camera.height, camera.width), np.inf)
    order = np.argsort(-depth, kind="stable")  # far to near: what is written last is in front
    rows, targets = [], []
    reach = int(np.ceil(size.max() / 2)) if len(size) else 0
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            inside = order[(dx * dx + dy * dy) <= (size[order] / 2) ** 2]
            x, y = np.floor(u[inside]).astype(int) + dx, np.floor(v[inside]).astype(int) + dy
            seen = (x >= 0) & (x < camera.width) & (y >= 0) & (y < camera.height)
            rows.append(inside[seen])
            targets.append((y * camera.width + x)[seen])
    if rows:
        row, target = np.concatenate(rows), np.concatenate(targets)
        last = np.argsort(-depth[row], kind="stable")
        row, target = row[last], target[last]
        # Repeated targets: NumPy keeps the last value, which is the nearest point's.
        image.reshape(-1, 3)[target] = shade[row]
        distance.reshape(-1)[target] = depth[row]
    return np.asarray(image * _edges(distance)[..., None])


def along(points: np.ndarray, camera: Camera) -> Camera:
    """The camera with its azimuth counted from the direction in which the points (N, 3) spread most."""
    flat = points[np.isfinite(points).all(axis=1), :2]
    if len(flat) < 2:
        return camera
    x, y = np.linalg.eigh(np.cov(flat.T))[1][:, 1]
    return replace(camera, azimuth=camera.azimuth + float(np.degrees(np.arctan2(y, x))))


def _project(points: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Pixel columns, rows, depths, and pixels per unit at depth 1."""
    turn, tilt = np.radians(camera.azimuth), np.radians(camera.elevation)
    back = np.array([np.cos(tilt) * np.cos(turn), np.cos(tilt) * np.sin(turn), np.sin(tilt)])
    right = np.array([-np.sin(turn), np.cos(turn), 0.0])
    up = np.cross(back, right)
    offset = points - (np.asarray(camera.target) + camera.distance * back)
    pixels = camera.height / 2 / np.tan(np.radians(camera.view) / 2)
    # Points without a position; and the flags that Apple's BLAS leaves set (backend/host.py, silent).
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        depth = -offset @ back
        u = camera.width / 2 + pixels * (offset @ right) / depth
        v = camera.height / 2 - pixels * (offset @ up) / depth
        inside = (np.abs(u) < 1e6) & (np.abs(v) < 1e6)
    return u, v, np.where(inside, depth, np.nan), float(pixels)


def _edges(distance: np.ndarray) -> np.ndarray:
    """Brightness of each pixel, less where a neighbour is much nearer ("eye-dome lighting")."""
    empty = np.isinf(distance)
    depth = np.log2(np.where(empty, 1.0, distance))
    dark = np.zeros_like(depth)
    for step in (1, 2, 4):
        for dy, dx in ((0, step), (0, -step), (step, 0), (-step, 0)):
            there = np.roll(depth, (dy, dx), (0, 1))
            missing = np.roll(empty, (dy, dx), (0, 1))
            dark += np.where(missing, 0, np.clip(depth - there, 0, 0.15)) / step
    return np.where(empty, 1.0, np.exp(-3.5 * dark))
