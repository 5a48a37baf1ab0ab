"""Strided views of a flat parameter, as arithmetic: bounds, overlap, reading and writing.

An element idx of a view lies at ``offset + sum(idx * stride)`` of the row-major parameter.
`mx.as_strided` checks no bounds and does not write through, so it is not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np

from ..errors import ShapeError


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of contiguous elements, the last axis fastest."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Strides:
    """Shape, strides and offset of a view of `size` elements; ShapeError where it leaves them."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    param_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.stride):
            raise ShapeError(
                f"shape {self.shape} and stride {self.stride} must be of one length; one stride an axis"
            )
        if min(self.shape, default=0) < 0:
            raise ShapeError(f"shape must not be negative, got {self.shape}")
        low, high = self.span
        if self.numel and (low < 0 or high >= self.size):
            raise ShapeError(
                f"a view of shape {self.shape}, stride {self.stride}, offset {self.offset} reaches elements "
                f"{low} to {high}; the parameter {self.param_shape} has {self.size}"
            )

    @property
    def size(self) -> int:
        """Elements of the parameter."""
        return math.prod(self.param_shape)

    @property
    def numel(self) -> int:
        """Elements of the view."""
        return math.prod(self.shape)

    @property
    def span(self) -> tuple[int, int]:
        """(smallest, largest) flat element that a view with elements reaches."""
        reach = [(n - 1) * s for n, s in zip(self.shape, self.stride)] if self.numel else []
        return self.offset + sum(min(r, 0) for r in reach), self.offset + sum(max(r, 0) for r in reach)

    @cached_property
    def grid(self) -> np.ndarray:
        """Flat element of each element of the view: int64, the view's shape."""
        index = np.full(self.shape, self.offset, np.int64)
        for axis, (n, s) in enumerate(zip(self.shape, self.stride)):
            index += (np.arange(n) * s).reshape([-1 if a == axis else 1 for a in range(len(self.shape))])
        return index

    def touched(self) -> np.ndarray:
        """bool (size,): which elements of the parameter are in the view."""
        found = np.zeros(self.size, bool)
        found[self.grid] = True
        return found

    @cached_property
    def injective(self) -> bool:
        """No two elements of the view are the same element of the parameter."""
        reach = 0
        for s, n in sorted((abs(s), n) for n, s in zip(self.shape, self.stride) if n > 1):
            if s <= reach:  # may still be: look
                return int(np.count_nonzero(self.touched())) == self.numel
            reach += (n - 1) * s
        return True

    @cached_property
    def complete(self) -> bool:
        """Every element of the parameter is in the view."""
        if self.injective:
            return self.numel == self.size
        return bool(self.touched().all())

    @cached_property
    def axes(self) -> tuple[int, ...] | None:
        """Axes by falling stride, where the view is a split and permutation of the parameter's; else None.

        Then it is a reshape and a transpose, which costs a tenth of an index per element.
        """
        if self.offset or self.numel != self.size:
            return None
        order = sorted(range(len(self.shape)), key=lambda a: (-self.stride[a], self.shape[a] == 1))
        whole = tuple(self.shape[a] for a in order)
        steps = row_major(whole)
        fits = all(self.stride[a] == s or self.shape[a] == 1 for a, s in zip(order, steps))
        return tuple(order) if fits else None

    def read(self, p: mx.array) -> mx.array:
        """The view of `p`, an array of the parameter's shape; differentiable."""
        if self.axes is not None:
            inverse = tuple(int(a) for a in np.argsort(self.axes))
            return p.reshape([self.shape[a] for a in self.axes]).transpose(inverse)
        return p.reshape(-1)[mx.array(self.grid)]

    def write(self, p: mx.array, v: mx.array) -> mx.array:
        """`p` with the view's elements replaced by `v` (view's shape); for injective views."""
        v = v.astype(p.dtype)
        if self.axes is not None:
            return v.transpose(self.axes).reshape(self.param_shape)
        flat = p.reshape(-1)  # a value of its own: assigning to it leaves p as it is
        if self.numel:
            flat[mx.array(self.grid.reshape(-1))] = v.reshape(-1)
        return flat.reshape(self.param_shape)
