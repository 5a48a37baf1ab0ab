"""Labelled street scenes, made by casting the rays of a spinning LiDAR into simple shapes.

    scene = street_scene(seed=3)
    scene.points, scene.intensity, scene.labels

What matters for segmentation is there: rings, occlusion, density that falls with distance, see-through
vegetation, noise, lost returns. The scenes are no substitute for a survey; they need no download.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..io.las import write_las
from .lidar import World, scan, spinning_lidar

STREET_CLASSES = ("ground", "building", "vegetation", "vehicle", "pole", "person")
GROUND, BUILDING, VEGETATION, VEHICLE, POLE, PERSON = range(len(STREET_CLASSES))

_ROAD = 4.6  # half the width of the road, metres
_KERB = 0.12
_SENSOR_HEIGHT = 1.9


@dataclass
class Scene:
    """points float32 (N, 3), metres, z up, the sensor above the origin; intensity float32 (N,) in [0, 1];
    labels int32 (N,), indices into class_names."""

    points: np.ndarray
    intensity: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.points)


def street_scene(seed: int, *, rings: int = 64, columns: int = 1024, max_range: float = 60.0,
                 range_noise: float = 0.02, dropout: float = 0.04) -> Scene:
    """One scan of a random street, 50 to 60 thousand points; the same arguments give the same scene.

    rings, columns: rays in elevation (-24 to +14 degrees) and azimuth. max_range: metres.
    range_noise: standard deviation along the ray, metres. dropout: share of returns lost at short range, with
    more lost far away and on dark surfaces; 0 loses none.
    Raises ShapeError for sizes below 1 or a share outside [0, 1].
    """
    if rings < 1 or columns < 1 or max_range <= 0 or range_noise < 0 or not 0 <= dropout <= 1:
        raise ShapeError(f"rings={rings}, columns={columns}, max_range={max_range}, "
                         f"range_noise={range_noise}, dropout={dropout}: at least one ring and column, a "
                         "positive range and a share of lost returns in [0, 1] are needed")
    chance = np.random.default_rng(seed)
    world = _street(chance)
    lane = -1.6
    origin = np.array([0.0, lane, world.height(0.0, lane) + _SENSOR_HEIGHT])
    directions = spinning_lidar(chance, rings, columns)
    distance, label, reflectance = scan(world, origin, directions, max_range, chance)

    lost = dropout + 0.25 * (distance / max_range) ** 2 + 0.1 * (0.5 - reflectance).clip(0)
    kept = np.isfinite(distance) & (chance.random(distance.shape) >= (lost if dropout else 0))
    distance = distance[kept] + chance.normal(0, range_noise, np.count_nonzero(kept))
    points = origin + distance[:, None] * directions[kept]
    intensity = reflectance[kept] * np.exp(-distance / 80) + chance.normal(0, 0.02, len(distance))
    # Streets run every way: turn the scene about the sensor, which stands over the origin.
    points -= (0, lane, 0)
    turn = chance.uniform(0, 2 * np.pi)
    cos, sin = np.cos(turn), np.sin(turn)
    points[:, :2] = points[:, :2] @ np.array([[cos, sin], [-sin, cos]])
    return Scene(points.astype(np.float32), intensity.clip(0, 1).astype(np.float32),
                 label[kept].astype(np.int32), STREET_CLASSES)


def write_scene(scene: Scene, path: str | os.PathLike[str]) -> None:
    """Write a scene as LAS (LAZ if `path` ends in .laz) in millimetre steps: intensity is scaled to 0..65535,
    classification holds the label itself (an index into class_names, not an ASPRS class)."""
    fields: dict[str, np.ndarray] = {"intensity": np.round(scene.intensity * 65535).astype(np.uint16),
                                     "classification": scene.labels.astype(np.uint8)}
    write_las(path, scene.points, fields, scale=0.001, offset=(0.0, 0.0, 0.0))


# --- the street -------------------------------------------------------------------------------------------


def _street(chance: np.random.Generator) -> World:
    """A street along x: road, kerbs, parked and moving cars, pavements, and rows of buildings."""
    world = _terrain(chance)
    for side in (-1, 1):
        front = _ROAD + chance.uniform(3.5, 6.5)  # where the buildings begin
        _buildings(world, chance, side, front)
        _kerbside(world, chance, side)
        _hedges(world, chance, side, front)
        _parked_cars(world, chance, side)
        _people(world, chance, side, front)
    for lane, way in ((-1.6, 0.0), (1.6, np.pi)):
        for x in (chance.uniform(-45, -9), chance.uniform(9, 45)):
            if chance.random() < 0.6:
                _car(world, chance, x, lane + chance.normal(0, 0.15), way + chance.normal(0, 0.02))
    return world


def _terrain(chance: np.random.Generator) -> World:
    """Gentle undulation, raised by a kerb beyond the road's edges."""
    heights = chance.uniform(0.03, 0.12, 3)
    waves = 2 * np.pi / chance.uniform(25, 60, (3, 2)) * chance.choice([-1, 1], (3, 2))
    phases = chance.uniform(0, 2 * np.pi, 3)

    def height(x: Any, y: Any) -> Any:
        rolling = sum(h * np.sin(w[0] * x + w[1] * y + p) for h, w, p in zip(heights, waves, phases))
        return rolling + _KERB * np.clip((np.abs(y) - _ROAD) / 0.05, 0, 1)

    def paving(x: Any, y: Any) -> Any:
        """Dark asphalt, a dashed white line in the middle, bright pavement."""
        line = (np.abs(y) < 0.1) & (np.floor(x / 3) % 2 == 0)
        return np.where(line, 0.85, np.where(np.abs(y) < _ROAD, 0.18, 0.4))

    return World(height, -heights.sum(), heights.sum() + _KERB, GROUND, paving)


