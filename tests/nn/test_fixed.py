"""A norm by given statistics, a sum and a ReLU in one pass: what the layers give one after the other."""

from __future__ import annotations

import functools
import weakref

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.nn.fixed import by_statistics
from mlxsparse.testing.adapt import from_numpy, to_numpy
from tests.nn.test_fold import trained

pytestmark = pytest.mark.usefixtures("device")

nn = ms.nn
DTYPES = [mx.float32, mx.float16, mx.bfloat16]


def cloud(channels=6, seed=0):
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(-4, 4, (120, 4)) % [2, 9, 9, 9], axis=0)
    return from_numpy(coords, np.random.default_rng(seed).normal(size=(len(coords), channels)))


def norm_act(norm, act, x, add=None):
    c = norm.num_features
    weight, bias = (norm.weight, norm.bias) if "weight" in norm else (mx.ones((c,)), mx.zeros((c,)))
    given = norm.running_mean, norm.running_var, weight, bias, norm.eps
    return by_statistics(x, *given, relu=act is not None, add=add)


def same(a, b, dtype=mx.float32):
    """Layers round once more before they add."""
    tolerance = {mx.float32: 3e-6, mx.float16: 4e-3, mx.bfloat16: 3e-2}[dtype]
    np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=tolerance, atol=tolerance)


def one_by_one(norm, act, x, shortcut=None):
    y = norm(x)
    y = y if shortcut is None else y + shortcut
    return y if act is None else act(y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("act", [nn.ReLU(), None], ids=["relu", "none"])
@pytest.mark.parametrize("half", [True, False])
def test_it_equals_the_layers(dtype, padding, affine, added, act, half):
    x = cloud().astype(dtype)
    x = x.with_capacity(x.num_active + padding) if padding else x
    other = x.replace(cloud(seed=2).astype(dtype).feats) if not padding else x * 0.5
    norm, shortcut = trained(6, affine), other if added else None
    if half:
        norm.set_dtype(dtype)
    got, want = norm_act(norm, act, x, shortcut), one_by_one(norm, act, x, shortcut)
    assert got.key is x.key and got.dtype == dtype and got.clean
    same(got.feats, want.feats, dtype)
    assert not to_numpy(got.feats)[x.num_active :].any()


def test_what_padding_holds_does_not_matter():
    x = cloud()
    n = x.num_active
    padded = x.with_capacity(n + 5)
    rows = mx.arange(n + 5)[:, None]
    poisoned = ms.SparseTensor._make(
        [mx.where(rows < n, leaf, mx.nan) if i == 1 else leaf for i, leaf in enumerate(padded)],
        padded.key,
        padded.manager,
    )
    got = to_numpy(norm_act(trained(6), nn.ReLU(), poisoned).feats)
    same(got[:n], one_by_one(trained(6), nn.ReLU(), x).feats)
    assert not got[n:].any()


def test_gradients_are_those_of_the_layers():
    x, shortcut = cloud(), cloud(seed=3)
    shortcut = x.replace(shortcut.feats)
    ct = cloud(seed=4).feats

    def loss(run):
        def value(feats, more, weight, bias):
            norm = trained(6)
            norm.weight, norm.bias = weight, bias
            return (run(norm, nn.ReLU(), x.replace(feats), x.replace(more)).feats * ct).sum()

        return value

    norm = trained(6)
    given = x.feats, shortcut.feats, norm.weight, norm.bias
    for a, b in zip(*(mx.grad(loss(run), argnums=(0, 1, 2, 3))(*given) for run in (norm_act, one_by_one))):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-5, atol=1e-5)


