"""Sequences that lie one after the other: their ends, numbers, and the blocks that they touch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import DTypeError, MLXSparseError, ShapeError


def check_cu_seqlens(name: str, value: Any) -> np.ndarray:
    ends = np.asarray(value)
    if ends.ndim != 1 or len(ends) < 1:
        raise ShapeError(f"{name} has shape {ends.shape}, wanted (B + 1,)")
    if ends.dtype.kind not in "iu":
        raise DTypeError(f"{name} is {ends.dtype}, wanted integers")
    ends = ends.astype(np.int64)
    if ends[0] != 0 or (np.diff(ends) < 0).any():
        raise MLXSparseError(f"{name} must start at 0 and not descend, got {ends[:8].tolist()}...")
    return ends


def segment_ids(cu_seqlens: Any) -> mx.array:
    """(N,) int32: the sequence of each position; cu_seqlens int (B + 1,)."""
    ends = check_cu_seqlens("cu_seqlens", cu_seqlens)
    return mx.array(np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends)))


def intervals(
    q: np.ndarray, k: np.ndarray, block: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Block rows, ascending, and the block columns [lo, hi) that sequences of ends `q`, `k` add to each."""
    live = np.flatnonzero((np.diff(q) > 0) & (np.diff(k) > 0))
    # Rows of blocks each sequence touches: the intervals of columns of one block row may only overlap at
    # their ends, since sequences ascend.
    top, bottom = q[live] // block[0], -(-q[live + 1] // block[0])
    left, right = k[live] // block[1], -(-k[live + 1] // block[1])
    rows = ranges(top, bottom)
    owner = np.repeat(np.arange(len(live)), bottom - top)
    lo, hi = left[owner], right[owner]
    same = np.zeros(len(rows), bool)
    same[1:] = rows[1:] == rows[:-1]
    lo = np.where(same, np.maximum(lo, np.concatenate(([0], hi[:-1]))[: len(lo)]), lo)
    return rows, lo, np.maximum(hi, lo)


def ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """first[0], .. last[0] - 1, first[1], .. last[1] - 1, .."""
    length = last - first
    start = np.repeat(first - np.concatenate(([0], np.cumsum(length)[:-1]))[: len(first)], length)
    return start + np.arange(len(start))
