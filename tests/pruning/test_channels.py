"""Which channels are tied together, and what is refused by name."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest

from mlxsparse import SparseTensor, nn, ops
from mlxsparse.blocks import Pruner, channel_groups, compress, targets
from mlxsparse.blocks.flow import example
from mlxsparse.errors import CouplingError, MLXSparseError
from mlxsparse.models.minkunet import MinkUNet, ModelArgs


def uses(group):
    return sorted((use.path, use.side, first) for use, first, _ in group.parts)


def by_name(model, sample=None):
    return {group.name: group for group in channel_groups(model, sample)}


class Net(mlx.nn.Module):
    """A stem, a body to be tested, a head."""

    def __init__(self, body, width=6, out=None):
        super().__init__()
        self.stem = nn.SubmConv3d(3, width)
        self.body = body
        self.head = nn.Linear(out or width, 2)

    def __call__(self, x):
        return self.head(self.body(self.stem(x)))


class Call(mlx.nn.Module):
    """A module around a function of its layers and x."""

    def __init__(self, function, **layers):
        super().__init__()
        self._function = function
        for name, layer in layers.items():
            self[name] = layer

    def __call__(self, x):
        return self._function(self, x)


def test_groups_of_minkunet():
    found = by_name(MinkUNet(ModelArgs(4, 5, (4, 6, 8), 2)))
    assert found["head"].fixed == "the model's output"
    assert uses(found["encoder.0.layers.0.conv"]) == [
        ("decoder.0.layers.0.first.conv", "in", 6),
        ("decoder.0.layers.0.shortcut", "in", 6),
        ("down.1.conv", "in", 0),
        ("encoder.0.layers.0.conv", "out", 0),
        ("encoder.0.layers.0.norm", "both", 0),
        ("encoder.0.layers.0.shortcut", "out", 0),
        ("encoder.0.layers.1.conv", "out", 0),
        ("encoder.0.layers.1.first.conv", "in", 0),
        ("encoder.0.layers.1.norm", "both", 0),
    ]
    assert all(group.fixed is None for name, group in found.items() if name != "head")


def test_a_residual_sum_ties_its_sides_and_a_concatenation_keeps_them_apart():
    def function(m, x):
        a, b = m.a(x), m.b(x)
        return ops.cat([a + m.c(a), b]) * 2 - 1

    body = Call(function, a=nn.SubmConv3d(6, 4), b=nn.SubmConv3d(6, 5), c=nn.SubmConv3d(4, 4))
    found = by_name(Net(body, out=9))
    assert uses(found["body.a"]) == [
        ("body.a", "out", 0), ("body.c", "in", 0), ("body.c", "out", 0), ("head", "in", 0)
    ]  # fmt: skip
    assert uses(found["body.b"]) == [("body.b", "out", 0), ("head", "in", 4)]


PASSING = {
    "pooling": Call(lambda m, x: m.b(m.a(x), out=x), a=nn.MaxPool3d(2, 2), b=nn.PoolTranspose3d(2, 2)),
    "activations": nn.Sequential(nn.GELU(), nn.SiLU(), nn.Sigmoid(), nn.PReLU(), nn.Dropout(0.5)),
    "instance norm": nn.InstanceNorm(6, affine=True),
    "batch norm": nn.BatchNorm(6),
    "depthwise": nn.SubmConv3d(6, 6, groups=6),
    "pointwise functions": Call(lambda m, x: x.replace(mx.maximum(x.feats, 0))),
    "one layer twice": Call(lambda m, x: m.a(m.n(m.a(x))), a=nn.SubmConv3d(6, 6), n=nn.BatchNorm(6)),
    "a layer onto itself": Call(lambda m, x: x + m.a(x), a=nn.SubmConv3d(6, 6)),
    "down and up": Call(
        lambda m, x: m.b(m.a(x), out=x), a=nn.Conv3d(6, 8, 3, 2, 1), b=nn.ConvTranspose3d(8, 6, 3, 2, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSING)
def test_channels_are_cut_through(name):
    model = Net(PASSING[name])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm):
            module.running_mean = mx.random.normal(module.running_mean.shape)
            module.weight = mx.random.uniform(0.5, 2, module.weight.shape)
    sample = example(model, 60)
    Pruner("channels", 0.5, sample=sample).attach(model)
    model.eval()
    expected = np.array(model(sample).feats)
    small = compress(model, sample=sample).eval()
    np.testing.assert_allclose(np.array(small(sample).feats), expected, atol=1e-4)
    assert small.stem.weight.shape[0] == 3 and small.head.weight.shape == (2, 3)
    small.train()
    small(sample)


def test_targets_that_are_chosen_have_what_follows_them():
    """Their scopes alone left the layer's own inputs unmasked, and compress found nothing to cut."""
    model = Net(Call(lambda m, x: m.a(m.a(x)), a=nn.SubmConv3d(6, 6)))
    x = example(model, 30)
    pruner = Pruner([t for t in targets(model, "channels") if t.followers], 0.5).attach(model)
    pruner.update()
    small = compress(model, sample=x)
    assert small.stem.weight.shape[0] == 3 and small.body.a.weight.shape == (3, 3, 3, 3, 3)