LAYERS = {
    "submanifold": lambda co, bias: (nn.SubmConv3d(6, co, bias=bias), {}),
    "dilated": lambda co, bias: (nn.SubmConv3d(6, co, 3, 2, bias=bias), {}),
    "k2 s2": lambda co, bias: (nn.Conv3d(6, co, 2, 2, bias=bias), {"capacity": 110}),
    "k3 s2": lambda co, bias: (nn.Conv3d(6, co, 3, 2, 1, bias=bias), {"capacity": 260}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("channels", [5, 8])
@pytest.mark.parametrize("bias", [False, True])
def test_in_the_convolutions_own_pass(dtype, layer, channels, bias, monkeypatch):
    x = cloud().astype(dtype)
    x = x.with_capacity(x.num_active + 9)
    conv, more = LAYERS[layer](channels, bias)
    if bias:
        conv.bias = mx.random.normal(conv.bias.shape)
    norm, act = trained(channels), nn.ReLU()
    conv.set_dtype(dtype)
    conv(x, **more)
    dense = nn.Linear(channels, channels, bias=False)
    dense.set_dtype(dtype)
    for half in (False, True):
        if half:
            norm.set_dtype(dtype)
        for add, through in ((None, None), (conv(x, **more) * 2, None), (conv(x, **more) * 2, dense)):
            y = conv(x, **more)
            call = functools.partial(nn.conv_norm_act, conv, norm, act, x, add, through=through, **more)
            call()  # the first call of a type counts as traced
            passes = []
            with monkeypatch.context() as patch:
                patch.setattr(ms.nn.fused, "norm_act", lambda *a, seen=passes, **k: seen.append(a))
                got = call()
            if ms.backend.executor() == "kernel":
                assert not passes
            else:
                got = call()
            want = nn.norm_act(norm, act, y, add if through is None else through(add))
            if through is not None and ms.backend.executor() == "host":
                same(got.feats, want.feats)
                continue
            assert mx.array_equal(got.feats, want.feats) and got.clean and got.check().key is want.key
            assert got.dtype == dtype and not to_numpy(got.feats)[got.num_active :].any()


def test_layers_that_have_no_own_pass_are_called_one_after_the_other():
    x, act = cloud(), nn.ReLU()
    conv, norm = nn.SubmConv3d(6, 4), trained(4)

    def same_as_apart(conv, norm, act, x):
        got, want = nn.conv_norm_act(conv, norm, act, x), act(norm(conv(x)))
        same(got.feats, want.feats)

    same_as_apart(conv, norm, nn.GELU(), x)
    same_as_apart(nn.SubmConv3d(6, 4, groups=2), norm, act, x)
    same_as_apart(nn.Linear(6, 4), norm, act, x)
    same_as_apart(conv, nn.LayerNorm(4), act, x)
    with pytest.raises(ms.errors.ShapeError):
        nn.conv_norm_act(conv, trained(5), act, x)
    with pytest.raises(ms.errors.IdentityError):
        nn.conv_norm_act(conv, norm, act, x, conv(cloud()))
    norm.train()
    assert nn.conv_norm_act(conv, norm, act, x).feats.shape == x.feats[:, :4].shape


def test_gradients_through_a_convolution_with_a_norm():
    x, conv, norm, act = cloud(), nn.SubmConv3d(6, 4), trained(4), nn.ReLU()
    ct = cloud(4, 5).feats

    def loss(call):
        def value(feats, weight):
            conv.weight = weight
            return (call(x.replace(feats)).feats * ct).sum()

        return value

    calls = (lambda x: nn.conv_norm_act(conv, norm, act, x)), (lambda x: act(norm(conv(x))))
    given = x.feats, conv.weight
    for _ in range(2):
        for a, b in zip(*(mx.grad(loss(call), argnums=(0, 1))(*given) for call in calls)):
            np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-5, atol=1e-5)


def test_what_is_kept_with_a_map_holds_no_features():
    x, conv, norm, act = cloud(), nn.SubmConv3d(6, 4), trained(4), nn.ReLU()

    def call():
        add = conv(x) * 2
        mx.eval(nn.conv_norm_act(conv, norm, act, x, add).feats)
        return weakref.ref(add.feats)

    assert [call()() for _ in range(3)] == [None] * 3
