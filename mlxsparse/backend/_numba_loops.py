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
def segment_sum(
    values: np.ndarray,
    ids: np.ndarray,
    share: np.ndarray,
    out: np.ndarray,
    total: np.ndarray,
    low: int,
    high: int,
) -> None:
    """Groups [low, high); total holds their sums."""
    channels = values.shape[1]
    total[:] = 0
    for i in range(len(ids)):
        group = ids[i]
        if low <= group < high:
            for c in range(channels):
                total[group - low, c] += values[i, c]
    for group in range(low, high):
        for c in range(channels):
            value = total[group - low, c]
            out[group, c] = value * share[group] if len(share) else value


@njit(nogil=True, cache=True)
def count(ids: np.ndarray, total: np.ndarray) -> None:
    for i in range(len(ids)):
        if ids[i] >= 0:
            total[ids[i]] += 1


@njit(nogil=True, cache=True)
def sort_bits(values: np.ndarray, other: np.ndarray, low: int, high: int) -> np.ndarray:
    """Radix sort from the lowest digit on; the result is in `values` or `other`."""
    digits = (high - low + 10) // 11
    width = (high - low + max(digits, 1) - 1) // max(digits, 1)
    mask = np.uint64((1 << width) - 1)
    counts = np.zeros((digits, 1 << width), np.int64)
    for i in range(len(values)):
        v = values[i] >> np.uint64(low)
        for d in range(digits):
            counts[d, v & mask] += 1
            v >>= np.uint64(width)
    for d in range(digits):
        place, total = counts[d], 0
        for k in range(1 << width):
            count = place[k]
            place[k] = total
            total += count
        shift = np.uint64(low + d * width)
        for i in range(len(values)):
            v = values[i]
            k = (v >> shift) & mask
            other[place[k]] = v
            place[k] += 1
        values, other = other, values
    return values


@njit(nogil=True, cache=True)
def split(key: np.ndarray, edge: int, row_bits: int, both: np.ndarray) -> int:
    """both = key << row_bits | position, those with key < edge first; returns how many these are."""
    low = 0
    for i in range(len(key)):
        low += key[i] < edge
    a, b = 0, low
    for i in range(len(key)):
        below = key[i] < edge
        value = np.uint64((key[i] << row_bits) | i)
        if below:
            both[a] = value
            a += 1
        else:
            both[b] = value
            b += 1
    return low


@njit(nogil=True, cache=True)
def count_groups(both: np.ndarray, row_bits: int) -> int:
    shift = np.uint64(row_bits)
    groups = 0
    for i in range(len(both)):
        groups += i == 0 or (both[i] >> shift) != (both[i - 1] >> shift)
    return groups


@njit(nogil=True, cache=True)
def number_groups(
    both: np.ndarray, row_bits: int, group: int, distinct: np.ndarray, numbers: np.ndarray, first: np.ndarray
) -> None:
    """Number the runs of equal keys from `group` on."""
    shift, mask = np.uint64(row_bits), np.uint64((1 << row_bits) - 1)
    group -= 1
    for i in range(len(both)):
        key, row = both[i] >> shift, both[i] & mask
        if i == 0 or key != (both[i - 1] >> shift):
            group += 1
            distinct[group] = key
            first[group] = row
        numbers[row] = group


@njit(nogil=True, cache=True)
def unzip(both: np.ndarray, row_bits: int, order: np.ndarray, ranked: np.ndarray) -> None:
    shift, mask = np.uint64(row_bits), np.uint64((1 << row_bits) - 1)
    for i in range(len(both)):
        order[i] = both[i] & mask
        ranked[i] = both[i] >> shift


@njit(nogil=True, cache=True, error_model="numpy")
def max_windows(
    source: np.ndarray, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray, out: np.ndarray
) -> None:
    channels = source.shape[1]
    for o in range(len(starts)):
        row = rows[starts[o]]
        for c in range(channels):
            out[o, c] = source[row, c]
        for k in range(1, counts[o]):
            row = rows[starts[o] + k]
            for c in range(channels):
                value, current = source[row, c], out[o, c]
                out[o, c] = value if (value > current or value != value) and current == current else current


@njit(nogil=True, cache=True, error_model="numpy")
def sum_windows(
    source: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    scale: np.ndarray,
    out: np.ndarray,
) -> None:
    channels = source.shape[1]
    for o in range(len(starts)):
        row = rows[starts[o]]
        for c in range(channels):
            out[o, c] = source[row, c]
        for k in range(1, counts[o]):
            row = rows[starts[o] + k]
            for c in range(channels):
                out[o, c] += source[row, c]
        if len(scale):
            for c in range(channels):
                out[o, c] *= scale[o]
