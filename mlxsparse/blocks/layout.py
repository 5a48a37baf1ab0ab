"""Blocks of an array, as reshapes: no state."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..errors import DTypeError, ShapeError

Shape = tuple[int, ...]


def integer(value: Any, what: str) -> int:
    """`value` as an int; ShapeError where it is none: int() would make 2 of 2.5 unseen.

    `what` names the argument in the message, here and below.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ShapeError(f"{what} must be an integer, got {value!r}") from None


def integers(values: Any, what: str) -> Shape:
    """A sequence of integers as a tuple; ShapeError else."""
    try:
        items = tuple(values)
    except TypeError:
        raise ShapeError(f"{what} must be a sequence of integers, got {values!r}") from None
    return tuple(integer(v, what) for v in items)


def full_shape(block: Sequence[int], shape: Shape, what: str) -> Shape:
    """`block` with () as ones and -1 as a whole axis; ShapeError unless it divides `shape`."""
    sizes = integers(block, what) or (1,) * len(shape)
    if len(sizes) != len(shape):
        raise ShapeError(f"{what} {tuple(block)} has {len(sizes)} axes, {shape} has {len(shape)}")
    sizes = tuple(n if b == -1 else b for n, b in zip(shape, sizes))
    if any(b < 1 or n % b for n, b in zip(shape, sizes)):
        raise ShapeError(f"{what} {tuple(block)} must be at least 1 and divide {shape} on every axis")
    return sizes


def grid_of(shape: Shape, block: Shape) -> Shape:
    """Number of blocks on each axis."""
    return tuple(n // b for n, b in zip(shape, block))


def block_view_of(
    t: mx.array, block: Sequence[int], reorder: bool = True, merge: bool = False
) -> mx.array:
    """`t` split into blocks: (B0, .., b0, ..), or (B0, b0, B1, ..) without `reorder`.

    merge: (B0, .., prod b), one row a block. ShapeError if the blocks do not divide the shape.
    """
    shape = tuple(t.shape)
    sizes = full_shape(block, shape, "block")
    grid = grid_of(shape, sizes)
    split = t.reshape([n for pair in zip(grid, sizes) for n in pair])
    if not (reorder or merge):
        return split
    axes = len(shape)
    blocks = split.transpose(*range(0, 2 * axes, 2), *range(1, 2 * axes, 2))
    return blocks.reshape(*grid, math.prod(sizes)) if merge else blocks


def unblock(values: mx.array, shape: Shape, block: Sequence[int], reorder: bool = True) -> mx.array:
    """Inverse of block_view_of: an array of `shape` from its blocks, merged or not."""
    sizes = full_shape(block, shape, "block")
    grid, axes = grid_of(shape, sizes), len(shape)
    if not reorder:
        return values.reshape(shape)
    blocks = values.reshape(*grid, *sizes)
    return blocks.transpose([a for i in range(axes) for a in (i, axes + i)]).reshape(shape)


def broadcast_block_to_element(v: mx.array, block: Sequence[int], fake: bool = False) -> mx.array:
    """A value per block as a value per element, (B0 b0, B1 b1, ..).

    fake: (B0, 1, B1, 1, ..), which broadcasts against ``block_view_of(t, block, reorder=False)``.
    """
    sizes = integers(block, "block") or (1,) * v.ndim
    if len(sizes) != v.ndim or min(sizes, default=1) < 1:
        raise ShapeError(f"block {tuple(block)} does not fit values of shape {tuple(v.shape)}")
    thin = v.reshape([n for size in v.shape for n in (size, 1)])
    if fake:
        return thin
    wide = mx.broadcast_to(thin, [n for pair in zip(v.shape, sizes) for n in pair])
    return wide.reshape([n * b for n, b in zip(v.shape, sizes)])


def check_mask(mask: mx.array, grid: Shape) -> None:
    """DTypeError unless `mask` is boolean (~ of an integer is no negation), ShapeError unless of `grid`."""
    if not isinstance(mask, mx.array):
        raise DTypeError(f"mask must be an mlx array of bool, got {type(mask).__name__}; pass mx.array(mask)")
    if mask.dtype != mx.bool_:
        raise DTypeError(f"mask must be an mlx array of bool, got {mask.dtype}; compare it with 0 first")
    if tuple(mask.shape) != grid:
        raise ShapeError(f"mask must have one value a block, {grid}, got {tuple(mask.shape)}")
