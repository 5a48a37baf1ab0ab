"""Curve orders: against a recursive oracle, and the laws of Morton and Hilbert curves."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse import ops
from mlxsparse.engine import curves
from mlxsparse.errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy, numpy_gradient
from mlxsparse.testing.strategies import coordinate_sets, features, sites

pytestmark = pytest.mark.usefixtures("device")

ORDERS = ["lexicographic", "morton", "morton-trans", "hilbert", "hilbert-trans"]
DTYPES = st.sampled_from([mx.float32, mx.float16, mx.bfloat16])


@pytest.mark.parametrize("order", ORDERS)
@given(
    coords=st.one_of(coordinate_sets(span=5), coordinate_sets(span=2**30 - 8), coordinate_sets(span=2**17))
)
def test_order_equals_the_recursive_oracle(order, coords):
    """Near and far sites: the key has one word or two, and leaves out none, some or most levels."""
    x = from_numpy(coords, np.zeros((len(coords), 1)), batch_size=3)
    got = ops.serialize(x, order)
    assert got.dtype == mx.int32 and np.array(got).tolist() == oracle.curve_rows(coords, order)


@pytest.mark.parametrize("order", ORDERS)
@given(coords=coordinate_sets(span=12, far=False), depth=st.integers(5, 30))
def test_depth_equals_the_recursive_oracle(order, coords, depth):
    coords = coords + np.array([0, 12, 12, 12], np.int32)
    got = ops.serialize(from_numpy(coords, np.zeros((len(coords), 1))), order, depth=depth)
    assert np.array(got).tolist() == oracle.curve_rows(coords, order, depth)


@pytest.mark.parametrize("order", ORDERS)
@given(case=sites(), dtype=DTYPES, extra=st.integers(0, 3))
def test_sort_permutes_rows(order, case, dtype, extra):
    coords, feats = case
    x = from_numpy(coords, feats, dtype, batch_size=4, stride=2)
    rows = oracle.curve_rows(coords, order)
    y = ops.sort(x, order)
    assert active_part(y)[0].tolist() == coords[rows].tolist()
    assert np.array_equal(active_part(y)[1], feats[rows])
    assert y.key is not x.key and y.stride == x.stride and y.batch_size == 4 and y.dtype == dtype
    wide = ops.sort(x.with_capacity(len(coords) + extra), order)
    assert wide.capacity == len(coords) + extra and np.array_equal(active_part(wide)[0], coords[rows])


@given(sites(), st.sampled_from(ORDERS), st.data())
def test_gradient_is_permuted_back(case, order, data):
    coords, feats = case
    g = data.draw(features(*feats.shape))
    got = numpy_gradient(lambda x: ops.sort(x, order))(coords, feats, g)
    want = np.empty_like(g)
    want[oracle.curve_rows(coords, order)] = g
    assert np.array_equal(got, want)


def cube(levels, origin):
    cells = np.argwhere(np.ones((2**levels,) * 3)) + origin
    cells = np.random.default_rng(0).permutation(cells)
    return from_numpy(np.column_stack([np.zeros(len(cells), int), cells]), np.zeros((len(cells), 1)))


@pytest.mark.parametrize("order", ["hilbert", "hilbert-trans"])
@pytest.mark.parametrize("corner", [0, -16, 2**29 - 16, -(2**30) + 16])
def test_consecutive_hilbert_cells_share_a_face(order, corner):
    """In any cube whose corner is a multiple of its size."""
    path = np.array(ops.sort(cube(4, corner), order).coords)[:, 1:]
    assert (np.abs(np.diff(path, axis=0)).sum(axis=1) == 1).all()
    assert len(np.unique(path, axis=0)) == 16**3


def test_morton_order_of_the_unit_cube():
    path = np.array(ops.sort(cube(1, 0), "morton").coords)[:, 1:]
    assert path.tolist() == [[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]
    path = np.array(ops.sort(cube(1, 0), "morton-trans").coords)[:, 1:]
    assert path.tolist() == [[x, y, z] for y in (0, 1) for x in (0, 1) for z in (0, 1)]


@pytest.mark.parametrize("order", ORDERS)
@given(coords=coordinate_sets(min_sites=2), more=coordinate_sets(span=2**30 - 8))
def test_the_order_of_two_sites_does_not_depend_on_the_others(order, coords, more):
    both = np.concatenate([coords, more])
    both = both[np.sort(np.unique(both, axis=0, return_index=True)[1])]
    few, many = (
        np.array(ops.sort(from_numpy(c, np.zeros((len(c), 1))), order).coords) for c in (coords, both)
    )
    known = {tuple(site) for site in coords.tolist()}
    assert [site for site in many.tolist() if tuple(site) in known] == few.tolist()


@pytest.mark.parametrize("span", [40, 2**17, 2**20, 2**29])
def test_every_width_of_key_sorts_alike(span):
    """From keys that fit beside their row number to two words: the same as two words always."""
    rng = np.random.default_rng(span)
    coords = np.column_stack([rng.integers(0, 5, 3000), rng.integers(-span, span, (3000, 3))])
    axes = [coords[:, a].copy() for a in (1, 2, 3)]
    high, low = curves._keys(axes, 2**30, 31, hilbert=True)
    want = np.lexsort((low, high, coords[:, 0]))
    assert np.array_equal(curves.curve_order(coords, "hilbert"), want)
    low = curves._interleave([(a + 2**30).astype(np.uint32) for a in axes])
    high = curves._interleave([(a + 2**30).astype(np.uint32) >> np.uint32(21) for a in axes])
    assert np.array_equal(curves.curve_order(coords, "morton"), np.lexsort((low, high, coords[:, 0])))


@pytest.mark.parametrize("bits", range(30))
def test_levels_that_are_left_out_do_not_matter(bits):
    """The eight cells next to the origin of each octant, 2**bits wide: as on the whole curve."""
    corners = np.argwhere(np.ones((4, 4, 4))) - 2
    coords = np.column_stack([np.zeros(64, int), corners * 2**bits])
    coords = coords[(coords[:, 1:] > -(2**30)).all(axis=1)]
    for order in ("morton", "hilbert"):
        assert curves.curve_order(coords, order).tolist() == oracle.curve_rows(coords, order)


def test_large_batch_numbers():
    coords = np.array([[2**31 - 2, 1, 0, 0], [5, 0, 0, 0], [2**31 - 2, 0, 0, 0]], np.int64)
    for order in ORDERS:
        assert curves.curve_order(coords, order).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.sort(x, "zigzag"), MLXSparseError, "order"),
        (lambda x: ops.serialize(x.coords), DTypeError, "SparseTensor"),
        (lambda x: ops.serialize(x, depth=0), ShapeError, "depth"),
        (lambda x: ops.serialize(x, depth=31), ShapeError, "depth"),
        (lambda x: ops.serialize(x, depth=4.0), ShapeError, "depth must be an integer"),
        (lambda x: ops.serialize(x, depth=True), ShapeError, "depth must be an integer"),
        (lambda x: ops.serialize(x, depth=np.int64(31)), ShapeError, "depth"),
        (lambda x: ops.serialize(x, depth=1), CoordinateRangeError, "depth"),
        (lambda x: ops.sort(ops.crop(x, -1, 1), "morton", depth=4), CoordinateRangeError, "origin"),
    ],
)
def test_wrong_inputs(call, error, message):
    with pytest.raises(error, match=message):
        call(from_numpy([[0, -1, 0, 0], [0, 0, 0, 2]], np.ones((2, 1))))


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_a_depth_of_numpy_is_as_an_int(kind):
    x = from_numpy(np.argwhere(np.ones((1, 4, 4, 4))), np.ones((64, 1)))
    for order in ORDERS:
        for depth in (5, 30):
            want = ops.serialize(x, order, depth=depth).tolist()
            assert ops.serialize(x, order, depth=kind(depth)).tolist() == want
