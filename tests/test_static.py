"""Static capacity: compiled functions and tensors made by with_capacity, through kernels, as eager ones."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.errors import CapacityError, CoordinateRangeError, DTypeError, ShapeError

from .static_cases import (
    HAS_GPU,
    OPERATORS,
    W2,
    WIDE,
    W,
    eval_mode,
    needs_kernels,
    rows,
    same,
    small_net,
    tensor,
)
from .static_cases import kernels as kernels


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
    with pytest.raises(ShapeError, match="bounds"):
        ms.compile(OPERATORS["k2 s2"], bounds=((0, 0, 0), (4, 0, 6)))


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


@needs_kernels
def test_an_argument_that_had_overflowed_is_told_of(kernels):
    x = tensor(90).with_capacity(96)
    small, large = (ops.max_pool3d(x, 2, capacity=n) for n in (8, 96))
    step = ms.compile(lambda y: y.feats.sum())
    step(large)
    with pytest.raises(CapacityError):
        step(small)
    late = ms.compile(lambda y: y.feats.sum(), check="late")
    late(small)
    with pytest.raises(CapacityError):
        late.check()


@needs_kernels
def test_names_of_arguments_mean_nothing(kernels):
    x = tensor(90).with_capacity(96)
    step = ms.compile(lambda given, sparse=None: given["sparse"].replace(given["sparse"].feats * 2))
    wanted = (x.feats * 2).tolist()
    assert step({"sparse": x}).feats.tolist() == wanted
    assert step({"sparse": x}, sparse=x).feats.tolist() == wanted
    with pytest.raises(DTypeError, match="NumPy"):
        step({"sparse": x, "more": np.ones(3)})


def test_bounds_of_a_compiled_function_hold_on_the_host_too():
    with mx.stream(mx.cpu):
        x, down = tensor(40), ms.nn.Conv3d(4, 4, 2, 2)
        rows = np.array(x.coords)[: x.num_active, 1:]
        good = tuple(rows.min(axis=0).tolist()), tuple((rows.max(axis=0) + 1).tolist())
        coarse = ms.ops.max_pool3d(x, 2)
        for y in (x, coarse, x.with_capacity(60)):
            assert mx.array_equal(ms.compile(down, bounds=good)(y).feats, down(y).feats)
        for bad in (
            (good[0], tuple((rows.max(axis=0)).tolist())),
            (tuple((rows.min(axis=0) + 1).tolist()), tuple((rows.max(axis=0) + 2).tolist())),
        ):
            with pytest.raises(CoordinateRangeError, match="outside of bounds"):
                ms.compile(down, bounds=bad)(x)
        for wrong in (5, (good[0],), (*good, good[0]), "ab", ((1, 2), (3, 4))):
            with pytest.raises(ShapeError, match="bounds"):
                ms.compile(down, bounds=wrong)
