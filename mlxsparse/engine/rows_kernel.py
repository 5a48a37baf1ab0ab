"""Row movement and interpolation by kernels: rows.py and interpolate.py on a GPU."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import kernel_rows
from ..backend.autodiff import differentiable
from .tables import floats, integers, segments_of


def take_rows(x: mx.array, rows: np.ndarray, fill: float) -> mx.array:
    """As rows.take_rows; `rows` are checked."""
    dtype, size = x.dtype, x.shape[0]
    index = integers(rows)

    def forward(x: mx.array) -> mx.array:
        y = kernel_rows.take_rows(x, index, check=False)
        if fill == 0 or y.size == 0:
            return y
        return mx.where(index[:, None] < 0, mx.array(fill, dtype), y)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return kernel_rows.segment_reduce(ct, segments_of(rows, size), "sum")[0].astype(dtype)

    return differentiable("row gather", forward, (gradient,), x)


def take_distinct(x: mx.array, rows: mx.array) -> mx.array:
    """y[i] = x[rows[i]], 0 where rows[i] is -1; rows (m,) int32 on the device, distinct but for -1."""
    size = x.shape[0]

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return kernel_rows.put_rows(ct, rows, size, check=False)

    return differentiable(
        "row gather", lambda x: kernel_rows.take_rows(x, rows, check=False), (gradient,), x
    )


def put_distinct(x: mx.array, rows: mx.array, size: int, fill: float) -> mx.array:
    """y[rows[i]] = x[i], `fill` elsewhere; rows (N,) int32 on the device, distinct but for -1."""

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.put_rows(x, rows, size, fill, check=False)

    return differentiable("row scatter", forward, (lambda ct, x: kernel_rows.gather_sum(ct, rows[None]),), x)


def put_rows(x: mx.array, rows: np.ndarray, size: int, fill: float) -> mx.array:
    """As rows.put_rows; `rows` are checked."""
    index = integers(rows)
    back = np.full(x.shape[0], -1, np.int32)
    back[: len(rows)] = rows
    source = integers(back[None])

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.put_rows(x, index, size, fill, check=False)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return kernel_rows.gather_sum(ct, source)

    return differentiable("row scatter", forward, (gradient,), x)


def segment_reduce(x: mx.array, group: np.ndarray, num_groups: int, mode: str) -> mx.array:
    """As rows.segment_reduce."""
    parts = segments_of(group, num_groups)
    dtype = x.dtype

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.segment_reduce(x, parts, mode)[0].astype(dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        if mode in ("max", "min", "first"):
            return kernel_rows.winner_grad(ct, kernel_rows.segment_reduce(x, parts, mode)[1], parts.group)
        counts = np.bincount(group[group >= 0], minlength=num_groups)
        share = floats(1 / np.maximum(counts, 1)) if mode == "mean" else None
        return kernel_rows.gather_sum(ct, parts.group[None], before=share)

    return differentiable(f"segment {mode}", forward, (gradient,), x)


def interpolate_on_device(x: mx.array, table: mx.array, weight: mx.array) -> mx.array:
    """y[i] = sum of weight[k, i] * x[table[k, i]]: table (K, M) int32, -1 none, weight (K, M) float32."""
    dtype, capacity = x.dtype, x.shape[0]

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        parts = kernel_rows.segments(table.reshape(-1), capacity, check=False)
        return kernel_rows.segment_reduce(ct, parts, "sum", weight=weight.reshape(-1))[0].astype(dtype)

    return differentiable(
        "interpolation", lambda x: kernel_rows.gather_sum(x, table, weight=weight), (gradient,), x
    )


def interpolate(x: mx.array, rows: np.ndarray, weights: np.ndarray, size: int) -> mx.array:
    """As interpolate.interpolate."""
    dtype, capacity, (n, k) = x.dtype, x.shape[0], rows.shape
    table, share = np.full((k, size), -1, np.int32), np.zeros((k, size), np.float32)
    table[:, :n], share[:, :n] = rows.T, weights.T
    nbr, weight = integers(table), floats(share)

    def forward(x: mx.array) -> mx.array:
        return kernel_rows.gather_sum(x, nbr, weight=weight)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        parts = segments_of(table.reshape(-1), capacity)
        by_item = floats(share.reshape(-1))
        return kernel_rows.segment_reduce(ct, parts, "sum", weight=by_item)[0].astype(dtype)

    return differentiable("interpolation", forward, (gradient,), x)
