"""Wrong inputs to tensors and convolutions: the named error, and a message that says what was wrong."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse import SparseTensor, ops
from mlxsparse.errors import (
    CoordinateRangeError,
    DTypeError,
    DuplicateCoordinatesError,
    IdentityError,
    MLXSparseError,
    ShapeError,
    StrideError,
)
from mlxsparse.testing.adapt import from_numpy

pytestmark = pytest.mark.usefixtures("device")

EDGE = 2**30


def ones(rows, channels=2):
    return mx.ones((rows, channels))


def sites(*rows):
    return mx.array(rows, mx.int32)


def tensor(stride=1, **more):
    return SparseTensor(sites([0, 0, 0, 0], [0, 1, 0, 0]), ones(2), stride=stride, **more)


# --- construction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SparseTensor(mx.zeros((2, 3), mx.int32), ones(2)), ShapeError, r"coords.*\(2, 3\)"),
        (lambda: SparseTensor(mx.zeros((4,), mx.int32), ones(4)), ShapeError, "coords"),
        (lambda: SparseTensor(mx.zeros((1, 4)), ones(1)), DTypeError, "coords.*int32"),
        (lambda: SparseTensor(sites([0, 0, 0, 0]), ones(2)), ShapeError, "rows"),
        (lambda: SparseTensor(sites([0, 0, 0, 0]), mx.ones((1,))), ShapeError, "feats"),
        (lambda: SparseTensor(sites([0, 0, 0, 0]), mx.ones((1, 1), mx.int32)), DTypeError, "feats"),
        (
            lambda: SparseTensor(sites([0, 5, 6, 7], [1, 5, 6, 7], [0, 5, 6, 7]), ones(3)),
            DuplicateCoordinatesError,
            "coalesce",
        ),
        (lambda: SparseTensor(sites([0, EDGE, 0, 0]), ones(1)), CoordinateRangeError, "coords"),
        (lambda: SparseTensor(sites([0, 0, -EDGE, 0]), ones(1)), CoordinateRangeError, "coords"),
        (lambda: SparseTensor(sites([0, 0, 0, -(2**31)]), ones(1)), CoordinateRangeError, "coords"),
        (lambda: SparseTensor(sites([-1, 0, 0, 0]), ones(1)), CoordinateRangeError, "batch"),
        (lambda: SparseTensor(sites([2, 0, 0, 0]), ones(1), batch_size=2), CoordinateRangeError, "batch"),
        (lambda: SparseTensor(sites([0, 4, 0, 0]), ones(1), spatial_shape=4), CoordinateRangeError, "shape"),
        (lambda: SparseTensor(sites([0, -1, 0, 0]), ones(1), spatial_shape=4), CoordinateRangeError, "shape"),
        (lambda: SparseTensor(sites([0, 0, 0, 0]), ones(1), stride=0), MLXSparseError, "stride"),
        (lambda: SparseTensor(sites([0, 0, 0, 0]), ones(1), stride=(1, 2)), MLXSparseError, "stride"),
        (lambda: SparseTensor(sites([0, 0, 0, 0]), ones(1), active_rows=2), MLXSparseError, "active_rows"),
        (lambda: tensor().replace(ones(3)), ShapeError, "feats"),
        (lambda: tensor().astype(mx.int32), DTypeError, "dtype"),
    ],
)  # fmt: skip
def test_construction(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_coordinates_just_inside_the_range_are_taken():
    x = SparseTensor(sites([0, EDGE - 1, 1 - EDGE, 0]), ones(1))
    assert np.array(ops.subm_conv3d(x, mx.ones((1, 3, 3, 3, 2))).feats).tolist() == [[2.0]]


# --- operators --------------------------------------------------------------------------------------------


def weight(*shape):
    return mx.ones(shape)


def half(*shape):
    return mx.ones(shape, mx.float16)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.subm_conv3d(x, weight(1, 3, 3, 3, 3)), ShapeError, "weight.*channels"),
        (lambda x: ops.subm_conv3d(x, weight(3, 3, 3, 2)), ShapeError, "weight"),
        (lambda x: ops.subm_conv3d(x, weight(3, 3, 3, 3, 1), groups=2), ShapeError, "groups"),
        (lambda x: ops.subm_conv3d(x, weight(3, 3, 3, 3, 2), groups=0), ShapeError, "groups"),
        (lambda x: ops.subm_conv3d(x, weight(3, 3, 3, 3, 2), weight(2)), ShapeError, "bias"),
        (lambda x: ops.subm_conv3d(x, half(3, 3, 3, 3, 2)), DTypeError, "weight"),
        (lambda x: ops.subm_conv3d(x, weight(3, 3, 3, 3, 2), half(3)), DTypeError, "bias"),
        (lambda x: ops.subm_conv3d(x.feats, weight(3, 3, 3, 3, 2)), DTypeError, "SparseTensor"),
        (lambda x: ops.conv3d(x, weight(1, 2, 2, 2, 2), stride=0), MLXSparseError, "stride"),
        (lambda x: ops.conv3d(x, weight(1, 2, 2, 2, 2), stride=(2, 2)), MLXSparseError, "stride"),
        (lambda x: ops.conv3d(x, weight(1, 2, 2, 2, 2), dilation=0), MLXSparseError, "dilation"),
        (lambda x: ops.conv3d(x, weight(1, 2, 2, 2, 2), padding=1.5), MLXSparseError, "padding"),
        (lambda x: ops.conv3d(x, weight(1, 2, 2, 2, 2), support="all"), MLXSparseError, "support"),
        (lambda x: ops.conv3d(x, weight(1, 2, 2, 2, 2), support="parents", out=x), MLXSparseError, "support"),
        (lambda x: ops.conv3d(x, weight(1, 2, 2, 2, 2), stride=2, out=x), StrideError, "stride"),
        (lambda x: ops.conv_transpose3d(x, weight(1, 2, 2, 2, 2), stride=2), StrideError, "stride"),
        (lambda x: ops.generative_conv_transpose3d(x, weight(1, 2, 2, 2, 2), stride=2), StrideError, "2"),
        (lambda x: ops.max_pool3d(x, 0), MLXSparseError, "kernel_size"),
        (lambda x: ops.max_pool3d(x, 2, support="all"), MLXSparseError, "support"),
    ],
)  # fmt: skip
def test_operators(call, error, message):
    with pytest.raises(error, match=message):
        call(tensor())


def test_transpose_onto_another_stride():
    with pytest.raises(StrideError, match="stride"):
        ops.conv_transpose3d(tensor(stride=4), weight(1, 2, 2, 2, 2), stride=2, out=tensor())


def test_transpose_without_a_known_target():
    with pytest.raises(IdentityError, match="out=.*generative"):
        ops.conv_transpose3d(tensor(stride=2), weight(1, 2, 2, 2, 2), stride=2)


def test_transpose_after_the_encoder_is_gone():
    x = tensor()
    low = ops.conv3d(x, weight(2, 2, 2, 2, 2), stride=2)
    assert ops.conv_transpose3d(low, weight(2, 2, 2, 2, 2), stride=2).key is x.key
    del x
    with pytest.raises(IdentityError, match="out="):
        ops.conv_transpose3d(low, weight(2, 2, 2, 2, 2), stride=2)


def test_outputs_past_the_range_do_not_wrap():
    far = from_numpy([[0, EDGE - 1, 0, 0]], np.ones((1, 1)), stride=2)
    with pytest.raises(CoordinateRangeError):
        mx.eval(ops.generative_conv_transpose3d(far, weight(1, 2, 2, 2, 1), stride=2).coords)
    with pytest.raises(CoordinateRangeError):
        mx.eval(ops.conv3d(far, weight(1, 3, 3, 3, 1), padding=9).coords)


def test_arithmetic_needs_one_key():
    a, b = tensor(), tensor()
    assert np.array((a + a * 2).feats).tolist() == [[3.0, 3.0]] * 2
    for join in (lambda: a + b, lambda: a * b, lambda: ops.cat([a, b]), lambda: ops.add(a, b)):
        with pytest.raises(IdentityError, match="key"):
            join()


def test_out_with_another_batch_size():
    x = tensor(batch_size=2)
    with pytest.raises(MLXSparseError, match="batch_size"):
        ops.conv3d(x, weight(1, 1, 1, 1, 2), out=tensor(batch_size=1))


def test_a_site_that_leaves_along_one_axis_and_is_dropped_along_another_is_no_error():
    far = 2**30
    coords = [[0, far - 1, 1, 0], [0, 0, 0, far - 1], [0, -far + 9, -far + 2, -far + 1]]
    x = from_numpy(np.array(coords, np.int32), np.ones((3, 1)), batch_size=1)
    w = mx.ones((1, 2, 1, 1, 1))
    y = ops.conv3d(x, w, stride=(1, 2, 1), padding=(1, 0, 0))
    assert y.num_active == 4
    with pytest.raises(CoordinateRangeError, match=r"2\*\*30"):
        ops.conv3d(x.replace(x.feats), w, stride=(1, 1, 1), padding=(1, 0, 0))
