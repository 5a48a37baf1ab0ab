"""One vector per batch item, repeated over the item's rows, on the host."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import executor
from ..backend.autodiff import differentiable
from ..backend.host import empty, view32
from . import pooling_kernel
from .norm import row_sums
from .spans import Spans


def repeat_items(g: mx.array, order: np.ndarray | None, counts: np.ndarray, size: int) -> mx.array:
    """y[i] = g[batch item of row i]: (B, C) -> (size, C), 0 in padding rows.

    order (n,) row of each rank or None, counts (B,) rows of each item, consecutive in rank. The
    gradient is the sum over each item's rows, float32 in chunks, float64 between them.
    """
    if executor() == "kernel":
        return pooling_kernel.repeat_items(g, order, counts, size)
    dtype = g.dtype
    spans = Spans(order, counts)
    total = spans.total

    def forward(g: mx.array) -> mx.array:
        out, y = empty((size, g.shape[1]), mx.float32)
        y[slice(0, total) if order is None else order] = np.repeat(view32(g), counts, axis=0)
        y[total:] = 0
        return out.astype(dtype)

    def gradient(ct: mx.array, g: mx.array) -> mx.array:
        return mx.array(row_sums(view32(ct), spans).astype(np.float32)).astype(dtype)

    return differentiable("broadcast over batch items", forward, (gradient,), g)
