"""The most frequent label of each group, on the host."""

from __future__ import annotations

import numpy as np

from .sorting import stable_argsort

HIGHEST = 2**31 - 1  # largest label


def majority(numbers: np.ndarray, labels: np.ndarray, num_groups: int) -> np.ndarray:
    """Most frequent label of each group, ties to the smaller label: (num_groups,) int32, -1 for none.

    numbers (n,) group of each position, labels (n,) integers up to HIGHEST; a negative one of either
    takes part in nothing.
    """
    found = np.full(num_groups, -1, np.int32)
    part = np.flatnonzero((numbers >= 0) & (labels >= 0))
    if len(part) == 0:
        return found
    width = int(labels[part].max()).bit_length()
    key = (numbers[part].astype(np.int64) << width) | labels[part].astype(np.int64)
    key = key.take(stable_argsort(key, width + int(num_groups).bit_length()))
    start = np.flatnonzero(np.append(True, key[1:] != key[:-1]))  # of each (group, label)
    votes = np.diff(start, append=len(key))
    group, label = key[start] >> width, key[start] & ((1 << width) - 1)
    # More votes are larger, then a smaller label is.
    best = (votes << 31) | (HIGHEST - label)
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    found[group[first]] = HIGHEST - (np.maximum.reduceat(best, first) & HIGHEST)
    return found
