"""Inputs of several thousand sites, past the block sizes and thread counts that executors work in."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse import ops
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(scope="module")
def scene():
    """Some 5000 sites of a surface-like density in shuffled order, integer features."""
    rng = np.random.default_rng(0)
    coords = rng.permutation(np.argwhere(rng.random((2, 24, 24, 24)) < 0.18)).astype(np.int32)
    coords[:, 1:] -= 11
    return coords, rng.integers(-4, 5, (len(coords), 3)).astype(np.float32)


def integers(*shape, seed=1):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def check(op, scene, weight, want, gradients):
    """Rows, values and the three gradients, all exact on integers."""
    coords, feats = scene
    x, w, b = from_numpy(coords, feats, stride=2), mx.array(weight), mx.array(integers(weight.shape[0]))
    y = op(x, w, b)
    out_coords, values = active_part(y)
    assert np.array_equal(out_coords, want[0]) and np.array_equal(values, want[1] + np.array(b))
    g = integers(*values.shape, seed=2)
    _, got = mx.vjp(lambda v, w, b: op(x.replace(v), w, b).feats, [x.feats, w, b], [mx.array(g)])
    for one, other in zip(got, gradients(coords, feats, weight, g, out_coords=want[0])):
        assert np.array_equal(np.array(one), other)


def test_subm(scene):
    weight = integers(4, 3, 3, 3, 3)
    want = scene[0], oracle.subm_conv3d(*scene, weight)

    def gradients(*args, **more):
        return oracle.conv_gradients(*args, padding=1, **more)

    check(ops.subm_conv3d, scene, weight, want, gradients)


def test_strided(scene):
    weight, where = integers(2, 3, 3, 3, 3), {"stride": 2, "padding": 1}
    want = oracle.conv3d(*scene, weight, **where)

    def gradients(*args, **more):
        return oracle.conv_gradients(*args, **where, **more)

    check(lambda x, w, b: ops.conv3d(x, w, b, **where), scene, weight, want, gradients)


def test_generative(scene):
    weight = integers(2, 2, 2, 2, 3)
    want = oracle.generative_conv_transpose3d(*scene, weight, stride=2)

    def gradients(*args, **more):
        return oracle.conv_transpose_gradients(*args, stride=2, **more)

    check(lambda x, w, b: ops.generative_conv_transpose3d(x, w, b, stride=2), scene, weight, want, gradients)


@pytest.mark.parametrize("pool", ["max_pool3d", "sum_pool3d"])
def test_pools(scene, pool):
    coords, feats = scene
    out_coords, want = getattr(oracle, pool)(coords, feats, 3, 1, 1, support="parents")
    x = from_numpy(coords, feats)

    def op(x):
        return getattr(ops, pool)(x, 3, 1, 1, support="parents")

    got_coords, got = active_part(op(x))
    assert np.array_equal(got_coords, out_coords) and np.array_equal(got, want)
    g = integers(*want.shape)
    _, (dfeats,) = mx.vjp(lambda v: op(x.replace(v)).feats, [x.feats], [mx.array(g)])
    gradient = getattr(oracle, f"{pool}_gradient")(coords, feats, g, 3, 1, 1, out_coords=out_coords)
    assert np.array_equal(np.array(dfeats), gradient)


def test_the_number_of_threads_does_not_change_the_bits(scene, monkeypatch):
    coords, _ = scene
    feats = np.random.default_rng(3).standard_normal((len(coords), 16)).astype(np.float32)
    weight = mx.array(np.random.default_rng(4).standard_normal((16, 3, 3, 3, 16)).astype(np.float32))
    results = set()
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("MLXSPARSE_THREADS", threads)
        x = from_numpy(coords, feats)
        y, grads = mx.vjp(
            lambda v, w, x=x: ops.conv3d(ops.subm_conv3d(x.replace(v), w), w, stride=2, padding=1).feats,
            [x.feats, weight],
            [mx.ones((len(oracle.touched_support(coords, 3, 2, 1)), 16))],
        )
        results.add(b"".join(np.array(a).tobytes() for a in (*y, *grads)))
    assert len(results) == 1
