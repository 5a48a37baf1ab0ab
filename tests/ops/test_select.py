"""prune, crop, topk, sets of sites and lookup against the oracle; capacities, padding, gradients, errors."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_map

from mlxsparse import ops
from mlxsparse.errors import (
    CapacityError,
    DTypeError,
    MLXSparseError,
    ShapeError,
    StrideError,
    TracedOnHostError,
    TransformError,
)
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy, numpy_gradient, to_numpy
from mlxsparse.testing.strategies import coordinate_sets, features, sites

pytestmark = pytest.mark.usefixtures("device")
DTYPES = st.sampled_from([mx.float32, mx.float16, mx.bfloat16])


def same(y, x, rows):
    """y is the given rows of x, on a new key."""
    coords, feats = active_part(x)
    rows = np.array(rows, int)
    got_coords, got_feats = active_part(y)
    assert got_coords.tolist() == coords[rows].tolist()
    assert np.array_equal(got_feats, feats[rows], equal_nan=True)
    assert y.key is not x.key and y.dtype == x.dtype and y.manager is x.manager
    assert (y.stride, y.batch_size, y.spatial_shape) == (x.stride, x.batch_size, x.spatial_shape)
    assert np.array(y.batch_counts).tolist() == np.bincount(coords[rows, 0], minlength=x.batch_size).tolist()
    assert np.array(y.coords)[len(rows) :].tolist() == [[-1, 0, 0, 0]] * (y.capacity - len(rows))
    assert not to_numpy(y.feats)[len(rows) :].any()


@st.composite
def masked(draw):
    coords, feats = draw(sites())
    keep = np.array(draw(st.lists(st.booleans(), min_size=len(coords), max_size=len(coords))), bool)
    return coords, feats, keep


@given(masked(), DTYPES, st.integers(0, 3))
def test_prune(case, dtype, extra):
    coords, feats, keep = case
    x = from_numpy(coords, feats, dtype, batch_size=3, stride=(2, 1, 4))
    rows = np.flatnonzero(keep)
    y = ops.prune(x, mx.array(keep))
    same(y, x, rows)
    assert y.capacity == len(rows)
    wide = x.with_capacity(x.capacity + extra)
    padding = np.ones(extra, bool)  # whatever the mask says there
    for mask in (keep, np.concatenate([keep, padding])):
        z = ops.prune(wide, mask)
        same(z, wide, rows)
        assert z.capacity == wide.capacity and z.key.fixed_capacity


@given(masked(), st.data())
def test_gradient_goes_to_the_kept_rows(case, data):
    coords, feats, keep = case
    g = data.draw(features(int(keep.sum()), feats.shape[1]))
    got = numpy_gradient(lambda x: ops.prune(x, keep))(coords, feats, g)
    want = np.zeros_like(feats)
    want[keep] = g
    assert np.array_equal(got, want)


corner = st.tuples(*[st.integers(-6, 6)] * 3)


@given(sites(), corner, corner)
def test_crop(case, a, b):
    coords, feats = case
    lo, hi = np.minimum(a, b), np.maximum(a, b)
    x = from_numpy(coords, feats, batch_size=3)
    rows = oracle.crop_rows(coords, lo, hi)
    for low, high in ((lo, hi), (lo.tolist(), tuple(hi.tolist()))):
        same(ops.crop(x, low, high), x, rows)
    wide = ops.crop(x.with_capacity(len(coords) + 2), lo, hi)
    assert wide.capacity == len(coords) + 2 and wide.num_active == len(rows)


def test_crop_is_half_open_and_reaches_the_ends_of_the_range():
    edge = 2**30 - 1
    x = from_numpy([[0, 0, 0, z] for z in (-edge, -1, 0, 1, edge)], np.ones((5, 1)))
    assert active_part(ops.crop(x, (0, 0, -1), (1, 1, 1)))[0][:, 3].tolist() == [-1, 0]
    assert ops.crop(x, -(2**40), 2**40).num_active == 5
    assert ops.crop(x, 0, 0).num_active == 0
    assert active_part(ops.crop(x, 0, edge))[0][:, 3].tolist() == [0, 1]


@given(sites(channels=1), st.integers(0, 6), st.booleans(), DTYPES)
def test_topk(case, k, per_batch, dtype):
    """Scores are small integers, so that many are equal: the lower row stays."""
    coords, feats = case
    x = from_numpy(coords, feats, dtype, batch_size=3)
    y = ops.topk(x, k, per_batch=per_batch, allow_fewer=True)
    same(y, x, oracle.topk_rows(coords, feats[:, 0], k, per_batch))
    other = ops.topk(x, k, -feats[:, 0].astype(np.int64), per_batch=per_batch, allow_fewer=True)
    same(other, x, oracle.topk_rows(coords, -feats[:, 0], k, per_batch))
    wide = x.with_capacity(len(coords) + 3)
    scores = mx.concatenate([wide.feats[: len(coords), 0], mx.full((3,), 99.0, dtype)])
    z = ops.topk(wide, k, scores, per_batch=per_batch, allow_fewer=True)
    assert np.array_equal(active_part(z)[0], active_part(y)[0]) and z.capacity == wide.capacity


def test_topk_larger_than_the_set():
    x = from_numpy([[0, 0, 0, 0], [2, 0, 0, 0], [2, 1, 0, 0]], [[1.0], [2.0], [3.0]], batch_size=3)
    with pytest.raises(ShapeError, match="batch item 1 has 0 sites.*allow_fewer"):
        ops.topk(x, 1)
    with pytest.raises(ShapeError, match="x has 3 sites.*allow_fewer"):
        ops.topk(x, 4, per_batch=False)
    assert ops.topk(x, 4, per_batch=False, allow_fewer=True).num_active == 3
    assert active_part(ops.topk(x, 1, allow_fewer=True))[1].tolist() == [[1.0], [3.0]]
    assert ops.topk(x, 3, per_batch=False).num_active == 3


def test_topk_extreme_scores():
    x = from_numpy([[0, 0, 0, z] for z in range(4)], [[-np.inf], [np.inf], [0.0], [-0.0]])
    assert active_part(ops.topk(x, 2))[1].tolist() == [[np.inf], [0.0]]
    low = np.array([-(2**31), 2**31 - 1, -(2**31), 0], np.int32)  # -(-2**31) is not an int32
    assert active_part(ops.topk(x, 2, low))[0][:, 3].tolist() == [1, 3]
    with pytest.raises(MLXSparseError, match="NaN"):
        ops.topk(x, 2, mx.array([0.0, float("nan"), 1.0, 2.0]))


def test_topk_gradient():
    x = from_numpy([[0, 0, 0, z] for z in range(3)], [[1.0], [3.0], [2.0]])
    g = mx.grad(lambda v: (ops.topk(x.replace(v), 2).feats * mx.array([[5.0], [7.0]])).sum())(x.feats)
    assert np.array(g).tolist() == [[0.0], [5.0], [7.0]]


@given(coordinate_sets(), coordinate_sets(), st.data())
def test_sets_of_sites(a, b, data):
    shared = data.draw(st.integers(0, len(a)))
    b = np.concatenate([a[:shared], b])
    b = b[np.sort(np.unique(b, axis=0, return_index=True)[1])]
    x, y = (from_numpy(c, np.zeros((len(c), 1)), batch_size=3, stride=2) for c in (a, b))
    for make in ("union", "intersection"):
        key = getattr(ops, make)(x, y.key)
        want = getattr(oracle, make)(a, b)
        assert np.array(key.coords).tolist() == want.tolist()
        assert key.stride == (2, 2, 2) and key.batch_size == 3 and key.capacity == len(want)
        padded = getattr(ops, make)(x, y, capacity=len(want) + 2)
        assert padded.capacity == len(want) + 2 and padded.count == len(want) and padded.fixed_capacity
    wanted = np.concatenate([b, [[0, 99, 0, 0], [7, 0, 0, 0], [-1, 0, 0, 0]]]).astype(np.int32)
    got = ops.lookup(x, mx.array(wanted))
    assert got.dtype == mx.int32 and np.array(got).tolist() == oracle.lookup(a, wanted)
    assert np.array(ops.lookup(x.key, wanted)).tolist() == oracle.lookup(a, wanted)


def test_a_union_is_an_output_of_a_convolution():
    a, b = (from_numpy([[0, 0, 0, z] for z in zs], np.ones((len(zs), 1))) for zs in ([0, 1], [1, 2]))
    y = ops.conv3d(a, mx.ones((1, 1, 1, 1, 1)), out=ops.union(a, b))
    assert np.array(y.feats)[:, 0].tolist() == [1.0, 1.0, 0.0]


def test_capacity_of_sets():
    a = from_numpy([[0, 0, 0, 0]], [[1.0]]).with_capacity(4)
    b = from_numpy([[0, 0, 0, 0], [0, 0, 0, 1]], [[1.0], [2.0]]).with_capacity(3)
    with pytest.raises(CapacityError, match="capacity="):
        ops.union(a, b)
    with pytest.raises(CapacityError, match="2 sites|need 2 rows"):  # on a GPU when it is looked at
        ops.conv3d(b, mx.ones((1, 1, 1, 1, 1)), out=ops.union(a, b, capacity=1)).check()
    assert ops.union(a, b, capacity=2).count == 2
    assert ops.intersection(a, b).capacity == 3


def poisoned(x):
    """The leaves with NaN in the padding rows, put together again as MLX's transformations do."""
    live = mx.arange(x.capacity)[:, None] < x.active_rows
    return tree_map(
        lambda v: (
            mx.where(live, v, float("nan")) if isinstance(v, mx.array) and v.ndim == 2 and v is x.feats else v
        ),
        x,
    )


