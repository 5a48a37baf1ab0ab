"""Pooling against the oracle: values, divisors, gradients, ties, empty outputs and items."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse import SparseTensor, ops
from mlxsparse.backend import executor
from mlxsparse.errors import CapacityError, MLXSparseError
from mlxsparse.testing import invariants, oracle
from mlxsparse.testing.adapt import active_part, from_numpy, numpy_function, numpy_gradient
from mlxsparse.testing.strategies import conv_geometries, features, permutations, sites

pytestmark = pytest.mark.usefixtures("device")

POOLS = ["max_pool3d", "sum_pool3d", "avg_pool3d"]
SUPPORTS = st.sampled_from(["touched", "parents"])


@st.composite
def cases(draw, far=True, integers=True):
    """(kernel geometry, coords, feats)."""
    geometry = draw(conv_geometries())
    return geometry, *draw(sites(far=far, integers=integers))


def keywords(geometry, **more):
    return {"kernel_size": geometry.kernel_size, **geometry.where, **more}


def close(got, want):
    return np.allclose(got, want, rtol=1e-6, atol=1e-6)  # an average divides; the rest is exact


@pytest.mark.parametrize("pool", POOLS)
@given(case=cases(), support=SUPPORTS)
def test_pool_equals_the_oracle(pool, case, support):
    geometry, coords, feats = case
    where = keywords(geometry, support=support)
    y = getattr(ops, pool)(from_numpy(coords, feats, batch_size=3), **where)
    want_coords, want = getattr(oracle, pool)(coords, feats, **where)
    got_coords, got = active_part(y)
    assert got_coords.tolist() == want_coords.tolist()
    assert close(got, want) if pool == "avg_pool3d" else np.array_equal(got, want)
    assert y.stride == geometry.stride and y.batch_size == 3


@given(case=cases(), support=SUPPORTS)
def test_average_over_the_kernel_volume(case, support):
    geometry, coords, feats = case
    where = keywords(geometry, support=support, count_include_empty=True)
    _, got = active_part(ops.avg_pool3d(from_numpy(coords, feats), **where))
    assert close(got, oracle.avg_pool3d(coords, feats, **where)[1])


@pytest.mark.parametrize("pool", POOLS)
@given(case=cases(), support=SUPPORTS, data=st.data())
def test_gradient_equals_the_oracle(pool, case, support, data):
    """Small integers, so that maxima tie often: the first tap in tap order takes the gradient."""
    geometry, coords, feats = case
    where = keywords(geometry)
    out_coords, y = getattr(oracle, pool)(coords, feats, support=support, **where)
    g = data.draw(features(*y.shape))
    gradient = numpy_gradient(lambda x: getattr(ops, pool)(x, support=support, **where))
    want = getattr(oracle, f"{pool}_gradient")(coords, feats, g, out_coords=out_coords, **where)
    assert close(gradient(coords, feats, g), want)


@given(case=cases(), data=st.data())
def test_gradient_of_the_average_over_the_kernel_volume(case, data):
    geometry, coords, feats = case
    where = keywords(geometry, count_include_empty=True)
    out_coords, y = oracle.avg_pool3d(coords, feats, **where)
    g = data.draw(features(*y.shape))
    got = numpy_gradient(lambda x: ops.avg_pool3d(x, **where))(coords, feats, g)
    assert close(got, oracle.avg_pool3d_gradient(coords, feats, g, out_coords=out_coords, **where))


@pytest.mark.parametrize("pool", POOLS)
@given(case=cases(far=False, integers=False), support=SUPPORTS, data=st.data())
def test_laws(pool, case, support, data):
    geometry, coords, feats = case

    def op(x):
        return getattr(ops, pool)(x, **keywords(geometry, support=support))

    f, gradient = numpy_function(op), numpy_gradient(op)
    invariants.check_permutation_equivariance(
        f, coords, feats, data.draw(permutations(len(coords))), rtol=1e-6
    )
    steps = np.array(data.draw(st.tuples(*[st.integers(-1000, 1000)] * 3)))
    invariants.check_translation_equivariance(f, coords, feats, steps * geometry.stride, steps, rtol=1e-6)
    invariants.check_batch_independence(f, coords, feats, rtol=1e-6)
    g = data.draw(features(*f(coords, feats)[1].shape, integers=False))
    if pool != "max_pool3d":
        invariants.check_linearity(f, coords, feats, feats[::-1], rtol=1e-5, atol=1e-5)
        invariants.check_adjointness(f, gradient, coords, feats, g)
        invariants.check_finite_differences(f, gradient, coords, feats, g)
    else:  # differentiable where no two inputs of a window are near each other
        spread = (0.25 * np.random.default_rng(0).permutation(feats.size)).reshape(feats.shape)
        invariants.check_finite_differences(f, gradient, coords, spread.astype(np.float32), g)


def test_the_stride_is_the_kernel_size_unless_given():
    x = from_numpy([[0, 0, 0, 0], [0, 2, 0, 0], [0, 5, 0, 0]], [[1.0], [2.0], [3.0]])
    y = ops.max_pool3d(x, (3, 1, 1))
    assert y.stride == (3, 1, 1)
    assert active_part(y)[1].tolist() == [[2.0], [3.0]]


def test_an_output_without_active_inputs_is_zero():
    x = from_numpy([[0, 1, 1, 1]], [[-5.0]])
    for pool in POOLS:
        y = getattr(ops, pool)(x, 1, 2, support="parents")
        assert active_part(y)[1].tolist() == [[0.0]]
    assert numpy_gradient(lambda x: ops.max_pool3d(x, 1, 2, support="parents"))(
        np.array([[0, 1, 1, 1]]), np.array([[-5.0]]), np.array([[1.0]])
    ).tolist() == [[0.0]]


def test_infinities_and_nan():
    coords = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 2, 0, 0], [0, 2, 0, 1]])
    x = from_numpy(coords, np.array([[-np.inf], [-np.inf], [np.nan], [1.0]], np.float32))
    assert np.array_equal(active_part(ops.max_pool3d(x, 2))[1], [[-np.inf], [np.nan]], equal_nan=True)


def test_coverage_reports_inputs_that_no_tap_reaches():
    x = from_numpy([[0, 0, 0, z] for z in (0, 1, 3, 5)], np.ones((4, 1)))
    where = {"kernel_size": (1, 1, 3), "stride": (1, 1, 3), "padding": (0, 0, 1)}
    assert np.array(ops.coverage(x, support="parents", **where)).tolist() == [1, 1, 1, 0]
    assert np.array(ops.coverage(x, **where)).tolist() == [1, 1, 1, 1]


# --- whole batch items ------------------------------------------------------------------------------------

GLOBAL = ["global_max_pool", "global_avg_pool", "global_sum_pool"]


@pytest.mark.parametrize("pool", GLOBAL)
@given(case=sites(), batch_size=st.integers(3, 5))
def test_global_pool_equals_the_oracle(pool, case, batch_size):
    coords, feats = case
    more = {"empty": -7.0} if pool == "global_max_pool" else {}
    got = getattr(ops, pool)(from_numpy(coords, feats, batch_size=batch_size), **more)
    want = getattr(oracle, pool)(coords, feats, batch_size, **more)
    assert got.shape == (batch_size, feats.shape[1]) and close(np.array(got), want)


def test_global_max_of_an_empty_item_raises():
    x = from_numpy([[1, 0, 0, 0]], [[-2.0]], batch_size=3)
    with pytest.raises(MLXSparseError, match="empty="):
        ops.global_max_pool(x)
    assert np.array(ops.global_max_pool(x, empty=0)).tolist() == [[0.0], [-2.0], [0.0]]


def test_of_many_empty_items_the_first_are_named():
    x = from_numpy([[999_999, 0, 0, 0]], [[-2.0]])
    with pytest.raises(MLXSparseError, match=r"\[0, 1, 2, 3, 4, 5, 6, 7\] and 999991 more have no sites"):
        ops.global_max_pool(x)
    with pytest.raises(MLXSparseError, match=r"\[0, 0, 0, 0, 0, 0, 0, 0\] and 999992 more; items past"):
        SparseTensor(np.array([[999_999, 0, 0, 0]], np.int32), x.feats, batch_counts=[1])


def test_a_value_of_empty_items_is_a_number():
    x = from_numpy([[0, 0, 0, 0]], [[-2.0]])
    for a in (x, x.with_capacity(2)):
        for wrong in ("a", [1.0, 2.0], object(), 1j):
            with pytest.raises(MLXSparseError, match="empty must be a number"):
                ops.global_max_pool(a, empty=wrong)
    y = from_numpy([[1, 0, 0, 0]], [[-2.0]], batch_size=2)
    for value in (-3, -3.0, np.int64(-3), np.float32(-3), mx.array(-3.0)):
        assert np.array(ops.global_max_pool(y, empty=value)).tolist() == [[-3.0], [-2.0]]
    assert np.array(ops.global_max_pool(y, empty=-np.inf))[0, 0] == -np.inf


@pytest.mark.parametrize("pool", GLOBAL)
def test_global_pool_gradient(pool):
    coords = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 9, 0, 0]])
    x = from_numpy(coords, [[1.0], [2.0], [3.0], [2.0]], batch_size=3)
    more = {"empty": 0.0} if pool == "global_max_pool" else {}
    g = mx.array([[10.0], [100.0], [1000.0]])
    _, (got,) = mx.vjp(lambda v: getattr(ops, pool)(x.replace(v), **more), [x.feats], [g])
    want = {
        "global_sum_pool": [100.0, 10.0, 100.0, 10.0],
        "global_avg_pool": [50.0, 5.0, 50.0, 5.0],
        "global_max_pool": [0.0, 10.0, 100.0, 0.0],  # of equals the first row
    }[pool]
    assert np.array(got)[:, 0].tolist() == want


@pytest.mark.parametrize("pool", GLOBAL)
def test_global_pool_of_half_types_accumulates_in_float32(pool):
    coords = np.argwhere(np.ones((1, 16, 16, 16)))
    x = from_numpy(coords, np.full((4096, 1), 0.1, np.float32), mx.float16)
    y = getattr(ops, pool)(x)
    tenth = float(np.float16(0.1))
    want = {"global_sum_pool": np.float16(4096 * tenth)}.get(pool, np.float16(0.1))
    assert y.dtype == mx.float16 and np.array(y).tolist() == [[want]]


def test_no_rows():
    x = from_numpy(np.zeros((0, 4)), np.zeros((0, 3)), batch_size=2)
    for pool in POOLS:
        y = getattr(ops, pool)(x, 2)
        assert y.coords.shape == (0, 4) and y.feats.shape == (0, 3)
    assert np.array(ops.global_avg_pool(x)).tolist() == [[0.0] * 3] * 2


def test_windows_too_large_for_lists_by_taps_say_so():
    x = from_numpy(np.array([[0, 0, 0, 0], [0, 5000, 1, 3]], np.int32), np.ones((2, 1)), batch_size=1)
    for size in (4096, 2**21):
        if executor() == "kernel":
            with pytest.raises(CapacityError, match="taps"):
                ops.max_pool3d(x, size)
            continue
        y = ops.max_pool3d(x, size)
        assert y.num_active == (2 if size == 4096 else 1)
        with pytest.raises(CapacityError, match="taps"):
            mx.grad(lambda f, size=size: ops.max_pool3d(x.replace(f), size).feats.sum())(x.feats)
        with pytest.raises(CapacityError, match="taps"):
            ops.upsample_nearest(y, size)
