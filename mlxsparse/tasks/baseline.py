"""Classes from height, normal and intensity by logistic regression: what a network must beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend.host import silent
from .metrics import confusion_matrix

_STEPS, _RATE, _DECAY = 300, 0.1, 1e-4


def normals(points: np.ndarray, size: float) -> np.ndarray:
    """Unit normals (N, 3), z >= 0: the direction of least spread of the points in 3 x 3 x 3 cells of `size`.

    points (N, 3) finite. Where the points there do not span a plane, the normal is some unit vector.
    """
    if len(points) == 0:
        return np.zeros((0, 3))
    xyz = points - points.mean(axis=0)
    cell = np.floor((xyz - xyz.min(axis=0)) / size).astype(np.int64) + 1
    extent = cell.max(axis=0) + 2
    keys, of_point = np.unique(
        (cell[:, 0] * extent[1] + cell[:, 1]) * extent[2] + cell[:, 2], return_inverse=True
    )
    first, second = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)
    columns = [np.ones(len(xyz)), *xyz.T, *(xyz[:, a] * xyz[:, b] for a, b in zip(first, second))]
    sums = np.stack([np.bincount(of_point, column, len(keys)) for column in columns], axis=1)
    total = np.zeros_like(sums)
    for shift in np.ndindex(3, 3, 3):
        dx, dy, dz = (s - 1 for s in shift)
        wanted = keys + (dx * extent[1] + dy) * extent[2] + dz
        at = np.searchsorted(keys, wanted).clip(0, len(keys) - 1)
        total += np.where((keys[at] == wanted)[:, None], sums[at], 0)
    mean = total[:, 1:4] / total[:, :1]
    spread = np.empty((len(keys), 3, 3))
    for i, (a, b) in enumerate(zip(first, second)):
        spread[:, a, b] = spread[:, b, a] = total[:, 4 + i] / total[:, 0] - mean[:, a] * mean[:, b]
    normal = np.linalg.eigh(spread)[1][:, :, 0]
    normal *= np.where(normal[:, 2:] < 0, -1, 1)
    return np.asarray(normal[of_point])


def features(points: np.ndarray, intensity: np.ndarray, size: float) -> np.ndarray:
    """(N, 20): height, |normal| along x, y, z, intensity, and the squares and products of
    these; `size` is the cell of the normals."""
    base = np.column_stack([points[:, 2], np.abs(normals(points, size)), intensity])
    pairs = [(a, b) for a in range(base.shape[1]) for b in range(a, base.shape[1])]
    return np.column_stack([base, *(base[:, a] * base[:, b] for a, b in pairs)])


def fit_and_score(
    training: Sequence[tuple[np.ndarray, np.ndarray]],
    held_out: Sequence[tuple[np.ndarray, np.ndarray]],
    num_classes: int,
    most: int = 100_000,
    seed: int = 0,
) -> np.ndarray:
    """Confusion matrix on the held-out (features, labels) of a regression fitted to the training ones.

    At most `most` training points, drawn at random; classes weighted by the inverse root of their
    frequency, as the network's are.
    """
    x = np.concatenate([f for f, _ in training])
    y = np.concatenate([labels for _, labels in training])
    drawn = np.random.default_rng(seed).permutation(len(y))[:most]
    x, y = x[drawn], y[drawn]
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-9
    matrix = np.zeros((num_classes, num_classes), np.int64)
    with silent():
        weight, bias = _fit((x - mean) / deviation, y, num_classes)
        for part, labels in held_out:
            matrix += confusion_matrix(
                labels, ((part - mean) / deviation @ weight + bias).argmax(axis=1), num_classes
            )
    return matrix


def _fit(x: np.ndarray, y: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights (F, C) and bias (C,) that minimise the weighted cross-entropy: Adam on all rows."""
    x = np.column_stack([x, np.ones(len(x))])
    share = np.bincount(y, minlength=num_classes) / len(y)
    importance = 1 / np.sqrt(np.maximum(share, 1e-6))
    row = importance[y] / importance[y].sum()
    target = np.eye(num_classes)[y]
    w = np.zeros((x.shape[1], num_classes))
    first, second = np.zeros_like(w), np.zeros_like(w)
    for step in range(1, _STEPS + 1):
        score = x @ w
        p = np.exp(score - score.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        gradient = x.T @ ((p - target) * row[:, None]) + _DECAY * w
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        w -= _RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    return w[:-1], w[-1]