def _buildings(world: World, chance: np.random.Generator, side: int, front: float) -> None:
    x = -65.0 + chance.uniform(0, 10)
    while x < 65:
        length, depth, tall = chance.uniform(8, 22), chance.uniform(7, 14), chance.uniform(4, 16)
        face = front + chance.uniform(0, 1.2)
        centers = [(x + length / 2, side * (face + depth / 2), tall / 2 - 0.5)]
        sizes = [(length, depth, tall + 1)]
        for _ in range(chance.integers(0, 5)):  # balconies, bays, porches
            wide = chance.uniform(1.5, 3)
            along, up = chance.uniform(wide, length - wide), chance.uniform(0.5, tall - 0.5)
            centers.append((x + along, side * face, up))
            sizes.append((wide, chance.uniform(0.6, 1.6), chance.uniform(0.3, 1.2)))
        world.boxes(centers, sizes, 0.0, BUILDING, chance.uniform(0.3, 0.7))
        x += length + (chance.uniform(2, 9) if chance.random() < 0.5 else 0)


def _kerbside(world: World, chance: np.random.Generator, side: int) -> None:
    """Trees, street lamps, signs and bollards in a row beside the kerb."""
    for x in np.arange(-50, 50, 4.5) + chance.uniform(-1, 1):
        y = side * (_ROAD + chance.uniform(0.6, 0.9))
        kind = chance.choice(["tree", "lamp", "sign", "bollard", ""], p=[0.33, 0.17, 0.15, 0.1, 0.25])
        if kind == "tree":
            _tree(world, chance, x, y)
        elif kind:
            _pole(world, chance, kind, x, y, side)


def _tree(world: World, chance: np.random.Generator, x: float, y: float) -> None:
    z = world.height(x, y)
    trunk, wide, tall = chance.uniform(1.8, 3), chance.uniform(1.1, 2.2), chance.uniform(1.2, 2.4)
    world.cylinders([(x, y)], [chance.uniform(0.1, 0.25)], [z - 0.2], [z + trunk + tall], VEGETATION, 0.3)
    centers, radii = [], []
    for _ in range(4):  # an uneven crown
        shift = chance.uniform(-0.45, 0.45, 3) * (wide, wide, tall)
        centers.append(np.array([x, y, z + trunk + tall]) + shift)
        radii.append(np.array([wide, wide, tall]) * chance.uniform(0.6, 0.95))
    world.ellipsoids(centers, radii, VEGETATION, chance.uniform(0.4, 0.6), free_path=chance.uniform(0.5, 1.4))


