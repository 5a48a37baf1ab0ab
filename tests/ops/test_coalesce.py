"""coalesce: gradients, half types, empty batch items, order independence, errors."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse
from mlxsparse.errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, to_numpy
from mlxsparse.testing.strategies import coordinate_sets, features

pytestmark = pytest.mark.usefixtures("device")

REDUCTIONS = ["mean", "sum", "max", "min", "first"]


@st.composite
def repeated(draw):
    """(coords, feats): every site once or several times, rows shuffled."""
    coords = draw(coordinate_sets(max_sites=12))
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    rows = np.repeat(np.arange(len(coords)), rng.integers(1, 4, len(coords)))
    coords = coords[rng.permutation(rows)]
    return coords, draw(features(len(coords), draw(st.integers(1, 3))))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@given(case=repeated(), dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]))
def test_values_in_every_type(reduce, case, dtype):
    coords, feats = case
    x = mlxsparse.coalesce(coords, mx.array(feats).astype(dtype), reduce, batch_size=5, stride=(1, 2, 3))
    want_coords, want = oracle.coalesce(coords, feats, reduce)
    got_coords, got = active_part(x)
    assert got_coords.tolist() == want_coords.tolist()
    assert np.array_equal(got, to_numpy(mx.array(want.astype(np.float32)).astype(dtype)))  # rounded once
    assert x.dtype == dtype and x.batch_size == 5 and x.stride == (1, 2, 3)
    assert np.array(x.batch_counts).tolist() == np.bincount(want_coords[:, 0], minlength=5).tolist()


@pytest.mark.parametrize("reduce", REDUCTIONS)
@given(case=repeated(), data=st.data())
def test_gradient(reduce, case, data):
    """Each row's share: 1, 1 / count, or all to the first row that is the maximum, minimum or first."""
    coords, feats = case
    sites, merged = oracle.coalesce(coords, feats, reduce)
    g = data.draw(features(*merged.shape))
    _, (got,) = mx.vjp(
        lambda v: mlxsparse.coalesce(coords, v, reduce).feats, [mx.array(feats)], [mx.array(g)]
    )
    want = np.zeros(feats.shape)
    for site, row in zip(sites.tolist(), g):
        members = [i for i, c in enumerate(coords.tolist()) if c == site]
        for channel in range(feats.shape[1]):
            values = feats[members, channel]
            pick = {"max": int(values.argmax()), "min": int(values.argmin()), "first": 0}
            if reduce in pick:
                want[members[pick[reduce]], channel] = row[channel]
            else:
                want[members, channel] = row[channel] / (len(members) if reduce == "mean" else 1)
    assert np.allclose(np.array(got), want, rtol=1e-6)


def test_minkowski_116_273_537_merging_does_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    coords = rng.integers(-2, 2, (500, 4)).astype(np.int32)
    coords[:, 0] = 0
    feats = rng.integers(-8, 8, (500, 3)).astype(np.float32)
    order = rng.permutation(500)
    for reduce in ("sum", "mean", "max", "min"):
        a = mlxsparse.coalesce(coords, feats, reduce)
        b = mlxsparse.coalesce(coords[order], feats[order], reduce)
        assert np.array_equal(np.array(a.coords), np.array(b.coords))
        assert np.array_equal(np.array(a.feats), np.array(b.feats))


def test_spconv_513_sums_accumulate_wide():
    coords = np.zeros((4096, 4), np.int32)
    x = mlxsparse.coalesce(coords, mx.full((4096, 1), 0.1, mx.float16))
    assert x.dtype == mx.float16 and np.array(x.feats).tolist() == [[409.5]]


def test_nan_wins_and_extremes_do_not_start_from_zero():
    coords = np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]], np.int32)
    feats = np.array([[-3.0], [-1.0], [np.nan], [2.0]], np.float32)
    assert np.array_equal(
        np.array(mlxsparse.coalesce(coords, feats, "max").feats), [[-1.0], [np.nan]], equal_nan=True
    )
    assert np.array_equal(
        np.array(mlxsparse.coalesce(coords, -feats, "min").feats), [[1.0], [np.nan]], equal_nan=True
    )


def test_no_rows():
    x = mlxsparse.coalesce(np.zeros((0, 4), np.int32), mx.zeros((0, 3)), batch_size=2)
    assert x.coords.shape == (0, 4) and x.feats.shape == (0, 3) and x.batch_size == 2


def test_the_grid_of_merged_sites():
    """A detector's sites from above keep its grid, which bounds what a convolution reaches."""
    flat = np.array([[0, 1, 3, 0], [0, 1, 3, 0]], np.int32)
    x = mlxsparse.coalesce(flat, mx.ones((2, 1)), batch_size=2, spatial_shape=(2, 4, 1))
    y = mlxsparse.ops.conv3d(x, mx.ones((1, 3, 3, 1, 1)), padding=(1, 1, 0))
    assert x.spatial_shape == y.spatial_shape == (2, 4, 1) and y.num_active == 4 and y.batch_size == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c, f: mlxsparse.coalesce(c, f, "median"), MLXSparseError, "reduce"),
        (lambda c, f: mlxsparse.coalesce(c[:, 1:], f), ShapeError, "coords"),
        (lambda c, f: mlxsparse.coalesce(c, f[:1]), ShapeError, "feats"),
        (lambda c, f: mlxsparse.coalesce(c.astype(np.int64), f), DTypeError, "coords"),
        (lambda c, f: mlxsparse.coalesce(c, mx.zeros((2, 1), mx.int32)), DTypeError, "feats"),
        (lambda c, f: mlxsparse.coalesce(c - 1, f), CoordinateRangeError, "batch"),
        (lambda c, f: mlxsparse.coalesce(c + 1, f, batch_size=1), CoordinateRangeError, "batch_size"),
        (lambda c, f: mlxsparse.coalesce(c, f, spatial_shape=0), CoordinateRangeError, "spatial_shape"),
        (lambda c, f: mlxsparse.coalesce(c + [0, 2**30, 0, 0], f), DTypeError, "coords"),
        (
            lambda c, f: mlxsparse.coalesce(c + np.array([0, 2**30, 0, 0], np.int32), f),
            CoordinateRangeError,
            "coords",
        ),
    ],
)
def test_wrong_inputs(call, error, message):
    with pytest.raises(error, match=message):
        call(np.zeros((2, 4), np.int32), mx.ones((2, 1)))
