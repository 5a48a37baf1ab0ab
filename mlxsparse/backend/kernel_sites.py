"""Created coordinate sets on the GPU, sorted, without a hash: sites as numbers, sort, first of each kind.

One count is read for each new set, none where a capacity is given.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import mlx.core as mx

from ..errors import CapacityError
from .kernel_coords import NeighbourMap, Triple, flagged, floor_divide
from .library import MAX_THREADS, blocks, check_coords, filled, launch, read_ints
from .mail import send
from .running import running_sums

MAX_CANDIDATES = 2**31 - 1
MAX_KEY = 2**63  # keys stay below it


class Extent(NamedTuple):
    """Bounds of a set's coordinates: low <= c < low + span on each axis; batch items."""

    low: Triple
    span: Triple
    batch_size: int

    @property
    def fits(self) -> bool:
        """Whether sites can be numbered in 63 bits, and the numbers handed to a kernel."""
        ends = [*self.low, *self.span]
        return math.prod(self.span) * max(self.batch_size, 1) < MAX_KEY and all(
            -(2**31) <= v < 2**31 for v in ends
        )


class Reached(NamedTuple):
    """Sites that a kernel reaches, with what the map of windows is made from."""

    sites: mx.array  # (M, 4) int32, sorted, (-1, 0, 0, 0) past the last
    total: mx.array  # int32, which passes M where a capacity was too small
    outside: int | mx.array  # uint32, 1 if a site lies outside (-2^30, 2^30)
    order: mx.array  # (candidates,) int32 candidates sorted by site
    places: mx.array  # (candidates,) int32 site + 1 of each


def extent_of(coords: mx.array, batch_size: int) -> Extent:
    """Bounds of (n, 4) int32 coordinates. Waits for them."""
    if coords.shape[0] == 0:
        return Extent((0, 0, 0), (1, 1, 1), batch_size)
    low, high = send(coords.min(axis=0), coords.max(axis=0)).read()
    return extent_between((low, high), batch_size)


def extent_between(ends: tuple[list[int], list[int]], batch_size: int) -> Extent:
    """From the least and the largest (batch, x, y, z)."""
    (_, x, y, z), (_, right, back, top) = ends
    return Extent((x, y, z), (right - x + 1, back - y + 1, top - z + 1), batch_size)


@functools.lru_cache(maxsize=1024)
def reached_extent(
    extent: Extent, size: Triple, stride: Triple, padding: Triple, dilation: Triple, forward: bool
) -> Extent:
    """Bounds of what a kernel reaches from a set with bounds `extent`."""
    low, span = [], []
    for c, n, k, s, p, d in zip(extent.low, extent.span, size, stride, padding, dilation):
        if forward:
            first, last = (c + p - (k - 1) * d) // s, (c + n - 1 + p) // s
        else:
            first, last = c * s - p, (c + n - 1) * s - p + (k - 1) * d
        low.append(first)
        span.append(max(last - first + 1, 1))
    return Extent((low[0], low[1], low[2]), (span[0], span[1], span[2]), extent.batch_size)


def box_of(coords: mx.array, live: mx.array) -> mx.array:
    """(2, 3) int32 least and largest x, y, z of the live rows; zeros where there are none. Reads nothing."""
    if coords.shape[0] == 0:
        return mx.zeros((2, 3), mx.int32)
    sites = coords[:, 1:]
    low = mx.where(live, sites, 2**30).min(axis=0)
    high = mx.where(live, sites, -(2**30)).max(axis=0)
    return mx.where(low > high, 0, mx.stack([low, high])).astype(mx.int32)


def reached_box(
    box: mx.array, size: Triple, stride: Triple, padding: Triple, dilation: Triple, forward: bool
) -> mx.array:
    """`reached_extent` of a (2, 3) box on the device."""
    reach = [(k - 1) * d for k, d in zip(size, dilation)]
    none = [0, 0, 0]
    pad = mx.array(padding, mx.int32)
    if forward:
        ends = box + pad - mx.array([reach, none], mx.int32)
        return ends if stride == (1, 1, 1) else floor_divide(ends, stride)
    return box * mx.array(stride, mx.int32) - pad + mx.array([none, reach], mx.int32)


