"""What a compiled program takes, and what it gives rows of padding."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.errors import MLXSparseError, ShapeError
from mlxsparse.masks import Connection, MaskSpec, VoxelLayout, voxels


@pytest.mark.parametrize("padding", [1, 2, 10])
def test_positions_that_fill_a_block_do_not_reach_rows_of_padding(padding):
    coords = np.array([[0, 0, 0, z] for z in range(6)], np.int32)
    regions = {"all": ((0, 1), (0, 1), (0, 6)), "hub": ((0, 1), (0, 1), (0, 3))}
    program = [Connection("all", "all", MaskSpec("tile", tile_shape=3)), Connection("all", "hub")]
    q = mx.random.normal((6, 2, 4), key=mx.random.key(0))
    more = mx.concatenate([q, mx.full((padding, 2, 4), np.nan)])
    whole = VoxelLayout(ms.SparseTensor(coords, mx.ones((6, 1))), regions).compile(program, block=4)
    padded = ms.SparseTensor(coords, mx.ones((6, 1))).with_capacity(6 + padding)
    compiled = VoxelLayout(padded, regions).compile(program, block=4)
    assert (compiled.rows < 0).any()
    wanted, its = whole.attend(q, q, q, return_lse=True)
    got, lse = compiled.attend(more, more, more, return_lse=True)
    np.testing.assert_array_equal(np.array(got), np.pad(np.array(wanted), ((0, padding), (0, 0), (0, 0))))
    np.testing.assert_array_equal(lse[:6], its)
    assert (np.array(lse[6:]) == -np.inf).all()

    def gradient(program, k):
        return mx.grad(lambda v: (program.attend(k, k, v) ** 2).sum())(k)

    one, other = gradient(whole, q), gradient(compiled, more)
    np.testing.assert_array_equal(np.array(other[:6]), np.array(one))
    assert not np.array(other[6:]).any()


def test_a_program_without_pairs_takes_what_others_take():
    coords = np.array([[0, 0, 0, 0], [0, 1, 0, 0]], np.int32)
    regions = {"a": np.array([True, True]), "none": np.zeros(2, bool)}
    layout = VoxelLayout(ms.SparseTensor(coords, mx.ones((2, 1))), regions, allow_empty=True)
    programs = [layout.compile(Connection("a", name)) for name in ("a", "none")]
    q = mx.ones((2, 2, 4))
    assert not mx.any(programs[1].attend(q, q, mx.ones((2, 2, 3)))).item()
    wrong = [(mx.ones((2, 3, 4)), q, q), (q, mx.ones((2, 2, 5)), q), (q, q, mx.ones((2, 1, 4)))]
    for program in programs:
        for arrays in wrong:
            with pytest.raises(ShapeError):
                program.attend(*arrays)
        with pytest.raises(MLXSparseError, match="finite"):
            program.attend(q, q, q, scale=float("nan"))


def test_a_learned_scale_has_a_gradient():
    x = ms.SparseTensor(np.array([[0, 0, 0, z] for z in range(5)], np.int32), mx.ones((5, 1)))
    compiled = VoxelLayout(x, {"all": ((0, 1), (0, 1), (0, 4))}).compile(Connection("all", "all"))
    q, k, v = mx.random.normal((3, 6, 2, 4), key=mx.random.key(0))
    q[4:] = mx.array(np.nan)  # a row that takes no part, and padding

    def loss(scale):
        return (compiled.attend(q, k, v, scale=scale) * k).sum()

    wanted = (loss(0.71) - loss(0.69)).item() / 0.02
    np.testing.assert_allclose(mx.grad(loss)(mx.array(0.7)).item(), wanted, rtol=1e-3)


def test_masks_drawn_anew_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(voxels, "PROGRAMS", 3)
    coords = np.array([[0, 0, 0, z] for z in range(5)], np.int32)
    layout = VoxelLayout(ms.SparseTensor(coords, mx.ones((5, 1))), {"all": ((0, 1), (0, 1), (0, 5))})
    first = layout.compile(Connection("all", "all"))
    for step in range(5):
        mask = np.arange(25).reshape(5, 5) % 7 == step
        layout.compile(Connection("all", "all", MaskSpec("sparse", mask=mask)))
        assert layout.compile(Connection("all", "all")) is first  # used in every step
    assert len(voxels._compiled[layout.key._record]) == 3
