"""compress: the smaller model computes what the masked one does; optimizer state, checks, all or nothing."""

from __future__ import annotations

import json

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mlxsparse import nn
from mlxsparse.blocks import Pruner, compress, restructure, structure_of
from mlxsparse.blocks.flow import example
from mlxsparse.errors import CheckpointError, CouplingError, MLXSparseError
from mlxsparse.models.minkunet import MinkUNet, ModelArgs

ARGS = ModelArgs(4, 3, (4, 8, 8), 1)


def unet():
    mx.random.seed(0)
    model = MinkUNet(ARGS)
    for module in model.modules():  # as after training
        if isinstance(module, nn.BatchNorm):
            n = module.num_features
            module.running_mean, module.bias = mx.random.normal((n,)), mx.random.normal((n,))
            module.running_var, module.weight = (
                mx.random.uniform(0.5, 2, (n,)),
                mx.random.uniform(0.5, 2, (n,)),
            )
    return model


def flat(tree):
    return dict(tree_flatten(tree))


def loss_of(model, x):
    return (model(x).feats ** 2).mean()


@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("structure", ["channels", "offsets"])
def test_equal_to_the_masked_model_and_smaller(structure, sparsity):
    model = unet()
    x = example(model, 150)
    Pruner(structure, sparsity).attach(model)
    before = {k: np.array(v) for k, v in flat(model.parameters()).items()}
    small = compress(model, sample=x)
    taps = {k for k in flat(small.parameters()) if k.endswith(".weight_taps")}
    assert bool(taps) == (structure == "offsets" or sparsity == 1)  # channels of zeros have taps of zeros
    assert not taps & flat(small.trainable_parameters()).keys()
    kept_masks = {k for k in flat(small.parameters()) if k.endswith("_keep")}
    assert bool(kept_masks) == (sparsity == 1)  # of the one channel or tap that has to stay
    assert set(flat(small.parameters())) - kept_masks - taps == {k for k in before if not k.endswith("_keep")}
    assert sum(v.size for k, v in flat(small.parameters()).items() if k not in kept_masks) < sum(
        v.size for k, v in before.items() if not k.endswith("_keep")
    )
    after = flat(model.parameters())
    assert all(np.array_equal(before[k], np.array(after[k])) for k in before)  # the model is as it was
    for mode in ("eval", "train"):
        getattr(model, mode)(), getattr(small, mode)()
        expected, got = np.array(model(x).feats), np.array(small(x).feats)
        np.testing.assert_allclose(got, expected, atol=2e-5 * max(1, np.abs(expected).max()))
    assert small.training and model.training
    if structure == "channels":
        kept = 8 - int(sparsity * 8 + 1e-9) or 1
        assert small.encoder[1].layers[0].conv.weight.shape[0] == kept
        assert small.encoder[1].layers[0].norm.num_features == kept
        assert small.decoder[0].layers[0].first.conv.weight.shape[-1] == 2 * kept
    else:
        assert small.stem.layers[0].conv.weight.shape[1] == (27 - int(27 * sparsity) or 1)


def test_weights_that_someone_else_holds_stay():
    model = unet()
    held = flat(model.parameters())
    before = {k: np.array(v) for k, v in held.items()}
    Pruner("channels", 0.5).attach(model).project()
    small = compress(model)
    Pruner("offsets", 0.5).attach(small)
    for module in small.modules():
        if isinstance(module, nn.Linear):
            module.weight[:] = 9
    assert all(np.array_equal(before[k], np.array(v)) for k, v in held.items())
    assert np.array(model.head.weight).max() < 9


def test_zeros_count_like_masks_and_plain_models_are_refused():
    model = unet()
    with pytest.raises(CouplingError, match="nothing to compress"):
        compress(model)
    Pruner("channels", 0.5).attach(model).detach()
    small = compress(model)
    assert small.stem.layers[0].conv.weight.shape[0] == 2
    again = compress(Pruner("offsets", 0.5).attach(small)._model)
    assert again.stem.layers[0].conv.weight.shape == (2, 14, 4)
    assert compress(Pruner("offsets", 0.5).attach(again)._model).stem.layers[0].conv.weight.shape == (2, 7, 4)


