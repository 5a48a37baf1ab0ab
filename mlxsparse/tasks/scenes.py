"""Labelled scenes, made by casting the rays of a spinning LiDAR into simple shapes.

    scene = street_scene(seed=3)    # or indoor_scene
    scene.points, scene.intensity, scene.labels

What matters for segmentation is there: rings, occlusion, density that falls with distance, see-through
vegetation, noise, lost returns, and classes that share their shapes. The scenes are no substitute for a
survey; they need no download.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from ..backend.host import silent
from ..errors import ShapeError
from ..io.cloud import PointCloud
from ..io.las import write_las
from .indoor import CLASSES as INDOOR_CLASSES
from .indoor import rooms
from .lidar import World, scan, spinning_lidar
from .street import CLASSES as STREET_CLASSES
from .street import LANE, street

__all__ = [
    "INDOOR_CLASSES",
    "STREET_CLASSES",
    "Scene",
    "cloud_of",
    "indoor_scene",
    "street_scene",
    "write_scene",
]


@dataclass
class Scene:
    """points float32 (N, 3), metres in steps of a millimetre, z up, the sensor above the origin; intensity
    float32 (N,) in [0, 1]; labels int32 (N,), indices into class_names."""

    points: np.ndarray
    intensity: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.points)


def street_scene(
    seed: int,
    *,
    rings: int = 64,
    columns: int = 1024,
    max_range: float = 60.0,
    range_noise: float = 0.02,
    dropout: float = 0.04,
) -> Scene:
    """One scan of a random street from a car, 45 to 60 thousand points; same arguments, same scene.

    rings, columns: rays in elevation (-24 to +14 degrees) and azimuth. max_range: metres.
    range_noise: standard deviation along the ray, metres. dropout: share of returns lost at short range, with
    more lost far away and on dark surfaces; 0 loses none.
    Raises ShapeError for sizes below 1 or a share outside [0, 1].
    """
    _check(rings, columns, max_range, range_noise, dropout)
    chance = np.random.default_rng([seed, 0])
    world = street(chance)
    sensor = np.array([0.0, -LANE, chance.uniform(1.7, 2.1)])
    directions = spinning_lidar(chance, rings, columns, (14.0, -24.0))
    return _scanned(world, chance, sensor, directions, STREET_CLASSES, max_range, range_noise, dropout)


def indoor_scene(
    seed: int,
    *,
    rings: int = 64,
    columns: int = 1024,
    max_range: float = 25.0,
    range_noise: float = 0.008,
    dropout: float = 0.03,
) -> Scene:
    """One scan of furnished rooms from a tripod, about 60 thousand points; rays go from -55 to +18 degrees.

    Arguments and errors as those of `street_scene`.
    """
    _check(rings, columns, max_range, range_noise, dropout)
    chance = np.random.default_rng([seed, 1])
    world = rooms(chance)
    sensor = np.array([0.0, 0.0, chance.uniform(1.4, 1.9)])
    directions = spinning_lidar(chance, rings, columns, (18.0, -55.0))
    return _scanned(world, chance, sensor, directions, INDOOR_CLASSES, max_range, range_noise, dropout)


def _check(rings: int, columns: int, max_range: float, range_noise: float, dropout: float) -> None:
    if rings < 1 or columns < 1 or max_range <= 0 or range_noise < 0 or not 0 <= dropout <= 1:
        raise ShapeError(
            f"rings={rings}, columns={columns}, max_range={max_range}, "
            f"range_noise={range_noise}, dropout={dropout}: at least one ring and column, a "
            "positive range and a share of lost returns in [0, 1] are needed"
        )


def _scanned(
    world: World,
    chance: np.random.Generator,
    sensor: np.ndarray,
    directions: np.ndarray,
    names: tuple[str, ...],
    max_range: float,
    range_noise: float,
    dropout: float,
) -> Scene:
    """Scan from `sensor`, (x, y) and the height above the ground there; the scene's origin is below it."""
    foot = world.height(sensor[0], sensor[1])
    origin = sensor + (0, 0, foot)
    distance, label, reflectance = scan(world, origin, directions, max_range, chance)

    lost = dropout + 0.25 * (distance / max_range) ** 2 + 0.1 * (0.5 - reflectance).clip(0)
    kept = np.isfinite(distance) & (chance.random(distance.shape) >= (lost if dropout else 0))
    distance = distance[kept] + chance.normal(0, range_noise, np.count_nonzero(kept))
    points = distance[:, None] * directions[kept] + (0, 0, sensor[2])
    intensity = reflectance[kept] * np.exp(-distance / 80) + chance.normal(0, 0.02, len(distance))
    # The world runs every way: turn the scene about the sensor, which stands over the origin.
    turn = chance.uniform(0, 2 * np.pi)
    cos, sin = np.cos(turn), np.sin(turn)
    with silent():
        points[:, :2] = points[:, :2] @ np.array([[cos, sin], [-sin, cos]])
    # Steps hide the last bits, in which the sine of one machine may differ from another's.
    points, intensity = np.round(points, 3), np.round(intensity.clip(0, 1), 4)
    return Scene(points.astype(np.float32), intensity.astype(np.float32), label[kept].astype(np.int32), names)


def cloud_of(scene: Scene) -> PointCloud:
    """The scene as a cloud with the fields intensity, scaled to 0..65535, and classification, which holds the
    label itself (an index into class_names, not an ASPRS class)."""
    fields: dict[str, np.ndarray] = {
        "intensity": np.round(scene.intensity * 65535).astype(np.uint16),
        "classification": scene.labels.astype(np.uint8),
    }
    # The numbers that a LAS file of millimetre steps gives back.
    return PointCloud(np.round(scene.points.astype(np.float64) * 1000) * 0.001, fields)


def write_scene(scene: Scene, path: str | os.PathLike[str]) -> None:
    """Write a scene as LAS (LAZ if `path` ends in .laz) in millimetre steps with the fields of `cloud_of`."""
    once = np.ones(len(scene), np.uint8)
    fields = {**cloud_of(scene).fields, "return_number": once, "number_of_returns": once}
    write_las(path, scene.points, fields, scale=0.001, offset=(0.0, 0.0, 0.0))
