"""Normalisation layers against the oracle and against mlx.nn: values, gradients, half types, padding."""

from __future__ import annotations

import copy

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse.backend import host
from mlxsparse.errors import IdentityError, ShapeError, TransformError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import from_numpy, to_numpy
from mlxsparse.testing.strategies import features, permutations, sites
from tests.numeric import numeric_gradient, poisoned

pytestmark = pytest.mark.usefixtures("device")

C = 6
BLOCKS, STRIPES = [[0, 1, 2], [3, 4, 5]], [[0, 2, 4], [1, 3, 5]]
EACH = [[c] for c in range(C)]


def one_item(coords):
    return np.asarray(coords) * [0, 1, 1, 1]


# name -> (layer, oracle of (coords, feats, weight, bias))
NORMS = {
    "batch": (
        lambda: ms.nn.BatchNorm(C),
        lambda c, f, w, b: oracle.group_norm(one_item(c), f, EACH, w, b),
    ),
    "group": (lambda: ms.nn.GroupNorm(2, C), lambda c, f, w, b: oracle.group_norm(c, f, STRIPES, w, b)),
    "group blocks": (
        lambda: ms.nn.GroupNorm(2, C, pytorch_compatible=True),
        lambda c, f, w, b: oracle.group_norm(c, f, BLOCKS, w, b),
    ),
    "instance": (
        lambda: ms.nn.InstanceNorm(C, affine=True),
        lambda c, f, w, b: oracle.group_norm(c, f, EACH, w, b),
    ),
    "layer": (lambda: ms.nn.LayerNorm(C), lambda c, f, w, b: oracle.layer_norm(f, w, b)),
    "rms": (lambda: ms.nn.RMSNorm(C), lambda c, f, w, b: oracle.rms_norm(f, w)),
}
each_norm = pytest.mark.parametrize("name", NORMS)


def made(name, seed=0):
    """A layer with weights that differ by channel, its oracle, and the weights."""
    make, want = NORMS[name]
    rng = np.random.default_rng(seed)
    layer = make()
    weights = rng.uniform(0.5, 2, C).astype(np.float32), rng.normal(size=C).astype(np.float32)
    for key, value in zip(("weight", "bias"), weights):
        if key in layer:
            layer[key] = mx.array(value)
    return layer, want, weights


@each_norm
@given(case=sites(channels=C, integers=False))
def test_values(name, case):
    coords, feats = case
    layer, want, weights = made(name)
    x = from_numpy(coords, feats, batch_size=4)
    y = layer(x)
    assert y.key is x.key and y.dtype == mx.float32
    np.testing.assert_allclose(to_numpy(y.feats), want(coords, feats, *weights), rtol=1e-4, atol=1e-5)


@each_norm
@given(case=sites(channels=C, integers=False, max_sites=8, min_sites=2), data=st.data())
def test_gradients(name, case, data):
    coords, feats = case
    # Spread apart, since the slope of a normalisation is unbounded where the variance is 0.
    feats = feats + 3 * np.random.default_rng(1).permutation(feats.size).reshape(feats.shape) / feats.size
    feats = feats.astype(np.float32)
    layer, want, weights = made(name)
    g = data.draw(features(*feats.shape, integers=False))
    x = from_numpy(coords, feats)

    def run(feats, *parameters):
        layer.update(dict(zip(("weight", "bias"), parameters)))
        return layer(x.replace(feats)).feats

    used = [mx.array(w) for w, key in zip(weights, ("weight", "bias")) if key in layer]
    _, got = mx.vjp(run, [x.feats, *used], [mx.array(g)])
    values = [feats, *weights]
    for i, gradient in enumerate(got):
        expected = numeric_gradient(
            lambda v, i=i: want(coords, *[v if j == i else u for j, u in enumerate(values)]), values[i], g
        )
        scale = np.abs(expected).max() + np.abs(g).max()
        # A single row per item has no spread: eps alone divides, and rounding with it.
        alone = np.bincount(coords[:, 0]).max() == 1 and name in ("batch", "instance")
        assert np.abs(to_numpy(gradient) - expected).max() <= (2e-2 if alone else 2e-3) * scale, i


