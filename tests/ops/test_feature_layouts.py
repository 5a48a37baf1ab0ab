"""Features that do not lie row after row: slices, turned and repeated arrays give what a copy gives."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from tests.static_cases import OPERATORS as STATIC
from tests.static_cases import eval_mode, frame

pytestmark = pytest.mark.usefixtures("device")

nn = ms.nn
OPERATORS = STATIC | {
    "relu": nn.ReLU(),
    "norm, relu": eval_mode(nn.Sequential(nn.BatchNorm(4), nn.ReLU())),
    "convolution, norm, relu": eval_mode(nn.Sequential(nn.SubmConv3d(4, 4, 3), nn.BatchNorm(4), nn.ReLU())),
}
LAYOUTS = {
    "columns": lambda f: mx.repeat(f, 2, axis=1)[:, ::2],
    "turned": lambda f: mx.contiguous(f.T).T,
    "reversed": lambda f: mx.contiguous(f[::-1])[::-1],
    "one row for all": lambda f: mx.broadcast_to(f[:1], f.shape),
    "one value for all": lambda f: mx.broadcast_to(f[0, 0], f.shape),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_layouts(name):
    sites, feats = frame(60)
    operator = OPERATORS[name]
    for layout in LAYOUTS.values():
        given = layout(feats)
        copy = mx.array(np.array(given))
        mx.eval(given)
        x = ms.SparseTensor(sites, copy, batch_size=2)
        wanted = np.array(operator(x).feats)
        for _ in range(2):  # what is known from a first call is used in the next
            y = operator(x.replace(given))
            np.testing.assert_allclose(np.array(y.feats), wanted, rtol=2e-6, atol=2e-6)
        turned = mx.contiguous(mx.random.normal(y.feats.shape).T).T
        for cotangent in (turned, mx.broadcast_to(turned[:1], y.feats.shape)):
            got, want = (
                mx.vjp(lambda f, x=x: operator(x.replace(f)).feats, [f], [ct])[1][0]
                for f, ct in ((given, cotangent), (copy, mx.array(np.array(cotangent))))
            )
            np.testing.assert_allclose(np.array(got), np.array(want), rtol=2e-5, atol=2e-5)
