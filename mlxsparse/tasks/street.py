"""A random street for `scenes.street_scene`: what stands where, as shapes of a `lidar.World`.

Every class comes in forms that another class has as well: garden walls and hedges, porch columns and lamp
posts, shrubs and children, buses and kiosks; and streets climb, so that height and the direction of a
surface do not tell the classes apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .lidar import World

CLASSES = ("ground", "building", "vegetation", "vehicle", "pole", "person")
GROUND, BUILDING, VEGETATION, VEHICLE, POLE, PERSON = range(len(CLASSES))

ROAD = 4.6  # half the width of the road, metres
LANE = 1.6  # middle of a lane
KERB = 0.12


def street(chance: np.random.Generator) -> World:
    """A street along x: road, kerbs, parked and moving vehicles, pavements, and rows of buildings."""
    world = _terrain(chance)
    for side in (-1, 1):
        front = ROAD + chance.uniform(3.5, 6.5)  # where the buildings begin
        _buildings(world, chance, side, front)
        _kerbside(world, chance, side)
        _pavement(world, chance, side, front)
        _parked(world, chance, side)
        _people(world, chance, side, front)
    for lane, way in ((-LANE, 0.0), (LANE, np.pi)):
        for x in (chance.uniform(-45, -10), chance.uniform(10, 45)):
            if chance.random() < 0.6:
                _vehicle(world, chance, x, lane + chance.normal(0, 0.15), way + chance.normal(0, 0.02))
    return world


def _terrain(chance: np.random.Generator) -> World:
    """Gentle undulation on a slope, raised by a kerb beyond the road's edges."""
    heights = chance.uniform(0.03, 0.12, 3)
    waves = 2 * np.pi / chance.uniform(25, 60, (3, 2)) * chance.choice([-1, 1], (3, 2))
    phases = chance.uniform(0, 2 * np.pi, 3)

    def height(x: Any, y: Any) -> Any:
        rolling = sum(h * np.sin(w[0] * x + w[1] * y + p) for h, w, p in zip(heights, waves, phases))
        return rolling + KERB * np.clip((np.abs(y) - ROAD) / 0.05, 0, 1)

    grass = chance.random() < 0.5

    def paving(x: Any, y: Any) -> Any:
        """Dark asphalt, a dashed white line in the middle, bright pavement, and on some streets a verge."""
        line = (np.abs(y) < 0.1) & (np.floor(x / 3) % 2 == 0)
        verge = 0.5 if grass else 0.4
        beyond = np.where(np.abs(y) < ROAD + 1.4, verge, 0.36)
        return np.where(line, 0.85, np.where(np.abs(y) < ROAD, 0.18, beyond))

    slope = (chance.uniform(-0.07, 0.07), chance.uniform(-0.03, 0.03))
    return World(height, -heights.sum(), heights.sum() + KERB, GROUND, paving, slope=slope)


# --- buildings --------------------------------------------------------------------------------------------


def _buildings(world: World, chance: np.random.Generator, side: int, front: float) -> None:
    x = -65.0 + chance.uniform(0, 10)
    while x < 65:
        length, depth, tall = chance.uniform(8, 22), chance.uniform(7, 14), chance.uniform(3.5, 16)
        face = front + chance.uniform(0, 1.2)
        shade = chance.uniform(0.3, 0.7)
        centers = [(x + length / 2, side * (face + depth / 2), tall / 2 - 0.5)]
        sizes = [(length, depth, tall + 1)]
        for _ in range(chance.integers(0, 5)):  # balconies and bays
            wide = chance.uniform(1.5, 3)
            along, up = chance.uniform(wide, length - wide), chance.uniform(0.5, tall - 0.5)
            centers.append((x + along, side * face, up))
            sizes.append((wide, chance.uniform(0.6, 1.6), chance.uniform(0.3, 1.2)))
        world.boxes(centers, sizes, 0.0, BUILDING, shade)
        if chance.random() < 0.35:
            _porch(world, chance, x + chance.uniform(2, length - 3), side, face, shade)
        x += length
        gap = chance.uniform(2, 9) if chance.random() < 0.6 else 0.0
        if gap and chance.random() < 0.7:  # a garden wall closes the gap
            low = chance.uniform(0.7, 1.9)
            world.boxes(
                [(x + gap / 2, side * front, low / 2)],
                [(gap, 0.25, low + 0.4)],
                0.0,
                BUILDING,
                chance.uniform(0.3, 0.6),
            )
        x += gap


def _porch(world: World, chance: np.random.Generator, x: float, side: int, face: float, shade: float) -> None:
    """A roof on columns as thick as posts."""
    tall, wide, out = chance.uniform(2.5, 3.2), chance.uniform(2, 3), chance.uniform(1, 1.6)
    world.boxes([(x, side * (face - out / 2), tall)], [(wide, out, 0.2)], 0.0, BUILDING, shade)
    feet = [
        (x - wide / 2 + 0.15, side * (face - out + 0.15)),
        (x + wide / 2 - 0.15, side * (face - out + 0.15)),
    ]
    world.cylinders(feet, [chance.uniform(0.07, 0.16)] * 2, [-0.3] * 2, [tall] * 2, BUILDING, shade)