@each_norm
def test_padding_takes_no_part(name):
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(0, 3, (60, 4)), axis=0)
    x = from_numpy(rng.permutation(coords), rng.normal(size=(len(coords), C)), batch_size=4)
    n = x.num_active
    layer, _, _ = made(name)

    def loss(layer, feats, x):
        return (layer(x.replace(feats)).feats ** 2).sum()

    results = []
    for tensor in (x, poisoned(x)):
        y = layer(tensor)
        assert not to_numpy(y.feats)[n:].any()
        by_feats = mx.grad(lambda f, t=tensor: loss(layer, f, t))(tensor.feats)
        assert not to_numpy(by_feats)[n:].any()
        by_weight = mlx.nn.value_and_grad(layer, lambda m, t=tensor: loss(m, t.feats, t))(layer)[1]
        results.append([to_numpy(y.feats)[:n], to_numpy(by_feats)[:n], to_numpy(by_weight["weight"])])
    for plain, padded in zip(*results):
        np.testing.assert_array_equal(plain, padded)


@each_norm
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_types_round_once(name, dtype):
    rng = np.random.default_rng(0)
    coords = np.argwhere(np.ones((2, 4, 4, 4)))
    x = from_numpy(coords, 3 + rng.normal(size=(len(coords), C)), dtype)
    layer, want, weights = made(name)
    y = layer(x)
    assert y.dtype == dtype
    exact = want(coords, to_numpy(x.feats), *weights)
    unit = 2.0 ** (-11 if dtype == mx.float16 else -8)
    assert np.all(np.abs(to_numpy(y.feats) - exact) <= 1.01 * unit * np.abs(exact) + 1e-5)
    by_feats = mx.grad(lambda f: layer(x.replace(f)).feats.astype(mx.float32).square().sum())(x.feats)
    assert by_feats.dtype == dtype and np.isfinite(to_numpy(by_feats)).all()


@each_norm
def test_no_rows_and_empty_items(name):
    layer, _, _ = made(name)
    empty = from_numpy(np.zeros((0, 4)), np.zeros((0, C)), batch_size=2)
    assert layer(empty).feats.shape == (0, C)
    gradient = mx.grad(lambda f: layer(empty.replace(f)).feats.sum())(empty.feats)
    assert gradient.shape == (0, C)


@pytest.mark.parametrize("name", ["batch", "group", "instance"])
def test_a_large_mean_does_not_spoil_the_variance(name):
    rng = np.random.default_rng(0)
    coords = np.argwhere(np.ones((1, 30, 30, 5)))
    feats = (1e4 + rng.normal(size=(len(coords), C))).astype(np.float32)
    layer, want, weights = made(name)
    got = to_numpy(layer(from_numpy(coords, feats)).feats)
    np.testing.assert_allclose(got, want(coords, feats, *weights), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["group", "instance"])
@given(data=st.data())
def test_row_order_does_not_change_a_bit(name, data):
    coords, feats = data.draw(sites(channels=C, integers=False))
    order = data.draw(permutations(len(coords)))
    layer, _, _ = made(name)
    y = to_numpy(layer(from_numpy(coords, feats)).feats)
    np.testing.assert_array_equal(to_numpy(layer(from_numpy(coords[order], feats[order])).feats), y[order])


@each_norm
def test_threads_do_not_change_a_bit(name, monkeypatch):
    rng = np.random.default_rng(0)
    coords = rng.permutation(np.argwhere(np.ones((3, 41, 40, 23))))
    feats = rng.normal(size=(len(coords), C)).astype(np.float32)
    x, g = from_numpy(coords, feats), mx.array(rng.normal(size=feats.shape).astype(np.float32))
    layer, _, _ = made(name)

    def run(threads):
        monkeypatch.setattr(host, "num_threads", lambda: threads)

        def f(feats, weight):
            layer.weight = weight
            return layer(x.replace(feats)).feats

        y, gradients = mx.vjp(f, [x.feats, layer.weight], [g])
        return [to_numpy(v) for v in (*y, *gradients)]

    for one, more in zip(run(1), run(3)):
        np.testing.assert_array_equal(one, more)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ms.nn.GroupNorm(3, C), mlx.nn.GroupNorm(3, C)),
        (ms.nn.GroupNorm(3, C, eps=0.1, pytorch_compatible=True), mlx.nn.GroupNorm(3, C, 0.1, True, True)),
        (ms.nn.GroupNorm(2, C, affine=False), mlx.nn.GroupNorm(2, C, affine=False)),
        (ms.nn.InstanceNorm(C), mlx.nn.InstanceNorm(C)),
        (ms.nn.InstanceNorm(C, affine=True), mlx.nn.InstanceNorm(C, affine=True)),
        (ms.nn.LayerNorm(C, eps=0.5), mlx.nn.LayerNorm(C, eps=0.5)),
        (ms.nn.LayerNorm(C, bias=False), mlx.nn.LayerNorm(C, bias=False)),
        (ms.nn.LayerNorm(C, affine=False), mlx.nn.LayerNorm(C, affine=False)),
        (ms.nn.RMSNorm(C), mlx.nn.RMSNorm(C)),
    ],
    ids=repr,
)
def test_one_item_is_what_mlx_computes(ours, theirs):
    coords = np.argwhere(np.ones((1, 3, 3, 3)))
    x = from_numpy(coords, np.random.default_rng(0).normal(size=(27, C)))
    assert set(ours.parameters()) == set(theirs.parameters())
    want = theirs(x.feats[None])[0]
    np.testing.assert_allclose(to_numpy(ours(x).feats), to_numpy(want), rtol=1e-4, atol=1e-5)


