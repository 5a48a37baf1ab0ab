"""Where the rows of both sides of a kernel map lie on a dense grid (conv_dense.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from ..backend.kernel_sites import Extent, reached_extent

TINY = 1 << 12  # cells of a grid that is always tried
SPARSE = 16  # cells for each row, above which it is not
MOST = 2**31 - 1  # cells, whose numbers have 32 bits


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the rows of both sides of a map lie: outputs o in an extent, inputs at o * s - p + k * d."""

    inputs: mx.array  # (N, 4) int32 batch, x, y, z; a negative batch is padding
    outputs: mx.array  # (M, 4)
    extent: Extent  # of the outputs
    size: tuple[int, int, int]
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]

    @cached_property
    def reach(self) -> Extent:
        """What the outputs read."""
        return reached_extent(self.extent, self.size, self.stride, self.padding, self.dilation, False)

    @cached_property
    def cells(self) -> int:
        """Of the larger side."""
        return max(math.prod(shape_of(self.extent)), math.prod(shape_of(self.reach)))

    @cached_property
    def filled(self) -> int:
        """Percent of these that are sites, at least 1."""
        rows = max(self.inputs.shape[0], self.outputs.shape[0])
        return max(1, min(100, 100 * rows // max(1, self.cells)))

    @property
    def worthwhile(self) -> bool:
        """Whether a dense convolution may run: the grid is tiny, or not much larger than the sets."""
        rows = min(self.inputs.shape[0], self.outputs.shape[0])
        most = min(max(TINY, SPARSE * rows), MOST)
        # The outputs' box alone is too large for most sets, which is found out sooner.
        return math.prod(shape_of(self.extent)) <= most and self.reach.fits and self.cells <= most

    @cached_property
    def input_cells(self) -> mx.array:
        """(N,) int32 cell of each input row, -1 where it is padding or no output reads it."""
        return _cells(self.inputs, self.reach)

    @cached_property
    def output_cells(self) -> mx.array:
        """(M,) int32 cell of each output row, -1 where it is padding."""
        return _cells(self.outputs, self.extent)


def shape_of(extent: Extent) -> tuple[int, int, int, int]:
    """Items of the batch and cells along each axis."""
    return extent.batch_size, *extent.span


def _cells(coords: mx.array, extent: Extent) -> mx.array:
    """Numbers of cells in 32 bits; what passes them lies outside, before and after."""
    place = coords - mx.array([0, *extent.low], mx.int32)
    inside = ((place >= 0) & (place < mx.array(shape_of(extent), mx.int32))).all(axis=1)
    cell = place[:, 0]
    for axis, n in enumerate(extent.span, 1):
        cell = cell * n + place[:, axis]
    return mx.where(inside, cell, -1)
