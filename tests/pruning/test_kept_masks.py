"""Masks that compress could not cut out stay, and pruned weights stay zero in training."""

from __future__ import annotations

import json

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxsparse import nn
from mlxsparse.blocks import (
    BlockSpec,
    Pruner,
    ScopeSpec,
    View,
    compress,
    n_of_m,
    restructure,
    structure_of,
)
from mlxsparse.blocks.flow import example
from mlxsparse.blocks.masking import effective
from mlxsparse.nn.block_conv import BlockSparseConv3d


class Net(mlx.nn.Module):
    """Layers that are packed, and ones that stay dense."""

    def __init__(self):
        super().__init__()
        self.a = nn.SubmConv3d(4, 8)
        self.padded = nn.SubmConv3d(8, 8, padding=1)
        self.head = nn.Linear(8, 4)

    def __call__(self, x):
        return self.head(self.padded(self.a(x)))


def two_of_four(model, *paths):
    scopes = [n_of_m(View.of(model, f"{path}.weight"), 2, 4)[0] for path in paths]
    return Pruner(scopes, nnz=2).attach(model)


def train(model, x, steps=2):
    optimizer = optim.Adam(0.01)
    step = mlx.nn.value_and_grad(model, lambda m: ((m(x).feats - 1) ** 2).mean())
    for _ in range(steps):
        optimizer.update(model, step(model)[1])
    mx.eval(model.parameters())


def zeros(layer):
    return int((effective(layer, "weight") == 0).sum())


PRUNED = {
    "2:4": (lambda m: two_of_four(m, "head"), "head"),
    "2:4 and channels": (
        lambda m: (Pruner("channels", 0.25).attach(m), two_of_four(m, "head")),
        "head",
    ),
    "2:4 and taps": (lambda m: (Pruner("offsets", 0.5).attach(m), two_of_four(m, "a")), "a"),
    "blocks of a layer that stays dense": (
        lambda m: Pruner("blocks", 0.5, block=(4, 4)).attach(m),
        "padded",
    ),
    "elements of a layer that is packed": (
        lambda m: (
            Pruner("blocks", 0.5, block=(4, 4)).attach(m),
            Pruner([ScopeSpec(BlockSpec(View.of(m, "a.weight")))], 0.8).attach(m),
        ),
        "a",
    ),
}


@pytest.mark.parametrize("name", PRUNED)
def test_what_is_masked_and_not_cut_out_stays_masked(name):
    mx.random.seed(0)
    model = Net()
    prune, path = PRUNED[name]
    prune(model)
    x = example(model, 60)
    small = compress(model, sample=x)
    layer = getattr(small, path)
    masked = np.array(layer.weight_keep)
    assert not masked.all() and not masked[np.array(layer.weight) != 0].min(initial=1) < 1
    assert not any(k.endswith("_keep") for k, _ in tree_flatten(small.trainable_parameters()))
    masks = [np.array(v) for k, v in tree_flatten(small.parameters()) if k.endswith("_keep")]
    assert not any(mask.all() for mask in masks)
    before = zeros(layer)
    for m in (model, small):
        train(m, x)
    assert before > 0 and zeros(layer) == before
    expected = np.array(model(x).feats)
    np.testing.assert_allclose(np.array(small(x).feats), expected, atol=2e-3 * np.abs(expected).max())
    fresh = restructure(Net(), json.loads(json.dumps(structure_of(small))))
    fresh.load_weights(tree_flatten(small.parameters()))
    np.testing.assert_array_equal(np.array(fresh(x).feats), np.array(small(x).feats))
    again = Pruner("offsets", 0.5).attach(small)  # pruned on, from the masks that stayed
    assert zeros(layer) >= before
    compress(small, sample=x)
    again.update()


def test_masks_that_prune_nothing_go():
    model = Net()
    Pruner("offsets", 0.0).attach(model)
    small = compress(model)
    assert type(small.a) is nn.SubmConv3d
    assert not any("_keep" in k for k, _ in tree_flatten(small.parameters()))


def test_what_lies_past_the_last_channel_of_a_packed_layer_is_not_masked():
    model = nn.Sequential(nn.SubmConv3d(3, 6), nn.Linear(6, 2))
    model.layers[0].weight[:4, 1, 1, 1, :2] = 0
    scope = ScopeSpec(BlockSpec(View.of(model, "layers.0.weight"), (1, 3, 3, 3, 1)))
    Pruner([scope], 0.0).attach(model)
    small = compress(model, block=(4, 2))
    assert isinstance(small.layers[0], BlockSparseConv3d) and "weight_keep" not in small.layers[0]


def test_the_mask_of_a_packed_layer_moves_with_its_blocks():
    model = Net()
    PRUNED["elements of a layer that is packed"][0](model)
    x = example(model, 60)
    small = compress(model, sample=x)
    wider, narrower = ~small.a.layout | small.a.layout, small.a.layout.copy()
    kept = small.a.weight_keep.sum().item()
    stored = small.a.weight.size
    small.a.update_layout(wider, fill=1.0)
    assert small.a.weight_keep.sum().item() - kept == small.a.weight.size - stored
    assert small(x).feats.shape == (60, 4)
    small.a.update_layout(narrower)
    assert small.a.weight_keep.sum().item() == kept
    linear = nn.Sequential(nn.BlockSparseLinear(4, 4, 2, np.eye(2, dtype=bool)))
    Pruner([ScopeSpec(BlockSpec(View.of(linear, "layers.0.weight")))], 0.5).attach(linear)
    linear.layers[0].update_layout(np.ones((2, 2), bool))
    assert linear.layers[0].weight_keep.sum().item() == 4 + 8
