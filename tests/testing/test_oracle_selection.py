"""The oracle of selections, joins, curves and neighbours against values worked out by hand."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from mlxsparse.testing import oracle

COORDS = np.array([[0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, -1, 0, 0]])


def test_topk_of_equal_scores_keeps_the_lower_row() -> None:
    scores = np.array([5.0, 1.0, 5.0, 5.0])
    assert oracle.topk_rows(COORDS, scores, 2) == [0, 1, 2]
    assert oracle.topk_rows(COORDS, scores, 2, per_batch=False) == [0, 2]


def test_crop_is_half_open() -> None:
    assert oracle.crop_rows(COORDS, (-1, 0, 0), (2, 1, 1)) == [1, 2, 3]


def test_sets_and_lookup() -> None:
    other = np.array([[0, 0, 0, 0], [0, 9, 9, 9]])
    assert oracle.intersection(COORDS, other).tolist() == [[0, 0, 0, 0]]
    assert len(oracle.union(COORDS, other)) == 5
    assert oracle.lookup(COORDS, other) == [2, -1]


@pytest.mark.parametrize(
    ("how", "zs", "want"),
    [("inner", [1], [22]), ("left", [1, 0], [22, 1]), ("outer", [0, 1, 2], [1, 22, 30])],
)
def test_join(how: str, zs: list[int], want: list[float]) -> None:
    a = np.array([[0, 0, 0, 1], [0, 0, 0, 0]]), np.array([[2.0], [1.0]])
    b = np.array([[0, 0, 0, 1], [0, 0, 0, 2]]), np.array([[20.0], [30.0]])
    coords, feats = oracle.join(*a, *b, operator.add, how)
    assert coords[:, 3].tolist() == zs and feats[:, 0].tolist() == want


def test_mode_and_collect() -> None:
    voxel = np.array([0, 1, 0, -1, 0, 0])
    assert oracle.mode(voxel, np.array([3, -1, 2, 7, 3, 2]), 3) == [2, -1, -1]
    values, counts = oracle.collect(voxel, np.arange(1.0, 7.0)[:, None], 2, 3)
    assert values[..., 0].tolist() == [[1, 3], [2, 0], [0, 0]] and counts == [2, 1, 0]


def test_morton_index_interleaves_bits_x_highest() -> None:
    assert oracle.morton_index((1, 0, 0), 2) == 0b100
    assert oracle.morton_index((2, 3, 1), 2) == 0b110_011


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_hilbert_index_is_a_path_over_faces(levels: int) -> None:
    cells = [tuple(cell) for cell in np.ndindex(*(2**levels,) * 3)]
    path = np.array(sorted(cells, key=lambda cell: oracle.hilbert_index(cell, levels)))
    assert sorted(oracle.hilbert_index(cell, levels) for cell in cells) == list(range(8**levels))
    assert (np.abs(np.diff(path, axis=0)).sum(axis=1) == 1).all()
    assert path[0].tolist() == [0, 0, 0] and path[-1].tolist() == [2**levels - 1, 0, 0]


def test_curves_go_batch_by_batch_negative_first() -> None:
    for order in ("lexicographic", "morton", "hilbert"):
        rows = oracle.curve_rows(COORDS, order)
        assert rows[-1] == 1 and set(rows[:3]) == {0, 2, 3}
    assert oracle.curve_rows(COORDS, "lexicographic") == [3, 2, 0, 1]
    assert oracle.curve_rows(COORDS, "morton") == [3, 2, 0, 1]


def test_neighbours_of_equal_distance_come_by_row() -> None:
    rows, distances, counts = oracle.neighbours(COORDS, np.array([[0.5, 0, 0], [9, 9, 9]]), [0, 2], 2, 1.5)
    assert rows.tolist() == [[2, 0], [-1, -1]] and counts.tolist() == [3, 0]
    assert distances.tolist() == [[0.5, 1.5], [np.inf, np.inf]]
