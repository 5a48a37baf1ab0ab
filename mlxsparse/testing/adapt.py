"""Operators on SparseTensors as functions of NumPy arrays, as `invariants` and the oracle take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from mlxsparse.tensor import SparseTensor

__all__ = ["active_part", "from_numpy", "numpy_function", "numpy_gradient", "to_numpy"]

Array = np.ndarray[Any, Any]
Op = Callable[[SparseTensor], SparseTensor]


def to_numpy(array: mx.array) -> Array:
    """A NumPy copy; half types become float32, which holds each of their values."""
    if array.dtype in (mx.bfloat16, mx.float16):
        array = array.astype(mx.float32)
    return np.array(array)


def from_numpy(coords: Array, feats: Array, dtype: mx.Dtype = mx.float32, **tensor: Any) -> SparseTensor:
    """SparseTensor of NumPy arrays; `tensor` are its keywords. ValueError for coordinates past int32."""
    sites = np.asarray(coords).reshape(-1, 4)
    rows = np.array(sites, dtype=np.int32, order="C")
    if not np.array_equal(rows, sites):
        raise ValueError("coordinates must be whole numbers of 32 bits")
    return SparseTensor(mx.array(rows), mx.array(np.array(feats, order="C")).astype(dtype), **tensor)


def active_part(x: SparseTensor) -> tuple[Array, Array]:
    """(coords, feats) of the rows that are not padding."""
    rows = int(np.array(x.active_rows))
    return to_numpy(x.coords)[:rows], to_numpy(x.feats)[:rows]


def numpy_function(
    op: Op, *, dtype: mx.Dtype = mx.float32, **tensor: Any
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """`op` as f(coords, feats) -> (out_coords, out_feats); `tensor` are keywords of SparseTensor.

    dtype is the type that features are rounded to. Its spacing is f.eps, by which `check_adjointness` and
    `check_finite_differences` choose their steps and what rounding may do.
    """

    def f(coords: Array, feats: Array) -> tuple[Array, Array]:
        return active_part(op(from_numpy(coords, feats, dtype, **tensor)))

    f.eps = mx.finfo(dtype).eps  # type: ignore[attr-defined]
    return f


def numpy_gradient(
    op: Op, *, dtype: mx.Dtype = mx.float32, **tensor: Any
) -> Callable[[Array, Array, Array], Array]:
    """The feature gradient of `op` as g(coords, feats, cotangent) -> dfeats; cotangent by output row of
    `numpy_function`, which has no padding, and of the same dtype."""

    def gradient(coords: Array, feats: Array, cotangent: Array) -> Array:
        x = from_numpy(coords, feats, dtype, **tensor)
        g = mx.array(np.array(cotangent, order="C")).astype(dtype)

        def active(v: mx.array) -> mx.array:
            y = op(x.replace(v))
            return y.feats[: int(np.array(y.active_rows))]

        _, (dfeats,) = mx.vjp(active, [x.feats], [g])
        return to_numpy(dfeats)

    return gradient
