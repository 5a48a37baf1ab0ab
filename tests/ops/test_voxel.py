"""Voxelization, devoxelization and coalescing against the oracle, and at the edges of precision."""

from __future__ import annotations

import warnings

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse
from mlxsparse import ops
from mlxsparse.errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, to_numpy
from mlxsparse.testing.strategies import coordinate_sets, features

pytestmark = pytest.mark.usefixtures("device")

REDUCTIONS = ["mean", "sum", "max", "min", "first"]


@st.composite
def clouds(draw):
    """(points, feats, keywords): points on and between cell edges, some not finite or out of bounds."""
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    rows = draw(st.integers(0, 30))
    points = rng.uniform(-2, 2, (rows, 3))
    on_edges = rng.random(rows) < 0.3
    points[on_edges] = np.round(points[on_edges] * 4) / 4
    points[rng.random(rows) < 0.1, 1] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    more = {
        "voxel_size": draw(st.sampled_from([0.25, 0.7, (0.5, 1.0, 0.3)])),
        "origin": draw(st.sampled_from([None, (0.0, 0.0, 0.0), (-0.3, 0.1, 12.0)])),
        "bounds": draw(st.sampled_from([None, ((-1.0, -1.5, -2.0), (1.0, 0.25, 2.0))])),
        "batch": draw(st.sampled_from([None, rng.integers(0, 4, rows)])),
        "reduce": draw(st.sampled_from(REDUCTIONS)),
        "max_points": draw(st.sampled_from([None, 1, 2])),
        "max_voxels": draw(st.sampled_from([None, 1, 5])),
        "spatial_shape": draw(st.sampled_from([None, (4, 1, 3), (0, 2, 2), (9, 9, 40)])),
    }
    return points, draw(features(rows, draw(st.integers(1, 3)))), more


def check(voxels, want):
    coords, feats, index, counts = want
    got_coords, got_feats = active_part(voxels.tensor)
    assert got_coords.tolist() == coords.tolist()
    assert np.allclose(got_feats, feats, rtol=1e-6, atol=1e-6)
    assert np.array(voxels.point_to_voxel).tolist() == index.tolist()
    assert np.array(voxels.counts).tolist() == counts.tolist()


@given(clouds())
def test_float64_points(case):
    points, feats, more = case
    check(mlxsparse.voxelize(points, mx.array(feats), **more), oracle.voxelize(points, feats, **more))


@given(clouds())
def test_float32_mlx_points_use_float32_arithmetic(case):
    points, feats, more = case
    points = points.astype(np.float32)
    more["batch"] = None if more["batch"] is None else mx.array(more["batch"])
    got = mlxsparse.voxelize(mx.array(points), mx.array(feats), **more)
    more["batch"] = None if more["batch"] is None else np.array(more["batch"])
    check(got, oracle.voxelize(points, feats, dtype=np.float32, **more))


@pytest.mark.parametrize("size", [0.1, 0.7, 0.01])
def test_the_type_of_the_arithmetic_shows_on_cell_edges(size):
    edges = (np.arange(1, 200) * size).astype(np.float32)
    points = np.stack([edges, edges, edges], axis=1)
    ones = np.ones((len(points), 1), np.float32)
    single, double = (oracle.voxelize(points, ones, size, dtype=t) for t in (np.float32, np.float64))
    assert single[0].tolist() != double[0].tolist() or single[2].tolist() != double[2].tolist()
    check(mlxsparse.voxelize(mx.array(points), mx.array(ones), size), single)
    check(mlxsparse.voxelize(points, mx.array(ones), size), double)


@given(clouds())
def test_nearest_devoxelization_reads_the_containing_voxel(case):
    points, feats, more = case
    more.update(bounds=None, origin=(0.0, 0.0, 0.0))
    voxels = mlxsparse.voxelize(points, mx.array(feats), **more)
    elsewhere = np.concatenate([points + 0.1, points[:3] * 100])
    batch = None if more["batch"] is None else np.concatenate([more["batch"], more["batch"][:3]])
    coords, values = active_part(voxels.tensor)
    want = oracle.devoxelize_nearest(elsewhere, coords, values, more["voxel_size"], batch=batch)
    got = voxels.devoxelize(elsewhere, batch=batch) if batch is not None else voxels.devoxelize(elsewhere)
    assert np.array_equal(np.array(got), want)


