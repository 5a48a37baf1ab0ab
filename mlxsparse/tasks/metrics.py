"""Scores of a segmentation: confusion matrix, intersection over union, and a table to print. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import CoordinateRangeError, DTypeError, ShapeError


def confusion_matrix(truth: np.ndarray, prediction: np.ndarray, num_classes: int,
                     ignore: int | None = None) -> np.ndarray:
    """int64 (num_classes, num_classes): entry [t, p] counts points of true class t predicted as p.

    truth, prediction: integer arrays of one shape, any rank. Points whose truth is `ignore` are left out,
    whatever was predicted for them. Matrices of several scenes add up.
    Raises ShapeError for shapes that differ, DTypeError for non-integers, and CoordinateRangeError for a
    class outside [0, num_classes).
    """
    truth, prediction = np.asarray(truth), np.asarray(prediction)
    if truth.shape != prediction.shape:
        raise ShapeError(f"truth has shape {truth.shape}, prediction {prediction.shape}; one shape is needed")
    for name, values in (("truth", truth), ("prediction", prediction)):
        if values.dtype.kind not in "iu":
            raise DTypeError(f"{name} has dtype {values.dtype}; integer classes are needed "
                             "(for scores, use scores.argmax(axis=-1))")
    truth, prediction = truth.ravel().astype(np.int64), prediction.ravel().astype(np.int64)
    if ignore is not None:
        kept = truth != ignore
        truth, prediction = truth[kept], prediction[kept]
    for name, values in (("truth", truth), ("prediction", prediction)):
        if values.size and (values.min() < 0 or values.max() >= num_classes):
            raise CoordinateRangeError(f"{name} holds classes from {values.min()} to {values.max()}; 0 to "
                                       f"{num_classes - 1} are needed (ignore= leaves one true class out)")
    counts = np.bincount(truth * num_classes + prediction, minlength=num_classes * num_classes)
    return counts.reshape(num_classes, num_classes)


def iou_per_class(matrix: np.ndarray) -> np.ndarray:
    """float64 (C,): TP / (TP + FP + FN) of each class; NaN for a class in neither truth nor prediction."""
    matrix = _square(matrix)
    hits = np.diagonal(matrix).astype(np.float64)
    union = matrix.sum(axis=0) + matrix.sum(axis=1) - hits
    return np.divide(hits, union, out=np.full(len(matrix), np.nan), where=union > 0)


def mean_iou(matrix: np.ndarray) -> float:
    """Mean of `iou_per_class` over the classes that occur in truth or prediction; NaN if none does."""
    scores = iou_per_class(matrix)
    known = ~np.isnan(scores)
    return float(scores[known].mean()) if known.any() else float("nan")


def overall_accuracy(matrix: np.ndarray) -> float:
    """Share of points predicted right; NaN without points."""
    matrix = _square(matrix)
    return float(np.trace(matrix) / matrix.sum()) if matrix.any() else float("nan")


def format_table(matrix: np.ndarray, class_names: Sequence[str] | None = None) -> str:
    """Text table of IoU (percent), precision, recall and true points per class, then the means.

    A score without points to measure it on is shown as `-`. ShapeError unless there is a name for each class.
    """
    matrix = _square(matrix)
    names = [str(i) for i in range(len(matrix))] if class_names is None else list(class_names)
    if len(names) != len(matrix):
        raise ShapeError(f"class_names has {len(names)} names; the matrix has {len(matrix)} classes")
    hits = np.diagonal(matrix).astype(np.float64)
    true, predicted = matrix.sum(axis=1), matrix.sum(axis=0)
    width = max(map(len, [*names, "mean IoU", "accuracy"]))
    lines = [f"{'class':<{width}}  {'IoU':>6}  {'prec':>6}  {'recall':>6}  {'points':>10}"]
    for name, iou, hit, t, p in zip(names, iou_per_class(matrix), hits, true, predicted):
        precision, recall = (hit / p if p else np.nan), (hit / t if t else np.nan)
        lines.append(f"{name:<{width}}  {_percent(iou)}  {_percent(precision)}  {_percent(recall)}  {t:>10}")
    lines.append(f"{'mean IoU':<{width}}  {_percent(mean_iou(matrix))}")
    accuracy = _percent(overall_accuracy(matrix))
    lines.append(f"{'accuracy':<{width}}  {accuracy}  {'':6}  {'':6}  {true.sum():>10}")
    return "\n".join(lines)


def _percent(value: float) -> str:
    return f"{'-':>6}" if np.isnan(value) else f"{100 * value:6.2f}"


def _square(matrix: np.ndarray) -> np.ndarray:
    matrix = np.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"matrix has shape {matrix.shape}; (C, C) of confusion_matrix is needed")
    return matrix
