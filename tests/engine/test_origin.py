"""A training step does not hold what a norm gave for the convolution behind it: that is made again."""

from __future__ import annotations

import gc

import mlx.core as mx
import mlx.nn
import mlx.utils
import pytest

import mlxsparse as ms
from mlxsparse.backend import replay
from mlxsparse.engine import origin
from tests.static_cases import HAS_GPU, needs_kernels, small_net, tensor
from tests.static_cases import kernels as kernels


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Arrays of these tests' sizes are made again."""
    monkeypatch.setattr(origin, "LEAST", 0)


class Chain(mlx.nn.Module):
    """Convolutions with norms between them, a linear layer at the end."""

    def __init__(self, bias):
        super().__init__()
        self.conv = [ms.nn.SubmConv3d(a, 16, bias=bias) for a in (4, 16, 16)]
        self.norm = [ms.nn.BatchNorm(16) for _ in range(3)]
        self.head = ms.nn.Linear(16, 3, bias=bias)

    def __call__(self, x):
        for conv, norm in zip(self.conv, self.norm):
            x = ms.nn.norm_act(norm, ms.nn.ReLU(), conv(x), made_by=conv)
        return self.head(x)


def gradients(net, x, **more):
    step = mlx.nn.value_and_grad(net, lambda net, x: net(x, **more).feats.square().mean())
    gc.collect()  # what others left
    before = mx.get_active_memory()
    value, found = step(net, x)
    mx.eval(value)
    held = mx.get_active_memory() - before
    mx.eval(found)
    return value, dict(mlx.utils.tree_flatten(found)), held


@needs_kernels
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("padding", [0, 30])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=str)
def test_gradients_are_the_same_bits(kernels, monkeypatch, bias, padding, dtype):
    x = tensor(90, seed=1)
    x = x.with_capacity(90 + padding) if padding else x
    x = x.astype(dtype)
    mx.random.seed(3)
    net = Chain(bias)
    net.set_dtype(dtype)
    state = mlx.utils.tree_map(mx.array, net.parameters())

    def run(notes):
        monkeypatch.setattr(origin, "_note", notes)
        net.update(state)
        return gradients(net, x)

    made, kept = origin._note, lambda *_: None
    # On a GPU, what is kept of launches must be there; the executor keeps none.
    first, turns = (replay.AFTER + 1, 5) if HAS_GPU else (1, 3)
    for _ in range(first):
        run(made), run(kept)
    # Others fill and empty caches meanwhile: the middle of a few counts, in turn.
    counts = [(run(made)[2], run(kept)[2]) for _ in range(turns)]
    less, more = (sorted(c)[turns // 2] for c in zip(*counts))
    (a, one, _), (b, other, _) = run(made), run(kept)
    gc.collect()
    assert a.item() == b.item() and one.keys() == other.keys()
    assert all(mx.array_equal(one[name], other[name]) for name in one)
    assert less <= more - 3 * x.capacity * 16 * dtype.size // 2  # three arrays, less what is small
    assert not origin._known


@needs_kernels
def test_a_network_has_the_same_gradients(kernels, monkeypatch):
    x, found = tensor(70, seed=2), []
    for notes in (origin._note, lambda *_: None):
        monkeypatch.setattr(origin, "_note", notes)
        net = small_net()
        found.append(gradients(net, x)[:2])
    (a, one), (b, other) = found
    assert a.item() == b.item() and all(mx.array_equal(one[name], other[name]) for name in one)


@needs_kernels
@pytest.mark.parametrize("path", ["rows", "gather"])
def test_other_paths(kernels, monkeypatch, path):
    monkeypatch.setenv("MLXSPARSE_PATH", path)
    x, found = tensor(50, seed=4), []
    for notes in (origin._note, lambda *_: None):
        monkeypatch.setattr(origin, "_note", notes)
        mx.random.seed(3)
        found.append(gradients(Chain(True), x)[:2])
    (a, one), (b, other) = found
    assert a.item() == b.item()
    for name in one:
        assert mx.allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_what_is_noted_is_forgotten_with_the_array():
    y, x = mx.zeros((3,)), mx.ones((3,))
    origin.note_norm(y, x, x, None)
    assert origin.origin(y).arrays[0] is x and origin.origin(x) is None
    both = mx.zeros((6,))
    origin.note_cat(both, [x, y], [False, False])
    assert origin.origin(both).kind == ("cat", None, None)
    origin.note_cat(both, [x, y], [False, True])
    assert origin.origin(both).kind == ("cat", None, ("norm", False))
    assert [a is x for a in origin.origin(both).arrays] == [True] * 3
    origin.hold(x)
    assert origin.held(x) and not origin.held(y)
    del y, both, x
    assert not origin._known and not origin._held


def test_small_arrays_are_kept(monkeypatch):
    y, x = mx.zeros((30, 8)), mx.ones((30, 8))
    for least, known in ((y.nbytes, True), (y.nbytes + 1, False)):
        monkeypatch.setattr(origin, "LEAST", least)
        origin.note_norm(y, x, x, None)
        origin.hold(y)
        assert (origin.origin(y) is not None) is known and origin.held(y) is known
        origin._known.clear()


@needs_kernels
def test_features_that_somebody_changed_are_not_made_again(kernels):
    x, norm, act = tensor(60, seed=5), ms.nn.BatchNorm(4), ms.nn.ReLU()
    ct = mx.random.normal((60, 3))
    w = mx.random.normal((3, 3, 3, 3, 4))

    def loss(w, change):
        y = ms.nn.norm_act(norm, act, x * mx.mean(w))  # of something that is differentiated
        return (ms.ops.subm_conv3d(change(y), w).feats * ct).sum()

    def in_place(y):
        feats = y.feats
        feats[10:20] = 3.0
        return y.replace(feats)

    def apart(y):
        return y.replace(mx.concatenate([y.feats[:10], mx.full((10, 4), 3.0), y.feats[20:]]))

    for _ in range(2):
        a, b = (mx.grad(lambda w, change=change: loss(w, change))(w) for change in (in_place, apart))
        assert mx.allclose(a, b, rtol=1e-5, atol=1e-5)
