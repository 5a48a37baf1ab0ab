"""The oracle against values worked out by hand. Tests are named after the thread that showed the mistake.

`line` puts a one-dimensional example on the z axis.
"""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.errors import CoordinateRangeError, DuplicateCoordinatesError, IdentityError, ShapeError
from mlxsparse.testing import oracle


def line(positions, values=None, batch=0):
    coords = np.array([[batch, 0, 0, z] for z in positions], dtype=np.int64).reshape(-1, 4)
    feats = (
        np.ones((len(coords), 1))
        if values is None
        else np.array(values, dtype=float).reshape(len(coords), -1)
    )
    return coords, feats


def kernel(values):
    """A (1, 1, 1, K, 1) weight."""
    return np.array(values, dtype=float).reshape(1, 1, 1, -1, 1)


def zs(coords):
    return coords[:, 3].tolist()


def test_tap_order_and_no_flip():
    assert oracle.taps((2, 1, 2)) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    coords = np.array([[0, 5, 5, 5]])
    weight = np.arange(1, 28, dtype=float).reshape(1, 3, 3, 3, 1)
    out, feats = oracle.conv3d(coords, [[1.0]], weight, padding=1)
    by_site = {tuple(site[1:]): value for site, (value,) in zip(out.tolist(), feats)}
    # in = o - 1 + k: the output at in + 1 - k holds tap k
    assert by_site == {(6 - kx, 6 - ky, 6 - kz): 1 + kx * 9 + ky * 3 + kz for kx, ky, kz in oracle.taps(3)}


def test_output_without_inputs_is_the_bias_and_pools_to_zero():
    coords, feats = line([0], [-3])
    far = np.array([[0, 9, 9, 9]])
    assert oracle.conv3d(coords, feats, kernel([2]), [7.0], out_coords=far)[1].tolist() == [[7.0]]
    assert oracle.max_pool3d(coords, feats, 1, out_coords=far)[1].tolist() == [[0.0]]
    assert oracle.avg_pool3d(coords, feats, 1, out_coords=far)[1].tolist() == [[0.0]]


def test_groups_read_their_own_channels():
    coords, feats = line([0], [[1, 10, 100, 1000]])
    weight = np.array([[1, 2], [3, 4]], dtype=float).reshape(2, 1, 1, 1, 2)
    assert oracle.subm_conv3d(coords, feats, weight, groups=2).tolist() == [[21.0, 4300.0]]
    depthwise = np.array([1, 2, 3, 4], dtype=float).reshape(4, 1, 1, 1, 1)
    assert oracle.subm_conv3d(coords, feats, depthwise, groups=4).tolist() == [[1.0, 20.0, 300.0, 4000.0]]


def test_spconv_754_max_pool_of_negative_values():
    assert oracle.max_pool3d(*line([0, 1], [-3, -1]), (1, 1, 2))[1].tolist() == [[-1.0]]


def test_spconv_450_pointwise_weight():
    x = np.array([[1.0, 0.0, 0.0]])
    weight = np.array([[1, 2, 3], [4, 5, 6]], dtype=float)  # as stored, (Co, Ci)
    plain = weight.reshape(2, 1, 1, 1, 3)
    as_spconv = weight.reshape(3, 2).T.reshape(2, 1, 1, 1, 3)
    assert oracle.subm_conv3d([[0, 0, 0, 0]], x, plain).tolist() == [[1.0, 4.0]]
    assert oracle.subm_conv3d([[0, 0, 0, 0]], x, as_spconv).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("reduce", "value"), [("sum", 6.0), ("mean", 3.0), ("max", 5.0), ("min", 1.0), ("first", 1.0)]
)
def test_minkowski_116_two_rows_at_one_voxel(reduce, value):
    coords, feats = line([4, 4], [1, 5])
    with pytest.raises(DuplicateCoordinatesError):
        oracle.subm_conv3d(coords, feats, kernel([1]))
    merged, values = oracle.coalesce(coords, feats, reduce)
    assert (zs(merged), values.tolist()) == ([4], [[value]])


