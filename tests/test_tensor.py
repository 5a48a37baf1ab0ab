"""SparseTensor: construction and its errors, the tuple that MLX sees, identity, arithmetic, padding."""

from __future__ import annotations

import copy
import pickle

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

import mlxsparse as ms
from mlxsparse.errors import (
    CapacityError,
    CoordinateRangeError,
    DTypeError,
    DuplicateCoordinatesError,
    IdentityError,
    MLXSparseError,
    ShapeError,
)

pytestmark = pytest.mark.usefixtures("device")

SITES = [[0, 3, 0, 1], [2, -1, 5, 0], [0, 0, 0, 0], [2, -1, 5, 1]]


def tensor(sites=SITES, channels=2, **kwargs):
    feats = mx.arange(len(sites) * channels, dtype=mx.float32).reshape(len(sites), channels) + 1
    return ms.SparseTensor(mx.array(sites, mx.int32).reshape(-1, 4), feats, **kwargs)


def test_attributes():
    x = tensor(stride=(1, 2, 4), spatial_shape=None)
    assert (x.capacity, x.num_active, x.num_channels, x.dtype) == (4, 4, 2, mx.float32)
    assert (x.stride, x.batch_size, x.spatial_shape) == ((1, 2, 4), 3, None)
    assert x.batch_counts.tolist() == [2, 0, 2]
    assert x.active_rows.item() == 4
    assert [rows.tolist() for rows in map(x.batch_rows, range(3))] == [[0, 2], [], [1, 3]]
    assert [c.tolist() for c in x.decomposed_coordinates] == [
        [[3, 0, 1], [0, 0, 0]],
        [],
        [[-1, 5, 0], [-1, 5, 1]],
    ]
    assert [f.shape for f in x.decomposed_features] == [(2, 2), (0, 2), (2, 2)]
    assert "active=4" in repr(x) and "stride=(1, 2, 4)" in repr(x)


def test_empty():
    x = tensor([], batch_size=2)
    assert (x.capacity, x.batch_size, x.batch_counts.tolist()) == (0, 2, [0, 0])
    assert tensor([]).batch_size == 0


@pytest.mark.parametrize(
    ("sites", "kwargs", "error", "words"),
    [
        ([[0, 0, 0]], {}, ShapeError, "batch column"),
        ([[-1, 0, 0, 0]], {}, CoordinateRangeError, "negative batch"),
        ([[0, 2**30, 0, 0]], {}, CoordinateRangeError, "2\\*\\*30"),
        ([[0, 0, 0, -(2**30)]], {}, CoordinateRangeError, "2\\*\\*30"),
        ([[3, 0, 0, 0]], {"batch_size": 3}, CoordinateRangeError, "batch_size=3"),
        ([[0, 0, 0, 5]], {"spatial_shape": 5}, CoordinateRangeError, "spatial_shape"),
        ([[0, 0, -1, 0]], {"spatial_shape": (9, 9, 9)}, CoordinateRangeError, "spatial_shape"),
        ([[0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 3]], {}, DuplicateCoordinatesError, "rows 0 and 2.*coalesce"),
        ([[0, 0, 0, 0]], {"stride": 0}, ShapeError, "stride"),
        ([[0, 0, 0, 0]], {"stride": (1, 2)}, ShapeError, "stride"),
        ([[0, 0, 0, 0]], {"active_rows": 2}, ShapeError, "active_rows"),
        ([[0, 0, 0, 0]], {"batch_counts": mx.array([2])}, ShapeError, "batch_counts"),
    ],
)
def test_bad_coordinates(sites, kwargs, error, words):
    coords = mx.array(sites, mx.int32)
    with pytest.raises(error, match=words):
        ms.SparseTensor(coords, mx.zeros((len(sites), 1)), **kwargs)


@pytest.mark.parametrize(
    ("coords", "feats", "error"),
    [
        (mx.zeros((2, 4)), mx.zeros((2, 1)), DTypeError),
        (np.zeros((1, 4), np.int64), mx.zeros((1, 1)), DTypeError),
        (mx.zeros((4,), mx.int32), mx.zeros((4, 1)), ShapeError),
        (mx.zeros((1, 4), mx.int32), mx.zeros((2, 1)), ShapeError),
        (mx.zeros((1, 4), mx.int32), mx.zeros((1,)), ShapeError),
        (mx.zeros((1, 4), mx.int32), mx.zeros((1, 1), mx.int32), DTypeError),
        (mx.zeros((1, 4), mx.int32), np.zeros((1, 1)), DTypeError),
        (mx.zeros((1, 4), mx.int32), None, DTypeError),
        ([[0, 0, 0, 0]], mx.zeros((1, 1)), DTypeError),
        ([[0, 0, 0, 0]], None, ShapeError),
    ],
)
def test_bad_arrays(coords, feats, error):
    with pytest.raises(error):
        ms.SparseTensor(coords, feats)


