"""The frozen relation of the package docstring: taps, pairs and output supports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from mlxsparse.errors import DuplicateCoordinatesError, ShapeError
from mlxsparse.testing.oracle.sets import sorted_sites

Array = np.ndarray[Any, Any]
Triple = int | Sequence[int]


class Pair(NamedTuple):
    """Input row `in_row` reaches output row `out_row` through tap `tap`."""

    out_row: int
    in_row: int
    tap: int


def triple(value: Triple) -> tuple[int, int, int]:
    """An int for all three axes, or one value per axis."""
    x, y, z = (value, value, value) if isinstance(value, (int, np.integer)) else value
    return int(x), int(y), int(z)


def taps(kernel_size: Triple) -> list[tuple[int, int, int]]:
    """The kernel offsets (kx, ky, kz) in tap order: kz runs fastest."""
    kx, ky, kz = triple(kernel_size)
    return list(product(range(kx), range(ky), range(kz)))


def subm_padding(kernel_size: Triple, dilation: Triple = 1) -> tuple[int, int, int]:
    """The default padding of a submanifold convolution, ((K - 1) // 2) * d per axis."""
    return triple([((k - 1) // 2) * d for k, d in zip(triple(kernel_size), triple(dilation), strict=True)])


def sites_of(coords: Array) -> list[tuple[int, ...]]:
    coords = np.asarray(coords)
    if coords.ndim != 2 or coords.shape[1] != 4:
        raise ShapeError(f"coords must have shape (N, 4), got {coords.shape}")
    return [tuple(int(v) for v in row) for row in coords]


def _rows(coords: Array) -> dict[tuple[int, ...], int]:
    sites = sites_of(coords)
    rows = {site: row for row, site in enumerate(sites)}
    if len(rows) != len(sites):
        raise DuplicateCoordinatesError(f"coords names {len(sites) - len(rows)} sites twice")
    return rows


def reached(site: Sequence[int], tap: Sequence[int], s: Triple, p: Triple, d: Triple) -> tuple[int, ...]:
    """site * s - p + tap * d on each axis; the batch index stays."""
    batch, *xyz = site
    return (
        batch,
        *(c * a - b + k * e for c, k, a, b, e in zip(xyz, tap, triple(s), triple(p), triple(d), strict=True)),
    )


def conv_pairs(
    coords: Array,
    out_coords: Array,
    kernel_size: Triple,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
) -> list[Pair]:
    """All pairs with in = o * s - p + k * d, by output row, then by tap."""
    rows = _rows(coords)
    found = []
    for out_row, site in enumerate(sites_of(out_coords)):
        for t, tap in enumerate(taps(kernel_size)):
            in_row = rows.get(reached(site, tap, stride, padding, dilation))
            if in_row is not None:
                found.append(Pair(out_row, in_row, t))
    return found


def conv_transpose_pairs(
    coords: Array,
    out_coords: Array,
    kernel_size: Triple,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
) -> list[Pair]:
    """All pairs with o = in * s - p + k * d: those of the convolution from out_coords to coords, turned."""
    turned = conv_pairs(out_coords, coords, kernel_size, stride, padding, dilation)
    return [Pair(out_row=pair.in_row, in_row=pair.out_row, tap=pair.tap) for pair in turned]


def inside(site: Sequence[int], shape: Sequence[int] | None) -> bool:
    return shape is None or all(0 <= c < size for c, size in zip(site[1:], shape, strict=True))


def touched_support(
    coords: Array,
    kernel_size: Triple,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    spatial_shape: Triple | None = None,
) -> Array:
    """Every output site that some input reaches, sorted.

    With `spatial_shape` S, those inside [0, floor((S + 2p - d(K-1) - 1) / s) + 1).
    """
    kernel, s, p, d = triple(kernel_size), triple(stride), triple(padding), triple(dilation)
    bound = None
    if spatial_shape is not None:
        bound = [
            (size + 2 * p[a] - d[a] * (kernel[a] - 1) - 1) // s[a] + 1
            for a, size in enumerate(triple(spatial_shape))
        ]
    found = set()
    for batch, *xyz in sites_of(coords):
        for tap in taps(kernel):
            scaled = [xyz[a] + p[a] - tap[a] * d[a] for a in range(3)]  # o * s
            if all(scaled[a] % s[a] == 0 for a in range(3)):
                found.add((batch, *(scaled[a] // s[a] for a in range(3))))
    return sorted_sites(site for site in found if inside(site, bound))


def parent_support(coords: Array, stride: Triple) -> Array:
    """floor(c / s) of every site, sorted. A spatial shape cuts none: they lie in [0, ceil(S / s))."""
    s = triple(stride)
    return sorted_sites({(batch, *(xyz[a] // s[a] for a in range(3))) for batch, *xyz in sites_of(coords)})


def generative_support(
    coords: Array,
    kernel_size: Triple,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    spatial_shape: Triple | None = None,
) -> Array:
    """Every site that a transposed convolution reaches, sorted.

    With `spatial_shape` S, those inside [0, (S-1)s - 2p + d(K-1) + 1).
    """
    kernel, s, p, d = triple(kernel_size), triple(stride), triple(padding), triple(dilation)
    bound = None
    if spatial_shape is not None:
        bound = [
            (size - 1) * s[a] - 2 * p[a] + d[a] * (kernel[a] - 1) + 1
            for a, size in enumerate(triple(spatial_shape))
        ]
    found = {reached(site, tap, s, p, d) for site in sites_of(coords) for tap in taps(kernel)}
    return sorted_sites(site for site in found if inside(site, bound))


def output_support(
    coords: Array,
    kernel_size: Triple,
    stride: Triple,
    padding: Triple,
    dilation: Triple,
    support: str,
    out_coords: Array | None,
    spatial_shape: Triple | None,
) -> Array:
    """`out_coords` if given, else the support that `support` names."""
    if out_coords is not None:
        return np.asarray(out_coords)
    if support == "parents":
        return parent_support(coords, stride)
    return touched_support(coords, kernel_size, stride, padding, dilation, spatial_shape)
