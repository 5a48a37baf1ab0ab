"""Mistakes that other libraries shipped, each a small input with the right value, named after its thread.

The one-dimensional examples lie on the z axis.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse
from mlxsparse import SparseTensor, ops
from mlxsparse.errors import DuplicateCoordinatesError, IdentityError, ShapeError
from mlxsparse.testing.adapt import active_part, from_numpy

pytestmark = pytest.mark.usefixtures("device")


def line(positions, values=None, **tensor):
    coords = [[0, 0, 0, z] for z in positions]
    feats = np.ones((len(coords), 1)) if values is None else np.array(values, float).reshape(len(coords), -1)
    return from_numpy(coords, feats, **tensor)


def kernel(*values):
    return mx.array(values, mx.float32).reshape(1, 1, 1, -1, 1)


def zs(x):
    return active_part(x)[0][:, 3].tolist()


def values(x):
    return active_part(x)[1][:, 0].tolist()


def test_spconv_754_max_pool_of_negative_values():
    assert values(ops.max_pool3d(line([0, 1], [-3, -1]), (1, 1, 2))) == [-1.0]


def test_spconv_450_pointwise_weight():
    x = from_numpy([[0, 0, 0, 0]], [[1.0, 0.0, 0.0]])
    stored = mx.array([[1.0, 2, 3], [4, 5, 6]])
    assert np.array(ops.subm_conv3d(x, stored.reshape(2, 1, 1, 1, 3)).feats).tolist() == [[1.0, 4.0]]
    as_spconv = stored.reshape(3, 2).T.reshape(2, 1, 1, 1, 3)
    assert np.array(ops.subm_conv3d(x, as_spconv).feats).tolist() == [[1.0, 2.0]]


def test_minkowski_116_273_537_two_rows_at_one_voxel():
    coords, feats = mx.array([[0, 0, 0, 4], [0, 0, 0, 4]], mx.int32), mx.array([[1.0], [5.0]])
    with pytest.raises(DuplicateCoordinatesError, match="coalesce"):
        SparseTensor(coords, feats)
    for reduce, value in (("sum", 6.0), ("mean", 3.0), ("max", 5.0), ("min", 1.0), ("first", 1.0)):
        assert values(mlxsparse.coalesce(coords, feats, reduce=reduce)) == [value]


def test_mlx_3994_spvnas_107_parents_are_floors():
    x = line([-3, -1, 0, 1])
    assert zs(ops.conv3d(x, kernel(1, 1), stride=(1, 1, 2))) == [-2, -1, 0]
    assert zs(ops.max_pool3d(x, (1, 1, 2))) == [-2, -1, 0]
    assert zs(ops.sum_pool3d(x, 3, 2, support="parents")) == [-2, -1, 0]


def test_torchsparse_8_82_three_columns():
    with pytest.raises(ShapeError, match="batch"):
        SparseTensor(mx.zeros((5, 3), mx.int32), mx.ones((5, 1)))


def test_negative_points_floor():
    points = np.array([[-51.2, -0.01, -4.99], [-0.05, -0.15, 0.05]])
    coords, _ = active_part(mlxsparse.voxelize(points, mx.ones((2, 1)), 0.1).tensor)
    assert coords.tolist() == [[0, -512, -1, -50], [0, -1, -2, 0]]


@pytest.mark.parametrize("make", [np.asarray, mx.array], ids=["numpy", "mlx"])
def test_spconv_755_open3d_108_voxel_edges(make):
    z = np.array([0.3, 0.99999994, 1.0, -1e-7, np.nan], np.float32)
    points = np.stack([np.full_like(z, 0.05), np.full_like(z, 0.05), z], axis=1)
    voxels = mlxsparse.voxelize(make(points), mx.ones((5, 1)), 0.1, bounds=((0, 0, 0), (1, 1, 1)))
    assert zs(voxels.tensor) == [3, 9]
    assert np.array(voxels.point_to_voxel).tolist() == [0, 1, -1, -1, -1]


def test_spconv_755_float64_0_3_over_0_1_floors_to_2():
    assert zs(mlxsparse.voxelize(np.full((1, 3), 0.3), mx.ones((1, 1)), 0.1).tensor) == [2]


def test_mmdetection3d_406_overfull_and_dropped():
    x = np.array([0.05, 0.06, 0.15, 0.07, 0.25, 0.16])
    points = np.stack([np.zeros(6), np.zeros(6), x], axis=1)
    voxels = mlxsparse.voxelize(points, mx.array(x[:, None], mx.float32), 0.1, max_points=2, max_voxels=2)
    assert np.array(voxels.counts).tolist() == [2, 2]
    assert np.array(voxels.point_to_voxel).tolist() == [0, 0, 1, 0, -1, 1]
    assert np.allclose(values(voxels.tensor), [0.055, 0.155])


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_spconv_532_545_far_sites_do_not_alias(axis):
    coords = np.zeros((4, 4), int)
    coords[:, axis] = [0, 2**21, 2**29, -(2**30) + 2]
    x = from_numpy(coords, [[1.0], [10.0], [100.0], [1000.0]])
    assert values(ops.subm_conv3d(x, mx.ones((1, 3, 3, 3, 1)))) == [1.0, 10.0, 100.0, 1000.0]


def test_minkowski_591_torchsparse_16_no_rows():
    x = from_numpy(np.zeros((0, 4)), np.zeros((0, 2)))
    w = mx.ones((3, 2, 2, 2, 2))
    for y in (
        ops.subm_conv3d(x, w),
        ops.conv3d(x, w, stride=2),
        ops.generative_conv_transpose3d(
            from_numpy(np.zeros((0, 4)), np.zeros((0, 2)), stride=2), w, stride=2
        ),
    ):
        assert y.coords.shape == (0, 4) and y.feats.shape == (0, 3)
    assert not np.array(mx.grad(lambda w: ops.conv3d(x, w, stride=2).feats.sum())(w)).any()


def test_spconv_685_713_interleaved_batches():
    coords = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1]]
    x = from_numpy(coords, [[1.0], [10.0], [2.0], [20.0]])
    assert values(ops.subm_conv3d(x, kernel(1, 1, 1))) == [3.0, 30.0, 3.0, 30.0]
    y = ops.conv3d(x, kernel(1, 1), stride=(1, 1, 2))
    assert active_part(y)[0].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]] and values(y) == [30.0, 3.0]


def test_minkowski_328_fvdb_726_even_kernel_anchoring():
    x, w = line([0, 1, 2, 3], [1, 2, 4, 8]), kernel(1, 10, 100, 1000)
    assert values(ops.subm_conv3d(x, w, padding=0))[1] == 842.0  # taps 0..3
    assert values(ops.subm_conv3d(x, w))[1] == 8421.0  # taps -1..2


def test_minkowski_615_fvdb_668_centred_stride_three():
    x, where = line([0, 1, 3, 5], [1, 10, 100, 1000]), {"stride": (1, 1, 3), "padding": (0, 0, 1)}
    y = ops.conv3d(x, kernel(1, 1, 1), **where)
    assert (zs(y), values(y)) == ([0, 1, 2], [11.0, 100.0, 1000.0])
    y = ops.conv3d(x, kernel(1, 1, 1), support="parents", **where)
    assert (zs(y), values(y)) == ([0, 1], [11.0, 100.0])
    assert np.array(ops.coverage(x, (1, 1, 3), support="parents", **where)).tolist() == [1, 1, 1, 0]


def test_torchsparse_282_bounded_shape_and_skipped_sites():
    feats = [1, 2, 4, 8, 16, 32]
    bounded = ops.conv3d(line(range(5), feats[:5], spatial_shape=(1, 1, 5)), kernel(1, 1), stride=(1, 1, 2))
    assert (zs(bounded), values(bounded)) == ([0, 1], [3.0, 12.0])
    free = ops.conv3d(line(range(5), feats[:5]), kernel(1, 1), stride=(1, 1, 2))
    assert (zs(free), values(free)) == ([0, 1, 2], [3.0, 12.0, 16.0])
    skipped = ops.conv3d(line(range(6), feats), kernel(1), stride=(1, 1, 3))
    assert (zs(skipped), values(skipped)) == ([0, 1], [1.0, 8.0])


def test_torchsparse_109_the_cache_key_has_kernel_and_dilation():
    x = line([0, 1, 2], [1, 10, 100])
    for _ in range(2):
        assert values(ops.subm_conv3d(x, kernel(1, 1, 1))) == [11.0, 111.0, 110.0]
        assert values(ops.subm_conv3d(x, kernel(1, 1, 1), dilation=2)) == [101.0, 10.0, 101.0]
        assert values(ops.subm_conv3d(x, kernel(1, 1, 1), padding=0)) == [111.0, 110.0, 100.0]
        assert values(ops.subm_conv3d(x, kernel(1, 1))) == [11.0, 110.0, 100.0]
        assert values(ops.subm_conv3d(x, kernel(1, 0, 0).reshape(1, 3, 1, 1, 1))) == [0.0, 0.0, 0.0]


def test_triton_419_minkowski_251_gradients():
    x, w = line([0, 1, 3], [1, 2, 4]), kernel(1, 10, 100)
    g = mx.array([[1.0], [2.0], [3.0]])
    _, (dx, dw) = mx.vjp(lambda v, w: ops.subm_conv3d(x.replace(v), w).feats, [x.feats, w], [g])
    assert np.array(dx)[:, 0].tolist() == [12.0, 120.0, 30.0]
    assert np.array(dw).reshape(-1).tolist() == [2.0, 17.0, 2.0]


def test_spconv_192_442_679_twenty_runs():
    coords = np.argwhere(np.random.default_rng(0).random((2, 8, 8, 8)) < 0.3)
    feats = np.random.default_rng(1).standard_normal((len(coords), 8)).astype(np.float32)
    w = mx.array(np.random.default_rng(2).standard_normal((8, 3, 3, 3, 8)).astype(np.float32))
    runs = set()
    for _ in range(20):
        x = from_numpy(coords, feats)
        y, grads = mx.vjp(
            lambda v, w, x=x: ops.conv3d(x.replace(v), w, stride=2, padding=1).feats.square().sum(),
            [x.feats, w],
            [mx.array(1.0)],
        )
        runs.add(b"".join(np.array(a).tobytes() for a in (*y, *grads)))
    assert len(runs) == 1


def test_spconv_513_sum_of_4096_tenths():
    coords = np.argwhere(np.ones((1, 16, 16, 16)))
    x = from_numpy(coords, np.full((4096, 1), 0.1), mx.float16)
    assert np.array(ops.sum_pool3d(x, 16).feats).tolist() == [[409.5]]
    assert np.array(ops.global_sum_pool(x)).tolist() == [[409.5]]
    merged = mlxsparse.coalesce(mx.zeros((4096, 4), mx.int32), x.feats)
    assert np.array(merged.feats).tolist() == [[409.5]]
    assert np.array(ops.conv3d(x, mx.ones((1, 16, 16, 16, 1), mx.float16), stride=16).feats).tolist() == [
        [409.5]
    ]


@pytest.mark.parametrize("step", [2**10, 2**16, 2**20])
def test_torchsparse_214_regular_sites_that_collide_in_a_hash(step):
    grid = np.argwhere(np.ones((8, 8, 8))) * step - 4 * step
    coords = np.concatenate([np.zeros((512, 1), int), grid], axis=1)
    coords = np.concatenate([coords, coords + [0, 0, 0, 1]])
    x = from_numpy(coords, np.arange(1024.0)[:, None])
    y = values(ops.subm_conv3d(x, kernel(1, 0, 0)))
    assert y == [0.0] * 512 + list(range(512))


def test_minkowski_478_365_spconv_509_cat_and_add_of_different_sites():
    a, b = line([0, 1], [1, 2]), line([1, 2], [10, 20])
    for join in (lambda: ops.cat([a, b]), lambda: ops.add(a, b), lambda: a + b):
        with pytest.raises(IdentityError):
            join()


def test_minkowski_478_equal_sites_in_another_order_are_not_added_by_row():
    a, b = line([0, 1], [1, 2]), line([1, 0], [10, 20])
    with pytest.raises(IdentityError):
        a + b


def test_cat_on_one_key():
    a = line([0, 1], [1, 2])
    b = ops.subm_conv3d(a, kernel(1, 1, 1))
    c = ops.cat([a, b, a])
    assert c.key is a.key and np.array(c.feats).tolist() == [[1.0, 3.0, 1.0], [2.0, 3.0, 2.0]]


def test_spconv_721_456_torchsparse_203_asymmetric_weight():
    """Weights k at tap k on each axis in turn, down and up: a flip or a swapped axis shows."""
    for axis in range(3):
        coords = np.zeros((2, 4), int)
        coords[:, 1 + axis] = [4, 5]
        shape, stride = [1, 1, 1], [1, 1, 1]
        shape[axis] = stride[axis] = 2
        w = mx.array([1.0, 10.0]).reshape(1, *shape, 1)
        x = from_numpy(coords, np.ones((2, 1)))
        low = ops.conv3d(x, w, stride=stride)
        assert values(low) == [11.0]
        assert values(ops.conv_transpose3d(low, w, stride=stride, out=x)) == [11.0, 110.0]
        assert values(ops.generative_conv_transpose3d(low, w, stride=stride)) == [11.0, 110.0]
    centre = from_numpy([[0, 5, 5, 5]], [[1.0]])
    w = mx.arange(1, 28).astype(mx.float32).reshape(1, 3, 3, 3, 1)
    coords, feats = active_part(ops.conv3d(centre, w, padding=1))
    want = {
        (6 - x, 6 - y, 6 - z): 1.0 + 9 * x + 3 * y + z for x in range(3) for y in range(3) for z in range(3)
    }
    assert {tuple(c[1:]): v for c, (v,) in zip(coords.tolist(), feats.tolist())} == want


def test_mlx_3787_coordinates_take_no_gradient():
    x = line([0, 1], [1, 2])
    loss = mx.grad(lambda v: (ops.subm_conv3d(x.replace(v), kernel(1, 1, 1)).feats * x.coords[:, 3:]).sum())
    assert np.array(loss(x.feats)).tolist() == [[1.0], [1.0]]
