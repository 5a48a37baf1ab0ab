"""Batch items put together, taken apart, and combined with one vector each."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..backend import host
from ..engine import pooling_kernel
from ..engine.broadcast import repeat_items
from ..engine.rows import take_rows
from ..errors import DTypeError, ShapeError, StrideError
from ..tensor import SparseTensor
from .check import check_tensor


def collate(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """One tensor with the batch items of all, numbered on from tensor to tensor; rows in order.

    Tensors agree in stride, channels, dtype and spatial_shape. Item b of tensor i becomes
    b + the batch sizes before; empty items stay. Padding rows are left out, and if a tensor has a
    fixed capacity (`with_capacity`) the result has the sum of the capacities.
    """
    tensors = list(tensors)
    if not tensors:
        raise ShapeError("collate needs at least one tensor")
    for i, x in enumerate(tensors):
        check_tensor(x, f"tensors[{i}]")
    head = tensors[0]
    for i, x in enumerate(tensors):
        if x.stride != head.stride:
            raise StrideError(f"collate: tensors[{i}] has stride {x.stride}, tensors[0] has {head.stride}")
        if x.num_channels != head.num_channels:
            raise ShapeError(
                f"collate: tensors[{i}] has {x.num_channels} channels, tensors[0] has {head.num_channels}"
            )
        if x.dtype != head.dtype:
            raise DTypeError(f"collate: tensors[{i}] is {x.dtype}, tensors[0] {head.dtype}: use .astype")
        if x.spatial_shape != head.spatial_shape:
            raise ShapeError(
                f"collate: tensors[{i}] has spatial_shape {x.spatial_shape}, tensors[0] "
                f"{head.spatial_shape}; make them with one spatial_shape=, or none"
            )
    counts = [x.key.count for x in tensors]
    coords = np.concatenate([host.view(x.coords)[:n] for x, n in zip(tensors, counts)])
    sizes = [x.batch_size for x in tensors]
    coords[:, 0] += np.repeat(np.cumsum([0, *sizes[:-1]]), counts).astype(np.int32)
    key = head.manager.insert(
        coords, head.stride, batch_size=sum(sizes), spatial_shape=head.spatial_shape, validate=False
    )
    y = SparseTensor._of(key, mx.concatenate([x.feats[:n] for x, n in zip(tensors, counts)]), *tensors)
    if any(x.key.fixed_capacity for x in tensors):
        return y.with_capacity(sum(x.capacity for x in tensors))
    return y


def decollate(x: SparseTensor) -> list[SparseTensor]:
    """A tensor of one batch item, numbered 0, for each item of `x`; rows in order.

    Items of a tensor with a fixed capacity keep that capacity. `collate` is the inverse, except that
    it leaves the rows of an item together.
    """
    check_tensor(x)
    if x.batch_size == 0:
        return []
    n, counts = x.key.count, x.key.counts
    coords = host.view(x.coords)[:n]
    feats = x.feats[:n]
    if np.any(coords[1:, 0] < coords[:-1, 0]):
        order = np.argsort(coords[:, 0], kind="stable").astype(np.int32)
        coords, feats = coords[order], take_rows(x.feats, order)
    ends = np.cumsum(counts).tolist()
    items = []
    for part, a, b in zip(mx.split(feats, ends[:-1]), [0, *ends], ends):
        sites = coords[a:b].copy()
        sites[:, 0] = 0
        key = x.manager.insert(sites, x.stride, batch_size=1, spatial_shape=x.spatial_shape, validate=False)
        item = SparseTensor._of(key, part, x)
        items.append(item.with_capacity(x.capacity) if x.key.fixed_capacity else item)
    return items


def broadcast_add(x: SparseTensor, g: mx.array) -> SparseTensor:
    """x + g[batch item of the row]: g (B, C) in x's dtype, its gradient the sum over an item's rows."""
    return x.replace(x.feats + _rows_of(x, g, "broadcast_add"))


def broadcast_mul(x: SparseTensor, g: mx.array) -> SparseTensor:
    """x * g[batch item of the row], as squeeze and excitation does: g (B, C) in x's dtype."""
    return x.replace(x.feats * _rows_of(x, g, "broadcast_mul"))


def _rows_of(x: SparseTensor, g: mx.array, name: str) -> mx.array:
    check_tensor(x)
    if not isinstance(g, mx.array):
        raise DTypeError(f"{name}: g must be an mlx array (B, C), got {type(g).__name__}")
    if tuple(g.shape) != (x.batch_size, x.num_channels):
        raise ShapeError(
            f"{name}: g must have shape (batch_size, channels) = {(x.batch_size, x.num_channels)}, "
            f"got {tuple(g.shape)}"
        )
    if g.dtype != x.dtype:
        raise DTypeError(f"{name}: g is {g.dtype}, feats are {x.dtype}: cast one with .astype")
    if x.key.static:
        return pooling_kernel.spread_items(g, x.key.items)
    return repeat_items(g, x.key.index.order, x.key.counts, x.capacity)
