"""Blocks that a layer drops and grows in training: weights, masks and an optimizer's state go with them."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optimizers
import numpy as np
import pytest

from mlxsparse import SparseTensor, nn
from mlxsparse.blocks import BlockSpec, Pruner, ScopeSpec, View
from mlxsparse.errors import MLXSparseError, ShapeError

pytestmark = pytest.mark.usefixtures("device")
EYE, OTHER, LEFT = np.eye(2, dtype=bool), np.array([[0, 1], [0, 1]]), np.array([[1, 0], [0, 0]])
SITES = SparseTensor(np.zeros((1, 4), np.int32), mx.array([[1.0, 1, 10, 10]]))
KINDS = {
    "linear": lambda mask: nn.BlockSparseLinear(4, 4, 2, mask, bias=False),
    "conv": lambda mask: nn.BlockSparseConv3d(4, 4, 1, 2, mask.T.reshape(2, 1, 1, 1, 2), bias=False),
}


def move(layer, mask, **named):
    """mask: (input blocks, output blocks)."""
    linear = isinstance(layer, nn.BlockSparseLinear)
    layer.update_layout(mask if linear else mask.T.reshape(2, 1, 1, 1, 2), **named)


def train(model, optimizer, steps=2):
    for _ in range(steps):
        gradients = mlx.nn.value_and_grad(model, lambda: model(SITES).feats.sum())()[1]
        optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)


MAKERS = {
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: optimizers.Adam(0.1),
    "adafactor": lambda: optimizers.Adafactor(),
    "several": lambda: optimizers.MultiOptimizer(
        [optimizers.SGD(0.1, momentum=0.9), optimizers.Adam(0.1)], [lambda path, _: "layers.0" in path]
    ),
}


def part(optimizer):
    """Of layers[1]."""
    state = optimizer.state["states"][1] if "states" in optimizer.state else optimizer.state
    return state["layers"][1]


def arrays(state):
    return {name: np.array(a) for name, a in state["weight"].items()}


@pytest.mark.parametrize("mask", [OTHER, LEFT, np.ones((2, 2), bool), np.zeros((2, 2), bool)])
@pytest.mark.parametrize("optimizer", MAKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_s_state_goes_with_its_blocks(kind, optimizer, mask):
    """A new block went on with the momentum of the one that was dropped, or of all that were there."""
    model, optimizer = nn.Sequential(KINDS[kind](EYE), KINDS[kind](EYE)), MAKERS[optimizer]()
    train(model, optimizer)
    layer, before = model.layers[1], arrays(part(optimizer))
    others = arrays(optimizer.state["layers"][0]) if "layers" in optimizer.state else None
    old = [tuple(p) for p in np.argwhere(EYE if kind == "linear" else EYE.T)]
    move(layer, mask, state=part(optimizer))
    new = [tuple(p) for p in np.argwhere(mask if kind == "linear" else mask.T)]
    assert before and any(a.any() for a in before.values())
    for name, now in arrays(part(optimizer)).items():
        assert now.shape == (len(new), *before[name].shape[1:])
        for block, place in zip(now, new):
            wanted = before[name][old.index(place)] if place in old else np.zeros(before[name].shape[1:])
            assert np.array_equal(block, wanted)
    if others is not None:
        assert all(np.array_equal(a, others[k]) for k, a in arrays(optimizer.state["layers"][0]).items())
    if new:
        train(model, optimizer, 1)
        assert np.isfinite(np.array(layer.weight)).all()


def test_a_model_that_is_the_layer():
    layer, optimizer = KINDS["linear"](EYE), optimizers.SGD(0.1, momentum=0.9)
    train(layer, optimizer, 3)
    move(layer, OTHER, state=optimizer.state)
    assert optimizer.state["weight"]["v"][:, 0, 0].tolist() == [0.0, pytest.approx(27.1)]
    assert int(optimizer.state["step"]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_not_the_layer_s_changes_nothing(kind):
    model, optimizer = nn.Sequential(KINDS[kind](EYE), KINDS[kind](LEFT)), MAKERS["momentum"]()
    train(model, optimizer)
    layer, before = model.layers[1], np.array(model.layers[1].weight)
    with pytest.raises(MLXSparseError, match=r"entry 'weight', as optimizer.state\['layers'\]\[2\].*got"):
        move(layer, OTHER, state=optimizer.state)
    with pytest.raises(MLXSparseError, match=r"got a SGD"):
        move(layer, OTHER, state=optimizer)
    with pytest.raises(ShapeError, match=r"shape \(2, 2, 2\) for a weight of 1 blocks"):
        move(layer, OTHER, state=optimizer.state["layers"][0])
    assert np.array_equal(layer.weight, before) and np.array_equal(layer._parts.sum(), 1)


def test_what_pruners_chose_goes_with_its_blocks():
    """A later choice was joined with the first one of another pruner, of other blocks."""
    layer = KINDS["conv"](np.ones((2, 2), bool))
    layer.weight = mx.array([1.0, 2, 3, 4]).reshape(4, 1, 1) * mx.ones((4, 2, 2))
    def scope():
        return ScopeSpec(BlockSpec(View.of(layer, "weight"), (1, -1, -1)))

    Pruner([scope()], nnz=3).attach(layer)
    move(layer, np.array([[0, 1], [1, 1]], bool))
    assert layer.weight_keep[:, 0, 0].tolist() == [True] * 3
    Pruner([scope()], nnz=2).attach(layer)
    assert layer.weight_keep[:, 0, 0].tolist() == [False, True, True]
