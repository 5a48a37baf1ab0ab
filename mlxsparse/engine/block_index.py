"""Where the blocks of a block-sparse matrix are: lists by row and by column, and runs of equal lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

RUN_ROWS = 128  # elements along a line that one product may cover


@dataclass(frozen=True, eq=False)
class Side:
    """The stored blocks line by line; a line is a block row (by_row) or a block column of one head.

    ptr (H * lines + 1,): where each line's entries start; block (nnz,): the stored block of each entry;
    other (nnz,): its place along the other axis, ascending within a line. size, extent: elements of a block
    and of the whole matrix along the lines' axis; other_size, other_extent: along the other.
    runs (n, 3): head, first and last line (exclusive) of consecutive lines with the same `other` lists.
    """

    by_row: bool
    lines: int
    ptr: np.ndarray
    block: np.ndarray
    other: np.ndarray
    size: int
    extent: int
    other_size: int
    other_extent: int
    runs: np.ndarray

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Elements [a, b) of lines [first, last)."""
        return first * self.size, min(last * self.size, self.extent)

    def listed(self, head: int, line: int) -> tuple[int, int]:
        """Entries [a, b) of a line."""
        at = head * self.lines + line
        return int(self.ptr[at]), int(self.ptr[at + 1])

    @cached_property
    def plan(self) -> list[tuple[int, int, int, int, int]]:
        """The runs as integers: head, first line, last line, entries [a, b) of the first line."""
        at = self.runs[:, 0] * self.lines + self.runs[:, 1]
        columns = (*self.runs.T, self.ptr[at], self.ptr[at + 1])
        return list(zip(*(column.tolist() for column in columns)))

    def positions(self, a: int, b: int) -> slice | np.ndarray:
        """Elements along the other axis that entries [a, b) of a line cover; a slice if consecutive."""
        other, size = self.other[a:b], self.other_size
        if a == b:
            return slice(0, 0)
        first, last = int(other[0]), int(other[-1])
        if last - first == b - a - 1:
            return slice(first * size, min((last + 1) * size, self.other_extent))
        place = (other.astype(np.int64)[:, None] * size + np.arange(size)).reshape(-1)
        return place[: place.size - max(0, (last + 1) * size - self.other_extent)]


class Tables(NamedTuple):
    """A side on a kernel's device: ptr, block, other as int32 arrays."""

    ptr: mx.array
    block: mx.array
    other: mx.array


