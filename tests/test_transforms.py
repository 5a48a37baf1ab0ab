"""SparseTensor under mx.eval, mx.compile, mx.checkpoint, value_and_grad: right gradients, clear errors."""

from __future__ import annotations

import collections
from functools import partial

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse.errors import IdentityError, TracedOnHostError, TransformError

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def x():
    rng = np.random.default_rng(3)
    sites = np.unique(rng.integers(-4, 4, (60, 4)) % [[2, 9, 9, 9]], axis=0).astype(np.int32)
    return ms.SparseTensor(mx.array(sites), mx.array(rng.normal(size=(len(sites), 4)).astype(np.float32)))


def weight(co, k, ci, seed=0):
    return mx.array(np.random.default_rng(seed).normal(size=(co, k, k, k, ci)).astype(np.float32)) / 5


class Block(mlx.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = ms.nn.SubmConv3d(4, 4)
        self.norm = ms.nn.BatchNorm(4)
        self.act = ms.nn.ReLU()

    def __call__(self, x):
        return self.act(self.norm(self.conv(x)))


def same(a, b):
    np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-6)


def test_compile_takes_and_returns_it(x):
    double = mx.compile(lambda x: x.replace(x.feats * 2))
    for _ in range(2):
        y = double(x)
        assert isinstance(y, ms.SparseTensor) and y.stride == x.stride
        same(y.feats, x.feats * 2)
    inside = mx.compile(lambda a: ms.SparseTensor(a["x"].coords, a["x"].feats + 1, batch_size=2))
    y = inside({"x": x})
    same(y.feats, x.feats + 1)
    assert y.batch_counts.tolist() == x.batch_counts.tolist()
    # The rebuilt tensor is usable, with an identity of its own.
    same(ms.ops.subm_conv3d(y, weight(2, 3, 4)).feats, ms.ops.subm_conv3d(x + 1, weight(2, 3, 4)).feats)
    with pytest.raises(TracedOnHostError, match="batch_size"):
        mx.compile(lambda c, f: ms.SparseTensor(c, f))(x.coords, x.feats)


def test_gradient_through_compile(x):
    compiled = mx.compile(lambda x: x.replace(x.feats.square()))
    gradient = mx.grad(lambda f: compiled(x.replace(f)).feats.sum())(x.feats)
    same(gradient, 2 * x.feats)


def test_operators_refuse_a_trace_on_the_host(x):
    w = weight(2, 3, 4)
    with mx.stream(mx.cpu):
        for function in (
            lambda f: ms.ops.subm_conv3d(x.replace(f), w).feats,
            lambda f: ms.ops.max_pool3d(x.replace(f), 2).feats,
            lambda f: ms.ops.global_avg_pool(x.replace(f)),
            lambda f: ms.ops.dense(x.replace(f)),
        ):
            with pytest.raises(TracedOnHostError, match="mlxsparse.compile"):
                mx.compile(function)(x.feats)
        with pytest.raises(TracedOnHostError):
            mx.compile(lambda x: ms.ops.subm_conv3d(x, w))(x)


def test_plain_checkpoint_gradients_and_lost_identity(x):
    w = weight(4, 3, 4)

    def block(x, w):
        return ms.ops.subm_conv3d(x, w) + x

    def loss(function, f, w):
        return function(x.replace(f), w).feats.square().sum()

    plain = mx.grad(lambda f, w: loss(block, f, w), argnums=(0, 1))(x.feats, w)
    saved = mx.grad(lambda f, w: loss(mx.checkpoint(block), f, w), argnums=(0, 1))(x.feats, w)
    for a, b in zip(plain, saved):
        same(a, b)
    with pytest.raises(IdentityError, match="mlxsparse.checkpoint"):
        mx.checkpoint(block)(x, w) + x
    y = mx.checkpoint(block)(x, w)
    assert y.key is not x.key
    with pytest.raises(IdentityError, match="mlxsparse.checkpoint"):
        x + y


