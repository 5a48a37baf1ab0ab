"""SparseBlock: what a grid of blocks can do, whether it covers one view or several coupled ones.

A subclass says how its elements are laid out as one row a block (`block_view`, `_unmerge`); all the rest
is here. Every change of parameters is computed for all of them before the first is written.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx
import numpy as np

from ..backend.host import view as host_view
from ..errors import MLXSparseError, ShapeError
from .layout import Shape, check_mask
from .param import ParamRef
from .prox import block_prox, norms_of
from .view import View

if TYPE_CHECKING:
    from .spec import BlockSpec

Params: TypeAlias = Mapping[ParamRef, mx.array]


class SparseBlock(ABC):
    """A grid of blocks over the elements of parameters.

    ``params`` arguments are {ParamRef: array} values to use in place of the slots' (for traced code); the
    pure twins `written`, `multiplied`, `masked`, `hard_thresholded`, `soft_thresholded` return such a dict.
    """

    name: str | None

    # ------------------------------------------------------------ what a kind of block defines

    @property
    @abstractmethod
    def grid_shape(self) -> Shape:
        """Blocks on each axis."""

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Elements on each axis of the view; -1 on each where several views are coupled."""

    @property
    @abstractmethod
    def block_numel(self) -> int:
        """Elements of one block."""

    @abstractmethod
    def specs(self) -> tuple[BlockSpec, ...]:
        """The block specs inside."""

    @abstractmethod
    def block_view(self, values: Any = None, reorder: bool = True, merge: bool = False) -> mx.array:
        """Elements by block; merged (\\*grid, block_numel)."""

    @abstractmethod
    def _values(self, params: Params | None) -> Any:
        """What block_view takes, read from `params` or the slots."""

    @abstractmethod
    def _unmerge(self, merged: mx.array) -> dict[BlockSpec, mx.array]:
        """Elements of each spec's view from (\\*grid, block_numel)."""

    @abstractmethod
    def _spread(self, blocks: mx.array) -> dict[BlockSpec, mx.array]:
        """Grid-shaped values in the axis order of each spec."""

    # ------------------------------------------------------------ description

    @property
    def ndim(self) -> int:
        return len(self.grid_shape)

    @property
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        return math.prod(self.grid_shape)

    def numel_per_block(self) -> int:
        """As block_numel."""
        return self.block_numel

    def blocks(self) -> tuple[SparseBlock, ...]:
        """The independent grids of blocks inside: itself."""
        return (self,)

    def parameters(self) -> tuple[View, ...]:
        """The views that the blocks lie on."""
        return tuple(spec.view for spec in self.specs())

    @property
    def data(self) -> Any:
        """Elements now: the view's array, or {spec: array} where several are coupled."""
        return self._values(None)

    # ------------------------------------------------------------ values of blocks

    def reduce(self, values: Any = None, fn: Callable[[mx.array], mx.array] | None = None) -> mx.array:
        """``fn`` of the (\\*grid, block_numel) elements, which reduces the last axis: grid-shaped."""
        if fn is None:
            raise MLXSparseError("reduce needs fn, a function from (*grid, block_numel) to (*grid)")
        result = fn(self.block_view(values, merge=True))
        if tuple(result.shape) != self.grid_shape:
            raise ShapeError(f"fn must reduce the last axis to {self.grid_shape}, got {tuple(result.shape)}")
        return result

    def norms(self, values: Any = None, p: float = 2) -> mx.array:
        """p-norm of each block, float32, grid-shaped; its gradient at a block of zeros is 0."""
        return self.reduce(values, lambda b: norms_of(b, p))

    def min(self, values: Any = None) -> mx.array:
        """Smallest element of each block."""
        return self.reduce(values, lambda b: b.min(axis=-1))

    def max(self, values: Any = None) -> mx.array:
        """Largest element of each block."""
        return self.reduce(values, lambda b: b.max(axis=-1))

    def nnz(self, eps: float = 1e-8) -> int:
        """Elements whose absolute value is above `eps`."""
        return _total(mx.abs(self.block_view(merge=True).astype(mx.float32)) > eps)

    def nnz_blocks(self, eps: float = 1e-8) -> int:
        """Blocks with such an element."""
        peak = mx.abs(self.block_view(merge=True).astype(mx.float32)).max(axis=-1)
        return _total(peak > eps)

    def expand_block_tensor(self, block_values: mx.array) -> mx.array:
        """Grid-shaped values from ones whose axes of length 1 were squeezed out."""
        grid = self.grid_shape
        if tuple(n for n in block_values.shape if n != 1) != tuple(n for n in grid if n != 1):
            raise ShapeError(f"block_values {tuple(block_values.shape)} do not fit the grid {grid}")
        return block_values.reshape(grid)

    def get_masks(self, bm: mx.array) -> dict[BlockSpec, mx.array]:
        """{spec: mask of the view's shape} of a boolean value a block; the polarity is that of `bm`."""
        check_mask(bm, self.grid_shape)
        return {spec: spec.broadcast_block_to_element(m) for spec, m in self._spread(bm).items()}

    # ------------------------------------------------------------ changes, each with its pure twin

    def set_data(self, d: Any) -> None:
        """Write elements: of the view's shape, or what broadcasts to it ({spec: array} if coupled)."""
        self._assign(self.written(d))

    def written(self, d: Any, params: Params | None = None) -> dict[ParamRef, mx.array]:
        """Pure twin of set_data."""
        return self._write(self._elements(d), params)

    def apply_multiplier(self, m: mx.array) -> None:
        """Multiply each block by its value in the grid-shaped `m`."""
        self._assign(self.multiplied(m))

    def multiplied(self, m: mx.array, params: Params | None = None) -> dict[ParamRef, mx.array]:
        """Pure twin of apply_multiplier."""
        if tuple(m.shape) != self.grid_shape:
            raise ShapeError(f"m must have one value a block, {self.grid_shape}, got {tuple(m.shape)}")
        return self._change(params, lambda v, p, spec, part: v.multiplied(p, part, spec.block_shape), m)

    def apply_mask(self, mask: mx.array) -> None:
        """Set the blocks where the boolean grid-shaped `mask` is True to 0. As prune_blocks."""
        self._assign(self.masked(mask))

    def masked(self, mask: mx.array, params: Params | None = None) -> dict[ParamRef, mx.array]:
        """Pure twin of apply_mask."""
        check_mask(mask, self.grid_shape)
        return self._change(params, lambda v, p, spec, part: v.masked(p, part, spec.block_shape), mask)

    def prune_blocks(self, mask: mx.array) -> None:
        """Set the blocks where `mask` is True to 0."""
        self.apply_mask(mask)

    def keep_blocks(self, mask: mx.array) -> None:
        """Set the blocks where `mask` is False to 0."""
        check_mask(mask, self.grid_shape)
        self.apply_mask(mx.logical_not(mask))

    def hard_threshold(self, t: float | mx.array, values: Any = None) -> None:
        """Set the blocks whose 2-norm (of `values`, else of the elements) is below `t` to 0."""
        self._assign(self.hard_thresholded(t, values))

    def hard_thresholded(
        self, t: float | mx.array, values: Any = None, params: Params | None = None
    ) -> dict[ParamRef, mx.array]:
        """Pure twin of hard_threshold."""
        return self.masked(self.norms(self._values(params) if values is None else values) < t, params)

    def soft_threshold(
        self,
        t: float | mx.array,
        conditioners: Any = None,
        max_iter: int = 20,
        atol: float = 1e-8,
        eps: float = 1e-12,
    ) -> None:
        """Proximal step of the group lasso, ``t * sum of block norms``: block times max(0, 1 - t / norm).

        t: number or grid-shaped. conditioners: positive weights H of the view's shape ({spec: array} if
        coupled); then the step minimises 1/2 (z - x)' H (z - x) + t |z| over each block, by `max_iter`
        halvings. A block whose result has a norm of at most `atol` becomes 0; `eps` guards the division.
        A block with NaN becomes NaN.
        """
        self._assign(self.soft_thresholded(t, conditioners, max_iter, atol, eps))

    def soft_thresholded(
        self,
        t: float | mx.array,
        conditioners: Any = None,
        max_iter: int = 20,
        atol: float = 1e-8,
        eps: float = 1e-12,
        params: Params | None = None,
    ) -> dict[ParamRef, mx.array]:
        """Pure twin of soft_threshold."""
        x = self.block_view(self._values(params), merge=True)
        h = None if conditioners is None else self.block_view(self._elements(conditioners), merge=True)
        return self._write(self._unmerge(block_prox(x, t, h, max_iter, atol, eps)), params)

    # ------------------------------------------------------------ shared

    @abstractmethod
    def _elements(self, d: Any) -> dict[BlockSpec, mx.array]:
        """{spec: array of its view's shape} of what set_data takes."""

    def _read(self, ref: ParamRef, params: Params | None) -> mx.array:
        if params is None:
            return ref.value
        if ref not in params:
            raise MLXSparseError(f"params has no value for {ref}")
        return params[ref]

    def _write(
        self, elements: Mapping[BlockSpec, mx.array], params: Params | None
    ) -> dict[ParamRef, mx.array]:
        new: dict[ParamRef, mx.array] = {}
        for spec, value in elements.items():
            ref = spec.view.param
            new[ref] = spec.view.write(new[ref] if ref in new else self._read(ref, params), value)
        return new

    def _change(
        self,
        params: Params | None,
        fn: Callable[[View, mx.array, BlockSpec, mx.array], mx.array],
        blocks: mx.array,
    ) -> dict[ParamRef, mx.array]:
        new: dict[ParamRef, mx.array] = {}
        for spec, part in self._spread(blocks).items():
            ref = spec.view.param
            new[ref] = fn(spec.view, new[ref] if ref in new else self._read(ref, params), spec, part)
        return new

    @staticmethod
    def _assign(new: Mapping[ParamRef, mx.array]) -> None:
        for ref in new:
            _ = ref.value  # a stale slot is found before the first is written
        for ref, value in new.items():
            ref.assign(value)


def _total(mask: mx.array) -> int:
    return int(np.count_nonzero(host_view(mask)))
