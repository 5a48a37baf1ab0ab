"""The compiled loops of the `fast` extra give the bits of the NumPy forms (products: numeric.equal_sums)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import fast, fast_rows

from ..numeric import equal_sums

pytestmark = pytest.mark.usefixtures("device")


def results(x, w, values, points):
    gradients = mx.grad(
        lambda f, w: ms.ops.subm_conv3d(x.replace(f), w).feats.square().sum(), argnums=(0, 1)
    )(x.feats, w)
    pools = [
        ms.ops.max_pool3d(x, 3, 2).feats,
        ms.ops.sum_pool3d(x, 3, 2).feats,
        ms.ops.avg_pool3d(x, 2).feats,
        mx.grad(lambda f: ms.ops.avg_pool3d(x.replace(f), 3, 2).feats.square().sum())(x.feats),
    ]
    voxels = ms.voxelize(points, values, 0.5, bounds=((-1, -1, -1), (1, 1, 1)))
    return [np.array(a).tobytes() for a in (*gradients, *pools, voxels.tensor.feats)]


def test_same_bits(monkeypatch):
    pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")
    rng = np.random.default_rng(0)
    sites = np.unique(rng.integers(-9, 9, (5000, 4)) * [0, 1, 1, 1], axis=0)
    sites = rng.permutation(sites).astype(np.int32)
    feats = rng.normal(size=(len(sites), 5)).astype(np.float32)
    feats[7, 2], feats[11, 0], feats[12, 1] = np.nan, np.inf, -np.inf
    x = ms.SparseTensor(mx.array(sites), mx.array(feats))
    w = mx.array(rng.normal(size=(6, 3, 3, 3, 5)).astype(np.float32))
    points = rng.normal(size=(4000, 3))
    values = rng.normal(size=(4000, 3)).astype(np.float32)
    monkeypatch.setenv("MLXSPARSE_FAST", "1")
    assert fast.available() and ms.backend.info()["fast"]
    compiled = results(x, w, values, points)
    monkeypatch.setenv("MLXSPARSE_FAST", "0")
    assert not fast.available()
    assert results(x, w, values, points) == compiled


def test_loops_are_compiled_where_no_folder_can_keep_them(monkeypatch):
    """A home and an installation that are read-only: numba raises where it is asked to keep them."""
    pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")
    from mlxsparse.backend import _numba_jit

    monkeypatch.setattr(_numba_jit, "_told", [])
    nowhere = eval("lambda x: None")  # of no file, so numba finds no folder either
    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR"):
        assert _numba_jit.njit(cache=True)(nowhere)(3) is None
    assert _numba_jit.cfunc("void(int64)", cache=True)(nowhere).cache_hits == 0


def test_same_bits_of_large_clouds(monkeypatch):
    """Enough points and sites that threads share the work; one-pair taps, bias, and products put in place."""
    pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")
    rng = np.random.default_rng(1)
    points = rng.normal(size=(250_000, 3)) * 20
    values = rng.normal(size=(len(points), 3)).astype(np.float32)
    w = mx.array(rng.normal(size=(6, 3, 3, 3, 3)).astype(np.float32))
    w2 = mx.array(rng.normal(size=(6, 2, 2, 2, 3)).astype(np.float32))
    back = mx.array(rng.normal(size=(4, 2, 2, 2, 6)).astype(np.float32))
    bias = mx.array(rng.normal(size=6).astype(np.float32))

    def run():
        voxels = ms.voxelize(points, values, 0.9)
        x = voxels.tensor
        down = ms.ops.conv3d(x, w2, bias, stride=2)
        found = [
            x.coords,
            x.feats,
            voxels.point_to_voxel,
            voxels.counts,
            ms.ops.subm_conv3d(x, w, bias).feats,
            ms.ops.conv_transpose3d(down, back, stride=2).feats,
            ms.ops.max_pool3d(x, 2).feats,
            ms.ops.avg_pool3d(x, 2).feats,
            ms.ops.sum_pool3d(x, (2, 3, 1)).feats,
        ]
        return [np.array(a).tobytes() for a in found]

    monkeypatch.setenv("MLXSPARSE_FAST", "1")
    compiled = run()
    monkeypatch.setenv("MLXSPARSE_FAST", "0")
    assert run() == compiled


@pytest.mark.parametrize(("ci", "co"), [(2, 3), (4, 4), (8, 16), (16, 8), (32, 24), (128, 64), (129, 4)])
def test_same_bits_of_few_channels(monkeypatch, ci, co):
    """Rows in order and not, taps with one pair, whole vectors of channels and parts, a non-finite row."""
    pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")
    rng = np.random.default_rng(ci)
    sites = np.unique(rng.integers(-7, 7, (1500, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    few = np.array([[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 0]], np.int32)
    w = mx.array(rng.normal(size=(co, 3, 3, 3, ci)).astype(np.float32))
    bias = mx.array(rng.normal(size=co).astype(np.float32))

    def run():
        found = []
        for coords in (sites, rng.permutation(sites), few):
            feats = np.random.default_rng(1).normal(size=(len(coords), ci)).astype(np.float32)
            feats[2, 1] = np.inf
            x = ms.SparseTensor(mx.array(coords), mx.array(feats))
            y, gradients = mx.vjp(
                lambda f, w, b, x=x: ms.ops.subm_conv3d(x.replace(f), w, b).feats,
                [x.feats, w, bias],
                [mx.array(np.random.default_rng(2).normal(size=(len(coords), co)).astype(np.float32))],
            )
            found += [y[0], *gradients, ms.ops.conv3d(x, w, stride=2, padding=1).feats]
        return [np.array(a) for a in found]

    runs = []
    for compiled in ("1", "0"):
        monkeypatch.setenv("MLXSPARSE_FAST", compiled)
        rng = np.random.default_rng(3)
        runs.append(run())
    for a, b in zip(*runs):
        equal_sums(a, b)
    assert not fast_rows.few_channels(129, 4) and not fast_rows.few_channels(4, 65)


@pytest.mark.parametrize(("ci", "co"), [(64, 64), (130, 70), (300, 20)])
def test_same_bits_of_many_channels(monkeypatch, ci, co):
    """Products that are taken in pieces; convolutions with as many pairs as sites, and one pair a site."""
    pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")
    rng = np.random.default_rng(ci)
    sites = np.unique(rng.integers(-6, 6, (1500, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    x = ms.SparseTensor(mx.array(sites), mx.array(rng.normal(size=(len(sites), ci)).astype(np.float32)))
    w, w2 = (mx.array(rng.normal(size=(co, k, k, k, ci)).astype(np.float32)) for k in (3, 2))
    back = mx.array(rng.normal(size=(ci, 2, 2, 2, co)).astype(np.float32))
    runs = []
    for compiled in ("1", "0"):
        monkeypatch.setenv("MLXSPARSE_FAST", compiled)
        down = ms.ops.conv3d(x, w2, stride=2)
        up = ms.ops.conv_transpose3d(down, back, stride=2, out=x)
        runs.append([np.array(y.feats) for y in (ms.ops.subm_conv3d(x, w), down, up)])
    for a, b in zip(*runs):
        equal_sums(a, b)
