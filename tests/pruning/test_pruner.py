"""Masks in the forward: zeros stay under any optimizer, in compiled steps, across save and load."""

from __future__ import annotations

import copy
import pickle

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mlxsparse import nn
from mlxsparse.blocks import (
    BlockSpec,
    Pruner,
    ScopeCoupling,
    ScopeSpec,
    View,
    compress,
    constant,
    cubic,
    group_lasso_step,
    linear,
    magnitude,
    n_of_m,
)  # fmt: skip
from mlxsparse.blocks.flow import example
from mlxsparse.blocks.masking import effective
from mlxsparse.blocks.structure import Target
from mlxsparse.errors import CouplingError, MLXSparseError
from mlxsparse.models.minkunet import MinkUNet, ModelArgs


def unet():
    mx.random.seed(0)
    return MinkUNet(ModelArgs(4, 3, (4, 8), 1))


def dense():
    mx.random.seed(0)
    return mlx.nn.Sequential(mlx.nn.Linear(8, 8), mlx.nn.ReLU(), mlx.nn.Linear(8, 8))


def two_of_four(model):
    return [n_of_m(View.of(model, f"layers.{i}.weight"), 2, 4)[0] for i in (0, 2)]


X = mx.array(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32))


def loss_of(model, x):
    return ((model(x) - 1) ** 2).mean()


OPTIMIZERS = {
    "SGD": lambda: optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda: optim.Adam(0.01),
    "AdamW": lambda: optim.AdamW(0.01, weight_decay=0.1),
    "Lion": lambda: optim.Lion(0.01, weight_decay=0.1),
    "RMSprop": lambda: optim.RMSprop(0.01),
    "Adagrad": lambda: optim.Adagrad(0.01),
    "AdaDelta": lambda: optim.AdaDelta(0.1),
    "Adamax": lambda: optim.Adamax(0.01),
    "Adafactor": lambda: optim.Adafactor(0.01),
    "Muon": lambda: optim.Muon(0.01),
}


# A compiled step takes seconds to build for the larger ones.
@pytest.mark.parametrize(
    ("name", "compiled"), [(name, False) for name in OPTIMIZERS] + [("SGD", True), ("Adam", True)]
)
def test_pruned_blocks_stay_zero(name, compiled):
    model = dense()
    optimizer = OPTIMIZERS[name]()
    optimizer.init(model.trainable_parameters())
    step_of = mlx.nn.value_and_grad(model, loss_of)

    def step(x):
        _, gradients = step_of(model, x)
        optimizer.update(model, gradients)

    for _ in range(3):  # momentum from before the pruning
        step(X)
    pruner = Pruner(two_of_four(model), nnz=2).attach(model)
    keep = np.array(model.layers[0].weight_keep)
    assert keep.reshape(8, 2, 4).sum(axis=-1).tolist() == [[2, 2]] * 8
    state = [model.state, optimizer.state]
    run = mx.compile(step, inputs=state, outputs=state) if compiled else step
    before = np.array(effective(model.layers[0], "weight"))
    for _ in range(4):
        run(X)
        mx.eval(state)
    now = np.array(effective(model.layers[0], "weight"))
    assert (now[~keep] == 0).all() and (now[keep] != before[keep]).any()
    y = model(X)
    pruner.project()
    assert (np.array(model.layers[0].weight)[~keep] == 0).all()
    np.testing.assert_array_equal(np.array(model(X)), np.array(y))  # the forward saw zeros all along


def test_gradients_of_pruned_elements_are_zero_and_masks_are_not_trained():
    model = dense()
    Pruner(two_of_four(model), nnz=2).attach(model)
    keep = np.array(model.layers[0].weight_keep)
    _, gradients = mlx.nn.value_and_grad(model, loss_of)(model, X)
    weight = np.array(gradients["layers"][0]["weight"])
    assert (weight[~keep] == 0).all() and (weight[keep] != 0).any()
    assert not any(k.endswith("_keep") for k, _ in tree_flatten(model.trainable_parameters()))
    model.freeze().unfreeze()
    assert not any(k.endswith("_keep") for k, _ in tree_flatten(model.trainable_parameters()))
    model.set_dtype(mx.float16)
    assert model.layers[0].weight_keep.dtype == mx.bool_ and model(X.astype(mx.float16)).dtype == mx.float16