def test_plain_checkpoint_of_a_tensor_that_is_gone(x):
    """The backward pass rebuilds what nobody holds any more."""
    w = weight(4, 3, 4)

    def loss(wrap, f, w):
        made = ms.SparseTensor(x.coords + mx.array([0, 1, 1, 1], mx.int32), f)
        return wrap(lambda x, w: ms.ops.subm_conv3d(x, w) + x)(made, w).feats.square().sum()

    plain = mx.grad(partial(loss, lambda f: f), argnums=(0, 1))(x.feats, w)
    saved = mx.grad(partial(loss, mx.checkpoint), argnums=(0, 1))(x.feats, w)
    for a, b in zip(plain, saved):
        same(a, b)


def test_checkpoint_keeps_identity_and_gradients(x):
    w, v = weight(6, 2, 4), weight(4, 2, 6)

    def block(x, w, v):
        down = ms.ops.conv3d(x, w, stride=2)
        return {"up": ms.ops.conv_transpose3d(down, v, stride=2), "down": [down]}

    def loss(function, f, w, v):
        a = x.replace(f)
        result = function(a, w, v)
        assert result["up"].key is x.key
        return (result["up"] + a).feats.square().sum() + result["down"][0].feats.sum()

    def both(function):
        return mx.value_and_grad(partial(loss, function), argnums=(0, 1, 2))(x.feats, w, v)

    expected, wanted = both(block)
    value, gradients = both(ms.checkpoint(block))
    same(value, expected)
    for a, b in zip(gradients, wanted):
        same(a, b)


def test_checkpoint_of_a_module_gives_its_parameters_gradients(x):
    block = Block()
    mx.eval(block.parameters())

    def loss(block, wrap):
        return (wrap(block)(x) + x).feats.square().sum()

    _, plain = mlx.nn.value_and_grad(block, loss)(block, lambda m: m)
    _, saved = mlx.nn.value_and_grad(block, loss)(block, ms.checkpoint)
    same(plain["conv"]["weight"], saved["conv"]["weight"])
    same(plain["norm"]["weight"], saved["norm"]["weight"])
    assert mx.abs(saved["conv"]["weight"]).sum().item() > 0


def test_value_and_grad_takes_it_as_an_argument(x):
    block = Block()

    def loss(block, x):
        y = block(x)
        down = ms.ops.conv3d(y, weight(4, 2, 4), stride=2)
        return (
            ms.ops.cat([ms.ops.conv_transpose3d(down, weight(4, 2, 4), stride=2), y + x])
            .feats.square()
            .mean()
        )

    step = mlx.nn.value_and_grad(block, loss)
    step(block, x)
    built = x.manager.stats()
    value, _ = step(block, x)
    after = x.manager.stats()
    assert (after["maps_built"], after["coordinates_built"]) == (
        built["maps_built"],
        built["coordinates_built"],
    )
    same(value, loss(block, x))


@pytest.mark.parametrize("name", ["jvp in feats", "jvp in weights", "second", "mixed second"])
def test_other_transformations_are_refused(x, name):
    w = weight(2, 3, 4)

    def value(f, w):
        return ms.ops.subm_conv3d(x.replace(f), w).feats.square().sum()

    with pytest.raises(TransformError, match="convolution"):
        if name == "jvp in feats":
            mx.jvp(lambda f: value(f, w), (x.feats,), (x.feats,))
        elif name == "jvp in weights":
            mx.jvp(lambda w: value(x.feats, w), (w,), (w,))
        elif name == "second":
            mx.grad(lambda f: mx.grad(lambda f: value(f, w))(f).sum())(x.feats)
        else:
            mx.grad(lambda w: mx.grad(lambda f: value(f, w))(x.feats).sum())(w)


def test_what_follows_from_traced_arguments_stays_lazy():
    from mlxsparse.backend.library import begin

    held = []

    def loss(w, rows):
        held.append(mx.cumsum(rows[:3] * 2))
        begin(held[-1])  # MLX refuses to start it here
        return (w * held[-1]).sum()

    value, gradient = mx.value_and_grad(loss)(mx.array(2.0), mx.arange(5))
    assert (float(value), float(gradient)) == (16.0, 8.0)
    assert held[0].tolist() == [0, 2, 6]


