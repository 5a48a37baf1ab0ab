"""Real clouds at 5 and 10 cm: voxels, convolution, pooling and the way back equal the oracle's."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.io.points import read_points
from mlxsparse.testing import oracle
from tests.data_paths import data_path

pytestmark = pytest.mark.usefixtures("device")

NAMES = [
    "laspy_autzen_trim.laz",
    "laspy_simple.las",
    "laspy_vegetation_1_3.las",
    "open3dml_fragment_rgb.pcd",
    "pcl_bunny_ascii.pcd",
    "pcl_curve_close_binary.pcd",
    "pcl_office1_nan.pcd",
    "pcl_room_scan1.pcd",
    "pcl_samp11_utm.pcd",
    "pdal_1.2-with-color.copc.laz",
    "pdal_data.xyz",
    "spconv_benchmark-pc.npz",
    "trimesh_points_cloudcompare.xyz",
]


def points_of(name):
    path = data_path("clouds", name)
    if name.endswith(".npz"):
        return np.load(path)["pc"].astype(np.float64)
    if name.endswith(".xyz"):
        lines = path.read_text().splitlines()
        rows = [line.split()[:3] for line in lines if line.strip() and line.strip()[0] in "-0123456789"]
        return np.array(rows, np.float64)
    return read_points(path).points


def test_every_cloud_is_here():
    files = {p.name for p in data_path("clouds").iterdir()} - {"MANIFEST.json"}
    assert files == set(NAMES)


@pytest.mark.parametrize("size", [0.05, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_cloud(name, size):
    points = points_of(name)
    rng = np.random.default_rng(0)
    feats = rng.integers(-8, 8, (len(points), 2)).astype(np.float32)
    voxels = ms.voxelize(points, feats, size, reduce="sum")

    # Straight NumPy, beside the oracle's dictionaries, since these are large.
    finite = np.isfinite(points).all(axis=1)
    cells = np.floor(points[finite] / size).astype(np.int64)
    sites, number = np.unique(cells, axis=0, return_inverse=True)
    where = np.full(len(points), -1)
    where[finite] = number.reshape(-1)
    sums = np.zeros((len(sites), 2))
    np.add.at(sums, number.reshape(-1), feats[finite])
    x = voxels.tensor
    np.testing.assert_array_equal(np.array(x.coords)[:, 1:], sites)
    np.testing.assert_array_equal(np.array(voxels.point_to_voxel), where)
    np.testing.assert_array_equal(np.array(x.feats), sums)
    np.testing.assert_array_equal(np.array(voxels.devoxelize()), np.where(finite[:, None], sums[where], 0))

    # Convolution and pooling on the first sites, whose neighbourhoods are whole in the sub-cloud.
    part = np.array(x.coords)[:4000]
    values = np.array(x.feats)[:4000]
    y = ms.SparseTensor(mx.array(part), mx.array(values))
    w = rng.integers(-3, 3, (3, 3, 3, 3, 2)).astype(np.float32)
    got = ms.ops.subm_conv3d(y, mx.array(w))
    np.testing.assert_array_equal(np.array(got.feats), oracle.subm_conv3d(part, values, w))
    down = ms.ops.conv3d(y, mx.array(w), stride=2, padding=1)
    coords, want = oracle.conv3d(part, values, w, stride=2, padding=1)
    np.testing.assert_array_equal(np.array(down.coords), coords)
    np.testing.assert_array_equal(np.array(down.feats), want)
    pooled = ms.ops.max_pool3d(y, 2)
    coords, want = oracle.max_pool3d(part, values, 2)
    np.testing.assert_array_equal(np.array(pooled.coords), coords)
    np.testing.assert_array_equal(np.array(pooled.feats), want)