def test_masks_travel_with_the_weights(tmp_path):
    model = unet()
    Pruner("offsets", 0.5).attach(model)
    model.eval()
    x = example(model, 50)
    expected = np.array(model(x).feats)
    model.save_weights(str(tmp_path / "w.safetensors"))
    fresh = MinkUNet(ModelArgs(4, 3, (4, 8), 1))
    Pruner("offsets", 0.0).attach(fresh)
    fresh.load_weights(str(tmp_path / "w.safetensors"))
    fresh.eval()
    np.testing.assert_array_equal(np.array(fresh(x).feats), expected)
    keep = fresh.stem.layers[0].conv.weight_keep
    assert keep.sum().item() == 14 * 4 * 4


@pytest.mark.parametrize("structure", ["offsets", "channels", "blocks"])
def test_structures_of_a_unet_train_and_report(structure):
    model = unet()
    pruner = Pruner(structure, 0.5, block=(4, 4)).attach(model)
    x = example(model, 80)
    optimizer = optim.AdamW(1e-2)
    step = mlx.nn.value_and_grad(model, lambda m: (m(x).feats ** 2).mean())
    for _ in range(2):
        _, gradients = step(model)
        optimizer.update(model, gradients)
    report = pruner.report()
    assert all(row.kept == row.blocks - row.blocks // 2 for row in report)
    assert all(row.nonzero < row.elements for row in report if row.blocks > 1) and "kept" in str(report)
    pruner.detach()
    assert type(model.stem.layers[0].conv) is nn.SubmConv3d
    assert not any(k.endswith("_keep") for k, _ in tree_flatten(model.parameters()))
    assert (
        np.count_nonzero(np.array(model.encoder[0].layers[0].conv.weight))
        < model.encoder[0].layers[0].conv.weight.size
    )


def test_exclude_and_pruning_on_top_of_pruning():
    model = unet()
    Pruner("offsets", 0.5, exclude=["stem", "decoder.0.layers.0.first.conv"]).attach(model)
    assert "weight_keep" not in model.stem.layers[0].conv
    conv = model.encoder[0].layers[0].conv
    first = np.array(conv.weight_keep)
    second = Pruner("channels", 0.5).attach(model)
    both = np.array(conv.weight_keep)
    assert not (both & ~first).any() and both.sum() < first.sum()
    second.update()
    assert (np.array(conv.weight_keep) <= first).all()
    assert any("stem" in row.name for row in second.report())
    small = compress(model)
    assert small.encoder[0].layers[0].conv.weight.shape == (4, 14, 4)


def three():
    mx.random.seed(0)
    return nn.Sequential(nn.SubmConv3d(4, 8), nn.SubmConv3d(8, 8), nn.Linear(8, 3))


def test_update_of_an_earlier_pruner_keeps_what_a_later_one_pruned():
    model = three()
    conv = model.layers[1]
    earlier = Pruner("channels", linear(0.5, 4, -1)).attach(model)
    later = Pruner("offsets", 0.5).attach(model)
    for pruner in (earlier, later, earlier):
        taps = np.array(conv.weight_keep).any(axis=(0, 4)).sum()
        pruner.update(3)
        assert taps == np.array(conv.weight_keep).any(axis=(0, 4)).sum() == 14
    assert np.array(model.layers[0].weight_keep).any(axis=(1, 2, 3, 4)).sum() == 4  # and its own grew
    assert len(compress(model).layers[1].weight[0, :, 0]) == 14


def test_masks_that_were_loaded_stay_under_a_pruner_that_comes_after():
    model = three()
    Pruner("offsets", 0.0).attach(model)
    model.layers[1].weight_keep = mx.broadcast_to(mx.arange(8) > 2, (8, 3, 3, 3, 8))
    pruner = Pruner("offsets", 0.5).attach(model)
    for _ in range(2):
        kept = np.array(model.layers[1].weight_keep)
        assert not kept[..., :3].any() and kept[..., 3:].any(axis=(0, 4)).sum() == 14
        pruner.update()


def test_report_after_another_pruner_was_detached_is_a_named_error():
    model = three()
    one, other = Pruner("channels", 0.25).attach(model), Pruner("offsets", 0.5).attach(model)
    one.detach()
    with pytest.raises(MLXSparseError, match="weight.*detached"):
        other.report()
    other.update()
    assert [row.kept for row in other.report()] == [14, 14]
    other.detach()
    assert type(model.layers[1]) is nn.SubmConv3d and "_choices" not in vars(model.layers[1])


def test_momentum_from_before_brings_nothing_back():
    model, optimizer = dense(), optim.SGD(0.5, momentum=0.9)
    step = mlx.nn.value_and_grad(model, loss_of)

    def train():
        for _ in range(5):
            optimizer.update(model, step(model, X)[1])

    train()
    scopes = [ScopeSpec(BlockSpec(View.of(model, f"layers.{i}.weight"), (1, 1))) for i in (0, 2)]
    pruner = Pruner(scopes, linear(0.5, 4)).attach(model, 4)
    layers = model.layers[0], model.layers[2]
    before = [np.array(layer.weight_keep) for layer in layers]
    train()
    moved = [np.array(layer.weight) for layer in layers]
    assert all(np.abs(w[~keep]).max() > 0 for w, keep in zip(moved, before))
    pruner.update(4)
    assert all((np.array(layer.weight_keep) == keep).all() for layer, keep in zip(layers, before))
    train()
    raw = np.array(layers[0].weight)
    again = Pruner([n_of_m(View.of(model, "layers.0.weight"), 2, 4)[0]], nnz=2)
    chosen = again._choose([Target("", s) for s in again.structure], 0)  # nor those of another pruner
    seen = np.where(before[0], np.abs(raw), 0).reshape(8, 2, 4)
    kept = np.array(*chosen.values()).reshape(seen.shape) * seen
    np.testing.assert_allclose(kept.sum(), np.sort(seen)[..., 2:].sum(), rtol=1e-5)
    assert np.array_equal(np.array(layers[0].weight), raw)
    pruner.update(2)  # a quarter: more is kept, and grows again
    assert [int(layer.weight_keep.sum()) for layer in layers] == [48, 48]


def test_schedules():
    assert [cubic(0.8, 10, 2)(s) for s in (0, 2, 12, 99)] == pytest.approx([0, 0, 0.8, 0.8])
    assert cubic(0.8, 10)(5) == pytest.approx(0.8 * (1 - 0.125)) and linear(0.8, 10)(5) == pytest.approx(0.4)
    assert constant(0.3)(7) == 0.3
    model = unet()
    pruner = Pruner("offsets", cubic(0.8, 4)).attach(model)
    kept = []
    for step in range(6):
        pruner.update(step)
        kept.append(pruner.report()[0].kept)
    assert kept == [27, 15, 9, 6, 6, 6]
    with pytest.raises(MLXSparseError):
        linear(0.5, 0)(1)


def test_criteria_and_competition_across_layers():
    model = dense()
    model.layers[0].weight = model.layers[0].weight * 100
    scopes = [ScopeSpec(BlockSpec(View.of(model, f"layers.{i}.weight"), (1, -1))) for i in (0, 2)]
    pruner = Pruner([ScopeCoupling(scopes, name="all rows")], sparsity=0.5).attach(model)
    assert np.array(model.layers[0].weight_keep).all() and not np.array(model.layers[2].weight_keep).any()
    assert pruner.report()[0].name == "all rows" and pruner.report()[0].kept == 8
    pruner.detach()
    model = dense()
    row = BlockSpec(View.of(model, "layers.0.weight"), (1, -1))
    Pruner([ScopeSpec(row)], nnz=1, criterion=lambda block: -block.norms(p=1)).attach(model)
    least = np.abs(np.array(dense().layers[0].weight)).sum(axis=1).argmin()
    assert np.flatnonzero(np.array(model.layers[0].weight_keep).any(axis=1)).tolist() == [least]
    assert magnitude(1)(row).shape == (8, 1)


def test_group_lasso_drives_blocks_to_zero():
    def rows_left(strength):
        model = dense()
        optimizer = optim.SGD(0.05)
        block = BlockSpec(View.of(model, "layers.0.weight"), (1, -1))
        step = mlx.nn.value_and_grad(model, loss_of)
        for _ in range(100):
            _, gradients = step(model, X)
            optimizer.update(model, gradients)
            group_lasso_step(block, strength, 0.05)
        return block.nnz_blocks()

    left = [rows_left(strength) for strength in (0, 0.05, 0.1, 0.2)]
    assert left[0] == 8 and left[-1] == 0 and left == sorted(left, reverse=True)


def test_bad_requests_leave_the_model_alone():
    model = unet()
    before = tree_map(lambda a: np.array(a), model.parameters())
    for call in [
        lambda: Pruner("rows"),
        lambda: Pruner("offsets", 0.5, nnz=3),
        lambda: Pruner("offsets", 1.5),
        lambda: Pruner("blocks", block=(64, 64)).attach(model),
        lambda: Pruner("offsets", exclude=["stem", "encoder", "decoder"]).attach(model),
        lambda: Pruner([ScopeSpec(View(mx.ones((2, 2))))]).attach(model),
        lambda: Pruner("offsets").update(),
        lambda: Pruner("offsets").report(),
        lambda: n_of_m(View(mx.ones((2, 4))), 5, 4),
        lambda: compress(model),
    ]:
        with pytest.raises(MLXSparseError):
            call()
    for arguments, word in [
        ({"exclude": "stem"}, "exclude must be a sequence"),
        ({"exclude": [3]}, "exclude must be a sequence"),
        ({"exclude": ["stem", "nowhere"]}, "exclude names \\['nowhere'\\]"),
        ({"exclude": ["ste"]}, "exclude names"),
        ({"nnz": -1}, "nnz must"),
        ({"nnz": 2.7}, "nnz must"),
        ({"nnz": True}, "nnz must"),
        ({"block": 32}, "block must"),
        ({"block": (32,)}, "block must"),
        ({"block": (4, 4, 4)}, "block must"),
        ({"block": (4, 2.5)}, "block must"),
        ({"block": (0, 4)}, "block must"),
    ]:
        with pytest.raises(MLXSparseError, match=word):
            Pruner("blocks", **arguments).attach(model)
    with pytest.raises(MLXSparseError, match="exclude chooses"):
        Pruner([ScopeSpec(View.of(model, "head.weight"))], exclude=["head"])
    with pytest.raises(MLXSparseError, match="block must"):
        compress(model, block=(0, 4))
    for p in (0, -1, float("nan"), "2"):
        with pytest.raises(MLXSparseError, match="p of a norm"):
            magnitude(p)
        with pytest.raises(MLXSparseError, match="p of a norm"):
            BlockSpec(View(mx.ones((2, 2)))).norms(p=p)
    pruner = Pruner("offsets").attach(unet())
    with pytest.raises(MLXSparseError, match="already"):
        pruner.attach(model)
    after = tree_map(lambda a: np.array(a), model.parameters())
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(tree_flatten(before), tree_flatten(after)))
    with pytest.raises(CouplingError):
        Pruner("channels").attach(nn.Sequential(nn.SubmConv3d(3, 4)))


@pytest.mark.parametrize("structure", ["channels", "offsets", "blocks"])
def test_pruned_models_are_pickled_and_copied(structure):
    model, seen, more = unet(), [], {"block": (2, 2)} if structure == "blocks" else {}
    pruner = Pruner(structure, 0.5, **more).attach(model)
    x = example(model)
    wanted = np.array(model(x).feats)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(np.array(other(x).feats), wanted)
        assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
        assert {k for k, _ in tree_flatten(other.trainable_parameters())} == {
            k for k, _ in tree_flatten(model.trainable_parameters())
        }
        Pruner(structure, 0.5, **more).attach(other).detach()
        seen.append(other)
    pruner.detach()
    assert not any(hasattr(m, "_choices") for m in model.modules()) and len(seen) == 2