def test_mlx_3994_parents_are_floors():
    coords, _ = line([-3, -1, 0, 1])
    assert zs(oracle.parent_support(coords, 2)) == [-2, -1, 0]
    assert zs(oracle.touched_support(coords, (1, 1, 2), (1, 1, 2))) == [-2, -1, 0]


def test_torchsparse_8_three_columns():
    with pytest.raises(ShapeError, match=r"\(N, 4\)"):
        oracle.subm_conv3d(np.zeros((1, 3)), [[1.0]], kernel([1]))


def test_floor_not_trunc():
    coords, _, _, _ = oracle.voxelize([[-0.05, -0.15, 0.05]], [[1.0]], 0.1)
    assert coords.tolist() == [[0, -1, -2, 0]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_spconv_755_voxel_edges(dtype):
    z = np.array([0.3, 0.99999994, 1.0, -1e-7, np.nan], dtype=np.float32)
    points = np.stack([np.full_like(z, 0.05), np.full_like(z, 0.05), z], axis=1)
    coords, _, index, _ = oracle.voxelize(
        points, np.ones((5, 1)), 0.1, bounds=([0] * 3, [1] * 3), dtype=dtype
    )
    assert zs(coords) == [3, 9]
    assert index.tolist() == [0, 1, -1, -1, -1]


def test_python_0_3_over_0_1_floors_to_2():
    coords, _, _, _ = oracle.voxelize(np.array([[0.3, 0.3, 0.3]]), [[1.0]], 0.1)
    assert coords.tolist() == [[0, 2, 2, 2]]


def test_mmdetection3d_406_overfull_and_dropped():
    x = np.array([0.05, 0.06, 0.15, 0.07, 0.25, 0.16])
    points = np.stack([np.zeros(6), np.zeros(6), x], axis=1)
    coords, feats, index, counts = oracle.voxelize(points, x[:, None], 0.1, max_points=2, max_voxels=2)
    assert (zs(coords), counts.tolist()) == ([0, 1], [2, 2])
    assert index.tolist() == [0, 0, 1, 0, -1, 1]
    assert np.allclose(feats, [[0.055], [0.155]])


def test_spconv_532_far_points_do_not_alias():
    coords, feats = line([0, 2**21, 2**29], [1, 10, 100])
    assert oracle.subm_conv3d(coords, feats, kernel([1, 1, 1])).tolist() == [[1.0], [10.0], [100.0]]


def test_minkowski_591_no_rows():
    coords, feats = np.zeros((0, 4), int), np.zeros((0, 2))
    weight = np.ones((3, 2, 2, 2, 2))
    out, values = oracle.conv3d(coords, feats, weight, stride=2)
    assert (out.shape, values.shape) == ((0, 4), (0, 3))
    dfeats, dweight, dbias = oracle.conv_gradients(coords, feats, weight, values, out_coords=out, stride=2)
    assert dfeats.shape == (0, 2) and not dweight.any() and not dbias.any()


def test_spconv_685_interleaved_batches():
    coords = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1]])
    feats = np.array([[1.0], [10.0], [2.0], [20.0]])
    assert oracle.subm_conv3d(coords, feats, kernel([1, 1, 1]))[:, 0].tolist() == [3.0, 30.0, 3.0, 30.0]
    out, values = oracle.conv3d(coords, feats, kernel([1, 1]), stride=(1, 1, 2))
    assert (out.tolist(), values.tolist()) == ([[0, 0, 0, 0], [1, 0, 0, 0]], [[30.0], [3.0]])


@pytest.mark.parametrize(("padding", "value"), [((0, 0, 0), 842.0), (None, 8421.0)])
def test_minkowski_328_even_kernel_anchoring(padding, value):
    coords, feats = line([0, 1, 2, 3], [1, 2, 4, 8])
    assert oracle.subm_conv3d(coords, feats, kernel([1, 10, 100, 1000]), padding=padding)[1, 0] == value


