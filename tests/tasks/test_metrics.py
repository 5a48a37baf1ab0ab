"""Segmentation scores against small cases worked by hand and a definition by sets."""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.errors import CoordinateRangeError, DTypeError, ShapeError
from mlxsparse.tasks.metrics import confusion_matrix, format_table, iou_per_class, mean_iou, overall_accuracy

TRUTH = np.array([0, 0, 0, 1, 1, 2, 9, 9])
PREDICTION = np.array([0, 0, 1, 1, 0, 2, 1, 0])


def test_confusion_matrix_rows_are_truth():
    matrix = confusion_matrix(TRUTH, PREDICTION, 4, ignore=9)
    assert matrix.dtype == np.int64
    np.testing.assert_array_equal(matrix, [[2, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])


def test_iou_by_hand():
    matrix = confusion_matrix(TRUTH, PREDICTION, 4, ignore=9)
    np.testing.assert_array_equal(iou_per_class(matrix), [2 / 4, 1 / 3, 1, np.nan])
    assert mean_iou(matrix) == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)
    assert overall_accuracy(matrix) == pytest.approx(4 / 6)


def test_class_only_predicted_counts_as_zero():
    """A class that is absent from the truth but predicted is wrong, not absent: IoU 0, in the mean."""
    matrix = confusion_matrix(np.array([0, 0]), np.array([0, 1]), 3)
    np.testing.assert_array_equal(iou_per_class(matrix), [0.5, 0, np.nan])
    assert mean_iou(matrix) == 0.25


@pytest.mark.parametrize("seed", range(5))
def test_against_sets(seed):
    chance = np.random.default_rng(seed)
    truth, prediction = chance.integers(0, 6, (2, 40, 5))
    ious = iou_per_class(confusion_matrix(truth, prediction, 7, ignore=5))
    kept = truth != 5
    for c in range(7):
        a, b = (truth == c) & kept, (prediction == c) & kept
        if (a | b).any():
            assert ious[c] == (a & b).sum() / (a | b).sum()
        else:
            assert np.isnan(ious[c])


def test_matrices_of_scenes_add_up_and_order_does_not_matter():
    chance = np.random.default_rng(0)
    truth, prediction = chance.integers(0, 4, (2, 300)).astype(np.uint8)
    whole = confusion_matrix(truth, prediction, 4)
    parts = [confusion_matrix(truth[i::3], prediction[i::3], 4) for i in range(3)]
    np.testing.assert_array_equal(whole, sum(parts))


def test_many_classes_do_not_wrap_small_integer_types():
    labels = np.full(10, 199, np.uint8)
    assert confusion_matrix(labels, labels, 200)[199, 199] == 10


def test_nothing_to_score():
    empty = confusion_matrix(np.zeros(0, int), np.zeros(0, int), 3)
    assert empty.shape == (3, 3) and np.isnan(mean_iou(empty)) and np.isnan(overall_accuracy(empty))
    ignored = confusion_matrix(np.array([7]), np.array([-1]), 3, ignore=7)
    assert not ignored.any()
    assert "-" in format_table(empty)


def test_table():
    matrix = confusion_matrix(TRUTH, PREDICTION, 4, ignore=9)
    lines = format_table(matrix, ["ground", "car", "pole", "person"]).splitlines()
    assert lines[1].split() == ["ground", "50.00", "66.67", "66.67", "3"]
    assert lines[2].split() == ["car", "33.33", "50.00", "50.00", "2"]
    assert lines[4].split() == ["person", "-", "-", "-", "0"]
    assert lines[5].split() == ["mean", "IoU", "61.11"]
    assert lines[6].split() == ["accuracy", "66.67", "6"]


@pytest.mark.parametrize(("call", "error"), [
    (lambda: confusion_matrix(np.zeros(3, int), np.zeros(4, int), 2), ShapeError),
    (lambda: confusion_matrix(np.zeros(3), np.zeros(3, int), 2), DTypeError),
    (lambda: confusion_matrix(np.zeros(3, int), np.zeros(3), 2), DTypeError),
    (lambda: confusion_matrix(np.array([2]), np.array([0]), 2), CoordinateRangeError),
    (lambda: confusion_matrix(np.array([0]), np.array([-1]), 2), CoordinateRangeError),
    (lambda: confusion_matrix(np.array([-1]), np.array([0]), 2, ignore=255), CoordinateRangeError),
    (lambda: mean_iou(np.zeros((2, 3), int)), ShapeError),
    (lambda: format_table(np.zeros((2, 2), int), ["a"]), ShapeError),
])
def test_errors(call, error):
    with pytest.raises(error):
        call()