# --- beside the road --------------------------------------------------------------------------------------


def _kerbside(world: World, chance: np.random.Generator, side: int) -> None:
    """Trees, lamps, signs, signals, bollards and advertising columns in a row beside the kerb."""
    kinds = ["tree", "conifer", "lamp", "sign", "signal", "bollard", "column", ""]
    share = [0.25, 0.07, 0.16, 0.14, 0.05, 0.07, 0.05, 0.21]
    for x in np.arange(-50, 50, 4.5) + chance.uniform(-1, 1):
        y = side * (ROAD + chance.uniform(0.6, 0.9))
        kind = str(chance.choice(kinds, p=share))
        if kind == "tree":
            _tree(world, chance, x, y)
        elif kind == "conifer":
            _conifer(world, chance, x, y)
        elif kind:
            _pole(world, chance, kind, x, y, side)


def _tree(world: World, chance: np.random.Generator, x: float, y: float) -> None:
    z = world.height(x, y)
    trunk, wide, tall = chance.uniform(1.8, 3), chance.uniform(1.1, 2.2), chance.uniform(1.2, 2.4)
    world.cylinders(
        [(x, y)],
        [chance.uniform(0.07, 0.25)],
        [z - 0.2],
        [z + trunk + tall],
        VEGETATION,
        chance.uniform(0.25, 0.5),
    )
    centers, radii = [], []
    for _ in range(5):  # an uneven crown
        shift = chance.uniform(-0.5, 0.5, 3) * (wide, wide, tall)
        centers.append(np.array([x, y, z + trunk + tall]) + shift)
        radii.append(np.array([wide, wide, tall]) * chance.uniform(0.5, 0.95))
    world.ellipsoids(
        centers, radii, VEGETATION, chance.uniform(0.35, 0.6), free_path=chance.uniform(0.5, 1.4)
    )


def _conifer(world: World, chance: np.random.Generator, x: float, y: float) -> None:
    z, tall, wide = world.height(x, y), chance.uniform(3, 7), chance.uniform(0.7, 1.3)
    steps = np.linspace(0.15, 0.95, 5)
    centers = [(x, y, z + tall * s) for s in steps]
    radii = [(wide * (1.05 - s), wide * (1.05 - s), tall * 0.16) for s in steps]
    world.ellipsoids(centers, radii, VEGETATION, chance.uniform(0.3, 0.5), free_path=chance.uniform(0.2, 0.5))


def _pole(world: World, chance: np.random.Generator, kind: str, x: float, y: float, side: int) -> None:
    z, shade = world.height(x, y), chance.uniform(0.3, 0.65)
    tall = {
        "lamp": chance.uniform(5.5, 8),
        "sign": chance.uniform(2.2, 2.8),
        "signal": chance.uniform(2.8, 3.6),
        "bollard": chance.uniform(0.8, 1.1),
        "column": chance.uniform(2.4, 3.4),
    }[kind]
    thick = {
        "lamp": chance.uniform(0.07, 0.13),
        "sign": 0.04,
        "signal": 0.07,
        "bollard": chance.uniform(0.07, 0.12),
        "column": chance.uniform(0.35, 0.6),
    }[kind]
    world.cylinders([(x, y)], [thick], [z - 0.2], [z + tall], POLE, shade)
    if kind == "lamp":
        world.boxes([(x, y - side * 0.8, z + tall)], [(0.12, 1.7, 0.12)], 0.0, POLE, shade)
    elif kind == "sign":
        wide = chance.uniform(0.45, 0.8)
        world.boxes([(x, y, z + tall - 0.3)], [(0.04, wide, wide)], chance.normal(0, 0.2), POLE, 0.95)
    elif kind == "signal":
        world.boxes([(x, y - side * 0.2, z + tall - 0.4)], [(0.25, 0.3, 0.8)], 0.0, POLE, 0.2)


def _pavement(world: World, chance: np.random.Generator, side: int, front: float) -> None:
    """Hedges and shrubs before the buildings, a kiosk or a bus shelter here and there."""
    for x in chance.uniform(-45, 45, chance.integers(2, 6)):
        count = int(chance.integers(3, 9))
        y = side * (front - chance.uniform(0.5, 0.8))
        along, tall = x + 0.7 * np.arange(count), chance.uniform(0.4, 0.8)
        centers = [(a, y + chance.normal(0, 0.08), world.height(a, y) + tall) for a in along]
        radii = [(*chance.uniform(0.4, 0.65, 2), tall * chance.uniform(0.9, 1.1)) for _ in range(count)]
        world.ellipsoids(centers, radii, VEGETATION, chance.uniform(0.35, 0.55), free_path=0.12)
    for x in chance.uniform(-30, 30, chance.integers(2, 7)):  # shrubs as large as people
        y = side * chance.uniform(ROAD + 1.4, front - 1.0)
        tall, wide = chance.uniform(0.4, 0.75), chance.uniform(0.3, 0.6)
        world.ellipsoids(
            [(x, y, world.height(x, y) + tall)],
            [(wide, wide, tall)],
            VEGETATION,
            chance.uniform(0.3, 0.55),
            free_path=chance.uniform(0.06, 0.2),
        )
    if chance.random() < 0.5:
        x, y = chance.choice([-1, 1]) * chance.uniform(8, 30), side * (ROAD + 2.3)
        if chance.random() < 0.5:  # kiosk
            size = (chance.uniform(2, 4), chance.uniform(1.6, 2.2), chance.uniform(2.3, 2.9))
            world.boxes([(x, y, size[2] / 2)], [size], 0.0, BUILDING, chance.uniform(0.2, 0.8))
        else:  # shelter
            world.boxes(
                [(x, y, 2.4), (x, y + side * 0.6, 1.2)],
                [(3.2, 1.4, 0.1), (3.2, 0.08, 2.4)],
                0.0,
                BUILDING,
                chance.uniform(0.2, 0.6),
            )


