"""Masks between regions as dense bool matrices, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Box = Sequence[tuple[int, int]]


def positions_of(shape: Sequence[int], box: Box) -> list[int]:
    """Row-major indices of the positions of a box in a grid."""
    inside = [
        all(lo <= x < hi for x, (lo, hi) in zip(place, box))
        for place in product(*(range(size) for size in shape))
    ]
    return [i for i, there in enumerate(inside) if there]


def tile_pairs(
    shape: Sequence[int], source: Box, target: Box, tile: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Index pairs of a tiled mask: tiles from the source's corner, all times, whole target if none."""
    starts = [range(lo, hi, side) for (lo, hi), side in zip(source[1:], tile)]
    found = []
    for corner in product(*starts):
        space = [(lo, min(lo + side, hi)) for lo, side, (_, hi) in zip(corner, tile, source[1:])]
        keys = set(positions_of(shape, [target[0], *space])) & set(positions_of(shape, target))
        found.append(
            (
                positions_of(shape, [source[0], *space]),
                sorted(keys) if keys else positions_of(shape, target),
            )
        )
    return found


def allowed_of_pairs(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], n: int) -> Array:
    """bool (n, n): which query (row) sees which key, joined over index pairs."""
    allowed = np.zeros((n, n), bool)
    for queries, keys in pairs:
        for q in queries:
            for k in keys:
                allowed[q, k] = True
    return allowed


def voxel_mask(
    coords: Array,
    source: Array,
    target: Array,
    tile: Sequence[int] | None = None,
    shift: Sequence[int] = (0, 0, 0),
    chosen: Array | None = None,
    matrix: Array | None = None,
    fallback: str = "drop",
) -> Array:
    """bool (N, N): queries of `source` that see keys of `target` (bool (N,)), within a batch item.

    tile, shift: only those in the same tile. chosen (N,): only these queries. matrix (sources, targets).
    """
    n = len(coords)
    allowed = np.zeros((n, n), bool)
    rank_q, rank_k = np.cumsum(source) - 1, np.cumsum(target) - 1
    for i in range(n):
        for j in range(n):
            sees = bool(source[i] and target[j] and coords[i, 0] == coords[j, 0])
            if sees and tile is not None:
                cells = [
                    [(int(c) + s) // t for c, s, t in zip(row[1:], shift, tile)] for row in coords[[i, j]]
                ]
                sees = cells[0] == cells[1]
            if sees and chosen is not None:
                sees = bool(chosen[i])
            if sees and matrix is not None:
                sees = bool(matrix[rank_q[i], rank_k[j]])
            allowed[i, j] = sees
        if fallback == "full" and source[i] and not allowed[i].any():
            allowed[i] = target & (coords[:, 0] == coords[i, 0])
    return allowed
