"""Static capacity through the kernels at its edges: signs, ends of the lattice, errors of private sets."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.backend import status
from mlxsparse.backend.kernel_rows import PIECE
from mlxsparse.errors import CapacityError, CoordinateRangeError

from .static_cases import kernels as kernels
from .static_cases import needs_kernels

pytestmark = [needs_kernels, pytest.mark.usefixtures("kernels")]
END = 2**30 - 1


def line(counts, feats=None, capacity=None, **more):
    """Batch items of so many sites in a row, of fixed capacity."""
    batch = np.repeat(np.arange(len(counts)), counts)
    coords = np.zeros((len(batch), 4), np.int32)
    coords[:, 0], coords[:, 1] = batch, np.concatenate([np.arange(n) for n in counts])
    feats = -mx.ones((len(batch), 1)) if feats is None else feats
    x = ms.SparseTensor(coords, feats, batch_size=len(counts), **more)
    return x.with_capacity(len(batch) if capacity is None else capacity)


@pytest.mark.parametrize("counts", [[3], [3, 2], [PIECE, 5], [PIECE - 1, 1, PIECE, 2], [2, 0, 3]])
@pytest.mark.parametrize("value", [-1.0, -np.inf])
def test_a_maximum_below_zero_is_the_maximum(counts, value):
    """Items that begin where a piece of a long one may end began with an empty piece, whose 0 won."""
    rows = sum(counts)

    def best(x):
        return ops.global_max_pool(x, empty=-7.0)[:, 0]

    for capacity in (rows, rows + 3):
        x = line(counts, mx.full((rows, 1), value), capacity)
        assert best(x).tolist() == [value if n else -7.0 for n in counts]
        gradient = mx.grad(lambda f, x=x: best(x.replace(f)).sum())(x.feats)
        firsts = np.cumsum([0, *counts[:-1]])[np.array(counts) > 0]
        assert np.flatnonzero(np.array(gradient)).tolist() == firsts.tolist()
        shares = [-1.0 * n for n in counts] if value == -1 else [value if n else 0.0 for n in counts]
        assert ops.global_sum_pool(x)[:, 0].tolist() == shares


def test_statuses_that_share_a_history_stay_short():
    """Joining two branches of a step doubled what was kept of the steps before."""
    x = line([1], capacity=16)
    w, kept = mx.ones((1, 2, 2, 2, 1)), [x]
    for _ in range(8):
        y = ops.conv3d(x, w, capacity=16)
        x = ops.add(ops.crop(x, 0, 4), ops.crop(y, 0, 4), "outer", capacity=16)
        kept += [x, y]
    assert len(status._parts[id(x.status)][1]) <= len(kept)
    before = status.combined(x.status, kept[1].status)
    assert before is x.status  # it holds that already


def test_coverage_tells_of_its_own_sites():
    with pytest.raises(CapacityError, match="need 45 rows"):
        ops.coverage(line([3]), 3, 1, 1, capacity=2)
    assert ops.coverage(line([3]), 3, 1, 1, capacity=45).tolist() == [27] * 3
    far = ms.SparseTensor(np.array([[0, END, 0, 0]], np.int32), mx.ones((1, 1))).with_capacity(1)
    with pytest.raises(CoordinateRangeError):
        ops.coverage(far, 3, 1, 1, capacity=27)


@pytest.mark.parametrize("far", [2**30, 2**31, 2**40])
def test_corners_may_lie_anywhere(far):
    coords = np.array([[0, -END, 0, 5], [0, END, 0, 5]], np.int32)
    x = ms.SparseTensor(coords, mx.ones((2, 1))).with_capacity(3)
    assert ops.crop(x, -far, far).num_active == 2
    assert ops.crop(x, (0, 0, 0), (far, 1, far)).num_active == 1
    assert ops.crop(x, (far, 0, 0), (2 * far, 1, far)).num_active == 0


@pytest.mark.parametrize("scale", [4, (8, 2, 3)])
def test_interpolation_at_the_ends_of_the_lattice(scale):
    steps = np.broadcast_to(scale, 3)
    fine = np.array([[0, -END, 0, 0], [0, END, 3, -2], [0, 5, -7, 8]], np.int32)
    coarse = np.unique(np.concatenate([fine // [1, *steps], fine // [1, *steps] + [0, 0, 1, 0]]), axis=0)
    feats = mx.arange(float(len(coarse)))[:, None]
    x = ms.SparseTensor(coarse.astype(np.int32), feats, stride=scale)
    y = ops.upsample_trilinear(x.with_capacity(len(coarse) + 1), scale, out=fine)
    wanted = ops.upsample_trilinear(x, scale, out=fine)
    np.testing.assert_allclose(np.array(y.feats), np.array(wanted.feats), rtol=1e-6)


def test_a_compiled_function_tells_of_a_set_that_was_there_before():
    """Only sets that were made inside told of their overflow."""
    x, w = line([3]), mx.ones((1, 2, 2, 2, 1))
    step = ms.compile(lambda w: ops.conv3d(x, w, capacity=2).feats.sum())
    ops.conv3d(x, w, capacity=2)
    with pytest.raises(CapacityError, match="need 16 rows"):
        step(w)


@pytest.mark.parametrize("around", [mx.compile, ms.compile])
def test_a_compiled_function_may_be_called_in_another(around):
    """Its status there is no value that it could read later."""
    y = ops.conv3d(line([3]), mx.ones((1, 2, 2, 2, 1)), capacity=16)
    step = ms.compile(lambda t: t.replace(t.feats * 2))
    outer = around(lambda t: step(t).feats.sum())
    for _ in range(2):
        assert outer(y).item() == 2 * y.feats.sum().item()
        assert step(y).feats.tolist() == (2 * y.feats).tolist()
    step.check()
    few = ops.conv3d(line([3]), mx.ones((1, 2, 2, 2, 1)), capacity=2)
    if around is ms.compile:
        with pytest.raises(CapacityError, match="need 16 rows"):
            outer(few)
    with pytest.raises(CapacityError, match="need 16 rows"):
        step(few)
