"""Sums over the rows of each batch item where the host knows no counts: static capacity on a GPU."""

from __future__ import annotations

import math

import mlx.core as mx

from .kernel_rows import PIECE, Segments, segment_reduce, segments
from .library import MAX_THREADS, blocks, filled, launch, numbers


def item_segments(batch: mx.array, batch_size: int, *, ascending: bool) -> Segments:
    """Rows of each batch item from their (N,) int32 numbers, -1 in padding, which comes last.

    ascending: the rows of an item follow those of the one before, so nothing is sorted.
    """
    n = batch.shape[0]
    if n == 0:
        return Segments(batch, numbers(0), filled((batch_size + 1,), 0, mx.int32))
    if not ascending and batch_size > 1:
        return segments(batch, batch_size, check=False)
    ranked = mx.where(batch < 0, batch_size, batch).astype(mx.int32)
    groups = (blocks(batch_size + 1, MAX_THREADS), 1, 1)
    ptr = launch("segment_bounds", [ranked], [n, batch_size], [(batch_size + 1,)], groups)[0]
    return Segments(batch, numbers(n), ptr)


def reduce_items(x: mx.array, items: Segments, mode: str) -> tuple[mx.array, mx.array]:
    """As kernel_rows.batch_reduce: (B, C) float32, 0 for an empty item; (B, C) int32 winning row or -1."""
    kind = "max" if mode == "max" else "sum"
    n, size = items.order.size, items.size
    if x.size == 0 or size == 0:
        shape = (size, x.shape[1])
        return filled(shape, 0, mx.float32), filled(shape, -1, mx.int32)
    # Pieces end at every PIECE-th place and where an item ends; an item is some pieces, then. Where both are
    # one a piece is empty: the last of the item before, as a maximum is taken from the first of equals.
    cuts = mx.sort(mx.concatenate([PIECE * numbers(blocks(n, PIECE)), items.ptr]))
    first = items.ptr // PIECE + 1 + numbers(size + 1)
    y, winner = segment_reduce(x, Segments(items.order, items.order, cuts), kind)
    if kind == "max":
        y = mx.where(winner < 0, -math.inf, y)
    every = numbers(y.shape[0])
    total, piece = segment_reduce(y, Segments(every, every, first), kind)
    if mode == "mean":
        total = total / mx.maximum(items.counts, 1).astype(mx.float32)[:, None]
    if kind == "sum":
        return total, filled(total.shape, -1, mx.int32)
    row = mx.where(piece < 0, -1, mx.take_along_axis(winner, mx.maximum(piece, 0), axis=0))
    return mx.where(row < 0, 0, total), row