@pytest.mark.parametrize(
    "op",
    [
        lambda x: ops.prune(x, np.array([True, False, True])),
        lambda x: ops.crop(x, 0, 2),
        lambda x: ops.topk(x, 2, per_batch=False),
        lambda x: ops.sort(x, "hilbert"),
    ],
)
def test_padding_is_never_read(op):
    x = from_numpy([[0, 0, 0, 1], [0, 0, 0, 3], [1, 0, 0, 0]], [[1.0], [2.0], [3.0]])
    want = op(x)
    wide = x.with_capacity(6)
    y = op(poisoned(wide))
    assert y.capacity == 6 and np.array_equal(active_part(y)[0], active_part(want)[0])
    assert np.array_equal(np.array(y.feats)[: want.capacity], np.array(want.feats))
    assert not np.array(y.feats)[want.capacity :].any()


def other():
    return from_numpy([[0, 0, 0, 1], [1, 0, 0, 7]], [[1.0], [2.0]])


@pytest.mark.parametrize(
    "op",
    [
        lambda x: ops.prune(x, np.array([True, False, True])),
        lambda x: ops.crop(x, 0, 2),
        lambda x: ops.topk(x, 1, mx.array([1.0, 2.0, 3.0])),
        lambda x: ops.sort(x, "hilbert"),
        lambda x: ops.add(x, other(), "outer"),
        lambda x: ops.cat([x, other()], "inner"),
    ],
)
def test_unsupported_transformations_raise(op):
    x = from_numpy([[0, 0, 0, 1], [0, 0, 0, 3], [1, 0, 0, 0]], [[1.0], [2.0], [3.0]])

    def f(v):
        return op(x.replace(v)).feats

    if mx.default_device() == mx.cpu:
        with pytest.raises(TracedOnHostError):
            mx.compile(f)(x.feats)
    else:  # kernels read no value
        assert np.array_equal(np.array(mx.compile(f)(x.feats)), np.array(f(x.feats)))
    with pytest.raises(TransformError):
        mx.jvp(f, [x.feats], [x.feats])
    with pytest.raises(TransformError):
        mx.grad(lambda v: mx.grad(lambda u: (f(u) ** 2).sum())(v).sum())(x.feats)


