"""Chosen sites, sets of sites, joins, and the points of voxels, by lists and dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlxsparse.testing.oracle.sets import _joined_sites, _on_sites, sorted_sites

Array = np.ndarray[Any, Any]


def join(
    coords_a: Array,
    feats_a: Array,
    coords_b: Array,
    feats_b: Array,
    combine: Callable[[Array, Array], Array],
    how: str,
) -> tuple[Array, Array]:
    """combine(a, b) over the sites of an "inner", "left" or "outer" join; a missing side is 0."""
    out = _joined_sites(coords_a, coords_b, how)
    return out, combine(_on_sites(out, coords_a, feats_a), _on_sites(out, coords_b, feats_b))


def crop_rows(coords: Array, lo: Sequence[int], hi: Sequence[int]) -> list[int]:
    """Rows of the sites with lo <= (x, y, z) < hi."""
    return [
        row
        for row, (_, *xyz) in enumerate(np.asarray(coords).tolist())
        if all(low <= c < high for low, c, high in zip(lo, xyz, hi, strict=True))
    ]


def topk_rows(coords: Array, scores: Array, k: int, per_batch: bool = True) -> list[int]:
    """Rows of the k largest scores, of each batch item or of all, ascending; of equals the lower rows."""
    items: dict[int, list[int]] = {}
    for row, site in enumerate(np.asarray(coords).tolist()):
        items.setdefault(site[0] if per_batch else 0, []).append(row)
    chosen: list[int] = []
    for rows in items.values():
        chosen += sorted(rows, key=lambda row: (-float(scores[row]), row))[:k]
    return sorted(chosen)


def lookup(coords: Array, wanted: Array) -> list[int]:
    """Row of each wanted site; -1 where there is none."""
    rows = {tuple(site): row for row, site in enumerate(np.asarray(coords).tolist())}
    return [rows.get(tuple(site), -1) for site in np.asarray(wanted).tolist()]


def union(a: Array, b: Array) -> Array:
    """Sites of a or b, sorted."""
    return sorted_sites({tuple(site) for side in (a, b) for site in np.asarray(side).tolist()})


def intersection(a: Array, b: Array) -> Array:
    """Sites of both a and b, sorted."""
    left, right = ({tuple(site) for site in np.asarray(side).tolist()} for side in (a, b))
    return sorted_sites(left & right)


def mode(point_to_voxel: Array, labels: Array, voxels: int) -> list[int]:
    """Most frequent label of each voxel, of equals the smallest; -1 is no voxel, no label, no vote."""
    votes = [Counter[int]() for _ in range(voxels)]
    for voxel, label in zip(point_to_voxel.tolist(), labels.tolist(), strict=True):
        if voxel >= 0 and label >= 0:
            votes[voxel][label] += 1
    return [min(v, key=lambda label: (-v[label], label)) if v else -1 for v in votes]


def collect(point_to_voxel: Array, feats: Array, max_points: int, voxels: int) -> tuple[Array, list[int]]:
    """(V, max_points, C) features of the first points of each voxel, 0 past them, and their numbers."""
    found = np.zeros((voxels, max_points, np.shape(feats)[1]))
    counts = [0] * voxels
    for voxel, row in zip(point_to_voxel.tolist(), np.asarray(feats, dtype=np.float64), strict=True):
        if voxel >= 0 and counts[voxel] < max_points:
            found[voxel, counts[voxel]] = row
            counts[voxel] += 1
    return found, counts