MIXED = {
    "LayerNorm": nn.LayerNorm(6),
    "GroupNorm": nn.GroupNorm(2, 6),
    "RMSNorm": nn.RMSNorm(6),
    "Softmax": nn.Softmax(),
    "SqueezeExcitation": nn.SqueezeExcitation(6, 2),
    "groups=2": nn.SubmConv3d(6, 6, groups=2),
    "sizes of its weights": nn.NormalizedConv3d(6, 6),
}


@pytest.mark.parametrize("name", MIXED)
def test_channels_that_a_layer_mixes_stay_and_the_reason_names_it(name):
    model = Net(MIXED[name])
    group = by_name(model)["stem"]
    assert name in group.fixed and "body" in group.fixed
    with pytest.raises(CouplingError, match="body"):
        targets(model, "channels")


def test_operations_that_are_not_followed_are_refused_by_name():
    body = Call(lambda m, x: x.replace(x.feats[:, ::-1] * x.feats), a=nn.ReLU())
    with pytest.raises(CouplingError, match="reach head"):
        channel_groups(Net(body))
    body = Call(lambda m, x: x.replace(x.feats + m.a(x).feats), a=nn.SubmConv3d(6, 6))
    with pytest.raises(CouplingError, match="reach head"):
        Pruner("channels").attach(Net(body))


ONE_SIDED = {
    "ops.maximum": lambda a, b: ops.maximum(a, b),
    "maximum": lambda a, b: a.replace(mx.maximum(a.feats, b.feats)),
    "minimum": lambda a, b: a.replace(mx.minimum(a.feats, b.feats)),
    "gate": lambda a, b: a.replace(mx.where(b.feats > 0, a.feats, 0)),
    "closed gate": lambda a, b: a.replace(mx.where(b.feats <= 0, 0, a.feats)),
    "gate by one channel": lambda a, b: a.replace(mx.where(b.feats[:, :1] > 0, a.feats, 0)),
    "gate by a channel of its own": lambda a, b: a.replace(mx.where(a.feats[:, :1] > 0, a.feats, 0)),
    "then a layer": lambda a, b: nn.ReLU()(a.replace(mx.maximum(a.feats, b.feats))),
}


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("name", ONE_SIDED)
def test_an_operation_that_lets_one_side_of_the_labels_through_is_refused(name, width):
    body = Call(
        lambda m, x: ONE_SIDED[name](m.a(x), m.b(x)), a=nn.SubmConv3d(6, width), b=nn.SubmConv3d(6, width)
    )
    if width == 1 and "of its own" in name:
        return  # a pointwise function
    model = Net(body, out=width)
    with pytest.raises(CouplingError, match="reach head"):
        Pruner("channels", 0.25).attach(model)
    assert not any(name.endswith("_keep") for module in model.modules() for name in module)


def test_sites_that_features_choose_do_not_stop_the_run():
    def function(m, x):
        y = m.a(x)
        score = mx.maximum(m.score(y).feats[:, 0], 0)
        return ops.prune(y.replace(mx.maximum(y.feats, 0)), score > 0)

    body = Call(function, a=nn.SubmConv3d(6, 6), score=nn.Linear(6, 1))
    assert by_name(Net(body))["body.a"].fixed is None


def test_shuffled_channels_stay():
    body = Call(lambda m, x: x.replace(x.feats[:, mx.array([0, 2, 1, 3, 5, 4])]))
    assert "another order" in by_name(Net(body))["stem"].fixed


def test_arrays_after_global_pooling_are_followed():
    model = Net(nn.BatchNorm(6))
    model.head = Call(lambda m, x: m.b(mx.maximum(m.a(m.pool(x)), 0)), pool=nn.GlobalAvgPool(),
                      a=mlx.nn.Linear(6, 8), b=mlx.nn.Linear(8, 3))  # fmt: skip
    sample = example(model, 30)
    Pruner("channels", 0.5).attach(model)
    small = compress(model, sample=sample)
    assert small.head.a.weight.shape == (4, 3) and small.head.b.weight.shape == (3, 4)


def test_samples():
    with pytest.raises(MLXSparseError, match="sample"):
        example(nn.ReLU())
    model = Net(nn.ReLU())
    wrong = SparseTensor(np.zeros((1, 4), np.int32), mx.zeros((1, 5)))
    with pytest.raises(CouplingError, match="5 reach it"):
        channel_groups(model, wrong)
    empty = SparseTensor(np.zeros((0, 4), np.int32), mx.zeros((0, 3)), batch_size=1)
    with pytest.raises(MLXSparseError, match="no site"):
        channel_groups(model, empty)
    before = np.array(model.stem.weight)
    channel_groups(model)
    np.testing.assert_array_equal(np.array(model.stem.weight), before)