def test_checkpoint_takes_namedtuples():
    pair = collections.namedtuple("pair", "a b")
    x, z = (
        ms.SparseTensor(np.array([[0, p, 0, 0], [0, p + 2, 0, 0]], np.int32), mx.full((2, 1), float(p)))
        for p in (0, 7)
    )

    def swap(both, more):
        assert both.a.key is x.key and both.b.key is z.key and more.key is z.key
        return pair(both.b * 2, both.a)

    y = ms.checkpoint(swap)(pair(x, z), z)
    assert type(y) is pair and y.a.key is z.key and y.b.key is x.key
    assert y.a.feats.tolist() == [[14.0], [14.0]] and y.b.coords.tolist() == x.coords.tolist()


@pytest.mark.parametrize("nothing", [None, [], 3.0, {"a": "b"}])
def test_checkpoint_of_what_returns_no_array(x, nothing):
    """Which MLX's own answers with a crash of the interpreter."""
    with pytest.raises(TransformError, match="returned"):
        ms.checkpoint(lambda x: nothing)(x)
    assert ms.checkpoint(lambda x: {"a": x, "b": nothing})(x)["a"].key is x.key


def test_the_second_run_of_a_checkpoint_draws_what_the_first_drew(x):
    drop = ms.nn.Dropout(0.5)

    def noisy(x):
        return drop(drop(x).replace(x.feats * mx.random.normal(x.feats.shape)))

    def draws(function):
        mx.random.seed(3)
        found = mx.value_and_grad(lambda f: (function(x.replace(f)) * 2.0).feats.sum())(x.feats)
        return [np.array(a) for a in (*found, mx.random.uniform(shape=(3,)))]

    for a, b in zip(draws(ms.checkpoint(noisy)), draws(noisy)):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_module_is_no_argument_of_a_compiled_function(x):
    for arguments in ((Block(),), ([{"a": Block()}],)):
        with pytest.raises(TransformError, match="got a Block; name it in the function"):
            ms.compile(lambda m, x: x)(*arguments, x)


def test_a_checkpoint_leaves_modules_as_they_were():
    class Table(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.index = mx.arange(5.0), mx.array([[0, 1, 2]])

        def __call__(self, z):
            return z + self.table[self.index]

    class Several(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.some = [mx.ones((3,)), {"a": mx.ones((3,))}]
            self.turned = mx.ones((3,), mx.complex64)

        def __call__(self, z):
            # not the real part of a product: MLX compiles no cast from complex numbers on CUDA
            return z * (self.some[0] * self.some[1]["a"] + mx.real(self.turned))

    table, dense, several = Table(), mlx.nn.Linear(3, 3), Several()
    own = dict(dense)
    z = mx.ones((4, 3))
    for net in (table, dense, several):
        function = ms.checkpoint(partial(lambda net, z: net(z), net))

        def loss(z, function=function):
            return function(z).square().sum()

        wanted = mx.grad(lambda z, net=net: net(z).square().sum())(z)
        for transformed in (mx.grad(loss), mx.compile(mx.grad(loss)), mx.vmap(mx.grad(loss))):
            same(transformed(z), wanted)
        gradient = mlx.nn.value_and_grad(net, loss)(z)[1]
        assert all(mx.abs(a).sum().item() > 0 for name, a in tree_flatten(gradient) if name != "index")
        mx.eval(net.parameters())
    assert all(dense[name].tolist() == own[name].tolist() for name in ("weight", "bias"))


def test_what_a_checkpointed_function_assigns_stays():
    class Average(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mean = mlx.nn.Linear(3, 3), mx.zeros((3,))

        def __call__(self, z):
            y = self.linear(z)
            self.mean = mx.stop_gradient(y.mean(axis=0))
            return y

    net, z = Average(), mx.ones((4, 3))
    for function in (net, ms.checkpoint(net)):
        net.mean = mx.zeros((3,))
        mlx.nn.value_and_grad(net, lambda z, function=function: function(z).sum())(z)
        same(net.mean, net.linear(z)[0])


@pytest.mark.parametrize("wrap", [ms.checkpoint, ms.compile, ms.staged])
def test_what_is_no_function_is_refused(wrap):
    with pytest.raises(TransformError, match="str"):
        wrap("foo")
