"""ScopeSpec and ScopeCoupling: sets of blocks that compete for being kept.

View -> BlockSpec (-> BlockCoupling) -> ScopeSpec (-> ScopeCoupling) -> keep mask.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.host import view as host_view
from ..backend.running import running_sums
from ..errors import CouplingError, DTypeError, MLXSparseError, ShapeError, TracedOnHostError
from . import layout
from .base import Params, SparseBlock
from .coupling import check_orders, inverse, permuted
from .layout import Shape
from .param import ParamRef
from .spec import BlockSpec
from .view import View


def keep_largest(scores: mx.array, nnz: int | mx.array) -> mx.array:
    """True for the `nnz` largest of the last axis: exactly that many, the lowest index first among equals.

    scores (.., n); nnz a number or (..), at most n. NaN counts as the smallest. Pure; works in traced code,
    where a traced nnz is not checked.
    """
    n = scores.shape[-1]
    if isinstance(nnz, (mx.array, np.ndarray)):
        nnz = _check_counts(mx.array(nnz), n)
    else:
        nnz = check_nnz(nnz, n)
    scores = mx.where(mx.isnan(scores), -math.inf, scores.astype(mx.float32))
    count = mx.broadcast_to(mx.array(nnz, mx.int32), scores.shape[:-1])[..., None]
    if n == 0:
        return mx.zeros(scores.shape, mx.bool_)
    order = mx.sort(scores, axis=-1)
    # No index of a sort is used: sorts need not be stable, so equals are counted instead.
    least = mx.take_along_axis(order, mx.clip(n - count, 0, n - 1), axis=-1)
    above = scores > least
    equal = scores == least
    room = count - above.sum(axis=-1, keepdims=True)
    return mx.logical_and(count > 0, above | (equal & (running_sums(equal.astype(mx.int32)) <= room)))


def check_nnz(nnz: Any, most: int | None = None) -> int:
    """A number of blocks as an int; MLXSparseError unless whole and in [0, most]."""
    try:
        count = operator.index(nnz)
    except TypeError:
        raise MLXSparseError(f"nnz must be a whole number of blocks, got {nnz!r}") from None
    if isinstance(nnz, (bool, np.bool_)) or count < 0 or (most is not None and count > most):
        limits = "at least 0" if most is None else f"in [0, {most}], the blocks of a scope"
        raise MLXSparseError(f"nnz must be a whole number {limits}, got {nnz!r}")
    return count


def _check_counts(nnz: mx.array, most: int) -> mx.array:
    if not mx.issubdtype(nnz.dtype, mx.integer):
        raise DTypeError(f"nnz must be whole numbers of blocks, got {nnz.dtype}")
    try:
        counts = host_view(nnz)
    except TracedOnHostError:
        return nnz
    if counts.size and not (0 <= counts.min() and counts.max() <= most):
        raise MLXSparseError(
            f"nnz must lie in [0, {most}], the blocks of a scope, got {counts.min()} to {counts.max()}"
        )
    return nnz


class _Scope(ABC):
    """What ScopeSpec and ScopeCoupling share: which blocks of a scope are kept."""

    name: str | None

    @property
    @abstractmethod
    def grid_shape(self) -> Shape:
        """Scopes on each axis."""

    @property
    @abstractmethod
    def scope_numel(self) -> int:
        """Blocks of one scope."""

    @abstractmethod
    def blocks(self) -> tuple[SparseBlock, ...]:
        """The grids of blocks inside."""

    @abstractmethod
    def merge(self, scores: Sequence[mx.array]) -> mx.array:
        """(\\*grid, scope_numel) of grid-shaped scores, one array for each of `blocks()`."""

    @abstractmethod
    def _norms(self, values: Any, p: float, params: Params | None) -> list[mx.array]:
        """Grid-shaped p-norms of each of `blocks()`."""

    @abstractmethod
    def _to_blocks(self, merged: mx.array) -> list[tuple[SparseBlock, mx.array]]:
        """Each grid of blocks with its part of (\\*grid, scope_numel), grid-shaped."""

    @property
    def num_scopes(self) -> int:
        return math.prod(self.grid_shape)

    def specs(self) -> tuple[BlockSpec, ...]:
        return tuple(spec for block in self.blocks() for spec in block.specs())

    def parameters(self) -> tuple[View, ...]:
        """The views that the blocks lie on."""
        return tuple(spec.view for spec in self.specs())

    def kept_of(self, sparsity: float) -> int:
        """Blocks that a scope keeps at `sparsity`: floor(sparsity * n) are pruned."""
        if not 0 <= sparsity <= 1:
            raise MLXSparseError(f"sparsity must lie in [0, 1], got {sparsity}")
        return self.scope_numel - math.floor(sparsity * self.scope_numel + 1e-9)

    def _keep(
        self,
        thresholds: float | mx.array | None,
        nnz: int | mx.array | None,
        sparsity: float | None,
        values: Any,
        p: float,
        params: Params | None = None,
    ) -> list[tuple[SparseBlock, mx.array]]:
        given = [name for name, v in (("thresholds", thresholds), ("nnz", nnz), ("sparsity", sparsity))
                 if v is not None]  # fmt: skip
        if len(given) != 1:
            raise MLXSparseError(f"exactly one of thresholds, nnz, sparsity is needed, got {given or 'none'}")
        nnz = mx.array(nnz) if isinstance(nnz, np.ndarray) else nnz
        for label, v in (("thresholds", thresholds), ("nnz", nnz)):
            if isinstance(v, mx.array) and v.ndim and tuple(v.shape) != self.grid_shape:
                raise ShapeError(f"{label} must have shape {self.grid_shape}, got {tuple(v.shape)}")
        if sparsity is not None:
            nnz = self.kept_of(sparsity)
        norms = self.merge(self._norms(values, p, params))
        if thresholds is not None:
            limit = mx.broadcast_to(mx.array(thresholds), self.grid_shape)[..., None]
            return self._to_blocks(norms >= limit)
        assert nnz is not None
        return self._to_blocks(keep_largest(norms, nnz))

    def get_masks(
        self,
        nnz: int | mx.array | None = None,
        *,
        sparsity: float | None = None,
        thresholds: float | mx.array | None = None,
        values: Any = None,
        p: float = 2,
    ) -> dict[BlockSpec, mx.array]:
        """{spec: boolean mask of its view's shape}, True for what is kept (apply_mask: True for pruned).

        Exactly one of nnz (blocks kept a scope), sparsity (share pruned, floor) and thresholds (kept where
        norm >= threshold). Scores are p-norms of the blocks of `values`, else of the elements now.
        """
        result: dict[BlockSpec, mx.array] = {}
        for block, keep in self._keep(thresholds, nnz, sparsity, values, p):
            result |= block.get_masks(keep)
        return result

    def hard_threshold(
        self,
        thresholds: float | mx.array | None = None,
        *,
        nnz: int | mx.array | None = None,
        sparsity: float | None = None,
        values: Any = None,
        p: float = 2,
    ) -> None:
        """Set all blocks to 0 but those that get_masks keeps, for the same arguments."""
        new = self.hard_thresholded(thresholds, nnz=nnz, sparsity=sparsity, values=values, p=p)
        SparseBlock._assign(new)

    def hard_thresholded(
        self,
        thresholds: float | mx.array | None = None,
        *,
        nnz: int | mx.array | None = None,
        sparsity: float | None = None,
        values: Any = None,
        p: float = 2,
        params: Params | None = None,
    ) -> dict[ParamRef, mx.array]:
        """Pure twin of hard_threshold: {ParamRef: new array}."""
        kept = self._keep(thresholds, nnz, sparsity, values, p, params)
        return self._pruned([(block, mx.logical_not(keep)) for block, keep in kept], params)

    def apply_mask(self, mask: mx.array) -> None:
        """Set whole scopes to 0 where the boolean grid-shaped `mask` is True."""
        SparseBlock._assign(self.masked(mask))

    def masked(self, mask: mx.array, params: Params | None = None) -> dict[ParamRef, mx.array]:
        """Pure twin of apply_mask."""
        layout.check_mask(mask, self.grid_shape)
        wide = mx.broadcast_to(mask[..., None], (*self.grid_shape, self.scope_numel))
        return self._pruned(self._to_blocks(wide), params)

    @staticmethod
    def _pruned(
        masks: Sequence[tuple[SparseBlock, mx.array]], params: Params | None
    ) -> dict[ParamRef, mx.array]:
        new: dict[ParamRef, mx.array] = {}
        for block, mask in masks:
            held = {s.param: new.get(s.param, block._read(s.param, params)) for s in block.specs()}
            new |= block.masked(mask, held)
        return new


class ScopeSpec(_Scope):
    """The grid of a block spec or coupling, cut into competition sets.

    Args:
        block: SparseBlock; a View becomes a BlockSpec of single elements.
        shape: blocks of a scope on each axis; -1 and axes not given are the whole axis. ShapeError unless
            it divides the block grid.
        name: for messages and reports; default the block's.

    2:4 sparsity: ``ScopeSpec(BlockSpec(view), (1, 4))`` with nnz=2.
    """

    def __init__(self, block: SparseBlock | View, shape: Sequence[int] = (), name: str | None = None):
        self.block: SparseBlock = BlockSpec(block) if isinstance(block, View) else block
        if not isinstance(self.block, SparseBlock):
            raise MLXSparseError(f"block must be a SparseBlock or a View, got {type(block).__name__}")
        grid, sizes = self.block.grid_shape, layout.integers(shape, "scope shape")
        if len(sizes) > len(grid):
            raise ShapeError(f"scope shape {sizes} has more axes than the block grid {grid}")
        padded = (*sizes, *(-1,) * (len(grid) - len(sizes)))
        self.scope_shape = layout.full_shape(padded, grid, "scope shape")
        self.name = name or self.block.name

    @property
    def shape(self) -> Shape:
        """Blocks of a scope on each axis."""
        return self.scope_shape

    @property
    def grid_shape(self) -> Shape:
        return layout.grid_of(self.block.grid_shape, self.scope_shape)

    @property
    def scope_numel(self) -> int:
        return math.prod(self.scope_shape)

    def blocks(self) -> tuple[SparseBlock, ...]:
        return (self.block,)

    @property
    def data(self) -> Any:
        """The block's elements now."""
        return self.block.data

    def block_to_scope(self, b: mx.array, merge: bool = False) -> mx.array:
        """Values a block (the block grid's shape) by scope: (G0, .., g0, ..), merged (G0, .., prod g)."""
        if tuple(b.shape) != self.block.grid_shape:
            raise ShapeError(f"b must have shape {self.block.grid_shape}, got {tuple(b.shape)}")
        return layout.block_view_of(b, self.scope_shape, merge=merge)

    def scope_to_block(self, s: mx.array) -> mx.array:
        """Values a scope (grid_shape) as values a block."""
        if tuple(s.shape) != self.grid_shape:
            raise ShapeError(f"s must have shape {self.grid_shape}, got {tuple(s.shape)}")
        return layout.broadcast_block_to_element(s, self.scope_shape)

    def block_mask(
        self,
        nnz: int | mx.array | None = None,
        *,
        sparsity: float | None = None,
        thresholds: float | mx.array | None = None,
        values: Any = None,
        p: float = 2,
    ) -> mx.array:
        """As get_masks, one boolean a block (the block grid's shape), True for what is kept."""
        return self._keep(thresholds, nnz, sparsity, values, p)[0][1]

    def merge(self, scores: Sequence[mx.array]) -> mx.array:
        return self.block_to_scope(scores[0], merge=True)

    def _norms(self, values: Any, p: float, params: Params | None) -> list[mx.array]:
        if values is None and params is not None:
            values = self.block._values(params)
        return [self.block.norms(values, p)]

    def _to_blocks(self, merged: mx.array) -> list[tuple[SparseBlock, mx.array]]:
        return [(self.block, layout.unblock(merged, self.block.grid_shape, self.scope_shape))]

    def __repr__(self) -> str:
        return f"ScopeSpec({self.block}, {self.scope_shape})"


class ScopeCoupling(_Scope):
    """Scopes of several block grids that compete together: scope g holds every member's scope g.

    Scopes that span whole layers (shape -1 on each axis) coupled together make one competition over all
    of them. `orders` aligns the grids of scopes as in BlockCoupling; CouplingError if they do not fit.
    """

    def __init__(
        self, scopes: Sequence[ScopeSpec], orders: Sequence[Sequence[int]] = (), name: str | None = None
    ):
        self.scopes = tuple(scopes)
        if not self.scopes or not all(isinstance(s, ScopeSpec) for s in self.scopes):
            raise CouplingError(f"scopes must be ScopeSpecs, at least one; got {list(scopes)!r}")
        self.orders = check_orders(orders, [len(s.grid_shape) for s in self.scopes])
        grids = [permuted(s.grid_shape, order) for s, order in zip(self.scopes, self.orders)]
        # Grids of single scopes fit each other whatever their ranks.
        single = all(math.prod(grid) == 1 for grid in grids)
        if not single and any(grid != grids[0] for grid in grids):
            raise CouplingError(f"the grids of scopes must agree, got {grids}")
        self._grid = (1,) if single else grids[0]
        self._single = single
        self.name = name

    @property
    def grid_shape(self) -> Shape:
        return self._grid

    @property
    def scope_numel(self) -> int:
        return sum(scope.scope_numel for scope in self.scopes)

    def blocks(self) -> tuple[SparseBlock, ...]:
        return tuple(scope.block for scope in self.scopes)

    def _norms(self, values: Any, p: float, params: Params | None) -> list[mx.array]:
        if values is not None and not isinstance(values, Mapping):
            raise MLXSparseError("values of a coupling must be {spec: array}: one array cannot hold them all")
        return [norms for scope in self.scopes for norms in scope._norms(values, p, params)]

    def merge(self, scores: Sequence[mx.array]) -> mx.array:
        parts = []
        for scope, order, score in zip(self.scopes, self.orders, scores):
            part = scope.merge([score])
            parts.append(part.reshape(1, -1) if self._single else part.transpose(*order, len(order)))
        return mx.concatenate(parts, axis=-1)

    def _to_blocks(self, merged: mx.array) -> list[tuple[SparseBlock, mx.array]]:
        result, start = [], 0
        for scope, order in zip(self.scopes, self.orders):
            part = merged[..., start : start + scope.scope_numel]
            start += scope.scope_numel
            straight = part if self._single else part.transpose(*inverse(order), len(order))
            result += scope._to_blocks(straight)
        return result

    def __repr__(self) -> str:
        return f"ScopeCoupling({len(self.scopes)} scopes, grid={self._grid})"
