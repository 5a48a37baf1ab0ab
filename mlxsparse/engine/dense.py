"""Dense products over rows, on the host.

MLX's Linux CPU build links reference BLAS, 50 to 100 times slower than the one in NumPy's wheels.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import executor
from ..backend.autodiff import differentiable
from ..backend.host import empty, view32


def linear(x: mx.array, weight: mx.array, bias: mx.array | None, count: int) -> mx.array:
    """y = x W^T + b over the first `count` rows, 0 in the others.

    x (capacity, Ci), weight (Co, Ci), bias (Co,) -> (capacity, Co) in x's dtype, fp32 sums.
    """
    executor()
    dtype = x.dtype

    def forward(x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        out, y = empty((x.shape[0], w.shape[0]), mx.float32)
        np.matmul(view32(x)[:count], view32(w).T, out=y[:count])
        if b:
            y[:count] += view32(b[0])
        y[count:] = 0
        return out.astype(dtype)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        out, dx = empty(tuple(x.shape), mx.float32)
        np.matmul(view32(ct)[:count], view32(w), out=dx[:count])
        dx[count:] = 0
        return out.astype(dtype)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        out, dw = empty(tuple(w.shape), mx.float32)
        np.matmul(view32(ct)[:count].T, view32(x)[:count], out=dw)
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
