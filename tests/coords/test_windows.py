"""Maps to windows that tile the lattice (K = s): either side first, and bits that nothing needs any more."""

from __future__ import annotations

import gc
import weakref

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.coords import CoordinateManager, Kernel

from ..static_cases import frame, kernels, needs_kernels  # noqa: F401

KERNEL = Kernel((2, 2, 2), (2, 2, 2))


def windows(n: int = 150):
    """Relation of a new set to its parents, and the record of these."""
    manager = CoordinateManager()
    key = manager.insert(mx.array(frame(n)[0]), batch_size=2)
    coarse = manager.stride(key, 2)
    return manager.kernel_map(key, coarse, KERNEL).relation, coarse._record


@needs_kernels
@pytest.mark.parametrize("first", ["output", "input"])
def test_either_side_may_be_asked_for_first(kernels, first):  # noqa: F811
    found, wanted = windows()[0], windows()[0]
    sides = (found.output, found.input) if first == "output" else (found.input, found.output)
    tiles = {side is found.output: side.tiles for side in sides}
    wanted = {True: wanted.output.table, False: wanted.input.table}  # of maps that have no tiles
    for is_output, made in tiles.items():
        side = found.output if is_output else found.input
        np.testing.assert_array_equal(np.array(side.untiled()), np.array(wanted[is_output]))
        assert made.size == wanted[is_output].shape[1]


@needs_kernels
@pytest.mark.parametrize("first", ["output", "input"])
def test_tiles_of_one_side_let_go_of_bits(kernels, first):  # noqa: F811
    found, record = windows()
    assert record.marks is not None
    bits = weakref.ref(record.marks.bits)
    record.marks = None  # as a submanifold map of that set does
    gc.collect()
    assert bits() is not None
    mx.eval(getattr(found, first).tiles.arrays)
    gc.collect()
    assert (bits() is None) == (first == "output")  # a table of that side is made from them
    assert found.input.tiles.size == found.rows_in and found.output.tiles.size == found.rows_out
    gc.collect()
    assert bits() is None