@pytest.mark.parametrize("structure", ["channels", "offsets"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Lion"])
def test_the_optimizer_goes_on_as_with_the_masked_model(structure, name):
    model = unet()
    x = example(model, 100)
    made = {"SGD": lambda: optim.SGD(0.01, momentum=0.9), "Adam": lambda: optim.Adam(0.01),
            "AdamW": lambda: optim.AdamW(0.01), "Lion": lambda: optim.Lion(0.001)}  # fmt: skip
    optimizer = made[name]()
    Pruner(structure, 0.5).attach(model)
    step = mlx.nn.value_and_grad(model, loss_of)
    for _ in range(3):
        _, gradients = step(model, x)
        optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)
    other = made[name]()
    other.state = tree_map(lambda a: a, optimizer.state)
    small = compress(model, optimizer=other, sample=x)
    assert flat(other.state).keys() == flat(optimizer.state).keys()
    for m, o in ((model, optimizer), (small, other)):
        _, gradients = mlx.nn.value_and_grad(m, loss_of)(m, x)
        o.update(m, gradients)
        mx.eval(m.parameters(), o.state)
    model.eval(), small.eval()
    expected = np.array(model(x).feats)
    np.testing.assert_allclose(np.array(small(x).feats), expected, atol=2e-3 * np.abs(expected).max())


def test_state_that_cannot_be_cut_is_refused_before_anything_changes():
    model = unet()
    x = example(model, 40)
    optimizer = optim.Adafactor(0.01)
    _, gradients = mlx.nn.value_and_grad(model, loss_of)(model, x)
    optimizer.update(model, gradients)
    Pruner("channels", 0.5).attach(model)
    state = optimizer.state
    with pytest.raises(CouplingError, match="state of .*cannot be cut alike"):
        compress(model, optimizer=optimizer)
    assert optimizer.state is state


class Twice(mlx.nn.Module):
    """A layer under two names."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.d = nn.SubmConv3d(4, 8), nn.SubmConv3d(8, 8), nn.Linear(8, 2)
        self.c = self.b

    def __call__(self, x):
        return self.d(self.c(self.b(self.a(x))))


def trained(model, optimizer, x, steps=2):
    step = mlx.nn.value_and_grad(model, loss_of)
    for _ in range(steps):
        _, gradients = step(model, x)
        optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)
    return model


MODELS = {
    "one name": lambda: nn.Sequential(nn.SubmConv3d(4, 8), nn.BatchNorm(8), nn.SubmConv3d(8, 3)),
    "two names": Twice,
}
MADE = {
    "Adam": lambda: optim.Adam(0.01),
    "MultiOptimizer": lambda: optim.MultiOptimizer(
        [optim.Adam(0.01), optim.SGD(0.01, momentum=0.9)], [lambda name, _: "weight" in name]
    ),
}


@pytest.mark.parametrize("structure", ["channels", "offsets"])
@pytest.mark.parametrize("of", MODELS)
@pytest.mark.parametrize("name", MADE)
def test_states_of_several_optimizers_and_of_shared_layers_are_cut(name, of, structure):
    model, optimizer = MODELS[of](), MADE[name]()
    x = example(model, 60)
    Pruner(structure, 0.5).attach(model)
    trained(model, optimizer, x)
    small = compress(model, optimizer=optimizer, sample=x)
    for state in optimizer.state.get("states", [optimizer.state]):
        entries = {k.rpartition(".")[0]: v for k, v in flat(state).items() if v.ndim}
        shapes = {k: v.shape for k, v in flat(small.parameters()).items()}
        assert entries and all(v.shape == shapes[k] for k, v in entries.items())
    trained(small, optimizer, x)


def test_state_of_no_parameter_is_refused():
    model = MODELS["one name"]()
    x = example(model, 60)
    Pruner("channels", 0.5).attach(model)
    optimizer = optim.Adam(0.01)
    trained(model, optimizer, x)
    optimizer.state["averages"] = {"layers": [mx.ones((8, 3, 3, 3, 4))]}
    with pytest.raises(CouplingError, match="averages.*cannot be cut alike"):
        compress(model, optimizer=optimizer)


def test_check_compares_and_can_be_left_out(monkeypatch):
    from mlxsparse.blocks import compress as module  # the function

    model = unet()
    Pruner("channels", 0.5).attach(model)
    optimizer = optim.Adam(0.01)
    optimizer.init(model.trainable_parameters())
    state = optimizer.state
    file = __import__("sys").modules[module.__module__]
    whole = file._apply

    def wrong(layer, cut):
        whole(layer, cut)
        if "running_mean" in layer:
            layer.running_mean = layer.running_mean + 1

    monkeypatch.setattr(file, "_apply", wrong)
    with pytest.raises(MLXSparseError, match="differs from the masked one.*pass a tolerance= above 0.0001"):
        compress(model, optimizer=optimizer)
    assert optimizer.state is state
    compress(model, check=False)


def test_check_tells_nan_of_the_model_and_takes_equal_infinities():
    """Both were told as a difference of nan."""
    model = nn.Sequential(nn.SubmConv3d(4, 8), nn.ReLU(), nn.Linear(8, 3))
    Pruner("channels", 0.5).attach(model)
    model.layers[2].bias = mx.array([-mx.inf, 1.0, 2.0])
    assert compress(model).layers[0].weight.shape[0] == 4
    model.layers[2].bias = mx.array([mx.nan, 1.0, 2.0])
    with pytest.raises(MLXSparseError, match="the model gives NaN on the sample"):
        compress(model)
    compress(model, check=False)


def test_masks_of_channels_in_a_model_that_cannot_be_followed_are_refused():
    model = nn.Sequential(nn.SubmConv3d(3, 4), nn.BatchNorm(4), nn.SubmConv3d(4, 2))
    Pruner("channels", 0.5).attach(model)
    wrapped = Mixed(model)
    with pytest.raises(CouplingError, match="does not"):
        compress(wrapped)


class Mixed(mlx.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.last = nn.Linear(2, 2)

    def __call__(self, x):
        y = self.inner(x)
        return self.last(y.replace(y.feats * y.feats.sum(axis=1, keepdims=True)))


def test_offsets_go_even_where_channels_cannot_be_followed():
    model = Mixed(nn.SubmConv3d(3, 2))
    Pruner("offsets", 0.5).attach(model)
    assert compress(model).inner.weight.shape == (2, 14, 3)


@pytest.mark.parametrize("structure", ["channels", "offsets"])
def test_structure_travels_as_json(structure):
    model = unet()
    small = compress(Pruner(structure, 0.5).attach(model)._model).eval()
    for final in (small, nn.fold_batch_norms(small)):
        text = json.dumps(structure_of(final))
        fresh = restructure(MinkUNet(ARGS), json.loads(text))
        fresh.load_weights(tree_flatten(final.parameters()))
        x = example(model, 60)
        np.testing.assert_allclose(np.array(fresh.eval()(x).feats), np.array(final(x).feats), atol=1e-5)
    broken = structure_of(small)
    broken["nowhere"] = broken["head"]
    with pytest.raises(CheckpointError, match="nowhere"):
        restructure(MinkUNet(ARGS), broken)
    with pytest.raises(CheckpointError, match="head"):
        restructure(MinkUNet(ARGS), {"head": {"shapes": {}, "taps": [0], "identity": False}})


GOOD = {"shapes": {"weight": [8, 3, 3, 3, 4], "bias": [8]}, "taps": None, "identity": False}


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": {"bogus": [8], "weight": [1, 1]}},
        {"shapes": {"weight": [1, 1], "bias": [1]}},
        {"shapes": {"weight": [8, 3, 3, 3, 4]}},
        {"shapes": {"weight": [4, 3, 3, 3, 4], "bias": [8]}},
        {"shapes": {"weight": [4, 3, 3, 1, 4], "bias": [4]}},
        {"shapes": {"weight": [9, 3, 3, 3, 4], "bias": [9]}},
        {"shapes": {"weight": [0, 3, 3, 3, 4], "bias": [0]}},
        {"shapes": GOOD["shapes"] | {"weight_keep": [8]}},
        {"shapes": GOOD["shapes"] | {"bogus_keep": [8]}},
        {"taps": [0, 1]},
    ],
)
def test_a_structure_that_does_not_fit_is_refused(change):
    restructure(nn.Sequential(nn.SubmConv3d(4, 8)), {"layers.0": GOOD})
    with pytest.raises(CheckpointError, match="layers.0"):
        restructure(nn.Sequential(nn.SubmConv3d(4, 8)), {"layers.0": GOOD | change})


def test_the_structure_of_a_model_that_is_one_layer():
    small = compress(Pruner("offsets", 0.5).attach(nn.SubmConv3d(4, 8))._model)
    fresh = restructure(nn.SubmConv3d(4, 8), json.loads(json.dumps(structure_of(small))))
    fresh.load_weights(tree_flatten(small.parameters()))
    x = example(small, 60)
    np.testing.assert_allclose(np.array(fresh(x).feats), np.array(small(x).feats), atol=1e-6)
    with pytest.raises(CheckpointError, match="one layer"):
        restructure(nn.SubmConv3d(4, 8), {"": GOOD | {"identity": True}})


def test_the_structure_of_a_masked_model_is_masked():
    model = unet()
    Pruner("offsets", 0.5).attach(model)
    fresh = restructure(MinkUNet(ARGS), json.loads(json.dumps(structure_of(model))))
    assert not any(k.endswith("_keep") for k in flat(fresh.trainable_parameters()))
    fresh.load_weights(tree_flatten(model.parameters()))
    x = example(model, 60)
    np.testing.assert_array_equal(np.array(fresh.eval()(x).feats), np.array(model.eval()(x).feats))
    assert compress(fresh).stem.layers[0].conv.weight.shape[1] == 14


def test_the_structure_of_a_shared_layer_is_shared():
    model = Twice()
    small = compress(Pruner("offsets", 0.5).attach(model)._model)
    fresh = restructure(Twice(), structure_of(small))
    assert fresh.b is fresh.c and fresh.b.weight.shape == (8, 14, 8)


def test_zeroed_is_not_smaller_but_compressed_is_faster():
    """Arithmetic, not time: multiply-adds fall with the channels squared, masks alone change nothing."""
    model = unet()
    x = example(model, 100)
    Pruner("channels", 0.5).attach(model)
    small = compress(model, sample=x)
    assert work_of(model) == work_of(unet())
    assert work_of(small) < 0.4 * work_of(model)


def work_of(model):
    return sum(m.weight.size for m in model.modules() if hasattr(m, "_taps"))


NORMS = {
    "InstanceNorm": lambda: nn.InstanceNorm(8),
    "affine InstanceNorm": lambda: nn.InstanceNorm(8, affine=True),
    "BatchNorm of running statistics": lambda: nn.BatchNorm(8, affine=False),
    "BatchNorm without arrays": lambda: nn.BatchNorm(8, affine=False, track_running_stats=False),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_with_and_without_arrays_are_cut_and_restored(name):
    def made():
        return nn.Sequential(nn.SubmConv3d(4, 8), NORMS[name](), nn.SubmConv3d(8, 3))

    model = made()
    x = example(model, 60)
    Pruner("channels", 0.5).attach(model)
    small = compress(model, sample=x).eval()
    np.testing.assert_allclose(np.array(small(x).feats), np.array(model.eval()(x).feats), atol=1e-5)
    structure = json.loads(json.dumps(structure_of(small)))
    fresh = restructure(made(), structure)
    fresh.load_weights(tree_flatten(small.parameters()))
    np.testing.assert_array_equal(np.array(fresh.eval()(x).feats), np.array(small(x).feats))
    for entry in structure.values():
        if entry["width"] is not None:
            entry["width"] = 9
            with pytest.raises(CheckpointError, match="layers.1.*8 channels"):
                restructure(made(), structure)
