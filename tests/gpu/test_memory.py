"""The host does not run so far ahead of a GPU that the results of a whole network are in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import pace

HAS_GPU = mx.metal.is_available() or mx.cuda.is_available()
pytestmark = [
    pytest.mark.skipif(not HAS_GPU, reason="needs a GPU: its memory is what is measured"),
    pytest.mark.usefixtures("on_the_gpu"),
]

ROWS, CHANNELS = 40_000, 32


@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_memory_of_a_chain_does_not_grow_with_its_layers(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    monkeypatch.setattr(pace, "TRACED" if compiled else "AHEAD", 1 << 24)
    x, w = tensor()
    x = x.with_capacity(x.num_active) if compiled else x
    wrap = ms.compile if compiled else lambda call: call
    few, many = (peak(wrap(lambda x, n=n: chain(x, w, n).feats), x) for n in (30, 90))
    # Maps and weights are in both.
    assert many - few < 10 * x.feats.nbytes, f"{few >> 20} and {many >> 20} MiB, of {x.feats.nbytes >> 20}"


def test_gpu_memory_of_a_staged_gradient_is_that_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "TRACED", 1 << 23)
    x, w = tensor()
    layers = 60  # whose inputs the backward pass reads
    step = mx.grad(lambda feats: chain(x.replace(feats), w, layers).feats.square().sum())
    staged, limit = peak(ms.staged(step), x.feats), (layers + 20) * x.feats.nbytes
    assert staged < limit, f"{staged >> 20} MiB of {limit >> 20}, {peak(step, x.feats) >> 20} unstaged"


def test_gpu_map_that_many_convolutions_read_is_packed() -> None:
    sites = np.unique(np.random.default_rng(1).integers(0, 90, (80_000, 3)), axis=0)  # a tenth of a box
    coords = np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)
    x, w = ms.SparseTensor(coords, mx.ones((len(sites), 8)), batch_size=1), tensor()[1][:8, ..., :8]
    step = mx.value_and_grad(lambda feats: ms.ops.subm_conv3d(x.replace(feats), w).feats.square().sum())
    first = [np.array(ms.ops.subm_conv3d(x, w).feats), *map(np.array, step(x.feats))]
    found = x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold(3))
    for _ in range(3):
        mx.eval(ms.ops.subm_conv3d(x, w).feats)
    shares = mx.cuda.is_available()  # with a GPU of another kind the host would have to wait for the size
    assert found.relation.output.tiles.kept == (27 if shares else 0)
    again = [np.array(ms.ops.subm_conv3d(x, w).feats), *map(np.array, step(x.feats))]
    for a, b in zip(again, first, strict=True):
        np.testing.assert_array_equal(a, b)


def tensor() -> tuple[ms.SparseTensor, mx.array]:
    sites = np.unique(np.random.default_rng(0).integers(0, 50, (ROWS, 3)), axis=0)
    coords = np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)
    x = ms.SparseTensor(coords, mx.ones((len(sites), CHANNELS)), batch_size=1)
    return x, mx.random.normal((CHANNELS, 3, 3, 3, CHANNELS)) / 30


def chain(x: ms.SparseTensor, w: mx.array, layers: int) -> ms.SparseTensor:
    for _ in range(layers):
        x = ms.ops.subm_conv3d(x, w)
    return x


def peak(call: Callable[[Any], mx.array], argument: Any) -> int:
    """Bytes beyond those that were there, of the third call."""
    for _ in range(3):
        mx.synchronize()
        mx.clear_cache()
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(call(argument))
    return mx.get_peak_memory() - held
