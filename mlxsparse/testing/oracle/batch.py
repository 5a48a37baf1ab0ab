"""Batch items put together and taken apart, and one vector for each, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mlxsparse.testing.oracle.relation import Array


def collate(parts: Sequence[tuple[Array, Array, int]]) -> tuple[Array, Array, int]:
    """(coords, feats, batch_size) of each part -> of the whole, batch numbers counted on."""
    coords, feats, before = [], [], 0
    for part_coords, part_feats, size in parts:
        for (batch, *xyz), row in zip(np.asarray(part_coords).tolist(), np.asarray(part_feats)):
            coords.append((before + batch, *xyz))
            feats.append(row)
        before += size
    channels = np.shape(parts[0][1])[1]
    return np.array(coords, np.int64).reshape(-1, 4), np.array(feats).reshape(-1, channels), before


def decollate(coords: Array, feats: Array, batch_size: int) -> list[tuple[Array, Array]]:
    """(coords, feats) of each batch item, its batch number 0, rows in order."""
    items = []
    for item in range(batch_size):
        rows = [row for row, site in enumerate(np.asarray(coords).tolist()) if site[0] == item]
        own = np.asarray(coords)[rows].reshape(-1, 4).copy()
        own[:, 0] = 0
        items.append((own, np.asarray(feats)[rows]))
    return items


def broadcast(coords: Array, feats: Array, g: Array, combine: Callable[[Array, Array], Array]) -> Array:
    """combine(row, g[batch item of the row]) of each row."""
    rows = [
        combine(row, g[site[0]])
        for site, row in zip(np.asarray(coords).tolist(), np.asarray(feats, np.float64))
    ]
    return np.array(rows, np.float64).reshape(np.shape(feats))


def item_sums(coords: Array, values: Array, batch_size: int) -> Array:
    """Sum of each batch item's rows, (B, C)."""
    total = np.zeros((batch_size, np.shape(values)[1]))
    for site, row in zip(np.asarray(coords).tolist(), np.asarray(values, np.float64)):
        total[site[0]] += row
    return total