def test_batch_norm_without_running_statistics_uses_the_rows():
    x = from_numpy([[0, 0, 0, 0], [1, 0, 0, 0]], [[1.0], [3.0]])
    layer = ms.nn.BatchNorm(1, affine=False, track_running_stats=False).eval()
    assert not layer.parameters()
    np.testing.assert_allclose(to_numpy(layer(x).feats), [[-1.0], [1.0]], rtol=1e-4)


def test_batch_norm_in_evaluation_is_affine_in_its_input():
    layer = ms.nn.BatchNorm(2).eval()
    layer.running_mean, layer.running_var = mx.array([1.0, 2.0]), mx.array([4.0, 0.25])
    x = from_numpy([[0, 0, 0, 0]], [[3.0, 3.0]])
    np.testing.assert_allclose(to_numpy(layer(x).feats), [[1.0, 2.0]], rtol=1e-4)
    by_weight = mlx.nn.value_and_grad(layer, lambda m: m(x).feats.sum())(layer)[1]
    np.testing.assert_allclose(to_numpy(by_weight["weight"]), [1.0, 2.0], rtol=1e-4)
    assert set(by_weight) == {"weight", "bias"}


def test_errors():
    x = from_numpy([[0, 0, 0, 0]], [[1.0, 2.0]])
    for layer in (ms.nn.GroupNorm(1, 3), ms.nn.InstanceNorm(3), ms.nn.LayerNorm(3), ms.nn.RMSNorm(3)):
        with pytest.raises(ShapeError, match=type(layer).__name__ + r"\(3\) got 2"):
            layer(x)
    with pytest.raises(ShapeError, match="num_groups=4"):
        ms.nn.GroupNorm(4, 6)
    layer = ms.nn.LayerNorm(2)
    inner = mx.grad(lambda f: layer(x.replace(f)).feats[0, 0])
    with pytest.raises(TransformError, match="second gradient"):
        mx.grad(lambda f: inner(f).sum())(x.feats)


# ---------------------------------------------------------------- with a sum and a ReLU


def followed(training, seed=0, dtype=mx.float32, channels=C):
    """A BatchNorm with parameters and statistics of its own, a ReLU, and a function of the plain layers."""
    rng = np.random.default_rng(seed)
    norm, act = ms.nn.BatchNorm(channels), ms.nn.ReLU()
    for name, low in (("weight", 0.5), ("bias", -1.0), ("running_mean", -1.0), ("running_var", 0.5)):
        norm[name] = mx.array(rng.uniform(low, 2, channels).astype(np.float32)).astype(dtype)
    norm.train(training)

    def plain(x, add=None):
        y = norm(x)
        return act(y if add is None else y + add)

    return norm, act, plain


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("added", [True, False])
@given(case=sites(channels=C, integers=False), data=st.data())
def test_norm_act_is_the_three_layers(training, added, case, data):
    coords, feats = case
    norm, act, plain = followed(training)
    more = data.draw(features(*feats.shape, integers=False))
    g = mx.array(data.draw(features(*feats.shape, integers=False)))
    x = from_numpy(coords, feats, batch_size=4)
    results = []
    for call in (plain, lambda x, add=None: ms.nn.norm_act(norm, act, x, add)):

        def run(feats, more, weight, bias, call=call):
            norm.update({"weight": weight, "bias": bias})
            return call(x.replace(feats), x.replace(more) if added else None).feats

        before = dict(norm)
        results.append(mx.vjp(run, [x.feats, mx.array(more), before["weight"], before["bias"]], [g]))
        statistics = norm["running_mean"], norm["running_var"]
        norm.update(before)
        results[-1] += (statistics,)
    (y, gradients, moved), (wanted, others, also) = results
    np.testing.assert_allclose(to_numpy(y[0]), to_numpy(wanted[0]), rtol=1e-4, atol=1e-5)
    for one, other in zip(moved, also):
        np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-5)
    near = np.abs(to_numpy(wanted[0])) < 1e-4  # where rounding decides about the ReLU
    if near.sum() == (to_numpy(wanted[0]) == 0).sum():
        for one, other in zip(gradients, others):
            scale = np.abs(to_numpy(other)).max(initial=0) + np.abs(np.array(g)).max(initial=1)
            assert np.abs(to_numpy(one) - to_numpy(other)).max(initial=0) <= 1e-3 * scale


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_norm_act_of_half_types_and_poisoned_padding(dtype, training):
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(0, 3, (60, 4)), axis=0)
    x = from_numpy(coords, rng.normal(size=(len(coords), 16))).astype(dtype)
    n = x.num_active
    norm, act, plain = followed(training, channels=16)
    norm.set_dtype(dtype)
    for tensor in (x, poisoned(x)):
        key = tensor.key
        y = ms.nn.norm_act(norm, act, tensor, tensor)
        assert y.dtype == dtype and y.key is key and not to_numpy(y.feats)[n:].any()
        wanted = to_numpy(plain(tensor, tensor).feats)
        np.testing.assert_allclose(to_numpy(y.feats), wanted, rtol=2e-2, atol=3e-2)
        g = mx.grad(lambda f, t=tensor: ms.nn.norm_act(norm, act, t.replace(f), t.replace(f)).feats.sum())
        gradient = to_numpy(g(tensor.feats))
        assert np.isfinite(gradient).all() and not gradient[n:].any()


