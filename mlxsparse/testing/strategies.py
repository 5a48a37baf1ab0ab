"""Hypothesis strategies for sparse inputs: coordinate sets, features, convolution geometries, capacities.

Everything drawn is NumPy: coordinates int32 (N, 4) = (batch, x, y, z) without duplicates, in arbitrary row
order; features float32 (N, C). Needs the `testing` extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from mlxsparse.errors import ShapeError

__all__ = [
    "BlockMask",
    "ConvGeometry",
    "Sites",
    "block_masks",
    "capacities",
    "conv_geometries",
    "coordinate_sets",
    "features",
    "padded",
    "permutations",
    "sites",
]

Array = np.ndarray[Any, Any]
Draw = st.DrawFn
Axes = tuple[int, int, int]

LIMIT = 2**30  # |x| < LIMIT is what the library accepts
MARGIN = 64  # how far a kernel may reach past a far corner and stay within it
SMALL = 96  # entries of an array that are drawn, and so shrink, one by one


def _array(found: Sequence[tuple[int, ...]]) -> Array:
    return np.array(found, dtype=np.int32).reshape(-1, 4)


def _scattered(
    max_sites: int, batches: st.SearchStrategy[int], span: int, min_sites: int = 0
) -> st.SearchStrategy[Array]:
    axis = st.integers(-span, span)
    rows = st.tuples(batches, axis, axis, axis)
    return st.lists(rows, min_size=min_sites, max_size=max_sites, unique=True).map(_array)


def _single(batches: st.SearchStrategy[int], span: int) -> st.SearchStrategy[Array]:
    axis = st.integers(-span, span)
    return st.tuples(batches, axis, axis, axis).map(lambda site: _array([site]))


@st.composite
def _blocks(draw: Draw, max_sites: int, batches: st.SearchStrategy[int], span: int) -> Array:
    """A dense box with its rows shuffled, so that every tap of a small kernel is met."""
    batch = draw(batches)
    size = [draw(st.integers(1, min(3, 2 * span + 1))) for _ in range(3)]
    low = [draw(st.integers(-span, span + 1 - side)) for side in size]
    box = [(batch, *(low[a] + at[a] for a in range(3))) for at in product(*map(range, size))]
    return _array(draw(st.permutations(box))[:max_sites])


@st.composite
def _far(draw: Draw, max_sites: int, batches: st.SearchStrategy[int], span: int, min_sites: int) -> Array:
    """The same sites near several far corners, up to those of the range: nothing may wrap or alias.

    They shrink to corners side by side.
    """
    edge = draw(st.sampled_from([2 * min(span, 3) + 1, 2**19, 2**20, 2**21, LIMIT - MARGIN]))
    corner = st.tuples(*[st.sampled_from([0, edge, -edge])] * 3)
    corners = draw(st.lists(corner, min_size=2, max_size=3, unique=True))
    count = -(-max_sites // len(corners))
    near = draw(_scattered(count, batches, min(span, 3), min(count, -(-min_sites // len(corners)))))
    moved = [(b, x + dx, y + dy, z + dz) for b, x, y, z in near.tolist() for dx, dy, dz in corners]
    return _array(moved[:max_sites])


def coordinate_sets(
    max_sites: int = 20, batch_size: int = 3, span: int = 5, far: bool = True, min_sites: int = 0
) -> st.SearchStrategy[Array]:
    """Coordinate sets: none, one, scattered, dense blocks, far corners; batches interleaved, some left empty.

    Args:
        max_sites: largest number of rows.
        batch_size: batch indices are below it; a set may leave any of them out.
        span: coordinates lie in [-span, span], except at far corners.
        far: whether to draw sets near corners far out too, up to +-(2^30 - 64).
        min_sites: smallest number of rows.
    """
    batches = st.integers(0, batch_size - 1)
    families = [_scattered(max_sites, batches, span, min_sites)]
    if min_sites <= 8:  # of more sites few boxes are large enough
        families.append(_blocks(max_sites, batches, span))
    if min_sites <= 1 <= max_sites:
        families.append(_single(batches, span))
    if far:
        families.append(_far(max_sites, batches, span, min_sites))
    return st.one_of(families).filter(lambda coords: len(coords) >= min_sites)


def _bytes(draw: Draw, count: int) -> Array:
    """uint8 (count,), of which the first SMALL shrink one by one; the rest are drawn as a seed.

    One draw of fixed size: entries keep their values where an array is made smaller. Its end is the array's
    start, as 0s shrink towards its start.
    """
    few = np.frombuffer(draw(st.binary(min_size=SMALL, max_size=SMALL)), np.uint8)[::-1]
    if count <= SMALL:
        return few[:count]
    rng = np.random.default_rng(draw(st.integers(0, 2**16 - 1)))
    return np.concatenate([few, rng.integers(0, 256, count - SMALL, dtype=np.uint8)])


@st.composite
def features(draw: Draw, rows: int, channels: int, integers: bool = True) -> Array:
    """float32 (rows, channels): small integers, whose sums are exact, or standard normal values.

    Integers of the first 96 entries shrink to 0 one by one; normal values are drawn as a seed.
    """
    if integers:
        number = _bytes(draw, rows * channels).reshape(rows, channels) % 9
        return np.array([0, 1, -1, 2, -2, 3, -3, 4, -4], np.float32)[number]
    rng = np.random.default_rng(draw(st.integers(0, 2**16 - 1)))
    return rng.standard_normal((rows, channels)).astype(np.float32)


class Sites(NamedTuple):
    """Coordinates (N, 4) and features (N, C) of one drawn input."""

    coords: Array
    feats: Array


@st.composite
def sites(
    draw: Draw,
    channels: int | None = None,
    integers: bool = True,
    max_sites: int = 20,
    batch_size: int = 3,
    span: int = 5,
    far: bool = True,
    min_sites: int = 0,
) -> Sites:
    """A coordinate set with features of `channels` channels (1 to 4 if None)."""
    coords = draw(coordinate_sets(max_sites, batch_size, span, far, min_sites))
    width = draw(st.integers(1, 4)) if channels is None else channels
    return Sites(coords, draw(features(len(coords), width, integers)))


@dataclass(frozen=True)
class ConvGeometry:
    """Per-axis geometry and channel counts of one convolution."""

    kernel_size: Axes
    stride: Axes
    padding: Axes
    dilation: Axes
    groups: int
    in_channels: int
    out_channels: int

    @property
    def weight_shape(self) -> tuple[int, int, int, int, int]:
        """(Co, Kx, Ky, Kz, Ci / groups)."""
        return (self.out_channels, *self.kernel_size, self.in_channels // self.groups)

    @property
    def where(self) -> dict[str, Axes]:
        """stride, padding and dilation as keyword arguments."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    def weight(self, seed: int, integers: bool = True) -> Array:
        """A float32 weight: small integers, or normal values."""
        rng = np.random.default_rng(seed)
        if integers:
            return rng.integers(-3, 4, size=self.weight_shape).astype(np.float32)
        return rng.standard_normal(self.weight_shape).astype(np.float32)

    def bias(self, seed: int) -> Array:
        """A float32 bias (Co,) of small integers."""
        return np.random.default_rng(seed + 1).integers(-3, 4, size=self.out_channels).astype(np.float32)


