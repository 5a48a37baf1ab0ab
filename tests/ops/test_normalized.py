"""Normalised convolution against the oracle: values, gradients, half types, padding."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.errors import DTypeError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import from_numpy, to_numpy
from mlxsparse.testing.strategies import conv_geometries, features, permutations, sites
from tests.numeric import numeric_gradient, poisoned

pytestmark = pytest.mark.usefixtures("device")


@st.composite
def cases(draw, max_sites=20):
    """(coords, feats, weight, bias, keywords)."""
    geometry = draw(conv_geometries(max_kernel=3))
    coords, feats = draw(sites(channels=geometry.in_channels, integers=False, max_sites=max_sites))
    seed = draw(st.integers(0, 999))
    padding = draw(st.sampled_from([None, geometry.padding]))
    where = {"dilation": geometry.dilation, "padding": padding, "groups": geometry.groups}
    return coords, feats, geometry.weight(seed, integers=False), geometry.bias(seed), where


@given(cases())
def test_values(case):
    coords, feats, weight, bias, where = case
    x = from_numpy(coords, feats, batch_size=3)
    want = oracle.normalized_conv3d(coords, feats, weight, bias, **where)
    for tensor in (x, poisoned(x)):
        y = ops.normalized_conv3d(tensor, mx.array(weight), mx.array(bias), **where)
        np.testing.assert_allclose(to_numpy(y.feats)[: len(feats)], want, rtol=1e-4, atol=1e-5)
        assert not to_numpy(y.feats)[len(feats) :].any()


@given(cases(max_sites=6), st.data())
def test_gradients(case, data):
    coords, feats, weight, bias, where = case
    weight = weight + 0.3 * np.sign(weight)  # away from 0, where |w| has no slope
    x = poisoned(from_numpy(coords, feats))
    g = data.draw(features(len(feats), len(bias), integers=False))
    full = np.zeros((x.capacity, len(bias)), np.float32)
    full[: len(g)] = g
    _, got = mx.vjp(
        lambda f, w, b: ops.normalized_conv3d(x.replace(f), w, b, **where).feats,
        [x.feats, mx.array(weight.astype(np.float32)), mx.array(bias)],
        [mx.array(full)],
    )
    by_feats = numeric_gradient(
        lambda f: oracle.normalized_conv3d(coords, f, weight, bias, **where), feats, g
    )
    by_weight = numeric_gradient(
        lambda w: oracle.normalized_conv3d(coords, feats, w, bias, **where), weight, g
    )
    np.testing.assert_allclose(to_numpy(got[0])[: len(feats)], by_feats, rtol=1e-3, atol=1e-4)
    assert not to_numpy(got[0])[len(feats) :].any()
    np.testing.assert_allclose(to_numpy(got[1]), by_weight, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(to_numpy(got[2]), g.sum(axis=0), rtol=1e-4, atol=1e-5)


@given(sites(channels=2), st.data())
def test_positive_weights_give_a_weighted_mean(case, data):
    coords, feats = case
    w = mx.array(np.random.default_rng(0).uniform(0.1, 1, (3, 3, 3, 3, 2)).astype(np.float32))
    constant = from_numpy(coords, np.full_like(feats, 2.5))
    np.testing.assert_allclose(to_numpy(ops.normalized_conv3d(constant, w).feats), 2.5, rtol=1e-5)
    order = data.draw(permutations(len(coords)))
    y = to_numpy(ops.normalized_conv3d(from_numpy(coords, feats), w).feats)
    moved = ops.normalized_conv3d(from_numpy(coords[order], feats[order]), w)
    np.testing.assert_array_equal(to_numpy(moved.feats), y[order])


def test_weights_of_zero_give_the_bias_and_finite_gradients():
    x = from_numpy([[0, 0, 0, 0], [0, 0, 0, 5]], [[1.0], [2.0]])
    w = mx.zeros((1, 1, 1, 1, 1))

    def f(feats, w):
        return ops.normalized_conv3d(x.replace(feats), w, mx.array([3.0])).feats

    y, gradients = mx.vjp(f, [x.feats, w], [mx.ones((2, 1))])
    assert y[0].tolist() == [[3.0], [3.0]]
    assert all(np.isfinite(to_numpy(g)).all() for g in gradients)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_types_round_once(dtype):
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(0, 5, (60, 4)) % [2, 9, 9, 9], axis=0)
    layer = ms.nn.NormalizedConv3d(4, 6)
    layer.set_dtype(dtype)
    x = from_numpy(coords, rng.normal(size=(len(coords), 4)), dtype)
    y = layer(x)
    want = oracle.normalized_conv3d(coords, to_numpy(x.feats), to_numpy(layer.weight), to_numpy(layer.bias))
    unit = 2.0 ** (-11 if dtype == mx.float16 else -8)
    assert y.dtype == dtype
    assert np.all(np.abs(to_numpy(y.feats) - want) <= 1.01 * unit * np.abs(want) + 1e-6)


def test_no_rows_and_errors():
    empty = from_numpy(np.zeros((0, 4)), np.zeros((0, 2)))
    w = mx.ones((3, 3, 3, 3, 2))
    assert ops.normalized_conv3d(empty, w).feats.shape == (0, 3)
    with pytest.raises(ShapeError, match="groups"):
        ops.normalized_conv3d(empty, mx.ones((3, 3, 3, 3, 4)))
    with pytest.raises(DTypeError, match="set_dtype"):
        ops.normalized_conv3d(empty, w.astype(mx.float16))