def test_minkowski_615_centred_stride_three():
    coords, feats = line([0, 1, 3, 5], [1, 10, 100, 1000])
    where = {"stride": (1, 1, 3), "padding": (0, 0, 1)}
    out, values = oracle.conv3d(coords, feats, kernel([1, 1, 1]), **where)
    assert (zs(out), values[:, 0].tolist()) == ([0, 1, 2], [11.0, 100.0, 1000.0])
    out, values = oracle.conv3d(coords, feats, kernel([1, 1, 1]), support="parents", **where)
    assert (zs(out), values[:, 0].tolist()) == ([0, 1], [11.0, 100.0])  # 5 reaches no parent


def test_torchsparse_282_bounded_shape():
    coords, feats = line(range(5), [1, 2, 4, 8, 16])
    bounded, values = oracle.conv3d(coords, feats, kernel([1, 1]), stride=(1, 1, 2), spatial_shape=(1, 1, 5))
    assert (zs(bounded), values[:, 0].tolist()) == ([0, 1], [3.0, 12.0])
    assert zs(oracle.touched_support(coords, (1, 1, 2), (1, 1, 2))) == [0, 1, 2]
    coords, feats = line(range(6), [1, 2, 4, 8, 16, 32])
    kept, values = oracle.conv3d(coords, feats, kernel([1]), stride=(1, 1, 3))
    assert (zs(kept), values[:, 0].tolist()) == ([0, 1], [1.0, 8.0])  # sites 0 and 3


@pytest.mark.parametrize(("dilation", "values"), [(1, [11.0, 111.0, 110.0]), (2, [101.0, 10.0, 101.0])])
def test_torchsparse_109_dilation(dilation, values):
    coords, feats = line([0, 1, 2], [1, 10, 100])
    assert oracle.subm_conv3d(coords, feats, kernel([1, 1, 1]), dilation=dilation)[:, 0].tolist() == values


def test_triton_419_gradients():
    coords, feats = line([0, 1, 3], [1, 2, 4])
    weight, grad = kernel([1, 10, 100]), np.array([[1.0], [2.0], [3.0]])
    # pairs: out 0 <- (0, centre), (1, right); out 1 <- (0, left), (1, centre); out 3 <- (3, centre)
    dfeats, dweight, dbias = oracle.conv_gradients(
        coords, feats, weight, grad, out_coords=coords, padding=(0, 0, 1)
    )
    assert dfeats[:, 0].tolist() == [1 * 10 + 2 * 1, 1 * 100 + 2 * 10, 3 * 10]
    assert dweight.reshape(3).tolist() == [2 * 1, 1 * 1 + 2 * 2 + 3 * 4, 1 * 2]
    assert dbias.tolist() == [6.0]


def test_max_pool_gradient_goes_to_the_first_of_equals():
    coords, feats = line([1, 0], [5, 5])  # site 0, row 1, is tap 0
    out, _ = oracle.max_pool3d(coords, feats, (1, 1, 2))
    gradient = oracle.max_pool3d_gradient(coords, feats, [[7.0]], (1, 1, 2), out_coords=out)
    assert gradient[:, 0].tolist() == [0.0, 7.0]


def test_avg_pool_divisors():
    coords, feats = line([0, 1, 2], [2, 4, 6])
    assert oracle.avg_pool3d(coords, feats, (1, 1, 2))[1][:, 0].tolist() == [3.0, 6.0]
    whole = oracle.avg_pool3d(coords, feats, (1, 1, 2), count_include_empty=True)[1]
    assert whole[:, 0].tolist() == [3.0, 3.0]
    grad = oracle.avg_pool3d_gradient(
        coords, feats, np.ones((2, 1)), (1, 1, 2), out_coords=[[0, 0, 0, 0], [0, 0, 0, 1]]
    )
    assert grad[:, 0].tolist() == [0.5, 0.5, 1.0]