def test_a_point_goes_back_to_its_voxel():
    points = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    feats = np.random.default_rng(1).standard_normal((50, 2)).astype(np.float32)
    voxels = mlxsparse.voxelize(points, mx.array(feats), 0.5, max_voxels=20)
    index = np.array(voxels.point_to_voxel)
    back = np.array(voxels.devoxelize(points))
    assert (index == -1).any()
    assert np.array_equal(back[index >= 0], np.array(voxels.tensor.feats)[index[index >= 0]])
    assert not back[index == -1].any()


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradient_of_the_features(reduce):
    points = np.array([[0.1, 0, 0], [5.0, 0, 0], [0.2, 0, 0], [0.3, 0, 0], [np.nan, 0, 0]])
    feats = mx.array([[1.0], [2.0], [4.0], [4.0], [8.0]])
    _, (got,) = mx.vjp(
        lambda v: mlxsparse.voxelize(points, v, 1.0, reduce=reduce, max_points=3).tensor.feats,
        [feats],
        [mx.array([[3.0], [10.0]])],
    )
    want = {
        "mean": [1.0, 10.0, 1.0, 1.0, 0.0],
        "sum": [3.0, 10.0, 3.0, 3.0, 0.0],
        "max": [0.0, 10.0, 3.0, 0.0, 0.0],  # of equals the first point
        "min": [3.0, 10.0, 0.0, 0.0, 0.0],
        "first": [3.0, 10.0, 0.0, 0.0, 0.0],
    }[reduce]
    assert np.allclose(np.array(got)[:, 0], want)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_half_type_features_average_in_float32(dtype):
    points = np.zeros((4096, 3))
    voxels = mlxsparse.voxelize(points, mx.full((4096, 1), 0.1).astype(dtype), 1.0)
    assert voxels.tensor.dtype == dtype
    assert to_numpy(voxels.tensor.feats).tolist() == to_numpy(mx.array([[0.1]]).astype(dtype)).tolist()


def test_utm_coordinates_keep_centimetres():
    """float64 points far from zero: neighbours 5 cm apart stay apart."""
    points = np.array([[448000.025 + 0.05 * i, 5411000.025, 312.025] for i in range(100)])
    voxels = mlxsparse.voxelize(points, np.ones((100, 1), np.float32), 0.05)
    assert voxels.tensor.capacity == 100
    origin = mlxsparse.voxelize(points, np.ones((100, 1), np.float32), 0.05, origin=(448000, 5411000, 312))
    assert np.array(origin.tensor.coords)[:, 1].tolist() == list(range(100))


def test_float32_points_too_far_for_their_voxels_raise():
    with pytest.raises(CoordinateRangeError, match="float64|origin"):
        mlxsparse.voxelize(mx.array([[2.0**23, 0.0, 0.0]]), mx.ones((1, 1)), 1.0)
    assert mlxsparse.voxelize(mx.array([[2.0**21, 0.0, 0.0]]), mx.ones((1, 1)), 1.0).tensor.capacity == 1


def test_float64_points_past_the_range_raise():
    with pytest.raises(CoordinateRangeError):
        mlxsparse.voxelize(np.array([[2.0**31, 0.0, 0.0]]), mx.ones((1, 1)), 1.0)


def test_no_points():
    voxels = mlxsparse.voxelize(np.zeros((0, 3)), mx.zeros((0, 2)), 0.1)
    assert voxels.tensor.coords.shape == (0, 4) and voxels.tensor.feats.shape == (0, 2)
    assert voxels.point_to_voxel.shape == (0,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, f: mlxsparse.voxelize(p[:, :2], f, 1.0), ShapeError, "points"),
        (lambda p, f: mlxsparse.voxelize(p, f[:1], 1.0), ShapeError, "feats"),
        (lambda p, f: mlxsparse.voxelize(p, f), MLXSparseError, "voxel_size"),
        (lambda p, f: mlxsparse.voxelize(p, f, 0.0), MLXSparseError, "voxel_size"),
        (lambda p, f: mlxsparse.voxelize(p, f, (1.0, -1.0, 1.0)), MLXSparseError, "voxel_size"),
        (lambda p, f: mlxsparse.voxelize(p, f, float("nan")), MLXSparseError, "voxel_size"),
        (lambda p, f: mlxsparse.voxelize(p, f, "a"), MLXSparseError, "voxel_size .*'a'"),
        (lambda p, f: mlxsparse.voxelize(p, f, 10**400), MLXSparseError, "voxel_size"),
        (lambda p, f: mlxsparse.voxelize(p, f, [1.0, [2.0], 3.0]), MLXSparseError, "voxel_size"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, origin="abc"), MLXSparseError, "origin"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, bounds=[[0, 0, 0], [1, 1]]), MLXSparseError, "bounds"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, bounds="ab"), MLXSparseError, "bounds .*'ab'"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, reduce="median"), MLXSparseError, "reduce"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, batch=np.zeros(3, int)), ShapeError, "batch"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, batch=np.array([0, -1])), CoordinateRangeError, "batch"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, max_points=0), MLXSparseError, "max_points"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0, bounds=((1, 1, 1), (0, 0, 0))), MLXSparseError, "bounds"),
        (lambda p, f: mlxsparse.voxelize(mx.array([[1, 2, 3]]), f[:1], 1.0), DTypeError, "points"),
        (lambda p, f: mlxsparse.voxelize(p, f, 1.0).devoxelize(p, mode="cubic"), MLXSparseError, "mode"),
    ],
)
def test_wrong_inputs(call, error, message):
    with pytest.raises(error, match=message):
        call(np.zeros((2, 3)), mx.ones((2, 1)))


