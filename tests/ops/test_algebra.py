"""Joins against the oracle: sites, order, values, gradients, keys, capacities, errors."""

from __future__ import annotations

import operator

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse import ops
from mlxsparse.errors import CapacityError, DTypeError, IdentityError, MLXSparseError, ShapeError, StrideError
from mlxsparse.tensor import SparseTensor
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy, to_numpy
from mlxsparse.testing.strategies import features, permutations, sites

pytestmark = pytest.mark.usefixtures("device")

COMBINE = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "maximum": np.maximum,
    "cat": lambda a, b: np.concatenate([a, b], axis=1),
}
JOINS = ["inner", "left", "outer"]
DTYPES = st.sampled_from([mx.float32, mx.float16, mx.bfloat16])


def joined(name, a, b, join="strict", **more):
    return ops.cat([a, b], join, **more) if name == "cat" else getattr(ops, name)(a, b, join, **more)


@st.composite
def pairs(draw):
    """Two inputs of as many channels that share some sites, in another row order."""
    a = draw(sites())
    b = draw(sites(channels=a.feats.shape[1]))
    shared = draw(st.integers(0, len(a.coords)))
    coords = np.concatenate([a.coords[:shared], b.coords])
    coords = coords[np.sort(np.unique(coords, axis=0, return_index=True)[1])]
    coords = coords[draw(permutations(len(coords)))]
    return *a, coords, draw(features(len(coords), a.feats.shape[1]))


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("name", COMBINE)
@given(case=pairs(), dtype=DTYPES, extra=st.integers(0, 2))
def test_joins_equal_the_oracle(name, join, case, dtype, extra):
    ca, fa, cb, fb = case
    a, b = (from_numpy(c, f, dtype, batch_size=3, stride=2) for c, f in ((ca, fa), (cb, fb)))
    want_coords, want = oracle.join(*case, COMBINE[name], join)
    y = joined(name, a, b, join)
    coords, feats = active_part(y)
    assert coords.tolist() == want_coords.tolist()  # the order too
    assert np.array_equal(feats, want) and y.dtype == dtype
    assert y.stride == (2, 2, 2) and y.batch_size == 3
    assert (y.key is a.key) == (join == "left") and y.key is not b.key
    wide = [x.with_capacity(x.capacity + extra) for x in (a, b)]
    more = {"capacity": len(want) + extra} if join == "outer" else {}
    z = joined(name, *wide, join, **more)
    assert np.array_equal(active_part(z)[0], coords) and np.array_equal(active_part(z)[1], feats)
    limit = {"left": wide[0].capacity, "inner": min(x.capacity for x in wide)}
    assert z.capacity == limit.get(join, len(want) + extra) and z.key.fixed_capacity


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("name", COMBINE)
@given(case=pairs(), data=st.data())
def test_gradients(name, join, case, data):
    """Bilinear in the features, so exact on integers: d<f, g> along one-hot directions."""
    ca, fa, cb, fb = case
    fa, fb = fa + np.float32(0.25), fb + np.float32(0.5)  # no ties for the maximum
    a, b = from_numpy(ca, fa, batch_size=3), from_numpy(cb, fb, batch_size=3)

    def f(u, v):
        return joined(name, a.replace(u), b.replace(v), join).feats

    y = oracle.join(ca, fa, cb, fb, COMBINE[name], join)[1]
    g = data.draw(features(*y.shape))
    _, (da, db) = mx.vjp(f, [a.feats, b.feats], [mx.array(g)])

    def loss(u, v):
        return float((oracle.join(ca, u, cb, v, COMBINE[name], join)[1] * g).sum())

    step = 0.125
    for side, (got, base) in enumerate(((da, fa), (db, fb))):
        for at in list(np.ndindex(base.shape))[:6]:
            moved = [base.astype(float), base.astype(float)]
            moved[0][at] += step
            moved[1][at] -= step
            ends = [loss(m, fb) if side == 0 else loss(fa, m) for m in moved]
            assert np.isclose(np.array(got)[at], (ends[0] - ends[1]) / (2 * step), atol=1e-4)


def line(zs, values, **more):
    coords = np.array([[0, 0, 0, z] for z in zs]).reshape(-1, 4)
    return from_numpy(coords, np.array(values, float).reshape(-1, 1), **more)


def test_minkowski_478_365_spconv_509_joins_align_by_site():
    a = line([0, 1], [1, 2])
    for b in (line([1, 2], [10, 20]), line([2, 1], [20, 10])):
        assert np.array(ops.cat([a, b], "outer").feats).tolist() == [[1, 0], [2, 10], [0, 20]]
        assert np.array(ops.cat([a, b], "inner").feats).tolist() == [[2, 10]]
        assert np.array(ops.cat([a, b], "left").feats).tolist() == [[1, 0], [2, 10]]
        with pytest.raises(IdentityError, match="join"):
            ops.cat([a, b])


def test_cat_of_three():
    a, b, c = line([0, 1], [1, 2]), line([1, 2], [10, 20]), line([2, 3, 1], [100, 200, 300])
    y = ops.cat([a, b, c], "outer")
    assert np.array(y.coords)[:, 3].tolist() == [0, 1, 2, 3]
    assert np.array(y.feats).tolist() == [[1, 0, 0], [2, 10, 300], [0, 20, 100], [0, 0, 200]]
    assert np.array(ops.cat([a, b, c], "inner").feats).tolist() == [[2, 10, 300]]
    assert np.array(ops.cat([c, a, b], "left").feats).tolist() == [[100, 0, 20], [200, 0, 0], [300, 2, 10]]
    assert np.array(ops.cat([a]).feats).tolist() == [[1], [2]]
    assert ops.cat([a], "outer").key is a.key


