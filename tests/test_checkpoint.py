"""Modules under mlxsparse.checkpoint: gradients reach each that a function holds or names."""

from __future__ import annotations

import copy
import sys
import types
from collections import ChainMap, UserDict, UserList, deque
from functools import lru_cache, partial, partialmethod, singledispatchmethod, wraps
from types import MappingProxyType

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.transforms import _modules
from tests.test_transforms import Block, same
from tests.test_transforms import x as x

pytestmark = pytest.mark.usefixtures("device")


def gradients(net, function, x):
    return mlx.nn.value_and_grad(net, lambda x: function(x + 5.0).feats.square().sum())(x)[1]


def test_a_checkpoint_moves_running_statistics_once(x):
    kept = []
    for wrap in (lambda m: m, ms.checkpoint, lambda m: ms.checkpoint(lambda x: m(x))):
        mx.random.seed(0)
        block = Block()
        weight = gradients(block, wrap(block), x)["conv"]["weight"]
        kept.append([np.array(a) for a in (block.norm.running_mean, block.norm.running_var, weight)])
    assert all(np.abs(a).max() > 0 for a in kept[0])
    for other in kept[1:]:
        for a, b in zip(kept[0], other):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


NAMED = Block()


def test_a_checkpoint_knows_the_modules_that_a_function_names(x):
    class Net(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = NAMED

        def run(self, x):
            return self.block(x)

    net = Net()
    plain = gradients(net, net.run, x)["block"]["conv"]["weight"]
    assert mx.abs(plain).sum().item() > 0

    @ms.checkpoint
    def late(x):
        return named(x)

    named, several = net.block, [net.block]
    functions = [
        net.run, lambda x: named(x), lambda x: net.run(x), lambda x: NAMED(x), lambda x: several[0](x),
        partial(lambda block, x: block(x), named), partial(lambda x, block: block(x), block=named),
        lambda x, block=named: block(x), lambda x: [NAMED(x) for _ in range(1)][0],
        lambda x: next(NAMED(y) for y in [x]),
    ]  # fmt: skip
    for function in [late, *map(ms.checkpoint, functions)]:
        same(gradients(net, function, x)["block"]["conv"]["weight"], plain)
        assert named["conv"]["weight"].shape == plain.shape and net.block is named


def helper(x):
    return NAMED(x)


class Holder:
    """No module, but one is behind its method, its property, its class and its slot."""

    __slots__ = ("held",)

    def __init__(self):
        self.held = NAMED

    def __call__(self, x):
        return self.held(x)

    @property
    def block(self):
        return NAMED

    @classmethod
    def run(cls, x):
        return helper(x)


def test_a_checkpoint_reaches_modules_by_any_way(x, monkeypatch):
    monkeypatch.setattr("mlxsparse.compiled.tracer", lambda f, **_: f)
    monkeypatch.setitem(sys.modules, "some_model", types.ModuleType("some_model"))
    sys.modules["some_model"].block = NAMED
    plain = gradients(NAMED, NAMED, x)["conv"]["weight"]
    holder, table, nested = Holder(), {"a": NAMED}, [[NAMED]]

    def imports(x):
        from some_model import block

        return block(x)

    def around():
        named = NAMED

        def inner(x):
            return named(x)

        return lambda x: inner(x)

    functions = [
        lambda x: helper(x), wraps(print)(lambda x: helper(x)), lru_cache(None)(helper), holder, Holder.run,
        imports, lambda x: holder(x), lambda x: holder.block(x), lambda x: table["a"](x),
        lambda x: nested[0][0](x), around(), ms.compile(NAMED), ms.compile(helper),
        mx.custom_function(helper), ms.nn.Sequential(lambda x: NAMED(x)), ms.nn.Sequential(holder),
        ms.checkpoint(helper),
    ]  # fmt: skip
    for i, function in enumerate(functions):
        found = gradients(NAMED, ms.checkpoint(function), x)["conv"]["weight"]
        np.testing.assert_allclose(np.array(found), np.array(plain), rtol=1e-5, atol=1e-6, err_msg=str(i))


class Stages:
    """Layers that code reaches by an operator, an index, a loop, a context and names that are not there."""

    def __init__(self, layers):
        self.layers = layers

    def __matmul__(self, x):
        return self.layers[0](x)

    def __getitem__(self, index):
        return self.layers[index]

    def __iter__(self):
        return iter(self.layers)

    def __enter__(self):
        return self.layers[0]

    def __exit__(self, *_):
        pass

    def __getattr__(self, name):
        return self.layers[0]

    @singledispatchmethod
    def dispatched(self, x):
        return helper(x)

    partial = partialmethod(lambda self, block, x: block(x), NAMED)


def test_a_checkpoint_follows_syntax_and_containers(x):
    plain = gradients(NAMED, NAMED, x)["conv"]["weight"]
    stages, empty, held = Stages([NAMED]), Stages([]), {"a": NAMED}

    def context(x):
        with stages as block:
            return block(x)

    values, items = held.values(), held.items()
    rows, tables = [deque([NAMED]), UserList([NAMED])], [UserDict(held), ChainMap(held)]
    tables += [MappingProxyType(held)]
    functions = [
        context, lambda x: stages @ x, lambda x: stages[0](x), lambda x: stages.other(x),
        lambda x: [block(x) for block in stages][0], lambda x: [block(x) for block in values][0],
        lambda x: [block(x) for _, block in items][0],
        lambda x: empty.dispatched(x), lambda x: empty.partial(x),
        *(lambda x, row=row: row[0](x) for row in rows), *(lambda x, t=table: t["a"](x) for table in tables),
    ]  # fmt: skip
    for i, function in enumerate(functions):
        found = gradients(NAMED, ms.checkpoint(function), x)["conv"]["weight"]
        np.testing.assert_allclose(np.array(found), np.array(plain), rtol=1e-5, atol=1e-6, err_msg=str(i))


@lru_cache(maxsize=1024)
def cached(number):
    return NAMED if number < 0 else number


def test_a_checkpoint_follows_a_cache_of_many_results(x):
    plain = gradients(NAMED, NAMED, x)["conv"]["weight"]
    for number in range(1000):
        cached(number)
    found = gradients(NAMED, ms.checkpoint(lambda x: cached(-1)(x)), x)["conv"]["weight"]
    np.testing.assert_allclose(np.array(found), np.array(plain), rtol=1e-5, atol=1e-6)


class Trainer:
    """Holds a model beside much else."""

    def __init__(self, net):
        self.net, self.table = net, [{"a": [i]} for i in range(1000)]

    def run(self, block, x):
        return block(x)

    def all(self, x):
        return self.net(x)


def test_a_checkpoint_takes_no_more_than_code_names():
    net = ms.nn.Sequential(Block(), Block())
    block, trainer = net.layers[0], Trainer(net)
    assert len(_modules([lambda x: trainer.run(block, x)])) == len(block.modules())
    assert len(_modules([lambda x: trainer.all(x)])) == len(net.modules())


def test_a_checkpoint_of_layers_made_inside_or_copied():
    net, x = mlx.nn.Linear(4, 4, bias=False), mx.ones((5, 4))

    def hyper(weight, x):
        layer = mlx.nn.Linear(4, 4, bias=False)
        layer.weight = weight
        return layer(x)

    def scaled(x):
        layer = copy.copy(net)
        layer.weight = net.weight * 2
        return layer(x)

    weight = mx.random.normal((4, 4))
    same(
        mx.grad(lambda w: ms.checkpoint(hyper)(w, x).square().sum())(weight),
        mx.grad(lambda w: hyper(w, x).square().sum())(weight),
    )
    got, wanted = (
        mlx.nn.value_and_grad(net, lambda x, f=f: f(x).square().sum())(x)[1]["weight"]
        for f in (ms.checkpoint(scaled), scaled)
    )
    same(got, wanted)
    assert mx.abs(wanted).sum().item() > 0


def test_a_checkpoint_asks_nothing_of_the_objects_that_it_looks_at(x):
    class Proxy:
        def unbound(self, *_):
            raise RuntimeError("not bound")

        __getattribute__ = __iter__ = __len__ = __bool__ = unbound
        __class__ = property(unbound)

    net, proxy = Block(), Proxy()
    plain = gradients(net, net, x)["conv"]["weight"]
    same(gradients(net, ms.checkpoint(lambda x: (proxy, net(x))[1]), x)["conv"]["weight"], plain)


def test_a_module_is_an_argument_of_a_checkpoint(x):
    net, more = Block(), mlx.nn.Linear(4, 4)

    def run(nets, x, more=None):
        assert type(nets[0]) is Block
        return x.replace(more(nets[0](x).feats))

    saved = ms.checkpoint(run)
    for of, name in ((net.conv, "weight"), (more, "bias")):
        plain, found = (gradients(of, lambda x, f=f: f([net], x, more=more), x)[name] for f in (run, saved))
        same(plain, found)
        assert mx.abs(plain).sum().item() > 0
    assert type(net) is Block and net.conv.weight.shape == (4, 3, 3, 3, 4)
