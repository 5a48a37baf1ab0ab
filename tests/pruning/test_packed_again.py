"""Layers that store some of their blocks are pruned and compressed again."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
import pytest

from mlxsparse import nn
from mlxsparse.blocks import BlockSpec, Pruner, ScopeSpec, View, compress, targets
from mlxsparse.blocks.flow import example
from mlxsparse.errors import CouplingError


def net():
    mx.random.seed(0)
    return nn.Sequential(nn.SubmConv3d(4, 8), nn.Conv3d(8, 8, 2, 2), nn.Linear(8, 16))


def packed(block=(4, 4)):
    model = net()
    Pruner("blocks", 0.5, block=block).attach(model)
    return compress(model)


def close(a, b, x):
    expected = np.array(b(x).feats)
    np.testing.assert_allclose(np.array(a(x).feats), expected, atol=1e-5 * np.abs(expected).max())


def stored(model):
    return [layer.weight.shape[0] for layer in model.layers]


def test_a_packed_model_is_pruned_and_compressed_again():
    """There was no layer whose blocks can be pruned."""
    model = packed()
    x, before = example(model, 80), stored(model)
    for share in (0.5, 0.25):
        pruner, optimizer = Pruner("blocks", 0.5, block=(4, 4)).attach(model), optim.Adam(0.01)
        assert [row.kept for row in pruner.report()] == [-(-n // 2) for n in stored(model)]
        loss = mlx.nn.value_and_grad(model, lambda model: model(x).feats.square().mean())
        optimizer.update(model, loss(model)[1])
        state = [np.array(part["weight"]["m"]) for part in optimizer.state["layers"]]
        small = compress(model, optimizer=optimizer, sample=x)
        assert stored(small) == [max(1, round(n * share)) for n in before]
        for layer, part, old, masked in zip(small.layers, optimizer.state["layers"], state, model.layers):
            kept = np.array(masked.weight_keep).any(axis=(1, 2))
            assert np.array_equal(part["weight"]["m"], old[kept]) and "weight_keep" not in layer
            assert np.array_equal(layer.weight, np.array(masked.weight)[kept])
        close(small, model, x)
        model = small


def test_blocks_that_are_zero_or_masked_by_own_scopes_go():
    model = packed()
    x = example(model, 80)
    conv, linear = model.layers[1], model.layers[2]
    conv.weight = conv.weight * (mx.arange(len(conv.weight)) > 2)[:, None, None]
    Pruner([ScopeSpec(BlockSpec(View((linear, "weight")), (1, -1, -1)))], nnz=0).attach(model)
    small = compress(model, sample=x)
    assert stored(small) == [stored(model)[0], stored(model)[1] - 3, 1]
    assert not np.array(small.layers[2].weight).any()
    close(small, model, x)
    assert stored(compress(small, sample=x)) == stored(small)  # one stays


def test_what_lies_past_the_last_channel_is_nothing_that_is_stored():
    conv = nn.BlockSparseConv3d(3, 5, 1, (4, 2), np.ones((2, 1, 1, 1, 2), bool))
    linear = nn.BlockSparseLinear(5, 3, (4, 2), np.ones((2, 2), bool))
    model = nn.Sequential(conv, linear)
    for layer, rows in ((conv, 4), (linear, 4)):
        last = mx.zeros((rows, 2))
        last[1:], last[:, 1:] = 7, 7
        layer.weight[3] = last
    x = example(model, 30)
    assert x.num_channels == 3
    small = compress(model)
    assert stored(small) == [3, 3] and not small.layers[0].layout[1, 0, 0, 0, 1]
    close(small, model, x)
    linear.weight[3, 0, 0] = 1
    assert stored(compress(model)) == [3, 4]


def test_blocks_of_another_size_are_told_of():
    """Such layers were passed over without a word."""
    model = nn.Sequential(*packed((2, 4)).layers, nn.Linear(16, 4))
    told = r"block=\(4, 4\): layers.0 of \(2, 4\), layers.1 of .*exclude=\['layers.0', 'layers.1', 'la"
    with pytest.raises(CouplingError, match=told):
        Pruner("blocks", block=(4, 4)).attach(model)
    found = targets(model, "blocks", block=(4, 4), exclude=["layers.0", "layers.1", "layers.2"])
    assert [target.name for target in found] == ["layers.3"]
    found = targets(model, "blocks", block=(2, 4))
    assert [target.name for target in found] == [f"layers.{i}" for i in range(4)]
    model.layers[0].update_layout(np.zeros_like(model.layers[0].layout))
    assert len(targets(model, "blocks", block=(2, 4))) == 3