# --- vehicles and people ----------------------------------------------------------------------------------


def _parked(world: World, chance: np.random.Generator, side: int) -> None:
    for x in np.arange(-48, 48, 6.2):
        beside_the_sensor = side < 0 and abs(x) < 4  # would hide half of the scene
        if chance.random() < 0.5 and not beside_the_sensor:
            y = side * (ROAD - 1.15 + chance.normal(0, 0.08))
            way = (0 if side < 0 else np.pi) + chance.normal(0, 0.03)
            _vehicle(world, chance, x + chance.uniform(-0.5, 0.5), y, way, large=0.0)


def _vehicle(
    world: World, chance: np.random.Generator, x: float, y: float, yaw: float, large: float = 0.3
) -> None:
    """A car, a van, a motorcycle, or (with probability `large`) a bus or lorry."""
    z, shade = world.height(x, y), chance.uniform(0.15, 0.9)
    if chance.random() < large:
        length, width, tall = chance.uniform(7, 11), 2.5, chance.uniform(2.5, 3.1)
        centers, sizes = [(x, y, z + 0.35 + tall / 2)], [(length, width, tall)]
    elif chance.random() < 0.1:
        along = (np.cos(yaw) * 0.55, np.sin(yaw) * 0.55)
        centers = [
            (x, y, z + 0.6),
            (x - along[0], y - along[1], z + 0.3),
            (x + along[0], y + along[1], z + 0.3),
            (x + 0.8 * along[0], y + 0.8 * along[1], z + 1.0),
        ]
        sizes = [(1.3, 0.35, 0.5), (0.6, 0.14, 0.6), (0.6, 0.14, 0.6), (0.1, 0.7, 0.2)]
    else:
        van = chance.random() < 0.2
        length, width, tall = chance.uniform(3.6, 4.9), chance.uniform(1.65, 1.95), chance.uniform(0.6, 0.8)
        cabin_length, cabin_tall = (
            (0.82 * length, 1.1) if van else (0.52 * length, chance.uniform(0.45, 0.75))
        )
        back = -0.07 * length
        cabin = (x + back * np.cos(yaw), y + back * np.sin(yaw), z + 0.25 + tall + cabin_tall / 2)
        centers = [(x, y, z + 0.25 + tall / 2), cabin]
        sizes = [(length, width, tall), (cabin_length, 0.9 * width, cabin_tall)]
    world.boxes(centers, sizes, yaw, VEHICLE, shade)


def _people(world: World, chance: np.random.Generator, side: int, front: float) -> None:
    spots = chance.choice(np.arange(-30, 30, 1.5), chance.integers(7, 15), replace=False)
    for x in spots:
        y = side * chance.uniform(ROAD + 1.2, front - 1.0)
        if chance.random() < 0.1 and abs(x) > 4:
            y = chance.uniform(-2.5, 2.5)  # crossing the road
        _person(world, chance, float(x), y)
        if chance.random() < 0.3:  # in company
            _person(world, chance, x + chance.uniform(0.45, 0.7), y + chance.uniform(-0.3, 0.3))


def _person(world: World, chance: np.random.Generator, x: float, y: float) -> None:
    z, yaw = world.height(x, y), chance.uniform(0, 2 * np.pi)
    size = chance.uniform(0.6, 0.8) if chance.random() < 0.2 else chance.uniform(0.88, 1.08)
    stride = chance.uniform(0.05, 0.2) * np.array([np.cos(yaw), np.sin(yaw)])
    legs = [(x, y) + stride, (x, y) - stride]
    shade = chance.uniform(0.2, 0.6)
    world.cylinders(legs, [0.085 * size] * 2, [z, z], [z + 0.85 * size] * 2, PERSON, shade)
    body = 0.24 * size * chance.uniform(0.85, 1.15)
    world.ellipsoids(
        [(x, y, z + 1.12 * size), (x, y, z + 1.6 * size)],
        [(body, body, 0.42 * size), (0.11, 0.11, 0.14)],
        PERSON,
        shade,
    )