def box_is_wide(box: mx.array, batch_size: int) -> mx.array:
    """bool: the box has too many cells to be numbered (or wrapped round)."""
    span = (box[1] - box[0]).astype(mx.float32) + 1
    return (mx.prod(span) * max(batch_size, 1) > 2.0**62) | mx.any(span < 1)


def candidates(size: Triple, stride: Triple, dilation: Triple, forward: bool) -> Triple:
    """Candidates of one site along each axis (kernels/site_keys.metal)."""
    x, y, z = (-(-k // s) if forward and d == 1 else k for k, s, d in zip(size, stride, dilation))
    return x, y, z


def reached(
    coords: mx.array,
    extent: Extent | mx.array,
    size: Triple,
    stride: Triple,
    padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    bounds: Triple | None = None,
    *,
    forward: bool = True,
    capacity: int | None = None,
) -> Reached:
    """Sites o of ``c = o * s - p + k * d`` (forward) or ``o = c * s - p + k * d`` in [0, bounds): sorted.

    coords (N, 4) int32, extent of what is reached (`reached_extent`), which must fit, or its (2, 3) box on
    the device. capacity: rows of the result; without it their count is read.
    """
    check_coords("coords", coords)
    each = candidates(size, stride, dilation, forward)
    n = coords.shape[0] * math.prod(each)
    if n > MAX_CANDIDATES:
        raise CapacityError(
            f"{coords.shape[0]} sites times {math.prod(each)} taps are too many; split the input"
        )
    if n == 0:
        sites = mx.broadcast_to(mx.array([-1, 0, 0, 0], mx.int32), (capacity, 4)) if capacity else None
        none = filled((0,), 0, mx.int32)
        zero = mx.array(0, mx.int32)
        return Reached(
            filled((0, 4), 0, mx.int32) if sites is None else sites, zero, mx.array(0, mx.uint32), none, none
        )
    limits = bounds or (0, 0, 0)
    # A bound of 0 admits nothing, which the kernel would read as no bound.
    closed = bounds is not None and 0 in bounds
    dims = [coords.shape[0], int(forward), *each, *size, *stride, *padding, *dilation, *limits]
    box: list[int | mx.array]
    if isinstance(extent, mx.array):
        box, cells = [extent[0], mx.maximum(extent[1] - extent[0] + 1, 1)], MAX_KEY
    else:
        box, cells = [*extent.low, *extent.span], math.prod(extent.span) * max(extent.batch_size, 1)
    groups = (blocks(n, MAX_THREADS), 1, 1)
    keys, status = launch("site_keys", [coords], [*dims, *box], [(n,), (8,)], groups, init=0)
    if closed:
        keys = mx.bitwise_invert(mx.zeros_like(keys))
    live: mx.array | None = None
    if capacity is None and forward and math.prod(each) > 1:  # most candidates of a stride do not exist
        live = flagged(keys != mx.bitwise_invert(mx.array(0, mx.uint64)))
        n = live.shape[0]
        if n == 0:
            none = filled((0,), 0, mx.int32)
            return Reached(filled((0, 4), 0, mx.int32), mx.array(0, mx.int32), status[0], none, none)
        keys = keys[live]
    # Half as many bits are sorted faster; all ones stay the largest.
    order = mx.argsort(keys.astype(mx.uint32) if cells < 2**32 else keys).astype(mx.int32)
    ranked = keys[order]
    flags = launch("key_flags", [ranked], [n], [(n,)], (blocks(n, MAX_THREADS), 1, 1))[0]
    places = running_sums(flags)
    outside: int | mx.array = status[0]
    if capacity is None:
        capacity, outside = read_ints(places[-1], status[0])
    groups = (blocks(max(n, capacity), MAX_THREADS), 1, 1)
    sites = launch("key_sites", [ranked, places], [n, capacity, *box], [(capacity, 4)], groups)[0]
    return Reached(sites, places[-1], outside, order if live is None else live[order], places)


def window_map(coords: mx.array, made: Reached, stride: Triple) -> NeighbourMap:
    """Map of K = s, p = 0, d = 1 from `coords` to the sites that `reached` made of them."""
    n, m, taps = coords.shape[0], made.sites.shape[0], math.prod(stride)
    dims = [n, m, *stride]
    shapes = [(taps, m), (taps, n)]
    groups = (blocks(n, MAX_THREADS), 1, 1)
    return NeighbourMap(
        *launch("window_map", [coords, made.order, made.places], dims, shapes, groups, init=-1)
    )
