"""knn and radius are exact: equal to comparing each query with every site, ties and all."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse import ops
from mlxsparse.engine import search
from mlxsparse.errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError, StrideError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import from_numpy
from mlxsparse.testing.strategies import coordinate_sets

pytestmark = pytest.mark.usefixtures("device")


def check(got, want, r=None):
    rows, distances = (np.array(v) for v in got[:2])
    assert rows.dtype == np.int32 and distances.dtype == np.float32
    assert rows.tolist() == want[0].tolist()
    assert np.array_equal(distances, want[1].astype(np.float32))
    if r is not None:
        assert np.array(got[2]).tolist() == want[2].tolist()


@st.composite
def searches(draw, span=5, far=True):
    """(coords, queries, their batch items): on sites, between them (equal distances), anywhere, far out."""
    coords = draw(coordinate_sets(max_sites=40, span=span, far=far))
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    n = draw(st.integers(0, 25))
    queries = rng.integers(-span, span + 1, (n, 3)).astype(float)
    kind = rng.integers(0, 4, n)
    queries[kind == 1] += 0.5
    queries[kind == 2] += rng.normal(size=(n, 3))[kind == 2]
    queries[kind == 3] *= draw(st.sampled_from([1.0, 1e3, 1e9]))
    if len(coords):
        near = rng.integers(0, len(coords), n)
        moved = rng.random(n) < 0.3
        queries[moved] += coords[near[moved], 1:]
    return coords, queries, rng.integers(0, 3, n)


def tensor(coords, **more):
    return from_numpy(coords, np.zeros((len(coords), 1)), batch_size=3, **more)


@given(searches(), st.integers(1, 12))
def test_knn_equals_brute_force(case, k):
    coords, queries, batch = case
    got = ops.knn(tensor(coords), queries, k, batch=batch)
    check(got, oracle.neighbours(coords, queries, batch, k))
    wide = tensor(coords).with_capacity(len(coords) + 3)
    assert all(np.array_equal(a, b) for a, b in zip(ops.knn(wide, queries, k, batch=mx.array(batch)), got))


@given(searches(), st.integers(1, 12), st.sampled_from([0.0, 1.0, 2.0**0.5, 3.3, 1e9]))
def test_radius_equals_brute_force(case, most, r):
    coords, queries, batch = case
    got = ops.radius(tensor(coords), queries, r, most, batch=batch)
    check(got, oracle.neighbours(coords, queries, batch, most, r), r)


@given(coordinate_sets(max_sites=40), coordinate_sets(max_sites=40), st.integers(1, 5), st.integers(0, 3))
def test_queries_that_are_sites(coords, others, k, extra):
    x = tensor(coords, stride=2)
    want = oracle.neighbours(coords, others[:, 1:], others[:, 0], k)
    check(ops.knn(x, others, k), want)
    check(ops.knn(x, mx.array(others), k), want)
    y = tensor(others, stride=2).with_capacity(len(others) + extra)
    rows, distances = (np.array(v) for v in ops.knn(x, y, k))
    check((rows[: len(others)], distances[: len(others)]), want)
    assert (rows[len(others) :] == -1).all() and np.isinf(distances[len(others) :]).all()
    counts = np.array(ops.radius(x, y, 2.0, k)[2])
    assert counts.shape == (len(others) + extra,) and not counts[len(others) :].any()


def surface(n, seed=0):
    """A wavy sheet, a wall, a few sites far away, in two batch items and shuffled."""
    rng = np.random.default_rng(seed)
    u = rng.random((n, 2)) * 80
    sheet = np.column_stack([u, 6 * np.sin(u[:, 0] / 9)])
    wall = np.column_stack([u[: n // 3, 0], np.full(n // 3, 40.0), u[: n // 3, 1]])
    sites = np.floor(np.concatenate([sheet, wall, rng.normal(size=(5, 3)) * 1e6])).astype(int)
    coords = np.column_stack([rng.integers(0, 2, len(sites)) * 2, sites])  # item 1 is empty
    return rng.permutation(np.unique(coords, axis=0))


@pytest.mark.parametrize("k", [1, 8, 100, 5000])
def test_a_large_cloud(k):
    """Deep trees and many blocks, against all distances at once."""
    coords = surface(3000)
    rng = np.random.default_rng(1)
    queries = np.concatenate(
        [
            coords[rng.integers(0, len(coords), 400), 1:] + rng.integers(0, 3, (400, 3)) / 2,
            rng.normal(size=(40, 3)) * 1e4,
            rng.random((60, 3)) * 80,
        ]
    )
    batch = rng.integers(0, 3, len(queries))
    rows, distances = (np.array(v) for v in ops.knn(tensor(coords), queries, k, batch=batch))
    counts = np.array(ops.radius(tensor(coords), queries, 7.0, 4, batch=batch)[2])
    for q, (point, item) in enumerate(zip(queries, batch)):
        d = coords[:, 1:] - point
        squares = d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1] + d[:, 2] * d[:, 2]
        squares[coords[:, 0] != item] = np.inf
        want = np.argsort(squares, kind="stable")[:k]
        want = want[np.isfinite(squares[want])]
        assert rows[q, : len(want)].tolist() == want.tolist() and (rows[q, len(want) :] == -1).all()
        assert np.array_equal(distances[q, : len(want)], np.sqrt(squares[want]).astype(np.float32))
        assert counts[q] == (squares <= 49.0).sum()


@pytest.mark.parametrize("r", [2.0, 30.0, 200.0])
def test_counts_are_complete_however_few_neighbours_are_listed(r):
    coords = surface(4000)
    coords = coords[coords[:, 0] == 0]
    queries = coords[::40, 1:] + 0.5
    rows, _, counts = (np.array(v) for v in ops.radius(from_numpy(coords, coords[:, :1]), queries, r, 1))
    for q, point in enumerate(queries):
        squares = np.square(coords[:, 1:] - point).sum(axis=1)
        assert counts[q] == (squares <= r * r).sum() and rows[q, 0] == squares.argmin()


@pytest.mark.parametrize("r", [400.0, 1e6, 2.0**59])
def test_sites_far_within_a_wide_radius_are_counted_without_a_distance(r, monkeypatch):
    """To compare each query with every site took seconds for 20,000 of them."""
    compared, plain = [0], search._candidates

    def counted(*args):
        rows = plain(*args)
        compared[0] += rows.size
        return rows

    monkeypatch.setattr(search, "_candidates", counted)
    n = 2000
    coords = np.zeros((2 * n, 4), int)
    coords[n:, 0], coords[:, 1] = 2, np.tile(np.arange(n), 2)
    rows, _, counts = (np.array(v) for v in ops.radius(tensor(coords), coords.astype(np.int32), r, 3))
    along, reach = coords[:, 1], int(min(r, n))
    assert (counts == np.minimum(along + reach, n - 1) - np.maximum(along - reach, 0) + 1).all()
    assert (rows[:, 0] == np.arange(2 * n)).all()
    assert compared[0] < 2 * n * 40


@pytest.mark.parametrize("pairs", [8, 64])
def test_small_blocks_change_nothing(pairs, monkeypatch):
    coords = surface(800)
    queries = np.concatenate([coords[:300, 1:] + 0.25, [[1e7, 0, 0]]])
    batch = np.append(coords[:300, 0], 0)
    x = tensor(coords)
    want = ops.knn(x, queries, 6, batch=batch), ops.radius(x, queries, 5.0, 6, batch=batch)
    monkeypatch.setattr(search, "PAIRS", pairs)
    monkeypatch.setattr(search, "CANDIDATES", pairs)
    monkeypatch.setattr(search, "TASK", 16)
    got = ops.knn(x, queries, 6, batch=batch), ops.radius(x, queries, 5.0, 6, batch=batch)
    for a, b in zip(got, want):
        assert all(np.array_equal(v, w) for v, w in zip(a, b))


def test_ties_go_to_the_lower_row():
    coords = [[0, 1, 0, 0], [0, -1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    x = from_numpy(coords, np.zeros((5, 1)))
    rows, distances = ops.knn(x, np.zeros((1, 3)), 4)
    assert rows.tolist() == [[3, 0, 1, 2]] and distances.tolist() == [[0.0, 1.0, 1.0, 1.0]]
    rows, _, counts = ops.radius(x, mx.zeros((1, 3)), 1.0, 2)
    assert rows.tolist() == [[3, 0]] and counts.tolist() == [5]


def test_radius_includes_its_end():
    x = from_numpy([[0, 3, 4, 0]], np.zeros((1, 1)))
    assert ops.radius(x, np.zeros((1, 3)), 5, 1)[2].tolist() == [1]
    assert ops.radius(x, np.zeros((1, 3)), np.nextafter(5.0, 0.0), 1)[2].tolist() == [0]
    rows, distances, counts = ops.radius(x, np.zeros((1, 3)), 1, 2)
    assert rows.tolist() == [[-1, -1]] and np.isinf(np.array(distances)).all() and counts.tolist() == [0]


def test_the_whole_range_of_coordinates():
    edge = 2**30 - 1
    x = from_numpy([[0, edge, edge, edge], [0, -edge, -edge, -edge], [0, 0, 0, 0]], np.zeros((3, 1)))
    queries = np.array([[-(2.0**31), 0, 0], [2.0**50, 2.0**50, 2.0**50], [edge - 0.5, edge, edge]])
    rows, _ = ops.knn(x, queries, 3)
    assert rows.tolist() == [[1, 2, 0], [0, 2, 1], [0, 2, 1]]


def test_no_rows_no_queries():
    none = tensor(np.zeros((0, 4), int))
    rows, distances = ops.knn(none, np.zeros((2, 3)), 3, batch=np.array([0, 2]))
    assert rows.tolist() == [[-1] * 3] * 2 and np.isinf(np.array(distances)).all()
    one = tensor(np.array([[1, 0, 0, 0]]))
    assert ops.knn(one, np.zeros((0, 3)), 2, batch=np.zeros(0, int))[0].shape == (0, 2)
    assert ops.knn(one, none, 2)[0].shape == (0, 2)
    assert ops.radius(none, one, 1.0, 2)[2].tolist() == [0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.knn(x, np.zeros((1, 3)), 0, batch=np.zeros(1, int)), ShapeError, "k must"),
        (lambda x: ops.knn(x, np.zeros((1, 3)), 1), ShapeError, "batch="),
        (lambda x: ops.knn(x, np.zeros((1, 2)), 1), ShapeError, "queries"),
        (lambda x: ops.knn(x, np.zeros((1, 4)), 1), DTypeError, "int32"),
        (lambda x: ops.knn(x, [[0, 0, 0]], 1), DTypeError, "queries"),
        (lambda x: ops.knn(x, np.zeros((1, 3), bool), 1), DTypeError, "numbers"),
        (
            lambda x: ops.knn(x, np.full((1, 3), np.nan), 1, batch=np.zeros(1, int)),
            CoordinateRangeError,
            "fin",
        ),
        (
            lambda x: ops.knn(x, np.full((1, 3), np.inf), 1, batch=np.zeros(1, int)),
            CoordinateRangeError,
            "fin",
        ),
        (lambda x: ops.knn(x, np.zeros((1, 3)), 1, batch=np.zeros(2, int)), ShapeError, "batch"),
        (lambda x: ops.knn(x, np.zeros((1, 3)), 1, batch=np.zeros(1)), DTypeError, "batch"),
        (lambda x: ops.knn(x, np.zeros((1, 3)), 1, batch=np.array([2])), CoordinateRangeError, "batch"),
        (lambda x: ops.knn(x, np.array([[2, 0, 0, 0]], np.int32), 1), CoordinateRangeError, "batch"),
        (lambda x: ops.knn(x, from_numpy([[1, 0, 0, 0]], [[1.0]], stride=2), 1), StrideError, "stride"),
        (lambda x: ops.knn(x, from_numpy([[0, 0, 0, 0]], [[1.0]]), 1), ShapeError, "batch_size"),
        (lambda x: ops.knn(x, x, 1, batch=np.zeros(1, int)), ShapeError, "batch"),
        (lambda x: ops.radius(x, x, -1.0, 1), MLXSparseError, "r must"),
        (lambda x: ops.radius(x, x, float("nan"), 1), MLXSparseError, "r must"),
        (lambda x: ops.radius(x, x, 1.0, 0), ShapeError, "max_neighbors"),
    ],
)
def test_wrong_inputs(call, error, message):
    with pytest.raises(error, match=message):
        call(from_numpy([[1, 0, 0, 0]], [[1.0]]))
