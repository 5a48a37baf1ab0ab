"""Created coordinate sets as bits over their bounds: sorted by nature, no hash, no sort, nothing repeated.

A set is marked without reading anything; its count is a device array. Kernel maps of the marked set find a
row by counting bits. Memory and time grow with the cells of the box: `worthwhile` says where it is too empty.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from .kernel_coords import CoordTable, OwnMap, Triple
from .kernel_sites import Extent
from .library import MAX_THREADS, SMALL, blocks, check_coords, launch, sequence
from .mail import send
from .tap_tiles import PLACES, TapTiles, tap_order

PER_STRETCH = 256  # blocks of 256 cells whose ones are counted together
STRETCH = 256 * PER_STRETCH
MAX_CELLS = 2**31 - STRETCH
MOST_SETS = 4  # that are marked together
WINDOW_ROWS = 2048  # of a threadgroup of kernels/window_rows.metal
MOST_WINDOW_TAPS = 31
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


Box: TypeAlias = "tuple[Extent, Geometry]"  # bounds of a set, and how it is reached


class Marked(NamedTuple):
    """A set of sites as bits over a box; a site's row is the number of ones before it."""

    bits: mx.array  # (8 B,) uint32
    before: mx.array  # (B,) int32 ones before each 256 cells within their 65536
    ends: mx.array  # (>= B / 256,) int32 ones up to the end of each 65536 cells
    found: mx.array  # (2,) int32: number of sites, and 1 if one lay outside the box or (-2^30, 2^30)
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


def _shape(g: Geometry, extent: Extent) -> list[int]:
    dims = [int(g.forward), *g.size, *g.stride, *g.padding, *g.dilation, *(g.bounds or (0, 0, 0))]
    return [*dims, *extent.low, *extent.span, cells(extent)]


@functools.lru_cache(maxsize=256)
def _side_by_side(sets: tuple[Box, ...]) -> tuple[mx.array, list[int], int]:
    """Shapes of sets for kernels/site_bits.metal; first and number of the totals of each; totals of all."""
    shapes: list[int] = []
    spans, start = [], 0
    for extent, geometry in sets:
        parts = blocks(cells(extent), STRETCH)
        shapes += [*_shape(geometry, extent), start * PER_STRETCH]
        spans += [start, parts]
        start += parts
    return mx.array(shapes, dtype=mx.int32), spans, start


def _ones(arrays: Sequence[mx.array], sets: int, start: int) -> Sequence[mx.array]:
    """Bits, before, totals and status of sets side by side, of coordinates and the shapes of the sets."""
    coords, shapes = arrays
    n, count = coords.shape[0], start * PER_STRETCH
    groups = (blocks(n, MAX_THREADS), 1, 1)
    words = [(8 * count,), (8,)]
    bits, status = launch("site_bits", [coords, shapes], [n, sets], words, groups, init=0)
    # Totals and ends are longer by what a short input of a kernel would be padded by.
    long = [(count,), (start + SMALL,)]
    before, totals = launch("bit_counts", [bits], [count], long, (start, 1, 1))
    return bits, before, totals, status


def _ones_and_facts(arrays: Sequence[mx.array], start: int, *dims: int) -> Sequence[mx.array]:
    """Bits and before of sets side by side, ends and facts of kernels/set_facts.metal."""
    *of_sets, table = arrays
    bits, before, totals, outside = _ones(of_sets, dims[0], start)
    shapes = [(totals.size,), (9 + 2 * dims[0],)]
    facts = launch("set_facts", [table, totals, outside], dims, shapes, (dims[0], 1, 1))
    return bits, before, *facts


def marked(coords: mx.array, extent: Extent, geometry: Geometry) -> Marked:
    """The sites that a kernel reaches from (N, 4) coordinates; extent: their bounds (`reached_extent`)."""
    check_coords("coords", coords)
    shape, (start, parts), count = _side_by_side(((extent, geometry),))
    bits, before, totals, status = _ones([coords, shape], 1, count)
    shapes = [(parts + SMALL,), (2,)]
    ends, found = launch("bit_ends", [totals, status], [start, parts], shapes, (1, 1, 1))
    return Marked(bits, before, ends, found, extent, geometry)


class Facts(NamedTuple):
    """What the host reads of a set and of sets that follow from it."""

    repeated: bool  # two rows are equal
    ends: tuple[list[int], list[int]]  # least and largest batch, x, y, z
    counts: list[tuple[int, bool]]  # sites of each marked set, and whether one lay outside


