"""Feature arrays (n, C): their types, and padding rows set to 0."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import DTypeError, ShapeError

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
_NUMPY_FLOATS = (np.float32, np.float16)


def as_features(feats: Any) -> mx.array:
    if type(feats) is mx.array and feats.ndim == 2 and feats.dtype in FLOATS:  # the usual case
        return feats
    check_features(feats)
    return mx.array(np.ascontiguousarray(feats)) if isinstance(feats, np.ndarray) else feats


def check_features(feats: Any) -> Any:
    """`feats`, an MLX or NumPy array (n, C) of a float type that we take."""
    check_floats(feats, "feats", "(n, C)")
    if feats.ndim != 2:
        raise ShapeError(f"feats must have shape (n, C), got {tuple(feats.shape)}")
    return feats


def check_floats(value: Any, name: str, shape: str) -> None:
    """DTypeError unless `value` is an MLX or NumPy array of a float type that we take; never narrowed."""
    if not isinstance(value, (mx.array, np.ndarray)):
        raise DTypeError(f"{name} must be an mlx or numpy array {shape}, got {type(value).__name__}")
    if value.dtype not in (_NUMPY_FLOATS if isinstance(value, np.ndarray) else FLOATS):
        raise DTypeError(f"{name} must be float32, float16 or bfloat16, got {value.dtype}; use .astype")


def scalar(value: Any) -> Any:
    """`value` if features can be multiplied by it: a number, or an array of one element; else None.

    A number of NumPy's counts as one of Python's, which has no type of its own for MLX.
    """
    if isinstance(value, mx.array):
        return value.reshape(()) if value.size == 1 else None
    if isinstance(value, (np.ndarray, np.number, np.bool_)):
        if value.size != 1 or value.dtype.kind not in "biuf":
            return None
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # as far as MLX takes integers
        try:
            return float(value)
        except OverflowError:
            return None
    return value if isinstance(value, (int, float)) else None


def filling(value: Any) -> Any:
    """The number `value`, which fills places that have nothing; DTypeError for anything else."""
    known = None if isinstance(value, mx.array) else scalar(value)
    if known is None:
        learned = "; an array would get no gradient: put it in by mx.where" * isinstance(value, mx.array)
        raise DTypeError(f"fill must be a number, got {value!r}{learned}")
    return known


def check_channels(symbol: str, a: mx.array, b: mx.array) -> None:
    """ShapeError unless features of the same sites have the same channels, or one of them has one."""
    if a.shape[1] != b.shape[1] and 1 not in (a.shape[1], b.shape[1]):
        raise ShapeError(f"SparseTensor {symbol} takes the same channels, got {a.shape[1]} and {b.shape[1]}")


def zero_padding(feats: mx.array, active_rows: mx.array) -> mx.array:
    """feats (capacity, C) with 0 in the rows from `active_rows` on, whatever they held."""
    return filled_padding(feats, active_rows, 0)


def filled_padding(feats: mx.array, active_rows: mx.array, value: int) -> mx.array:
    """As `zero_padding`, with `value` there."""
    live = (mx.arange(feats.shape[0]) < active_rows)[:, None]
    return mx.where(live, feats, mx.array(value, feats.dtype))
