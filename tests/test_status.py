"""What went wrong on the device travels with every tensor that follows, and stays in its thread."""

from __future__ import annotations

import threading

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.backend import status
from mlxsparse.errors import CapacityError, CoordinateRangeError
from tests.static_cases import kernels as kernels
from tests.static_cases import needs_kernels

FOLLOWING = {
    "sort": ops.sort,
    "topk": lambda x: ops.topk(x, 2),
    "prune": lambda x: ops.prune(x, mx.ones((x.capacity,), mx.bool_)),
    "collate": lambda x: ops.collate([x, x]),
    "decollate": lambda x: ops.decollate(x)[0],
    "checkpoint": ms.checkpoint(lambda x: x * 2),
    "sum": lambda x: x + x,
    "replace": lambda x: x.replace(x.feats),
}


@needs_kernels
@pytest.mark.parametrize("name", FOLLOWING)
def test_an_overflow_is_told_by_what_follows(kernels, name):
    sites = np.array([[0, 0, 0, 3 * z] for z in range(8)], np.int32)
    x = ms.SparseTensor(sites, mx.ones((8, 1)), batch_size=1).with_capacity(8)
    w = mx.ones((1, 1, 1, 3, 1))
    few = ops.conv3d(x, w, stride=(1, 1, 2), capacity=3)  # it needs 12 rows
    y = ops.conv_transpose3d(few, w, stride=(1, 1, 2), out=x)
    for tensor in (y, FOLLOWING[name](y)):
        with pytest.raises(CapacityError, match="need 12 rows"):
            tensor.check()
    FOLLOWING[name](x).check()
    assert status.is_clear(FOLLOWING["checkpoint"](x).status)  # nothing to read


def test_another_threads_status_is_not_collected():
    watching, told = threading.Event(), threading.Event()

    def other():
        watching.wait()
        status.report(mx.array(True), status.EMPTY)
        told.set()

    thread = threading.Thread(target=other)
    thread.start()
    with status.watching() as seen:
        watching.set()
        told.wait()
        assert seen == []
        status.report(mx.array(True), status.EMPTY)
        assert len(seen) == 1
    thread.join()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "ratio", [lambda y, n: y / n, lambda y, n: 1 / y, lambda y, n: n / y, lambda y, n: y * y / 3]
)
def test_gradients_of_ratios_do_not_depend_on_padding(ratio):
    values = mx.array([[1.0, -2.0], [3.0, -4.0], [5.0, -6.0]])
    x = ms.SparseTensor(np.array([[0, 0, 0, z] for z in range(3)], np.int32), values)
    more = np.array([[0, 0, 0, z] for z in range(5)], np.int32)
    spare = mx.concatenate([values, mx.full((2, 2), np.nan)])
    layer = ms.nn.PReLU()

    def gradient(x):
        count = ms.ops.subm_conv3d(x.replace(mx.ones((x.capacity, 2))), mx.ones((2, 3, 3, 3, 2)))
        made, grads = mlx.nn.value_and_grad(layer, lambda m: ratio(m(x), count).feats.sum())(layer)
        _, rows = mx.value_and_grad(lambda f: ratio(layer(x.replace(f)), count).feats.sum())(x.feats)
        return [made.item(), grads["weight"].item(), *rows[:3].reshape(-1).tolist()], rows[3:]

    wanted, _ = gradient(x)
    for padded in (x.with_capacity(5), ms.SparseTensor(more, spare, active_rows=3)):
        got, rest = gradient(padded)
        assert got == pytest.approx(wanted, rel=1e-6) and not mx.isnan(rest).any().item()


@pytest.mark.usefixtures("device")
def test_a_batch_number_past_all_reason_is_named():
    with pytest.raises(CoordinateRangeError, match="batch number 2147483647 .*active_rows="):
        ms.SparseTensor(np.array([[2**31 - 1, 0, 0, 0]], np.int32), mx.ones((1, 1)))
