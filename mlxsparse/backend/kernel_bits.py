"""Created coordinate sets as bits over their bounds: sorted by nature, no hash, no sort, nothing repeated.

A set is marked without reading anything; its count is a device array. Kernel maps of the marked set find a
row by counting bits. Memory and time grow with the cells of the box: `worthwhile` says where it is too empty.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from .kernel_coords import NeighbourMap, Triple, running_sums
from .kernel_sites import Extent
from .library import MAX_GRID_YZ, MAX_THREADS, blocks, check_coords, launch

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
    outside: mx.array  # uint32, 1 if a site lies outside (-2^30, 2^30)
    extent: Extent
    geometry: Geometry

    @property
    def total(self) -> mx.array:
        """Number of sites, int32."""
        return self.ends[-1]


def cells(extent: Extent) -> int:
    return math.prod(extent.span) * max(extent.batch_size, 1)


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
    return Marked(bits, before, running_sums(totals), status[0], extent, geometry)


def sites(made: Marked, capacity: int) -> mx.array:
    """The first `capacity` marked sites, sorted: (capacity, 4) int32, (-1, 0, 0, 0) past the last."""
    count = made.before.shape[0]
    dims = [count, capacity, *made.extent.low, *made.extent.span]
    groups = (blocks(max(count, capacity), MAX_THREADS), 1, 1)
    return launch("bit_sites", [made.bits, made.before, made.ends], dims, [(capacity, 4)], groups)[0]


def site_map(coords: mx.array, made: Marked, rows: int) -> NeighbourMap:
    """Kernel map between `coords`, from which the set was marked, and the first `rows` marked sites.

    Of a forward geometry nbr is (T, rows) and back (T, N); of a transposed one nbr is (T, N).
    """
    n, taps = coords.shape[0], math.prod(made.geometry.size)
    dims = [*_dims(n, made.geometry, made.extent), rows]
    inputs = [coords, made.bits, made.before, made.ends]
    groups = (blocks(n, MAX_THREADS), 1, 1)
    source, reached = launch("site_map", inputs, dims, [(taps, rows), (taps, n)], groups, init=-1)
    return NeighbourMap(source, reached) if made.geometry.forward else NeighbourMap(reached, source)


def submanifold_map(coords: mx.array, made: Marked, size: Triple, dilation: Triple = (1, 1, 1)) -> mx.array:
    """Map of the marked sites `coords` onto themselves, centred, odd sizes: (T, M) int32."""
    n, taps = coords.shape[0], math.prod(size)
    dims = [n, *size, *dilation, *made.extent.low, *made.extent.span, cells(made.extent)]
    groups = (blocks(n, MAX_THREADS), min(size[0] * size[1] // 2 + 1, MAX_GRID_YZ), 1)
    inputs = [coords, made.bits, made.before, made.ends]
    return launch("submanifold_bits", inputs, dims, [(taps, n)], groups, init=-1)[0]
