"""A spinning LiDAR in a world of simple shapes: what each ray meets first, its label and its reflectance.

Worlds are built elsewhere; nothing here knows what a street is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..backend.host import silent
from .raycast import ray_boxes, ray_cylinders, ray_ground, ray_spheres

Surface = Callable[[Any, Any], Any]  # values at (x, y), arrays or floats
Cast = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass
class Shape:
    """Some primitives of one kind that share a label.

    cast: (origin, directions (M, 3)) -> distances (M, B) where rays enter and leave; solid bodies give the
    entry twice. center (x, y) and radius: a circle that holds all of it, seen from above.
    free_path: mean distance that a ray gets into the body, metres; 0 for a solid.
    """

    cast: Cast
    center: np.ndarray
    radius: float
    label: int
    reflectance: float
    free_path: float = 0.0


@dataclass
class World:
    """A ground surface z = height(x, y) between two heights, its label and reflectance, and shapes on it.

    slope: rise along x and y by which the world as a whole is tilted, verticals staying vertical.
    """

    height: Surface
    low: float
    high: float
    ground_label: int
    ground_reflectance: Surface
    shapes: list[Shape] = field(default_factory=list)
    slope: tuple[float, float] = (0.0, 0.0)

    def boxes(self, centers: list, sizes: list, yaw: float, label: int, reflectance: float) -> None:
        """Add boxes: centers (x, y, z), full sizes (length, width, height), one yaw (radians) for all."""
        c, half = np.array(centers, float), np.array(sizes, float) / 2
        yaws = np.full(len(c), yaw)
        self._add(lambda o, d: (ray_boxes(o, d, c, half, yaws),) * 2, c, np.hypot(half[:, 0], half[:, 1]),
                  label, reflectance)

    def cylinders(self, centers: list, radii: list, bottoms: list, tops: list, label: int,
                  reflectance: float) -> None:
        """Add upright cylinders: centers (x, y), radii, and the heights of both ends."""
        c, r, z0, z1 = (np.array(v, float) for v in (centers, radii, bottoms, tops))
        self._add(lambda o, d: (ray_cylinders(o, d, c, r, z0, z1),) * 2, c, r, label, reflectance)

    def ellipsoids(self, centers: list, radii: list, label: int, reflectance: float,
                   free_path: float = 0.0) -> None:
        """Add ellipsoids: centers (x, y, z), radii along x, y, z; rays pass into them where free_path > 0."""
        c, r = np.array(centers, float), np.array(radii, float)
        self._add(lambda o, d: ray_spheres(o, d, c, r), c, r[:, :2].max(axis=1), label, reflectance,
                  free_path)

    def _add(self, cast: Cast, centers: np.ndarray, radii: np.ndarray, label: int, reflectance: float,
             free_path: float = 0.0) -> None:
        middle = centers[:, :2].mean(axis=0)
        radius = float((np.linalg.norm(centers[:, :2] - middle, axis=1) + radii).max())
        self.shapes.append(Shape(cast, middle, radius, label, reflectance, free_path))


def spinning_lidar(chance: np.random.Generator, rings: int, columns: int,
                   elevations: tuple[float, float] = (14.0, -24.0)) -> np.ndarray:
    """Unit directions (rings, columns, 3): rings evenly between two elevations in degrees, columns evenly
    around, each turned by up to 0.3 of a step so that scans do not share one grid."""
    up = np.radians(np.linspace(*elevations, rings))[:, None]
    around = (np.arange(columns) + 0.3 * chance.random(columns))[None] * (2 * np.pi / columns)
    axes = np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)
    return np.stack(np.broadcast_arrays(*axes), axis=-1)


def scan(world: World, origin: np.ndarray, directions: np.ndarray, max_range: float,
         chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distance, label and reflectance, each (rings, columns); a ray that meets nothing has distance inf.

    directions: of `spinning_lidar`. chance: draws how deep rays get into see-through shapes.
    """
    rings, columns, _ = directions.shape
    # A straight ray in the tilted world is one in the level world, of the same length parameter.
    with silent():
        directions = directions - directions[..., :2] @ np.array(world.slope)[:, None] * (0.0, 0.0, 1.0)
    rays = directions.reshape(-1, 3)
    distance = ray_ground(origin, rays, world.height, world.low, world.high, max_range)
    distance = distance.reshape(rings, columns)
    label = np.full((rings, columns), world.ground_label)
    reach = np.where(np.isfinite(distance), distance, 0.0)[..., None]
    foot = origin + reach * directions
    reflectance = world.ground_reflectance(foot[..., 0], foot[..., 1])
    for shape in world.shapes:
        seen = columns_towards(shape, origin, columns)
        entry, leave = shape.cast(origin, directions[:, seen].reshape(-1, 3))
        if shape.free_path:
            depth = entry + chance.exponential(shape.free_path, entry.shape)
            entry = np.where(depth < leave, depth, np.inf)
        t = entry.min(axis=1).reshape(rings, -1)
        nearer = t < distance[:, seen]
        distance[:, seen] = np.where(nearer, t, distance[:, seen])
        label[:, seen] = np.where(nearer, shape.label, label[:, seen])
        reflectance[:, seen] = np.where(nearer, shape.reflectance, reflectance[:, seen])
    distance[distance > max_range] = np.inf
    return distance, label, reflectance


def columns_towards(shape: Shape, origin: np.ndarray, columns: int) -> np.ndarray:
    """The columns whose rays can meet the shape's circle: most shapes are narrow, most rays miss them."""
    away = shape.center - origin[:2]
    far = np.hypot(*away)
    if far <= shape.radius:
        return np.arange(columns)
    width, middle = np.arcsin(shape.radius / far), np.arctan2(away[1], away[0])
    step = 2 * np.pi / columns
    # One column more on each side: rays are turned by a part of a step.
    first, last = int(np.floor((middle - width) / step)) - 1, int(np.ceil((middle + width) / step)) + 1
    return np.arange(first, min(last + 1, first + columns)) % columns
