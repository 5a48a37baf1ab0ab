"""Ray and shape intersections against what they mean: on the surface, and nothing nearer."""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.tasks.lidar import World, columns_towards, scan, spinning_lidar
from mlxsparse.tasks.raycast import ray_boxes, ray_cylinders, ray_ground, ray_spheres
from mlxsparse.tasks.street import street

ORIGIN = np.array([0.3, -0.2, 1.7])
STEPS = np.linspace(0, 30, 6001)


def rays(count=400, seed=0):
    d = np.random.default_rng(seed).normal(size=(count, 3))
    return d / np.linalg.norm(d, axis=1, keepdims=True)


def first_inside(inside, directions):
    """Distance to the first sampled point that is inside, inf for none: marching, slow and plain."""
    points = ORIGIN + STEPS[:, None, None] * directions
    found = inside(points)
    return np.where(found.any(axis=0), STEPS[found.argmax(axis=0)], np.inf)


def agree(got, marched):
    """Equal to the marching step; a ray that only grazes may be seen by the exact answer alone."""
    step = STEPS[1]
    both = np.isfinite(got) & np.isfinite(marched)
    assert both.sum() > 20
    assert np.all(np.abs(got[both] - marched[both]) <= step + 1e-9)
    assert np.all(np.isfinite(got[np.isfinite(marched)]))
    assert np.isfinite(got).sum() - both.sum() <= 0.05 * both.sum() + 2


@pytest.mark.parametrize("yaw", [0.0, 0.6, -2.0])
def test_boxes(yaw):
    center, half = np.array([2.0, 4.0, 1.0]), np.array([3.0, 1.0, 2.0])

    def inside(p):
        p = p - center
        x = np.cos(yaw) * p[..., 0] + np.sin(yaw) * p[..., 1]
        y = np.cos(yaw) * p[..., 1] - np.sin(yaw) * p[..., 0]
        return (np.abs(x) <= half[0]) & (np.abs(y) <= half[1]) & (np.abs(p[..., 2]) <= half[2])

    got = ray_boxes(ORIGIN, rays(), center[None], half[None], np.array([yaw]))
    assert got.shape == (400, 1)
    agree(got[:, 0], first_inside(inside, rays()))


def test_cylinders():
    center, radius, low, high = np.array([-3.0, 2.0]), 1.5, 0.5, 4.0

    def inside(p):
        radial = np.hypot(p[..., 0] - center[0], p[..., 1] - center[1])
        return (radial <= radius) & (p[..., 2] >= low) & (p[..., 2] <= high)

    d = rays()
    got = ray_cylinders(ORIGIN, d, center[None], np.array([radius]), np.array([low]), np.array([high]))[:, 0]
    marched = first_inside(inside, d)
    # The mantle alone: rays that come in through an end are not counted.
    z = ORIGIN[2] + marched * d[:, 2]
    with np.errstate(invalid="ignore"):
        radial = np.hypot(*(ORIGIN[:2] + marched[:, None] * d[:, :2] - center).T)
    mantle = np.isfinite(marched) & (radial > radius - 0.02) & (z > low + 0.02) & (z < high - 0.02)
    assert np.allclose(got[mantle], marched[mantle], atol=STEPS[1])
    hit = ORIGIN + got[np.isfinite(got), None] * d[np.isfinite(got)]
    np.testing.assert_allclose(np.hypot(*(hit[:, :2] - center).T), radius)
    assert (hit[:, 2] >= low).all() and (hit[:, 2] <= high).all() and mantle.sum() > 20


def test_spheres_enter_and_leave():
    center, radii = np.array([1.0, -4.0, 2.0]), np.array([3.0, 2.5, 1.6])
    near, far = ray_spheres(ORIGIN, rays(), center[None], radii[None])

    def inside(p):
        return (((p - center) / radii) ** 2).sum(-1) <= 1

    agree(near[:, 0], first_inside(inside, rays()))
    hit = np.isfinite(near)
    assert (far[hit] > near[hit]).all() and np.array_equal(hit, np.isfinite(far))
    leave = ORIGIN + far[hit][:, None] * rays()[hit[:, 0]]
    np.testing.assert_allclose((((leave - center) / radii) ** 2).sum(-1), 1)


