"""NaN and infinity in features are the caller's: operators do not warn of them (`-W error` would raise)."""

from __future__ import annotations

import warnings

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.blocksparse import BlockLayout, block_sparse_attention, dds, dsd, sdd

pytestmark = pytest.mark.usefixtures("device")
LAYOUT = BlockLayout(np.ones((1, 3, 3), bool), 4)
COORDS = np.array([[0, x, y, z] for x in range(3) for y in range(2) for z in range(2)], np.int32)


def tensor(a):
    return ms.SparseTensor(COORDS, a.reshape(12, 12))


OPERATORS = {
    "sdd": lambda a, b: sdd(a, b, LAYOUT),
    "sdd by blocks": lambda a, b: sdd(a, b, LAYOUT, path="blocks"),
    "dsd": lambda a, b: dsd(a.reshape(1, 9, 4, 4), b, LAYOUT),
    "dds": lambda a, b: dds(a, b.reshape(1, 9, 4, 4), LAYOUT),
    "attention": lambda a, b: block_sparse_attention(a, b, b, LAYOUT),
    "windows": lambda a, b: ms.ops.window_attention(
        tensor(a), *(v.reshape(12, 1, 12) for v in (a, b, b)), window=2
    ),
    "group norm": lambda a, b: ms.nn.GroupNorm(2, 12)(tensor(a)).feats,
    "instance norm": lambda a, b: ms.nn.InstanceNorm(12)(tensor(a)).feats,
    "convolution": lambda a, b: ms.ops.subm_conv3d(tensor(a), b.reshape(12, 1, 1, 1, 12)).feats,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_operators_do_not_warn(name, value):
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((1, 1, 12, 12)).astype(np.float32)
    a = np.where(rng.random(numbers.shape) < 0.3, np.float32(value), numbers)
    b = np.where(rng.random(numbers.shape) < 0.5, np.float32(0), 3 * numbers)
    f = OPERATORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for pair in ((a, b), (a, a)):
            one, other = (mx.array(v) for v in pair)
            mx.eval(f(one, other), mx.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1))(one, other))
