"""Static capacity: compiled functions and tensors made by with_capacity, through kernels, against eager ones.

On a GPU with MLX's own compile; elsewhere the kernels run on the CPU executor of tools/metalcheck, which
cannot run inside a trace: the function is then run as the trace would run it. That nothing is read inside a
trace is shown in test_static_traces.py.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import compiled, ops
from mlxsparse.backend import device as backend_device
from mlxsparse.backend import library
from mlxsparse.errors import CapacityError, CoordinateRangeError
from mlxsparse.models.minkunet import MinkUNet, ModelArgs

HAS_GPU = mx.metal.is_available() or mx.cuda.is_available()
if not HAS_GPU:
    from tools.metalcheck import toolchain

    LACKING = toolchain.missing()
    needs_kernels = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
else:
    needs_kernels = pytest.mark.usefixtures()


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


@needs_kernels
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compiled_are_the_eager_ones(kernels, name):
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


@needs_kernels
def test_no_rows_run_eagerly(kernels):
    step = ms.compile(lambda x: ms.nn.SiLU()(ops.conv3d(x, W2, stride=2)) * 2)
    coords, feats = rows(step(tensor(0)))
    assert coords.shape == (0, 4) and feats.shape == (0, 6) and step.compilations == 0


@needs_kernels
def test_bounds_of_a_spatial_shape(kernels):
    x = tensor(90, low=0, spatial_shape=(11, 11, 13))
    for operator in ("k2 s2", "k3 s2", "max pool", "generative", "two levels"):
        y = ms.compile(OPERATORS[operator])(x.with_capacity(100))
        same(y, OPERATORS[operator](x))
        assert y.spatial_shape == OPERATORS[operator](x).spatial_shape


@needs_kernels
def test_bounds_known_in_advance(kernels):
    x = tensor(90)
    for name in ("k2 s2", "k3 s2", "generative", "outer", "two levels", "transposed"):
        step = ms.compile(OPERATORS[name], bounds=((-5, -6, -7), (6, 8, 9)))
        same(step(x.with_capacity(100)), OPERATORS[name](x))
    with pytest.raises(CoordinateRangeError, match=r"stride \(2, 2, 2\)"):
        ms.compile(OPERATORS["k2 s2"], bounds=((-5, -5, -5), (4, 6, 6)))(x.with_capacity(100))
    with pytest.raises(ms.errors.ShapeError, match="bounds"):
        ms.compile(OPERATORS["k2 s2"], bounds=((0, 0, 0), (4, 0, 6)))


def small_net(**more):
    mx.random.seed(0)
    net = MinkUNet(ModelArgs(4, 3, (8, 16, 16), 1, **more))
    mx.eval(net.parameters())
    return net


@needs_kernels
def test_a_network_over_frames_of_different_size(kernels):
    net = eval_mode(small_net())
    step = ms.compile(net)
    for n in (120, 40, 77) if not HAS_GPU else range(10, 128, 5):
        x = tensor(n, seed=n)
        fixed = x.with_capacity(128)
        y = step(fixed, capacity=(120, 80))
        same(y, net(x))
        assert y.key is fixed.key
        same(y + fixed.replace(fixed.feats[:, :1]), net(x) + x.replace(x.feats[:, :1]))
    assert not HAS_GPU or step.compilations == 1


@needs_kernels
def test_gradients_of_a_compiled_step(kernels):
    x = tensor(70, seed=3)
    labels = mx.array(np.random.default_rng(0).integers(0, 3, 128))

    def losses(wrap, x, capacity):
        net = small_net()
        optimizer = mlx.optimizers.SGD(0.05)
        optimizer.init(net.trainable_parameters())

        def loss(net, x):
            logits = net(x, capacity=capacity).feats
            each = mlx.nn.losses.cross_entropy(logits, labels[: x.capacity], reduction="none")
            return mx.where(mx.arange(x.capacity) < x.active_rows, each, 0).sum()

        def update(x):
            value, gradient = mlx.nn.value_and_grad(net, loss)(net, x)
            optimizer.update(net, gradient)
            return value

        step = wrap(update, [net.state, optimizer.state])
        return [step(x).item() for _ in range(4)], net.stem.layers[0].norm.running_var

    wanted, var = losses(lambda update, _: update, x, None)
    got, other = losses(lambda update, state: ms.compile(update, state, state), x.with_capacity(96), (90, 60))
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
    np.testing.assert_allclose(np.array(other), np.array(var), rtol=1e-4)


@needs_kernels
def test_overflow_surfaces_with_stride_and_count(kernels):
    x = tensor(100)
    fixed = x.with_capacity(128)
    half = ops.max_pool3d(x, 2).num_active

    def shrink(x):
        return ops.max_pool3d(ops.max_pool3d(x, 2, capacity=16), 2)

    message = rf"stride \(2, 2, 2\) need {half} rows"
    with pytest.raises(CapacityError, match=message):
        ms.compile(shrink)(fixed)
    with pytest.raises(CapacityError, match=message):  # a result that is no sparse tensor
        ms.compile(lambda x: shrink(x).feats.sum())(fixed)
    late = ms.compile(shrink, check="late")
    y = late(fixed)
    with pytest.raises(CapacityError, match=message):
        late(fixed)
    with pytest.raises(CapacityError, match=message):
        late.check()
    late.check()
    y = shrink(fixed)
    for z in (y, y + 1, ms.nn.ReLU()(y), ops.cat([y, y]), ops.subm_conv3d(y, W)):
        for look in (ms.SparseTensor.check, ms.SparseTensor.compact, repr):
            with pytest.raises(CapacityError, match=message):
                look(z)
    back = ops.upsample_nearest(ops.max_pool3d(fixed, 2, capacity=16), 2, out=fixed)
    with pytest.raises(CapacityError, match=message):
        (fixed + back).check()
    kept = ops.max_pool3d(fixed, 2, capacity=16)
    assert kept.num_active == 16
    assert np.array_equal(np.array(kept.coords), np.array(ops.max_pool3d(x, 2).coords)[:16])


@needs_kernels
def test_a_smaller_capacity_is_checked(kernels):
    half = ops.max_pool3d(tensor(100).with_capacity(128), 2)
    with pytest.raises(CapacityError, match=rf"need {half.num_active} rows"):
        ms.compile(lambda x: ops.max_pool3d(x, 2).with_capacity(20))(tensor(100).with_capacity(128))
    assert half.with_capacity(100).check().capacity == 100  # read above, so the host knows it


@needs_kernels
def test_a_set_that_leaves_its_range_is_empty_and_says_so(kernels):
    sites = np.array([[0, -(2**29), 2**29, 0], [0, 2**29, -(2**29), 2**29]], np.int32)
    x = ms.SparseTensor(sites, mx.ones((2, 4)), batch_size=1, validate=False).with_capacity(8)
    with pytest.raises(CoordinateRangeError, match=r"stride \(2, 2, 2\)"):
        ms.compile(lambda x: ops.max_pool3d(x, 2))(x)


@needs_kernels
def test_a_capacity_is_asked_for(kernels):
    x = tensor(20).with_capacity(32)
    for operator in (
        lambda x: ops.conv3d(x, W, stride=2),
        lambda x: ops.generative_conv_transpose3d(ops.conv3d(x, W2, stride=2), WIDE, stride=2),
    ):
        with pytest.raises(CapacityError, match="pass capacity="):
            ms.compile(operator)(x)


def test_a_status_is_combined_once():
    from mlxsparse.backend import status

    one, two, three = (mx.array([bit, 10 * bit, 1, 1, 1], mx.int32) for bit in (1, 2, 4))
    both = status.combined(one, two)
    assert both.tolist() == [3, 10, 1, 1, 1]
    for again in (
        status.combined(both, one),
        status.combined(two, both),
        status.combined(both, status.clear(), two),
    ):
        assert again is both
    every = status.combined(both, three)
    assert status.combined(every, one, three) is every and every.tolist() == [7, 10, 1, 1, 1]
    known = len(status._parts)
    del both, every, again
    assert len(status._parts) == known - 2
