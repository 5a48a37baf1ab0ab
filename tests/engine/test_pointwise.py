"""Elementwise steps in one pass on the host: as MLX computes them, with the bits of NumPy's form."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import fast
from mlxsparse.engine import dense, pointwise

from ..numeric import equal_sums

SHAPES = [(0, 3), (1, 1), (7, 4), (333, 5), (1000, 16), (3, 2000)]


@pytest.fixture(params=["1", "0"], ids=["compiled", "numpy"])
def form(request, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_FAST", request.param)
    if request.param == "1" and not fast.available():
        pytest.skip("needs numba: the fast extra is not installed")


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("relu", [False, True])
def test_activated(form, monkeypatch, shape, relu):
    x, more = random(0, *shape), random(1, *shape)
    x.reshape(-1)[:3], more.reshape(-1)[3:5] = [np.nan, np.inf, -np.inf][: x.size], -np.inf
    mean, var, weight, bias = (random(i, shape[1]) for i in range(2, 6))
    var *= var
    given = mx.array(x)
    for norm in ((), (mean, var), (mean, var, weight, bias)):
        for add in (None, more):
            scale = 1 / np.sqrt(var + np.float32(1e-5))
            factors = [scale, -mean * scale]
            if len(norm) == 4:
                factors = [scale * weight, factors[1] * weight + bias]
            wanted = x * factors[0] + factors[1] if norm else x
            wanted = wanted if add is None else wanted + add
            wanted = np.maximum(wanted, 0) if relu else wanted
            terms = [mx.array(v) for v in norm], None if add is None else mx.array(add)
            got = pointwise.activated(given, *terms, eps=1e-5, relu=relu)
            np.testing.assert_array_equal(np.array(got), wanted)
            np.testing.assert_array_equal(np.array(given), x)  # not its own: not written
            own = pointwise.activated(mx.array(x), *terms, eps=1e-5, relu=relu, own=True)
            np.testing.assert_array_equal(np.array(own), wanted)
            with monkeypatch.context() as threads:
                threads.setattr(pointwise, "LARGE", 8)
                got = pointwise.activated(given, *terms, eps=1e-5, relu=relu)
            np.testing.assert_array_equal(np.array(got), wanted)


LAYOUTS = {
    "columns": lambda x: x[:, ::2],
    "one column": lambda x: x[:, 1:2],
    "reversed": lambda x: x[::-1],
    "transposed": lambda x: x.T,
    "one row for all": lambda x: mx.broadcast_to(x[:1], x.shape),
    "one value for all": lambda x: mx.broadcast_to(x[0, 0], (5000, 64)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_do_not_lie_one_after_another(form, layout):
    given = LAYOUTS[layout](mx.array(random(0, 40, 6)))
    mx.eval(given)
    wanted = np.maximum(np.array(given), 0)
    norm = mx.zeros((given.shape[1],)), mx.ones((given.shape[1],))
    for _ in range(2):
        for own in (False, True):
            for terms in ((), norm):
                got = pointwise.activated(given, terms, own=own)
                np.testing.assert_array_equal(np.array(got), wanted)
        np.testing.assert_array_equal(np.array(pointwise.beside([given, given])), np.tile(given, 2))
        added = pointwise.activated(mx.zeros(given.shape), add=given)
        np.testing.assert_array_equal(np.array(added), wanted)


def test_beside(form):
    parts = [random(i, 50, c) for i, c in enumerate((1, 4, 7, 16))]
    got = pointwise.beside([mx.array(p) for p in parts])
    np.testing.assert_array_equal(np.array(got), np.concatenate(parts, axis=1))


def test_linear_has_the_same_bits(monkeypatch):
    pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")
    for n, ci, co in ((1, 4, 3), (2, 1, 5), (9000, 8, 16), (3001, 70, 33), (40, 256, 300)):
        x, w, b = mx.array(random(0, n, ci)), mx.array(random(1, co, ci)), mx.array(random(2, co))
        found = []
        for compiled in ("1", "0"):
            monkeypatch.setenv("MLXSPARSE_FAST", compiled)
            found += [np.array(dense.linear(x, w, b, n)), np.array(dense.linear(x, w, None, n - 1))]
        equal_sums(found[0], found[2])
        equal_sums(found[1], found[3])
        np.testing.assert_allclose(found[0], np.array(x) @ np.array(w).T + np.array(b), atol=1e-3)


@pytest.mark.parametrize("capacity", [None, 700])
def test_norm_act_is_what_its_layers_are(form, capacity):
    """In one pass, layer by layer, and traced by a gradient, where MLX computes all of it."""
    rng = np.random.default_rng(0)
    sites = np.unique(rng.integers(-6, 6, (600, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    x = ms.SparseTensor(mx.array(sites), mx.array(random(1, len(sites), 6)))
    x = x if capacity is None else x.with_capacity(capacity)
    conv = ms.nn.SubmConv3d(6, 5)
    norm, act = ms.nn.BatchNorm(5), ms.nn.ReLU()
    norm.running_mean, norm.running_var = mx.array(random(2, 5)), mx.array(random(3, 5) ** 2)
    norm.weight, norm.bias = mx.array(random(4, 5)), mx.array(random(5, 5))
    add = x.replace(mx.array(random(6, x.capacity, 5)))
    for layer in (norm.eval(), ms.nn.Identity()):
        for more in (None, add):

            def steps(x, layer=layer, more=more):
                y = layer(conv(x))
                return act(y if more is None else y + more).feats

            def once(x, layer=layer, more=more):
                return ms.nn.norm_act(layer, act, conv(x), more, made_by=conv).feats

            before = np.array(add.feats)
            wanted = np.array(steps(x))
            for _ in range(2):
                np.testing.assert_array_equal(np.array(once(x)), wanted)
            np.testing.assert_array_equal(np.array(add.feats), before)
            assert not np.any(wanted[x.num_active :])
            traced = mx.vjp(lambda f, once=once: once(x.replace(f)), [x.feats], [add.feats])[0][0]
            np.testing.assert_array_equal(np.array(traced), wanted)  # computed by MLX, same bits
            values = [
                mx.value_and_grad(lambda f, run=run: run(x.replace(f)).square().sum())(x.feats)
                for run in (steps, once)
            ]
            np.testing.assert_allclose(float(values[1][0]), (wanted**2).sum(), rtol=1e-5)
            np.testing.assert_allclose(np.array(values[0][1]), np.array(values[1][1]), rtol=1e-5, atol=1e-5)
    one = x.replace(mx.array(random(7, x.capacity, 1)))  # one channel fits all, as with +
    got = ms.nn.norm_act(norm, act, conv(x), one, made_by=conv).feats
    np.testing.assert_allclose(np.array(got), np.array(act(norm(conv(x)) + one).feats), atol=1e-6)
    half = x.astype(mx.float16)
    conv.set_dtype(mx.float16)
    assert ms.nn.norm_act(norm, act, conv(half), made_by=conv).dtype == mx.float16


def test_norm_act_leaves_what_others_made():
    x = ms.SparseTensor(mx.array([[0, 0, 0, 0], [0, 1, 0, 0]], mx.int32), mx.array([[1.0], [-1.0]]))
    keep = ms.nn.Identity()
    assert ms.nn.norm_act(keep, ms.nn.ReLU(), x, made_by=keep).feats.tolist() == [[1], [0]]
    assert x.feats.tolist() == [[1], [-1]]


def test_norm_act_leaves_what_others_look_at(monkeypatch):
    seen = []
    real = ms.nn.SubmConv3d.__call__

    def watched(self, x):
        seen.append(real(self, x))
        return seen[-1]

    monkeypatch.setattr(ms.nn.SubmConv3d, "__call__", watched)
    x = ms.SparseTensor(mx.array([[0, 0, 0, 0], [0, 1, 0, 0]], mx.int32), mx.array([[1.0], [-1.0]]))
    conv = ms.nn.SubmConv3d(1, 1, 1, bias=False)
    conv.weight = mx.ones_like(conv.weight)
    y = ms.nn.norm_act(ms.nn.Identity(), ms.nn.ReLU(), conv(x), made_by=conv).feats
    assert seen[0].feats.tolist() == [[1], [-1]] and y.tolist() == [[1], [0]]


@pytest.mark.parametrize("channels", [(6, 4), (4, 6), (16, 16), (70, 65), (1, 3)])
@pytest.mark.parametrize("kind", ["subm", "down", "up"])
def test_conv_norm_act_is_what_its_layers_are(form, monkeypatch, channels, kind):
    """Rows in order and not, few channels and many, with and without norm, bias, sum and spare rows."""
    ci, co = channels
    rng = np.random.default_rng(ci)
    sites = np.unique(rng.integers(-6, 6, (700, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    norm = ms.nn.BatchNorm(co)
    norm.running_mean, norm.running_var = mx.array(random(1, co)), mx.array(random(2, co) ** 2)
    norm.weight, norm.bias = mx.array(random(3, co)), mx.array(random(4, co))
    act = ms.nn.ReLU()
    for coords, capacity, bias in ((sites, None, False), (rng.permutation(sites), 900, True)):
        x = ms.SparseTensor(mx.array(coords), mx.array(random(5, len(coords), ci)))
        x = x if capacity is None else x.with_capacity(capacity)
        out = {}
        if kind == "subm":
            conv = ms.nn.SubmConv3d(ci, co, bias=bias)
        elif kind == "down":
            conv = ms.nn.Conv3d(ci, co, 2, 2, bias=bias)
        else:
            out = {"out": x}
            x, conv = ms.ops.max_pool3d(x, 2), ms.nn.ConvTranspose3d(ci, co, 2, 2, bias=bias)
        for layer in (norm.eval(), ms.nn.BatchNorm(co, affine=False).eval(), ms.nn.Identity()):
            y = conv(x, **out)
            other = y.replace(mx.array(random(6, y.capacity, co)))
            wide = y.replace(mx.array(random(7, y.capacity, 5)))
            for add, through in ((None, None), (other, None), (wide, ms.nn.Linear(5, co, bias=False))):
                if add is not None and kind != "subm":
                    continue
                # a first call of a kind takes no short way
                ms.nn.conv_norm_act(conv, layer, act, x, add, through=through, **out)
                with monkeypatch.context() as only:
                    only.setattr("mlxsparse.nn.fused.norm_act", None)  # no second pass
                    got = ms.nn.conv_norm_act(conv, layer, act, x, add, through=through, **out)
                more = add if through is None else through(add)
                want = act(layer(y) if add is None else layer(y) + more)
                assert got.key is want.key
                np.testing.assert_array_equal(np.array(got.feats), np.array(want.feats))


def test_conv_norm_act_falls_back_to_its_layers(form):
    """In training, for gradients, other types and layers, and another tensor's sites, which it refuses."""
    rng = np.random.default_rng(0)
    sites = np.unique(rng.integers(-6, 6, (300, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    x = ms.SparseTensor(mx.array(sites), mx.array(random(1, len(sites), 4)))
    conv, norm, act = ms.nn.SubmConv3d(4, 4, bias=False), ms.nn.BatchNorm(4), ms.nn.ReLU()

    def loss(call):
        return lambda f, w: call(x.replace(f), w).feats.square().sum()

    through = ms.nn.Linear(4, 4)

    def fused(x, w):
        conv.weight = w
        return ms.nn.conv_norm_act(conv, norm, act, x, x, through=through)

    def layered(x, w):
        conv.weight = w
        return act(norm(conv(x)) + through(x))

    weight = conv.weight
    for mode in (True, False):
        norm.train(mode)
        found = [mx.grad(loss(call), argnums=(0, 1))(x.feats, weight) for call in (fused, layered)]
        for a, b in zip(*found):
            np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-5)
        conv.weight = weight
    half = ms.nn.SubmConv3d(4, 4)
    half.set_dtype(mx.float16)
    assert ms.nn.conv_norm_act(half, norm, act, x.astype(mx.float16)).dtype == mx.float16
    other = ms.SparseTensor(mx.array(sites), x.feats)
    with pytest.raises(ms.errors.IdentityError):
        ms.nn.conv_norm_act(conv, norm, act, x, other)
    with pytest.raises(ms.errors.ShapeError):
        ms.nn.conv_norm_act(conv, ms.nn.BatchNorm(5).eval(), act, x)
    with pytest.raises(ms.errors.MLXSparseError):  # and what was to be done is forgotten
        ms.nn.conv_norm_act(conv, norm, act, x.replace(mx.zeros((len(sites), 3))))
    y = conv(x)
    np.testing.assert_array_equal(np.array(conv(x).feats), np.array(y.feats))
    assert float(y.feats.min()) < 0
