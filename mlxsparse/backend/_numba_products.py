"""Products by NumPy's BLAS inside compiled loops, for backend/fast.py; imported only where numba is."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ._numba_loops import AHEAD, prefetch_row

_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # of CBLAS
UNPACKED = 1_000_000  # multiply-adds up to which OpenBLAS copies no matrix: an eighth to a fifth faster
WIDE = bool(binding.get_host_cpu_features().get("avx512f"))  # registers for 8 sums of 16 lanes


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


# ---------------------------------------------------------------- few channels


@intrinsic
def _add_products(context: Any, lanes: Any, x: Any, y: Any, w: Any, k: Any, stride: Any) -> Any:
    """y[r][:L] += x[r][:k] @ w[:k, :L] for rows and w by address; x, y: tuples of as many rows, lanes of L.

    As BLAS does: from 0, one fused multiply-add after the other, then added. Rows of w are `stride` apart.
    """

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, x, y, w, k, stride = args
        width, count = (signature.args[i].count for i in (0, 1))
        f32, i32 = ir.FloatType(), ir.IntType(32)
        vector = ir.VectorType(f32, width)
        everywhere = ir.Constant(ir.VectorType(i32, width), [i32(0)] * width)
        kind = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{width}f32")
        rows = [builder.inttoptr(builder.extract_value(x, r), f32.as_pointer()) for r in range(count)]
        sums = [cgutils.alloca_once_value(builder, vector([f32(0.0)] * width)) for _ in rows]
        w = builder.inttoptr(w, f32.as_pointer())
        with cgutils.for_range(builder, k) as loop:
            weight = builder.gep(w, [builder.mul(loop.index, stride)])
            weight = builder.load(builder.bitcast(weight, vector.as_pointer()), align=4)
            for row, total in zip(rows, sums):
                value = builder.load(builder.gep(row, [loop.index]))
                value = builder.insert_element(vector(ir.Undefined), value, i32(0))
                value = builder.shuffle_vector(value, value, everywhere)
                builder.store(builder.call(fma, [value, weight, builder.load(total)]), total)
        for r, total in enumerate(sums):
            place = builder.inttoptr(builder.extract_value(y, r), vector.as_pointer())
            before = builder.load(place, align=4)
            builder.store(builder.fadd(before, builder.load(total)), place, align=4)
        return target.get_dummy_value()

    return types.void(lanes, x, y, w, k, stride), generate


@njit(inline="always")
def _row(base: int, rank: int, order: np.ndarray, stride: int) -> int:
    row = order[rank] if len(order) else rank
    return base + 4 * np.int64(row) * stride


@njit(nogil=True, cache=True, error_model="numpy")
def convolve_few(
    lanes: tuple[int, ...],
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray,
    taps: np.ndarray,
    in_rank: np.ndarray,
    out_rank: np.ndarray,
    edges: np.ndarray,
    bounds: np.ndarray,
    bias: np.ndarray,
    out_order: np.ndarray,
    y: np.ndarray,
) -> None:
    """Blocks of output ranks between the edges: y = bias + x[i] @ taps[t], eight rows at a time in registers.

    bounds (blocks + 1, T): pairs of each tap. lanes: as many as channels in a vector. taps and bias have a
    multiple of them, y may not.
    """
    k, n, channels = taps.shape[1], taps.shape[2], y.shape[1]
    in_place = n == channels and len(out_order) == 0
    total = y if in_place else np.empty((np.max(np.diff(edges)), n), np.float32)
    one, none = np.empty(n, np.float32), np.empty(0, np.int32)
    xs = x.ctypes.data
    for block in range(len(edges) - 1):
        first, last = edges[block], edges[block + 1]
        zero = 0 if in_place else first  # rank of the first row of total
        for row in range(first - zero, last - zero):
            for c in range(n):
                total[row, c] = bias[c]
        ys = total.ctypes.data - 4 * zero * n
        for t in range(len(taps)):
            a, b = bounds[block, t], bounds[block + 1, t]
            w = taps.ctypes.data + 4 * t * k * n
            if b - a == 1:  # rounded as `product` does
                row = _row(xs, in_rank[a], order, k)
                _gemv(blas[1], n, k, row, w, one.ctypes.data)  # type: ignore[call-arg]
                total[out_rank[a] - zero] += one
                continue
            while a + 8 <= b:
                i, o = in_rank[a : a + 8], out_rank[a : a + 8]
                rows = (
                    _row(xs, i[0], order, k), _row(xs, i[1], order, k),
                    _row(xs, i[2], order, k), _row(xs, i[3], order, k),
                    _row(xs, i[4], order, k), _row(xs, i[5], order, k),
                    _row(xs, i[6], order, k), _row(xs, i[7], order, k),
                )  # fmt: skip
                for c in range(0, 4 * n, 4 * len(lanes)):
                    y0 = ys + c
                    places = (
                        _row(y0, o[0], none, n), _row(y0, o[1], none, n),
                        _row(y0, o[2], none, n), _row(y0, o[3], none, n),
                        _row(y0, o[4], none, n), _row(y0, o[5], none, n),
                        _row(y0, o[6], none, n), _row(y0, o[7], none, n),
                    )  # fmt: skip
                    _add_products(lanes, rows, places, w + c, k, n)  # type: ignore[call-arg]
                a += 8
            while a < b:
                row, place = _row(xs, in_rank[a], order, k), _row(ys, out_rank[a], none, n)
                for c in range(0, 4 * n, 4 * len(lanes)):
                    _add_products(lanes, (row,), (place + c,), w + c, k, n)  # type: ignore[call-arg]
                a += 1
        for rank in range(first, first if in_place else last):
            out = out_order[rank] if len(out_order) else rank
            for c in range(channels):
                y[out, c] = total[rank - first, c]
