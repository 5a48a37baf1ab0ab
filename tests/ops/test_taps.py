"""Convolutions with some of a kernel's taps: equal to the whole kernel with zeros, on the same map."""

from __future__ import annotations

import copy

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxsparse import SparseTensor, nn, ops
from mlxsparse.errors import ShapeError

LAYERS = {
    "subm": lambda g: nn.SubmConv3d(4, 6, 3, groups=g),
    "strided": lambda g: nn.Conv3d(4, 6, 3, 2, 1, groups=g),
    "windows": lambda g: nn.Conv3d(4, 6, 2, 2, groups=g),
    "generative": lambda g: nn.GenerativeConvTranspose3d(4, 6, 3, 1, groups=g),
}


def tensor(rng, n, stride=1):
    sites = rng.permutation(6**3 * 2)[:n]
    coords = np.stack([sites // 216, sites // 36 % 6 - 3, sites // 6 % 6 - 3, sites % 6 - 3], axis=1)
    feats = mx.array(rng.standard_normal((n, 4)).astype(np.float32))
    return SparseTensor(coords.astype(np.int32), feats, stride=stride, batch_size=3)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_taps_equal_a_kernel_with_zeros(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = tensor(rng, data.draw(st.sampled_from([0, 1, 40])))
    whole = LAYERS[data.draw(st.sampled_from(sorted(LAYERS)))](data.draw(st.sampled_from([1, 2])))
    co, *size, ci = whole.weight.shape
    taps = np.flatnonzero(rng.random(np.prod(size)) < 0.5)
    keep = np.zeros(np.prod(size), np.float32)
    keep[taps] = 1
    whole.weight = whole.weight * mx.array(keep.reshape(1, *size, 1))
    some = copy.copy(whole)
    some.keep_taps(taps.tolist())
    assert some.weight.shape == (co, len(taps), ci)

    def loss(layer, w, feats):
        layer.weight = w
        return (layer(x.replace(feats)).feats ** 2).sum()

    a, b = whole(x), some(x)
    np.testing.assert_array_equal(np.array(a.coords), np.array(b.coords))
    np.testing.assert_allclose(np.array(a.feats), np.array(b.feats), atol=1e-5)
    if x.num_active and len(taps):
        da, xa = mx.grad(lambda w, f: loss(whole, w, f), argnums=(0, 1))(whole.weight, x.feats)
        db, xb = mx.grad(lambda w, f: loss(some, w, f), argnums=(0, 1))(some.weight, x.feats)
        da = np.array(da).reshape(co, -1, ci)[:, taps]
        np.testing.assert_allclose(da, np.array(db), atol=1e-3)
        np.testing.assert_allclose(np.array(xa), np.array(xb), atol=1e-3)


def test_the_decoder_s_transpose_and_the_kernel_map_is_shared():
    x = tensor(np.random.default_rng(0), 60)
    down, up = nn.Conv3d(4, 4, 2, 2), nn.ConvTranspose3d(4, 3, 2, 2)
    y = down(x)
    taps = [0, 3, 5]
    dense = np.array(up.weight).reshape(3, 8, 4)
    dense[:, [1, 2, 4, 6, 7]] = 0
    expected = ops.conv_transpose3d(y, mx.array(dense.reshape(3, 2, 2, 2, 4)), up.bias, stride=2, out=x)
    before = x.manager.stats()["maps_built"]
    up.keep_taps(taps)
    np.testing.assert_allclose(np.array(up(y, out=x).feats), np.array(expected.feats), atol=1e-6)
    up.keep_taps([3])  # further, of those that are there
    up(y, out=x)
    assert x.manager.stats()["maps_built"] == before
    found = x.manager.kernel_map(x.key, y.key, next(iter(x.key._record.maps[y.key._record]))[1])
    assert found.select((0, 3, 5)) is found.select((0, 3, 5))
    assert len(found.select((0, 3, 5)).in_rank) == sum(np.diff(found.tap_ptr)[[0, 3, 5]])
    assert "taps=1" in repr(up)


def test_taps_that_do_not_fit_are_refused():
    x = tensor(np.random.default_rng(0), 10)
    for index in ((1, 0), (0, 27), (-1, 2), (2, 2)):
        with pytest.raises(ShapeError, match="ascend"):
            ops.Taps((3, 3, 3), index)
    with pytest.raises(ShapeError, match="taps= names 2"):
        ops.subm_conv3d(x, mx.ones((2, 3, 4)), taps=ops.Taps((3, 3, 3), (0, 1)))
    with pytest.raises(ShapeError, match="with taps="):
        ops.subm_conv3d(x, mx.ones((2, 3, 3, 3, 4)), taps=ops.Taps((3, 3, 3), (0, 1)))
    layer = nn.SubmConv3d(4, 2)
    layer.keep_taps([1, 2])
    with pytest.raises(ShapeError, match="not all among"):
        layer.keep_taps([3])


@pytest.mark.parametrize(
    "arguments", [(3, (13,)), ((3, 3, 3), (13.5,)), ((3, 3), (1,)), ((3,) * 3, 13), ((3.0, 3, 3), (1,))]
)
def test_taps_that_are_no_numbers(arguments):
    with pytest.raises(ShapeError, match="Taps takes three ints"):
        ops.Taps(*arguments)


def test_a_list_of_taps_that_changes_later_changes_nothing():
    size, index = [3, 1, 1], [0, 2]
    taps = ops.Taps(size, index)
    size[0], index[0] = 1, 7
    assert taps == ops.Taps((3, 1, 1), (0, 2)) and hash(taps) == hash(ops.Taps((3, 1, 1), (0, 2)))


def test_taps_of_numpy_are_as_ints():
    wanted = ops.Taps((3, 3, 3), (0, 13))
    for index in (np.array([0, 13]), (np.int64(0), np.int32(13))):
        taps = ops.Taps(np.array([3, 3, 3]), index)
        assert taps == wanted and hash(taps) == hash(wanted)
        assert {type(t) for t in (*taps.kernel_size, *taps.index)} == {int}
        layer, other = nn.SubmConv3d(4, 2), nn.SubmConv3d(4, 2)
        other.update(layer.parameters())
        layer.keep_taps(index)
        other.keep_taps([0, 13])
        x = tensor(np.random.default_rng(0), 10)
        assert mx.array_equal(layer(x).feats, other(x).feats)


@pytest.mark.parametrize("index", [3, np.array(3), np.array([0.0, 1.0]), np.array([True]), [True], "a", None])
def test_taps_to_keep_that_are_no_numbers(index):
    layer = nn.SubmConv3d(4, 2)
    with pytest.raises(ShapeError, match="ints"):
        layer.keep_taps(index)
    assert layer.weight.ndim == 5
