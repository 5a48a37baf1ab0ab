"""Normalisation over rows, on the host: statistics of row spans (batch, group, instance
normalisation) and of single rows (layer, RMS normalisation).

Two passes forward and two backward over chunks that stay in cache. A chunk's mean is float64, its
other sums are float32 around the mean, and chunks are joined in float64 in their order: results do
not depend on the number of threads, nor does a variance suffer from a large mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from ..backend import executor
from ..backend.autodiff import Gradient, differentiable
from ..backend.host import empty, parallel, silent, to_mlx, view, view32
from ..backend.kernel_norm import Running
from . import norm_kernel
from .spans import SHORT, TILE, Chunk, Spans

SMALL = 1 << 17  # values that one thread does in about the time of waking another


def normalize(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, spans: Spans | norm_kernel.Items, eps: float
) -> tuple[mx.array, mx.array, mx.array]:
    """y = (x - mean) / sqrt(var + eps) * weight + bias by span and channel group.

    x (capacity, C), weight and bias (C,) or None -> y (capacity, C) in x's dtype, 0 in rows of no
    span; mean and biased variance (S, C) float32, which have no gradient.
    """
    dtype, channels = x.dtype, x.shape[1]
    weight = mx.ones((channels,)) if weight is None else weight
    bias = mx.zeros((channels,)) if bias is None else bias
    if executor() == "kernel":
        return norm_kernel.normalize(x, weight, bias, spans, eps)
    assert isinstance(spans, Spans)  # made where kernels run
    number = len(spans.counts)
    spans, which = spans.filled()
    with silent():
        mean, var = _statistics(view32(x), spans)
    rstd = 1 / np.sqrt(var + eps)
    share = 1 / spans.counts[:, None]

    def forward(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        scale = rstd * view32(w)
        # What float32 leaves of the mean goes into the shift.
        vectors = [_Vectors(v, spans) for v in (mean, scale, view32(b) - _low(mean) * scale)]

        def work(y: np.ndarray, s: int | np.ndarray, x: np.ndarray) -> None:
            centre, scale, shift = (v.of(s, y.shape[1]) for v in vectors)
            np.subtract(x, centre, out=y)
            y *= scale
            y += shift

        return _map(work, (view32(x),), spans).astype(dtype)

    def sums(ct: mx.array, x: mx.array) -> tuple[np.ndarray, np.ndarray]:
        return _gradient_sums(view32(ct), view32(x), mean, spans)

    shared = _Shared(sums)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        plain, crossed = shared(ct, x)
        scale = rstd * view32(w)
        offset = rstd * spans.pooled(plain * view32(w)) * share
        slope = rstd**2 * spans.pooled(crossed * scale) * share
        vectors = [_Vectors(v, spans) for v in (mean, -slope, scale, _low(mean) * slope - offset)]

        def work(dx: np.ndarray, s: int | np.ndarray, x: np.ndarray, g: np.ndarray) -> None:
            centre, slope, scale, offset = (v.of(s, dx.shape[1]) for v in vectors)
            np.subtract(x, centre, out=dx)
            dx *= slope
            dx += offset
            dx += g * scale

        return _map(work, (view32(x), view32(ct)), spans).astype(dtype)

    gradients = (input_gradient, *_affine_gradients(shared, rstd))
    y = differentiable("normalization", forward, gradients, x, weight, bias)
    told = [to_mlx(_spread(v.astype(np.float32), which, number)) for v in (mean, var)]
    return y, told[0], told[1]


def normalize_all(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    count: int | mx.array,
    eps: float,
    *,
    relu: bool = False,
    add: mx.array | None = None,
    running: Running | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """`normalize` of one span, the first `count` rows.

    relu, add, running: as in norm_kernel.normalize_columns, where kernels run.
    """
    if executor() == "host":
        assert isinstance(count, int) and not relu and add is None and running is None
        return normalize(x, weight, bias, Spans(None, np.array([count])), eps)
    channels = x.shape[1]
    weight = mx.ones((channels,)) if weight is None else weight
    bias = mx.zeros((channels,)) if bias is None else bias
    return norm_kernel.normalize_columns(
        x, weight, bias, count, eps, relu=relu, add=add, running=running
    )


def normalize_rows(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, count: int | mx.array, eps: float, *,
    centre: bool,
) -> mx.array:
    """Layer normalisation of each of the first `count` rows, RMS normalisation without `centre`.

    x (capacity, C), weight and bias (C,) or None -> (capacity, C) in x's dtype, 0 in the other rows.
    """
    dtype, channels = x.dtype, x.shape[1]
    weight = mx.ones((channels,)) if weight is None else weight
    bias = mx.zeros((channels,)) if bias is None else bias
    if executor() == "kernel":
        return norm_kernel.normalize_rows(x, weight, bias, count, eps, centre=centre)
    assert isinstance(count, int)  # the host knows it
    rows, _ = Spans(None, np.array([count])).filled()
    mean_of = np.full(channels, 1 / max(channels, 1), np.float32)

    def standard(x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Rows of x with mean 0 and variance 1 in `out`; 1 / deviation of each, as a column."""
        if centre:
            np.subtract(x, (x @ mean_of)[:, None], out=out)
        else:
            out[:] = x
        rstd = 1 / np.sqrt(np.einsum("ij,ij->i", out, out)[:, None] / np.float32(max(channels, 1)) + eps)
        rstd = rstd.astype(np.float32)
        out *= rstd
        return rstd

    def forward(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        scale, shift = view32(w), view32(b)

        def work(y: np.ndarray, _: int | np.ndarray, x: np.ndarray) -> None:
            standard(x, y)
            y *= scale
            y += shift

        return _map(work, (view32(x),), rows, tile=False).astype(dtype)

    def sums(ct: mx.array, x: mx.array) -> tuple[np.ndarray, np.ndarray]:
        source, g = view32(x), view32(ct)

        def work(
            _: int | np.ndarray, chunk: slice | np.ndarray, total: Total
        ) -> tuple[np.ndarray, np.ndarray]:
            part = np.empty_like(source[chunk])
            standard(source[chunk], part)
            part *= g[chunk]
            return total(g[chunk]), total(part)

        plain, crossed = _reduce(work, rows, channels)
        return plain, crossed

    shared = _Shared(sums)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        scale = view32(w)

        def work(dx: np.ndarray, _: int | np.ndarray, x: np.ndarray, g: np.ndarray) -> None:
            unit = np.empty_like(dx)
            rstd = standard(x, unit)
            np.multiply(g, scale, out=dx)
            crossed = np.einsum("ij,ij->i", dx, unit) * mean_of[:1]
            if centre:
                dx -= (dx @ mean_of)[:, None]
            unit *= crossed[:, None]
            dx -= unit
            dx *= rstd

        return _map(work, (view32(x), view32(ct)), rows, tile=False).astype(dtype)

    gradients = (input_gradient, *_affine_gradients(shared))
    return differentiable("row normalization", forward, gradients, x, weight, bias)


def row_sums(x: np.ndarray, spans: Spans) -> np.ndarray:
    """Sum of each span's rows: (n, C) float32 -> (S, C) float64."""
    filled, which = spans.filled()

    def work(_: int | np.ndarray, rows: slice | np.ndarray, total: Total) -> tuple[np.ndarray]:
        return (total(x[rows]),)

    return _spread(_reduce(work, filled, x.shape[1])[0], which, len(spans.counts))


# ---------------------------------------------------------------- parts


class _Shared:
    """Sums that several gradients of one cotangent need, computed once."""

    def __init__(self, sums: Callable[[mx.array, mx.array], tuple[np.ndarray, np.ndarray]]):
        self.sums = sums
        self.held: tuple[np.ndarray, tuple[np.ndarray, np.ndarray]] | None = None
        self.uses = 0

    def __call__(self, ct: mx.array, x: mx.array) -> tuple[np.ndarray, np.ndarray]:
        # The memory is held with the sums, so an equal address and order is the same cotangent.
        memory = view(ct.view(mx.uint16) if ct.dtype == mx.bfloat16 else ct)
        if self.held is None or _place(self.held[0]) != _place(memory):
            self.held, self.uses = (memory, self.sums(ct, x)), 0
        found = self.held[1]
        self.uses += 1
        if self.uses == 3:  # of x, weight and bias: nobody asks again
            self.held = None
        return found


def _place(a: np.ndarray) -> tuple[int, tuple[int, ...]]:
    return a.ctypes.data, a.strides


def _affine_gradients(shared: _Shared, rstd: np.ndarray | float = 1.0) -> tuple[Gradient, Gradient]:
    """Of weight and bias (C,), from the sums by span of ct and of ct * x, which rstd scales."""

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return to_mlx((shared(ct, x)[1] * rstd).sum(axis=0).astype(np.float32)).astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return to_mlx(shared(ct, x)[0].sum(axis=0).astype(np.float32)).astype(b.dtype)

    return weight_gradient, bias_gradient


def _low(v: np.ndarray) -> np.ndarray:
    """What float32 leaves of a float64 value."""
    return v - v.astype(np.float32)


class _Vectors:
    """Values by span and channel as `_map` takes them: float32, side by side for rows of a long span."""

    def __init__(self, values: np.ndarray, spans: Spans):
        self.values, long = values.astype(np.float32), spans.counts > SHORT
        self.place, self.wide = np.cumsum(long) - 1, np.tile(self.values[long], (1, TILE))

    def of(self, s: int | np.ndarray, width: int) -> np.ndarray:
        return self.wide[self.place[s], :width] if isinstance(s, int) else self.values[s]


def _map(
    work: Callable[..., None], sources: tuple[np.ndarray, ...], spans: Spans, *, tile: bool = True
) -> mx.array:
    """Chunks of an output like sources[0], filled by ``work(out, span, *sources)``.

    With `tile`, arrays of a long span come with several rows side by side, as `_Vectors` have them.
    """
    channels = sources[0].shape[1]
    out, y = empty(sources[0].shape, mx.float32)
    y[spans.total :] = 0
    chunks = spans.chunks(channels)
    order = spans.order

    def fill(i: int) -> None:
        chunk = chunks[i]
        rows, s = _rows_of(chunk, order), spans.number(chunk)
        long = tile and isinstance(s, int)
        shape = (-1, channels * math.gcd(chunk.last - chunk.first, TILE)) if long else (-1, channels)
        parts = [source[rows].reshape(shape) for source in sources]
        if order is None:
            work(y[rows].reshape(shape), s, *parts)
        else:
            part = np.empty_like(parts[0])
            work(part, s, *parts)
            y[rows] = part.reshape(-1, channels)

    if channels:
        parallel(fill, len(chunks), blas=True, small=y.size < SMALL)
    return out


def _rows_of(chunk: Chunk, order: np.ndarray | None) -> slice | np.ndarray:
    rows = slice(chunk.first, chunk.last)
    return rows if order is None else order[rows]


Total: TypeAlias = Callable[[np.ndarray], np.ndarray]


def _reduce(
    work: Callable[[int | np.ndarray, slice | np.ndarray, Total], tuple[np.ndarray, ...]],
    spans: Spans,
    channels: int,
) -> list[np.ndarray]:
    """float64 sums (S, C) over each span's chunks; ``work(span, rows, total)`` gives a chunk's."""
    chunks = spans.chunks(channels)
    parts: list[tuple[np.ndarray, ...]] = [()] * len(chunks)

    def fill(i: int) -> None:
        chunk = chunks[i]
        parts[i] = work(spans.number(chunk), _rows_of(chunk, spans.order), partial(spans.sums, chunk))

    parallel(fill, len(chunks), blas=True, small=spans.total * channels < SMALL)
    if not chunks:
        return [np.zeros((0, channels))] * 2
    number = _numbers(chunks)
    return [_by_span(np.concatenate(part).astype(np.float64), number) for part in zip(*parts)]


def _numbers(chunks: list[Chunk]) -> np.ndarray:
    """(P,) span of each part: of what a chunk gives for each of its spans."""
    return np.array([s for chunk in chunks for s in range(chunk.start, chunk.stop)], np.int64)


def _by_span(parts: np.ndarray, number: np.ndarray) -> np.ndarray:
    """(P, C) -> (S, C) sums of each span's parts, in their order; every span has one."""
    pieces = np.bincount(number)
    ends = np.cumsum(pieces)
    out = parts[ends - pieces]
    for s in np.flatnonzero(pieces > 1).tolist():
        out[s] = parts[ends[s] - pieces[s] : ends[s]].sum(axis=0)
    return out


def _statistics(x: np.ndarray, spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Mean and biased variance (S, C) float64 of spans that have rows."""
    channels = x.shape[1]
    chunks = spans.chunks(channels)
    if not chunks:
        return np.zeros((0, channels)), np.zeros((0, channels))
    number = _numbers(chunks)
    rows = np.concatenate([spans.rows(chunk) for chunk in chunks]).astype(np.float64)[:, None]
    places = np.cumsum([0] + [chunk.stop - chunk.start for chunk in chunks]).tolist()
    centre, spread = np.zeros((2, len(number), channels))

    def fill(i: int) -> None:
        chunk, place = chunks[i], slice(places[i], places[i + 1])
        part = x[_rows_of(chunk, spans.order)]
        n, s = rows[place], spans.number(chunk)
        middle = spans.sums(chunk, part.astype(np.float64)) / n
        off = part - middle.astype(np.float32)[0 if isinstance(s, int) else s - chunk.start]
        off *= off
        centre[place] = middle
        spread[place] = spans.sums(chunk, off) - n * _low(middle) ** 2

    if channels:
        parallel(fill, len(chunks), blas=True, small=spans.total * channels < SMALL)
    share = 1 / spans.counts[:, None]
    mean = _by_span(centre * rows, number) * share
    spread += rows * (centre - mean[number]) ** 2
    var = _by_span(spread, number) * share
    if spans.group is not None:
        common = spans.pooled(mean)
        mean, var = common, spans.pooled(var + (mean - common) ** 2)
    return mean, np.maximum(var, 0)


def _gradient_sums(
    g: np.ndarray, x: np.ndarray, mean: np.ndarray, spans: Spans
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of g and of g * (x - mean) by span: two (S, C) float64."""
    centre = mean.astype(np.float32)

    def work(s: int | np.ndarray, rows: slice | np.ndarray, total: Total) -> tuple[np.ndarray, np.ndarray]:
        up, off = g[rows], x[rows] - centre[s]
        off *= up
        return total(up), total(off)

    plain, crossed = _reduce(work, spans, x.shape[1])
    return plain, crossed - _low(mean) * plain


def _spread(values: np.ndarray, which: np.ndarray, spans: int) -> np.ndarray:
    """(S, C) with values in the rows `which`, 0 in the others."""
    out = np.zeros((spans, values.shape[1]), values.dtype)
    out[which] = values
    return out
