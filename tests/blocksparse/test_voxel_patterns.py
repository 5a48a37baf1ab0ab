"""VoxelWindow and Neighbor3d against their definitions over pairs of voxels."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse.blocksparse import Neighbor3d, VoxelWindow, block_sparse_attention
from mlxsparse.errors import CoordinateRangeError, DTypeError, DuplicateCoordinatesError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.strategies import coordinate_sets


def blocks_of(near, block):
    """Blocks that hold a True."""
    n = -(-len(near) // block)
    return np.array(
        [
            [near[i * block : (i + 1) * block, j * block : (j + 1) * block].any() for j in range(n)]
            for i in range(n)
        ],
        bool,
    ).reshape(n, n)


@given(
    coordinate_sets(),
    st.integers(1, 5),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.tuples(*[st.integers(-3, 3)] * 3),
)
def test_window(coords, block, window, shift):
    pattern = VoxelWindow(2, block, window, shift)
    layout = pattern(coords)
    every = np.ones(len(coords), bool)
    near = oracle.voxel_mask(coords.astype(np.int64), every, every, window, shift)
    assert layout.shape == (len(coords),) * 2 and layout.num_heads == 2
    assert all(np.array_equal(head, blocks_of(near, block)) for head in layout.to_dense())
    ids = np.array(pattern.segments(coords))
    assert np.array_equal(ids[:, None] == ids[None], near)


@given(
    coordinate_sets(), st.integers(1, 5), st.one_of(st.integers(0, 2), st.tuples(*[st.integers(0, 2)] * 3))
)
def test_neighbours(coords, block, radius):
    layout = Neighbor3d(1, block, radius)(coords)
    gap = np.abs(coords[:, None, 1:].astype(np.int64) - coords[None, :, 1:])
    near = (gap <= np.array(radius)).all(axis=2) & (coords[:, None, 0] == coords[None, :, 0])
    assert np.array_equal(layout.to_dense()[0], blocks_of(near, block))


def test_attention_within_windows_is_exact():
    rng = np.random.default_rng(0)
    coords = np.unique(np.column_stack([rng.integers(0, 2, 90), rng.integers(-6, 6, (90, 3))]), axis=0)
    q = rng.standard_normal((1, 2, len(coords), 4)).astype(np.float32)
    pattern, every = VoxelWindow(2, 16, 4, 1), np.ones(len(coords), bool)
    allowed = oracle.voxel_mask(coords, every, every, (4, 4, 4), (1, 1, 1))
    out = block_sparse_attention(*[mx.array(q)] * 3, pattern(coords), segments=pattern.segments(coords))
    np.testing.assert_allclose(np.array(out), oracle.attention(q, q, q, allowed, 0.5)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: VoxelWindow(1, 8)(np.zeros((3, 3), int)), ShapeError, "coords has shape"),
        (lambda: VoxelWindow(1, 8)(np.zeros((3, 4))), DTypeError, "coords is float64"),
        (lambda: Neighbor3d(1, 8)(np.full((1, 4), 2**30)), CoordinateRangeError, "must lie in"),
        (lambda: Neighbor3d(1, 8)(np.zeros((2, 4), int)), DuplicateCoordinatesError, "rows 0 and 1"),
        (lambda: VoxelWindow(0, 8), ShapeError, "num_heads"),
        (lambda: VoxelWindow(1, 8, (2, 2)), ShapeError, "window"),
        (lambda: VoxelWindow(1, 8, 0), ShapeError, "window"),
        (lambda: VoxelWindow(1, 8, 2.5), DTypeError, "window"),
        (lambda: VoxelWindow(1, 8, 2, None), DTypeError, "shift"),
        (lambda: Neighbor3d(1, 8, -1), ShapeError, "radius"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()
