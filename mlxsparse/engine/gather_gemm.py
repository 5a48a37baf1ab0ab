"""Sparse convolution over tap pairs: y[o] = bias + sum over pairs (t, i, o) of x[i] @ W[t].

Host executor: fp32 arithmetic, blocks of consecutive output ranks so that a block's accumulator
stays in cache, taps in ascending order inside a block. Blocks are independent, so the result has
the same bits for any number of threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from ..backend import executor, fast, fast_rows
from ..backend.autodiff import differentiable
from ..backend.fast_rows import Finish
from ..backend.host import empty, parallel, scratch, view32
from . import conv_kernel, dense, pointwise
from .device_map import DeviceMap
from .neighbors import TapPairs

BLOCK = 4096  # output rows of one block
COMPILED_BLOCK = 1024  # of the `fast` extra, whose calls cost less
FEW_WORK = 1 << 21  # multiply-adds in place that workers are woken for: about 0.1 ms
CHUNK = 4096  # pairs of one weight-gradient product
SMALL_WORK = 1 << 22  # multiply-adds that one thread does in about the time of waking another


def convolve(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    pairs: TapPairs | DeviceMap,
    rows: int,
    groups: int,
) -> mx.array:
    """Convolution over `pairs`, differentiable in x, weight and bias.

    x (capacity, Ci); weight (Co, T, Ci / groups) or with several axes of taps; bias (Co,) or None ->
    (rows, Co) in x's dtype.
    Only the first ``pairs.num_in`` rows of x are read; rows past ``pairs.num_out`` are 0.
    """
    if executor() == "kernel":
        weight = weight if weight.ndim == 3 else weight.flatten(1, -2)
        return conv_kernel.convolve(x, weight, bias, pairs, rows, groups)
    assert not isinstance(pairs, DeviceMap)  # made where kernels run
    steps = pointwise.then(None)
    if steps is not None:  # float32 outside of MLX's transformations, where nobody asks for a gradient
        start = None if bias is None else view32(bias)
        return _gather_gemm(view32(x), _flat(weight), start, pairs, rows, groups, steps)
    dtype = x.dtype

    def forward(x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        return _gather_gemm(
            view32(x), _flat(w), view32(b[0]) if b else None, pairs, rows, groups
        ).astype(dtype)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        back = _swap_channels(_flat(w), groups)
        return _gather_gemm(view32(ct), back, None, pairs.transposed(), x.shape[0], groups).astype(dtype)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        return _weight_gradient(view32(x), view32(ct), pairs, groups).astype(w.dtype).reshape(w.shape)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        out, v = empty(b.shape, mx.float32)
        v[:] = view32(ct)[: pairs.num_out].sum(axis=0, dtype=np.float64)
        return out.astype(b.dtype)

    if bias is None:
        return differentiable("convolution", forward, (input_gradient, weight_gradient), x, weight)
    gradients = (input_gradient, weight_gradient, bias_gradient)
    return differentiable("convolution", forward, gradients, x, weight, bias)


def _flat(w: mx.array) -> np.ndarray:
    """(Co, ..., Ci / g) -> (Co, T, Ci / g), by NumPy: MLX would start an evaluation for it."""
    return view32(w).reshape(w.shape[0], math.prod(w.shape[1:-1]), w.shape[-1])


def _swap_channels(w: np.ndarray, groups: int) -> np.ndarray:
    """(Co, T, Ci / g) -> (Ci, T, Co / g): the weight of the transposed relation."""
    co, taps, ci = w.shape
    back = w.reshape(groups, co // groups, taps, ci).transpose(2, 1, 0, 3)
    return back.reshape(taps, co // groups, groups * ci).transpose(2, 0, 1)


def by_rank(values: np.ndarray, order: np.ndarray | None, n: int) -> np.ndarray:
    """The first n rows in rank order (a view when rows already are)."""
    if order is None:
        return values[:n]
    out = np.empty((n, values.shape[1]), values.dtype)

    def work(i: int) -> None:
        rows = slice(i * CHUNK, (i + 1) * CHUNK)
        np.take(values, order[rows], axis=0, out=out[rows], mode="clip")

    parallel(work, -(-n // CHUNK), small=out.nbytes < 1 << 22)
    return out


def matmul_groups(a: np.ndarray, w: np.ndarray, groups: int, out: np.ndarray) -> np.ndarray:
    """(m, g*ci) times (ci, g*co) -> (m, g*co), group by group."""
    if groups == 1:
        return np.matmul(a, w, out=out)
    ci, co = w.shape[0], w.shape[1] // groups
    if ci == 1 and co == 1:
        return np.multiply(a, w[0], out=out)
    left = a.reshape(len(a), groups, ci).transpose(1, 0, 2)
    right = w.reshape(ci, groups, co).transpose(1, 0, 2)
    out.reshape(len(a), groups, co)[:] = np.matmul(left, right).transpose(1, 0, 2)
    return out


def for_each_block(
    pairs: TapPairs,
    work: Callable[[int, int, list[tuple[int, np.ndarray, slice | np.ndarray]]], None],
    *,
    blas: bool,
) -> None:
    """Call ``work(first, last, parts)`` for blocks [first, last) of output ranks, in parallel.

    parts: (tap, input ranks, output ranks relative to `first`); a slice where every row of the
    block has a pair, since indexing by a slice is much cheaper.
    """
    if pairs.num_out == 0:
        return
    edges, bounds = block_bounds(pairs, BLOCK)

    def block(i: int) -> None:
        first, last = int(edges[i]), int(edges[i + 1])
        parts: list[tuple[int, np.ndarray, slice | np.ndarray]] = []
        for t, (lo, hi) in enumerate(zip(bounds[i], bounds[i + 1])):
            if lo == hi:
                continue
            whole = hi - lo == last - first
            target = slice(0, last - first) if whole else pairs.out_rank[lo:hi] - np.int32(first)
            parts.append((t, pairs.in_rank[lo:hi], target))
        work(first, last, parts)

    parallel(block, len(edges) - 1, blas=blas)  # one block runs on the calling thread


def block_bounds(pairs: TapPairs, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(edges of blocks of output ranks (B + 1,), where each tap's pairs cross them (B + 1, T) int64)."""
    held = pairs.tables.get(("bounds", size, pairs.flipped))
    if held is not None:
        found: tuple[np.ndarray, np.ndarray] = held
        return found
    edges = np.arange(0, pairs.num_out + size, size)
    edges[-1] = pairs.num_out
    ptr = pairs.tap_ptr
    crossed = np.empty((len(edges), len(ptr) - 1), np.int64)
    for t in range(len(ptr) - 1):
        crossed[:, t] = ptr[t] + np.searchsorted(pairs.out_rank[ptr[t] : ptr[t + 1]], edges)
    pairs.tables["bounds", size, pairs.flipped] = edges, crossed
    return edges, crossed


