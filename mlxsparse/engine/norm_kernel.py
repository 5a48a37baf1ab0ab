"""Normalisation on a GPU: norm.py in MLX operations, with sums over rows by kernels.

Statistics are float32. A mean is taken twice, the second time of what the first left over, so that a
large mean costs a variance nothing; sums run in a fixed order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx
import numpy as np

from ..backend import kernel_items, kernel_norm, kernel_rows
from ..backend.autodiff import differentiable, together, traced
from ..backend.kernel_norm import Running
from ..backend.library import Factory, factory, filled
from ..errors import ShapeError
from . import origin
from .tables import column_sums, floats, integers, item_of_rows, rows_of_ranks, span_sums

if TYPE_CHECKING:
    from .norm import Spans


class Items(NamedTuple):
    """Batch items as spans, counted on the device alone; groups of channels as in norm.Spans."""

    rows: kernel_rows.Segments
    group: np.ndarray | None = None


class _Layout:
    """Spans of a tensor of `size` rows as arrays, and the moves between rows and spans."""

    sums: Callable[[mx.array], mx.array]  # (N, C) -> (S, C) float32

    def __init__(self, spans: Spans | Items, size: int, channels: int):
        if isinstance(spans, Items):
            rows = spans.rows
            self.number = rows.size
            self.sums = lambda x: kernel_items.reduce_items(x, rows, "sum")[0]
            self.share = (1 / mx.maximum(rows.counts, 1).astype(mx.float32))[:, None]
            item = rows.group
        else:
            counts, order = spans.counts, rows_of_ranks(spans.order, spans.total)
            self.number = len(counts)
            self.sums = lambda x: span_sums(x, order, counts)
            self.share = floats(1 / np.maximum(counts, 1))[:, None]
            item = item_of_rows(spans.order, counts, size)
        self.live = (item >= 0)[:, None]
        self.item = mx.maximum(item, 0)
        self.member: mx.array | None = None
        if spans.group is not None:
            groups = int(spans.group.max(initial=-1)) + 1
            member = np.eye(groups, dtype=np.float32)[:, spans.group]  # (G, C)
            self.member = floats(member / member.sum(axis=1, keepdims=True))
            self.group = integers(spans.group)

    def rows(self, x: mx.array) -> mx.array:
        """x in float32, 0 in padding whatever it holds."""
        return mx.where(self.live, x.astype(mx.float32), mx.array(0.0))

    def spread(self, v: mx.array) -> mx.array:
        """(S, C) values of spans for each row: (N, C), or (1, C) where there is one span."""
        return v if self.number == 1 else mx.take(v, self.item, axis=0)

    def pooled(self, v: mx.array) -> mx.array:
        """(S, C) with each channel's value replaced by the mean of its group."""
        if self.member is None:
            return v
        return mx.take((v[:, None, :] * self.member).sum(axis=-1), self.group, axis=1)

    def statistics(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Mean, what float32 leaves of it, and biased variance, (S, C) each."""
        live = self.rows(x)
        mean = self.pooled(self.sums(live) * self.share)
        off = self.rows(live - self.spread(mean))
        rest = self.pooled(self.sums(off) * self.share)
        var = self.pooled(self.sums(off * off) * self.share) - rest * rest
        return mean, rest, mx.maximum(var, 0)


def normalize(
    x: mx.array, weight: mx.array, bias: mx.array, spans: Spans | Items, eps: float
) -> tuple[mx.array, mx.array, mx.array]:
    """As norm.normalize."""
    dtype, (size, channels) = x.dtype, x.shape
    items = spans.rows.size if isinstance(spans, Items) else len(spans.counts)
    if x.size == 0 or items == 0:
        zero = filled((items, channels), 0, mx.float32)
        return _nothing(x, weight, bias), zero, zero
    layout = _Layout(spans, size, channels)
    mean, rest, var = layout.statistics(mx.stop_gradient(x))
    rstd = mx.rsqrt(var + eps)

    def centred(x: mx.array) -> mx.array:
        return layout.rows(layout.rows(x) - layout.spread(mean) - layout.spread(rest))

    def forward(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        scale = layout.spread(rstd * w.astype(mx.float32))
        return layout.rows(centred(x) * scale + b.astype(mx.float32)).astype(dtype)

    def plain(ct: mx.array) -> mx.array:
        return layout.sums(ct)

    def crossed(ct: mx.array, x: mx.array) -> mx.array:
        return layout.sums(layout.rows(ct) * centred(x))

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        w = w.astype(mx.float32)
        scale = rstd * w
        offset = rstd * layout.pooled(plain(ct) * w) * layout.share
        slope = rstd * rstd * layout.pooled(crossed(ct, x) * scale) * layout.share
        dx = layout.rows(ct) * layout.spread(scale) - centred(x) * layout.spread(slope)
        return layout.rows(dx - layout.spread(offset)).astype(dtype)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return (crossed(ct, x) * rstd).sum(axis=0).astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return plain(ct).sum(axis=0).astype(b.dtype)

    gradients = (input_gradient, weight_gradient, bias_gradient)
    return differentiable("normalization", forward, gradients, x, weight, bias), mean + rest, var


def normalize_columns(
    x: mx.array,
    weight: mx.array,
    bias: mx.array,
    count: int | mx.array,
    eps: float,
    *,
    relu: bool = False,
    add: mx.array | None = None,
    running: Running | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """As norm.normalize of one span, the first `count` rows; plus `add` (N, C); a ReLU: in one pass.

    `add` takes part in no statistics, its rows at and past `count` are not read, and it needs `relu`. With
    `running` its statistics, moved, take the place of mean and variance.
    """
    if x.size == 0:
        zero = filled((1, x.shape[1]), 0, mx.float32)
        return _nothing(x, weight, bias), *((zero, zero) if running is None else running[:2])
    if add is not None and add.shape != x.shape:
        raise ShapeError(f"what is added has shape {add.shape}, the features {x.shape}; they must be equal")
    bias = bias.astype(weight.dtype)
    cut = mx.stop_gradient
    # What is added and held anyway takes the place of the result, which then need not be.
    again = add is not None and origin.held(add)
    momentum = None if running is None else running.momentum
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    prepare = _columns if isinstance(count, int) else _columns.__wrapped__
    coefficients, call = prepare(
        x.shape, x.dtype, weight.dtype, count, eps, momentum, relu, add is not None, again, on_gpu, factory()
    )
    coef, mean, var = coefficients(cut(x), cut(weight), cut(bias), *(() if running is None else running[:2]))
    y = call(x, weight, bias, coef) if add is None else call(x, weight, bias, add, coef)
    if relu and (add is None or again) and traced(x, weight):
        origin.note_norm(y, x, coef, add)
    return (y, coef[:1], coef[2:3]) if running is None else (y, mean, var)


@functools.lru_cache(maxsize=256)
def _columns(
    shape: tuple[int, ...], dtype: mx.Dtype, weight: mx.Dtype, count: int | mx.array, eps: float,
    momentum: float | None, relu: bool, added: bool, again: bool, on_gpu: bool, make: Factory,
) -> tuple[Callable[..., Sequence[mx.array]], Callable[..., mx.array]]:  # fmt: skip
    """Coefficients of x, weight, bias and running statistics; and the normalisation of x, a function of x,
    weight, bias, what is added, and them.

    again: gradients make the result again, and do not hold it. on_gpu, make: where it runs.
    """
    passes = kernel_norm.Columns(shape, dtype, weight, count)
    apply = passes.apply(relu, added)
    back: list[Callable[..., list[mx.array]]] = []

    def forward(x: mx.array, w: mx.array, b: mx.array, *rest: mx.array) -> mx.array:
        return apply(x, *rest)

    def gradients(
        ct: mx.array, y: mx.array, x: mx.array, w: mx.array, b: mx.array, *rest: mx.array
    ) -> list[mx.array]:
        if not back:
            back.append(passes.gradients(relu, added))
        ct = mx.contiguous(ct)  # a slice would be copied for each kernel
        if again:
            y = apply(mx.depends([x], [ct])[0], *rest)
        made = back[0](ct, x, rest[-1], *([y] if added else []))
        return made if added else made[:3]

    unread = [0] if again else [4] if added else [0]  # y, x, w, b, what is added
    read = [0, 3] if added else [0]
    call = together("normalization", forward, gradients, mx.default_device(), read=read, unread=unread)
    return passes.coefficients(eps, momentum), call


def normalize_rows(
    x: mx.array, weight: mx.array, bias: mx.array, count: int | mx.array, eps: float, *, centre: bool
) -> mx.array:
    """As norm.normalize_rows."""
    dtype, (size, channels) = x.dtype, x.shape
    if x.size == 0 or (isinstance(count, int) and count == 0):
        return _nothing(x, weight, bias)
    live = (mx.arange(size, dtype=mx.int32) < count)[:, None]

    def rows(x: mx.array) -> mx.array:
        return mx.where(live, x.astype(mx.float32), mx.array(0.0))

    def mean(v: mx.array) -> mx.array:
        return v.sum(axis=1, keepdims=True) / channels

    def standard(x: mx.array) -> tuple[mx.array, mx.array]:
        """Rows of x with mean 0 and variance 1, and 1 / deviation of each."""
        off = rows(x)
        if centre:
            off = off - mean(off)
        rstd = mx.rsqrt(mean(off * off) + eps)
        return off * rstd, rstd

    def forward(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return rows(standard(x)[0] * w.astype(mx.float32) + b.astype(mx.float32)).astype(dtype)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        unit, rstd = standard(x)
        g = rows(ct) * w.astype(mx.float32)
        dx = g - unit * mean(g * unit)
        if centre:
            dx = dx - mean(g)
        return rows(dx * rstd).astype(dtype)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return column_sums(rows(ct) * standard(x)[0], count).astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return column_sums(ct, count).astype(b.dtype)

    gradients = (input_gradient, weight_gradient, bias_gradient)
    return differentiable("row normalization", forward, gradients, x, weight, bias)


def _nothing(x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
    """The normalisation of no rows: zeros, with gradients of zeros."""

    def zeros(a: mx.array) -> mx.array:
        return filled(tuple(a.shape), 0, a.dtype)

    gradients: list[Callable[..., mx.array]] = [
        lambda ct, x, w, b: zeros(x),
        lambda ct, x, w, b: zeros(w),
        lambda ct, x, w, b: zeros(b),
    ]
    return differentiable("normalization", lambda x, w, b: zeros(x), gradients, x, weight, bias)
