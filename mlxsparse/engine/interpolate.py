"""Trilinear interpolation between lattice sites, on the host."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import executor
from ..backend.autodiff import differentiable
from ..backend.host import empty, parallel, view32
from . import rows_kernel
from .index import BIAS, CoordIndex, child_keys, find

SEARCH = 8192  # targets of one search
BLOCK = 512  # targets of one step forward, segments of one step back
RUN = 256  # terms that are added up in float32


def corners(
    index: CoordIndex, batch: np.ndarray, low: list[np.ndarray], part: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and weights (N, 8) of the sites around N targets at ``low + part`` in batch items `batch`.

    low (x, y, z) int64, part in [0, 1), each (N,). Weights are float32 and sum to 1 over the sites
    that exist; a missing site, or one of weight 0, has row -1 and weight 0.
    """
    rows = np.empty((len(batch), 8), np.int32)
    weights = np.empty((len(batch), 8), np.float32)

    def work(i: int) -> None:
        block = slice(i * SEARCH, (i + 1) * SEARCH)
        found = _corner_rows(index, batch[block], [c[block] for c in low])
        weight = np.ones((len(found), 1))
        for p in part:
            sides = np.stack([1 - p[block], p[block]], axis=1)  # x slowest, as the rows are
            weight = (weight[:, :, None] * sides[:, None, :]).reshape(len(found), -1)
        found[weight == 0] = -1
        weight[found < 0] = 0
        total = weight.sum(axis=1, keepdims=True)
        rows[block] = found
        weights[block] = weight / np.where(total > 0, total, 1)

    parallel(work, -(-len(batch) // SEARCH), small=len(batch) < 2 * SEARCH)
    return rows, weights


def _corner_rows(index: CoordIndex, batch: np.ndarray, low: list[np.ndarray]) -> np.ndarray:
    """Rows (N, 8) of the sites low + (0 or 1) on each axis, x slowest; -1 where there is none."""
    x, y, z = low
    ranks = np.empty((len(batch), 8), np.int32)
    for dx in (0, 1):
        slab = find(index.slab_keys, child_keys(batch, x + dx))
        for dy in (0, 1):
            column = find(index.column_keys, child_keys(slab, y + dy))
            key = np.where(column < 0, np.int64(-1), (column.astype(np.int64) << 32) + (z + BIAS))
            place = np.searchsorted(index.site_keys, key)
            here = index.site_keys[place] == key
            # The site above in z, if there is one, comes next.
            above = place + here
            k = 4 * dx + 2 * dy
            ranks[:, k] = np.where(here, place, -1)
            ranks[:, k + 1] = np.where(index.site_keys[above] == key + 1, above, -1)
    if index.order is None or index.size == 0:
        return ranks
    return np.where(ranks < 0, np.int32(-1), index.order[ranks])


def interpolate(x: mx.array, rows: np.ndarray, weights: np.ndarray, size: int) -> mx.array:
    """y[i] = sum over k of weights[i, k] * x[rows[i, k]]: (capacity, C) -> (size, C), fp32 sums.

    rows (N, K) int32, -1 for none, and weights (N, K) float32, N <= size; 0 in the rows from N on.
    The gradient adds the pairs of a row in the order of targets, so bits do not depend on threads.
    """
    if executor() == "kernel":
        return rows_kernel.interpolate(x, rows, weights, size)
    dtype, (n, k) = x.dtype, rows.shape

    def forward(x: mx.array) -> mx.array:
        source = view32(x)
        out, y = empty((size, x.shape[1]), mx.float32)
        y[n:] = 0
        if len(source) == 0:
            y[:] = 0
            return out.astype(dtype)

        def work(i: int) -> None:
            block = slice(i * BLOCK, min((i + 1) * BLOCK, n))
            flat = rows[block].reshape(-1)
            part = np.take(source, flat, axis=0, mode="clip")
            part[np.flatnonzero(flat < 0)] = 0  # not 0 * x, which an infinite x makes NaN
            part = part.reshape(len(flat) // k, k, x.shape[1])  # -1 does not tell where there are 0 channels
            np.matmul(weights[block, None, :], part, out=y[block, None, :])

        parallel(work, -(-n // BLOCK), blas=True, small=n < 4 * BLOCK)
        return out.astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        dx[:] = 0
        _spread(view32(ct), rows, weights, dx)
        return out.astype(dtype)

    return differentiable("interpolation", forward, (gradient,), x)


def _spread(g: np.ndarray, rows: np.ndarray, weights: np.ndarray, dx: np.ndarray) -> None:
    """dx[r] = sum of weights[i, k] * g[i] over the pairs with rows[i, k] == r, where there are any."""
    flat = rows.reshape(-1)
    pairs = np.flatnonzero(flat >= 0)
    if len(pairs) == 0:
        return
    key = (flat[pairs].astype(np.int64) << 32) | pairs
    key.sort()
    pairs, row = key & (2**32 - 1), key >> 32
    target, weight = pairs // rows.shape[1], weights.reshape(-1)[pairs]
    place = np.arange(len(row))
    first = np.ones(len(row), bool)
    first[1:] = row[1:] != row[:-1]
    starts = np.flatnonzero(first)
    # Long runs are added up in pieces, so that float32 does not lose the small terms.
    number = np.cumsum(first) - 1
    pieces = np.flatnonzero((place - starts[number]) % RUN == 0)
    ends = np.append(pieces, len(row))
    sums = np.empty((len(pieces), g.shape[1]), np.float32)

    def work(i: int) -> None:
        block = slice(i * BLOCK, min((i + 1) * BLOCK, len(pieces)))
        a, b = ends[block.start], ends[block.stop]
        part = np.take(g, target[a:b], axis=0)
        part *= weight[a:b, None]
        np.add.reduceat(part, pieces[block] - a, axis=0, out=sums[block])

    parallel(work, -(-len(pieces) // BLOCK), small=len(pieces) < 4 * BLOCK)
    if len(pieces) > len(starts):
        wide = np.add.reduceat(sums.astype(np.float64), np.searchsorted(pieces, starts), axis=0)
        dx[row[starts]] = wide
    else:
        dx[row[starts]] = sums
