"""Convolution of few channels in registers, for backend/fast_rows.py; imported only where numba is."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ._numba_jit import njit
from ._numba_passes import activate_piece, factors_of
from ._numba_products import gemv
from ._numba_team import floats, ints, share, words

WIDE = bool(binding.get_host_cpu_features().get("avx512f"))  # registers for 8 sums of 16 lanes


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


@intrinsic
def _add_fours(
    context: Any, x: Any, into: Any, y: Any, out: Any, w: Any, k: Any, n: Any
) -> Any:
    """As _add_products for eight rows and four lanes, two rows in a vector: half of the multiply-adds."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        f32, i32, i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
        four, eight = ir.VectorType(f32, 4), ir.VectorType(f32, 8)
        x, into, y, out, w = (
            builder.inttoptr(place, kind.as_pointer())
            for place, kind in zip(args[:5], (f32, i32, f32, i32, f32))
        )
        k, n = args[5:]
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(eight, [eight] * 3), "llvm.fma.v8f32"
        )

        def row(start: Any, ranks: Any, r: int, length: Any) -> Any:
            rank = builder.sext(builder.load(builder.gep(ranks, [i32(r)])), i64)
            return builder.gep(start, [builder.mul(rank, length)])

        def load(place: Any) -> Any:
            return builder.load(builder.bitcast(place, four.as_pointer()), align=4)

        def pick(a: Any, b: Any, lanes: list[int]) -> Any:
            mask = ir.Constant(ir.VectorType(i32, len(lanes)), [i32(i) for i in lanes])
            return builder.shuffle_vector(a, b, mask)

        def add(total: Any, value: Any, place: Any) -> None:
            weight = load(builder.gep(w, [builder.mul(place, n)]))
            weight = pick(weight, weight, [0, 1, 2, 3] * 2)
            builder.store(builder.call(fma, [value, weight, builder.load(total)]), total)

        sources = [row(x, into, r, k) for r in range(8)]
        sums = [cgutils.alloca_once_value(builder, eight([f32(0.0)] * 8)) for _ in range(4)]
        whole = builder.and_(k, i64(-4))
        with cgutils.for_range_slice(builder, i64(0), whole, i64(4)) as (first, _):
            for j, total in enumerate(sums):
                both = [load(builder.gep(sources[2 * j + h], [first])) for h in (0, 1)]
                values = pick(both[0], both[1], list(range(8)))
                for q in range(4):
                    add(total, pick(values, values, [q] * 4 + [4 + q] * 4), builder.add(first, i64(q)))
        with cgutils.for_range_slice(builder, whole, k, i64(1)) as (place, _):
            for j, total in enumerate(sums):
                ends = []
                for h in (0, 1):
                    value = builder.load(builder.gep(sources[2 * j + h], [place]))
                    vector = builder.insert_element(four(ir.Undefined), value, i32(0))
                    ends.append(pick(vector, vector, [0] * 4))
                add(total, pick(ends[0], ends[1], list(range(8))), place)
        for j, total in enumerate(sums):
            value = builder.load(total)
            for h in (0, 1):
                start = builder.bitcast(row(y, out, 2 * j + h, n), four.as_pointer())
                part = pick(value, value, [4 * h + i for i in range(4)])
                builder.store(builder.fadd(builder.load(start, align=4), part), start, align=4)
        return target.get_dummy_value()

    return types.void(x, into, y, out, w, k, n), generate


_EIGHT, _ONE = (0,) * 8, (0,)
_TILE = 16


@njit(nogil=True, error_model="numpy")
def _taps_of(weight: np.ndarray, n: int) -> np.ndarray:
    """(T, Ci, n) of weight (Co, T, Ci); 0 past Co."""
    outputs, places, channels = weight.shape
    taps = np.empty((places, channels, n), np.float32)
    for t in range(places):
        for first in range(0, channels, _TILE):
            last = min(first + _TILE, channels)
            for low in range(0, n, _TILE):
                for k in range(first, last):
                    for c in range(low, min(low + _TILE, n)):
                        taps[t, k, c] = weight[c, t, k] if c < outputs else np.float32(0)
    return taps