def test_spconv_513_mean_of_equal_values():
    tenth = float(np.float16(0.1))
    coords = np.array(
        [[0, 16 * a + b, c, d] for a in range(1) for b in range(16) for c in range(16) for d in range(16)]
    )
    out, values = oracle.sum_pool3d(coords, np.full((4096, 1), tenth), 16, out_coords=[[0, 0, 0, 0]])
    assert len(out) == 1 and np.float16(values[0, 0]) == np.float16(409.5)


def test_minkowski_478_cat_of_different_sites():
    a, b = line([0, 1], [1, 2]), line([2, 1], [20, 10])
    with pytest.raises(IdentityError):
        oracle.cat(*a, *b)
    sites, feats = oracle.cat(*a, *b, join="outer")
    assert (zs(sites), feats.tolist()) == ([0, 1, 2], [[1.0, 0.0], [2.0, 10.0], [0.0, 20.0]])
    assert oracle.add(*a, *b, join="inner")[1].tolist() == [[12.0]]
    assert oracle.add(*a, *b, join="left")[1].tolist() == [[1.0], [12.0]]
    assert oracle.add(*a, *line([1, 0], [10, 20]), join="outer")[1].tolist() == [[21.0], [12.0]]


def test_spconv_721_asymmetric_weight_round_trip():
    """Down by k2 s2 and up again: tap k meets the same pair both ways."""
    coords, feats = line([4, 5], [1, 1])
    down, low = oracle.conv3d(coords, feats, kernel([1, 10]), stride=(1, 1, 2))
    assert (zs(down), low.tolist()) == ([2], [[11.0]])
    up = oracle.conv_transpose3d(down, low, kernel([1, 10]), stride=(1, 1, 2), out_coords=coords)
    assert up[:, 0].tolist() == [11.0, 110.0]
    made, values = oracle.generative_conv_transpose3d(down, low, kernel([1, 10]), stride=(1, 1, 2))
    assert (zs(made), values[:, 0].tolist()) == ([4, 5], [11.0, 110.0])


def test_generative_support_and_its_bound():
    coords, feats = line([0, 2])
    where = {"stride": (1, 1, 2), "padding": (0, 0, 1)}
    assert zs(oracle.generative_support(coords, (1, 1, 3), **where)) == [-1, 0, 1, 3, 4, 5]
    # (3 - 1) * 2 - 2 + 2 + 1 = 5
    assert zs(oracle.generative_support(coords, (1, 1, 3), **where, spatial_shape=(1, 1, 3))) == [0, 1, 3, 4]


