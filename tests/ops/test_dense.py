"""Dense arrays from sparse tensors and back."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse import ops
from mlxsparse.errors import CoordinateRangeError, DTypeError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy
from mlxsparse.testing.strategies import sites

pytestmark = pytest.mark.usefixtures("device")


@given(sites(far=False), st.sampled_from([0.0, -3.0]), st.integers(3, 4))
def test_dense_equals_the_oracle(case, fill, batch_size):
    coords, feats = case
    low = coords[:, 1:].min(axis=0, initial=0) - 1
    shape = (coords[:, 1:].max(axis=0, initial=0) - low + 2).tolist()
    x = from_numpy(coords, feats, batch_size=batch_size)
    got = ops.dense(x, shape, origin=low.tolist(), fill=fill)
    assert np.array_equal(np.array(got), oracle.dense(coords, feats, shape, low, fill, batch_size))


@given(sites(far=False, min_sites=1))
def test_round_trip(case):
    coords, feats = case
    coords = coords - np.array([0, *coords[:, 1:].min(axis=0)], np.int32)
    feats = feats + 10  # no zero row, which a dense array cannot tell from no site
    array = ops.dense(from_numpy(coords, feats, batch_size=3), coords[:, 1:].max(axis=0) + 1)
    want_coords, want = oracle.from_dense(np.array(array))
    x = ops.from_dense(array)
    got_coords, got = active_part(x)
    assert got_coords.tolist() == want_coords.tolist() and np.array_equal(got, want)
    order = np.lexsort(coords.T[::-1])
    assert np.array_equal(got_coords, coords[order]) and np.array_equal(got, feats[order])
    assert x.batch_size == 3


def test_the_spatial_shape_is_the_default_shape():
    x = from_numpy([[0, 1, 2, 0]], [[5.0]], spatial_shape=(2, 3, 4), batch_size=2)
    assert ops.dense(x).shape == (2, 2, 3, 4, 1)
    assert np.array(ops.dense(x))[0, 1, 2, 0, 0] == 5.0


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_the_type_stays(dtype):
    x = from_numpy([[0, 1, 2, 0]], [[5.0]], dtype)
    array = ops.dense(x, (2, 3, 1))
    assert array.dtype == dtype and ops.from_dense(array).dtype == dtype


def test_gradients():
    x = from_numpy([[0, 1, 0, 0], [0, 0, 0, 0]], [[5.0], [6.0]])
    g = mx.array([[10.0], [100.0], [1000.0]]).reshape(1, 3, 1, 1, 1)
    _, (got,) = mx.vjp(lambda v: ops.dense(x.replace(v), (3, 1, 1)), [x.feats], [g])
    assert np.array(got).tolist() == [[100.0], [10.0]]
    array = mx.array([0.0, 2.0, 3.0]).reshape(1, 3, 1, 1, 1)
    _, (back,) = mx.vjp(lambda a: ops.from_dense(a).feats, [array], [mx.array([[7.0], [8.0]])])
    assert np.array(back).reshape(-1).tolist() == [0.0, 7.0, 8.0]


def test_sites_outside_are_an_error():
    x = from_numpy([[0, 3, 0, 0], [0, -1, 0, 0]], [[5.0], [6.0]])
    for more in ({"shape": (4, 1, 1)}, {"shape": (4, 1, 1), "origin": (-1, 0, 0)}):
        with pytest.raises(CoordinateRangeError, match="outside"):
            ops.dense(x, **more)
    assert ops.dense(x, (5, 1, 1), origin=(-1, 0, 0)).shape == (1, 5, 1, 1, 1)


def test_no_rows():
    x = from_numpy(np.zeros((0, 4)), np.zeros((0, 2)), batch_size=2)
    assert not np.array(ops.dense(x, (2, 2, 2), fill=0)).any()
    empty = ops.from_dense(mx.zeros((2, 2, 2, 2, 3)))
    assert empty.coords.shape == (0, 4) and empty.feats.shape == (0, 3) and empty.batch_size == 2


def test_wrong_inputs():
    with pytest.raises(ShapeError, match=r"\(B, X, Y, Z, C\)"):
        ops.from_dense(mx.zeros((2, 2, 2, 2)))
    with pytest.raises(DTypeError):
        ops.from_dense(mx.zeros((2, 2, 2, 2, 1), mx.int32))


def test_from_dense_takes_numpy_and_names_what_it_does_not():
    grid = np.zeros((1, 2, 2, 2, 3), np.float32)
    grid[0, 1, 0, 1] = 5
    x = ops.from_dense(grid)
    assert x.coords.tolist() == [[0, 1, 0, 1]] and x.feats.tolist() == [[5.0, 5.0, 5.0]]
    masked = ops.from_dense(grid, mask=np.ones((1, 2, 2, 2), bool))
    assert masked.num_active == 8
    for wrong in ([1], None):
        with pytest.raises(DTypeError, match="grid must be an mlx or numpy array"):
            ops.from_dense(wrong)
    with pytest.raises(DTypeError, match="mask must be an mlx or numpy array"):
        ops.from_dense(grid, mask=[1])


def test_from_dense_narrows_nothing():
    tiny = np.full((1, 1, 1, 1, 1), 1e-60)
    for dtype in (np.float64, ">f4", np.int64):
        for grid in (tiny.astype(dtype), tiny.astype(dtype)[..., :0]):
            with pytest.raises(DTypeError, match="grid must be float32, float16 or bfloat16"):
                ops.from_dense(grid)
    with pytest.raises(ShapeError, match="mask must be bool"):
        ops.from_dense(tiny.astype(np.float32), mask=np.ones((1, 1, 1, 1), ">i4"))
    assert ops.from_dense(tiny.astype(np.float16) + 1).dtype == mx.float16


def test_dense_with_an_origin_reaches_as_far_as_the_sites():
    x = from_numpy(np.array([[0, 0, 0, 5]], np.int32), np.ones((1, 2)), batch_size=1, spatial_shape=8)
    assert ops.dense(x).shape == (1, 8, 8, 8, 2)
    assert ops.dense(x, origin=0).shape == (1, 1, 1, 6, 2)


@pytest.mark.parametrize("fill", [mx.ones((2,)), mx.array(0.5), "1", None])
def test_a_fill_that_is_no_number_is_refused(fill):
    """An array, as a learned token for empty cells, would get no gradient."""
    x = from_numpy([[0, 1, 1, 1]], np.ones((1, 2)))
    with pytest.raises(DTypeError, match="fill must be a number"):
        ops.dense(x, fill=fill)