def _hedges(world: World, chance: np.random.Generator, side: int, front: float) -> None:
    for x in chance.uniform(-45, 45, chance.integers(2, 6)):
        count = int(chance.integers(3, 9))
        y = side * (front - chance.uniform(0.5, 0.8))
        along = x + 0.7 * np.arange(count)
        centers = [(a, y + chance.normal(0, 0.08), world.height(a, y) + 0.45) for a in along]
        radii = [chance.uniform(0.4, 0.65, 3) for _ in range(count)]
        world.ellipsoids(centers, radii, VEGETATION, chance.uniform(0.35, 0.55), free_path=0.12)


def _pole(world: World, chance: np.random.Generator, kind: str, x: float, y: float, side: int) -> None:
    z = world.height(x, y)
    tall = {"lamp": chance.uniform(5.5, 8), "sign": chance.uniform(2.2, 2.8), "bollard": 0.9}[kind]
    thick = {"lamp": 0.09, "sign": 0.04, "bollard": 0.08}[kind]
    world.cylinders([(x, y)], [thick], [z - 0.2], [z + tall], POLE, 0.5)
    if kind == "lamp":
        world.boxes([(x, y - side * 0.8, z + tall)], [(0.12, 1.7, 0.12)], 0.0, POLE, 0.5)
    elif kind == "sign":
        world.boxes([(x, y, z + tall - 0.3)], [(0.04, 0.6, 0.6)], chance.normal(0, 0.2), POLE, 0.95)


def _parked_cars(world: World, chance: np.random.Generator, side: int) -> None:
    for x in np.arange(-48, 48, 6.2):
        beside_the_sensor = side < 0 and abs(x) < 4  # would hide half of the scene
        if chance.random() < 0.5 and not beside_the_sensor:
            y = side * (_ROAD - 1.15 + chance.normal(0, 0.08))
            way = (0 if side < 0 else np.pi) + chance.normal(0, 0.03)
            _car(world, chance, x + chance.uniform(-0.5, 0.5), y, way)


def _car(world: World, chance: np.random.Generator, x: float, y: float, yaw: float) -> None:
    """Two boxes: the body, and a cabin set back on it (a van's cabin is long and tall)."""
    van = chance.random() < 0.2
    length, width, tall = chance.uniform(4, 4.9), chance.uniform(1.7, 1.95), chance.uniform(0.65, 0.8)
    cabin_length, cabin_tall = (0.82 * length, 1.1) if van else (0.52 * length, chance.uniform(0.5, 0.7))
    z = world.height(x, y) + 0.25
    back = -0.07 * length
    cabin = (x + back * np.cos(yaw), y + back * np.sin(yaw), z + tall + cabin_tall / 2)
    centers = [(x, y, z + tall / 2), cabin]
    sizes = [(length, width, tall), (cabin_length, 0.9 * width, cabin_tall)]
    world.boxes(centers, sizes, yaw, VEHICLE, chance.uniform(0.15, 0.9))


def _people(world: World, chance: np.random.Generator, side: int, front: float) -> None:
    spots = chance.choice(np.arange(-30, 30, 1.5), chance.integers(5, 12), replace=False)
    for x in spots:
        y = side * chance.uniform(_ROAD + 1.5, front - 1.2)
        if chance.random() < 0.1 and abs(x) > 4:
            y = chance.uniform(-2.5, 2.5)  # crossing the road
        z, size, yaw = world.height(x, y), chance.uniform(0.9, 1.08), chance.uniform(0, 2 * np.pi)
        stride = 0.13 * np.array([np.cos(yaw), np.sin(yaw)])
        legs = [(x, y) + stride, (x, y) - stride]
        world.cylinders(legs, [0.085, 0.085], [z, z], [z + 0.85 * size] * 2, PERSON, 0.35)
        world.ellipsoids([(x, y, z + 1.12 * size), (x, y, z + 1.6 * size)],
                         [(0.24, 0.24, 0.42 * size), (0.11, 0.11, 0.14)], PERSON,
                         chance.uniform(0.25, 0.6))
