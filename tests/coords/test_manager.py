"""The manager's own calls: what they take, and what they answer to the wrong thing."""

from __future__ import annotations

import copy
import pickle

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import executor
from mlxsparse.coords import Kernel
from mlxsparse.errors import CoordinateRangeError, DTypeError, ShapeError, StrideError

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def x():
    return ms.SparseTensor(np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 5, 0, 0]], np.int32), mx.ones((3, 2)))


@pytest.mark.parametrize("rows", [2, np.int64(2), np.array(2), mx.array(2), mx.array(2, mx.uint8)])
def test_active_rows_are_a_number_or_a_scalar_array(x, rows):
    assert ms.CoordinateManager().insert(x.coords, 1, rows).count == 2
    assert ms.SparseTensor(x.coords, x.feats, active_rows=rows).num_active == 2


@pytest.mark.parametrize("rows", [2.0, True, np.array(2.0), mx.array(2.0), np.array([2]), mx.array([2]), "2"])
def test_other_active_rows_are_refused(x, rows):
    with pytest.raises(ShapeError, match="active_rows must be an integer"):
        ms.CoordinateManager().insert(x.coords, 1, rows)
    with pytest.raises(ShapeError, match="active_rows must be an integer"):
        ms.SparseTensor(x.coords, x.feats, active_rows=rows)


def test_maps_are_of_keys_and_kernels(x):
    manager, kernel = x.manager, Kernel.submanifold(3)
    for wrong in ((x, x.key, kernel), (x.key, x, kernel), (x.key, x.key, 3), (x.key, x.key, None)):
        with pytest.raises(DTypeError, match=r"x\.key|Kernel\.of"):
            manager.kernel_map(*wrong)
    with pytest.raises(DTypeError, match=r"key must be .*x\.key"):
        manager.stride(x, 2)
    with pytest.raises(StrideError, match="leads from stride .1, 1, 1. to .2, 2, 2."):
        manager.kernel_map(x.key, x.key, Kernel.of(2, 2))
    assert manager.kernel_map(x.key, manager.stride(x.key, 2), Kernel.of(2, 2)).num_pairs == 3


@pytest.mark.parametrize("batch", [-1, 2])
def test_unchecked_coordinates_have_batch_numbers_in_range(batch):
    """What is not validated may repeat sites; a wrong batch number made counts longer than the batch."""
    coords = np.array([[0, 0, 0, 0], [batch, 0, 0, 0]], np.int32)
    if executor() == "kernel":  # which reads nothing then
        x = ms.SparseTensor(coords, mx.ones((2, 1)), validate=False, batch_size=2)
        assert x.batch_counts.shape == (2,)
        return
    with pytest.raises(CoordinateRangeError, match="batch"):
        ms.SparseTensor(coords, mx.ones((2, 1)), validate=False, batch_size=2)
    far = np.array([[0, 9, 0, 0]], np.int32)
    assert ms.SparseTensor(far, mx.ones((1, 1)), spatial_shape=4, validate=False).num_active == 1


def test_what_is_no_key_and_no_manager_is_named(x, tmp_path):
    coords, path = np.array(x.coords.tolist(), np.int32), tmp_path / "x.safetensors"
    for key in (x, 3):
        with pytest.raises(DTypeError, match="key must be a CoordinateMapKey, such as x.key"):
            ms.SparseTensor(x.coords, x.feats, key=key)
    ms.save(path, x)
    for make in (
        lambda m: ms.SparseTensor(coords, x.feats, manager=m),
        lambda m: ms.SparseTensor(x.key.coords, x.feats, key=x.key, manager=m),
        lambda m: ms.voxelize(mx.zeros((1, 3)), voxel_size=1.0, manager=m),
        lambda m: ms.coalesce(coords, x.feats, manager=m),
        lambda m: ms.ops.from_dense(mx.ones((1, 1, 1, 1, 1)), manager=m),
        lambda m: ms.load(path, manager=m),
    ):
        for wrong in (3, 0, x):
            with pytest.raises(DTypeError, match="manager must be a CoordinateManager, such as x.manager"):
                make(wrong)


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_is_a_new_manager(x, made):
    """So a model or a data set that holds one can be copied and sent to a process."""
    layer = ms.nn.SubmConv3d(2, 3)
    layer.manager = ms.CoordinateManager()
    ms.SparseTensor(x.coords, x.feats, manager=layer.manager)
    manager = made({"layer": layer} if made is not copy.copy else layer.manager)
    manager = manager["layer"].manager if isinstance(manager, dict) else manager
    assert manager is not layer.manager and manager.stats()["keys_built"] == 0
    y = layer(ms.SparseTensor(x.coords, x.feats, manager=manager))
    assert y.manager is manager and manager.stats()["maps_built"] == 1
    assert layer.manager.stats()["maps_built"] == 0