def test_sparse_equals_dense():
    rng = np.random.default_rng(0)
    coords = np.argwhere(rng.random((2, 4, 5, 3)) < 0.4)
    feats, weight = rng.normal(size=(len(coords), 4)), rng.normal(size=(6, 3, 2, 3, 2))
    where = {"stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (1, 2, 1), "groups": 2}
    out, values = oracle.conv3d(coords, feats, weight, spatial_shape=(4, 5, 3), **where)
    whole = oracle.dense_conv3d(oracle.dense(coords, feats, (4, 5, 3)), weight, **where)
    assert np.allclose(oracle.dense(out, values, whole.shape[1:4], batch_size=2), whole, atol=1e-12)


def test_transpose_is_the_adjoint():
    rng = np.random.default_rng(1)
    coords = np.argwhere(rng.random((2, 4, 5, 3)) < 0.4)
    weight = rng.normal(size=(3, 2, 3, 2, 2))
    where = {"stride": (2, 1, 2), "padding": (1, 0, 1), "dilation": (1, 2, 1)}
    out = oracle.touched_support(coords, (2, 3, 2), **where)
    x, y = rng.normal(size=(len(coords), 2)), rng.normal(size=(len(out), 3))
    forward = oracle.conv3d(coords, x, weight, out_coords=out, **where)[1]
    back = oracle.conv_transpose3d(out, y, weight.transpose(4, 1, 2, 3, 0), out_coords=coords, **where)
    assert np.isclose((forward * y).sum(), (x * back).sum())
    assert np.allclose(back, oracle.conv_gradients(coords, x, weight, y, out_coords=out, **where)[0])
    _, dweight, _ = oracle.conv_transpose_gradients(
        out, y, weight.transpose(4, 1, 2, 3, 0), x, out_coords=coords, **where
    )
    assert np.isclose((dweight * weight.transpose(4, 1, 2, 3, 0)).sum(), (x * back).sum())


def test_global_pools_and_empty_items():
    coords = np.array([[2, 0, 0, 0], [0, 0, 0, 0], [2, 0, 0, 1]])
    feats = np.array([[-1.0], [-5.0], [-3.0]])
    assert oracle.global_sum_pool(coords, feats, 4)[:, 0].tolist() == [-5.0, 0.0, -4.0, 0.0]
    assert oracle.global_avg_pool(coords, feats, 4)[:, 0].tolist() == [-5.0, 0.0, -2.0, 0.0]
    assert oracle.global_max_pool(coords, feats, 4, empty=9.0)[:, 0].tolist() == [-5.0, 9.0, -1.0, 9.0]
    with pytest.raises(ShapeError, match="empty"):
        oracle.global_max_pool(coords, feats, 4)


def test_batch_norm_over_all_rows():
    assert np.allclose(oracle.batch_norm([[1.0], [3.0]], eps=0.0), [[-1.0], [1.0]])
    assert np.allclose(oracle.batch_norm([[1.0], [3.0]], [2.0], [5.0], eps=0.0), [[3.0], [7.0]])


def test_dense_and_back():
    coords, feats = line([-2, 0], [3, 4])
    array = oracle.dense(coords, feats, (1, 1, 4), origin=(0, 0, -2), fill=-1, batch_size=2)
    assert array[..., 0].reshape(2, 4).tolist() == [[3.0, -1.0, 4.0, -1.0], [-1.0] * 4]
    with pytest.raises(CoordinateRangeError):
        oracle.dense(coords, feats, (1, 1, 4))
    again, values = oracle.from_dense(oracle.dense(coords, feats, (1, 1, 4), origin=(0, 0, -2)))
    assert (zs(again), values.tolist()) == ([0, 2], [[3.0], [4.0]])


def test_devoxelize():
    coords, feats = line([0, 1], [10, 30])
    points = np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 1.0], [0.5, 0.5, 1.75], [0.5, 0.5, 9.0]])
    assert oracle.devoxelize_nearest(points, coords, feats, 1.0)[:, 0].tolist() == [10.0, 30.0, 30.0, 0.0]
    assert oracle.devoxelize_trilinear(points, coords, feats, 1.0)[:, 0].tolist() == [10.0, 20.0, 30.0, 0.0]


def test_voxelize_order_batches_and_reductions():
    points = np.array([[1.5, 0.5, 0.5], [0.5, 0.5, 0.5], [1.6, 0.5, 0.5], [0.5, 0.5, 0.5]])
    feats = np.array([[1.0], [2.0], [5.0], [8.0]])
    coords, mean, index, counts = oracle.voxelize(points, feats, 1.0, batch=np.array([0, 1, 0, 0]))
    assert coords.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert (mean[:, 0].tolist(), index.tolist(), counts.tolist()) == (
        [8.0, 3.0, 2.0],
        [1, 2, 1, 0],
        [1, 2, 1],
    )
    assert oracle.voxelize(points, feats, 1.0, reduce="max")[1][:, 0].tolist() == [8.0, 5.0]
    shifted = oracle.voxelize(points, feats, (0.5, 1.0, 1.0), origin=(0.5, 0.0, 0.0))[0]
    assert shifted.tolist() == [[0, 0, 0, 0], [0, 2, 0, 0]]
