"""Functions between layers that labels do not survive: followed where a channel comes from one channel."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest

from mlxsparse import SparseTensor, nn, ops
from mlxsparse.blocks import Pruner, channel_groups, compress
from mlxsparse.blocks.flow import example
from mlxsparse.errors import CouplingError

WIDTH = 8


class Net(mlx.nn.Module):
    def __init__(self, function, out=WIDTH):
        super().__init__()
        self.a, self.norm, self.b = nn.SubmConv3d(4, WIDTH), nn.BatchNorm(WIDTH), nn.SubmConv3d(WIDTH, WIDTH)
        self.c, self.head = nn.SubmConv3d(out, WIDTH), nn.Linear(WIDTH, 3)
        self.gamma = mx.linspace(0.5, 1, WIDTH)
        self._function = function

    def __call__(self, x):
        y = self.norm(self.a(x))
        return self.head(self.c(self._function(self, y)))


def on_feats(function):
    return lambda m, y: y.replace(function(y.feats))


FOLLOWED = {
    "tanh": on_feats(mx.tanh),
    "sigmoid": on_feats(mx.sigmoid),
    "exp": on_feats(mx.exp),
    "relu6": on_feats(lambda f: mx.minimum(mx.maximum(f, 0), 6)),
    "clip": on_feats(lambda f: mx.clip(f, -0.1, 0.1)),
    "square": on_feats(mx.square),
    "round": on_feats(lambda f: mx.round(f * 2)),
    "half": on_feats(lambda f: f * 0.5 + 1),
    "negative": on_feats(lambda f: mx.maximum(-f, 0)),
    "fp16": on_feats(lambda f: f.astype(mx.float16).astype(mx.float32)),
    "bf16": on_feats(lambda f: f.astype(mx.bfloat16).astype(mx.float32)),
    "log": on_feats(lambda f: mx.log(f * f + 1)),
    "layers": lambda m, y: nn.Tanh()(nn.Sigmoid()(y)),
    "layers of MLX": on_feats(lambda f: mlx.nn.gelu(mlx.nn.Mish()(f))),
    "a sum": lambda m, y: ops.add(y, ops.sub(m.b(y), y)),
    "a product": lambda m, y: ops.mul(y, m.b(y)),
    "a sum and a function": lambda m, y: nn.Tanh()(ops.add(y.replace(mx.tanh(y.feats)), m.b(y)) + y),
    "twice": lambda m, y: y.replace(mx.tanh(m.b(y.replace(mx.sigmoid(y.feats))).feats)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_channels_are_cut_through_functions(name):
    model = Net(FOLLOWED[name])
    model.norm.running_mean = mx.random.normal((WIDTH,)) * 0.1
    x = example(model, 60)
    Pruner("channels", 0.5).attach(model)
    small = compress(model, sample=x).eval()
    expected = np.array(model.eval()(x).feats)
    np.testing.assert_allclose(np.array(small(x).feats), expected, atol=1e-5)
    assert small.a.weight.shape[0] == small.c.weight.shape[-1] == 4


NAMED = r"reach c come from .*ops.add.*channel of one channel|of a cannot .*exclude"
REFUSED = {
    "softmax": on_feats(lambda f: mx.softmax(f, axis=-1)),
    "sum of arrays": lambda m, y: y.replace(y.feats + m.b(y).feats),
    "gate": lambda m, y: y.replace(y.feats * mx.sigmoid(m.b(y).feats)),
    "maximum": lambda m, y: y.replace(mx.maximum(mx.tanh(y.feats), mx.tanh(m.b(y).feats))),
    "cumsum": on_feats(lambda f: mx.tanh(mx.cumsum(f, axis=1))),
    "norm": on_feats(lambda f: f / (1 + mx.linalg.norm(f, axis=-1, keepdims=True))),
    "neighbour": on_feats(lambda f: f * mx.roll(f, 1, axis=1)),
    "gate of its own": on_feats(lambda f: mx.tanh(mx.where(f[:, :1] > 0, f, 0))),
    "constant": on_feats(lambda f: f * 0),
    "rows": on_feats(lambda f: mx.tanh(f) * mx.arange(len(f))[:, None]),
    "array a channel": lambda m, y: y.replace(mx.tanh(y.feats) * m.gamma),
    "slice": on_feats(lambda f: mx.tanh(f[:, :4])),
    # At some scales alone, and between labels that survive (`clipped`).
    "norm from 10 on": on_feats(lambda f: f * mx.minimum(1, 10 / mx.linalg.norm(f, axis=1, keepdims=True))),
    "norm up to 10": on_feats(lambda f: f * mx.maximum(1, 10 / mx.linalg.norm(f, axis=1, keepdims=True))),
    "gate from 2.5 on": on_feats(lambda f: mx.where(f[:, -1:] > 2.5, mx.sin(2 * f), mx.sin(f))),
    "gate to -50": on_feats(lambda f: mx.where(f[:, :1] < -50, mx.tanh(f), mx.maximum(f, 0))),
    "gate of a mean": on_feats(lambda f: mx.where(f.mean(axis=1, keepdims=True) > 0.01, mx.tanh(f), f)),
    "capped by the largest": on_feats(lambda f: mx.exp(f - mx.maximum(f.max(axis=1, keepdims=True) - 5, 0))),
    "clipped": on_feats(lambda f: mx.maximum(f, mx.minimum(f[:, :1], -5))),
    "number of channels": on_feats(lambda f: mx.where(mx.abs(f) > 50, f * f.shape[1], mx.tanh(f))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_of_several_channels_and_of_places_are_refused(name):
    model = Net(REFUSED[name], 4 if name == "slice" else WIDTH)
    sample = example(model, 3)
    with pytest.raises(CouplingError, match=NAMED):
        Pruner("channels", 0.5, sample=sample).attach(model)
    assert not any("_keep" in name for layer in model.modules() for name in layer)


def test_compress_keeps_what_a_clipped_norm_reads():
    model = Net(REFUSED["norm from 10 on"])
    model.c.weight = mx.where(mx.arange(WIDTH) < 4, model.c.weight, 0)
    with pytest.raises(CouplingError, match="nothing to compress"):
        compress(model, sample=example(model, 3))


SILENT = {
    "NaN": mx.log,
    "overflow": lambda f: mx.exp(mx.exp(f)),
    "overflow of fp16": lambda f: mx.square(f.astype(mx.float16)),
    "infinite": lambda f: 1 / mx.maximum(f, 0),
    "0 when small": lambda f: mx.where(mx.abs(f) < 0.5, 0, f),
    "0 when large": lambda f: mx.where(mx.abs(f) > 0.9, 0, f),
    "large sine": lambda f: mx.sin(300 * f),
}


@pytest.mark.parametrize("name", SILENT)
def test_functions_that_say_nothing_at_some_scales_are_followed(name):
    model = Net(on_feats(SILENT[name]))
    x = example(model)
    assert {group.name: group.fixed for group in channel_groups(model, x)}["a"] is None
    Pruner("channels", 0.5, sample=x).attach(model)
    assert "weight_keep" in model.a


def test_functions_that_run_on_labels_alone_are_refused():
    def large(f):
        if f.max() < 10_000:
            raise ArithmeticError("small")
        return mx.maximum(f, 0)

    model = Net(on_feats(large))
    with pytest.raises(CouplingError, match="does not run on values from -1000 to 1000 .*small"):
        channel_groups(model)


def test_the_order_of_channels_is_found():
    order = [3, 0, 7, 1, 6, 2, 5, 4]
    model = Net(on_feats(lambda f: mx.tanh(f[:, mx.array(order)])))
    found = {group.name: group for group in channel_groups(model)}
    assert "another order" in found["a"].fixed
    model = Net(lambda m, y: ops.cat([y.replace(mx.tanh(y.feats)), m.b(y)]), 2 * WIDTH)
    found = {group.name: group for group in channel_groups(model)}
    assert [(use.path, first) for use, first, _ in found["b"].parts] == [("b", 0), ("c", WIDTH)]
    assert [(use.path, first) for use, first, _ in found["a"].parts][-1] == ("c", 0)


def test_strict_sums_of_a_derived_class_without_operators_are_as_before():
    class Mine(SparseTensor):
        pass

    x = example(nn.SubmConv3d(4, 2), 5)
    mine = Mine._make(tuple.__iter__(x), x.key, x.manager)
    for a, b in ((mine, x), (x, mine), (mine, mine)):
        np.testing.assert_array_equal(ops.add(a, b).feats, 2 * x.feats)


def test_a_run_costs_a_logarithm_of_the_channels(monkeypatch):
    from mlxsparse.blocks import flow

    runs, follow = [], flow._follow
    monkeypatch.setattr(flow, "_follow", lambda *a: runs.append(a) or follow(*a))
    flow.trace(Net(FOLLOWED["tanh"]), example(Net(None)))
    labels = 4 + 3 * WIDTH + 3
    # Labels; probes and what they found; each of 6 scales, and large ones of both signs beside others.
    assert len(runs) == 1 + 2 + 2 * labels.bit_length() + 6 + 4 * labels.bit_length()


class Crossed(mlx.nn.Module):
    """A transformer block whose context comes from a layer too, and is read by another."""

    def __init__(self):
        super().__init__()
        self.a, self.context, self.b = nn.Linear(4, 12), nn.Linear(4, 8), nn.Linear(8, 12)
        self.block = nn.SparseTransformerBlock(12, 2, context_dims=8, positional_conv=True)
        self.head = nn.Linear(12, 3)

    def __call__(self, x):
        y = self.context(x)
        return self.head(self.block(self.a(x) + self.b(y), y))


def test_channels_inside_of_a_transformer_block_are_cut():
    model = Crossed()
    x = example(model, 40)
    found = {group.name: group for group in channel_groups(model)}
    assert found["block.mlp_in"].size == 48
    assert [name for name, group in found.items() if group.fixed is None] == ["block.mlp_in"]
    assert "block.cross (SparseAttention) mixes" in found["context"].fixed
    Pruner("channels", 0.5).attach(model)
    small = compress(model, sample=x)
    assert small.block.mlp_in.weight.shape == (24, 12) and small.block.mlp_out.weight.shape == (12, 24)
    expected = np.array(model(x).feats)
    np.testing.assert_allclose(np.array(small(x).feats), expected, atol=1e-5)


def test_a_layer_that_mixes_is_run_once_for_all_runs():
    """It was run on zeros in each of some hundred runs."""
    calls = []

    class Counted(nn.LayerNorm):
        def __call__(self, x):
            calls.append(x.num_channels)
            return super().__call__(x)

    model = Net(FOLLOWED["tanh"])
    model.norm = Counted(WIDTH)
    assert [g.name for g in channel_groups(model) if g.fixed is None] == ["c"]
    assert calls == [WIDTH]


def test_a_part_of_a_model_that_is_not_followed_is_pruned_by_itself():
    class Dense(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.sparse, self.flat = Net(FOLLOWED["tanh"]), mlx.nn.Conv3d(3, 4, 1)

        def __call__(self, x):
            return self.flat(ops.dense(self.sparse(x)))

    model, x = Dense(), example(Net(None), 30)
    with pytest.raises(CouplingError, match="flat come from.*A part of the model can be pruned .* by itself"):
        Pruner("channels", 0.5, sample=x).attach(model)
    Pruner("channels", 0.5, sample=x).attach(model.sparse)
    expected = np.array(model(x))
    model.sparse = compress(model.sparse, sample=x)
    assert model.sparse.c.weight.shape[0] == WIDTH // 2
    np.testing.assert_allclose(np.array(model(x)), expected, atol=1e-5)