def test_no_rows():
    x = from_numpy(np.zeros((0, 4)), np.zeros((0, 1)), batch_size=2)
    for y in (
        ops.prune(x, np.zeros(0, bool)),
        ops.crop(x, 0, 5),
        ops.topk(x, 3, allow_fewer=True),
        ops.topk(x, 0),
        ops.sort(x, "morton"),
    ):
        assert y.coords.shape == (0, 4) and y.feats.shape == (0, 1) and y.batch_size == 2
    assert ops.union(x, x).count == 0 and ops.intersection(x, x).count == 0
    assert ops.lookup(x, np.array([[0, 0, 0, 0]], np.int32)).tolist() == [-1]
    none = ops.prune(from_numpy([[1, 0, 0, 0]], [[2.0]]), np.array([False]))
    assert none.num_active == 0 and none.batch_size == 2


X = [[0, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.prune(x, mx.array([True])), ShapeError, "mask"),
        (lambda x: ops.prune(x, mx.array([[True], [False]])), ShapeError, "mask"),
        (lambda x: ops.prune(x, mx.array([1, 0])), DTypeError, "mask must be bool"),
        (lambda x: ops.prune(x, [True, False]), DTypeError, "mask"),
        (lambda x: ops.prune(x.feats, mx.array([True, False])), DTypeError, "SparseTensor"),
        (lambda x: ops.crop(x, (0, 0, 1), 0), ShapeError, "lo"),
        (lambda x: ops.crop(x, 0.5, 2), ShapeError, "lo"),
        (lambda x: ops.crop(x, 0, (1, 2)), ShapeError, "hi"),
        (lambda x: ops.topk(x, 1), ShapeError, "scores="),
        (lambda x: ops.topk(x, -1, x.feats[:, 0]), ShapeError, "k must"),
        (lambda x: ops.topk(x, 1.0, x.feats[:, 0]), ShapeError, "k must"),
        (lambda x: ops.topk(x, 1, x.feats), ShapeError, "scores"),
        (lambda x: ops.topk(x, 1, mx.array([True, False])), DTypeError, "scores"),
        (lambda x: ops.union(x, from_numpy(X, np.ones((2, 1)), stride=2)), StrideError, "union"),
        (lambda x: ops.union(x, from_numpy(X, np.ones((2, 1)), batch_size=2)), ShapeError, "batch_size"),
        (
            lambda x: ops.intersection(x, from_numpy(X, np.ones((2, 1)), spatial_shape=4)),
            ShapeError,
            "spatial_shape",
        ),
        (lambda x: ops.union(x, x.feats), DTypeError, "b must"),
        (lambda x: ops.union(x, x, capacity=8.5), ShapeError, "capacity must be an integer"),
        (lambda x: ops.union(x, x, capacity="a"), ShapeError, "capacity must be an integer"),
        (lambda x: ops.intersection(x, x, capacity=8.5), ShapeError, "capacity must be an integer"),
        (lambda x: ops.intersection(x, x, capacity=-1), CapacityError, "capacity"),
        (lambda x: ops.union(x.with_capacity(3), x, capacity=8.5), ShapeError, "capacity must be an integer"),
        (lambda x: ops.intersection(x.with_capacity(3), x, capacity=True), ShapeError, "an integer"),
        (lambda x: ops.union(x.with_capacity(3), x, capacity=-1), CapacityError, "capacity"),
        (lambda x: ops.lookup(x, np.zeros((1, 3), np.int32)), ShapeError, "coords"),
        (lambda x: ops.lookup(x, np.zeros((1, 4))), DTypeError, "coords"),
    ],
)
def test_wrong_inputs(call, error, message):
    with pytest.raises(error, match=message):
        call(from_numpy(X, np.ones((2, 2))))


def test_a_capacity_of_numpy_is_as_an_int():
    x = from_numpy(X, np.ones((2, 2)))
    for a in (x, x.with_capacity(3)):
        for key in (ops.union(a, x, capacity=np.int64(5)), ops.intersection(a, x, capacity=np.int32(5))):
            assert type(key.capacity) is int and key.capacity == 5 and key.count == 2
