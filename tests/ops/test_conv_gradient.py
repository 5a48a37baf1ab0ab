"""Gradients of convolutions: against the oracle, finite differences, adjointness; transforms that raise."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse import ops
from mlxsparse.errors import TracedOnHostError, TransformError
from mlxsparse.testing import invariants, oracle
from mlxsparse.testing.adapt import active_part, from_numpy, numpy_function, numpy_gradient
from mlxsparse.testing.strategies import conv_geometries, features, sites

pytestmark = pytest.mark.usefixtures("device")

OPERATORS = ["subm", "conv", "parents", "generative", "transpose"]


def operator(name, geometry, coords):
    """(x, w, b) -> tensor. The transposed one goes to the sites of `coords` and their z neighbours."""
    where = {**geometry.where, "groups": geometry.groups}
    if name == "subm":
        where.pop("stride")
        return lambda x, w, b=None: ops.subm_conv3d(x, w, b, **where)
    if name == "generative":
        return lambda x, w, b=None: ops.generative_conv_transpose3d(x, w, b, **where)
    if name == "transpose":
        rows = np.unique(np.concatenate([coords, coords + [0, 0, 0, 1]]), axis=0)
        target = from_numpy(rows, np.zeros((len(rows), 1)), batch_size=3)
        return lambda x, w, b=None: ops.conv_transpose3d(x, w, b, out=target, **where)
    support = "parents" if name == "parents" else "touched"
    return lambda x, w, b=None: ops.conv3d(x, w, b, support=support, **where)


def expected(name, geometry, coords, feats, weight, out_coords, cotangent):
    where = {**geometry.where, "groups": geometry.groups, "out_coords": out_coords}
    if name == "subm":
        where["stride"] = 1
    if name in ("generative", "transpose"):
        return oracle.conv_transpose_gradients(coords, feats, weight, cotangent, **where)
    return oracle.conv_gradients(coords, feats, weight, cotangent, **where)


@st.composite
def cases(draw, integers=True):
    geometry = draw(conv_geometries())
    coords, feats = draw(sites(channels=geometry.in_channels, integers=integers, far=False))
    seed = draw(st.integers(0, 999))
    return geometry, coords, feats, geometry.weight(seed, integers), geometry.bias(seed)


@pytest.mark.parametrize("name", OPERATORS)
@given(case=cases(), data=st.data())
def test_gradients_equal_the_oracle(name, case, data):
    geometry, coords, feats, weight, bias = case
    x = from_numpy(coords, feats, stride=geometry.stride, batch_size=3)
    f = operator(name, geometry, coords)
    w, b = mx.array(weight), mx.array(bias)
    out_coords, y = active_part(f(x, w, b))
    cotangent = data.draw(features(*y.shape))
    primals = [x.feats, w, b]
    _, got = mx.vjp(lambda v, w, b: f(x.replace(v), w, b).feats, primals, [mx.array(cotangent)])
    want = expected(name, geometry, coords, feats, weight, out_coords, cotangent)
    for what, one, other in zip(("feats", "weight", "bias"), got, want):
        assert np.array_equal(np.array(one), other), what


@pytest.mark.parametrize("name", OPERATORS)
@given(case=cases(integers=False), data=st.data())
def test_adjointness_and_finite_differences(name, case, data):
    geometry, coords, feats, weight, _ = case
    f = operator(name, geometry, coords)
    tensor = {"stride": geometry.stride, "batch_size": 3}
    op = numpy_function(lambda x: f(x, mx.array(weight)), **tensor)
    gradient = numpy_gradient(lambda x: f(x, mx.array(weight)), **tensor)
    cotangent = data.draw(features(*op(coords, feats)[1].shape, integers=False))
    invariants.check_adjointness(op, gradient, coords, feats, cotangent)
    invariants.check_finite_differences(op, gradient, coords, feats, cotangent)
    # the same laws for the weight, which stands where the features stood
    x = from_numpy(coords, feats, **tensor)

    def of_weight(_, flat):
        return coords, np.array(f(x, mx.array(flat.reshape(weight.shape))).feats)

    def weight_gradient(_, flat, g):
        w = mx.array(flat.reshape(weight.shape))
        _, (dweight,) = mx.vjp(lambda w: f(x, w).feats, [w], [mx.array(g)])
        return np.array(dweight).reshape(flat.shape)

    flat = weight.reshape(-1, 1)
    invariants.check_adjointness(of_weight, weight_gradient, coords, flat, cotangent)
    invariants.check_finite_differences(of_weight, weight_gradient, coords, flat, cotangent)


@pytest.mark.parametrize("name", OPERATORS)
def test_no_rows_give_zero_gradients(name):
    coords = np.zeros((0, 4), np.int32)
    x = from_numpy(coords, np.zeros((0, 2)), stride=2, batch_size=3)
    w, b = mx.ones((3, 2, 2, 2, 2)), mx.ones((3,))
    f = {
        "subm": lambda x, w, b: ops.subm_conv3d(x, w, b),
        "conv": lambda x, w, b: ops.conv3d(x, w, b, stride=2),
        "parents": lambda x, w, b: ops.conv3d(x, w, b, stride=2, support="parents"),
        "generative": lambda x, w, b: ops.generative_conv_transpose3d(x, w, b, stride=2),
        "transpose": lambda x, w, b: ops.conv_transpose3d(
            x, w, b, stride=2, out=from_numpy(coords, np.zeros((0, 1)), batch_size=3)
        ),
    }[name]
    y = f(x, w, b)
    assert y.coords.shape == (0, 4) and y.feats.shape == (0, 3) and y.batch_size == 3
    assert np.array(y.batch_counts).tolist() == [0, 0, 0]
    _, grads = mx.vjp(lambda v, w, b: f(x.replace(v), w, b).feats, [x.feats, w, b], [mx.zeros((0, 3))])
    assert [g.shape for g in grads] == [(0, 2), w.shape, b.shape]
    assert not any(np.array(g).any() for g in grads)


# --- transforms -------------------------------------------------------------------------------------------


def small():
    coords = np.argwhere(np.random.default_rng(0).random((1, 4, 4, 4)) < 0.5)
    return from_numpy(
        coords, np.random.default_rng(1).standard_normal((len(coords), 2)).astype(np.float32), stride=2
    )


WEIGHT = mx.array(np.random.default_rng(2).standard_normal((2, 3, 3, 3, 2)).astype(np.float32))
OF_FEATS = {
    "subm": lambda x: ops.subm_conv3d(x, WEIGHT),
    "conv": lambda x: ops.conv3d(x, WEIGHT, stride=2, padding=1),
    "generative": lambda x: ops.generative_conv_transpose3d(x, WEIGHT, stride=2),
    "max": lambda x: ops.max_pool3d(x, 2),
    "sum": lambda x: ops.sum_pool3d(x, 2),
    "avg": lambda x: ops.avg_pool3d(x, 2),
}


@pytest.mark.parametrize("name", OF_FEATS)
def test_unsupported_transforms_raise(name):
    x, op = small(), OF_FEATS[name]

    def f(feats):
        return op(x.replace(feats)).feats

    with pytest.raises(TransformError):
        mx.eval(mx.jvp(f, [x.feats], [mx.ones_like(x.feats)]))
    # On a GPU device MLX meets the kernel inside before it asks the operator, and refuses itself.
    with pytest.raises(ValueError, match="vmap"):
        mx.eval(mx.vmap(f)(mx.stack([x.feats, x.feats])))

    def first(feats):
        return (mx.grad(lambda v: (f(v) ** 2).sum())(feats) ** 2).sum()

    with pytest.raises(TransformError):
        mx.eval(mx.grad(first)(x.feats))


@pytest.mark.parametrize("of", ["weight", "bias"])
def test_unsupported_transforms_of_parameters_raise(of):
    x, bias = small(), mx.zeros((2,))

    def f(parameter):
        w, b = (parameter, bias) if of == "weight" else (WEIGHT, parameter)
        return ops.subm_conv3d(x, w, b).feats

    at = WEIGHT if of == "weight" else bias
    with pytest.raises(TransformError):
        mx.eval(mx.jvp(f, [at], [mx.ones_like(at)]))
    with pytest.raises(ValueError, match="vmap"):
        mx.eval(mx.vmap(f)(mx.stack([at, at])))
    with pytest.raises(TransformError):
        mx.eval(mx.grad(lambda v: (mx.grad(lambda u: (f(u) ** 2).sum())(v) ** 2).sum())(at))


@pytest.mark.parametrize("name", OF_FEATS)
def test_compile_around_a_host_operator_raises(name):
    op = OF_FEATS[name]
    with mx.stream(mx.cpu):
        x = small()
        with pytest.raises(TracedOnHostError, match="mlxsparse.compile"):
            mx.eval(mx.compile(lambda feats: op(x.replace(feats)).feats)(x.feats))


@pytest.mark.parametrize("name", OF_FEATS)
def test_gradient_runs_give_the_same_bits(name):
    x, op = small(), OF_FEATS[name]
    g = mx.array(np.random.default_rng(3).standard_normal(op(x).feats.shape).astype(np.float32))
    runs = []
    for _ in range(20):
        y, dfeats = mx.vjp(lambda v: op(x.replace(v)).feats, [x.feats], [g])
        runs.append(np.array(y[0]).tobytes() + np.array(dfeats[0]).tobytes())
    assert len(set(runs)) == 1


def test_weight_gradient_runs_give_the_same_bits():
    x = small()
    g = mx.array(np.random.default_rng(3).standard_normal(x.feats.shape).astype(np.float32))
    runs = {
        np.array(mx.vjp(lambda w: ops.subm_conv3d(x, w).feats, [WEIGHT], [g])[1][0]).tobytes()
        for _ in range(20)
    }
    assert len(runs) == 1


def test_gradient_goes_through_a_chain_of_operators():
    """Down, up and a skip, as in a U-Net: the gradient of the whole by the oracle's pieces."""
    coords = np.argwhere(np.random.default_rng(5).random((2, 4, 4, 4)) < 0.4)
    feats = np.random.default_rng(6).integers(-3, 4, (len(coords), 2)).astype(np.float32)
    weight = np.random.default_rng(7).integers(-2, 3, (2, 2, 2, 2, 2)).astype(np.float32)
    x, w = from_numpy(coords, feats), mx.array(weight)

    def f(v, w):
        skip = x.replace(v)
        low = ops.conv3d(skip, w, stride=2)
        return (ops.conv_transpose3d(low, w, stride=2, out=skip) + skip).feats

    ones = np.ones_like(feats)
    _, (dfeats, dweight) = mx.vjp(f, [x.feats, w], [mx.array(ones)])
    low_coords, low = oracle.conv3d(coords, feats, weight, stride=2)
    dlow, dup, _ = oracle.conv_transpose_gradients(low_coords, low, weight, ones, out_coords=coords, stride=2)
    dskip, ddown, _ = oracle.conv_gradients(coords, feats, weight, dlow, out_coords=low_coords, stride=2)
    assert np.array_equal(np.array(dfeats), dskip + ones)
    assert np.array_equal(np.array(dweight), dup + ddown)


