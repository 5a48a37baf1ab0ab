"""BlockCoupling: blocks of several parameters that live and die together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import CouplingError, MLXSparseError, ShapeError
from .base import Params, SparseBlock
from .layout import Shape, integers, unblock
from .spec import BlockSpec


class BlockCoupling(SparseBlock):
    """Block specs with one grid: block g of the coupling is block g of every spec.

    Args:
        specs: at least one. No two may share an element of a parameter.
        orders: for each spec the permutation of its grid's axes that aligns it with the others; () for none.
        name: for messages and reports.

    CouplingError for an order that is no permutation, grids that differ, and specs that overlap.
    """

    def __init__(
        self,
        specs: Sequence[BlockSpec],
        orders: Sequence[Sequence[int]] = (),
        name: str | None = None,
    ):
        self._specs = tuple(specs)
        if not self._specs or not all(isinstance(spec, BlockSpec) for spec in self._specs):
            raise CouplingError(f"specs must be BlockSpecs, at least one; got {list(specs)!r}")
        self.orders = check_orders(orders, [len(spec.grid_shape) for spec in self._specs])
        grids = [permuted(spec.grid_shape, order) for spec, order in zip(self._specs, self.orders)]
        for spec, grid in zip(self._specs, grids):
            if grid != grids[0]:
                raise CouplingError(f"{spec} has the grid {grid}, the first spec {grids[0]}; they must agree")
        for a, b in combinations(self._specs, 2):
            if overlap(a, b):
                raise CouplingError(f"{a} and {b} share elements; a coupling writes each one once")
        self._grid = grids[0]
        self.name = name

    def specs(self) -> tuple[BlockSpec, ...]:
        return self._specs

    @property
    def grid_shape(self) -> Shape:
        return self._grid

    @property
    def shape(self) -> Shape:
        return (-1,) * len(self._grid)

    @property
    def block_numel(self) -> int:
        return sum(spec.block_numel for spec in self._specs)

    def block_view(self, values: Any = None, reorder: bool = True, merge: bool = True) -> mx.array:
        """(\\*grid, block_numel): each spec's elements of a block, one spec after the other.

        values: None for the elements now, or {spec: array}. Always merged: blocks differ in shape.
        """
        if values is not None and not isinstance(values, Mapping):
            raise MLXSparseError("values of a coupling must be {spec: array}: one array cannot hold them all")
        parts = []
        for spec, order in zip(self._specs, self.orders):
            part = spec.block_view(values, merge=True)
            parts.append(part.transpose(*order, len(order)))
        return mx.concatenate(parts, axis=-1)

    def unconcat(self, values: mx.array) -> dict[BlockSpec, mx.array]:
        """Inverse of block_view: {spec: array of its view's shape} from (\\*grid, block_numel)."""
        ends = np.cumsum([spec.block_numel for spec in self._specs])[:-1].tolist()
        result = {}
        for spec, order, part in zip(self._specs, self.orders, mx.split(values, ends, axis=-1)):
            straight = part.transpose(*inverse(order), len(order))
            result[spec] = unblock(straight, spec.shape, spec.block_shape)
        return result

    def _values(self, params: Params | None) -> dict[BlockSpec, mx.array]:
        return {spec: spec._values(params) for spec in self._specs}

    def _unmerge(self, merged: mx.array) -> dict[BlockSpec, mx.array]:
        return self.unconcat(merged)

    def _spread(self, blocks: mx.array) -> dict[BlockSpec, mx.array]:
        return {
            spec: blocks.transpose(inverse(order)) if len(order) else blocks
            for spec, order in zip(self._specs, self.orders)
        }

    def broadcast_block_to_element(
        self, block_values: mx.array, fake: bool = False
    ) -> dict[BlockSpec, mx.array]:
        """{spec: values of its view's shape} of grid-shaped values."""
        return {
            spec: spec.broadcast_block_to_element(part, fake)
            for spec, part in self._spread(block_values).items()
        }

    def _elements(self, d: Any) -> dict[BlockSpec, mx.array]:
        if not isinstance(d, Mapping):
            raise MLXSparseError("values of a coupling must be {spec: array}: one array cannot hold them all")
        result: dict[BlockSpec, mx.array] = {}
        for spec in self._specs:
            result |= spec._elements(d)
        return result

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"BlockCoupling({len(self._specs)} specs, grid={self._grid}{name})"


def check_orders(orders: Sequence[Sequence[int]], ranks: Sequence[int]) -> tuple[Shape, ...]:
    """One permutation of the axes a member, the identity for ()."""
    if len(orders) not in (0, len(ranks)):
        raise CouplingError(f"orders must be () or one for each of {len(ranks)} members, got {len(orders)}")
    try:
        given = [integers(order, "order") for order in orders] or [()] * len(ranks)
    except ShapeError as problem:
        raise CouplingError(str(problem)) from None
    full = tuple(order or tuple(range(rank)) for order, rank in zip(given, ranks))
    for order, rank in zip(full, ranks):
        if sorted(order) != list(range(rank)):
            raise CouplingError(f"order {order} is no permutation of the {rank} axes of the grid")
    return full


def permuted(shape: Shape, order: Shape) -> Shape:
    return tuple(shape[a] for a in order)


def inverse(order: Shape) -> Shape:
    return tuple(int(a) for a in np.argsort(order))


def overlap(a: BlockSpec, b: BlockSpec) -> bool:
    """Whether two specs share an element of a parameter."""
    if a.param != b.param:
        return False
    if not (a.view.numel() and b.view.numel()):
        return False
    (low, high), (start, end) = a.view.strides.span, b.view.strides.span
    if high < start or end < low:
        return False
    return bool(a.view.strides.touched()[b.view.strides.grid].any())
