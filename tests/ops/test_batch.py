"""Batches put together and taken apart, and one vector for each item, against the oracle."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError, StrideError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy, to_numpy
from mlxsparse.testing.strategies import features, sites
from tests.numeric import poisoned

pytestmark = pytest.mark.usefixtures("device")

PARTS = st.lists(st.tuples(sites(channels=2, max_sites=8), st.integers(3, 4)), min_size=1, max_size=4)


@given(PARTS)
def test_collate_equals_the_oracle(parts):
    tensors = [from_numpy(*s, batch_size=b, stride=(2, 1, 3)) for s, b in parts]
    y = ops.collate([poisoned(x) if i % 2 else x for i, x in enumerate(tensors)])
    coords, feats, size = oracle.collate([(*s, b) for s, b in parts])
    got_coords, got = active_part(y)
    assert got_coords.tolist() == coords.tolist() and got.tolist() == feats.tolist()
    assert y.batch_size == size and y.stride == (2, 1, 3)
    assert y.batch_counts.tolist() == np.bincount(coords[:, 0], minlength=size).tolist()


@given(sites(), st.integers(3, 5))
def test_decollate_equals_the_oracle_and_collate_undoes_it(case, size):
    coords, feats = case
    x = from_numpy(coords, feats, batch_size=size)
    for tensor in (x, poisoned(x)):
        items = ops.decollate(tensor)
        assert len(items) == size
        for item, (want_coords, want) in zip(items, oracle.decollate(coords, feats, size)):
            got_coords, got = active_part(item)
            assert got_coords.tolist() == want_coords.tolist() and got.tolist() == want.tolist()
            assert item.batch_size == 1
        back = ops.collate(items)
        order = np.argsort(coords[:, 0], kind="stable")
        got_coords, got = active_part(back)
        assert got_coords.tolist() == coords[order].tolist() and got.tolist() == feats[order].tolist()
        assert back.batch_size == size


@given(sites(min_sites=1), st.data())
def test_gradients_go_to_the_rows_they_came_from(case, data):
    coords, feats = case
    x = poisoned(from_numpy(coords, feats, batch_size=3))
    g = data.draw(features(*feats.shape))
    order = np.argsort(coords[:, 0], kind="stable")

    def loss(f):
        y = ops.collate([t.replace(2 * t.feats) for t in ops.decollate(x.replace(f))])
        return (y.feats[: len(g)] * mx.array(g)).sum()

    gradient = to_numpy(mx.grad(loss)(x.feats))
    np.testing.assert_array_equal(gradient[order], 2 * g)
    assert not gradient[len(coords) :].any()


def test_fixed_capacities_are_kept():
    x = from_numpy([[0, 0, 0, 0], [2, 0, 0, 0]], [[1.0], [2.0]], batch_size=3).with_capacity(5)
    items = ops.decollate(x)
    assert [t.capacity for t in items] == [5, 5, 5] and [t.num_active for t in items] == [1, 0, 1]
    assert ops.collate(items[:2]).capacity == 10
    assert ops.decollate(from_numpy(np.zeros((0, 4)), np.zeros((0, 2)), batch_size=0)) == []


def test_collated_items_do_not_meet_in_a_convolution():
    a = from_numpy([[0, 0, 0, 0]], [[1.0]], spatial_shape=4)
    b = from_numpy([[0, 0, 0, 1]], [[10.0]], spatial_shape=4)
    y = ops.collate([a, b])
    assert y.spatial_shape == (4, 4, 4)
    assert ops.subm_conv3d(y, mx.ones((1, 3, 3, 3, 1))).feats.tolist() == [[1.0], [10.0]]


def test_collate_errors():
    x = from_numpy([[0, 0, 0, 0]], [[1.0]])
    for other, error, match in (
        (from_numpy([[0, 0, 0, 0]], [[1.0]], stride=2), StrideError, r"tensors\[1\] has stride \(2, 2, 2\)"),
        (from_numpy([[0, 0, 0, 0]], [[1.0, 2.0]]), ShapeError, "2 channels"),
        (x.astype(mx.float16), DTypeError, "astype"),
        (from_numpy([[0, 0, 0, 0]], [[1.0]], spatial_shape=3), ShapeError, "spatial_shape"),
        (x.feats, DTypeError, r"tensors\[1\] must be a SparseTensor"),
    ):
        with pytest.raises(error, match=match):
            ops.collate([x, other])
    with pytest.raises(ShapeError, match="at least one"):
        ops.collate([])


# --- one vector for each item -----------------------------------------------------------------------------

BROADCASTS = {"broadcast_add": np.add, "broadcast_mul": np.multiply}


@pytest.mark.parametrize("name", BROADCASTS)
@given(case=sites(), size=st.integers(3, 5), data=st.data())
def test_broadcast_equals_the_oracle_with_its_gradients(name, case, size, data):
    coords, feats = case
    g, ct = data.draw(features(size, feats.shape[1])), data.draw(features(*feats.shape))
    x, op = from_numpy(coords, feats, batch_size=size), getattr(ops, name)
    for tensor in (x, poisoned(x)):
        y = op(tensor, mx.array(g))
        np.testing.assert_array_equal(
            to_numpy(y.feats)[: len(feats)], oracle.broadcast(coords, feats, g, BROADCASTS[name])
        )
        assert not to_numpy(y.feats)[len(feats) :].any()
        full = np.zeros(tensor.feats.shape, np.float32)
        full[: len(ct)] = ct
        _, (dx, dg) = mx.vjp(
            lambda f, g, t=tensor: op(t.replace(f), g).feats, [tensor.feats, mx.array(g)], [mx.array(full)]
        )
        of_g = ct if name == "broadcast_add" else ct * feats
        of_x = ct if name == "broadcast_add" else oracle.broadcast(coords, ct, g, np.multiply)
        np.testing.assert_array_equal(to_numpy(dg), oracle.item_sums(coords, of_g, size))
        np.testing.assert_array_equal(to_numpy(dx)[: len(ct)], of_x)


def test_half_sums_are_float32():
    coords = np.argwhere(np.ones((1, 16, 16, 16)))
    x = from_numpy(coords, np.zeros((4096, 1)), mx.float16)
    g = mx.grad(lambda g: (ops.broadcast_add(x, g).feats * mx.array(0.1, mx.float16)).sum())(
        mx.zeros((1, 1), mx.float16)
    )
    assert g.item() == np.float16(4096 * float(np.float16(0.1)))


def test_broadcast_errors():
    x = from_numpy([[0, 0, 0, 0]], [[1.0, 2.0]], batch_size=2)
    with pytest.raises(ShapeError, match=r"\(2, 2\), got \(2,\)"):
        ops.broadcast_add(x, mx.zeros((2,)))
    with pytest.raises(DTypeError, match="astype"):
        ops.broadcast_mul(x, mx.zeros((2, 2), mx.float16))
    with pytest.raises(MLXSparseError, match="mlx array"):
        ops.broadcast_mul(x, np.zeros((2, 2)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_squeeze_and_excitation(dtype):
    rng = np.random.default_rng(0)
    coords = rng.permutation(np.unique(rng.integers(0, 5, (70, 4)) % [3, 9, 9, 9], axis=0))
    x = from_numpy(coords, rng.normal(size=(len(coords), 8)), dtype, batch_size=4)
    layer = ms.nn.SqueezeExcitation(8, 4)
    assert layer.squeeze.weight.shape == (2, 8)
    y = layer(x)
    mean = ops.global_avg_pool(x).astype(mx.float32)
    gate = mx.sigmoid(layer.expand(mx.maximum(layer.squeeze(mean), 0)))
    want = oracle.broadcast(coords, to_numpy(x.feats), to_numpy(gate), np.multiply)
    unit = {mx.float32: 1e-6, mx.float16: 2e-3, mx.bfloat16: 2e-2}[dtype]
    assert y.dtype == dtype and np.abs(to_numpy(y.feats) - want).max() <= unit * np.abs(want).max()
    with pytest.raises(ShapeError, match="reduction"):
        ms.nn.SqueezeExcitation(8, 0)
