"""Boxes, mask specifications, and the exact cover of a mask."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError
from mlxsparse.masks import CanvasLayout, MaskSpec, Rect, rect_cover


def test_an_odd_rect_is_a_named_error_and_the_sources_type_error():
    with pytest.raises(MLXSparseError) as caught:
        Rect(0, 1, 2)
    assert isinstance(caught.value, TypeError)


def test_forms_of_a_rect_are_equal():
    flat, pairs = Rect(0, 2, -1, 3, 4, 4), Rect(((0, 2), (-1, 3), (4, 4)))
    assert flat == pairs == Rect(ranges=[(0, 2), (-1, 3), (4, 4)]) and len({flat, pairs}) == 1
    assert flat.ndim == 3 and flat.shape == (2, 4, 0) and flat.volume == 0
    assert Rect(1, 3, 2, 5).volume == 6 and Rect(1, 3).slices == (slice(1, 3),)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Rect(0, 1, 2), TypeError, "pairs of bounds"),
        (lambda: Rect(((0, 1, 2),)), TypeError, "pairs"),
        (lambda: Rect(5), TypeError, "pairs"),
        (lambda: Rect(0, 1, ranges=((0, 1),)), TypeError, "both"),
        (lambda: Rect(3, 2), ShapeError, "lo 3 > hi 2"),
        (lambda: Rect(0, 1.5), DTypeError, "integers"),
        (lambda: MaskSpec("dense"), MLXSparseError, "kind must be one of"),
        (lambda: MaskSpec("tile", tile_h=2, tile_shape=(2, 2)), MLXSparseError, "tile_shape excludes"),
        (lambda: MaskSpec("tile", tile_w=2, tile_shape=2), MLXSparseError, "tile_shape excludes"),
        (lambda: MaskSpec("tile", tile_h=0), ShapeError, "tile_h"),
        (lambda: MaskSpec("tile", tile_shape=(2, 0, 2)), ShapeError, "tile_shape"),
        (lambda: MaskSpec("tile", tile_shape=2.5), DTypeError, "tile_shape"),
        (lambda: CanvasLayout(2, spatial_shape=3), DTypeError, "spatial_shape"),
        (lambda: MaskSpec("tile", mask=np.ones((2, 2), bool)), MLXSparseError, "kind="),
        (lambda: MaskSpec("full", tile_shape=2), MLXSparseError, 'tile_shape needs kind="tile"'),
        (lambda: MaskSpec("full", shift=(0, 0, 3)), MLXSparseError, "shift needs kind="),
        (lambda: MaskSpec("sparse", tile_h=3), MLXSparseError, "tile_h needs kind="),
        (
            lambda: MaskSpec("sparse", tile_w=3, mask=np.ones((2, 2), bool)),
            MLXSparseError,
            "tile_w needs kind=",
        ),
        (lambda: MaskSpec("sparse", mask=np.ones((2, 2))), DTypeError, "wanted bool"),
        (lambda: MaskSpec("sparse", mask=np.ones(4, bool)), ShapeError, "mask has shape"),
        (lambda: rect_cover(np.ones((2, 2), int)), DTypeError, "wanted bool"),
        (lambda: rect_cover(np.array(True)), ShapeError, "scalar"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_specs_are_equal_by_content():
    mask = np.eye(3, dtype=bool)
    a, b = MaskSpec("sparse", mask=mask), MaskSpec("sparse", mask=mask.copy())
    assert a == b and hash(a) == hash(b) and a != MaskSpec("sparse", mask=~mask) and a != MaskSpec("sparse")
    mask[:] = False
    assert a.mask.trace() == 3


def check_cover(mask, boxes):
    seen = np.zeros(mask.shape, int)
    for box in boxes:
        assert box.volume > 0
        seen[box.slices] += 1
    assert np.array_equal(seen, mask.astype(int))  # complete, disjoint, nothing else
    volumes = [box.volume for box in boxes]
    assert volumes == sorted(volumes, reverse=True)


@given(arrays(bool, array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6)), st.integers(0, 30))
def test_cover_is_a_partition(mask, min_area):
    check_cover(mask, rect_cover(mask, min_area))


def test_boxes_are_found_whole():
    mask = np.zeros((6, 7, 8), bool)
    wanted = [Rect(0, 2, 0, 3, 1, 6), Rect(3, 6, 4, 7, 0, 3), Rect(2, 3, 0, 1, 7, 8)]
    for box in wanted:
        mask[box.slices] = True
    assert rect_cover(mask) == wanted
    assert rect_cover(np.ones((3, 4, 5), bool)) == [Rect(0, 3, 0, 4, 0, 5)]
    assert rect_cover(np.zeros((3, 4), bool)) == []


@pytest.mark.parametrize("shape", [(64, 64, 64), (20, 20, 20, 20)])
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
def test_cover_of_a_large_random_mask(shape, density):
    mask = np.random.default_rng(0).random(shape) < density
    start = time.process_time()
    boxes = rect_cover(mask)
    assert time.process_time() - start < 2
    check_cover(mask, boxes)
