"""Loops for backend/fast.py; imported only where numba is installed."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def add_rows(total: np.ndarray, target: np.ndarray, value: np.ndarray) -> None:
    channels = total.shape[1]
    for i in range(len(target)):
        row = target[i]
        for c in range(channels):
            total[row, c] += value[i, c]


@njit(nogil=True, cache=True, error_model="numpy")
def add_gathered(total: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    channels = total.shape[1]
    for i in range(len(target)):
        row, rank = target[i], ranks[i]
        for c in range(channels):
            total[row, c] += source[rank, c]


@njit(nogil=True, cache=True, error_model="numpy")
def max_rows(best: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    channels = best.shape[1]
    for i in range(len(target)):
        row, rank = target[i], ranks[i]
        for c in range(channels):
            value, current = source[rank, c], best[row, c]
            # A NaN that is there stays; one that comes wins.
            best[row, c] = value if (value > current or value != value) and current == current else current


@njit(nogil=True, cache=True, error_model="numpy")
def segment_sum(values: np.ndarray, ids: np.ndarray, total: np.ndarray) -> None:
    channels = values.shape[1]
    for i in range(len(ids)):
        group = ids[i]
        if group >= 0:
            for c in range(channels):
                total[group, c] += values[i, c]
