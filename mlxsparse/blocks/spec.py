"""BlockSpec: one view cut into equal blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from ..errors import MLXSparseError, ShapeError
from . import layout
from .base import Params, SparseBlock
from .layout import Shape
from .view import View


class BlockSpec(SparseBlock):
    """The blocks of `shape` that tile a view.

    Args:
        view: View, or what View takes.
        shape: elements of a block on each axis; () is one element, -1 a whole axis. ShapeError unless it
            divides the view's shape.
        name: for messages and reports.

    ``param`` is the view's slot, ``block_shape`` the resolved block. Equal views, blocks and names are equal.
    """

    def __init__(self, view: Any, shape: Sequence[int] = (), name: str | None = None):
        self.view = View.from_existing(view)
        self.block_shape = layout.full_shape(shape, self.view.shape, "block shape")
        self.name = name

    @property
    def param(self) -> Any:
        return self.view.param

    @property
    def shape(self) -> Shape:
        return self.view.shape

    @property
    def grid_shape(self) -> Shape:
        return layout.grid_of(self.view.shape, self.block_shape)

    @property
    def block_numel(self) -> int:
        return math.prod(self.block_shape)

    def specs(self) -> tuple[BlockSpec, ...]:
        return (self,)

    def block_view(self, values: Any = None, reorder: bool = True, merge: bool = False) -> mx.array:
        """(B0, .., b0, ..), (B0, b0, ..) without `reorder`, (B0, .., prod b) with `merge`.

        values: None for the elements now; an array of the view's or of the parameter's shape (the view's
        wins); or {spec: array} with this spec in it.
        """
        if isinstance(values, Mapping):
            if self not in values:
                raise MLXSparseError(f"values has no entry for {self}")
            values = values[self]
        if values is None:
            values = self.view.data
        elif tuple(values.shape) != self.shape:
            if tuple(values.shape) != self.view.param.shape:
                raise ShapeError(
                    f"values must have the view's shape {self.shape} or the parameter's "
                    f"{self.view.param.shape}, got {tuple(values.shape)}"
                )
            values = self.view.read(values)
        return layout.block_view_of(values, self.block_shape, reorder, merge)

    def broadcast_block_to_element(self, block_values: mx.array, fake: bool = False) -> mx.array:
        """Grid-shaped values as values of the view's shape; `fake` as in View.broadcast_block_to_element."""
        if tuple(block_values.shape) != self.grid_shape:
            raise ShapeError(f"block_values must be {self.grid_shape}, got {tuple(block_values.shape)}")
        return layout.broadcast_block_to_element(block_values, self.block_shape, fake)

    def _values(self, params: Params | None) -> mx.array:
        return self.view.read(self._read(self.view.param, params))

    def _unmerge(self, merged: mx.array) -> dict[BlockSpec, mx.array]:
        return {self: layout.unblock(merged, self.shape, self.block_shape)}

    def _spread(self, blocks: mx.array) -> dict[BlockSpec, mx.array]:
        return {self: blocks}

    def _elements(self, d: Any) -> dict[BlockSpec, mx.array]:
        if isinstance(d, Mapping):
            if self not in d:
                raise MLXSparseError(f"values has no entry for {self}")
            d = d[self]
        value = mx.array(d)
        try:
            return {self: mx.broadcast_to(value, self.shape)}
        except ValueError:
            raise ShapeError(
                f"values must have shape {self.shape} or broadcast to it, got {tuple(value.shape)}"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockSpec) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        return self.view, self.block_shape, self.name

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"BlockSpec({self.view}, {self.block_shape}{name})"
