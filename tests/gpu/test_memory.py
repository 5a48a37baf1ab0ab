"""The host does not run so far ahead of a GPU that the results of a whole network are in memory."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import pace

HAS_GPU = mx.metal.is_available() or mx.cuda.is_available()
pytestmark = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU: its memory is what is measured")

ROWS, CHANNELS = 40_000, 32


@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_memory_of_a_chain_does_not_grow_with_its_layers(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    before = mx.default_device()
    mx.set_default_device(mx.gpu)
    try:
        monkeypatch.setattr(pace, "TRACED" if compiled else "AHEAD", 1 << 24)
        sites = np.unique(np.random.default_rng(0).integers(0, 50, (ROWS, 3)), axis=0)
        coords = np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)
        x = ms.SparseTensor(coords, mx.ones((len(sites), CHANNELS)), batch_size=1)
        x = x.with_capacity(len(sites)) if compiled else x
        w = mx.random.normal((CHANNELS, 3, 3, 3, CHANNELS)) / 30
        few, many = (peak(x, w, layers, compiled) for layers in (30, 90))  # maps and weights are in both
        result = len(sites) * CHANNELS * 4
        assert many - few < 10 * result, f"{few >> 20} and {many >> 20} MiB, a result has {result >> 20}"
    finally:
        mx.set_default_device(before)


def peak(x: ms.SparseTensor, w: mx.array, layers: int, compiled: bool) -> int:
    """Bytes beyond those that were there, of the third call."""

    def chain(x: ms.SparseTensor) -> ms.SparseTensor:
        for _ in range(layers):
            x = ms.ops.subm_conv3d(x, w)
        return x

    call: Callable[[ms.SparseTensor], ms.SparseTensor] = ms.compile(chain) if compiled else chain
    for _ in range(3):
        mx.synchronize()
        mx.clear_cache()
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(call(x).feats)
    return mx.get_peak_memory() - held