def test_ground():
    def height(x, y):
        return 0.3 * np.sin(x) * np.cos(y) + 0.2 * (y > 2)

    d = rays()
    got = ray_ground(ORIGIN, d, height, -0.3, 0.5, 30.0)
    marched = first_inside(lambda p: p[..., 2] <= height(p[..., 0], p[..., 1]), d)
    steep = d[:, 2] < -0.1
    assert steep.sum() > 100
    np.testing.assert_allclose(got[steep], marched[steep], atol=STEPS[1])
    assert np.isinf(got[d[:, 2] >= 0]).all()


def test_axis_parallel_rays_and_shapes_behind():
    d = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 0, 1], [0, 1, 0]])
    o, zero = np.zeros(3), np.zeros(1)
    boxes = ray_boxes(o, d, np.array([[5.0, 0, 0]]), np.array([[1.0, 1, 1]]), zero)
    assert boxes[:, 0].tolist() == [4, np.inf, np.inf, np.inf]
    one = np.ones(1)
    cylinders = ray_cylinders(o, d, np.array([[5.0, 0]]), 2 * one, -one, one)
    assert cylinders[:, 0].tolist() == [3, np.inf, np.inf, np.inf]
    near, far = ray_spheres(o, d, np.array([[5.0, 0, 0]]), np.array([[2.0, 1, 1]]))
    assert near[:, 0].tolist() == [3, np.inf, np.inf, np.inf] and far[0, 0] == 7


def flat_world(*, paving=0.4):
    return World(lambda x, y: 0.0 * x * y, -0.01, 0.01, 0, lambda x, y: np.full(np.shape(x), paving))


def test_scan_keeps_the_nearest():
    world = flat_world()
    world.boxes([(10, 0, 1)], [(1, 4, 2)], 0.0, 2, 0.6)
    world.cylinders([(5, 0)], [0.5], [0], [3], 1, 0.9)
    directions = spinning_lidar(np.random.default_rng(0), 16, 360)
    origin = np.array([0, 0, 1.5])
    distance, label, reflectance = scan(world, origin, directions, 40, np.random.default_rng(0))
    level = np.argmin(np.abs(directions[:, 0, 2] + 0.05))
    assert label[level, 0] == 1 and reflectance[level, 0] == 0.9
    assert distance[level, 0] * directions[level, 0, 0] == pytest.approx(4.5, abs=0.01)
    assert label[level, 7] == 2 and label[level, 90] == 0
    assert set(np.unique(label[np.isfinite(distance)])) == {0, 1, 2}
    assert distance[np.isfinite(distance)].max() <= 40


def test_vegetation_lets_rays_through_by_its_free_path():
    """A chord of length L is passed with probability exp(-L / free path)."""
    world = flat_world()
    world.ellipsoids([(8, 0, 1.5)], [(1, 50, 50)], 3, 0.5, free_path=2.0)
    directions = np.tile(np.array([1.0, 0, -0.1]) / np.hypot(1, 0.1), (200, 100, 1))
    _, label, _ = scan(world, np.array([0, 0, 1.5]), directions, 40, np.random.default_rng(0))
    passed = (label == 0).mean()
    assert passed == pytest.approx(np.exp(-2 * np.hypot(1, 0.1) / 2.0), abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_columns_towards_leaves_no_hit_out(seed):
    chance = np.random.default_rng(seed)
    world = street(chance)
    origin = np.array([0, -1.6, 1.9])
    directions = spinning_lidar(chance, 12, 700)
    for shape in world.shapes:
        seen = columns_towards(shape, origin, 700)
        assert len(seen) == len(set(seen.tolist()))
        left_out = np.setdiff1d(np.arange(700), seen)
        entry, _ = shape.cast(origin, directions[:, left_out].reshape(-1, 3))
        assert np.isinf(entry).all()
