"""Heights above the lowest points around a point, against loops over all pairs."""

from __future__ import annotations

import numpy as np

from mlxsparse.tasks.relief import LOW_CELLS, PLANE_CELLS, relief, scales_of, squashed


def cells(points, size):
    return np.floor((points[:, :2] - points[:, :2].min(axis=0)) / size).astype(int)


def slow_relief(points, voxel_size):
    columns = []
    for size in LOW_CELLS:
        c = cells(points, size * voxel_size)
        near = np.abs(c[:, None] - c[None]).max(axis=2) <= 1
        columns.append(points[:, 2] - np.where(near, points[None, :, 2], np.inf).min(axis=1))
    for size in PLANE_CELLS:
        c = cells(points, size * voxel_size)
        lowest = [
            min(np.flatnonzero((c == cell).all(axis=1)), key=lambda i: points[i, 2])
            for cell in np.unique(c, axis=0)
        ]
        column = []
        for at, p in zip(c, points):
            q = np.array([points[i] for i in lowest if np.abs(c[i] - at).max() <= 1])
            flat = q[:, :2] - q[:, :2].mean(axis=0)
            ridge = 0.01 * (size * voxel_size) ** 2 * np.eye(2)
            along = np.linalg.solve(
                flat.T @ flat / len(q) + ridge, flat.T @ (q[:, 2] - q[:, 2].mean()) / len(q)
            )
            column.append(p[2] - q[:, 2].mean() - (p[:2] - q[:, :2].mean(axis=0)) @ along)
        columns.append(np.array(column))
    return np.stack(columns, axis=1)


def test_against_loops():
    chance = np.random.default_rng(0)
    points = chance.uniform(-4, 4, (150, 3)) * (1, 1, 0.3) + (5e5, -3e6, 100)
    np.testing.assert_allclose(relief(points, 0.5), slow_relief(points, 0.5), atol=1e-6)


def test_a_slope_is_a_plane_and_posts_stand_on_it():
    x, y = (a.ravel() for a in np.meshgrid(np.arange(0, 20, 0.4), np.arange(0, 20, 0.4)))
    ground = np.stack([x, y, 0.1 * x - 0.05 * y], axis=1)
    points = np.concatenate([ground, [[10.0, 10.0, 0.5 + 1.5]]])
    got = relief(points, 0.5)[:, len(LOW_CELLS) :]
    inner = (np.abs(ground[:, :2] - 10) < 6).all(axis=1)
    assert np.abs(got[:-1][inner]).max() < 0.05
    np.testing.assert_allclose(got[-1], 1.5, atol=0.05)


def test_far_apart_empty_and_rows_without_position():
    points = np.array([[0, 0, 0], [1e7, -1e7, 5], [np.nan, 0, 0], [0.1, 0, 2], [0, np.inf, 1]])
    got = relief(points, 0.01)
    assert np.isfinite(got).all() and not got[[2, 4]].any()
    assert got[3, len(LOW_CELLS) - 1] == 2 and got[0, 0] == 0
    assert relief(np.empty((0, 3)), 1.0).shape == (0, len(LOW_CELLS) + len(PLANE_CELLS))
    assert not relief(np.full((2, 3), np.nan), 1.0).any()


def test_scales():
    columns = np.array([[1.0, 0, 4], [-3, 0, 4], [2, 0, 4]])
    assert scales_of([columns[:1], columns[1:]]) == [2, 1, 4]
    squeezed = squashed(columns, [2, 1, 4])
    assert squeezed.dtype == np.float32 and squeezed[0, 2] == squeezed[1, 2] and squeezed[1, 0] < 0


def test_a_far_point_does_not_change_the_others():
    points = np.random.default_rng(0).uniform(0, 20, (800, 3)) * (1, 1, 0.1)
    points[0] = 0  # the corner of the cells, from which the far point is a whole number of them off
    far = np.concatenate([points, [[-0.5 * 96 * 2**17, -0.5 * 96 * 2**17, -2.0**20]]])
    np.testing.assert_allclose(relief(far, 0.5)[:-1], relief(points, 0.5), rtol=1e-6, atol=1e-7)