@st.composite
def conv_geometries(
    draw: Draw, max_kernel: int = 3, max_stride: int = 3, max_padding: int = 2, max_dilation: int = 2
) -> ConvGeometry:
    """Geometries that differ per axis, even and odd kernels; groups of 1, several, or depthwise."""

    def axes(low: int, high: int) -> Axes:
        axis = st.integers(low, high)
        same = axis.map(lambda value: (value, value, value))
        return draw(st.one_of(same, st.tuples(axis, axis, axis)))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group = draw(st.integers(1, 3)) if groups == 1 else draw(st.integers(1, 2))
    return ConvGeometry(
        kernel_size=axes(1, max_kernel),
        stride=axes(1, max_stride),
        padding=axes(0, max_padding),
        dilation=axes(1, max_dilation),
        groups=groups,
        in_channels=groups * per_group,
        out_channels=groups * draw(st.integers(1, 2)),
    )


def permutations(rows: int) -> st.SearchStrategy[Array]:
    """A row order of `rows` rows."""
    return st.permutations(range(rows)).map(lambda order: np.array(order, dtype=np.int64))


def capacities(rows: int, extra: int = 9) -> st.SearchStrategy[int]:
    """A capacity of at least `rows` and at most `rows + extra`."""
    return st.integers(rows, rows + extra)


def padded(coords: Array, feats: Array, capacity: int, fill: float = 0.0) -> Sites:
    """The rows followed by padding up to `capacity`: coordinates (-1, 0, 0, 0), features `fill`."""
    extra = capacity - len(coords)
    if extra < 0:
        raise ShapeError(f"capacity={capacity} is below the {len(coords)} rows of coords")
    rows = np.tile(np.array([[-1, 0, 0, 0]], dtype=np.int32), (extra, 1))
    rest = np.full((extra, feats.shape[1]), fill, dtype=feats.dtype)
    return Sites(np.concatenate([coords, rows]), np.concatenate([feats, rest]))


class BlockMask(NamedTuple):
    """Which blocks of an (M, N) matrix per head are stored: bool (H, R, C), and the block's sides."""

    mask: Array
    block: tuple[int, int]
    shape: tuple[int, int]


@st.composite
def block_masks(draw: Draw, max_heads: int = 3, max_side: int = 5, max_block: int = 6) -> BlockMask:
    """Masks of any density, some with empty rows, columns or heads; rectangular blocks, ragged edges."""
    grid = (draw(st.integers(1, max_heads)), draw(st.integers(1, max_side)), draw(st.integers(1, max_side)))
    density = draw(st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]))
    mask = _bytes(draw, int(np.prod(grid))).reshape(grid) >= 256 * (1 - density)
    for axis, count in enumerate(grid):
        if draw(st.booleans()):  # one that stores nothing
            np.moveaxis(mask, axis, 0)[draw(st.integers(0, count - 1))] = False
    if draw(st.booleans()):  # rows with the lists of the row before
        mask[:, 1:] = mask[:, :1]
    block = (draw(st.integers(1, max_block)), draw(st.integers(1, max_block)))
    missing = [draw(st.integers(0, b - 1)) for b in block]
    shape = (grid[1] * block[0] - missing[0], grid[2] * block[1] - missing[1])
    return BlockMask(mask, block, shape)
