"""Products by NumPy's BLAS inside compiled loops, for backend/fast.py; imported only where numba is."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ._numba_jit import njit
from ._numba_loops import AHEAD, prefetch_row

_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # of CBLAS
UNPACKED = 1_000_000  # multiply-adds up to which OpenBLAS copies no matrix: an eighth to a fifth faster


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
def gemv(context: Any, address: Any, n: Any, k: Any, a: Any, b: Any, c: Any) -> Any:
    """As _gemm for one row, by cblas_sgemv, which is what NumPy calls then."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, n, k, *places = args
        a, b, c = (builder.inttoptr(p, ir.IntType(8).as_pointer()) for p in places)
        i32, step, one, zero = ir.IntType(32), ir.IntType(64)(1), ir.FloatType()(1.0), ir.FloatType()(0.0)
        flags = i32(_ROW_MAJOR), i32(_TRANSPOSED)
        _call(builder, address, *flags, k, n, one, b, n, a, step, zero, c, step)
        return target.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


@njit(inline="always")
def _pieces(m: int, n: int, k: int) -> int:
    """In how many parts to take m rows, about equal: one row alone might be rounded otherwise.

    So are columns past the last sixteenth one, of which OpenBLAS has two forms.
    """
    return 1 if n % 16 else max(1, min(m // 8, -(-m * n * k // UNPACKED)))


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
            if i + AHEAD < m:
                later = ranks[i + AHEAD]
                prefetch_row(x, order[later] if len(order) else later)
            row = order[ranks[i]] if len(order) else ranks[i]
            for c in range(channels):
                gathered[i, c] = x[row, c]
        source = gathered.ctypes.data
    n, w, y = weight.shape[1], weight.ctypes.data, out.ctypes.data
    if m == 1:
        gemv(blas[1], n, channels, source, w, y)  # type: ignore[call-arg]
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
    starts: np.ndarray,
    ends: np.ndarray,
    first: int,
    total: np.ndarray,
    gathered: np.ndarray,
    products: np.ndarray,
) -> None:
    """total[o - first] += x[i] @ taps[t] for the pairs [starts[t], ends[t]) of each tap."""
    channels = total.shape[1]
    for t in range(len(taps)):
        a, b = starts[t], ends[t]
        if a == b:
            continue
        pieces = _pieces(b - a, channels, x.shape[1])
        for p in range(pieces):
            low, high = a + p * (b - a) // pieces, a + (p + 1) * (b - a) // pieces
            product(blas, x, order, in_rank[low:high], taps[t], gathered, products)
            for i in range(high - low):
                row = out_rank[low + i] - first
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
    m, channels = len(rows), y.shape[1]
    pieces = _pieces(m, channels, x.shape[1])
    for p in range(pieces):
        low, high = p * m // pieces, (p + 1) * m // pieces
        product(blas, x, order, in_rank[low:high], weight, gathered, products)
        for i in range(high - low):
            row = rows[low + i]
            for c in range(channels):
                y[row, c] = products[i, c]


@njit(nogil=True, cache=True, error_model="numpy")
def rows_times(blas: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, y: np.ndarray) -> None:
    """y = x @ weight + bias, which may be empty."""
    m, n, k = len(x), weight.shape[1], x.shape[1]
    pieces = 1 if n % 16 else max(_pieces(m, n, k), m // 1024)
    for p in range(pieces):
        low, high = p * m // pieces, (p + 1) * m // pieces
        part = y[low:high]
        _gemm(blas[0], high - low, n, k, x[low:].ctypes.data, weight.ctypes.data, part.ctypes.data)  # type: ignore[call-arg]
        if len(bias):
            for i in range(high - low):
                for c in range(n):
                    part[i, c] += bias[c]