def test_norm_act_wants_a_layer():
    x = from_numpy(np.zeros((1, 4)), np.ones((1, 3)))
    with pytest.raises(ms.errors.MLXSparseError, match="act must be a layer"):
        ms.nn.norm_act(ms.nn.BatchNorm(3), "relu", x)


def test_norm_act_without_sites_and_of_other_layers():
    norm, act, plain = followed(True)
    empty = from_numpy(np.zeros((0, 4)), np.zeros((0, C)), batch_size=2)
    before = np.array(norm.running_mean)
    y = ms.nn.norm_act(norm, act, empty, empty)
    assert y.feats.shape == (0, C) and np.array_equal(np.array(norm.running_mean), before)
    x = from_numpy([[0, 0, 0, 0], [0, 1, 0, 0]], np.arange(2.0 * C).reshape(2, C))
    other = ms.nn.norm_act(ms.nn.LayerNorm(C), ms.nn.GELU(), x, x)
    np.testing.assert_allclose(
        to_numpy(other.feats), to_numpy(ms.nn.GELU()(ms.nn.LayerNorm(C)(x) + x).feats), rtol=1e-6
    )


def test_sequential_with_norm_act():
    norm, act, plain = followed(True)
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(0, 3, (40, 4)), axis=0)
    x = from_numpy(coords, rng.normal(size=(len(coords), C)))
    layers = ms.nn.Sequential(norm, act, ms.nn.Identity(), norm)
    wanted = to_numpy(norm(plain(x)).feats)
    np.testing.assert_allclose(to_numpy(layers(x).feats), wanted, rtol=1e-5, atol=1e-6)


def test_norm_act_refuses_other_sites_and_channels():
    norm, act, _ = followed(True)
    x, z = (from_numpy([[0, 0, 0, i], [0, 1, 0, 0]], np.ones((2, C))) for i in (0, 1))
    with pytest.raises(IdentityError):
        ms.nn.norm_act(norm, act, x, z)
    with pytest.raises(ShapeError):
        ms.nn.norm_act(norm, act, from_numpy([[0, 0, 0, 0]], np.ones((1, C + 1))))


def test_norm_act_has_first_gradients_only():
    norm, act, _ = followed(True)
    x = from_numpy([[0, 0, 0, 0], [0, 1, 0, 0]], np.arange(2.0 * C).reshape(2, C))

    def total(feats):
        return ms.nn.norm_act(norm, act, x.replace(feats), x).feats.sum()

    with pytest.raises(TransformError, match="second gradient"):
        mx.grad(lambda feats: mx.grad(total)(feats).sum())(x.feats)
    with pytest.raises(TransformError, match="jvp"):
        mx.jvp(total, [x.feats], [mx.ones_like(x.feats)])


def test_unfreezing_a_parent_leaves_running_statistics_untrained():
    net = ms.nn.Sequential(ms.nn.SubmConv3d(4, 4), ms.nn.BatchNorm(4))
    for made in (net, copy.deepcopy(net), ms.nn.fold_batch_norms(net)):
        for again in (made.freeze, made.unfreeze, lambda made=made: made.unfreeze(keys="running_mean")):
            again()
        names = [name for name, _ in tree_flatten(made.trainable_parameters())]
        assert names and not any("running" in name for name in names)
    net.layers[1].freeze()
    net.layers[1].unfreeze()
    assert set(net.layers[1].trainable_parameters()) == {"weight", "bias"}
    assert "running_mean" in net.layers[1].parameters()
