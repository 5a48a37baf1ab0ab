"""Where the rows of both sides of a kernel map lie on a dense grid (conv_dense.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

Triple = tuple[int, int, int]
TINY = 1 << 12  # cells of a grid that is always tried
SPARSE = 16  # cells for each row, above which it is not
MOST = 2**31 - 2  # cells, whose numbers have 32 bits


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the rows of both sides of a map lie: outputs o in [low, low + span), inputs o * s - p + k * d."""

    inputs: mx.array  # (N, 4) int32 batch, x, y, z; a negative batch is padding
    outputs: mx.array  # (M, 4)
    low: Triple
    span: Triple
    items: int  # of the batch
    size: Triple
    stride: Triple
    padding: Triple
    dilation: Triple

    @property
    def reach(self) -> Triple:
        """Cells along each axis that the outputs read."""
        axes = zip(self.span, self.stride, self.size, self.dilation)
        x, y, z = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in axes)
        return x, y, z

    @property
    def cells(self) -> int:
        """Of the larger side."""
        return self.items * max(math.prod(self.span), math.prod(self.reach))

    @property
    def filled(self) -> int:
        """Percent of these that are sites, at least 1."""
        rows = max(self.inputs.shape[0], self.outputs.shape[0])
        return max(1, min(100, 100 * rows // max(1, self.cells)))

    @property
    def worthwhile(self) -> bool:
        """Whether a dense convolution may run: the grid is tiny, or not much larger than the sets."""
        rows = min(self.inputs.shape[0], self.outputs.shape[0])
        return self.cells <= min(max(TINY, SPARSE * rows), MOST)

    @cached_property
    def input_cells(self) -> mx.array:
        """(N,) int32 cell of each input row; as many as there are cells where it is outside or padding."""
        start = [a * s - p for a, s, p in zip(self.low, self.stride, self.padding)]
        return _cells(self.inputs, start, self.reach, self.items)

    @cached_property
    def output_cells(self) -> mx.array:
        """(M,) int32, likewise."""
        return _cells(self.outputs, list(self.low), self.span, self.items)

    @cached_property
    def input_rows(self) -> mx.array:
        """(cells,) int32 row of each cell of the input side, -1 where there is none."""
        return _rows(self.input_cells, self.items * math.prod(self.reach))

    @cached_property
    def output_rows(self) -> mx.array:
        """(cells,) int32, likewise of the output side."""
        return _rows(self.output_cells, self.items * math.prod(self.span))


def _cells(coords: mx.array, start: list[int], span: Triple, items: int) -> mx.array:
    # In 64 bits: padding may be anywhere.
    site = coords.astype(mx.int64)
    batch, place = site[:, 0], site[:, 1:] - mx.array(start, mx.int64)
    inside = (batch >= 0) & (batch < items) & ((place >= 0) & (place < mx.array(span, mx.int64))).all(axis=1)
    cell = ((batch * span[0] + place[:, 0]) * span[1] + place[:, 1]) * span[2] + place[:, 2]
    return mx.where(inside, cell, items * math.prod(span)).astype(mx.int32)


def _rows(cells: mx.array, count: int) -> mx.array:
    rows = mx.full((count + 1,), -1, mx.int32)
    rows[cells] = mx.arange(cells.shape[0], dtype=mx.int32)
    return rows[:count]
