"""Points of a voxel side by side, majority labels, counts of dropped points; spconv's Point2Voxel."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse
from mlxsparse import ops
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError
from mlxsparse.interop.torch_file import load_torch_file
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import to_numpy
from mlxsparse.testing.strategies import features
from tests.data_paths import data_path

pytestmark = pytest.mark.usefixtures("device")


@st.composite
def clouds(draw):
    """(voxels, number of points): crowded and empty cells, some points dropped."""
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    n = draw(st.integers(0, 30))
    points = rng.uniform(-1.5, 1.5, (n, 3))
    points[rng.random(n) < 0.1, 0] = np.nan
    more = {
        "batch": draw(st.sampled_from([None, rng.integers(0, 3, n)])),
        "max_points": draw(st.sampled_from([None, 1, 2])),
        "max_voxels": draw(st.sampled_from([None, 1, 4])),
        "bounds": draw(st.sampled_from([None, ((-1, -1, -1), (1, 1.5, 1))])),
    }
    return mlxsparse.voxelize(points, np.ones((n, 1), np.float32), 1.0, **more), n


@given(clouds(), st.integers(1, 5), st.sampled_from([mx.float32, mx.float16, mx.bfloat16]), st.data())
def test_collect_equals_the_oracle(case, most, dtype, data):
    voxels, n = case
    feats = data.draw(features(n, 2))
    index = np.array(voxels.point_to_voxel)
    want, want_counts = oracle.collect(index, feats, most, voxels.tensor.capacity)
    got, counts = ops.collect(voxels, mx.array(feats).astype(dtype), most, return_counts=True)
    assert got.dtype == dtype and np.array_equal(to_numpy(got), want)
    assert counts.dtype == mx.int32 and np.array(counts).tolist() == want_counts
    assert np.array_equal(np.array(ops.collect(voxels, feats, most)), want)


@given(clouds(), st.integers(1, 3), st.data())
def test_gradient_goes_back_to_the_points(case, most, data):
    voxels, n = case
    g = data.draw(features(voxels.tensor.capacity * most, 2)).reshape(-1, most, 2)
    _, (got,) = mx.vjp(lambda v: ops.collect(voxels, v, most), [mx.zeros((n, 2))], [mx.array(g)])
    number = oracle.collect(
        np.array(voxels.point_to_voxel), np.arange(1, n + 1)[:, None], most, voxels.tensor.capacity
    )[0]
    want = np.zeros((n + 1, 2))
    np.add.at(want, number[..., 0].astype(int), g)
    assert np.array_equal(np.array(got), want[1:])


@given(clouds(), st.integers(1, 4), st.booleans(), st.data())
def test_mode_equals_the_oracle(case, classes, far, data):
    """Few classes, so that votes are often equal: the smaller label wins."""
    voxels, n = case
    labels = np.array(data.draw(st.lists(st.integers(-1, classes - 1), min_size=n, max_size=n)), np.int32)
    if far:
        labels = np.where(labels > 0, 2**31 - 5 + labels, labels).astype(np.int32)
    want = oracle.mode(np.array(voxels.point_to_voxel), labels, voxels.tensor.capacity)
    got = voxels.mode(mx.array(labels), None if far else classes)
    assert got.dtype == mx.int32 and np.array(got).tolist() == want
    assert np.array(voxels.mode(labels.astype(np.int64))).tolist() == want


@given(clouds())
def test_dropped_and_overfull_points_are_counted(case):
    voxels, n = case
    index = np.array(voxels.point_to_voxel)
    assert voxels.num_dropped_points == (index < 0).sum()
    used = int(np.array(voxels.counts).sum())
    assert voxels.num_dropped_points + voxels.num_overfull_points + used == n


def test_mmdetection3d_406_counts():
    points = np.column_stack([[0.05, 0.06, 0.15, 0.07, 0.25, 0.16], np.zeros((6, 2))])
    voxels = mlxsparse.voxelize(points, None, 0.1, max_points=2, max_voxels=2)
    assert voxels.num_dropped_points == 1 and voxels.num_overfull_points == 1
    got, counts = ops.collect(voxels, points[:, :1].astype(np.float32), 2, return_counts=True)
    assert np.allclose(np.array(got)[..., 0], [[0.05, 0.06], [0.15, 0.16]])
    assert counts.tolist() == [2, 2]


@pytest.mark.parametrize("name", ["p2v_cpu_basic", "p2v_cpu_trunc", "p2v_cpu_cap"])
def test_equals_point_to_voxel_of_spconv(name):
    """float32 points, caps on voxels and points; there in the order of meeting, indices z, y, x."""
    cases = load_torch_file(data_path("spconv_golden", "golden_ext_p2v.pt"))["cases"]
    (case,) = [c for c in cases if c["id"] == name]
    ctor, want = case["ctor"], {k: np.asarray(v) for k, v in case["expect"].items()}
    points = np.asarray(case["points"])
    most = ctor["max_num_points_per_voxel"]
    limits = np.array(ctor["coors_range_xyz"], np.float32)
    voxels = mlxsparse.voxelize(
        mx.array(points[:, :3]),
        mx.array(points),
        ctor["vsize_xyz"],
        bounds=(limits[:3], limits[3:]),
        max_points=most,
        max_voxels=ctor["max_num_voxels"],
    )
    zyx = np.array(voxels.tensor.coords)[:, :0:-1]
    row = {tuple(site): r for r, site in enumerate(zyx.tolist())}
    order = [row[tuple(site)] for site in want["indices"].tolist()]
    assert sorted(order) == list(range(len(zyx)))
    got, counts = ops.collect(voxels, mx.array(points), most, return_counts=True)
    assert np.array_equal(np.array(counts)[order], want["num_per_voxel"])
    assert np.array_equal(np.array(got)[order], want["voxels"])
    assert np.array_equal(np.array(voxels.counts), np.array(counts))
    met = np.append(np.array(order), -1)
    assert np.array_equal(np.array(voxels.point_to_voxel), met[want["pc_voxel_id"]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v: ops.collect(v.tensor, np.ones((2, 1), np.float32), 1), DTypeError, "voxels"),
        (lambda v: ops.collect(v, np.ones((3, 1), np.float32), 1), ShapeError, "feats"),
        (lambda v: ops.collect(v, np.ones((2, 1)), 1), DTypeError, "feats"),
        (lambda v: ops.collect(v, np.ones((2, 1), np.float32), 0), ShapeError, "max_points"),
        (lambda v: v.mode(np.zeros(3, int)), ShapeError, "labels"),
        (lambda v: v.mode(np.zeros(2)), DTypeError, "labels"),
        (lambda v: v.mode(np.array([0, -2])), MLXSparseError, "labels"),
        (lambda v: v.mode(np.array([0, 3]), num_classes=3), MLXSparseError, "labels"),
        (lambda v: v.mode(np.array([0, 2**31])), MLXSparseError, "labels"),
    ],
)
def test_wrong_inputs(call, error, message):
    with pytest.raises(error, match=message):
        call(mlxsparse.voxelize(np.zeros((2, 3)), None, 1.0))
