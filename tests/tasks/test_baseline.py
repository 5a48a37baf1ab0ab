"""The logistic baseline: normals of planes, and what a linear rule can and cannot learn."""

from __future__ import annotations

import warnings

import numpy as np

from mlxsparse.tasks import baseline, data


def plane(normal, n=2000, seed=0):
    chance = np.random.default_rng(seed)
    u, v = np.linalg.svd(np.asarray(normal, float)[None])[2][1:]
    return (
        chance.uniform(-2, 2, (n, 1)) * u
        + chance.uniform(-2, 2, (n, 1)) * v
        + 0.001 * chance.normal(size=(n, 3))
    )


def test_normals_of_planes():
    for normal in ([0, 0, 1], [1, 0, 0], [0.6, 0, 0.8], [1, 2, 2]):
        normal = np.array(normal) / np.linalg.norm(normal)
        got = baseline.normals(plane(normal) + (1e5, 0, 3), 0.3)
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-9)
        assert (np.abs(got @ normal) > 0.99).mean() > 0.98 and (got[:, 2] >= 0).all()
    assert baseline.normals(np.empty((0, 3)), 1.0).shape == (0, 3)
    assert np.isfinite(baseline.normals(np.zeros((3, 3)), 1.0)).all()


def test_it_separates_floor_from_wall_and_counts_all_points():
    floor, wall = plane([0, 0, 1]), plane([1, 0, 0], seed=1)
    points = np.concatenate([floor, wall + (0, 0, 2)])
    labels = np.array([0] * len(floor) + [1] * len(wall))
    table = baseline.features(points, np.zeros(len(points)), 0.3), labels
    matrix = baseline.fit_and_score([table], [table, table], 3)
    assert matrix.sum() == 2 * len(points) and np.trace(matrix) > 0.99 * matrix.sum()
    again = baseline.fit_and_score([table], [table, table], 3)
    np.testing.assert_array_equal(matrix, again)


def test_it_does_not_see_neighbours():
    """Points with the same height, normal and intensity cannot be told apart."""
    table = baseline.features(plane([0, 0, 1]), np.full(2000, 0.5), 0.3)
    labels = np.random.default_rng(0).integers(0, 2, 2000)
    matrix = baseline.fit_and_score([(table[:1000], labels[:1000])], [(table[1000:], labels[1000:])], 2)
    assert np.trace(matrix) < 0.6 * matrix.sum()


def test_products_do_not_warn():
    """Apple's BLAS leaves all flags set, and NumPy before 2.4 tells: here numbers that are too large do."""
    labels = np.arange(40) % 2
    table, far = np.random.default_rng(0).normal(size=(40, 3)) + labels[:, None], np.full((40, 3), 1e308)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        data.turned(np.array([[1.7e308, 1.7e308, 0.0], [-1e308, -1e308, 0.0]]), 0.7, scale=4.0)
        baseline.fit_and_score([(table, labels)], [(far, labels)], 2)
