"""Dense products over rows, on the host.

MLX's Linux CPU build links reference BLAS, 50 to 100 times slower than the one in NumPy's wheels.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import executor, fast, fast_rows
from ..backend.autodiff import differentiable
from ..backend.host import empty, num_threads, parallel, view32
from . import conv_kernel

CHUNK = 8192  # rows of one product
SMALL_WORK = 1 << 22  # multiply-adds that one thread does in about the time of waking another


def linear(x: mx.array, weight: mx.array, bias: mx.array | None, count: int | mx.array) -> mx.array:
    """y = x W^T + b over the first `count` rows, 0 in the others.

    x (capacity, Ci), weight (Co, Ci), bias (Co,) -> (capacity, Co) in x's dtype, fp32 sums.
    """
    if executor() == "kernel":
        return conv_kernel.linear(x, weight, bias, count)
    assert isinstance(count, int)  # the host knows it
    dtype = x.dtype

    def forward(x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        out, y = empty((x.shape[0], w.shape[0]), mx.float32)
        rows_times(view32(x), view32(w).T, y, count, view32(b[0]) if b else None)
        y[count:] = 0
        return out.astype(dtype)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        rows_times(view32(ct), view32(w), dx, count)
        dx[count:] = 0
        return out.astype(dtype)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        out, dw = empty(tuple(w.shape), mx.float32)
        dw[:] = _outer_sum(view32(ct), view32(x), count)
        return out.astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        out, db = empty(tuple(b.shape), mx.float32)
        db[:] = view32(ct)[:count].sum(axis=0, dtype=np.float64)
        return out.astype(b.dtype)

    if bias is None:
        return differentiable("linear", forward, (input_gradient, weight_gradient), x, weight)
    return differentiable(
        "linear", forward, (input_gradient, weight_gradient, bias_gradient), x, weight, bias
    )


def few(weight: np.ndarray, count: int) -> bool:
    """Whether the compiled loops take `count` rows times weight.T in registers; weight (Co, Ci)."""
    return count % CHUNK != 1 and min(weight.shape) > 1 and fast_rows.few_channels(*weight.shape[::-1])


def rows_times(
    a: np.ndarray, w: np.ndarray, out: np.ndarray, count: int, bias: np.ndarray | None = None
) -> None:
    """out[:count] = a[:count] @ w + bias, chunk by chunk."""
    blas = fast.blas() if min(w.shape) > 1 else None  # else NumPy does not multiply matrices
    if blas is not None and few(w.T, count):
        fast_rows.few_times(blas, a, np.ascontiguousarray(w.T), bias, out, count)
        return
    w, step = np.ascontiguousarray(w), CHUNK
    small = count * w.size < SMALL_WORK
    if blas is not None and (small or num_threads() == 1):
        step = max(count, 1)  # in pieces anyway

    def work(i: int) -> None:
        rows = slice(i * step, min((i + 1) * step, count))
        if blas is not None and rows.stop - rows.start > 1:
            fast.rows_times(blas, a[rows], w, bias, out[rows])
            return
        np.matmul(a[rows], w, out=out[rows])
        if bias is not None:
            out[rows] += bias

    parallel(work, -(-count // step), blas=True, small=small)


def _outer_sum(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """a[:count].T @ b[:count]: sums of fixed chunks, added in order."""
    chunks = -(-count // CHUNK)
    partial = np.zeros((max(chunks, 1), a.shape[1], b.shape[1]), np.float32)

    def work(i: int) -> None:
        rows = slice(i * CHUNK, min((i + 1) * CHUNK, count))
        np.matmul(a[rows].T, b[rows], out=partial[i])

    parallel(work, chunks, blas=True, small=count * a.shape[1] * b.shape[1] < SMALL_WORK)
    total: np.ndarray = partial.sum(axis=0)
    return total
