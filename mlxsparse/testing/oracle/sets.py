"""Coordinate sets as dictionaries: merging rows, joining two tensors by value, dense arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mlxsparse.errors import CoordinateRangeError, IdentityError

Array = np.ndarray[Any, Any]

REDUCE: dict[str, Callable[[Array], Array]] = {
    "sum": lambda rows: rows.sum(axis=0),
    "mean": lambda rows: rows.mean(axis=0),
    "max": lambda rows: rows.max(axis=0),
    "min": lambda rows: rows.min(axis=0),
    "first": lambda rows: rows[0],
}


def sorted_sites(sites: Iterable[Sequence[int]]) -> Array:
    """Sites as an (N, 4) int64 array, sorted by (batch, x, y, z)."""
    return np.array(sorted(tuple(site) for site in sites), dtype=np.int64).reshape(-1, 4)


def _by_site(coords: Array, feats: Array) -> dict[tuple[int, ...], list[Array]]:
    rows: dict[tuple[int, ...], list[Array]] = {}
    for site, row in zip(
        np.asarray(coords).reshape(-1, 4).tolist(), np.asarray(feats, dtype=np.float64), strict=True
    ):
        rows.setdefault(tuple(site), []).append(row)
    return rows


def coalesce(coords: Array, feats: Array, reduce: str = "sum") -> tuple[Array, Array]:
    """One row per site, sorted; rows of one site merged by sum, mean, max, min or first."""
    rows = _by_site(coords, feats)
    out = sorted_sites(rows)
    merged = [REDUCE[reduce](np.stack(rows[tuple(site)])) for site in out.tolist()]
    return out, np.array(merged, dtype=np.float64).reshape(len(out), np.shape(feats)[1])


def _joined_sites(a: Array, b: Array, join: str) -> Array:
    left = [tuple(site) for site in np.asarray(a).tolist()]
    right = [tuple(site) for site in np.asarray(b).tolist()]
    if join == "left":
        return np.array(left, dtype=np.int64).reshape(-1, 4)
    if join == "inner":
        return sorted_sites(set(left) & set(right))
    if join == "outer":
        return sorted_sites(set(left) | set(right))
    if left != right:
        raise IdentityError("a strict join needs the same rows on both sides")
    return np.array(left, dtype=np.int64).reshape(-1, 4)


def _on_sites(sites: Array, coords: Array, feats: Array) -> Array:
    rows = _by_site(coords, feats)
    zero = np.zeros(np.shape(feats)[1])
    found = [rows.get(tuple(site), [zero])[0] for site in sites.tolist()]
    return np.array(found, dtype=np.float64).reshape(len(sites), np.shape(feats)[1])


def add(
    coords_a: Array, feats_a: Array, coords_b: Array, feats_b: Array, join: str = "strict"
) -> tuple[Array, Array]:
    """Sum by site over the joined sites; a side without the site counts as 0."""
    out = _joined_sites(coords_a, coords_b, join)
    return out, _on_sites(out, coords_a, feats_a) + _on_sites(out, coords_b, feats_b)


def cat(
    coords_a: Array, feats_a: Array, coords_b: Array, feats_b: Array, join: str = "strict"
) -> tuple[Array, Array]:
    """Channels of a, then of b, over the joined sites; a side without the site is 0."""
    out = _joined_sites(coords_a, coords_b, join)
    return out, np.concatenate([_on_sites(out, coords_a, feats_a), _on_sites(out, coords_b, feats_b)], axis=1)


def dense(
    coords: Array,
    feats: Array,
    shape: Sequence[int],
    origin: Sequence[int] = (0, 0, 0),
    fill: float = 0.0,
    batch_size: int | None = None,
) -> Array:
    """(B, X, Y, Z, C) with site c at c - origin and `fill` where no site is."""
    coords = np.asarray(coords).reshape(-1, 4)
    size = int(coords[:, 0].max(initial=-1)) + 1 if batch_size is None else batch_size
    array = np.full((size, *shape, np.shape(feats)[1]), fill, dtype=np.float64)
    for (batch, *xyz), row in zip(coords.tolist(), np.asarray(feats, dtype=np.float64), strict=True):
        at = [c - o for c, o in zip(xyz, origin, strict=True)]
        if not all(0 <= c < n for c, n in zip(at, shape, strict=True)):
            raise CoordinateRangeError(
                f"site {xyz} lies outside shape {tuple(shape)} at origin {tuple(origin)}"
            )
        cell = (batch, *at)
        array[cell] = row
    return array


def from_dense(array: Array) -> tuple[Array, Array]:
    """Sites of (B, X, Y, Z, C) where any channel differs from 0, sorted, and their features."""
    array = np.asarray(array)
    coords = sorted_sites(site for site in np.ndindex(array.shape[:4]) if np.any(array[site] != 0))
    feats = np.array([array[tuple(site)] for site in coords.tolist()], dtype=np.float64)
    return coords, feats.reshape(len(coords), array.shape[4])