@njit(nogil=True, error_model="numpy")
def _add_rows(
    lanes: tuple[int, ...], xs: int, into: int, ys: int, out: int, w: int, k: int, n: int, count: int
) -> None:
    """Rows of y at the numbers in `out` += rows of x at those in `into` times w (k, n); all are addresses."""
    step = 4 * len(lanes)
    for _ in range(count // 8):
        if len(lanes) == 4:
            _add_fours(xs, into, ys, out, w, k, n)  # type: ignore[call-arg]
        else:
            for c in range(0, 4 * n, step):
                _add_products(lanes, _EIGHT, xs, into, ys + c, out, w + c, k, n)  # type: ignore[call-arg]
        into, out = into + 32, out + 32
    for _ in range(count % 8):
        for c in range(0, 4 * n, step):
            _add_products(lanes, _ONE, xs, into, ys + c, out, w + c, k, n)  # type: ignore[call-arg]
        into, out = into + 4, out + 4


@njit(nogil=True, error_model="numpy")
def _convolve(
    lanes: tuple[int, ...],
    gemv_at: int,
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
    factors: np.ndarray,
    add: np.ndarray,
    relu: bool,
    mixed: tuple[int, int, int],
    y: np.ndarray,
) -> None:
    """Output ranks [first, last): y = bias + x[i] @ taps[t], eight rows at a time, then finished.

    x (., k) and taps (T, k, n) by address. taps, bias and factors have whole vectors of channels, y may
    have less. spans (2, T): pairs of each tap; around: of the whole group of blocks. mixed: places of rows
    and of their weight (k', n), and k' (0: none), whose product is added.
    """
    channels, empty = y.shape[1], np.empty(0, np.float32)
    in_place = n == channels and len(out_order) == 0
    total = y if in_place else np.empty((last - first, n), np.float32)
    one, rows = np.empty(n, np.float32), np.empty(last - first if len(order) else 0, np.int32)
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
            gemv(gemv_at, n, k, xs + 4 * k * np.int64(row), w, one.ctypes.data)  # type: ignore[call-arg]
            total[out_rank[a] - zero] += one
            continue
        _add_rows(lanes, xs, into, ys, out, w, k, n, b - a)
    length = factors.shape[1] if factors.shape[1] else 1 << 10
    flat = total.reshape(-1)[(first - zero) * n : (last - zero) * n]
    extra = np.zeros((last - first if mixed[2] else 0, n), np.float32)
    if mixed[2]:
        _mix(lanes, mixed, first, out_order, extra)
    if in_place:
        more = extra.reshape(-1) if mixed[2] else add.reshape(-1)[first * n : last * n]
        if factors.shape[1] or len(more) or relu:
            for place in range(0, len(flat), length):
                activate_piece(empty, factors, more, relu, place, min(length, len(flat) - place), flat)
        return
    if factors.shape[1]:
        for place in range(0, len(flat), length):
            activate_piece(empty, factors, empty, False, place, min(length, len(flat) - place), flat)
    for rank in range(first, last):
        row = out_order[rank] if len(out_order) else rank
        for c in range(channels):
            value = total[rank - first, c]
            if len(add):
                value += add[row, c]
            elif mixed[2]:
                value += extra[rank - first, c]
            y[row, c] = np.float32(0) if relu and value < 0 else value


@njit(nogil=True, error_model="numpy")
def _mix(
    lanes: tuple[int, ...], mixed: tuple[int, int, int], first: int, out_order: np.ndarray, extra: np.ndarray
) -> int:
    """extra += rows @ weight for ranks from `first` on."""
    xs, w, k = mixed
    count, n = extra.shape
    rows, places = np.empty(count, np.int32), np.arange(count).astype(np.int32)
    for i in range(count):
        rows[i] = out_order[first + i] if len(out_order) else first + i
    into, out = np.int64(rows.ctypes.data), np.int64(places.ctypes.data)
    ys = np.int64(extra.ctypes.data)
    _add_rows(lanes, xs, into, ys, out, w, k, n, count)
    return len(rows) + len(places)  # they live until here


@njit(nogil=True, cache=True, error_model="numpy")
def convolve(
    crew: tuple[int, int, bool],
    job: tuple[int, int],
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray,
    weight: np.ndarray,
    in_rank: np.ndarray,
    out_rank: np.ndarray,
    edges: np.ndarray,
    bounds: np.ndarray,
    group: int,
    bias: np.ndarray,
    out_order: np.ndarray,
    vectors: tuple[np.ndarray, ...],
    eps: float,
    length: int,
    add: np.ndarray,
    relu: bool,
    rows: np.ndarray,
    mix: np.ndarray,
    y: np.ndarray,
) -> int:
    """Blocks of output ranks between the edges, each a part of `job`: address and lanes of a `few` below.

    crew: board, helpers and whether to wake them, as `share` has them. bounds (blocks + 1, T): pairs of each
    tap. A pair alone in `group` blocks is multiplied as NumPy does it. weight (Co, T, Ci), bias (Co,) or
    (0,). vectors, eps, add (rows, C), relu: of a `fast_rows.Finish`, in pieces of about `length` values; so
    are rows (., k') and mix (Co, 1, k'), or empty.
    """
    outputs, taps, k = weight.shape
    n = (outputs + job[1] - 1) // job[1] * job[1]
    padded, start = _taps_of(weight, n), np.zeros(n, np.float32)
    start[: len(bias)] = bias
    mean = vectors[0]
    length = max(1, length // n) * n if len(mean) else 0
    factors = factors_of(mean, vectors[1], vectors[2], vectors[3], eps, n, length)
    a = np.empty(29, np.int64)
    a[0], a[1], a[2], a[3] = blas[1], k, n, x.ctypes.data
    a[4], a[5], a[6], a[7] = order.ctypes.data, len(order), padded.ctypes.data, taps
    a[8], a[9], a[10] = in_rank.ctypes.data, out_rank.ctypes.data, len(in_rank)
    a[11], a[12], a[13] = edges.ctypes.data, bounds.ctypes.data, len(edges) - 1
    a[14], a[15], a[16], a[17] = group, start.ctypes.data, out_order.ctypes.data, len(out_order)
    a[18], a[19], a[20] = y.ctypes.data, y.shape[0], y.shape[1]
    a[21], a[22], a[23], a[24], a[25] = factors.ctypes.data, length, add.ctypes.data, len(add), relu
    mixed = _taps_of(mix, n)
    a[26], a[27], a[28] = rows.ctypes.data, mixed.ctypes.data, mix.shape[2]
    share(crew[0], job[0], a.ctypes.data, len(edges) - 1, crew[1], crew[2])
    return len(a) + len(padded) + len(start) + len(factors) + len(mixed)  # they live until here


@njit(nogil=True, error_model="numpy")
def _block(lanes: tuple[int, ...], arguments: int, block: int) -> None:
    a = words(arguments, 29)
    taps, blocks, group, channels = a[7], a[13], a[14], a[20]
    edges, bounds = words(a[11], blocks + 1), words(a[12], (blocks + 1) * taps).reshape(-1, taps)
    low = block // group * group
    around = np.stack((bounds[low], bounds[min(low + group, blocks)]))
    _convolve(
        lanes, a[0], a[1], a[2], a[3], ints(a[4], a[5]), a[6], ints(a[8], a[10]), ints(a[9], a[10]),
        edges[block], edges[block + 1], bounds[block : block + 2], around, floats(a[15], a[2]),
        ints(a[16], a[17]), floats(a[21], 2 * a[22]).reshape(2, a[22]),
        floats(a[23], a[24] * channels).reshape(a[24], channels), a[25] != 0, (a[26], a[27], a[28]),
        floats(a[18], a[19] * channels).reshape(a[19], channels),
    )  # fmt: skip


def few4(arguments: int, block: int) -> None:
    """Compiled by `team.job`, as the next ones."""
    _block((0,) * 4, arguments, block)


def few8(arguments: int, block: int) -> None:
    _block((0,) * 8, arguments, block)


def few16(arguments: int, block: int) -> None:
    _block((0,) * 16, arguments, block)