def counted(
    coords: mx.array,
    sets: Sequence[Box],
    table: CoordTable | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[list[Marked], Facts]:
    """As `marked`, at most MOST_SETS sets at once, and their counts; repeated and ends are the table's.

    One wait for all, before which `meanwhile` is called, whose work the GPU goes on with. Without a table
    repeated and ends mean nothing.
    """
    check_coords("coords", coords)
    status = no_status() if table is None else table.table
    shape, spans, start = _side_by_side(tuple(sets))
    dims = [len(sets), *spans, *[0] * (2 * (MOST_SETS - len(sets))), 0 if table is None else table.status]
    skipped = 0
    if sets:
        bits, before, ends, facts = sequence(_ones_and_facts, [coords, shape, status], start, *dims)
    else:  # the table's own rows of 16 words
        row, half = divmod(dims[-1], 2)
        facts, skipped = status[row:], 8 * half
    sent = send(facts)
    if meanwhile is not None:
        meanwhile()
    ((repeated, *found),) = (words[skipped:] for words in sent.read())
    high, low = found[:4], found[4:8]
    ends_of = [2**31 - 1 - v for v in low], [v - 2**31 for v in high]  # see kernels/coord_hash_insert.metal
    counts = [(found[8 + 2 * i], found[9 + 2 * i] != 0) for i in range(len(sets))]
    made = []
    for i, (extent, geometry) in enumerate(sets):
        if len(sets) > 1:
            first, last = spans[2 * i], spans[2 * i] + spans[2 * i + 1]
            cut = slice(first * PER_STRETCH, last * PER_STRETCH)
            whole = bits[8 * cut.start : 8 * cut.stop], before[cut], ends[first : last + SMALL]
        else:
            whole = bits, before, ends
        made.append(Marked(*whole, facts[9 + 2 * i : 11 + 2 * i].astype(mx.int32), extent, geometry))
    return made, Facts(repeated != 0, ends_of, counts)


@functools.cache
def no_status() -> mx.array:
    return mx.zeros((16,), mx.uint32)


def sites(made: Marked, capacity: int) -> mx.array:
    """The first `capacity` marked sites, sorted: (capacity, 4) int32, (-1, 0, 0, 0) past the last."""
    count = made.before.shape[0]
    dims = [count, capacity, *made.extent.low, *made.extent.span]
    groups = (blocks(max(count, capacity), MAX_THREADS), 1, 1)
    return launch("bit_sites", [made.bits, made.before, made.ends], dims, [(capacity, 4)], groups)[0]


def site_map(coords: mx.array, made: Marked, rows: int, *, by_row: bool = False) -> mx.array:
    """Row of `coords` of each tap and of the first `rows` marked sites: (T, rows), by row (rows, T), -1 none.

    Of a forward geometry it is the map's output side, of a transposed one its input side.
    """
    n, taps = coords.shape[0], math.prod(made.geometry.size)
    dims = [n, *_shape(made.geometry, made.extent), rows, int(by_row)]
    inputs = [coords, made.bits, made.before, made.ends]
    groups = (blocks(n, MAX_THREADS), 1, 1)
    return launch("site_map", inputs, dims, [(rows, taps) if by_row else (taps, rows)], groups, init=-1)[0]


class InWindows(NamedTuple):
    """Which of M windows of K = s each row of a set lies in, and where there (kernels/window_rows.metal)."""

    window: mx.array  # (N,) int32 row of the window, -1 none
    tap: mx.array  # (N,) int32, T where there is none
    rows: mx.array  # (P,) int32 of TapTiles of the windows as they are
    masks: mx.array  # (P / 32, 1) uint32 likewise
    taps: int
    windows: int


def in_windows(coords: mx.array, made: Marked, stride: Triple, rows: int) -> InWindows:
    """Of `coords` and the first `rows` of the marked windows, at most MOST_WINDOW_TAPS taps."""
    n, taps, places = coords.shape[0], math.prod(stride), blocks(rows, PLACES) * PLACES
    dims = [n, *stride, *made.extent.low, *made.extent.span, cells(made.extent), rows, places]
    shapes = [(n,), (n,), (places,), (places // 32, 1)]
    groups = (blocks(max(n, places), MAX_THREADS), 1, 1)
    inputs = [coords, made.bits, made.before, made.ends]
    window, tap, taken, masks = launch("window_rows", inputs, dims, shapes, groups)
    return InWindows(window, tap, taken, masks, taps, rows)


def windows_output(found: InWindows, active: int | None = None) -> TapTiles:
    """Output side of the map of a set to windows that tile the lattice.

    As tap_tiles(..., sort=False): small windows share most of their taps.
    """
    n, taps, m = found.window.shape[0], found.taps, found.windows
    shape = (found.rows.shape[0] // 32, taps, 32)
    inputs, groups = [found.window, found.tap], (blocks(n, MAX_THREADS), 1, 1)
    tiled = launch("window_outputs", inputs, [n, taps], [shape], groups, init=-1)[0]
    return TapTiles(tiled, found.rows, found.masks, n, m, m if active is None else min(active, m))


def windows_input(found: InWindows, active: int | None = None) -> TapTiles:
    """Input side of the ordered map of a set to windows that tile the lattice.

    As tap_tiles of the flipped map, without a sort: a row has one tap, and those of each tap start at a
    multiple of PLACES.
    """
    n, taps = found.window.shape[0], found.taps
    groups, places = blocks(n, WINDOW_ROWS), (n // PLACES + taps + 1) * PLACES if n else 0
    count = (taps + 1) * groups
    totals = launch("window_totals", [found.tap], [n, taps, groups], [(max(count, SMALL),)], (groups, 1, 1))
    shapes = [(count + SMALL,), (2,)]
    ends, _ = launch("bit_ends", [*totals, no_status()], [0, count], shapes, (1, 1, 1))
    dims, ordered = [n, taps, groups, places], [(places // 32, 1, 32), (places,), (places // 32, 1)]
    inputs = [found.window, found.tap, ends]
    tiled, order, masks = launch("window_tiles", inputs, dims, ordered, (groups, 1, 1))
    return TapTiles(tiled, order, masks, found.windows, n, n if active is None else min(active, n), taps)


def submanifold_map(
    coords: mx.array,
    made: Marked,
    size: Triple,
    dilation: Triple = (1, 1, 1),
    *,
    by_row: bool = False,
) -> OwnMap:
    """Map of the marked sites `coords` onto themselves, centred, odd sizes."""
    n, taps = coords.shape[0], math.prod(size)
    bits, nodes, none = tap_order(size)
    dims = [n, *size, *dilation, *made.extent.low, *made.extent.span, cells(made.extent)]
    dims += [int(by_row), nodes, none]
    groups = (blocks(n, MAX_THREADS), 1, 1)
    inputs = [coords, made.bits, made.before, made.ends, bits]
    shapes = [(n, taps) if by_row else (taps, n), (n,)]
    return OwnMap(*launch("submanifold_bits", inputs, dims, shapes, groups))
