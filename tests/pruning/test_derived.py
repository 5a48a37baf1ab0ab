"""Models that do more than layers: derived classes, losses beside features, channels that code counts."""

from __future__ import annotations

import json

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxsparse import nn, ops
from mlxsparse.blocks import Pruner, channel_groups, compress, restructure, structure_of
from mlxsparse.blocks.flow import example
from mlxsparse.errors import CheckpointError, CouplingError, StrideError


class ConvReLU(nn.SubmConv3d):
    def __call__(self, x):
        y = super().__call__(x)
        return y.replace(mx.maximum(y.feats, 0))


class ConvNorm(nn.SubmConv3d):
    def __init__(self, *args):
        super().__init__(*args)
        self.norm = nn.BatchNorm(8)
        self.norm.running_mean = mx.arange(8) * 0.1

    def __call__(self, x):
        return self.norm(super().__call__(x))


class ConvSum(nn.SubmConv3d):
    def __call__(self, x, other=None):
        y = super().__call__(x)
        return x + y if other is None else other + y


class LinearScaled(nn.Linear):
    def __call__(self, x):
        return super().__call__(x) * 2


class NormShifted(nn.BatchNorm):
    def __call__(self, x):
        y = super().__call__(x)
        return y.replace(y.feats + mx.arange(self.num_features))


class Plain(nn.SubmConv3d):
    """With more to say, but called as its base is."""

    def __init__(self, *args):
        super().__init__(*args)
        self.note = "mine"


