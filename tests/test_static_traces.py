"""Static capacity inside traces of MLX: nothing is read, one compilation serves all frames, identity is kept.

Kernels that compute nothing (`lazy`) stand in for real ones, on any machine, and nothing is evaluated: MLX
would call the system's C++ compiler for the elementwise operations of each trace.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import compiled, ops
from mlxsparse.backend import device as backend_device
from mlxsparse.backend import library
from mlxsparse.backend.mail import Sent
from mlxsparse.errors import CapacityError, TracedOnHostError

from .static_cases import OPERATORS, eval_mode, frame, same, small_net, tensor, weight
from .test_lifetime import left_to_the_collector


def _lazy(name, input_names, output_names, source, header="", **_):
    def run(*, inputs, output_shapes, output_dtypes, init_value=None, **_):
        made = [mx.zeros(shape, kind) for shape, kind in zip(output_shapes, output_dtypes)]
        return mx.depends(made, list(inputs))

    return run


@pytest.fixture
def lazy(monkeypatch):
    """Kernels that depend on their inputs and give zeros: any read inside a trace of MLX raises."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    monkeypatch.setattr(compiled, "begin", lambda *_: None)
    monkeypatch.setattr(compiled, "send", lambda status: Sent([status]))
    monkeypatch.setattr(compiled, "raise_for_sent", lambda _: None)
    with library.using(_lazy), backend_device.kernels_everywhere():
        yield
    mx.set_default_device(before)


@pytest.fixture
def on_the_host():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_trace_without_a_read(lazy, name):
    step, plain = ms.compile(OPERATORS[name]), mx.compile(OPERATORS[name])
    x = tensor(50, validate=False).with_capacity(64)
    for make in (step, plain):
        y = make(x)
        assert isinstance(y, ms.SparseTensor) and y.feats.shape[0] == y.coords.shape[0]


def test_reference_counting_alone_frees_a_compiled_function(lazy):
    def run():
        net = eval_mode(small_net())
        x = tensor(50, validate=False).with_capacity(64)
        ms.compile(net)(x, capacity=(64, 64))
        ms.compile(lambda x: ms.ops.max_pool3d(ms.ops.subm_conv3d(x, weight(4, 3, 4)), 2))(x)

    assert left_to_the_collector(run) == []


def test_fifty_frames_one_compilation_no_read(lazy, monkeypatch):
    from mlxsparse.backend import host

    net = eval_mode(small_net())
    step = ms.compile(net, check="late")
    reads = []
    evaluate = host.require_values
    monkeypatch.setattr(host, "require_values", lambda a: reads.append(a) or evaluate(a))
    monkeypatch.setattr(library, "read_ints", lambda *a: reads.append(a))
    monkeypatch.setattr(compiled, "raise_for_sent", lambda sent: reads.extend(sent._arrays))
    for n in range(20, 70):
        sites, feats = frame(n, seed=n)
        x = ms.SparseTensor(mx.array(sites), feats, batch_size=2, validate=False).with_capacity(ms.bucket(70))
        reads.clear()
        y = step(x, capacity=(192, 128))
        assert [a.shape for a in reads] == ([] if n == 20 else [(5,)])  # the status of the call before
    assert step.compilations == 1 and y.key is x.key
    step.check()


def test_identity_through_compile(lazy):
    x = tensor(30, validate=False).with_capacity(64)

    def both(x, y):
        down = ops.max_pool3d(x, 2)
        return {"up": ops.upsample_nearest(down, 2), "down": [down, down + 1]}, y + x

    found, total = ms.compile(both)(x, x * 2)
    assert found["up"].key is x.key and total.key is x.key
    a, b = found["down"]
    assert a.key is b.key and a.key.parent is x.key and a.key.fixed_capacity
    assert (a + b).key is a.key


def test_what_needs_values_says_so_in_a_trace(lazy):
    x = tensor(30, validate=False).with_capacity(64)
    for operator in (lambda x: x.num_active, lambda x: x.compact()):
        with pytest.raises(TracedOnHostError):
            ms.compile(operator)(x)


