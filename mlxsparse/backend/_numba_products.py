"""Products by NumPy's BLAS inside compiled loops, for backend/fast.py; imported only where numba is."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ._numba_loops import AHEAD, prefetch_row
from ._numba_team import floats, ints, share, words

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
def _add_products(
    context: Any, lanes: Any, rows: Any, x: Any, into: Any, y: Any, out: Any, w: Any, k: Any, n: Any
) -> Any:
    """y[out[r], :L] += x[into[r]] @ w[:, :L] for float32 x (., k), y (., n), w (k, n) and int32 into, out.

    All by address; `lanes` and `rows` are tuples as long as L and the number of rows. As BLAS does: from 0,
    one fused multiply-add after the other, then added.
    """

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        width, count = (signature.args[i].count for i in (0, 1))
        f32, i32, i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
        x, into, y, out, w = (
            builder.inttoptr(place, kind.as_pointer())
            for place, kind in zip(args[2:7], (f32, i32, f32, i32, f32))
        )
        k, n = args[7:]
        vector = ir.VectorType(f32, width)
        everywhere = ir.Constant(ir.VectorType(i32, width), [i32(0)] * width)
        kind = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{width}f32")

        def row(start: Any, ranks: Any, r: int, length: Any) -> Any:
            rank = builder.sext(builder.load(builder.gep(ranks, [i32(r)])), i64)
            return builder.gep(start, [builder.mul(rank, length)])

        sources = [row(x, into, r, k) for r in range(count)]
        sums = [cgutils.alloca_once_value(builder, vector([f32(0.0)] * width)) for _ in sources]
        with cgutils.for_range(builder, k) as loop:
            weight = builder.gep(w, [builder.mul(loop.index, n)])
            weight = builder.load(builder.bitcast(weight, vector.as_pointer()), align=4)
            for source, total in zip(sources, sums):
                value = builder.load(builder.gep(source, [loop.index]))
                value = builder.insert_element(vector(ir.Undefined), value, i32(0))
                value = builder.shuffle_vector(value, value, everywhere)
                builder.store(builder.call(fma, [value, weight, builder.load(total)]), total)
        for r, total in enumerate(sums):
            place = builder.bitcast(row(y, out, r, n), vector.as_pointer())
            builder.store(builder.fadd(builder.load(place, align=4), builder.load(total)), place, align=4)
        return target.get_dummy_value()

    return types.void(lanes, rows, x, into, y, out, w, k, n), generate


_EIGHT, _ONE = (0,) * 8, (0,)


@njit(nogil=True, error_model="numpy")
def _convolve_few(
    lanes: tuple[int, ...],
    gemv: int,
    k: int,
    n: int,
    xs: int,
    order: np.ndarray,
    ws: int,
    in_rank: np.ndarray,
    out_rank: np.ndarray,
    first: int,
    last: int,
    spans: np.ndarray,
    around: np.ndarray,
    bias: np.ndarray,
    out_order: np.ndarray,
    y: np.ndarray,
) -> None:
    """Output ranks [first, last): y = bias + x[i] @ taps[t], eight rows at a time in registers.

    x (., k), taps (T, k, n) and bias (n,) by address or with whole vectors of channels, y may have less. spans
    (2, T): pairs of each tap; around: as many pairs of those of the whole block of `alone` ranks.
    """
    channels = y.shape[1]
    in_place = n == channels and len(out_order) == 0
    total = y if in_place else np.empty((last - first, n), np.float32)
    one, rows = np.empty(n, np.float32), np.empty(last - first if len(order) else 0, np.int32)
    step = 4 * len(lanes)
    into0, out0 = np.int64(in_rank.ctypes.data), np.int64(out_rank.ctypes.data)
    zero = 0 if in_place else first  # rank of the first row of total
    for row in range(first - zero, last - zero):
        for c in range(n):
            total[row, c] = bias[c]
    ys = np.int64(total.ctypes.data) - 4 * zero * n
    for t in range(spans.shape[1]):
        a, b = spans[0, t], spans[1, t]
        if a == b:
            continue
        w, into, out = ws + 4 * t * k * n, into0 + 4 * a, out0 + 4 * a
        if len(order):
            for i in range(b - a):
                rows[i] = order[in_rank[a + i]]
            into = np.int64(rows.ctypes.data)
        if around[1, t] - around[0, t] == 1:  # rounded as NumPy does
            row = order[in_rank[a]] if len(order) else in_rank[a]
            _gemv(gemv, n, k, xs + 4 * k * np.int64(row), w, one.ctypes.data)  # type: ignore[call-arg]
            total[out_rank[a] - zero] += one
            continue
        for _ in range((b - a) // 8):
            for c in range(0, 4 * n, step):
                _add_products(lanes, _EIGHT, xs, into, ys + c, out, w + c, k, n)  # type: ignore[call-arg]
            into, out = into + 32, out + 32
        for _ in range((b - a) % 8):
            for c in range(0, 4 * n, step):
                _add_products(lanes, _ONE, xs, into, ys + c, out, w + c, k, n)  # type: ignore[call-arg]
            into, out = into + 4, out + 4
    for rank in range(first, first if in_place else last):
        row = out_order[rank] if len(out_order) else rank
        for c in range(channels):
            y[row, c] = total[rank - first, c]


@njit(nogil=True, cache=True, error_model="numpy")
def convolve_few(
    crew: tuple[int, int, bool],
    job: int,
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray,
    taps: np.ndarray,
    in_rank: np.ndarray,
    out_rank: np.ndarray,
    edges: np.ndarray,
    bounds: np.ndarray,
    group: int,
    bias: np.ndarray,
    out_order: np.ndarray,
    y: np.ndarray,
) -> None:
    """Blocks of output ranks between the edges, each a part of `job`: one of `few4`, `few8` and `few16`.

    crew: board, helpers and whether to wake them, as `share` has them. bounds (blocks + 1, T): pairs of each
    tap. A pair alone in `group` blocks is multiplied as NumPy does it. taps, bias: with whole vectors.
    """
    a = np.empty(21, np.int64)
    a[0], a[1], a[2], a[3] = blas[1], taps.shape[1], taps.shape[2], x.ctypes.data
    a[4], a[5], a[6], a[7] = order.ctypes.data, len(order), taps.ctypes.data, len(taps)
    a[8], a[9], a[10] = in_rank.ctypes.data, out_rank.ctypes.data, len(in_rank)
    a[11], a[12], a[13] = edges.ctypes.data, bounds.ctypes.data, len(edges) - 1
    a[14], a[15], a[16], a[17] = group, bias.ctypes.data, out_order.ctypes.data, len(out_order)
    a[18], a[19], a[20] = y.ctypes.data, y.shape[0], y.shape[1]
    share(crew[0], job, a.ctypes.data, len(edges) - 1, crew[1], crew[2])


@njit(nogil=True, error_model="numpy")
def _few(lanes: tuple[int, ...], arguments: int, block: int) -> None:
    a = words(arguments, 21)
    taps, blocks, group = a[7], a[13], a[14]
    edges, bounds = words(a[11], blocks + 1), words(a[12], (blocks + 1) * taps).reshape(-1, taps)
    low = block // group * group
    around = np.stack((bounds[low], bounds[min(low + group, blocks)]))
    _convolve_few(
        lanes, a[0], a[1], a[2], a[3], ints(a[4], a[5]), a[6], ints(a[8], a[10]), ints(a[9], a[10]),
        edges[block], edges[block + 1], bounds[block : block + 2], around, floats(a[15], a[2]),
        ints(a[16], a[17]), floats(a[18], a[19] * a[20]).reshape(a[19], a[20]),
    )  # fmt: skip


def few4(arguments: int, block: int) -> None:
    """Compiled by `team.job`, as the next ones."""
    _few((0,) * 4, arguments, block)


def few8(arguments: int, block: int) -> None:
    _few((0,) * 8, arguments, block)


def few16(arguments: int, block: int) -> None:
    _few((0,) * 16, arguments, block)
