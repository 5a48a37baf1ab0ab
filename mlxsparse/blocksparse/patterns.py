"""Layouts of sparse attention: which blocks of queries see which blocks of keys.

A pattern is called with a length in tokens and gives a BlockLayout (length, length) of `num_heads` heads; the
cost is that of the stored blocks. attention="unidirectional" keeps blocks up to the diagonal (pass
causal=True to block_sparse_attention for the tokens inside those). Random blocks follow from `seed`, head
and length alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import MLXSparseError, ShapeError
from .check import whole_number, whole_numbers
from .layout import BlockLayout

Pairs = tuple[np.ndarray, np.ndarray]  # rows and columns, in blocks


@dataclass(frozen=True)
class Pattern(ABC):
    """What the patterns share: heads, tokens of a block's side, and the direction."""

    num_heads: int
    block: int
    attention: str = "bidirectional"

    def __post_init__(self) -> None:
        whole_number("num_heads", self.num_heads, 1)
        whole_number("block", self.block, 1)
        if self.attention not in ("bidirectional", "unidirectional"):
            raise MLXSparseError(
                f'attention must be "bidirectional" or "unidirectional", got {self.attention!r}'
            )
        for name, least in self._counts().items():
            whole_number(name, getattr(self, name), least)

    def _counts(self) -> dict[str, int]:
        """Names of the counts of this pattern, with their least values."""
        return {}

    @abstractmethod
    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        """Pairs of one head over n x n; repeated ones, and ones past an edge or the diagonal, may occur."""

    def __call__(self, length: int) -> BlockLayout:
        """BlockLayout for `length` tokens."""
        size = whole_number("length", length)
        n = -(-size // self.block)
        found = [np.zeros((0, 3), np.int64)]
        for head in range(self.num_heads):
            for rows, cols in self._pairs(n, head):
                r, c = np.broadcast_arrays(rows, cols)
                r, c = r.reshape(-1), c.reshape(-1)
                keep = (r >= 0) & (r < n) & (c >= 0) & (c < n)
                if self.attention == "unidirectional":
                    keep &= c <= r
                found.append(np.column_stack([np.full(int(keep.sum()), head), r[keep], c[keep]]))
        pairs = np.concatenate(found)
        return BlockLayout.from_pairs(pairs, self.block, shape=(size, size), heads=self.num_heads)

    make_layout = __call__


def _band(n: int, reach: int) -> Pairs:
    """Blocks at most `reach` from the diagonal."""
    return np.arange(n)[:, None], np.arange(n)[:, None] + np.arange(-reach, reach + 1)


def _columns(n: int, cols: np.ndarray) -> Pairs:
    return np.arange(n)[:, None], cols[None]


def _windows(starts: np.ndarray, ends: np.ndarray) -> Iterator[Pairs]:
    """All pairs within each window [start, end)."""
    for size in np.unique(ends - starts):
        first = starts[ends - starts == size]
        place = first[:, None] + np.arange(size)
        yield place[:, :, None], place[:, None, :]


@dataclass(frozen=True)
class Dense(Pattern):
    """Every block."""

    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        yield np.arange(n)[:, None], np.arange(n)[None]


@dataclass(frozen=True)
class LocalWindow(Pattern):
    """A window of blocks centred on the diagonal."""

    num_sliding_window_blocks: int = 3

    def _counts(self) -> dict[str, int]:
        return {"num_sliding_window_blocks": 1}

    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        yield _band(n, self.num_sliding_window_blocks // 2)


@dataclass(frozen=True)
class Strided(Pattern):
    """The last `stride` blocks, and every stride-th block from the diagonal (Child et al., 2019)."""

    stride: int = 4

    def _counts(self) -> dict[str, int]:
        return {"stride": 1}

    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        yield _band(n, self.stride - 1)
        steps = np.arange(-(n // self.stride), n // self.stride + 1) * self.stride
        yield np.arange(n)[:, None], np.arange(n)[:, None] + steps


@dataclass(frozen=True)
class Fixed(Pattern):
    """Windows of `num_local_blocks`, and the last blocks of each window seen by all (Child et al., 2019).

    num_global_blocks: how many of a window's blocks all rows see. num_different_global_patterns: heads take
    turns in which ones, from the window's end backwards. In a last window that is short they are moved back
    as far as needed; one that has no more than num_global_blocks is seen whole. horizontal_global_attention:
    they see all, too.
    """

    num_local_blocks: int = 4
    num_global_blocks: int = 1
    num_different_global_patterns: int = 1
    horizontal_global_attention: bool = False

    def _counts(self) -> dict[str, int]:
        return {"num_local_blocks": 1, "num_global_blocks": 1, "num_different_global_patterns": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_global_blocks * self.num_different_global_patterns > self.num_local_blocks:
            raise ShapeError(
                f"num_global_blocks={self.num_global_blocks} times num_different_global_patterns="
                f"{self.num_different_global_patterns} passes num_local_blocks={self.num_local_blocks}"
            )

    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        starts = np.arange(0, n, self.num_local_blocks)
        yield from _windows(starts, np.minimum(starts + self.num_local_blocks, n))
        turn = head % self.num_different_global_patterns
        first = self.num_local_blocks - (turn + 1) * self.num_global_blocks
        seen = (starts[:, None] + first + np.arange(self.num_global_blocks)).reshape(-1)
        if len(starts) and n % self.num_local_blocks:  # the last window is short
            start, last = int(starts[-1]), seen[-self.num_global_blocks :]
            moved = last - max(0, int(last[-1]) + 1 - n)
            seen = np.append(seen[: -self.num_global_blocks], moved[moved >= start])
        yield _columns(n, seen)
        if self.horizontal_global_attention:
            yield seen[:, None], np.arange(n)[None]


@dataclass(frozen=True)
class _Global(Pattern):
    """Blocks that all rows see and, in both directions, that see all."""

    global_block_indices: tuple[int, ...] = (0,)
    global_block_end_indices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("global_block_indices", "global_block_end_indices"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_numbers(name, getattr(self, name)))
        self._global_blocks()

    def _global_blocks(self) -> np.ndarray:
        ends = self.global_block_end_indices
        if ends is None:
            return np.array(self.global_block_indices, np.int64)
        if len(ends) != len(self.global_block_indices):
            raise ShapeError(
                f"global_block_end_indices has {len(ends)} entries, global_block_indices "
                f"{len(self.global_block_indices)}"
            )
        if any(b <= a for a, b in zip(self.global_block_indices, ends)):
            raise ShapeError(
                f"global_block_end_indices {ends} must lie above global_block_indices "
                f"{self.global_block_indices}: no block lies between them"
            )
        return np.concatenate([np.arange(a, b) for a, b in zip(self.global_block_indices, ends)])

    def _global_pairs(self, n: int, rows_too: bool) -> Iterator[Pairs]:
        seen = self._global_blocks()
        yield _columns(n, seen)
        if rows_too:
            yield seen[:, None], np.arange(n)[None]


@dataclass(frozen=True)
class Variable(_Global):
    """Windows of given sizes (the last repeats), global blocks, random blocks in each row."""

    num_random_blocks: int = 0
    local_window_blocks: tuple[int, ...] = (4,)
    horizontal_global_attention: bool = False
    seed: int = 0

    def _counts(self) -> dict[str, int]:
        return {"num_random_blocks": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = whole_numbers("local_window_blocks", self.local_window_blocks, 1)
        if not sizes:
            raise ShapeError("local_window_blocks is empty, wanted at least one size")
        object.__setattr__(self, "local_window_blocks", sizes)

    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        sizes = list(self.local_window_blocks)
        covered = sum(sizes[:-1])
        sizes = sizes[:-1] + [sizes[-1]] * max(1, -(-(n - covered) // sizes[-1]))
        ends = np.minimum(np.cumsum(sizes), n)
        starts = np.concatenate(([0], ends[:-1]))
        yield from _windows(starts[starts < ends], ends[starts < ends])
        yield from self._global_pairs(n, self.horizontal_global_attention)
        yield _random(n, head, self.num_random_blocks, self.seed, self.attention)


@dataclass(frozen=True)
class BSLongformer(_Global):
    """A sliding window and global blocks that see all and are seen by all (Beltagy et al., 2020)."""

    num_sliding_window_blocks: int = 3

    def _counts(self) -> dict[str, int]:
        return {"num_sliding_window_blocks": 1}

    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        yield _band(n, self.num_sliding_window_blocks // 2)
        yield from self._global_pairs(n, True)


@dataclass(frozen=True)
class BigBird(Pattern):
    """A sliding window, the first blocks as global ones, random blocks in each row (Zaheer et al., 2020)."""

    num_random_blocks: int = 1
    num_sliding_window_blocks: int = 3
    num_global_blocks: int = 1
    seed: int = 0

    def _counts(self) -> dict[str, int]:
        return {"num_random_blocks": 0, "num_sliding_window_blocks": 1, "num_global_blocks": 0}

    def _pairs(self, n: int, head: int) -> Iterator[Pairs]:
        yield _band(n, self.num_sliding_window_blocks // 2)
        first = np.arange(self.num_global_blocks)
        yield _columns(n, first)
        yield first[:, None], np.arange(n)[None]
        yield _random(n, head, self.num_random_blocks, self.seed, self.attention)


def _random(n: int, head: int, count: int, seed: int, attention: str) -> Pairs:
    """`count` random columns of each row, with repetition; up to the diagonal when unidirectional."""
    rng = np.random.default_rng([seed, head, n])
    rows = np.arange(n)[:, None]
    if n == 0 or count == 0:
        return rows, np.zeros((n, 0), np.int64)
    limit = rows + 1 if attention == "unidirectional" else np.full_like(rows, n)
    return rows, (rng.random((n, count)) * limit).astype(np.int64)