def test_every_error_is_a_value_error_of_ours():
    for name in vars(ms.errors):
        kind = getattr(ms.errors, name)
        if isinstance(kind, type):
            assert issubclass(kind, MLXSparseError) and issubclass(kind, ValueError)


def test_a_callers_later_edit_changes_nothing():
    coords = mx.array(SITES, mx.int32)
    x = ms.SparseTensor(coords, mx.zeros((4, 1)))
    coords[0] = 77
    assert x.coords.tolist() == SITES


def test_it_is_not_a_sequence():
    x = tensor()
    for use in (len, lambda x: x[0], lambda x: 1 in x, bool, lambda x: x + (1,), lambda x: x < x):
        with pytest.raises((TypeError, DTypeError)):
            use(x)
    for name in ("coords", "feats", "stride", "key"):
        with pytest.raises(AttributeError):
            setattr(x, name, None)
    assert x == x and x != tensor() and len({x, x, tensor()}) == 2


@pytest.mark.parametrize(
    "use", [lambda x: x @ mx.zeros((2, 2)), lambda x: x.shape, lambda x: mlx.nn.BatchNorm(2)(x)]
)
def test_array_uses_name_the_right_layer(use):
    with pytest.raises((TypeError, AttributeError), match="mlxsparse.nn"):
        use(tensor())


def test_key_is_identity_not_value():
    a, b = tensor(), tensor()
    assert a.key is not b.key
    assert a.replace(a.feats * 2).key is a.key and a.astype(mx.float16).key is a.key
    assert ms.SparseTensor(a.coords, b.feats, key=a.key).key is a.key
    with pytest.raises(IdentityError):
        ms.SparseTensor(b.coords, b.feats, key=a.key)
    with pytest.raises(IdentityError, match="ops.add"):
        a + b


def test_arithmetic():
    a = tensor()
    b = a.replace(a.feats * 10)
    values = np.array(a.feats)
    for result, want in (
        (a + b, values * 11),
        (b - a, values * 9),
        (a * b, values * values * 10),
        (b / a, np.full_like(values, 10)),
        (2 * a + 1, 2 * values + 1),
        (1 - a, 1 - values),
        (1 / a, 1 / values),
        (-a, -values),
        (a * mx.array(3.0), 3 * values),
        (ms.ops.maximum(a, b), values * 10),
    ):
        assert result.key is a.key
        np.testing.assert_allclose(np.array(result.feats), want, rtol=1e-6)
    with pytest.raises(DTypeError):
        a + mx.ones((4, 2))


def test_padding_is_never_seen():
    coords = mx.concatenate([mx.array(SITES, mx.int32), mx.array([[0, 3, 0, 1], [9, 9, 9, 9]], mx.int32)])
    feats = mx.concatenate([mx.ones((4, 2)), mx.full((2, 2), float("nan"))])
    x = ms.SparseTensor(coords, feats, active_rows=4)
    assert x.num_active == 4 and x.capacity == 6 and x.batch_counts.tolist() == [2, 0, 2]
    assert x.coords[4:].tolist() == [[-1, 0, 0, 0]] * 2 and x.feats[4:].tolist() == [[0, 0]] * 2
    assert (1 / x).feats[4:].tolist() == [[0, 0]] * 2
    assert x.compact().capacity == 4 and x.compact().coords.tolist() == SITES


def test_capacity():
    x = tensor()
    wide = x.with_capacity(7)
    assert (wide.capacity, wide.num_active) == (7, 4) and wide.feats[4:].sum().item() == 0
    assert wide.compact().feats.tolist() == x.feats.tolist()
    with pytest.raises(CapacityError, match="4 active rows"):
        x.with_capacity(3)
    w = mx.ones((1, 2, 2, 2, 2))
    assert ms.ops.conv3d(wide, w, stride=2).capacity == 7
    with pytest.raises(CapacityError, match="capacity="):
        ms.ops.conv3d(wide, mx.ones((1, 3, 3, 3, 2)))
    with pytest.raises(CapacityError, match="too small|rows and had less"):
        ms.ops.conv3d(wide, mx.ones((1, 3, 3, 3, 2)), capacity=5).check()
    assert ms.ops.conv3d(wide, mx.ones((1, 3, 3, 3, 2)), capacity=200).capacity == 200


def test_tree_functions_rebuild_it():
    x = tensor()
    y = tree_map(
        lambda leaf: leaf * 2 if isinstance(leaf, mx.array) and leaf.dtype == mx.float32 else leaf, x
    )
    assert isinstance(y, ms.SparseTensor) and y.feats.tolist() == (x.feats * 2).tolist()
    assert y.stride == x.stride and y.batch_size == 3
    assert y.key is not x.key
    assert len(tree_flatten(x)) >= 5
    mx.eval(x, y)
    mx.async_eval([x, {"y": y}])
    with pytest.raises(ShapeError, match="leaves"):
        ms.SparseTensor([x.coords, x.feats])


