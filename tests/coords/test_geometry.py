"""Kernel geometry: normalising, shapes, errors."""

from __future__ import annotations

import pytest

from mlxsparse.coords.geometry import Kernel, divide, multiply, parent_shape, triple
from mlxsparse.errors import CoordinateRangeError, ShapeError, StrideError


def test_triple():
    assert triple(2, "k") == (2, 2, 2) and triple([1, 2, 3], "k") == (1, 2, 3)
    for bad in (0, (1, 2), 1.5, (1, 2, 3, 4), "abc", True, None):
        with pytest.raises(ShapeError, match="kernel_size"):
            triple(bad, "kernel_size", least=1)


def test_submanifold_padding_is_per_axis_and_dilated():
    assert Kernel.submanifold((3, 5, 4), 2).padding == (2, 4, 2)
    assert Kernel.submanifold(4, padding=2).padding == (2, 2, 2)


@pytest.mark.parametrize(
    ("shape", "kernel", "out"),
    [
        ((5, 5, 5), Kernel.of(2, 2), (2, 2, 2)),
        ((32, 32, 32), Kernel.of(3, 2, 1), (16, 16, 16)),
        ((41, 1600, 1408), Kernel.of(3, 2, (0, 1, 1)), (20, 800, 704)),
        ((5, 5, 5), Kernel.of((3, 1, 1), (2, 1, 1)), (2, 5, 5)),
        ((1, 1, 1), Kernel.of(3), (0, 0, 0)),
    ],
)
def test_output_shape(shape, kernel, out):
    assert kernel.output_shape(shape) == out


def test_transposed_shape_undoes_an_exact_output_shape():
    kernel = Kernel.of((3, 4, 2), (2, 2, 2), (1, 1, 0))
    assert kernel.transposed_shape(kernel.output_shape((31, 32, 32))) == (31, 32, 32)
    assert parent_shape((5, 4, 1), (2, 2, 2)) == (3, 2, 1)


def test_strides():
    assert multiply((1, 2, 4), (2, 2, 1)) == (2, 4, 4) and divide((2, 4, 4), (2, 2, 1)) == (1, 2, 4)
    with pytest.raises(StrideError, match="not divisible"):
        divide((2, 3, 2), (2, 2, 2))


def test_steps_past_the_coordinate_range_are_refused_not_wrapped():
    for arguments in ((2, 2**40), (2, 1, 2**30), (2, 1, 0, 2**32), (5, 1, 0, 2**29)):
        with pytest.raises(CoordinateRangeError):
            Kernel.of(*arguments)
