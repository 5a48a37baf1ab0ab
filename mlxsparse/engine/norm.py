"""Normalisation over rows, on the host: statistics of row spans (batch, group, instance
normalisation) and of single rows (layer, RMS normalisation).

Two passes forward and two backward over chunks that stay in cache. A chunk's mean is float64, its
other sums are float32 around the mean, and chunks are joined in float64 in their order: results do
not depend on the number of threads, nor does a variance suffer from a large mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from ..backend import executor
from ..backend.autodiff import Gradient, differentiable
from ..backend.host import empty, parallel, silent, to_mlx, view, view32
from ..backend.kernel_norm import Running
from . import norm_kernel

CHUNK = 1 << 16  # values of one chunk
TILE = 32  # rows that one vector operation spans, since a row alone is short
SMALL = 1 << 17  # values that one thread does in about the time of waking another


class Spans(NamedTuple):
    """What shares its statistics: consecutive ranks, and channels of one group."""

    order: np.ndarray | None  # (n,) row of each rank; None: the rank itself
    counts: np.ndarray  # (S,) rows of each span
    group: np.ndarray | None = None  # (C,) group number of each channel; None: each its own

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def chunks(self, channels: int) -> list[tuple[int, int, int]]:
        """(span, first rank, last rank) of pieces that stay in cache."""
        step = max(1, CHUNK // (max(channels, 1) * TILE)) * TILE
        ends = np.cumsum(self.counts).tolist()
        starts = [0, *ends[:-1]]
        return [
            (s, a, min(a + step, ends[s])) for s in range(len(ends)) for a in range(starts[s], ends[s], step)
        ]

    def pooled(self, per_channel: np.ndarray) -> np.ndarray:
        """(S, C) with each channel's value replaced by the mean of its group."""
        if self.group is None:
            return per_channel
        member = np.eye(int(self.group.max(initial=-1)) + 1)[self.group]  # (C, G)
        return (per_channel @ member / member.sum(axis=0)) @ member.T


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
    with silent():
        mean, var = _statistics(view32(x), spans)
    rstd = 1 / np.sqrt(var + eps)
    share = 1 / np.maximum(spans.counts, 1)[:, None]

    def forward(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        scale = rstd * view32(w)
        # What float32 leaves of the mean goes into the shift.
        vectors = [_tiled(v) for v in (mean, scale, view32(b) - _low(mean) * scale)]

        def work(y: np.ndarray, s: int, x: np.ndarray) -> None:
            centre, scale, shift = (v[s, : y.shape[1]] for v in vectors)
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
        vectors = [_tiled(v) for v in (mean, -slope, scale, _low(mean) * slope - offset)]

        def work(dx: np.ndarray, s: int, x: np.ndarray, g: np.ndarray) -> None:
            centre, slope, scale, offset = (v[s, : dx.shape[1]] for v in vectors)
            np.subtract(x, centre, out=dx)
            dx *= slope
            dx += offset
            dx += g * scale

        return _map(work, (view32(x), view32(ct)), spans).astype(dtype)

    gradients = (input_gradient, *_affine_gradients(shared, rstd))
    y = differentiable("normalization", forward, gradients, x, weight, bias)
    return y, to_mlx(mean.astype(np.float32)), to_mlx(var.astype(np.float32))


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
    rows = Spans(None, np.array([count]))
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

        def work(y: np.ndarray, _: int, x: np.ndarray) -> None:
            standard(x, y)
            y *= scale
            y += shift

        return _map(work, (view32(x),), rows, tile=False).astype(dtype)

    def sums(ct: mx.array, x: mx.array) -> tuple[np.ndarray, np.ndarray]:
        source, g = view32(x), view32(ct)

        def work(_: int, chunk: slice | np.ndarray, ones: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            part = np.empty_like(source[chunk])
            standard(source[chunk], part)
            part *= g[chunk]
            return ones @ g[chunk], ones @ part

        plain, crossed = _reduce(work, rows, channels)
        return plain, crossed

    shared = _Shared(sums)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        scale = view32(w)

        def work(dx: np.ndarray, _: int, x: np.ndarray, g: np.ndarray) -> None:
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

    def work(s: int, rows: slice | np.ndarray, ones: np.ndarray) -> tuple[np.ndarray]:
        return (ones @ x[rows],)

    return _reduce(work, spans, x.shape[1])[0]


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


def _tiled(v: np.ndarray) -> np.ndarray:
    """(S, C) -> (S, TILE * C) float32."""
    return np.tile(v.astype(np.float32), (1, TILE))


def _map(
    work: Callable[..., None], sources: tuple[np.ndarray, ...], spans: Spans, *, tile: bool = True
) -> mx.array:
    """Chunks of an output like sources[0], filled by ``work(out, span, *sources)``.

    With `tile`, arrays come with several rows side by side, as `_tiled` vectors have them.
    """
    channels = sources[0].shape[1]
    out, y = empty(sources[0].shape, mx.float32)
    y[spans.total :] = 0
    chunks = spans.chunks(channels)
    order = spans.order

    def fill(i: int) -> None:
        s, first, last = chunks[i]
        rows = slice(first, last) if order is None else order[first:last]
        shape = (-1, channels * math.gcd(last - first, TILE)) if tile else (-1, channels)
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


def _reduce(
    work: Callable[[int, slice | np.ndarray, np.ndarray], tuple[np.ndarray, ...]],
    spans: Spans,
    channels: int,
) -> list[np.ndarray]:
    """float64 sums (S, C) over each span's chunks; ``work(span, rows, ones)`` gives a chunk's."""
    chunks = spans.chunks(channels)
    order = spans.order
    parts: list[tuple[np.ndarray, ...]] = [()] * len(chunks)

    def fill(i: int) -> None:
        s, first, last = chunks[i]
        rows = slice(first, last) if order is None else order[first:last]
        parts[i] = work(s, rows, np.ones(last - first, np.float32))

    parallel(fill, len(chunks), blas=True, small=spans.total * channels < SMALL)
    if not chunks:
        return [np.zeros((len(spans.counts), channels))] * 2
    return [_by_span(np.array(part, np.float64), chunks, spans) for part in zip(*parts)]


def _by_span(parts: np.ndarray, chunks: list[tuple[int, int, int]], spans: Spans) -> np.ndarray:
    ends = np.cumsum(np.bincount([s for s, _, _ in chunks], minlength=len(spans.counts)))
    starts = [0, *ends[:-1]]
    return np.array([parts[a:b].sum(axis=0) for a, b in zip(starts, ends)]).reshape(-1, parts.shape[1])


def _statistics(x: np.ndarray, spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Mean and biased variance (S, C) float64; zeros for a span without rows."""
    channels = x.shape[1]
    chunks = spans.chunks(channels)
    number = np.array([s for s, _, _ in chunks], np.int64)
    rows = np.array([last - first for _, first, last in chunks], np.float64)[:, None]
    centre, spread = np.zeros((2, len(chunks), channels))
    order = spans.order

    def fill(i: int) -> None:
        _, first, last = chunks[i]
        part = x[first:last] if order is None else x[order[first:last]]
        n = last - first
        centre[i] = np.ones(n) @ part.astype(np.float64) / n
        off = part - centre[i].astype(np.float32)
        off *= off
        spread[i] = np.ones(n, np.float32) @ off - n * _low(centre[i]) ** 2

    if channels:
        parallel(fill, len(chunks), blas=True, small=spans.total * channels < SMALL)
    share = 1 / np.maximum(spans.counts, 1)[:, None]
    mean = _by_span(centre * rows, chunks, spans) * share
    spread += rows * (centre - mean[number]) ** 2
    var = _by_span(spread, chunks, spans) * share
    if spans.group is not None:
        common = spans.pooled(mean)
        mean, var = common, spans.pooled(var + (mean - common) ** 2)
    return mean, np.maximum(var, 0)


def _gradient_sums(
    g: np.ndarray, x: np.ndarray, mean: np.ndarray, spans: Spans
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of g and of g * (x - mean) by span: two (S, C) float64."""
    centre = mean.astype(np.float32)

    def work(s: int, rows: slice | np.ndarray, ones: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        up, off = g[rows], x[rows] - centre[s]
        off *= up
        return ones @ up, ones @ off

    plain, crossed = _reduce(work, spans, x.shape[1])
    return plain, crossed - _low(mean) * plain