def test_rebuilt_tensors_share_what_is_known_of_their_buffer():
    x = tensor()
    w = mx.ones((1, 3, 3, 3, 2))
    ms.ops.subm_conv3d(x, w)
    built = x.manager.stats()["maps_built"]
    y = tree_map(lambda leaf: leaf, x)
    ms.ops.subm_conv3d(y, w)
    assert x.manager.stats()["maps_built"] == built
    leaves = list(x)
    leaves[0] = x.coords + mx.array([0, 0, 0, 1], mx.int32)  # as many other ones
    z = ms.SparseTensor(leaves)
    assert z.key.coords.tolist() == leaves[0].tolist()
    ms.ops.subm_conv3d(z, w)
    assert x.manager.stats()["maps_built"] == built + 1


def test_rebuilt_duplicates_are_found():
    x = tensor()
    leaves = list(x)
    leaves[0] = mx.zeros((4, 4), mx.int32)
    with pytest.raises(DuplicateCoordinatesError):
        _ = ms.SparseTensor(leaves).key


def test_copy_and_pickle():
    x = tensor(stride=2)
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert isinstance(y, ms.SparseTensor)
        assert y.feats.tolist() == x.feats.tolist() and y.coords.tolist() == SITES and y.stride == (2, 2, 2)
    assert copy.copy(x).key is x.key and copy.deepcopy(x).key is not x.key


def test_reversed_and_strided_numpy_input():
    coords = np.array(SITES, np.int32)
    feats = np.arange(8, dtype=np.float32).reshape(4, 2)
    x = ms.SparseTensor(coords[::-1], feats[::-1])
    assert x.coords.tolist() == SITES[::-1] and x.feats.tolist() == feats[::-1].tolist()
    y = ms.SparseTensor(np.asfortranarray(coords), np.repeat(feats, 2, axis=1)[:, ::2])
    assert y.coords.tolist() == SITES and y.feats.tolist() == feats.tolist()


@pytest.mark.parametrize(
    "operator",
    [
        lambda x: ms.ops.max_pool3d(x, 2),
        ms.ops.global_max_pool,
        ms.ops.global_avg_pool,
        ms.ops.dense,
        lambda x: ms.ops.linear(x, x),
        lambda x: ms.ops.conv3d(x, mx.zeros((1, 1, 1, 1, 2))),
    ],
)
def test_operators_name_a_plain_array(operator):
    with pytest.raises(DTypeError, match="must be a SparseTensor"):
        operator(mx.zeros((4, 2)))


@pytest.mark.parametrize("size", [2.5, True, "2", -1, np.float32(3), mx.array(3)])
def test_batch_size_is_a_whole_number(size):
    for sites in (np.array(SITES, np.int32), np.zeros((0, 4), np.int32)):
        with pytest.raises(ShapeError, match="batch_size"):
            ms.SparseTensor(sites, mx.ones((len(sites), 1)), batch_size=size)
        with pytest.raises(ShapeError, match="batch_size"):
            ms.voxelize(np.zeros((len(sites), 3)), voxel_size=1.0, batch_size=size)
    assert ms.SparseTensor(np.array(SITES, np.int32), mx.ones((4, 1)), batch_size=np.int64(5)).batch_size == 5


@pytest.mark.parametrize("rows", [2.7, "2", [2], mx.array([2]), mx.array(2.7), np.float64(2), -1])
def test_active_rows_are_not_rounded(rows):
    with pytest.raises(ShapeError, match="active_rows"):
        tensor(active_rows=rows)
    assert [tensor(active_rows=n).num_active for n in (2, np.int32(2), mx.array(2))] == [2, 2, 2]


def test_capacities_are_not_rounded():
    x = tensor()
    for n in (4.5, "a", None, -3):
        with pytest.raises(ShapeError, match="capacity"):
            x.with_capacity(n)
    w = mx.ones((1, 2, 2, 2, 2))
    for n in (200.9, "a"):
        with pytest.raises(ShapeError, match="capacity"):
            ms.ops.conv3d(x, w, stride=2, capacity=n)
    with pytest.raises(ShapeError, match="batch item"):
        x.batch_rows(0.5)


def test_a_key_refuses_what_it_would_ignore():
    x = tensor()
    for more in ({"stride": 4}, {"batch_counts": mx.array([9])}):
        with pytest.raises(IdentityError, match="come from the key"):
            ms.SparseTensor(x.key.coords, x.feats, key=x.key, **more)


