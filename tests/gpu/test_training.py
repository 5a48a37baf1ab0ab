"""Training steps of a small network by kernels, against the host: losses, gradients, running statistics."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse.models.minkunet import MinkUNet, ModelArgs

from . import test_operators
from .test_operators import kernels, on_the_cpu  # noqa: F401

pytestmark = getattr(test_operators, "pytestmark", [])

STEPS = 3
Run = tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]


def train(
    context: contextlib.AbstractContextManager[Any],
    capacity: int = 0,
    held: list[ms.SparseTensor] | None = None,
) -> Run:
    """Losses, last gradients and parameters with running statistics. held: gets the input."""
    rng = np.random.default_rng(0)
    xyz = np.unique(np.column_stack([rng.integers(0, 12, (150, 2)), rng.integers(0, 3, 150)]), axis=0)
    coords = rng.permutation(np.column_stack([np.zeros(len(xyz)), xyz])).astype(np.int32)
    feats, labels = rng.standard_normal((len(xyz), 4)).astype(np.float32), rng.integers(0, 5, len(xyz))
    with context:
        mx.random.seed(0)
        net = MinkUNet(ModelArgs(4, 5, (8, 8, 16), 2))
        optimizer = mlx.optimizers.SGD(0.1)
        x = ms.SparseTensor(coords, mx.array(feats), batch_size=1)
        x = x.with_capacity(capacity) if capacity else x
        if held is not None:
            held.append(x)

        def loss(net: MinkUNet, x: ms.SparseTensor) -> mx.array:
            logits = net(x).feats[: len(xyz)]
            return mlx.nn.losses.cross_entropy(logits, mx.array(labels), reduction="mean")

        losses = []
        for _ in range(STEPS):
            value, gradient = mlx.nn.value_and_grad(net, loss)(net, x)
            optimizer.update(net, gradient)
            losses.append(value.item())
        return losses, *({k: np.array(v) for k, v in tree_flatten(t)} for t in (gradient, net.parameters()))


@functools.cache
def by_kernels() -> Run:
    return train(kernels())


def test_gpu_training_equals_the_hosts() -> None:
    wanted, got = train(contextlib.nullcontext()), by_kernels()
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4)
    # A value within rounding of 0 may fall on either side of a ReLU: gradients show it more than weights.
    for mine, its, bound in zip(got[1:], wanted[1:], (2e-2, 2e-3)):
        for name, value in its.items():
            assert np.abs(mine[name] - value).max() <= bound * np.abs(value).max() + 1e-6, name


@pytest.mark.parametrize("capacity", [0, 220])
def test_gpu_training_repeats_its_bits_with_any_padding(capacity: int) -> None:
    one, other = by_kernels(), train(kernels(), capacity)
    assert one[0] == other[0]
    for mine, its in zip(one[1:], other[1:]):
        assert all(np.array_equal(mine[name], its[name]) for name in its)


def test_gpu_training_has_its_own_bits_beside_the_hosts_tensor() -> None:
    # A transformation hands coordinates back as other arrays: an equal tensor of the host, alive from before,
    # once told which sets and maps to take, and theirs have another order of sums.
    one = by_kernels()
    held: list[ms.SparseTensor] = []
    train(contextlib.nullcontext(), held=held)
    other = train(kernels())
    assert one[0] == other[0] and len(held) == 1
    for mine, its in zip(one[1:], other[1:]):
        assert all(np.array_equal(mine[name], its[name]) for name in its)
