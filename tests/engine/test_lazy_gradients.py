"""On the host a gradient that nobody asked for costs nothing; on a GPU MLX does not evaluate it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlxsparse as ms
from mlxsparse.engine import gather_gemm


def test_only_the_wanted_gradient_is_computed(monkeypatch):
    calls = []
    gradient = gather_gemm._weight_gradient
    monkeypatch.setattr(gather_gemm, "_weight_gradient", lambda *a: calls.append("w") or gradient(*a))
    random = np.random.default_rng(3)
    with mx.stream(mx.cpu):
        sites = np.argwhere(random.random((1, 4, 4, 4)) < 0.5).astype(np.int32)
        x = ms.SparseTensor(sites, mx.array(random.normal(size=(len(sites), 4)).astype(np.float32)))
        w = mx.array(random.normal(size=(2, 3, 3, 3, 4)).astype(np.float32))
        mx.grad(lambda f: ms.ops.subm_conv3d(x.replace(f), w).feats.sum())(x.feats)
        assert calls == []
        mx.grad(lambda w: ms.ops.subm_conv3d(x, w).feats.sum())(w)
        assert calls == ["w"]