class BlockIndex:
    """Stored blocks, sorted by (head, row, column) and distinct: their places and the lists over them.

    grid (H, R, C) in blocks, block (br, bc) and shape (M, N) in elements; heads, rows, cols int32 (nnz,).
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int],
        shape: tuple[int, int],
        heads: np.ndarray,
        rows: np.ndarray,
        cols: np.ndarray,
    ):
        self.grid, self.block, self.shape = grid, block, shape
        self.heads, self.rows, self.cols = heads, rows, cols
        self.groups: dict[tuple[int, ...], Any] = {}  # sdd_groups, tile_lists, with_heads
        self.plans: dict[tuple[Any, ...], Any] = {}  # what a call derives from all but its arrays' values
        self.calls: dict[tuple[Any, ...], Any] = {}  # block_matmul.known

    @property
    def nnz(self) -> int:
        return len(self.rows)

    @property
    def ragged(self) -> bool:
        """Whether the last block row or column lies partly outside the matrix."""
        return bool(self.shape[0] % self.block[0] or self.shape[1] % self.block[1])

    @cached_property
    def by_row(self) -> Side:
        h, r, _ = self.grid
        ptr = _starts(self.heads.astype(np.int64) * r + self.rows, h * r)
        every = np.arange(self.nnz, dtype=np.int32)
        runs = _runs(ptr, self.cols, h, r, max(1, RUN_ROWS // self.block[0]))
        return Side(
            True, r, ptr, every, self.cols, self.block[0], self.shape[0], self.block[1], self.shape[1], runs
        )

    @cached_property
    def by_col(self) -> Side:
        h, _, c = self.grid
        line = self.heads.astype(np.int64) * c + self.cols
        order = np.argsort(line, kind="stable").astype(np.int32)  # rows ascend within a column
        ptr = _starts(line, h * c)
        other = self.rows[order]
        runs = _runs(ptr, other, h, c, max(1, RUN_ROWS // self.block[1]))
        return Side(
            False, c, ptr, order, other, self.block[1], self.shape[1], self.block[0], self.shape[0], runs
        )

    def with_heads(self, heads: int) -> BlockIndex:
        """The index of one head, repeated; kept."""
        if self.grid[0] == heads:
            return self
        found: BlockIndex | None = self.groups.get((heads, 0))
        if found is None:
            rows, cols = (np.tile(a, heads) for a in (self.rows, self.cols))
            head = np.repeat(np.arange(heads, dtype=np.int32), self.nnz)
            found = BlockIndex((heads, *self.grid[1:]), self.block, self.shape, head, rows, cols)
            self.groups[heads, 0] = found
        return found

    @cached_property
    def row_tables(self) -> Tables:
        return _tables(self.by_row)

    @cached_property
    def col_tables(self) -> Tables:
        return _tables(self.by_col)

    @cached_property
    def row_order(self) -> mx.array:
        """(H * R,) int32: the block rows of each head, those with most blocks first."""
        counts = np.diff(self.by_row.ptr).reshape(self.grid[:2])
        return mx.array(np.argsort(-counts, axis=1, kind="stable").reshape(-1).astype(np.int32))

    @cached_property
    def places(self) -> np.ndarray:
        """(H, R, C) int32: the stored block at each place, -1 where none is."""
        found = np.full(self.grid, -1, np.int32)
        found[self.heads, self.rows, self.cols] = np.arange(self.nnz, dtype=np.int32)
        return found

    def edges(self) -> Iterator[tuple[np.ndarray, tuple[slice, slice]]]:
        """Stored blocks that lie partly outside the matrix, and the part of them that does."""
        (m, n), (br, bc), (_, r, c) = self.shape, self.block, self.grid
        if m % br:
            yield np.flatnonzero(self.rows == r - 1), (slice(m % br, None), slice(None))
        if n % bc:
            yield np.flatnonzero(self.cols == c - 1), (slice(None), slice(n % bc, None))


def _starts(line: np.ndarray, lines: int) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(np.bincount(line, minlength=lines)))).astype(np.int64)


def _runs(ptr: np.ndarray, other: np.ndarray, heads: int, lines: int, longest: int) -> np.ndarray:
    """(n, 3): head, first, last of runs of at most `longest` consecutive lines with equal lists."""
    total = heads * lines
    if total == 0:
        return np.zeros((0, 3), np.int64)
    counts = np.diff(ptr)
    same = np.zeros(total, bool)  # line i has the list of line i - 1
    same[1:] = counts[1:] == counts[:-1]
    same[::lines] = False
    if len(other):
        line = np.repeat(np.arange(total), counts)
        before = np.arange(len(other)) - counts[line]
        differs = (other != other[np.maximum(before, 0)]) & same[line]
        same[line[differs]] = False
    start = np.flatnonzero(~same)
    length = np.diff(np.append(start, total))
    # Runs over the limit are cut into pieces of it.
    pieces = -(-length // longest)
    first = np.repeat(start, pieces)
    offset = np.arange(len(first)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = first + offset * longest
    last = np.minimum(first + longest, np.repeat(start + length, pieces))
    head = first // lines
    return np.column_stack([head, first - head * lines, last - head * lines])


def _tables(side: Side) -> Tables:
    return Tables(*(mx.array(np.ascontiguousarray(a, np.int32)) for a in (side.ptr, side.block, side.other)))
