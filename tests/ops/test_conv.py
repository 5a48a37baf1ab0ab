"""Convolutions against the oracle and against dense convolution: sites, row order, values, laws."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse import ops
from mlxsparse.testing import invariants, oracle
from mlxsparse.testing.adapt import active_part, from_numpy, numpy_function
from mlxsparse.testing.strategies import ConvGeometry, conv_geometries, features, permutations, sites

pytestmark = pytest.mark.usefixtures("device")

SEEDS = st.integers(0, 999)


@st.composite
def cases(draw, far=True, **sizes):
    """(geometry, coords, feats, weight, bias) of small integers, on which float32 is exact."""
    geometry = draw(conv_geometries())
    coords, feats = draw(sites(channels=geometry.in_channels, far=far, **sizes))
    seed = draw(SEEDS)
    bias = geometry.bias(seed) if draw(st.booleans()) else None
    return geometry, coords, feats, geometry.weight(seed), bias


def arrays(weight, bias):
    return mx.array(weight), None if bias is None else mx.array(bias)


def assert_rows(out, coords, feats):
    """Exactly these rows in this order, and padding as it must be."""
    got_coords, got_feats = active_part(out)
    assert got_coords.tolist() == np.asarray(coords).tolist()
    assert np.array_equal(got_feats, feats), (got_feats, feats)
    rows = len(got_coords)
    assert out.coords.dtype == mx.int32 and out.batch_counts.dtype == mx.int32
    assert (np.array(out.coords)[rows:] == [-1, 0, 0, 0]).all()
    assert not np.array(out.feats.astype(mx.float32))[rows:].any()
    assert np.array(out.batch_counts).tolist() == [
        int((got_coords[:, 0] == b).sum()) for b in range(out.batch_size)
    ]


# --- against the oracle -----------------------------------------------------------------------------------


@given(cases(), st.booleans())
def test_subm(case, own_padding):
    geometry, coords, feats, weight, bias = case
    x = from_numpy(coords, feats)
    where = {"dilation": geometry.dilation, "groups": geometry.groups}
    if own_padding:
        where["padding"] = geometry.padding
    out = ops.subm_conv3d(x, *arrays(weight, bias), **where)
    assert_rows(out, coords, oracle.subm_conv3d(coords, feats, weight, bias, **where))
    assert out.key is x.key and out.stride == x.stride


@given(cases(), st.sampled_from(["touched", "parents"]))
def test_conv(case, support):
    geometry, coords, feats, weight, bias = case
    where = {**geometry.where, "groups": geometry.groups, "support": support}
    out = ops.conv3d(from_numpy(coords, feats, batch_size=4), *arrays(weight, bias), **where)
    assert_rows(out, *oracle.conv3d(coords, feats, weight, bias, **where))
    assert out.stride == geometry.stride and out.batch_size == 4


@given(cases(), st.data(), st.sampled_from(["coords", "tensor", "key"]))
def test_conv_onto_given_rows(case, data, form):
    geometry, coords, feats, weight, bias = case
    touched = oracle.touched_support(coords, geometry.kernel_size, **geometry.where)
    rows = touched[data.draw(permutations(len(touched)))][: data.draw(st.integers(0, len(touched)))]
    rows = np.concatenate([rows, [[1, 77, 77, 77]]])  # a row that no input reaches has the bias
    target = from_numpy(rows, np.zeros((len(rows), 1)), stride=geometry.stride, batch_size=3)
    out = {"coords": target.coords, "tensor": target, "key": target.key}[form]
    where = {**geometry.where, "groups": geometry.groups}
    y = ops.conv3d(from_numpy(coords, feats, batch_size=3), *arrays(weight, bias), out=out, **where)
    assert_rows(y, *oracle.conv3d(coords, feats, weight, bias, out_coords=rows, **where))
    if form != "coords":
        assert y.key is target.key


@given(cases(far=False), st.data())
def test_transpose_onto_given_rows(case, data):
    geometry, coords, feats, weight, bias = case
    reached = oracle.generative_support(coords, geometry.kernel_size, **geometry.where)
    rows = reached[data.draw(permutations(len(reached)))][: data.draw(st.integers(0, len(reached)))]
    rows = np.concatenate([rows, [[0, 777, 0, 0]]])
    target = from_numpy(rows, np.zeros((len(rows), 1)), batch_size=3)
    where = {**geometry.where, "groups": geometry.groups}
    x = from_numpy(coords, feats, stride=geometry.stride, batch_size=3)
    y = ops.conv_transpose3d(x, *arrays(weight, bias), out=target, **where)
    assert_rows(y, rows, oracle.conv_transpose3d(coords, feats, weight, bias, out_coords=rows, **where))
    assert y.key is target.key


@given(cases(far=False))
def test_generative(case):
    geometry, coords, feats, weight, bias = case
    where = {**geometry.where, "groups": geometry.groups}
    x = from_numpy(coords, feats, stride=[2 * s for s in geometry.stride])
    out = ops.generative_conv_transpose3d(x, *arrays(weight, bias), **where)
    assert_rows(out, *oracle.generative_conv_transpose3d(coords, feats, weight, bias, **where))
    assert out.stride == (2, 2, 2)


@given(cases(far=False), st.tuples(*[st.integers(6, 9)] * 3), st.booleans())
def test_spatial_shape_bounds_outputs(case, shape, transposed):
    geometry, coords, feats, weight, bias = case
    coords = coords.copy()
    coords[:, 1:] -= coords[:, 1:].min(axis=0, initial=0)
    inside = (coords[:, 1:] < shape).all(axis=1)
    coords, feats = coords[inside], feats[inside]
    where = {**geometry.where, "groups": geometry.groups}
    x = from_numpy(coords, feats, stride=geometry.stride if transposed else 1, spatial_shape=shape)
    op, want = ops.conv3d, oracle.conv3d
    if transposed:
        op, want = ops.generative_conv_transpose3d, oracle.generative_conv_transpose3d
    y = op(x, *arrays(weight, bias), **where)
    assert_rows(y, *want(coords, feats, weight, bias, spatial_shape=shape, **where))
    if transposed:
        assert all((array_coords < y.spatial_shape).all() for array_coords in active_part(y)[0][:, 1:])
    else:
        whole = np.zeros((1, *shape, geometry.in_channels), np.float32)
        dense = oracle.dense_conv3d(whole, weight, **geometry.where, groups=geometry.groups)
        assert y.spatial_shape == dense.shape[1:4]


# --- against MLX's dense convolution ----------------------------------------------------------------------


@st.composite
def dense_cases(draw):
    geometry = draw(conv_geometries())
    shape = draw(st.tuples(st.integers(1, 2), *[st.integers(5, 6)] * 3))
    rng = np.random.default_rng(draw(SEEDS))
    coords = rng.permutation(np.argwhere(rng.random(shape) < 0.2)).astype(np.int32).reshape(-1, 4)
    return geometry, shape, coords, draw(features(len(coords), geometry.in_channels)), geometry.weight(1)


@given(dense_cases())
def test_equals_dense_convolution(case):
    geometry, shape, coords, feats, weight = case
    array = mx.array(oracle.dense(coords, feats, shape[1:], batch_size=shape[0]).astype(np.float32))
    where = {**geometry.where, "groups": geometry.groups}
    whole = oracle.dense_conv3d(np.array(array), weight, **where)
    if geometry.groups == 1:  # what MLX takes in three dimensions
        assert np.array_equal(np.array(mx.conv3d(array, mx.array(weight), **geometry.where)), whole)
    x = from_numpy(coords, feats, batch_size=shape[0], spatial_shape=shape[1:])
    y_coords, y_feats = active_part(ops.conv3d(x, mx.array(weight), **where))
    assert np.array_equal(oracle.dense(y_coords, y_feats, whole.shape[1:4], batch_size=shape[0]), whole)


@given(dense_cases())
def test_equals_dense_transposed_convolution(case):
    geometry, shape, coords, feats, weight = case
    reach = [d * (k - 1) for d, k in zip(geometry.dilation, geometry.kernel_size)]
    if any(p > r for p, r in zip(geometry.padding, reach)):  # MLX 0.32 makes too small an output there
        geometry = replace(geometry, padding=(0, 0, 0))
    weight = np.repeat(weight, geometry.groups, axis=4)  # one group, what MLX takes
    array = mx.array(oracle.dense(coords, feats, shape[1:], batch_size=shape[0]).astype(np.float32))
    with mx.stream(mx.cpu):  # exact integers; MLX's GPU convolutions round to TF32
        whole = np.array(mx.conv_transpose3d(array, mx.array(weight), **geometry.where))
    x = from_numpy(coords, feats, stride=geometry.stride, batch_size=shape[0], spatial_shape=shape[1:])
    y_coords, y_feats = active_part(ops.generative_conv_transpose3d(x, mx.array(weight), **geometry.where))
    assert np.array_equal(oracle.dense(y_coords, y_feats, whole.shape[1:4], batch_size=shape[0]), whole)


# --- laws -------------------------------------------------------------------------------------------------

OPERATORS = ["subm", "conv", "parents", "generative"]


def operator(name, geometry, weight, bias=None):
    """The operator as a function of a tensor; input stride; how far outputs move for one stride of input."""
    w, b = arrays(weight, bias)
    where = {**geometry.where, "groups": geometry.groups}
    if name == "subm":
        where.pop("stride")
        return lambda x: ops.subm_conv3d(x, w, b, **where)
    if name == "generative":
        return lambda x: ops.generative_conv_transpose3d(x, w, b, **where)
    support = "parents" if name == "parents" else "touched"
    return lambda x: ops.conv3d(x, w, b, support=support, **where)


@pytest.mark.parametrize("name", OPERATORS)
@given(case=cases(far=False), data=st.data())
def test_laws(name, case, data):
    geometry, coords, feats, weight, bias = case
    with_bias = numpy_function(operator(name, geometry, weight, bias), stride=geometry.stride)
    linear = numpy_function(operator(name, geometry, weight), stride=geometry.stride)
    invariants.check_permutation_equivariance(with_bias, coords, feats, data.draw(permutations(len(coords))))
    steps = np.array(data.draw(st.tuples(*[st.integers(-1000, 1000)] * 3)))
    moves = {"subm": (steps, steps), "generative": (steps, steps * geometry.stride)}
    shift, out_shift = moves.get(name, (steps * geometry.stride, steps))
    invariants.check_translation_equivariance(with_bias, coords, feats, shift, out_shift)
    invariants.check_batch_independence(with_bias, coords, feats)
    invariants.check_linearity(linear, coords, feats, feats[:, ::-1])


@given(cases(far=False), st.data())
def test_subm_keeps_the_row_order(case, data):
    geometry, coords, feats, weight, _ = case
    order = data.draw(permutations(len(coords)))
    f = operator("subm", geometry, weight)
    straight, permuted = f(from_numpy(coords, feats)), f(from_numpy(coords[order], feats[order]))
    assert np.array_equal(np.array(straight.feats)[order], np.array(permuted.feats))


@given(cases(far=False))
def test_created_rows_do_not_depend_on_the_input_order(case):
    geometry, coords, feats, weight, _ = case
    f = operator("conv", geometry, weight)
    a, b = f(from_numpy(coords, feats)), f(from_numpy(coords[::-1], feats[::-1]))
    assert np.array_equal(np.array(a.coords), np.array(b.coords))
    assert np.array_equal(np.array(a.feats), np.array(b.feats))


# --- identity and caches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
@given(case=cases(far=False))
def test_a_cached_map_gives_the_same_bits(name, case):
    geometry, coords, feats, _, _ = case
    weight = geometry.weight(3, integers=False)
    feats = np.random.default_rng(4).standard_normal(feats.shape).astype(np.float32)
    f = operator(name, geometry, weight)
    x = from_numpy(coords, feats, stride=geometry.stride)
    miss, hit = f(x), f(x)
    fresh = f(from_numpy(coords, feats, stride=geometry.stride))
    assert miss.key is hit.key and miss.key is not fresh.key
    for other in (hit, fresh):
        assert np.array_equal(np.array(miss.coords), np.array(other.coords))
        assert np.array_equal(np.array(miss.feats), np.array(other.feats))


@pytest.mark.parametrize("name", OPERATORS)
def test_one_tensor_under_many_geometries(name):
    """What the caches keep for one geometry is not taken for another that differs in one entry."""
    coords = np.argwhere(np.random.default_rng(0).random((2, 5, 5, 5)) < 0.2)
    feats = np.random.default_rng(1).integers(-4, 5, (len(coords), 2)).astype(np.float32)
    base = ConvGeometry((2, 3, 2), (1, 2, 2), (0, 1, 0), (1, 2, 1), 1, 2, 2)
    variants = [base]
    for field in ("kernel_size", "stride", "padding", "dilation"):
        for axis in range(3):
            entry = list(getattr(base, field))
            entry[axis] += 1
            variants.append(replace(base, **{field: tuple(entry)}))
    shared = from_numpy(coords, feats, stride=6)
    for geometry in (*variants, *variants):
        f = operator(name, geometry, geometry.weight(2))
        got, want = f(shared), f(from_numpy(coords, feats, stride=6))
        assert_rows(got, *active_part(want))
        assert got.stride == want.stride


def test_maps_are_built_once_and_used_by_convolution_and_pooling():
    coords = np.argwhere(np.random.default_rng(0).random((1, 6, 6, 6)) < 0.4)
    x = from_numpy(coords, np.ones((len(coords), 2), np.float32))
    weight = mx.ones((2, 2, 2, 2, 2))
    before = x.manager.stats()["maps_built"]
    down = ops.conv3d(x, weight, stride=2)
    pooled = ops.max_pool3d(x, 2)
    mx.eval(ops.conv3d(down.replace(down.feats), mx.ones((2, 1, 1, 1, 2))).feats)
    up = ops.conv_transpose3d(down, weight, stride=2, out=x)
    mx.eval(up.feats, pooled.feats)
    assert x.manager.stats()["maps_built"] - before == 2  # one for k2 s2 in all its uses, one for 1x1x1
    assert pooled.key is down.key and up.key is x.key


@given(cases(far=False))
def test_transpose_by_the_reversed_encoder_map(case):
    geometry, coords, _, _, bias = case
    where = {**geometry.where, "groups": geometry.groups}
    weight = geometry.weight(5, integers=False)
    x = from_numpy(coords, np.zeros((len(coords), geometry.in_channels), np.float32), batch_size=3)
    low = ops.conv3d(x, mx.array(weight), **where)  # builds the map
    feats = np.random.default_rng(6).standard_normal((low.capacity, geometry.in_channels)).astype(np.float32)
    hit = ops.conv_transpose3d(low.replace(mx.array(feats)), mx.array(weight), out=x, **where)
    implied = ops.conv_transpose3d(low.replace(mx.array(feats)), mx.array(weight), **where)
    fresh_low = from_numpy(np.array(low.coords), feats, stride=geometry.stride, batch_size=3)
    fresh_out = from_numpy(coords, np.zeros((len(coords), 1)), batch_size=3)
    miss = ops.conv_transpose3d(fresh_low, mx.array(weight), out=fresh_out, **where)
    assert hit.key is x.key and implied.key is x.key
    assert np.array_equal(np.array(hit.feats), np.array(miss.feats))
    assert np.array_equal(np.array(hit.feats), np.array(implied.feats))


def test_parents_are_shared_by_every_kernel():
    x = from_numpy([[0, -3, 0, 5], [0, 4, 1, 1]], np.ones((2, 1), np.float32))
    a = ops.conv3d(x, mx.ones((1, 2, 2, 2, 1)), stride=2)
    b = ops.conv3d(x, mx.ones((1, 3, 3, 3, 1)), stride=2, padding=1, support="parents")
    c = ops.avg_pool3d(x, 3, 2, padding=1, support="parents")
    assert a.key is b.key and b.key is c.key
