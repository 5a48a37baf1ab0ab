"""Checks of arguments, with messages that name them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import DTypeError, MLXSparseError, ShapeError

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
PATHS = (None, "blocks", "dense")


def whole_number(name: str, value: Any, least: int = 0) -> int:
    """An int of at least `least`; DTypeError for no integer, a bool included, ShapeError for a small one."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"{name} must be integers, got {value!r}") from None
    if number < least:
        raise ShapeError(f"{name} must be at least {least}, got {number}")
    return number


def whole_numbers(name: str, values: Any, least: int = 0) -> tuple[int, ...]:
    """A sequence of integers as a tuple, which nobody changes later."""
    try:
        items = tuple(values)
    except TypeError:
        raise DTypeError(f"{name} must be a sequence of integers, got {values!r}") from None
    return tuple(whole_number(name, v, least) for v in items)


def block_pair(block: int | Sequence[int]) -> tuple[int, int]:
    """(rows, columns) of a block."""
    sides = tuple(block) if isinstance(block, (tuple, list)) else (block, block)
    if len(sides) != 2:
        raise ShapeError(f"block must be an int or (rows, columns), got {block!r}")
    return whole_number("block", sides[0], 1), whole_number("block", sides[1], 1)


def as_mask(name: str, mask: Any) -> np.ndarray:
    """A boolean array as NumPy; DTypeError for others."""
    array = np.asarray(mask)
    if array.dtype != bool:
        raise DTypeError(f"{name} is {array.dtype}, wanted bool; use {name} != 0")
    return array


def as_layout_mask(layout: Any) -> np.ndarray:
    """A boolean mask, or one of 0 and 1, as bool: a read-only copy, so that nobody changes it later."""
    array = np.asarray(layout)
    if array.dtype != bool:
        if array.dtype.kind not in "iu":
            raise DTypeError(f"layout is {array.dtype}, wanted bool, or integers 0 and 1")
        if array.size and not np.isin(array, (0, 1)).all():
            raise MLXSparseError("layout holds other integers than 0 and 1")
    made = np.array(array, bool)
    made.flags.writeable = False
    return made


def check_float(name: str, a: Any) -> mx.array:
    if not isinstance(a, mx.array):
        raise DTypeError(f"{name} is a {type(a).__name__}, wanted an MLX array")
    if a.dtype not in FLOATS:
        raise DTypeError(f"{name} is {a.dtype}, wanted float32, float16 or bfloat16; cast with .astype(...)")
    return a


def check_same_dtype(**arrays: mx.array) -> None:
    (first, a), *others = arrays.items()
    for name, b in others:
        if b.dtype != a.dtype:
            raise DTypeError(f"{name} is {b.dtype}, {first} is {a.dtype}; cast one with .astype(...)")


def check_shape(name: str, a: mx.array, wanted: Sequence[int | None], why: str) -> None:
    """ShapeError unless the shape is `wanted`; None stands for any size."""
    if a.ndim != len(wanted) or any(w is not None and s != w for s, w in zip(a.shape, wanted)):
        shown = ", ".join("any" if w is None else str(w) for w in wanted)
        raise ShapeError(f"{name} has shape {tuple(a.shape)}, wanted ({shown}){why}")


def check_path(path: str | None) -> None:
    if path not in PATHS:
        raise MLXSparseError(f'path must be None, "blocks" or "dense", got {path!r}')