Reader = Callable[[np.ndarray, np.ndarray], np.ndarray]


def reader(values: np.ndarray, order: np.ndarray | None) -> Reader:
    """``read(ranks, buffer)``: the rows of ascending, distinct ranks; a view where they are consecutive.

    Rows that are not in rank order are read where they lie: a reordered copy is not faster.
    """

    def read(ranks: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        m = len(ranks)
        if order is not None:
            return np.take(values, order.take(ranks), axis=0, out=buffer[:m], mode="clip")
        first = int(ranks[0])
        if int(ranks[-1]) - first == m - 1:
            return values[first : first + m]
        return np.take(values, ranks, axis=0, out=buffer[:m], mode="clip")

    return read


def _at_most_one(pairs: TapPairs) -> bool:
    """Whether no output has two pairs, as in the transpose of windows that tile the lattice."""
    ranks = pairs.out_rank
    if not 0 < len(ranks) <= pairs.num_out:
        return False
    found = pairs.tables.get(("single", pairs.flipped))
    if found is None:
        found = pairs.tables["single", pairs.flipped] = int(np.bincount(ranks).max()) == 1
    return bool(found)


def add_rows(total: np.ndarray, target: slice | np.ndarray, value: np.ndarray, buffer: np.ndarray) -> None:
    """total[target] += value for distinct rows; `buffer` holds as many rows."""
    if isinstance(target, slice):
        total[target] += value
        return
    if fast.available():
        fast.add_rows(total, target, value)
        return
    # take, add, put: faster than the fancy-indexed +=, which copies twice.
    sums = np.take(total, target, axis=0, out=buffer[: len(target)], mode="clip")
    sums += value
    total[target] = sums


class Scratch:
    """Buffers of `rows` rows, made once per thread: fresh ones would be faulted in for every block."""

    def __init__(self, rows: int = BLOCK) -> None:
        self._local, self._rows = threading.local(), rows

    def __call__(self, *channels: int) -> list[np.ndarray]:
        buffers: list[np.ndarray] | None = getattr(self._local, "buffers", None)
        if buffers is None:
            buffers = self._local.buffers = [np.empty((self._rows, c), np.float32) for c in channels]
        return buffers


def _gather_gemm(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    pairs: TapPairs,
    rows: int,
    groups: int,
    steps: Finish | None = None,
) -> mx.array:
    """x (capacity, g*ci) fp32, weight (g*co, T, ci) -> (rows, g*co) fp32, after `steps`."""
    out, y = empty((rows, len(weight)), mx.float32)
    y[pairs.num_out :] = 0
    ci = weight.shape[2]
    blas = fast.blas() if groups == 1 and min(len(weight), ci) > 1 else None
    few = blas is not None and fast_rows.few_channels(ci, len(weight))
    through = None if steps is None else steps.through
    if steps is not None and through is not None and not (few and dense.few(through, pairs.num_out)):
        more = scratch((pairs.num_out, len(weight)), np.float32)
        dense.rows_times(steps.add, through.T, more, pairs.num_out)
        steps = steps._replace(add=more, through=None)
    if few:
        assert blas is not None
        _few_channels(y, x, np.ascontiguousarray(weight), bias, pairs, blas, steps)
        return out
    taps = np.ascontiguousarray(weight.transpose(1, 2, 0))  # (T, ci, g*co)
    if bias is None and _at_most_one(pairs):
        _put_products(y, x, taps, pairs, groups, blas)
    elif blas is not None:
        _compiled_gather_gemm(y, x, taps, bias, pairs, blas)
    else:
        _block_gather_gemm(y, x, taps, bias, pairs, groups)
    if steps is not None:
        pointwise.finish_rows(y[: pairs.num_out], steps)
    return out


def _block_gather_gemm(
    y: np.ndarray, x: np.ndarray, taps: np.ndarray, bias: np.ndarray | None, pairs: TapPairs, groups: int
) -> None:
    channels = taps.shape[2]
    scratch = Scratch()
    read = reader(x, pairs.in_order)

    def work(first: int, last: int, parts: list[tuple[int, np.ndarray, slice | np.ndarray]]) -> None:
        n = last - first
        buffer, product, sums, block = scratch(x.shape[1], channels, channels, channels)
        total = y[first:last] if pairs.out_order is None else block[:n]
        total[:] = 0 if bias is None else bias
        for tap, ranks, target in parts:
            part = read(ranks, buffer)
            value = matmul_groups(part, taps[tap], groups, product[: len(ranks)])
            add_rows(total, target, value, sums)
        if pairs.out_order is not None:
            y[pairs.out_order[first:last]] = total

    for_each_block(pairs, work, blas=True)


def _few_channels(
    y: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    pairs: TapPairs,
    blas: np.ndarray,
    steps: Finish | None,
) -> None:
    """As _gather_gemm in compiled blocks that divide BLOCK, small ones where there are few rows."""
    size = 1024 if pairs.num_out >= 8192 else 512 if pairs.num_out >= 2048 else 256
    edges, bounds = block_bounds(pairs, size)
    ranks, orders = (pairs.in_rank, pairs.out_rank), (pairs.in_order, pairs.out_order)
    group = len(edges) if bias is None and _at_most_one(pairs) else BLOCK // size
    wake = len(pairs.in_rank) * weight.shape[0] * weight.shape[2] >= FEW_WORK
    fast_rows.convolve_few(
        blas, x, orders[0], weight, ranks, edges, bounds, bias, orders[1], y,
        group=group, finish=steps, wake=wake,
    )  # fmt: skip


def _compiled_gather_gemm(
    y: np.ndarray, x: np.ndarray, taps: np.ndarray, bias: np.ndarray | None, pairs: TapPairs, blas: np.ndarray
) -> None:
    """As the blocks of _gather_gemm, each in one compiled call."""
    channels = taps.shape[2]
    edges, bounds = block_bounds(pairs, COMPILED_BLOCK)
    scratch = Scratch(COMPILED_BLOCK)

    def work(i: int) -> None:
        first, last = int(edges[i]), int(edges[i + 1])
        *room, block = scratch(x.shape[1], channels, channels)
        total = y[first:last] if pairs.out_order is None else block[: last - first]
        total[:] = 0 if bias is None else bias
        ranks, spans = (pairs.in_rank, pairs.out_rank), (bounds[i], bounds[i + 1])
        fast.convolve_block(blas, x, pairs.in_order, taps, ranks, spans, first, total, room)
        if pairs.out_order is not None:
            y[pairs.out_order[first:last]] = total

    parallel(work, len(edges) - 1, blas=True)


def _put_products(
    y: np.ndarray,
    x: np.ndarray,
    taps: np.ndarray,
    pairs: TapPairs,
    groups: int,
    blas: np.ndarray | None,
) -> None:
    """y[o] = x[i] @ W[t] where no output has two pairs: nothing to add, so tap by tap in large pieces."""
    if len(pairs.out_rank) < pairs.num_out:
        y[: pairs.num_out] = 0
    ptr = pairs.tap_ptr
    pieces = [
        (t, a, min(a + CHUNK, ptr[t + 1])) for t in range(len(taps)) for a in range(ptr[t], ptr[t + 1], CHUNK)
    ]

    read, scratch = reader(x, pairs.in_order), Scratch(CHUNK)

    def work(i: int) -> None:
        tap, a, b = pieces[i]
        rows = pairs.out_rank[a:b] if pairs.out_order is None else pairs.out_order.take(pairs.out_rank[a:b])
        if blas is not None:
            room = scratch(x.shape[1], y.shape[1])
            fast.put_products(blas, x, pairs.in_order, taps[tap], pairs.in_rank[a:b], rows, y, room)
            return
        y[rows] = matmul_groups(
            read(pairs.in_rank[a:b], np.empty((b - a, x.shape[1]), np.float32)),
            taps[tap],
            groups,
            np.empty((b - a, y.shape[1]), np.float32),
        )

    parallel(work, len(pieces), blas=True)


def _weight_gradient(x: np.ndarray, ct: np.ndarray, pairs: TapPairs, groups: int) -> mx.array:
    """Sum over pairs of x[i] (x) ct[o] -> (Co, T, Ci / groups) fp32."""
    taps = len(pairs.tap_ptr) - 1
    ci, co = x.shape[1] // groups, ct.shape[1] // groups
    out, dw = empty((groups * co, taps, ci), mx.float32)
    read_x, read_ct = reader(x, pairs.in_order), reader(ct, pairs.out_order)

    def work(tap: int) -> None:
        lo, hi = int(pairs.tap_ptr[tap]), int(pairs.tap_ptr[tap + 1])
        total = np.zeros((groups, co, ci), np.float32)
        left = np.empty((CHUNK, x.shape[1]), np.float32)
        right = np.empty((CHUNK, ct.shape[1]), np.float32)
        for a in range(lo, hi, CHUNK):
            b = min(a + CHUNK, hi)
            xs = read_x(pairs.in_rank[a:b], left)
            gs = read_ct(pairs.out_rank[a:b], right)
            if groups == 1:
                total[0] += gs.T @ xs
            elif ci == 1 and co == 1:
                total[:, 0, 0] += np.einsum("mc,mc->c", gs, xs)
            else:
                m = b - a
                total += np.matmul(
                    gs.reshape(m, groups, co).transpose(1, 2, 0), xs.reshape(m, groups, ci).transpose(1, 0, 2)
                )
        dw[:, tap] = total.reshape(groups * co, ci)

    # Largest taps first, so that threads end together.
    small = len(pairs.in_rank) * x.shape[1] * ct.shape[1] < SMALL_WORK
    parallel(work, np.argsort(-np.diff(pairs.tap_ptr), kind="stable").tolist(), blas=True, small=small)
    return out