# --- coalesce ---------------------------------------------------------------------------------------------


@given(coordinate_sets(), st.sampled_from(REDUCTIONS), st.data())
def test_coalesce_equals_the_oracle(coords, reduce, data):
    again = data.draw(st.lists(st.integers(0, max(len(coords) - 1, 0)), max_size=10)) if len(coords) else []
    coords = np.concatenate([coords, coords[np.array(again, int)]])
    feats = data.draw(features(len(coords), 2))
    want_coords, want = oracle.coalesce(coords, feats, reduce)
    x = mlxsparse.coalesce(mx.array(coords), mx.array(feats), reduce=reduce)
    got_coords, got = active_part(x)
    assert got_coords.tolist() == want_coords.tolist()
    assert np.allclose(got, want, rtol=1e-6, atol=1e-6)


def test_coalesce_feeds_a_convolution():
    x = mlxsparse.coalesce(mx.array([[0, 1, 1, 1], [0, 1, 1, 1]], mx.int32), mx.array([[1.0], [5.0]]))
    assert np.array(ops.subm_conv3d(x, mx.ones((1, 3, 3, 3, 1))).feats).tolist() == [[6.0]]


@pytest.mark.parametrize("origin", [np.nan, np.inf, (0, -np.inf, 0)])
def test_an_origin_that_is_no_place(origin):
    with pytest.raises(MLXSparseError, match="origin"):
        mlxsparse.voxelize(np.zeros((3, 3)), voxel_size=1, origin=origin)


def test_sites_end_one_before_the_last_power():
    last = 2.0**30
    for p in (-last + 0.5, -last, last):
        with pytest.raises(CoordinateRangeError, match="2\\*\\*30"):
            mlxsparse.voxelize(np.array([[p, 0, 0]]), np.ones((1, 1), np.float32), voxel_size=1.0)
    points = np.array([[-last + 1, 0, 0], [last - 0.5, 0, 0]])
    made = mlxsparse.voxelize(points, np.ones((2, 1), np.float32), voxel_size=1.0).tensor
    assert made.coords.tolist() == [[0, -(2**30) + 1, 0, 0], [0, 2**30 - 1, 0, 0]]
    assert ops.lookup(made, made.coords).tolist() == [0, 1]


def test_batch_size_holds_points_without_a_batch():
    points = np.array([[0.5, 0, 0], [3.5, 0, 0]])
    with pytest.raises(CoordinateRangeError, match="batch_size=0"):
        mlxsparse.voxelize(points, voxel_size=1.0, batch_size=0)
    assert mlxsparse.voxelize(points, voxel_size=1.0, batch_size=3).tensor.batch_size == 3
    assert mlxsparse.voxelize(points[:0], voxel_size=1.0, batch_size=0).tensor.batch_size == 0


@pytest.mark.parametrize("name", ["max_points", "max_voxels"])
def test_limits_are_whole_numbers(name):
    for value in (1.5, "2", True, 0):
        with pytest.raises(MLXSparseError, match=name):
            mlxsparse.voxelize(np.zeros((3, 3)), voxel_size=1.0, **{name: value})


@pytest.mark.filterwarnings("error")
def test_points_past_float32():
    points = np.array([[1e39, 0, 0], [1, 2, 3]])
    with pytest.raises(CoordinateRangeError, match="past float32"):
        mlxsparse.voxelize(points, voxel_size=1e31)
    assert mlxsparse.voxelize(points, mx.ones((2, 1)), 1e31).tensor.coords[:, 1].tolist() == [0, 10**8]
    with pytest.raises(CoordinateRangeError, match="past float32"):
        mlxsparse.voxelize(points, voxel_size=1e31, bounds=((0, 0, 0), (1e40, 4, 4)))
    near = mlxsparse.voxelize(points, voxel_size=1.0, bounds=((0, 0, 0), (4, 4, 4)))
    assert near.point_to_voxel.tolist() == [-1, 0] and near.tensor.feats.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("size", [1e-46, 1e39, (1.0, 1e-46, 1.0)])
