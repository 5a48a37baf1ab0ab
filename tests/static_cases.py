"""What the tests of static capacity share: frames, operators, a network, and kernels to run them.

On a GPU with MLX's own compile; elsewhere the kernels run on the CPU executor of tools/metalcheck, which
cannot run inside a trace: the function is then run as the trace would run it. That nothing is read inside a
trace is shown in test_static_traces.py.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import compiled, ops
from mlxsparse.backend import device as backend_device
from mlxsparse.backend import library
from mlxsparse.models.minkunet import MinkUNet, ModelArgs
from tools.metalcheck import toolchain

HAS_GPU = mx.metal.is_available() or mx.cuda.is_available()
LACKING = None if HAS_GPU else toolchain.missing()
needs_kernels = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))


@pytest.fixture
def kernels(monkeypatch):
    """Operators run through kernels."""
    before = mx.default_device()
    if HAS_GPU:
        mx.set_default_device(mx.gpu)
        yield
    else:
        from tools.metalcheck.executor import Mode, metal_kernel_factory

        mx.set_default_device(mx.cpu)
        monkeypatch.setattr(compiled, "tracer", lambda function, **_: function)
        with library.using(metal_kernel_factory(Mode(seed=1))), backend_device.kernels_everywhere():
            yield
    mx.set_default_device(before)


def frame(n, seed=0, channels=4, low=-5):
    """Two batch items in mixed order, negative coordinates."""
    rng = np.random.default_rng(seed)
    sites = np.column_stack([rng.integers(0, 2, 3 * n), rng.integers(low, low + 11, (3 * n, 3))])
    sites = rng.permutation(np.unique(sites, axis=0))[:n].astype(np.int32)
    return sites, mx.array(rng.standard_normal((len(sites), channels)).astype(np.float32))


def tensor(n, seed=0, low=-5, **more):
    sites, feats = frame(n, seed, low=low)
    return ms.SparseTensor(sites, feats, batch_size=2, **more)


def weight(co, k, ci, seed=0):
    return mx.array(np.random.default_rng(seed).normal(size=(co, k, k, k, ci)).astype(np.float32)) / 5


def rows(y):
    """Active coordinates and features, after a check that the padding is clean."""
    n = y.check().num_active
    coords, feats = np.array(y.coords), np.array(y.feats)
    assert np.all(coords[n:] == [-1, 0, 0, 0]) and np.all(feats[n:] == 0)
    return coords[:n], feats[:n]


def same(a, b):
    for left, right in zip(rows(a), rows(b)):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=2e-5)
    assert a.stride == b.stride and a.batch_counts.tolist() == b.batch_counts.tolist()


def train_mode(layer):
    layer.train()
    return layer


def eval_mode(layer):
    layer.eval()
    return layer


W, W2, WIDE = weight(5, 3, 4), weight(6, 2, 4), weight(4, 2, 6)
OPERATORS = {
    "submanifold": lambda x: ops.subm_conv3d(x, W, mx.ones((5,))),
    "even submanifold": lambda x: ops.subm_conv3d(x, W2),
    "k2 s2": lambda x: ops.conv3d(x, W2, mx.ones((6,)), stride=2),
    "k2 s2, less": lambda x: ops.conv3d(x, W2, stride=2, capacity=110),
    "k3 s2": lambda x: ops.conv3d(x, W, stride=2, padding=1, capacity=300),
    "k3 s2 parents": lambda x: ops.conv3d(x, W, stride=2, support="parents"),
    "k3 s1": lambda x: ops.conv3d(x, W, padding=1, capacity=4500),
    "two levels": lambda x: ops.conv3d(ops.conv3d(x, W2, stride=2), weight(3, 2, 6), stride=(3, 2, 2)),
    "transposed": lambda x: ops.conv_transpose3d(ops.conv3d(x, W2, stride=2), WIDE, stride=2, out=x),
    "transposed to its parent": lambda x: ops.conv_transpose3d(ops.max_pool3d(x, 2), W2, stride=2),
    "generative": lambda x: ops.generative_conv_transpose3d(
        ops.conv3d(x, W2, stride=2), WIDE, stride=2, capacity=900
    ),
    "max pool": lambda x: ops.max_pool3d(x, 2),
    "max pool k3": lambda x: ops.max_pool3d(x, 3, 2, 1, capacity=300),
    "average pool": lambda x: ops.avg_pool3d(x, 3, 2, 1, support="parents"),
    "sum pool": lambda x: ops.sum_pool3d(x, (2, 1, 2)),
    "unpool": lambda x: ops.pool_transpose3d(ops.max_pool3d(x, 2), 2, out=x),
    "upsample": lambda x: ops.upsample_nearest(ops.max_pool3d(x, 2), 2),
    "subdivide": lambda x: ops.subdivide(ops.max_pool3d(x, 2), capacity=900),
    "cat and add": lambda x: ops.cat([x + x, x * 2, ops.subm_conv3d(x, W)]),
    "activations": lambda x: ms.nn.Sigmoid()(ms.nn.GELU()(x)),
    "linear": eval_mode(ms.nn.Linear(4, 3)),
    "batch norm": eval_mode(ms.nn.BatchNorm(4)),
    "batch norm, training": lambda x: train_mode(ms.nn.BatchNorm(4, track_running_stats=False))(x),
    "layer norm": ms.nn.LayerNorm(4),
    "rms norm": ms.nn.RMSNorm(4),
    "prune": lambda x: ops.prune(x, x.feats[:, 0] > 0),
    "prune, then convolve": lambda x: ops.conv3d(ops.prune(x, x.feats[:, 1] > 0), W2, stride=2),
    "trilinear": lambda x: ops.upsample_trilinear(ops.max_pool3d(x, (2, 3, 1)), (2, 3, 1), out=x),
    "dense": lambda x: x.replace(x.feats + ops.dense(x, (12, 12, 12), (-6, -6, -6), 0.5).sum()),
    "another capacity": lambda x: ops.conv3d(x.with_capacity(200), W2, stride=2).with_capacity(110),
    "crop": lambda x: ops.crop(x, (-3, -2, -5), (4, 4, 2)),
    "outer": lambda x: ops.add(ops.crop(x, -5, 2), ops.crop(x, -2, 6) * 2, "outer", capacity=300),
    "inner": lambda x: ops.mul(ops.crop(x, -5, 2), ops.crop(x, -2, 6) * 2, "inner"),
    "left": lambda x: ops.cat([x, ops.crop(x, -2, 6)], "left"),
    "coverage": lambda x: x.replace(
        x.feats * ops.coverage(x, 3, 2, 1, capacity=300)[:, None].astype(mx.float32)
    ),
    "lookup": lambda x: x.replace(
        x.feats + (ops.lookup(ops.prune(x, x.feats[:, 0] > 0), x.coords) >= 0)[:, None]
    ),
    "group norm": ms.nn.GroupNorm(2, 4),
    "instance norm": ms.nn.InstanceNorm(4),
    "squeeze and excitation": ms.nn.SqueezeExcitation(4),
    "globals": lambda x: x.replace(
        x.feats
        + (ops.global_sum_pool(x) * ops.global_max_pool(x, empty=-3.0) + ops.global_avg_pool(x)).sum(axis=0)
    ),
    "means of parents": lambda x: ops.broadcast_add(
        ops.max_pool3d(x, 2), ops.global_avg_pool(ops.max_pool3d(x, 2))
    ),
}


def small_net(**more):
    mx.random.seed(0)
    net = MinkUNet(ModelArgs(4, 3, (8, 16, 16), 1, **more))
    mx.eval(net.parameters())
    return net


def check_operator(name):
    """Compiled as eager, in one compilation for all sizes."""
    operator = OPERATORS[name]
    step = ms.compile(operator)
    for n in (100, 61, 0):
        x = tensor(n, seed=n)
        y = step(x.with_capacity(128))
        wanted = operator(x)
        same(y, wanted)
        same(operator(x.with_capacity(128)), wanted)  # eager with a fixed capacity reads nothing either
        assert y.capacity >= wanted.capacity
    assert not HAS_GPU or step.compilations == 1