@pytest.mark.parametrize("join", ["strict", *JOINS])
@pytest.mark.parametrize("name", COMBINE)
def test_operands_of_one_key_keep_it(name, join):
    a = line([3, 1, 2], [1, -2, 3])
    b = a.replace(-2 * a.feats)
    y = joined(name, a, b, join)
    assert y.key is a.key
    assert np.array_equal(np.array(y.feats), COMBINE[name](np.array(a.feats), np.array(b.feats)))


def test_missing_rows_count_as_zero():
    a, b = line([0, 1], [-1, 5]), line([1], [2])
    assert np.array(ops.maximum(a, b, "outer").feats).tolist() == [[0], [5]]
    assert np.array(ops.mul(a, b, "outer").feats).tolist() == [[0], [10]]
    assert np.array(ops.sub(b, a, "outer").feats).tolist() == [[1], [-3]]


def test_one_channel_fits_all():
    a = from_numpy([[0, 0, 0, 0], [0, 0, 0, 1]], [[1.0, 2.0], [3.0, 4.0]])
    assert np.array(ops.mul(a, line([1], [10]), "left").feats).tolist() == [[0, 0], [30, 40]]


def test_left_of_a_key_feeds_the_maps_of_that_key():
    a, b = line([2, 0, 1], [1, 2, 4]), line([1, 9], [10, 20])
    y = ops.subm_conv3d(ops.add(a, b, "left"), mx.ones((1, 1, 1, 3, 1)))
    assert np.array(y.feats)[:, 0].tolist() == [15, 16, 17]


class Scale(mlx.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = mx.array(1.0)


@pytest.mark.parametrize("join", JOINS)
def test_inside_value_and_grad(join):
    """MLX gives the arguments new keys; the same sites are found again."""
    a, b = line([0, 1], [1, 2]), line([1, 2], [10, 20])

    def loss(model, x, y):
        return ops.mul(x.replace(x.feats * model.w), y, join).feats.sum()

    value, gradient = mlx.nn.value_and_grad(model := Scale(), loss)(model, a, b)
    assert float(value) == 20.0 and float(gradient["w"]) == 20.0


@pytest.mark.parametrize("join", ["strict", *JOINS])
def test_padding_is_never_read(join):
    wide = line([0, 1], [1, 2]).with_capacity(4)
    leaves = list(wide)
    leaves[1] = mx.array([[1.0], [2.0], [float("nan")], [float("nan")]])
    bad = SparseTensor(leaves)  # as a transformation of MLX would put it together

    def loss(model, other):
        y = ops.mul(bad, bad.replace(mx.ones((4, 1)) * model.w) if other is None else other, join, **more)
        assert np.isfinite(np.array(y.feats)).all() and not np.array(y.feats)[y.num_active :].any()
        return (y.feats * model.w).sum()

    more = {"capacity": 6} if join == "outer" else {}
    others = [None] if join == "strict" else [None, line([1, 2], [10, 20]).with_capacity(5)]
    for other in others:
        _, gradient = mlx.nn.value_and_grad(model := Scale(), loss)(model, other)
        assert float(gradient["w"]) == (6.0 if other is None else 20.0)


def test_half_types_round_once():
    a, b = (line([0], [v], dtype=mx.bfloat16) for v in (1.0, 2.0**-9))
    assert to_numpy(ops.add(a, b, "outer").feats).tolist() == [[1.0]]
    assert ops.add(a, line([0], [2.0**-9]), "outer").dtype == mx.float32  # as MLX promotes


def test_no_rows():
    none, one = line([], [], batch_size=1), line([0], [3])
    for join, want in (("inner", []), ("left", []), ("outer", [[3.0]])):
        assert np.array(ops.add(none, one, join).feats).tolist() == want
        assert np.array(ops.cat([none, none], join).feats).shape == (0, 2)
    assert np.array(ops.add(one, none, "left").feats).tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, y: ops.add(x, y, "right"), MLXSparseError, "join"),
        (lambda x, y: ops.add(x, y.feats), DTypeError, "b must"),
        (lambda x, y: ops.cat([x, y.feats]), DTypeError, r"tensors\[1\]"),
        (lambda x, y: ops.cat([]), ShapeError, "cat"),
        (lambda x, y: ops.add(x, y), IdentityError, "outer"),
        (lambda x, y: ops.sub(x, line([0], [1], stride=2), "left"), StrideError, "stride"),
        (lambda x, y: ops.mul(x, line([0], [1], batch_size=2), "inner"), ShapeError, "batch_size"),
        (lambda x, y: ops.maximum(x, line([0], [1], spatial_shape=3), "outer"), ShapeError, "spatial_shape"),
        (
            lambda x, y: ops.add(x, from_numpy(np.array(y.coords), np.ones((2, 3))), "outer"),
            ShapeError,
            "chan",
        ),
        (lambda x, y: ops.add(x.with_capacity(3), y, "outer"), CapacityError, "capacity="),
        (lambda x, y: ops.add(x, y, "outer", capacity=2), CapacityError, "3 sites"),
        (lambda x, y: ops.add(x, y, "outer", capacity="a"), ShapeError, "capacity must be an integer"),
        (lambda x, y: ops.cat([x, y], "inner", capacity=8.5), ShapeError, "capacity must be an integer"),
        (lambda x, y: ops.add(x, y, "left", capacity=2), MLXSparseError, "capacity"),
    ],
)
def test_wrong_inputs(call, error, message):
    two = from_numpy([[0, 0, 0, 0], [0, 0, 0, 1]], np.ones((2, 2)))
    with pytest.raises(error, match=message):
        call(two, from_numpy([[0, 0, 0, 1], [0, 0, 0, 2]], np.ones((2, 2))))
