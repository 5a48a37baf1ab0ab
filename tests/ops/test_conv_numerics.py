"""Precision, memory layout, padding rows, capacity and repeatability of convolution and pooling."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from mlxsparse import ops
from mlxsparse.backend.library import on_cuda
from mlxsparse.errors import CapacityError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy, to_numpy
from mlxsparse.testing.strategies import padded

pytestmark = pytest.mark.usefixtures("device")


def scene(channels=4, seed=0, size=5, batches=2):
    rng = np.random.default_rng(seed)
    coords = rng.permutation(np.argwhere(rng.random((batches, size, size, size)) < 0.4)).astype(np.int32)
    coords[:, 1:] -= 2
    return coords, rng.standard_normal((len(coords), channels)).astype(np.float32)


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- precision --------------------------------------------------------------------------------------------


def convolutions(coords, feats, weight, bias):
    """name -> (operator on a tensor, the oracle's features, the sum of |terms| that bounds rounding)."""
    sizes = np.abs(feats), np.abs(weight), None if bias is None else np.abs(bias)
    where = {"stride": 2, "padding": 1}
    w, b = mx.array(weight), None if bias is None else mx.array(bias)
    reached = oracle.generative_support(coords, 3, 2, 1)

    def cast(x):
        return w.astype(x.dtype), None if b is None else b.astype(x.dtype)

    return {
        "subm": (
            lambda x: ops.subm_conv3d(x, *cast(x)),
            oracle.subm_conv3d(coords, feats, weight, bias),
            oracle.subm_conv3d(coords, *sizes),
        ),
        "conv": (
            lambda x: ops.conv3d(x, *cast(x), **where),
            oracle.conv3d(coords, feats, weight, bias, **where)[1],
            oracle.conv3d(coords, *sizes, **where)[1],
        ),
        "generative": (
            lambda x: ops.generative_conv_transpose3d(x, *cast(x), **where),
            oracle.conv_transpose3d(
                coords, feats, weight, bias, **where, dilation=1, groups=1, out_coords=reached
            ),
            oracle.conv_transpose3d(coords, *sizes, **where, dilation=1, groups=1, out_coords=reached),
        ),
    }


@pytest.mark.parametrize("channels", [1, 4, 24])
@pytest.mark.parametrize("name", ["subm", "conv", "generative"])
def test_float32(name, channels):
    coords, feats = scene(channels)
    f, want, scale = convolutions(coords, feats, normal(5, 3, 3, 3, channels), normal(5))[name]
    _, got = active_part(f(from_numpy(coords, feats, stride=2)))
    assert (np.abs(got - want) <= 1e-5 * np.abs(want).max()).all()
    # Near fp32 cuts each number into 11 + 11 bits and leaves out the product of the rests: docs/kernels.md.
    near = mx.default_device().type == mx.DeviceType.gpu and on_cuda()
    assert (np.abs(got - want) <= (3 * 2**-20 if near else 1e-6) * scale).all()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", ["subm", "conv", "generative"])
def test_half_types_round_once(name, with_bias, dtype):
    """Sums in float32, one rounding at the end: half a unit in the last place of the output."""
    coords, feats = scene(16)
    feats, weight, bias = (
        to_numpy(mx.array(a).astype(dtype)) for a in (feats, normal(5, 3, 3, 3, 16), normal(5))
    )
    f, want, scale = convolutions(coords, feats, weight, bias if with_bias else None)[name]
    y = f(from_numpy(coords, feats, dtype, stride=2))
    assert y.dtype == dtype
    half_unit = {mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[dtype]
    assert (np.abs(active_part(y)[1] - want) <= half_unit * np.abs(want) + 2e-6 * scale).all()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_half_type_gradients_round_once(dtype):
    coords, feats = scene(8)
    feats, weight, g = (
        to_numpy(mx.array(a).astype(dtype))
        for a in (feats, normal(8, 3, 3, 3, 8), normal(len(coords), 8, seed=2))
    )
    x, w, b = from_numpy(coords, feats, dtype), mx.array(weight).astype(dtype), mx.zeros((8,), dtype)
    _, got = mx.vjp(
        lambda v, w, b: ops.subm_conv3d(x.replace(v), w, b).feats,
        [x.feats, w, b],
        [mx.array(g).astype(dtype)],
    )
    where = {"out_coords": coords, "padding": 1}
    want = oracle.conv_gradients(coords, feats, weight, g, **where)
    scales = oracle.conv_gradients(coords, np.abs(feats), np.abs(weight), np.abs(g), **where)
    half_unit = {mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[dtype]
    for one, other, scale in zip(got, want, scales):
        assert one.dtype == dtype
        assert (np.abs(to_numpy(one) - other) <= half_unit * np.abs(other) + 2e-6 * scale).all()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("pool", ["sum_pool3d", "avg_pool3d"])
def test_half_type_pools_round_once(pool, dtype):
    coords, feats = scene(3)
    feats = to_numpy(mx.array(feats).astype(dtype))
    y = getattr(ops, pool)(from_numpy(coords, feats, dtype), 3)
    want, scale = (getattr(oracle, pool)(coords, f, 3)[1] for f in (feats, np.abs(feats)))
    half_unit = {mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[dtype]
    assert y.dtype == dtype
    assert (np.abs(active_part(y)[1] - want) <= half_unit * np.abs(want) + 2e-6 * scale).all()


# --- padding rows and capacity ----------------------------------------------------------------------------

WEIGHT = mx.array(normal(3, 3, 3, 3, 4))
BIAS = mx.array(normal(3))
ROOMY = 4000
OPERATORS = {
    "subm": lambda x: ops.subm_conv3d(x, WEIGHT, BIAS),
    "conv": lambda x: ops.conv3d(x, WEIGHT, BIAS, stride=2, padding=1),
    "conv_capacity": lambda x: ops.conv3d(x, WEIGHT, BIAS, stride=2, padding=1, capacity=ROOMY),
    "parents": lambda x: ops.conv3d(x, WEIGHT, BIAS, stride=2, padding=1, support="parents"),
    "generative": lambda x: ops.generative_conv_transpose3d(x, WEIGHT, BIAS, stride=2, capacity=ROOMY),
    "transpose": lambda x: ops.conv_transpose3d(x, WEIGHT, BIAS, stride=2, out=PADDED_TARGET()),
    "max": lambda x: ops.max_pool3d(x, 2),
    "sum": lambda x: ops.sum_pool3d(x, 3, 2, support="parents"),
    "avg": lambda x: ops.avg_pool3d(x, 2),
}


def PADDED_TARGET():
    rows = np.random.default_rng(9).permutation(np.argwhere(np.ones((2, 3, 3, 3)))).astype(np.int32)
    coords, feats = padded(rows, np.zeros((len(rows), 1), np.float32), 60)
    return from_numpy(coords, feats, active_rows=len(rows), batch_size=2)


def with_padding(coords, feats, extra, fill=0.0):
    more_coords, more_feats = padded(coords, feats, len(coords) + extra, fill)
    return from_numpy(more_coords, more_feats, stride=2, active_rows=len(coords))


def poison(x):
    """The leaves with NaN in the padding rows of features, put together again as MLX's transforms do."""
    live = mx.arange(x.capacity)[:, None] < x.active_rows
    return tree_map(
        lambda leaf: (
            mx.where(live, leaf, float("nan"))
            if isinstance(leaf, mx.array) and leaf.dtype == mx.float32
            else leaf
        ),
        x,
    )


@pytest.mark.parametrize("how", ["constructor", "replace", "leaves"])
@pytest.mark.parametrize("name", OPERATORS)
def test_padding_rows_are_never_read(name, how):
    coords, feats = scene()
    f = OPERATORS[name]
    want_coords, want = active_part(f(from_numpy(coords, feats, stride=2)))
    x = with_padding(coords, feats, 7, fill=np.nan if how == "constructor" else 0.0)
    if how == "replace":
        x = x.replace(mx.array(padded(coords, feats, x.capacity, np.nan).feats))
    if how == "leaves":
        x = poison(x)
        assert np.isnan(np.array(x.feats)[len(coords) :]).all()
    else:
        assert not np.array(x.feats)[len(coords) :].any()
    y = f(x)
    got_coords, got = active_part(y)
    assert np.array_equal(got_coords, want_coords) and np.array_equal(got, want)
    assert (np.array(y.coords)[len(got) :] == [-1, 0, 0, 0]).all()
    assert not np.array(y.feats)[len(got) :].any()
    assert np.array(y.batch_counts).tolist() == np.bincount(want_coords[:, 0], minlength=2).tolist()


@pytest.mark.parametrize("name", OPERATORS)
def test_padding_rows_of_a_cotangent_are_never_read(name):
    coords, feats = scene()
    f = OPERATORS[name]
    plain, x = from_numpy(coords, feats, stride=2), with_padding(coords, feats, 7)
    rows = int(f(plain).active_rows.item())
    g = normal(int(f(plain).feats.shape[0]), f(plain).num_channels, seed=4)
    g[rows:] = 0
    _, (want,) = mx.vjp(lambda v: f(plain.replace(v)).feats, [plain.feats], [mx.array(g)])
    wide = f(x)
    poisoned = np.full(wide.feats.shape, np.nan, np.float32)
    poisoned[:rows] = g[:rows]
    _, (got,) = mx.vjp(lambda v: f(x.replace(v)).feats, [x.feats], [mx.array(poisoned)])
    assert np.array_equal(np.array(got)[: len(coords)], np.array(want))
    assert not np.array(got)[len(coords) :].any()


def test_padding_rows_of_a_cotangent_stay_out_of_weight_and_bias():
    coords, feats = scene()
    plain, x = from_numpy(coords, feats), with_padding(coords, feats, 7)
    g = normal(len(coords), 3, seed=4)

    def gradients(x, g):
        return mx.vjp(lambda w, b: ops.subm_conv3d(x, w, b).feats, [WEIGHT, BIAS], [mx.array(g)])[1]

    poisoned = np.concatenate([g, np.full((7, 3), np.nan, np.float32)])
    for got, want in zip(gradients(x, poisoned), gradients(plain, g)):
        assert np.array_equal(np.array(got), np.array(want))


@pytest.mark.parametrize("pool", [ops.global_sum_pool, ops.global_avg_pool, ops.global_max_pool])
@pytest.mark.parametrize("how", ["plain", "leaves"])
def test_padding_rows_stay_out_of_global_pools(pool, how):
    coords, feats = scene()
    x = with_padding(coords, feats, 7)
    want = pool(from_numpy(coords, feats))
    assert np.array_equal(np.array(pool(poison(x) if how == "leaves" else x)), np.array(want))


def test_capacity_pads_or_raises():
    coords, feats = scene()
    x = from_numpy(coords, feats)
    weight = mx.ones((1, 2, 2, 2, 4))
    exact = ops.conv3d(x, weight, stride=2)
    rows = exact.capacity
    roomy = ops.conv3d(x, weight, stride=2, capacity=rows + 5)
    assert roomy.capacity == rows + 5 and int(roomy.active_rows.item()) == rows
    assert np.array_equal(active_part(roomy)[1], active_part(exact)[1])
    with pytest.raises(CapacityError, match=f"{rows}"):
        mx.eval(ops.conv3d(x, weight, stride=2, capacity=rows - 1).check().feats)


def test_a_fixed_capacity_is_kept_or_asked_for():
    coords, feats = scene()
    fixed = from_numpy(coords, feats).with_capacity(len(coords) + 9)
    assert fixed.capacity == len(coords) + 9
    weight = mx.ones((1, 2, 2, 2, 4))
    assert ops.conv3d(fixed, weight, stride=2).capacity == fixed.capacity  # K == s: parents
    assert ops.conv3d(fixed, mx.ones((1, 3, 3, 3, 4)), stride=2, support="parents").capacity == fixed.capacity
    with pytest.raises(CapacityError, match="capacity="):
        ops.conv3d(fixed, mx.ones((1, 3, 3, 3, 4)), padding=1)
    with pytest.raises(CapacityError, match="capacity="):
        ops.generative_conv_transpose3d(fixed, weight)
    trimmed = ops.conv3d(fixed, weight, stride=2).compact()
    assert trimmed.capacity == int(trimmed.active_rows.item())


# --- memory layout and repeatability ----------------------------------------------------------------------


def strided(array):
    """The same values as a view with gaps, transposed in memory."""
    wide = mx.concatenate([array[..., None], mx.full((*array.shape, 1), 99).astype(array.dtype)], axis=-1)
    axes = list(range(wide.ndim))
    turned = mx.contiguous(wide.transpose(axes[::-1]))
    mx.eval(turned)
    return turned.transpose(axes[::-1])[..., 0]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["subm", "conv", "max", "avg"])
def test_views_in_any_memory_order(name, dtype):
    from mlxsparse import SparseTensor

    coords, feats = scene()
    w, b = WEIGHT.astype(dtype), BIAS.astype(dtype)
    f = {
        "subm": lambda x, w, b: ops.subm_conv3d(x, w, b),
        "conv": lambda x, w, b: ops.conv3d(x, w, b, stride=2, padding=1),
        "max": lambda x, w, b: ops.max_pool3d(x, 2),
        "avg": lambda x, w, b: ops.avg_pool3d(x, 3, 2),
    }[name]
    c, v = mx.array(coords), mx.array(feats).astype(dtype)

    def run(c, v, w, b, turn):
        x = SparseTensor(c, v)
        y = f(x, w, b)
        g = turn(mx.array(normal(*y.feats.shape, seed=8)).astype(dtype))
        _, grads = mx.vjp(lambda v, w, b: f(x.replace(v), w, b).feats, [v, w, b], [g])
        return [to_numpy(a) for a in (y.coords, y.feats, *grads)]

    straight = run(c, v, w, b, lambda a: a)
    views = run(strided(c), strided(v), strided(w), strided(b), strided)
    for one, other in zip(straight, views):
        assert np.array_equal(one, other)


def test_a_broadcast_cotangent():
    """`sum()` hands back a cotangent of stride 0."""
    coords, feats = scene()
    x = from_numpy(coords, feats)
    got = mx.grad(lambda v: ops.subm_conv3d(x.replace(v), WEIGHT).feats.sum())(x.feats)
    want, _, _ = oracle.conv_gradients(
        coords, feats, np.array(WEIGHT), np.ones((len(coords), 3)), out_coords=coords, padding=1
    )
    assert np.allclose(np.array(got), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [3, 32])
def test_runs_give_the_same_bits(channels):
    coords, feats = scene(channels, size=9)
    w = mx.array(normal(32, 3, 3, 3, channels))
    runs = set()
    for _ in range(20):
        x = from_numpy(coords, feats)
        y = ops.conv3d(ops.subm_conv3d(x, w), mx.array(normal(8, 2, 2, 2, 32)), stride=2)
        runs.add(np.array(y.feats).tobytes())
    assert len(runs) == 1


def test_the_caller_keeps_his_arrays():
    """An edit in place after construction does not reach the tensor's coordinates."""
    from mlxsparse import SparseTensor

    coords, feats = scene()
    mine = mx.array(coords)
    x = SparseTensor(mine, mx.array(feats))
    mine[0] = mx.array([0, 99, 99, 99])
    mx.eval(mine)
    assert np.array_equal(np.array(x.coords), coords)
