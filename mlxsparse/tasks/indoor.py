"""Random rooms for `scenes.indoor_scene`: walls, tables and chairs, as shapes of a `lidar.World`.

Seats are as high as coffee tables, partitions as high as bar tables, backs of chairs as upright as walls, and
part of the floor is a step higher, so that height and the direction of a surface do not tell the classes
apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .lidar import World

CLASSES = ("floor", "wall", "table", "chair")
FLOOR, WALL, TABLE, CHAIR = range(len(CLASSES))
THICK = 0.15  # of a wall, metres


def rooms(chance: np.random.Generator) -> World:
    """A furnished room around the origin, a corridor behind its door; nothing stands at (0, 0)."""
    half = np.array([chance.uniform(3.5, 6.5), chance.uniform(3, 5)])
    center = chance.uniform(-0.4, 0.4, 2) * half
    world = _floor(chance, center, half)
    tall = chance.uniform(2.5, 3.2)
    _walls(world, chance, center, half, tall)
    low, high = center - half + 0.9, center + half - 0.9
    taken = [(0.0, 0.0, 1.3)]
    _partitions(world, chance, low, high, taken)
    for _ in range(int(chance.integers(8, 14))):
        _group(world, chance, low, high, taken)
    for _ in range(int(chance.integers(2, 7))):  # chairs by themselves
        spot = _free(chance, low, high, 0.45, taken)
        if spot is not None:
            _chair(world, chance, *spot, chance.uniform(0, 2 * np.pi))
    return world


def _floor(chance: np.random.Generator, center: np.ndarray, half: np.ndarray) -> World:
    edge = center[0] + half[0] * chance.uniform(0.2, 0.7) * chance.choice([-1, 1])
    step = chance.uniform(0.12, 0.35) if chance.random() < 0.6 else 0.0
    side = np.sign(edge) if edge else 1.0  # the scanner stands below the step

    def height(x: Any, y: Any) -> Any:
        return step * np.clip(side * (x - edge) / 0.02, 0, 1)

    boards, shade = chance.uniform(0.08, 0.2), chance.uniform(0.25, 0.55)

    def paving(x: Any, y: Any) -> Any:
        return shade + 0.08 * (np.floor(y / boards) % 2)

    return World(height, -0.01, step + 0.01, FLOOR, paving)


def _walls(
    world: World, chance: np.random.Generator, center: np.ndarray, half: np.ndarray, tall: float
) -> None:
    """Four walls with a door in one, a corridor behind it, pillars, shelves set into the walls."""
    (cx, cy), (hx, hy) = center, half
    shade = chance.uniform(0.5, 0.85)
    door = cx + chance.uniform(-0.5, 0.5) * hx
    left, right = cx - hx, cx + hx
    spans = [(left, door - 0.5), (door + 0.5, right)]
    centers = [((a + b) / 2, cy + hy, tall / 2) for a, b in spans]
    sizes = [(b - a, THICK, tall) for a, b in spans]
    centers.append((door, cy + hy, (tall + 2.05) / 2))  # lintel
    sizes.append((1.0, THICK, tall - 2.05))
    centers += [
        (cx, cy - hy, tall / 2),
        (left, cy, tall / 2),
        (right, cy, tall / 2),
        (cx, cy + hy + 2.5, tall / 2),
    ]
    sizes += [(2 * hx, THICK, tall), (THICK, 2 * hy, tall), (THICK, 2 * hy, tall), (2 * hx, THICK, tall)]
    for _ in range(int(chance.integers(1, 5))):  # pillars and chimney breasts
        wide = chance.uniform(0.25, 0.9)
        side = chance.choice([-1, 1])
        if chance.random() < 0.5:
            x = cx + chance.uniform(-0.8, 0.8) * hx
            if side < 0 or abs(x - door) > 1.2:
                centers.append((x, cy + side * (hy - 0.2), tall / 2))
                sizes.append((wide, 0.4, tall))
        else:
            centers.append((cx + side * (hx - 0.2), cy + chance.uniform(-0.8, 0.8) * hy, tall / 2))
            sizes.append((0.4, wide, tall))
    world.boxes(centers, sizes, 0.0, WALL, shade)


def _partitions(
    world: World, chance: np.random.Generator, low: np.ndarray, high: np.ndarray, taken: list
) -> None:
    """Low walls that stand in the room."""
    for _ in range(int(chance.integers(0, 4))):
        spot = _free(chance, low, high, 0.8, taken)
        if spot is not None:
            tall, length = chance.uniform(0.7, 1.5), chance.uniform(0.8, 1.6)
            yaw = float(chance.choice([0.0, np.pi / 2]))
            world.boxes(
                [(*spot, tall / 2)], [(length, 0.08, tall + 0.6)], yaw, WALL, chance.uniform(0.3, 0.8)
            )


def _group(world: World, chance: np.random.Generator, low: np.ndarray, high: np.ndarray, taken: list) -> None:
    """A table with chairs around it."""
    spot = _free(chance, low, high, 1.15, taken)
    if spot is None:
        return
    x, y = spot
    yaw = chance.uniform(0, 2 * np.pi) if chance.random() < 0.4 else float(chance.choice([0, np.pi / 2]))
    tall = chance.uniform(0.7, 0.78)
    kind = chance.random()
    if kind < 0.25:
        tall = chance.uniform(0.4, 0.5)  # a coffee table
    elif kind < 0.35:
        tall = chance.uniform(1.0, 1.1)  # to stand at
    z = float(world.height(x, y))
    shade = chance.uniform(0.25, 0.8)
    if chance.random() < 0.3:
        reach = _round_table(world, chance, x, y, z, tall, shade)
    else:
        reach = _square_table(world, chance, x, y, z, tall, yaw, shade)
    for turn in yaw + np.arange(4) * np.pi / 2:
        if chance.random() < 0.6:
            away = (reach if turn in (yaw, yaw + np.pi) else min(reach, 0.45)) + chance.uniform(0.0, 0.3)
            _chair(
                world, chance, x + away * np.cos(turn), y + away * np.sin(turn), turn + chance.normal(0, 0.2)
            )


def _square_table(
    world: World,
    chance: np.random.Generator,
    x: float,
    y: float,
    z: float,
    tall: float,
    yaw: float,
    shade: float,
) -> float:
    length, width = chance.uniform(0.8, 1.5), chance.uniform(0.6, 0.85)
    world.boxes([(x, y, z + tall)], [(length, width, 0.04)], yaw, TABLE, shade)
    corner = _turned(
        [(sx * (length / 2 - 0.06), sy * (width / 2 - 0.06)) for sx in (-1, 1) for sy in (-1, 1)], yaw, x, y
    )
    if chance.random() < 0.3:  # a desk: closed sides
        ends = _turned([(-length / 2 + 0.03, 0), (length / 2 - 0.03, 0)], yaw, x, y)
        world.boxes([(*end, z + tall / 2) for end in ends], [(0.04, width, tall)] * 2, yaw, TABLE, shade)
    else:
        thick = chance.uniform(0.02, 0.045)
        world.cylinders(corner, [thick] * 4, [z] * 4, [z + tall] * 4, TABLE, shade)
    return length / 2


def _round_table(
    world: World, chance: np.random.Generator, x: float, y: float, z: float, tall: float, shade: float
) -> float:
    radius = chance.uniform(0.35, 0.65)
    world.ellipsoids(
        [(x, y, z + tall), (x, y, z + 0.02)], [(radius, radius, 0.025), (0.3, 0.3, 0.03)], TABLE, shade
    )
    world.cylinders([(x, y)], [0.04], [z], [z + tall], TABLE, shade)
    return radius


def _chair(world: World, chance: np.random.Generator, x: float, y: float, turn: float) -> None:
    """A chair that looks towards -turn: four legs or a post, mostly with a back; some are armchairs."""
    z, shade = float(world.height(x, y)), chance.uniform(0.15, 0.8)
    seat, wide = chance.uniform(0.42, 0.5), chance.uniform(0.38, 0.48)
    if chance.random() < 0.15:  # armchair
        wide = chance.uniform(0.65, 0.8)
        parts = [
            (0.0, 0.0, 0.22, wide, wide, 0.44),
            (wide / 2, 0.0, 0.45, 0.18, wide, 0.9),
            (0.0, wide / 2, 0.32, wide, 0.14, 0.62),
            (0.0, -wide / 2, 0.32, wide, 0.14, 0.62),
        ]
    else:
        parts = [(0.0, 0.0, seat, wide, wide, 0.05)]
        if chance.random() < 0.8:
            tall = chance.uniform(0.3, 0.5)
            parts.append((wide / 2, 0.0, seat + 0.1 + tall / 2, 0.04, wide, tall))
        if chance.random() < 0.6:
            legs = _turned(
                [(sx * (wide / 2 - 0.03), sy * (wide / 2 - 0.03)) for sx in (-1, 1) for sy in (-1, 1)],
                turn,
                x,
                y,
            )
            world.cylinders(legs, [0.02] * 4, [z] * 4, [z + seat] * 4, CHAIR, shade)
        else:
            world.cylinders([(x, y)], [0.035], [z], [z + seat], CHAIR, shade)
            parts.append((0.0, 0.0, 0.06, 0.45, 0.06, 0.05))
            parts.append((0.0, 0.0, 0.06, 0.06, 0.45, 0.05))
    places = _turned([(p[0], p[1]) for p in parts], turn, x, y)
    world.boxes([(*at, z + p[2]) for at, p in zip(places, parts)], [p[3:] for p in parts], turn, CHAIR, shade)


def _turned(offsets: list, yaw: float, x: float, y: float) -> list[tuple[float, float]]:
    cos, sin = np.cos(yaw), np.sin(yaw)
    return [(x + cos * a - sin * b, y + sin * a + cos * b) for a, b in offsets]


def _free(
    chance: np.random.Generator, low: np.ndarray, high: np.ndarray, radius: float, taken: list
) -> tuple[float, float] | None:
    """A place whose circle meets none of the circles (x, y, radius) in `taken`, which then has it too."""
    for _ in range(20):
        x, y = chance.uniform(low, high)
        if all(np.hypot(x - a, y - b) > radius + r for a, b, r in taken):
            taken.append((x, y, radius))
            return float(x), float(y)
    return None
