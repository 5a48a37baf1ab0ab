"""One thin slice through every layer on a real scan: points to loss to gradients, against the oracle."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.io.points import read_points
from mlxsparse.testing import oracle
from tests.data_paths import data_path

pytestmark = pytest.mark.usefixtures("device")


def test_room_scan_from_points_to_gradients():
    points = read_points(data_path("clouds", "pcl_room_scan1.pcd")).points[::40]
    voxels = ms.voxelize(points, voxel_size=0.2)
    x = voxels.tensor
    rng = np.random.default_rng(0)
    w1 = rng.normal(size=(8, 3, 3, 3, 3)).astype(np.float32) / 5
    w2 = rng.normal(size=(6, 2, 2, 2, 8)).astype(np.float32) / 5
    w3 = rng.normal(size=(4, 2, 2, 2, 6)).astype(np.float32) / 5
    target = rng.normal(size=(len(points), 4)).astype(np.float32)

    def loss(feats, w1, w2, w3):
        fine = ms.ops.subm_conv3d(x.replace(feats), w1)
        coarse = ms.ops.conv3d(fine, w2, stride=2)
        back = ms.ops.conv_transpose3d(coarse, w3, stride=2, out=fine)
        return ((voxels.devoxelize(feats=back) - mx.array(target)) ** 2).sum()

    arguments = (x.feats, mx.array(w1), mx.array(w2), mx.array(w3))
    value, gradients = mx.value_and_grad(loss, argnums=(0, 1, 2, 3))(*arguments)

    # The same in the oracle, with the gradients of each step by hand.
    sites, feats, where, _ = oracle.voxelize(points, points.astype(np.float32), 0.2)
    assert np.array_equal(np.array(x.coords), sites)
    assert np.array_equal(np.array(voxels.point_to_voxel), where)
    np.testing.assert_allclose(np.array(x.feats), feats, rtol=1e-5, atol=1e-6)
    fine = oracle.subm_conv3d(sites, feats, w1)
    parents, coarse = oracle.conv3d(sites, fine, w2, stride=2)
    back = oracle.conv_transpose3d(parents, coarse, w3, stride=2, out_coords=sites)
    off = oracle.devoxelize_nearest(points, sites, back, 0.2) - target
    assert value.item() == pytest.approx((off**2).sum(), rel=1e-5)

    d_back = np.zeros_like(back)
    np.add.at(d_back, where, 2 * off)
    d_coarse, d_w3, _ = oracle.conv_transpose_gradients(
        parents, coarse, w3, d_back, stride=2, out_coords=sites
    )
    d_fine, d_w2, _ = oracle.conv_gradients(sites, fine, w2, d_coarse, out_coords=parents, stride=2)
    d_feats, d_w1, _ = oracle.conv_gradients(sites, feats, w1, d_fine, out_coords=sites, padding=1)
    for got, want in zip(gradients, (d_feats, d_w1, d_w2, d_w3)):
        assert np.abs(np.array(got) - want).max() <= 1e-5 * np.abs(want).max()
