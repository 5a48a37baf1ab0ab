"""The host does not run so far ahead of a GPU that the results of a whole network are in memory."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import pace

HAS_GPU = mx.metal.is_available() or mx.cuda.is_available()
pytestmark = pytest.mark.skipif(not HAS_GPU, reason="MLX has neither Metal nor CUDA here")

LAYERS, ROWS, CHANNELS = 60, 40_000, 32


@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_memory_of_a_chain_of_layers(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    before = mx.default_device()
    mx.set_default_device(mx.gpu)
    try:
        monkeypatch.setattr(pace, "AHEAD", 1 << 24)
        sites = np.unique(np.random.default_rng(0).integers(0, 50, (ROWS, 3)), axis=0)
        coords = np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)
        x = ms.SparseTensor(coords, mx.ones((len(sites), CHANNELS)), batch_size=1)
        w = mx.random.normal((CHANNELS, 3, 3, 3, CHANNELS)) / 30

        def chain(x: ms.SparseTensor) -> ms.SparseTensor:
            for _ in range(LAYERS):
                x = ms.ops.subm_conv3d(x, w)
            return x

        call: Callable[[ms.SparseTensor], ms.SparseTensor] = ms.compile(chain) if compiled else chain
        x = x.with_capacity(len(sites)) if compiled else x
        wanted = None
        for _ in range(3):
            mx.synchronize()
            mx.clear_cache()
            held = mx.get_active_memory()
            mx.reset_peak_memory()
            y = call(x)
            mx.eval(y.feats)
            peak = mx.get_peak_memory() - held
            assert wanted is None or mx.array_equal(y.feats, wanted)
            wanted = y.feats
        each = len(sites) * CHANNELS * 4
        assert peak < LAYERS * each / 2, f"{peak >> 20} MiB for results of {LAYERS * each >> 20}"
    finally:
        mx.set_default_device(before)