def test_a_key_takes_the_stride_that_is_the_default():
    x = tensor()
    for stride in ((1, 1, 1), [1, 1, 1], np.array([1, 1, 1])):
        y = ms.SparseTensor(x.key.coords, x.feats, key=x.key, stride=stride, manager=x.manager)
        assert y.key is x.key
    with pytest.raises(IdentityError, match="come from the key"):
        ms.SparseTensor(x.key.coords, x.feats, key=x.key, stride=np.array([1, 1, 2]))


def test_batch_counts_of_another_byte_order():
    counts = tensor().batch_counts
    coords = mx.array(SITES, mx.int32)
    x = ms.SparseTensor(coords, mx.zeros((4, 1)), batch_counts=np.array(counts.tolist(), ">i4"))
    assert x.batch_counts.tolist() == counts.tolist()


def test_pickle_and_deepcopy_keep_a_fixed_capacity():
    x = tensor().with_capacity(8)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.copy(x)):
        assert y.key.fixed_capacity and (y.capacity, y.num_active) == (8, 4)
        assert y.feats.tolist() == x.feats.tolist() and y.coords.tolist() == x.coords.tolist()
        assert ms.ops.conv3d(y, mx.ones((1, 2, 2, 2, 2)), stride=2).capacity == 8


def test_deepcopy_keeps_what_shared_a_key_together():
    x = tensor()
    pair = {"a": x, "b": [x * 2]}
    for made in (copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert (made["a"] + made["b"][0]).feats.tolist() == (x * 3).feats.tolist()
        assert made["a"].key is not x.key
    y = copy.deepcopy(x)
    y.feats[0] = 777.0
    assert x.feats.tolist() == tensor().feats.tolist()


@pytest.mark.parametrize("capacity", [None, 8])
def test_pickled_tensors_share_a_key_after_use_too(capacity):
    x = tensor() if capacity is None else tensor().with_capacity(capacity)
    coarse = ms.ops.max_pool3d(x, 2)
    a, b, c, d = pickle.loads(pickle.dumps((x, x * 2, coarse, coarse * 2)))
    conv = ms.nn.SubmConv3d(2, 2)
    for y in (a, b, c, d):
        conv(y)
    assert a.key is b.key is not x.key and c.key is d.key is not a.key
    assert (a + b).feats.tolist() == (x * 3).feats.tolist() and (c + d).capacity == coarse.capacity
    assert ms.ops.max_pool3d(a, 2).feats.tolist() == c.feats.tolist()
    assert (a.key.fixed_capacity, a.stride, c.stride) == (capacity is not None, x.stride, coarse.stride)
    key = pickle.loads(pickle.dumps(x.key))
    assert (key.count, key.capacity, key.batch_size) == (x.key.count, x.key.capacity, x.batch_size)
    assert a.key.manager is ms.coords.default_manager()


def test_arithmetic_with_numpy_and_other_channels():
    x = tensor()
    for two in (2, 2.0, np.float32(2), np.int64(2), mx.array(2.0), np.array([2.0], np.float32)):
        for y in (x * two, x + x, x / (1 / two if not isinstance(two, (mx.array, np.ndarray)) else 0.5)):
            assert type(y) is ms.SparseTensor and y.feats.tolist() == (x.feats * 2).tolist()
    assert type(np.float32(2) * x) is ms.SparseTensor
    for wrong in (np.ones((4, 2), np.float32), "2", None, [1]):
        with pytest.raises(DTypeError, match="scalar"):
            x * wrong
        with pytest.raises((DTypeError, TypeError)):
            wrong * x
    with pytest.raises(ShapeError, match="channels, got 2 and 3"):
        x + x.replace(mx.ones((4, 3)))
    one = x.replace(mx.full((4, 1), 2.0))
    assert (x * one).feats.tolist() == (one * x).feats.tolist() == (x.feats * 2).tolist()


@pytest.mark.parametrize("one", [2.0, 2, True, np.float64(2), np.array(2.0), np.array([[[2]]]), np.uint8(2)])
def test_a_number_of_numpy_is_a_number(one):
    x = tensor().astype(mx.float16)
    y = x * one
    assert y.dtype == mx.float16 and (y.feats == x.feats * float(np.array(one).item())).all()


def test_a_number_of_mlx_has_a_type():
    x = tensor().astype(mx.float16)
    assert (x * mx.array([[[2.0]]])).dtype == mx.float32
    assert (x * mx.array(2.0, mx.float16)).dtype == mx.float16


def test_integers_past_64_bits_and_what_is_no_number():
    x = tensor()
    assert (x * 2**63).feats[0, 0].item() == x.feats[0, 0].item() * 2.0**63
    assert (x * np.uint64(2**63)).feats[0, 0].item() == x.feats[0, 0].item() * 2.0**63
    for other in (np.array("a"), np.array(None), 10**400, np.complex64(1j), np.ones(2), mx.ones((2,))):
        with pytest.raises(DTypeError, match="scalar"):
            x + other