def test_on_the_host_compile_runs_eagerly(on_the_host, capfd, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_TRACE", "1")
    x = tensor(60)

    @ms.compile
    def step(x):
        return OPERATORS["k2 s2"](x)

    step(x)
    assert "step runs eagerly: coordinates are derived on the host" in capfd.readouterr().err
    assert ms.compile(lambda x: ops.subm_conv3d(x, weight(4, 3, 4)) + x)(x).key is x.key
    same(step(x), OPERATORS["k2 s2"](x))
    assert step.compilations == 0
    with pytest.raises(CapacityError, match="capacity=3"):
        ms.compile(lambda x: ops.max_pool3d(x, 2, capacity=3))(x)
    with pytest.raises(TracedOnHostError, match=r"mlxsparse\.compile"):
        mx.compile(OPERATORS["k2 s2"])(x)


def test_bucket():
    sizes = [ms.bucket(n) for n in range(1, 200_000, 37)]
    assert all(b >= n and b % 256 == 0 for n, b in zip(range(1, 200_000, 37), sizes))
    assert all(b <= max(1.5 * n, 512) for n, b in zip(range(1, 200_000, 37), sizes))
    assert len(set(sizes)) < 25 and sizes == sorted(sizes)
    assert ms.bucket(100_000, steps=8) < 1.1 * 100_000
    with pytest.raises(ms.errors.MLXSparseError, match="steps"):
        ms.bucket(5, steps=0)


@pytest.fixture
def strict(lazy):
    """As `lazy`, of kernels that MLX cannot differentiate by itself, as real ones."""

    def refuse(*_):
        raise ValueError("[Primitive::vjp] Not implemented for CustomKernel.")

    def make(*given, **more):
        run = _lazy(*given, **more)

        def sealed(*, inputs, **rest):
            function = mx.custom_function(lambda *a: tuple(run(inputs=list(a), **rest)))
            function.vjp(refuse)
            return list(function(*inputs))

        return sealed

    with library.using(make):
        yield


class Slope(mlx.nn.Module):
    """A layer that gives the gradient of another's sum."""

    def __init__(self):
        super().__init__()
        self.layer = ms.nn.SubmConv3d(4, 3)

    def __call__(self, x):
        return x.replace(mx.grad(lambda feats: self.layer(x.replace(feats)).feats.sum())(x.feats))


def test_gradients_within_and_of_a_compiled_module_in_evaluation(strict):
    x = tensor(30, validate=False).with_capacity(64)
    within = ms.compile(Slope().eval())
    assert within(x).feats.shape == within(x).feats.shape == (64, 4)
    net = eval_mode(small_net())
    step = ms.compile(net)
    rows = (40, 30)
    step(x, capacity=rows)  # traced without gradients in mind
    for _ in range(2):
        of_feats = mx.grad(lambda feats: step(x.replace(feats), capacity=rows).feats.sum())(x.feats)
        assert of_feats.shape == x.feats.shape
        loss = mlx.nn.value_and_grad(net, lambda net: step(x, capacity=rows).feats.sum())
        assert loss(net)[1]["head"]["weight"].shape == net.head.weight.shape


def test_a_module_in_evaluation_is_traced_without_custom_functions(strict, monkeypatch):
    from mlxsparse.backend import autodiff

    seen = []
    probe = autodiff._seen.probe
    monkeypatch.setattr(autodiff._seen, "probe", lambda *a: seen.append(a) or probe(*a))
    x = tensor(30, validate=False).with_capacity(64)
    ms.compile(eval_mode(small_net()))(x, capacity=(40, 30))
    assert len(seen) <= 2  # whether the arguments are traced


EYE = np.eye(2, dtype=bool)
BLOCKS = {
    "linear": lambda: ms.nn.BlockSparseLinear(4, 4, 2, EYE),
    "conv": lambda: ms.nn.BlockSparseConv3d(4, 4, 1, 2, EYE.reshape(2, 1, 1, 1, 2)),
    "strided": lambda: ms.nn.BlockSparseConv3d(4, 4, 1, 2, EYE.reshape(2, 1, 1, 1, 2), stride=2),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_other_blocks_of_the_same_number_are_another_trace(lazy, name):
    """The blocks' places are constants of a trace: the new weights met the old ones."""
    layer, seen = BLOCKS[name]().eval(), []
    x = tensor(30, validate=False).with_capacity(64)

    def call(x):
        seen.append(np.array(layer._parts))
        return layer(x, capacity=64) if name == "strided" else layer(x)

    steps = ms.compile(call, inputs=layer.state), ms.compile(layer)
    named = {"capacity": 64} if name == "strided" else {}
    mask = np.array(layer.layout.to_dense()[0] if name == "linear" else layer.layout)
    for number, new in ((1, mask), (1, mask), (2, np.roll(mask, 1, axis=0)), (3, mask)):
        layer.update_layout(new)
        for step, more in zip(steps, ({}, named)):
            step(x, **more)
            step(x, **more)
            assert step.compilations == number and len(step._plans) == 1
        assert np.array_equal(seen[-1], new)


def test_a_layer_of_blocks_is_compiled_on_a_tensor(lazy):
    """It took the active rows alone, which nobody knows within a trace."""
    x = tensor(30, validate=False).with_capacity(64)
    for run in (ms.compile, mx.compile):
        y = run(BLOCKS["linear"]().__call__)(x)
        assert y.feats.shape == (64, 4)


def test_fewer_taps_are_another_trace(lazy):
    """The first choice among all taps was none that traces were told of."""
    layer = ms.nn.SubmConv3d(4, 4).eval()
    x = tensor(30, validate=False).with_capacity(64)
    step = ms.compile(lambda x: layer(x))
    for number, taps in ((1, None), (2, [0, 13]), (2, [0, 13]), (3, [13])):
        if taps is not None:
            layer.keep_taps(taps)
        step(x)
        assert step.compilations == number
