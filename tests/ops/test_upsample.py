"""Average unpooling, nearest and trilinear upsampling, trilinear devoxelization, against the oracle."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.backend import host
from mlxsparse.engine import interpolate
from mlxsparse.errors import IdentityError, MLXSparseError, ShapeError, StrideError
from mlxsparse.testing import invariants, oracle
from mlxsparse.testing.adapt import active_part, from_numpy, to_numpy
from mlxsparse.testing.strategies import coordinate_sets, features, permutations, sites
from tests.numeric import poisoned

pytestmark = pytest.mark.usefixtures("device")

AXES = st.one_of(st.integers(1, 3), st.tuples(*[st.integers(1, 4)] * 3))
UPSAMPLINGS = ["upsample_nearest", "upsample_trilinear"]


@st.composite
def cases(draw, channels=None, far=True):
    """(scale, coarse coords, coarse feats, fine coords): neither set covers the other."""
    scale = draw(AXES)
    fine = draw(coordinate_sets(span=6, far=far))
    steps = np.array([1, *np.broadcast_to(scale, 3)])
    coarse = fine // steps
    if draw(st.booleans()):
        coarse = np.concatenate([coarse, draw(coordinate_sets(span=3, far=False)), coarse + [0, 1, 0, 0]])
    coarse = np.unique(coarse, axis=0)
    coarse = coarse[draw(permutations(len(coarse)))]
    coarse = coarse[: draw(st.integers(0, len(coarse)))]
    width = draw(st.integers(1, 4)) if channels is None else channels
    return scale, coarse, draw(features(len(coarse), width, integers=False)), fine


def coarse_and_fine(coarse, feats, fine, stride, **tensor):
    x = from_numpy(coarse, feats, stride=stride, batch_size=3, **tensor)
    return x, from_numpy(fine, np.zeros((len(fine), 1)), batch_size=3)


@pytest.mark.parametrize("name", UPSAMPLINGS)
@given(case=cases())
def test_upsampling_equals_the_oracle(name, case):
    scale, coarse, feats, fine = case
    x, skip = coarse_and_fine(coarse, feats, fine, scale)
    y = getattr(ops, name)(x, scale, out=skip)
    want = getattr(oracle, name)(coarse, feats, fine, scale)
    assert y.key is skip.key and y.stride == (1, 1, 1)
    np.testing.assert_allclose(to_numpy(y.feats), want, rtol=1e-5, atol=1e-5)
    if name == "upsample_nearest":
        np.testing.assert_array_equal(to_numpy(y.feats), want)


@given(case=cases(), stride=st.one_of(st.none(), AXES), data=st.data())
def test_unpooling_equals_the_oracle(case, stride, data):
    kernel, coarse, feats, fine = case
    steps = kernel if stride is None else stride
    x, skip = coarse_and_fine(coarse, feats, fine, steps)
    y = ops.pool_transpose3d(x, kernel, stride, out=skip)
    want = oracle.pool_transpose3d(coarse, feats, fine, kernel, steps)
    assert y.key is skip.key and y.stride == (1, 1, 1)
    np.testing.assert_allclose(to_numpy(y.feats), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*UPSAMPLINGS, "pool_transpose3d"])
@given(case=cases(), data=st.data())
def test_the_gradient_is_the_transpose(name, case, data):
    """Every value is linear in the features: unit vectors through the oracle give the matrix."""
    scale, coarse, feats, fine = case
    x, skip = coarse_and_fine(coarse, feats, fine, scale)
    g = data.draw(features(len(fine), feats.shape[1], integers=False))
    op = getattr(ops, name)
    _, (got,) = mx.vjp(lambda f: op(x.replace(f), scale, out=skip).feats, [x.feats], [mx.array(g)])
    matrix = getattr(oracle, name)(coarse, np.eye(len(coarse)), fine, scale)
    np.testing.assert_allclose(to_numpy(got), matrix.T @ g, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*UPSAMPLINGS, "pool_transpose3d"])
@given(case=cases(far=False), data=st.data())
def test_laws(name, case, data):
    scale, coarse, feats, fine = case
    op = getattr(ops, name)

    def f(coords, feats):
        x, skip = coarse_and_fine(coords, feats, fine, scale)
        return active_part(op(x, scale, out=skip))

    invariants.check_permutation_equivariance(f, coarse, feats, data.draw(permutations(len(coarse))))
    invariants.check_linearity(f, coarse, feats, feats[::-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*UPSAMPLINGS, "pool_transpose3d"])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_types_and_poisoned_padding(name, dtype):
    rng = np.random.default_rng(0)
    fine = np.unique(rng.integers(-4, 5, (90, 4)) % [2, 99, 99, 99], axis=0)
    coarse = np.unique(fine // [1, 2, 2, 2], axis=0)[::2]
    x, skip = coarse_and_fine(coarse, rng.normal(size=(len(coarse), 3)), fine, 2, dtype=dtype)
    skip = skip.with_capacity(len(fine) + 4)
    op = getattr(ops, name)
    y = op(x, 2, out=skip)
    want = getattr(oracle, name)(coarse, to_numpy(x.feats), fine, 2)
    unit = 2.0 ** (-11 if dtype == mx.float16 else -8)
    assert y.dtype == dtype and y.capacity == len(fine) + 4
    assert np.all(np.abs(to_numpy(y.feats)[: len(fine)] - want) <= 1.01 * unit * np.abs(want) + 1e-6)
    assert not to_numpy(y.feats)[len(fine) :].any()
    padded = poisoned(x)
    np.testing.assert_array_equal(to_numpy(op(padded, 2, out=skip).feats), to_numpy(y.feats))
    gradient = mx.grad(lambda f: op(padded.replace(f), 2, out=skip).feats.sum())(padded.feats)
    assert gradient.dtype == dtype and np.isfinite(to_numpy(gradient)).all()
    assert not to_numpy(gradient)[len(coarse) :].any()


@pytest.mark.parametrize("name", [*UPSAMPLINGS, "pool_transpose3d"])
def test_no_rows(name):
    none, op = np.zeros((0, 4), np.int32), getattr(ops, name)
    for coarse, fine in ((none, none), (none, np.array([[1, 2, 3, 4]])), (np.array([[1, 2, 3, 4]]), none)):
        x, skip = coarse_and_fine(coarse, np.ones((len(coarse), 2)), fine, 2)
        y = op(x, 2, out=skip)
        assert y.feats.tolist() == [[0.0, 0.0]] * len(fine)
        gradient = mx.grad(lambda f, x=x, s=skip: op(x.replace(f), 2, out=s).feats.sum())(x.feats)
        assert gradient.tolist() == [[0.0, 0.0]] * len(coarse)


@pytest.mark.parametrize("name", UPSAMPLINGS)
def test_the_default_target_is_the_live_parent(name):
    rng = np.random.default_rng(0)
    coords = rng.permutation(np.unique(rng.integers(0, 9, (60, 4)) % [2, 9, 9, 9], axis=0))
    x = from_numpy(coords, rng.normal(size=(len(coords), 2)))
    down = ops.avg_pool3d(x, 2)
    maps = down.manager.stats()["maps_built"]
    y = getattr(ops, name)(down, 2)
    assert y.key is x.key
    assert y.feats.tolist() == getattr(ops, name)(down, 2, out=x).feats.tolist()
    assert down.manager.stats()["maps_built"] == maps  # nearest reads the pooling's map
    with pytest.raises(IdentityError, match=f"{name} needs out="):
        getattr(ops, name)(from_numpy([[0, 0, 0, 0]], [[1.0]], stride=2), 2)
    with pytest.raises(StrideError):
        getattr(ops, name)(down, 3, out=x)
    with pytest.raises(StrideError, match="out has stride"):
        getattr(ops, name)(down, 2, out=down)
    layer = ms.nn.UpsampleNearest(2) if name == "upsample_nearest" else ms.nn.UpsampleTrilinear(2)
    assert layer(down).feats.tolist() == y.feats.tolist()
    assert repr(layer) == f"{type(layer).__name__}(scale=(2, 2, 2))"


@given(case=cases())
def test_children_all_get_the_value_of_their_site(case):
    scale, coarse, feats, _ = case
    y = ops.subdivide(poisoned(from_numpy(coarse, feats, stride=scale, batch_size=3)), scale)
    steps = np.broadcast_to(scale, 3).tolist()
    sites = [
        (batch, *(c * s + k for c, s, k in zip(at, steps, step)))
        for batch, *at in coarse.tolist()
        for step in np.ndindex(*steps)
    ]
    want = np.array(sorted(sites), np.int32).reshape(-1, 4)
    coords, values = active_part(y)
    assert y.stride == (1, 1, 1) and coords.tolist() == want.tolist()
    np.testing.assert_array_equal(values, oracle.upsample_nearest(coarse, feats, want, scale))


def test_a_latent_is_subdivided_as_often_as_its_stride_says():
    x = ms.SparseTensor(mx.array([[1, -1, 0, 2]]), mx.array([[3.0]]), stride=4)
    layer = ms.nn.Subdivide()
    once = layer(x)
    assert once.stride == (2, 2, 2) and once.feats.tolist() == [[3.0]] * 8
    assert repr(layer) == "Subdivide(scale=(2, 2, 2))"
    assert ops.subdivide(once).num_active == 64 and layer(x).key is once.key
    with pytest.raises(StrideError, match="SparseTensor.*stride="):
        layer(layer(once))
    gradient = mx.grad(lambda f: (layer(x.replace(f)).feats * mx.arange(8.0)[:, None]).sum())(x.feats)
    assert gradient.tolist() == [[28.0]]
    inside = ms.SparseTensor(mx.array([[0, 1, 0, 2]]), mx.array([[3.0]]), stride=2, spatial_shape=3)
    assert layer(inside).spatial_shape == (6, 6, 6)
    assert ops.subdivide(x, capacity=20).feats.shape == layer(x, capacity=20).feats.shape == (20, 1)


def test_unpooling_layer_and_errors():
    x = from_numpy([[0, 0, 0, 0], [0, 1, 0, 0]], [[1.0], [5.0]], stride=(2, 1, 1))
    out = mx.array([[0, 2, 0, 0], [0, 0, 0, 0], [0, 4, 0, 0], [0, 5, 0, 0]])
    layer = ms.nn.PoolTranspose3d((3, 1, 1), (2, 1, 1))
    assert layer(x, out=out).feats.tolist() == [[3.0], [1.0], [5.0], [0.0]]
    with pytest.raises(ShapeError, match="kernel_size"):
        ops.pool_transpose3d(x, 0, out=out)
    with pytest.raises(StrideError):
        ops.pool_transpose3d(x, 2, out=out)


def test_constants_are_kept_and_infinities_stay_where_they_are():
    fine = np.argwhere(np.ones((1, 8, 8, 8)))
    coarse = np.argwhere(np.ones((1, 4, 4, 4)))[::3]
    x, skip = coarse_and_fine(coarse, np.full((len(coarse), 1), 0.1, np.float32), fine, 2)
    values = to_numpy(ops.upsample_trilinear(x, 2, out=skip).feats)
    assert np.all((values == 0) | (np.abs(values - np.float32(0.1)) < 1e-7))
    wild = x.feats.at[0].add(float("inf"))
    y = to_numpy(ops.upsample_trilinear(x.replace(wild), 2, out=skip).feats)
    reached = np.array([0 in w for w in oracle.trilinear_weights(coarse, fine, 2)])
    assert np.isinf(y[reached]).all() and np.array_equal(y[~reached], values[~reached])


# --- points -----------------------------------------------------------------------------------------------


@given(data=st.data(), wide=st.booleans())
def test_trilinear_devoxelization_equals_the_oracle(data, wide):
    coords, feats = data.draw(sites(integers=False, far=False, min_sites=1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    size, origin = np.array([0.5, 2.0, 1.0]), np.array([-1.0, 3.0, 0.25])
    centres = origin + (coords[:, 1:] + 0.5) * size
    # Eighths of a voxel, which are exact in float32 too; some are voxel centres.
    points = np.repeat(centres, 3, axis=0) + rng.integers(-8, 9, (3 * len(coords), 3)) / 8 * size
    batch = rng.integers(0, 3, len(points))
    cloud = ms.voxelize(centres, mx.array(feats), tuple(size), origin=tuple(origin), batch=coords[:, 0])
    got = cloud.devoxelize(points if wide else mx.array(points.astype(np.float32)), "trilinear", batch=batch)
    sites_, values = active_part(cloud.tensor)
    want = oracle.devoxelize_trilinear(points, sites_, values, size, batch=batch, origin=origin)
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "trilinear"])
def test_devoxelization_of_coarser_levels(mode):
    """As SPVCNN reads each level of its U-Net at the points."""
    rng = np.random.default_rng(0)
    points, batch = rng.uniform(-3, 3, (60, 3)), rng.choice([0, 2], 60)
    origin, size, step = (0.2, -0.1, 0.0), 0.3, (2, 3, 1)
    cloud = ms.voxelize(points, rng.normal(size=(60, 2)).astype(np.float32), size, batch=batch, origin=origin)
    level = ops.avg_pool3d(cloud.tensor, step)
    elsewhere, items = np.concatenate([points + 0.1, [[np.nan, 0, 0]]]), np.append(batch, 1)
    read = oracle.devoxelize_nearest if mode == "nearest" else oracle.devoxelize_trilinear
    want = read(elsewhere, *active_part(level), size * np.array(step), batch=items, origin=origin)
    got = cloud.devoxelize(elsewhere, mode, feats=level, batch=items)
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5, atol=1e-6)
    if mode == "nearest":
        fine = ops.upsample_nearest(level, step, out=cloud.tensor)
        assert mx.array_equal(cloud.devoxelize(feats=level), cloud.devoxelize(feats=fine))
        coarse = ms.Voxels(level, cloud.point_to_voxel, cloud.counts, origin, (size,) * 3)
        with pytest.raises(StrideError, match=r"no multiple of the voxels' \(2, 3, 1\): bring it there"):
            coarse.devoxelize(feats=cloud.tensor)


def test_points_at_centres_outside_and_not_finite():
    cloud = ms.voxelize(np.array([[0.5, 0.5, 0.5], [1.5, 0.5, 0.5]]), mx.array([[2.0], [4.0]]), 1.0)
    points = np.array(
        [[0.5, 0.5, 0.5], [1.0, 0.5, 0.5], [0.75, 0.9, 0.1], [9.0, 0, 0], [np.nan, 0, 0], [-0.5, 0.5, 0.5]]
    )
    assert to_numpy(cloud.devoxelize(points, "trilinear")).ravel().tolist() == [2.0, 3.0, 2.5, 0, 0, 0]
    with pytest.raises(MLXSparseError, match="needs points"):
        cloud.devoxelize(mode="trilinear")
    with pytest.raises(MLXSparseError, match='"nearest" or "trilinear"'):
        cloud.devoxelize(points, "cubic")


def test_a_constant_field_and_its_gradient():
    rng = np.random.default_rng(0)
    points = rng.uniform(-3, 3, (400, 3))
    cloud = ms.voxelize(points, mx.full((400, 2), 0.7), 0.4)
    elsewhere = rng.uniform(-3, 3, (300, 3))
    field = cloud.tensor.replace(mx.full(cloud.tensor.feats.shape, 0.7))
    values = to_numpy(cloud.devoxelize(elsewhere, "trilinear", feats=field))
    known = values[:, 0] != 0
    assert known.any() and not known.all()
    np.testing.assert_allclose(values[known], 0.7, rtol=2e-7)
    gradient = mx.grad(lambda f: cloud.devoxelize(elsewhere, "trilinear", feats=field.replace(f)).sum())(
        field.feats
    )
    # Weights sum to 1 at each point that is near a voxel.
    assert to_numpy(gradient)[:, 0].sum() == pytest.approx(known.sum(), rel=1e-5)


def test_many_points_of_one_voxel_lose_nothing_and_threads_change_no_bit(monkeypatch):
    x = mx.array(np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32))
    rng = np.random.default_rng(1)
    rows = rng.integers(-1, 300, (40_000, 8)).astype(np.int32)
    rows[::2] = 7
    weights = np.where(rows < 0, 0, rng.random(rows.shape)).astype(np.float32)
    g = np.full((40_000, 5), 0.1, np.float32)

    def run(threads):
        monkeypatch.setattr(host, "num_threads", lambda: threads)
        (y,), (dx,) = mx.vjp(
            lambda x: interpolate.interpolate(x, rows, weights, len(rows)), [x], [mx.array(g)]
        )
        return to_numpy(y), to_numpy(dx)

    one, more = run(1), run(3)
    want = np.bincount(rows[rows >= 0], weights=weights[rows >= 0].astype(np.float64)) * np.float64(g[0, 0])
    np.testing.assert_allclose(one[1], np.repeat(want[:, None], 5, axis=1), rtol=2e-6)
    for a, b in zip(one, more):
        np.testing.assert_array_equal(a, b)


def test_trilinear_of_no_channels():
    fine = from_numpy(np.array([[0, 0, 0, 0], [0, 1, 0, 3]], np.int32), np.ones((2, 0)), batch_size=1)
    coarse = ops.max_pool3d(fine, 2)
    assert ops.upsample_trilinear(coarse, 2).feats.shape == (2, 0)
    assert mx.grad(lambda f: ops.upsample_trilinear(coarse.replace(f), 2).feats.sum())(coarse.feats).size == 0
