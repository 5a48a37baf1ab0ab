"""Created coordinate sets as bits over their bounds: sorted by nature, no hash, no sort, nothing repeated.

A set is marked without reading anything; its count is a device array. Kernel maps of the marked set find a
row by counting bits. Memory and time grow with the cells of the box: `worthwhile` says where it is too empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from .kernel_coords import OwnMap, Triple
from .kernel_sites import Extent
from .kernel_tiles import tap_order
from .library import MAX_THREADS, blocks, check_coords, launch

BLOCK = 256  # cells whose ones are counted together
MAX_CELLS = 2**31 - BLOCK
CELLS_PER_SITE = 2048  # a box with more cells for each site of the input is left to sorting
FREE_CELLS = 1 << 20  # a box that is small anyway


class Geometry(NamedTuple):
    """How marked sites follow from a set (kernels/site_bits.metal)."""

    size: Triple
    stride: Triple
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    bounds: Triple | None = None  # none of them 0
    forward: bool = True


class Marked(NamedTuple):
    """A set of sites as bits over a box; a site's row is the number of ones before it."""

    bits: mx.array  # (8 B,) uint32
    before: mx.array  # (B,) int32 ones before each 256 cells within their 65536
    ends: mx.array  # (ceil(B / 256),) int32 ones up to the end of each 65536 cells
    found: mx.array  # (2,) int32: number of sites, and 1 if one lies outside (-2^30, 2^30)
    extent: Extent
    geometry: Geometry

    @property
    def total(self) -> mx.array:
        """Number of sites, int32."""
        return self.found[0]

    @property
    def outside(self) -> mx.array:
        """int32, 1 if a site lay outside."""
        return self.found[1]


def cells(extent: Extent) -> int:
    return math.prod(extent.span) * max(extent.batch_size, 1)


def takes(size: Triple, dilation: Triple) -> bool:
    """Whether the kernels take a kernel of this size: its taps lie less than 2^30 apart."""
    return all((k - 1) * d < 2**30 for k, d in zip(size, dilation))


def worthwhile(extent: Extent, rows: int) -> bool:
    """Whether a set reached from `rows` rows is marked as bits: its box is not too empty."""
    return extent.fits and cells(extent) <= min(MAX_CELLS, CELLS_PER_SITE * rows + FREE_CELLS)


def _dims(rows: int, g: Geometry, extent: Extent) -> list[int]:
    dims = [rows, int(g.forward), *g.size, *g.stride, *g.padding, *g.dilation, *(g.bounds or (0, 0, 0))]
    return [*dims, *extent.low, *extent.span, cells(extent)]


def marked(coords: mx.array, extent: Extent, geometry: Geometry) -> Marked:
    """The sites that a kernel reaches from (N, 4) coordinates; extent: their bounds (`reached_extent`)."""
    check_coords("coords", coords)
    n, count = coords.shape[0], blocks(cells(extent), BLOCK)
    dims = _dims(n, geometry, extent)
    groups = (blocks(n, MAX_THREADS), 1, 1)
    bits, status = launch("site_bits", [coords], dims, [(8 * count,), (8,)], groups, init=0)
    parts = blocks(count, MAX_THREADS)
    before, totals = launch("bit_counts", [bits], [count], [(count,), (parts,)], (parts, 1, 1))
    ends, found = launch("bit_ends", [totals, status], [parts], [(parts,), (2,)], (1, 1, 1))
    return Marked(bits, before, ends, found, extent, geometry)


def counted(sets: Sequence[Marked]) -> list[tuple[int, bool]]:
    """Number of sites of each set, and whether one lay outside. One wait for all."""
    found = sets[0].found if len(sets) == 1 else mx.concatenate([made.found for made in sets])
    return [(int(count), bool(outside)) for count, outside in np.array(found).reshape(-1, 2)]


def sites(made: Marked, capacity: int) -> mx.array:
    """The first `capacity` marked sites, sorted: (capacity, 4) int32, (-1, 0, 0, 0) past the last."""
    count = made.before.shape[0]
    dims = [count, capacity, *made.extent.low, *made.extent.span]
    groups = (blocks(max(count, capacity), MAX_THREADS), 1, 1)
    return launch("bit_sites", [made.bits, made.before, made.ends], dims, [(capacity, 4)], groups)[0]


def site_map(coords: mx.array, made: Marked, rows: int) -> mx.array:
    """Row of `coords` of each tap and of the first `rows` marked sites: (T, rows) int32, -1 none.

    Of a forward geometry it is the map's output side, of a transposed one its input side.
    """
    n, taps = coords.shape[0], math.prod(made.geometry.size)
    dims = [*_dims(n, made.geometry, made.extent), rows]
    inputs = [coords, made.bits, made.before, made.ends]
    groups = (blocks(n, MAX_THREADS), 1, 1)
    return launch("site_map", inputs, dims, [(taps, rows)], groups, init=-1)[0]


def submanifold_map(
    coords: mx.array, made: Marked, size: Triple, dilation: Triple = (1, 1, 1), active: int | None = None
) -> OwnMap:
    """Map of the marked sites `coords` onto themselves, centred, odd sizes. active: rows without padding."""
    n, taps = coords.shape[0], math.prod(size)
    bit, window = tap_order(size, n if active is None else active)
    dims = [n, *size, *dilation, *made.extent.low, *made.extent.span, cells(made.extent), window]
    groups = (blocks(n, MAX_THREADS), 1, 1)
    inputs = [coords, made.bits, made.before, made.ends, bit]
    return OwnMap(*launch("submanifold_bits", inputs, dims, [(taps, n), (n,)], groups))
