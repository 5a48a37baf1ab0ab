"""From a coarse lattice to given sites of a finer one, site by site in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor

import numpy as np

from mlxsparse.testing.oracle.relation import Array, Triple, conv_transpose_pairs, triple


def pool_transpose3d(
    coords: Array, feats: Array, out_coords: Array, kernel_size: Triple, stride: Triple | None = None
) -> Array:
    """Mean of the inputs with o = in * s + k, 0 where there is none."""
    s = kernel_size if stride is None else stride
    members: list[list[int]] = [[] for _ in range(len(out_coords))]
    for pair in conv_transpose_pairs(coords, out_coords, kernel_size, s):
        members[pair.out_row].append(pair.in_row)
    return _rows([{row: Fraction(1, len(m)) for row in m} for m in members], feats)


def upsample_nearest(coords: Array, feats: Array, out_coords: Array, scale: Triple) -> Array:
    """The value of the coarse site floor(o / scale), 0 where it is not there."""
    row_of = {tuple(site): row for row, site in enumerate(np.asarray(coords).tolist())}
    weights: list[dict[int, Fraction]] = []
    for batch, *xyz in np.asarray(out_coords).tolist():
        row = row_of.get((batch, *(c // s for c, s in zip(xyz, triple(scale)))))
        weights.append({} if row is None else {row: Fraction(1)})
    return _rows(weights, feats)


def trilinear_weights(coords: Array, out_coords: Array, scale: Triple) -> list[dict[int, Fraction]]:
    """Weight of each coarse row in each output: tents around coarse centres, renormalised."""
    weights: list[dict[int, Fraction]] = []
    row_of = {tuple(site): row for row, site in enumerate(np.asarray(coords).tolist())}
    for batch, *xyz in np.asarray(out_coords).tolist():
        centre = [(c + Fraction(1, 2)) / s - Fraction(1, 2) for c, s in zip(xyz, triple(scale))]
        found: dict[int, Fraction] = {}
        for step in product((0, 1), repeat=3):
            site = [floor(c) + k for c, k in zip(centre, step)]
            weight = Fraction(1)
            for c, near in zip(centre, site):
                weight *= 1 - abs(c - near)
            row = row_of.get((batch, *site))
            if row is not None and weight > 0:
                found[row] = weight
        total = sum(found.values())
        weights.append({row: weight / total for row, weight in found.items()})
    return weights


def upsample_trilinear(coords: Array, feats: Array, out_coords: Array, scale: Triple) -> Array:
    """Interpolated between the coarse voxel centres around each fine centre; 0 without any."""
    return _rows(trilinear_weights(coords, out_coords, scale), feats)


def _rows(weights: list[dict[int, Fraction]], feats: Array) -> Array:
    feats = np.asarray(feats, dtype=np.float64)
    out = np.zeros((len(weights), feats.shape[1]))
    for row, of in enumerate(weights):
        for source, weight in of.items():
            out[row] += float(weight) * feats[source]
    return out