@pytest.mark.parametrize("biased", [False, True])
def test_one_map_serves_calls_with_and_without_gradients(biased):
    coords = np.array([[0, 0, 0, z] for z in (-2, -1, 0, 3)] + [[1, 0, 1, 0], [1, 0, 2, 0]], np.int32)
    feats = np.arange(6 * 3, dtype=np.float32).reshape(6, 3) - 7
    w = mx.array((np.arange(2 * 27 * 3).reshape(2, 3, 3, 3, 3) % 5 - 2).astype(np.float32))
    b = [mx.array([3.0, -4.0])] if biased else []

    def plain(x):
        return ops.subm_conv3d(x, w, *b).feats

    def both(x):
        ct = mx.array((np.arange(12).reshape(6, 2) % 3 - 1).astype(np.float32))
        primals = [x.feats, w, *b]
        return mx.vjp(lambda v, w, *b: ops.subm_conv3d(x.replace(v), w, *b).feats, primals, [ct])

    x = from_numpy(coords, feats, batch_size=2)
    first, (value, gradients), again = plain(x), both(x), plain(x)  # the first call of each kind differs
    (more, others), last = both(x), plain(x)
    for y in (value[0], again, more[0], last):
        assert mx.array_equal(y, first)
    wanted = both(from_numpy(coords, feats, batch_size=2))[1]
    for found in (gradients, others):
        assert all(mx.array_equal(a, c) for a, c in zip(found, wanted, strict=True))
    bias = np.array(b[0]) if b else None
    _, y64 = oracle.conv3d(coords, feats, np.array(w), bias, padding=1, out_coords=coords)
    assert np.array_equal(np.array(first), y64)
