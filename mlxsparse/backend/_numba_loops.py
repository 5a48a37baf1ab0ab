"""Loops for backend/fast.py; imported only where numba is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


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


@njit(inline="always")
def _larger(current: float, value: float) -> float:
    """As np.maximum: a NaN that is there stays, one that comes wins."""
    return value if (value > current or value != value) and current == current else current


@njit(nogil=True, cache=True, error_model="numpy")
def max_rows(best: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    channels = best.shape[1]
    for i in range(len(target)):
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


# ---------------------------------------------------------------- products by NumPy's BLAS

_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # of CBLAS


def _call(builder: Any, address: Any, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
    builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


@intrinsic
def _gemm(context: Any, address: Any, m: Any, n: Any, k: Any, a: Any, b: Any, c: Any) -> Any:
    """c = a @ b of row-major float32 (m, k), (k, n) by cblas_sgemm with 64-bit integers; all by address."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, m, n, k, *places = args
        a, b, c = (builder.inttoptr(p, ir.IntType(8).as_pointer()) for p in places)
        i32, one, zero = ir.IntType(32), ir.FloatType()(1.0), ir.FloatType()(0.0)
        flags = i32(_ROW_MAJOR), i32(_AS_IT_IS), i32(_AS_IT_IS)
        _call(builder, address, *flags, m, n, k, one, a, k, b, n, zero, c, n)
        return target.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def _gemv(context: Any, address: Any, n: Any, k: Any, a: Any, b: Any, c: Any) -> Any:
    """As _gemm for one row, by cblas_sgemv, which is what NumPy calls then."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, n, k, *places = args
        a, b, c = (builder.inttoptr(p, ir.IntType(8).as_pointer()) for p in places)
        i32, step, one, zero = ir.IntType(32), ir.IntType(64)(1), ir.FloatType()(1.0), ir.FloatType()(0.0)
        flags = i32(_ROW_MAJOR), i32(_TRANSPOSED)
        _call(builder, address, *flags, k, n, one, b, n, a, step, zero, c, step)
        return target.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


@njit(nogil=True, cache=True, error_model="numpy")
def product(
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray,
    ranks: np.ndarray,
    weight: np.ndarray,
    gathered: np.ndarray,
    out: np.ndarray,
) -> None:
    """out[i] = x[order[ranks[i]]] @ weight; an empty order is the ranks themselves. `gathered`: room."""
    m, channels = len(ranks), x.shape[1]
    if len(order) == 0 and ranks[m - 1] - ranks[0] == m - 1:
        source = x[ranks[0] :].ctypes.data
    else:
        for i in range(m):
            row = order[ranks[i]] if len(order) else ranks[i]
            for c in range(channels):
                gathered[i, c] = x[row, c]
        source = gathered.ctypes.data
    n, w, y = weight.shape[1], weight.ctypes.data, out.ctypes.data
    if m == 1:
        _gemv(blas[1], n, channels, source, w, y)  # type: ignore[call-arg]
    else:
        _gemm(blas[0], m, n, channels, source, w, y)  # type: ignore[call-arg]


@njit(nogil=True, cache=True, error_model="numpy")
def convolve_block(
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray,
    taps: np.ndarray,
    in_rank: np.ndarray,
    out_rank: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    first: int,
    total: np.ndarray,
    gathered: np.ndarray,
    products: np.ndarray,
) -> None:
    """total[o - first] += x[i] @ taps[t] for the pairs [low[t], high[t]) of each tap."""
    channels = total.shape[1]
    for t in range(len(taps)):
        a, b = low[t], high[t]
        if a == b:
            continue
        product(blas, x, order, in_rank[a:b], taps[t], gathered, products)
        for i in range(b - a):
            row = out_rank[a + i] - first
            for c in range(channels):
                total[row, c] += products[i, c]


@njit(nogil=True, cache=True, error_model="numpy")
def put_products(
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray,
    weight: np.ndarray,
    in_rank: np.ndarray,
    rows: np.ndarray,
    y: np.ndarray,
    gathered: np.ndarray,
    products: np.ndarray,
) -> None:
    """y[rows[i]] = x[in_rank[i]] @ weight."""
    product(blas, x, order, in_rank, weight, gathered, products)
    channels = y.shape[1]
    for i in range(len(rows)):
        for c in range(channels):
            y[rows[i], c] = products[i, c]
