"""Nearest sites by comparing each query with every site."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def neighbours(
    coords: Array, queries: Array, batch: Array, k: int, r: float = np.inf
) -> tuple[Array, Array, Array]:
    """(rows (Q, k), distances (Q, k), counts (Q,)) of the sites of each query's batch item.

    The k nearest within distance r, nearest first, of equals the lower row; -1 and inf past the last. counts
    is the number of sites within r, however many of them are listed.
    """
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    distances = np.full((len(queries), k), np.inf)
    counts = np.zeros(len(queries), dtype=np.int64)
    sites = np.asarray(coords).tolist()
    for q, (query, item) in enumerate(zip(np.asarray(queries, np.float64).tolist(), batch, strict=True)):
        found = []
        for row, (b, *xyz) in enumerate(sites):
            square = 0.0
            for c, at in zip(xyz, query, strict=True):
                square += (c - at) * (c - at)
            if b == item and square <= r * r:
                found.append((square, row))
        counts[q] = len(found)
        for place, (square, row) in enumerate(sorted(found)[:k]):
            rows[q, place], distances[q, place] = row, np.sqrt(square)
    return rows, distances, counts