class Net(mlx.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.stem, self.mid, self.between = nn.SubmConv3d(4, 8), nn.SubmConv3d(8, 8), nn.SubmConv3d(8, 8)
        self.body, self.head = layer, nn.Linear(8, 4)

    def __call__(self, x):
        return self.head(self.body(self.between(self.mid(self.stem(x)))))


DERIVED = {
    "ConvReLU": lambda: ConvReLU(8, 8),
    "ConvNorm": lambda: ConvNorm(8, 8),
    "ConvSum": lambda: ConvSum(8, 8),
    "LinearScaled": lambda: LinearScaled(8, 8),
    "NormShifted": lambda: NormShifted(8),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", DERIVED)
def test_channels_of_a_derived_layer_stay_and_the_reason_names_it(name, masked):
    model = Net(DERIVED[name]()).train()
    x = example(model, 60)
    if masked and name.startswith("Conv"):
        Pruner("offsets", 0.5).attach(model)
    arrays = {k: np.array(v) for k, v in tree_flatten(model.parameters())}
    found = {group.name: group.fixed for group in channel_groups(model)}
    assert f"body ({name})" in found["between"] and found["stem"] is None
    Pruner("channels", 0.5).attach(model)
    small = compress(model, sample=x, check=False).eval()
    assert small.between.weight.shape[0] == 8 and small.mid.weight.shape[0] == 4
    np.testing.assert_allclose(np.array(small(x).feats), np.array(model.eval()(x).feats), atol=1e-4)
    now = dict(tree_flatten(model.parameters()))  # the run changed no statistics
    assert all(np.array_equal(arrays[k], np.array(now[k])) for k in arrays if "running" in k)
    alone = nn.Sequential(DERIVED[name](), nn.Linear(8, 4))
    with pytest.raises(CouplingError, match=f"layers.0.*{name}"):
        Pruner("channels").attach(alone)


@pytest.mark.parametrize("name", [name for name in DERIVED if name != "NormShifted"])
def test_derived_layers_that_are_pruned_by_blocks_stay_dense_and_masked(name):
    model = Net(DERIVED[name]())
    x = example(model, 60)
    Pruner("blocks", 0.5, block=(4, 4)).attach(model)
    small = compress(model, sample=x, check=False).eval()
    assert type(small.body).__bases__[1] is type(DERIVED[name]()) and "weight_keep" in small.body
    np.testing.assert_allclose(np.array(small(x).feats), np.array(model.eval()(x).feats), atol=1e-4)
    fresh = restructure(Net(DERIVED[name]()), json.loads(json.dumps(structure_of(small))))
    fresh.load_weights(tree_flatten(small.parameters()))
    np.testing.assert_array_equal(np.array(fresh.eval()(x).feats), np.array(small(x).feats))
    structure = structure_of(small)
    structure["body"] = structure["mid"]
    with pytest.raises(CheckpointError, match=f"body.*{name}"):
        restructure(Net(DERIVED[name]()), structure)


def test_derived_layers_without_a_call_of_their_own_are_as_their_base():
    model = Net(Plain(8, 8))
    Pruner("channels", 0.5).attach(model)
    assert compress(model).body.weight.shape[0] == 4


class TwoIn(Net):
    def __call__(self, x):
        y = self.mid(self.stem(x))
        return self.head(self.body(self.between(y), y))


def test_what_else_a_derived_layer_gets_stays_too():
    found = {group.name: group.fixed for group in channel_groups(TwoIn(ConvSum(8, 8)))}
    assert "ConvSum" in found["mid"] and "ConvSum" in found["between"] and found["stem"] is None


class Beside(mlx.nn.Module):
    """Features, and what a function makes of them."""

    def __init__(self, function):
        super().__init__()
        self.a, self.norm, self.b = nn.SubmConv3d(4, 8), nn.BatchNorm(8), nn.Linear(8, 3)
        self._function = function

    def __call__(self, x):
        y = self.norm(self.a(x))
        return self._function(self.b(y), y)


BESIDE = {
    "None": lambda z, y: (z, None),
    "a number": lambda z, y: {"y": z, "weight": 0.5, "name": "aux"},
    "a loss": lambda z, y: (z, (y.feats**2).mean()),
    "coordinates": lambda z, y: [z.feats, z.coords],
    "classes": lambda z, y: (z, mx.argmax(z.feats, axis=-1), z.feats > 0),
}


@pytest.mark.parametrize("structure", ["channels", "offsets", "blocks"])
@pytest.mark.parametrize("name", BESIDE)
def test_other_values_beside_features_do_not_stop_it(name, structure):
    model = Beside(BESIDE[name])
    Pruner(structure, 0.5, block=(4, 4)).attach(model)
    small = compress(model)
    assert small.a.weight.size < 8 * 27 * 4


class Odd(mlx.nn.Module):
    """Code that what stands for layers does not have."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.SubmConv3d(4, 8), nn.Linear(8, 3)

    def __call__(self, x):
        y = self.a(x)
        return self.b(y * (self.a.weight.shape[0] // 8 or 1))


def fails(y):
    raise StrideError("a stride")


def test_code_that_does_not_run_on_labels_stops_channels_only():
    with pytest.raises(CouplingError, match="does not run on labels.*weight"):
        Pruner("channels").attach(Odd())
    with pytest.raises(CouplingError, match="labels.*StrideError"):
        Pruner("channels").attach(Counts(lambda m, y: m.b(fails(y))))
    model = Odd()
    Pruner("offsets", 0.5).attach(model)
    assert compress(model).a.weight.shape == (8, 14, 4)


class Counts(mlx.nn.Module):
    """Two layers, what `function` does with the channels between them, a head."""

    def __init__(self, function, width=8, **arrays):
        super().__init__()
        self.a, self.b, self.head = nn.SubmConv3d(4, 8), nn.SubmConv3d(width, 8), nn.Linear(8, 3)
        for name, value in arrays.items():
            self[name] = value
        self._function = function

    def __call__(self, x):
        return self.head(self._function(self, self.a(x)))


def rest(m, y):
    z = m.b(y)
    return y.replace(y.feats + m.gamma * z.feats)


COUNTED = {
    "gamma of ones": lambda: Counts(lambda m, y: m.b(y.replace(y.feats * m.gamma)), gamma=mx.ones((8,))),
    "ReZero": lambda: Counts(rest, gamma=mx.zeros((1,))),
    "ReZero of each channel": lambda: Counts(rest, gamma=mx.zeros((8,))),
    "a slice": lambda: Counts(lambda m, y: m.b(y.replace(y.feats[:, :4])), 4),
    "the last channels": lambda: Counts(lambda m, y: m.b(y.replace(y.feats[:, -4:])), 4),
    "a part of a split": lambda: Counts(lambda m, y: m.b(y.replace(mx.split(y.feats, [3], axis=1)[0])), 3),
    "take": lambda: Counts(
        lambda m, y: m.b(y.replace(mx.take(y.feats, mx.array([1, 3, 5, 7]), axis=1))), 4
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_channels_that_code_counts_are_refused_at_attach(name):
    model = COUNTED[name]()
    with pytest.raises(CouplingError, match="channels (of a cannot .*exclude|that reach (b|head) )"):
        Pruner("channels", 0.5).attach(model)
    assert not any(k.endswith("_keep") for k, _ in tree_flatten(model.parameters()))
    model.head.weight[:, 0] = model.b.weight[..., 0] = 0  # a zero is no reason to cut
    Pruner("offsets", 0.5).attach(model)
    assert compress(model).a.weight.shape == (8, 14, 4)


def test_the_layers_that_are_named_can_be_left_out():
    model = COUNTED["a slice"]()
    model.b.weight[..., 1] = 0
    Pruner("channels", 0.5, exclude=["a"]).attach(model)
    small = compress(model)
    assert small.a.weight.shape[0] == 8 and small.b.weight.shape[0] == 4


def test_parts_of_a_split_that_lose_unequal_numbers_are_refused_by_compress():
    class Halves(Counts):
        def __call__(self, x):
            y = self.a(x)
            first, second = (y.replace(part) for part in mx.split(y.feats, 2, axis=1))
            return self.head(ops.cat([self.b(first), self.c(second)]))

    model = Halves(None, 4, c=nn.SubmConv3d(4, 8))
    model.head = nn.Linear(16, 3)
    Pruner("channels", 0.5).attach(model)
    assert compress(model).a.weight.shape[0] == 4
    keep = np.array(model.b.weight_keep)
    keep[..., np.flatnonzero(keep.any(axis=(0, 1, 2, 3)))[0]] = False
    model.b.weight_keep = mx.array(keep)
    for check in (True, False):
        with pytest.raises(CouplingError, match="channels of a.*exclude"):
            compress(model, check=check)


def test_an_error_of_the_smaller_model_says_what_to_do():
    class Wide(Counts):
        def __call__(self, x):
            y = self.a(x)
            if y.feats.dtype == mx.float16 and y.num_channels != 8:
                raise ValueError("8 channels are wanted")
            return self.head(self.b(y))

    model = Wide(None)
    model.set_dtype(mx.float16)
    Pruner("channels", 0.5).attach(model)
    with pytest.raises(CouplingError, match="8 channels are wanted.*exclude"):
        compress(model)


@pytest.mark.parametrize("structure", ["channels", "offsets", "blocks"])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_models_of_half_precision_need_no_sample(dtype, structure):
    model = nn.Sequential(
        nn.SubmConv3d(4, 8), nn.BatchNorm(8), nn.SqueezeExcitation(8, 2), ConvReLU(8, 8), nn.SubmConv3d(8, 8),
        nn.SubmConv3d(8, 3),
    )  # fmt: skip
    model.set_dtype(dtype)
    assert example(model).dtype == dtype
    Pruner(structure, 0.5, block=(4, 4)).attach(model)
    assert compress(model)(example(model, 20)).dtype == dtype
