"""Gradients in stages: what MLX gives, in every bit."""

from __future__ import annotations

import functools

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse import compiled
from mlxsparse.backend import autodiff, pace

from .static_cases import kernels, needs_kernels, small_net, tensor  # noqa: F401


def loss(net, x, scale=1.0):
    return (net(x).feats.square() * scale).mean(), x.feats.sum()


def values(tree):
    return [(name, np.array(leaf.astype(mx.float32))) for name, leaf in tree_flatten(tree)]


def equal(a, b):
    assert [name for name, _ in values(a)] == [name for name, _ in values(b)] and len(values(a)) > 1
    for (name, one), (_, other) in zip(values(a), values(b)):
        np.testing.assert_array_equal(one, other, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_stages_give_the_same_bits(kernels, monkeypatch, dtype):  # noqa: F811
    begun = []
    monkeypatch.setattr(pace, "TRACED", 1 << 12)  # bytes: many stages
    monkeypatch.setattr(pace, "begin", lambda mark, **_: begun.append(mark) or True)
    net = small_net()
    net.set_dtype(dtype)
    x = tensor(90, seed=4)
    x = x.replace(x.feats.astype(dtype))
    wanted = mlx.nn.value_and_grad(net, loss)(net, x, scale=2.0)
    assert not begun
    got = ms.staged(mlx.nn.value_and_grad(net, loss))(net, x, scale=2.0)
    assert len(begun) > 8 and not pace.staging()
    equal(got, wanted)


@needs_kernels
def test_gradients_of_features(kernels, monkeypatch):  # noqa: F811
    monkeypatch.setattr(pace, "TRACED", 1 << 11)
    net, x = small_net(), tensor(90, seed=4)
    runs = []
    run = pace.run
    monkeypatch.setattr(pace, "run", lambda marks: runs.append(len(marks)) or run(marks))
    for make in (mx.grad, lambda f: mx.value_and_grad(f, argnums=(0, 1))):
        step = make(lambda feats, scale: loss(net, x.replace(feats), scale)[0])
        wanted, got = (s(x.feats, mx.array(2.0)) for s in (step, ms.staged(step)))
        equal([wanted, x.feats], [got, x.feats])
    assert len(runs) == 2 and min(runs) > 4


@needs_kernels
def test_inside_of_a_compiled_step_its_stages_are_those(kernels, monkeypatch):  # noqa: F811
    monkeypatch.setattr(pace, "TRACED", 1 << 12)
    runs = []
    net, x = small_net(), tensor(90, seed=4)
    run = pace.run
    monkeypatch.setattr(pace, "run", lambda marks: runs.append(len(marks)) or run(marks))
    step = ms.staged(mlx.nn.value_and_grad(net, loss))
    step = ms.compile(functools.partial(step, net), inputs=net.state, outputs=net.state)
    got = step(x)
    assert len(runs) == 1 and runs[0] > 8
    plain = mlx.nn.value_and_grad(net, loss)
    again = ms.compile(lambda x: plain(net, x), inputs=net.state, outputs=net.state)
    equal(got, again(x))


def test_on_the_host_and_inside_of_other_transformations():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    try:
        net, x = small_net(), tensor(60, seed=2)
        step = mlx.nn.value_and_grad(net, loss)
        equal(ms.staged(step)(net, x), step(net, x))
        inner = ms.staged(mx.grad(lambda w: (w * x.feats).square().sum()))
        outer = mx.grad(lambda w: inner(w).square().sum())(mx.ones((4,)))
        squares = x.feats.square().sum(axis=0)
        np.testing.assert_allclose(np.array(outer), np.array(8 * squares * squares), rtol=1e-5)
    finally:
        mx.set_default_device(before)


def test_a_failing_loss_leaves_no_stages():
    def broken(w):
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        ms.staged(mx.grad(broken))(mx.ones((2,)))
    assert not pace.staging()


def _doubled(monkeypatch):
    """An operator of MLX's own operations, which run inside of traces of MLX too; many stages."""
    monkeypatch.setattr(pace, "TRACED", 1 << 6)
    monkeypatch.setattr(pace._pace, "before", None)
    gradients = [lambda ct, x: 2 * ct]
    return autodiff.prepared("double", lambda x: 2 * x, gradients, mx.default_device())


def test_a_function_that_mlx_compiled_inside_of_a_staged_step(monkeypatch):
    double = _doubled(monkeypatch)

    def four(x):
        return double(double(double(double(x)))).sum()

    x = mx.ones((40, 4))
    for step in (mx.compile(mx.grad(four)), mx.grad(mx.compile(four))):
        for _ in range(2):  # the first call traces
            assert (ms.staged(step)(x) == 16).all()
    inner = mx.compile(lambda x: double(double(x)))

    def with_something_of_its_own(x):
        return mx.grad(four)(x) + inner(x)

    assert (ms.staged(with_something_of_its_own)(x) == 20).all()


def test_stages_of_a_compiled_function_inside_of_a_gradient(monkeypatch):
    """They cannot be begun inside: they are begun with those of the gradient."""
    double, begun = _doubled(monkeypatch), []
    forward = ms.compile(lambda x: double(double(double(x))))
    monkeypatch.setattr(compiled, "executor", lambda: "kernel")
    step = ms.staged(mx.grad(lambda x: forward(x).sum()))
    x = mx.ones((40, 4))
    assert (step(x) == 8).all()
    begin = pace.begin
    monkeypatch.setattr(pace, "begin", lambda mark: begun.append(begin(mark)) or begun[-1])
    assert (step(x) == 8).all()
    assert begun.count(False) == 1 and begun.count(True) == 6  # three results, three cotangents


def test_gradients_in_place_of_their_function_are_refused():
    with pytest.raises(ms.errors.TransformError, match="a function that gives gradients, got array"):
        ms.staged(mx.grad(lambda w: (w * w).sum())(mx.ones((2,))))
