"""Pooling over the active inputs of each output, reductions over a batch item, and batch normalisation."""

from __future__ import annotations

import numpy as np

from mlxsparse.errors import ShapeError
from mlxsparse.testing.oracle.relation import Array, Triple, conv_pairs, output_support, taps


def _members(
    coords: Array, out_coords: Array, kernel_size: Triple, stride: Triple, padding: Triple, dilation: Triple
) -> list[list[int]]:
    """For each output row its active input rows, in tap order."""
    members: list[list[int]] = [[] for _ in range(len(out_coords))]
    for pair in conv_pairs(coords, out_coords, kernel_size, stride, padding, dilation):
        members[pair.out_row].append(pair.in_row)
    return members


def max_pool3d(
    coords: Array,
    feats: Array,
    kernel_size: Triple,
    stride: Triple | None = None,
    padding: Triple = 0,
    dilation: Triple = 1,
    *,
    support: str = "touched",
    out_coords: Array | None = None,
    spatial_shape: Triple | None = None,
) -> tuple[Array, Array]:
    """Largest active input of each output, per channel. `stride` is the kernel size unless given."""
    s = kernel_size if stride is None else stride
    out = output_support(coords, kernel_size, s, padding, dilation, support, out_coords, spatial_shape)
    pooled = np.zeros((len(out), np.shape(feats)[1]))
    for row, inputs in enumerate(_members(coords, out, kernel_size, s, padding, dilation)):
        if inputs:
            pooled[row] = np.asarray(feats, dtype=np.float64)[inputs].max(axis=0)
    return out, pooled


def max_pool3d_gradient(
    coords: Array,
    feats: Array,
    grad: Array,
    kernel_size: Triple,
    stride: Triple | None = None,
    padding: Triple = 0,
    dilation: Triple = 1,
    *,
    out_coords: Array,
) -> Array:
    """Feature gradient: each output's goes to the first input, in tap order, that attains the maximum."""
    s = kernel_size if stride is None else stride
    feats, grad = np.asarray(feats, dtype=np.float64), np.asarray(grad, dtype=np.float64)
    dfeats = np.zeros_like(feats)
    for row, inputs in enumerate(_members(coords, out_coords, kernel_size, s, padding, dilation)):
        for channel in range(feats.shape[1]):
            if inputs:
                winner = inputs[int(np.argmax(feats[inputs, channel]))]  # argmax is the first of equals
                dfeats[winner, channel] += grad[row, channel]
    return dfeats


def sum_pool3d(
    coords: Array,
    feats: Array,
    kernel_size: Triple,
    stride: Triple | None = None,
    padding: Triple = 0,
    dilation: Triple = 1,
    *,
    support: str = "touched",
    out_coords: Array | None = None,
    spatial_shape: Triple | None = None,
) -> tuple[Array, Array]:
    """Sum of the active inputs of each output."""
    s = kernel_size if stride is None else stride
    out = output_support(coords, kernel_size, s, padding, dilation, support, out_coords, spatial_shape)
    feats = np.asarray(feats, dtype=np.float64)
    pooled = np.zeros((len(out), feats.shape[1]))
    for pair in conv_pairs(coords, out, kernel_size, s, padding, dilation):
        pooled[pair.out_row] += feats[pair.in_row]
    return out, pooled


def sum_pool3d_gradient(
    coords: Array,
    feats: Array,
    grad: Array,
    kernel_size: Triple,
    stride: Triple | None = None,
    padding: Triple = 0,
    dilation: Triple = 1,
    *,
    out_coords: Array,
) -> Array:
    """Feature gradient of sum(grad * sum_pool3d(...))."""
    s = kernel_size if stride is None else stride
    dfeats, grad = np.zeros(np.shape(feats)), np.asarray(grad, dtype=np.float64)
    for pair in conv_pairs(coords, out_coords, kernel_size, s, padding, dilation):
        dfeats[pair.in_row] += grad[pair.out_row]
    return dfeats