def test_sizes_that_are_no_float32_numbers(size):
    points = np.array([[-1, 0, 0], [1, 0, 0]], np.float32)
    with pytest.raises(CoordinateRangeError, match="float64"):
        mlxsparse.voxelize(mx.array(points), None, size)
    assert mlxsparse.voxelize(points, None, 1e39).tensor.coords[:, 1].tolist() == [-1, 0]


def test_default_features_of_mlx_points_are_differentiable():
    points = mx.array([[0.25, 0.5, 0.5], [1.5, 0.25, 0.125], [1.25, 0.5, 0.5]])
    total = lambda p: (mlxsparse.voxelize(p, voxel_size=1.0).tensor.feats ** 2).sum()  # noqa: E731
    given = lambda p: (mlxsparse.voxelize(p, p, 1.0).tensor.feats ** 2).sum()  # noqa: E731
    assert mx.grad(total)(points).tolist() == mx.grad(given)(points).tolist() != [[0] * 3] * 3


def test_coarse_default_features_are_told_of():
    points = np.array([500_000.0, 4_649_776.0, 200.0]) + np.random.default_rng(0).random((50, 3)) * 5
    with pytest.warns(UserWarning, match=r"are 0.5 apart at 464978\d, and voxels 0.05 wide: pass an origin"):
        mlxsparse.voxelize(points, voxel_size=0.05)
    points[3] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mlxsparse.voxelize(points, voxel_size=0.05, origin=(500_000, 4_649_776, 200))
        mlxsparse.voxelize(points, np.ones((50, 1), np.float32), voxel_size=0.05)


def test_devoxelize_asks_for_batch_numbers():
    points, batch = np.full((2, 3), 0.5), np.array([0, 1])
    voxels = mlxsparse.voxelize(points, np.array([[1.0], [2.0]], np.float32), 1.0, batch=batch)
    for mode in ("nearest", "trilinear"):
        assert voxels.devoxelize(points, mode, batch=batch).tolist() == [[1], [2]]
        with pytest.raises(MLXSparseError, match="2 batch items: pass batch"):
            voxels.devoxelize(points, mode)
    with pytest.raises(MLXSparseError, match="there are none"):
        voxels.devoxelize(batch=batch)


def test_a_spatial_shape_is_the_tensors_and_drops_what_rounds_out_of_it():
    points = np.array([[0.8, 0, 0], [np.nextafter(0.9, 0), 0, 0], [0.95, 0, 0], [1e30, 0, 0], [-0.01, 0, 0]])
    assert int(points[1, 0] / 0.3) == 3 and points[1, 0] < 0.9
    box, grid = ((0, 0, 0), (0.9, 4, 4)), (3, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of what is far and has no voxel nothing is said
        voxels = mlxsparse.voxelize(points, voxel_size=0.3, bounds=box, spatial_shape=grid)
    assert voxels.point_to_voxel.tolist() == [0, -1, -1, -1, -1]
    assert mlxsparse.voxelize(points, voxel_size=0.3, spatial_shape=3).num_dropped_points == 4
    assert voxels.tensor.spatial_shape == (3, 4, 4)
    down = ops.max_pool3d(voxels.tensor, 3, 2, 1)
    assert down.spatial_shape == (2, 2, 2) and ops.dense(down).shape == (1, 2, 2, 2, 3)
    with pytest.raises(ShapeError, match="spatial_shape"):
        mlxsparse.voxelize(points, voxel_size=0.1, spatial_shape=-1)
    near = mx.array([[500000.125, 0, 0]])  # float32 is coarser there than a voxel
    more = {"origin": (500000.0, 0, 0), "spatial_shape": (13, 1, 1)}
    assert mlxsparse.voxelize(near, mx.ones((1, 1)), 0.01, **more).tensor.coords.tolist() == [[0, 12, 0, 0]]


def test_bounds_are_corners_and_batch_numbers_in_reach():
    points = np.array([[0.5, 0.5, 0.5]])
    for bounds in ([[0, 0, 0], [1, 1, 1]], [0, 0, 0, 1, 1, 1]):
        assert mlxsparse.voxelize(points, voxel_size=1.0, bounds=bounds).tensor.num_active == 1
    with pytest.raises(MLXSparseError, match="bounds must be"):
        mlxsparse.voxelize(points, voxel_size=1.0, bounds=[[0, 1], [0, 1], [0, 1]])
    with pytest.raises(CoordinateRangeError, match="batch number 2147483647 .*batch_size="):
        mlxsparse.voxelize(points, voxel_size=1.0, batch=np.array([2**31 - 1]))
