"""Loops for backend/fast.py; imported only where numba is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ._numba_jit import njit

AHEAD = 16  # rows asked for before they are read: rows lie anywhere, and waiting for them is most of the time
_LINE = 64


@intrinsic
def _prefetch(context: Any, address: Any) -> Any:
    """Have the cache line at an address fetched."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, i32, i32, i32])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        builder.call(fetch, [builder.inttoptr(args[0], pointer), i32(0), i32(3), i32(1)])
        return target.get_dummy_value()

    return types.void(types.int64), generate


@njit(inline="always")
def prefetch_row(values: np.ndarray, row: int) -> None:
    start = values.ctypes.data + row * values.strides[0]
    for place in range(start, start + values.shape[1] * values.itemsize, _LINE):
        _prefetch(place)  # type: ignore[call-arg]


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
        if i + AHEAD < len(ranks):
            prefetch_row(source, ranks[i + AHEAD])
        row, rank = target[i], ranks[i]
        for c in range(channels):
            total[row, c] += source[rank, c]


@njit(inline="always")
def _larger(current: float, value: float) -> float:
    """As np.maximum: a NaN that is there stays, one that comes wins."""
    return value if (value > current or value != value) and current == current else current


@njit(nogil=True, cache=True, error_model="numpy")
def max_rows(best: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    channels = best.shape[1]
    for i in range(len(target)):
        if i + AHEAD < len(ranks):
            prefetch_row(source, ranks[i + AHEAD])
        row, rank = target[i], ranks[i]
        for c in range(channels):
            best[row, c] = _larger(best[row, c], source[rank, c])


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
def pack(
    b: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    low: np.ndarray,
    bits: np.ndarray,
    key: np.ndarray,
) -> None:
    b0, x0, y0, z0 = low[0], low[1], low[2], low[3]
    to_x, to_y, to_z = bits[1], bits[2], bits[3]
    for i in range(len(key)):
        slab = ((b[i] - b0) << to_x) + (x[i] - x0)
        key[i] = (((slab << to_y) + (y[i] - y0)) << to_z) + (z[i] - z0)


@njit(nogil=True, cache=True)
def split(key: np.ndarray, edge: int, row_bits: int, both: np.ndarray) -> int:
    """both = key << row_bits | position, those with key < edge first; returns how many these are."""
    low = 0
    if edge >= 0:  # keys are not negative
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
    both: np.ndarray,
    row_bits: int,
    group: int,
    distinct: np.ndarray,
    numbers: np.ndarray,
    first: np.ndarray,
    counts: np.ndarray,
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
            counts[group] = 0
        numbers[row] = group
        counts[group] += 1


@njit(nogil=True, cache=True)
def unpack(key: np.ndarray, low: np.ndarray, bits: np.ndarray, shift: np.ndarray, out: np.ndarray) -> None:
    b0, x0, y0, z0 = low[0], low[1], low[2], low[3]
    sb, sx, sy, sz = shift[0], shift[1], shift[2], shift[3]
    to_x, to_y, to_z = bits[1], bits[2], bits[3]
    xs, ys, zs = (1 << to_x) - 1, (1 << to_y) - 1, (1 << to_z) - 1
    for i in range(len(key)):
        column = key[i] >> to_z
        slab = column >> to_y
        out[i, 3] = ((key[i] & zs) + z0) >> sz
        out[i, 2] = ((column & ys) + y0) >> sy
        out[i, 1] = ((slab & xs) + x0) >> sx
        out[i, 0] = ((slab >> to_x) + b0) >> sb


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
        for place in range(starts[o] + AHEAD, min(starts[o] + counts[o] + AHEAD, len(rows))):
            prefetch_row(source, rows[place])
        row = rows[starts[o]]
        for c in range(channels):
            out[o, c] = source[row, c]
        for k in range(1, counts[o]):
            row = rows[starts[o] + k]
            for c in range(channels):
                out[o, c] = _larger(out[o, c], source[row, c])


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
        for place in range(starts[o] + AHEAD, min(starts[o] + counts[o] + AHEAD, len(rows))):
            prefetch_row(source, rows[place])
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
