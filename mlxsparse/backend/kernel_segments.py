"""Attention inside segments on the GPU: q (N, H, D), k (M, KH, D), v (M, KH, DV), rows by position.

Sums run in fp32 in a fixed order and are rounded once; the same input gives the same bits.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import mlx.core as mx

from .kernel_blocks import MAX_DIM, AttentionTile, fp32_mode, on_cuda
from .library import MAX_THREADS, blocks, check_array, filled, launch


class Positions(NamedTuple):
    """int32 arrays of kernels/segment_attend.metal: rows of queries and keys, spans and tiles of queries."""

    q_rows: mx.array
    k_rows: mx.array
    span: mx.array
    tiles: mx.array


DQ, DK, DV = 0, 1, 2


def segment_tile(
    dim: int, dtype: mx.Dtype, *, grad: bool = False, cuda: bool | None = None
) -> AttentionTile | None:
    """A tile for `dim` channels, of the gradients with `grad`; None where channels are too many."""
    if dim > MAX_DIM[dtype.size]:
        return None
    held = next(d for d in (16, 32, 64, 128) if d >= dim)
    forced = os.environ.get("MLXSPARSE_SEGMENT_GRAD_TILE" if grad else "MLXSPARSE_SEGMENT_TILE")
    if forced:  # "BM,BN,WM", for measurements
        bm, bn, wm = (int(v) for v in forced.split(","))
        return AttentionTile(held, bm, bn, wm)
    cuda = on_cuda() if cuda is None else cuda
    if dtype == mx.float32:
        if held == 64:
            return AttentionTile(held, 16, 16, 1) if grad else AttentionTile(held, 32, 16, 2)
        return AttentionTile(held, 32, 32, 2)
    if held == 128:
        bn = 32 if cuda or not grad else 16
        return AttentionTile(held, 32 if grad or not cuda else 64, bn, 2 if grad or not cuda else 4)
    if grad and not cuda:
        return AttentionTile(held, 32, 32, 2)
    return AttentionTile(held, 64, 32, 4)


def segment_attend(
    q: mx.array, k: mx.array, v: mx.array, scale: float, at: Positions, tile: AttentionTile
) -> tuple[mx.array, mx.array]:
    """(out (N, H, DV) of q's dtype, lse (N, H) float32); rows that are no query are 0. scale > 0."""
    for name, a in (("q", q), ("k", k), ("v", v)):
        check_array(name, a, 3, q.dtype)
    (n, heads, d), (m, key_heads, outs) = q.shape, v.shape
    shapes = [(n, heads, outs), (n, heads)]
    tiles = at.tiles.shape[0]
    if 0 in (tiles, n, heads, outs):
        return filled(shapes[0], 0, q.dtype), filled(shapes[1], 0, mx.float32)
    y, lse = launch(
        "segment_attend",
        [q, k, v, mx.array([scale], dtype=mx.float32), at.q_rows, at.k_rows, at.span, at.tiles],
        [tiles, n, m, at.q_rows.size, at.k_rows.size, heads, key_heads, d, outs],
        shapes,
        (tiles * heads, 1, 1),
        32 * tile.wm,
        dtype=q.dtype,
        init=0 if at.q_rows.size < n else None,
        **tile.sizes(),
        EXACT=fp32_mode(q.dtype),
    )
    return y, lse


def row_dots(a: mx.array, b: mx.array) -> mx.array:
    """(N, H) float32: sums of a * b over the last axis of (N, H, C)."""
    check_array("a", a, 3)
    check_array("b", b, 3, a.dtype)
    rows, shape = a.shape[0] * a.shape[1], a.shape[:2]
    if a.size == 0:
        return filled(shape, 0, mx.float32)
    groups = (blocks(rows, MAX_THREADS), 1, 1)
    return launch("row_dots", [a, b], [rows, a.shape[2]], [shape], groups, dtype=a.dtype)[0]


def segment_attend_grad(
    mode: int,
    a: mx.array,
    b: mx.array,
    c: mx.array,
    d: mx.array,
    lse: mx.array,
    delta: mx.array,
    scale: float,
    at: Positions,
    tile: AttentionTile,
) -> mx.array:
    """Gradient of q (DQ), k (DK) or v (DV) in their dtype; `at` is of the owners (the kernel's text)."""
    for name, array in (("a", a), ("b", b), ("c", c), ("d", d)):
        check_array(name, array, 3, a.dtype)
    (n, heads, channels), outs = a.shape, d.shape[2]
    shape = (n, heads, outs if mode == DV else channels)
    tiles = at.tiles.shape[0]
    if 0 in (tiles, *shape):
        return filled(shape, 0, a.dtype)
    inputs = [a, b, c, d, lse, delta, mx.array([scale], dtype=mx.float32)]
    return launch(
        "segment_attend_grad",
        [*inputs, at.q_rows, at.k_rows, at.span, at.tiles],
        [tiles, n, b.shape[0], at.q_rows.size, at.k_rows.size, heads, b.shape[1], channels, outs],
        [shape],
        (tiles * heads, 1, 1),
        32 * tile.wm,
        dtype=a.dtype,
        init=0 if at.q_rows.size < n else None,
        MODE=mode,
        **tile.sizes(),
        EXACT=fp32_mode(a.dtype),
    )[0]