def _divisors(members: list[list[int]], kernel_size: Triple, count_include_empty: bool) -> Array:
    volume = len(taps(kernel_size))
    return np.array([[volume if count_include_empty else max(len(m), 1)] for m in members], float).reshape(
        -1, 1
    )


def avg_pool3d(
    coords: Array,
    feats: Array,
    kernel_size: Triple,
    stride: Triple | None = None,
    padding: Triple = 0,
    dilation: Triple = 1,
    *,
    support: str = "touched",
    out_coords: Array | None = None,
    spatial_shape: Triple | None = None,
    count_include_empty: bool = False,
) -> tuple[Array, Array]:
    """Sum over the number of active inputs, or over the kernel volume with `count_include_empty`."""
    s = kernel_size if stride is None else stride
    out, total = sum_pool3d(
        coords, feats, kernel_size, s, padding, dilation,
        support=support, out_coords=out_coords, spatial_shape=spatial_shape,
    )  # fmt: skip
    members = _members(coords, out, kernel_size, s, padding, dilation)
    return out, total / _divisors(members, kernel_size, count_include_empty)


def avg_pool3d_gradient(
    coords: Array,
    feats: Array,
    grad: Array,
    kernel_size: Triple,
    stride: Triple | None = None,
    padding: Triple = 0,
    dilation: Triple = 1,
    *,
    out_coords: Array,
    count_include_empty: bool = False,
) -> Array:
    """Feature gradient of sum(grad * avg_pool3d(...))."""
    s = kernel_size if stride is None else stride
    members = _members(coords, out_coords, kernel_size, s, padding, dilation)
    scaled = np.asarray(grad, dtype=np.float64) / _divisors(members, kernel_size, count_include_empty)
    return sum_pool3d_gradient(
        coords, feats, scaled, kernel_size, s, padding, dilation, out_coords=out_coords
    )


def _items(coords: Array, feats: Array, batch_size: int | None) -> list[Array]:
    """The feature rows of each batch item; items without a row are there too."""
    batch = np.asarray(coords).reshape(-1, 4)[:, 0]
    size = int(batch.max(initial=-1)) + 1 if batch_size is None else batch_size
    return [np.asarray(feats, dtype=np.float64)[batch == b] for b in range(size)]


def global_max_pool(
    coords: Array, feats: Array, batch_size: int | None = None, empty: float | None = None
) -> Array:
    """Maximum of each batch item, (B, C). An item without rows is `empty`; ShapeError where that is None."""
    items = _items(coords, feats, batch_size)
    if empty is None and any(len(rows) == 0 for rows in items):
        raise ShapeError("global_max_pool of a batch item without rows needs empty=value")
    pooled = [rows.max(axis=0) if len(rows) else np.full(np.shape(feats)[1], empty, float) for rows in items]
    return np.array(pooled).reshape(len(items), np.shape(feats)[1])


def global_sum_pool(coords: Array, feats: Array, batch_size: int | None = None) -> Array:
    """Sum of each batch item, (B, C); 0 for an item without rows."""
    items = _items(coords, feats, batch_size)
    return np.array([rows.sum(axis=0) for rows in items]).reshape(len(items), np.shape(feats)[1])


def global_avg_pool(coords: Array, feats: Array, batch_size: int | None = None) -> Array:
    """Mean of each batch item, (B, C); 0 for an item without rows."""
    items = _items(coords, feats, batch_size)
    counts = np.array([max(len(rows), 1) for rows in items], float).reshape(-1, 1)
    return np.asarray(global_sum_pool(coords, feats, batch_size) / counts)


def batch_norm(
    feats: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """Normalised over all rows of all items with the biased variance, as in training."""
    feats = np.asarray(feats, dtype=np.float64)
    if len(feats) == 0:
        return feats
    normalised = (feats - feats.mean(axis=0)) / np.sqrt(feats.var(axis=0) + eps)
    scaled = normalised if weight is None else normalised * np.asarray(weight, dtype=np.float64)
    return np.asarray(scaled if bias is None else scaled + np.asarray(bias, dtype=np.float64))
