"""Local pooling with convolution's geometry, and pooling over whole batch items."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.features import scalar
from ..backend.status import EMPTY, report
from ..coords import CoordinateMapKey, Kernel
from ..coords.geometry import TripleLike
from ..engine import pooling, pooling_kernel
from ..errors import MLXSparseError, listed
from ..tensor import SparseTensor
from .check import check_tensor
from .conv import Target, output_key


def max_pool3d(
    x: SparseTensor,
    kernel_size: TripleLike,
    stride: TripleLike | None = None,
    padding: TripleLike = 0,
    dilation: TripleLike = 1,
    support: str = "touched",
    *,
    out: Target | None = None,
    capacity: int | None = None,
) -> SparseTensor:
    """Maximum over the active inputs of each window; never starts from zero.

    Stride defaults to the kernel size; supports as in conv3d. NaN wins; an output without active
    inputs (possible with "parents" or `out`) is 0. The gradient goes to the first tap that attains
    the maximum.
    """
    key, pairs, _ = _geometry(x, kernel_size, stride, padding, dilation, support, out, capacity)
    return SparseTensor._of(key, pooling.max_pool(x.feats, pairs, key.capacity), x)


def sum_pool3d(
    x: SparseTensor,
    kernel_size: TripleLike,
    stride: TripleLike | None = None,
    padding: TripleLike = 0,
    dilation: TripleLike = 1,
    support: str = "touched",
    *,
    out: Target | None = None,
    capacity: int | None = None,
) -> SparseTensor:
    """Sum over the active inputs of each window, in float32; 0 where there are none."""
    key, pairs, _ = _geometry(x, kernel_size, stride, padding, dilation, support, out, capacity)
    return SparseTensor._of(key, pooling.sum_pool(x.feats, pairs, key.capacity), x)


def avg_pool3d(
    x: SparseTensor,
    kernel_size: TripleLike,
    stride: TripleLike | None = None,
    padding: TripleLike = 0,
    dilation: TripleLike = 1,
    support: str = "touched",
    *,
    count_include_empty: bool = False,
    out: Target | None = None,
    capacity: int | None = None,
) -> SparseTensor:
    """Mean over the active inputs of each window; with `count_include_empty`, over all its sites."""
    key, pairs, kernel = _geometry(x, kernel_size, stride, padding, dilation, support, out, capacity)
    if count_include_empty:
        scale = pooling.constant_scale(pairs, 1.0 / kernel.volume)
    else:
        scale = pooling.mean_scale(pairs)
    return SparseTensor._of(key, pooling.sum_pool(x.feats, pairs, key.capacity, scale), x)


def global_sum_pool(x: SparseTensor) -> mx.array:
    """Sum over each batch item's sites: (B, C); 0 for an empty item."""
    return _reduced(x, "sum")


def global_avg_pool(x: SparseTensor) -> mx.array:
    """Mean over each batch item's sites: (B, C); 0 for an empty item."""
    return _reduced(x, "mean")


def global_max_pool(x: SparseTensor, *, empty: float | None = None) -> mx.array:
    """Maximum over each batch item's sites: (B, C). An empty item raises unless `empty` is its value.

    Of equal maxima the first in the order of coordinates has the gradient. With a fixed capacity on a GPU
    nothing is read: an empty item is 0 then, and mlxsparse.compile raises; of equal maxima the first row
    has the gradient.
    """
    check_tensor(x)
    check_empty(empty)
    if x.key.static:
        counts = x.batch_counts[:, None]
        if empty is None:
            report(mx.any(counts == 0), EMPTY)
        return mx.where(counts == 0, mx.array(empty or 0, x.dtype), _reduced(x, "max"))
    vacant = x.key.counts == 0
    if empty is None and vacant.any():
        items = listed(np.flatnonzero(vacant).tolist())
        raise MLXSparseError(f"global_max_pool: batch items {items} have no sites; pass empty=value")
    y = _reduced(x, "max")
    if empty is not None and vacant.any():
        y = mx.where(mx.array(vacant)[:, None], mx.array(empty, y.dtype), y)
    return y


def check_empty(empty: Any) -> None:
    """MLXSparseError unless `empty` is None or a number: most batches have no empty item to show it."""
    if empty is not None and scalar(empty) is None:
        raise MLXSparseError(f"empty must be a number or None, got {empty!r}")


def _reduced(x: SparseTensor, mode: str) -> mx.array:
    check_tensor(x)
    if x.key.static:
        return pooling_kernel.reduce_items(x.feats, x.key.items, mode)
    return pooling.batch_reduce(x.feats, x.key.index.order, x.key.counts, mode)


def _geometry(
    x: SparseTensor,
    kernel_size: TripleLike,
    stride: TripleLike | None,
    padding: TripleLike,
    dilation: TripleLike,
    support: str,
    out: Target | None,
    capacity: int | None,
) -> tuple[CoordinateMapKey, pooling.Relation, Kernel]:
    check_tensor(x)
    kernel = Kernel.of(kernel_size, kernel_size if stride is None else stride, padding, dilation)
    key = output_key(x, kernel, support, out, capacity)
    return key, x.manager.kernel_map(x.key, key, kernel).relation, kernel
