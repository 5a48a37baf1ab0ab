"""Block-sparse products in large tiles (kernels/block_tiles.metal): blocks of multiples of 64, 16 bits, CUDA.

A tile can merge the lists of neighbouring block rows, so that what they read of the dense operand is copied
once. Shapes are measured on an H100 (docs/benchmarks/blocksparse.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from .kernel_blocks import DDS, DSD, SDD, fp32_mode
from .library import blocks, check_array, filled, grouped, on_cuda, ready


class BlockTile(NamedTuple):
    """NA x NB pieces of SIDE x SIDE, one a simdgroup; BK reduced elements a step, STAGES steps in flight.

    KEEP: what is read stays in L1 (CUDA).
    """

    NA: int
    NB: int
    SIDE: int
    BK: int
    STAGES: int
    KEEP: int = 0
    SLOTS: int = 0  # of sdd: pieces of a tile; 0: one more than places

    @property
    def kernel(self) -> str:
        return "block_tiles"

    @property
    def threads(self) -> int:
        return 32 * self.NA * self.NB

    def across(self, mode: int) -> int:
        """Elements of the dense axis, of dsd and dds."""
        return self.SIDE * (self.NB if mode == DSD else self.NA)

    def pieces(self, mode: int) -> int:
        """Pieces that a step copies."""
        return self.SLOTS or self.NA * self.NB + 1 if mode == SDD else self.NA + self.NB

    def reads(self, mode: int) -> tuple[int, int]:
        """dsd and dds: 0, lines (of SIDE elements) whose lists are merged; sdd: places, and their pieces."""
        if mode == SDD:
            return self.NA * self.NB, self.pieces(mode)
        return 0, self.NA if mode == DSD else self.NB

    def group_bytes(self, mode: int, ta: bool, tb: bool, itemsize: int) -> int:
        """Threadgroup memory; as the kernel counts it."""

        def piece(k_rows: bool) -> int:
            rows, columns = (self.BK, self.SIDE) if k_rows else (self.SIDE, self.BK)
            return rows * (columns + (8 if itemsize == 4 and k_rows else 16 // itemsize))

        return self.STAGES * self.pieces(mode) * max(piece(ta), piece(not tb)) * itemsize


class GroupTile(NamedTuple):
    """LINES lines of 64 and PARTS pieces of 64 of the dense axis (kernels/block_groups.metal).

    Four simdgroups compute a line; STAGES steps of BK reduced elements (64 on CUDA) are in flight. KEEP: 1,
    what is read stays in L1; 2, results leave L2 first.
    """

    LINES: int
    PARTS: int
    STAGES: int
    KEEP: int = 0
    BK: int = 64

    @property
    def kernel(self) -> str:
        return "block_groups"

    @property
    def SIDE(self) -> int:
        return 64

    @property
    def threads(self) -> int:
        return 128 * self.LINES

    def across(self, mode: int) -> int:
        """Elements of the dense axis."""
        return 64 * self.PARTS

    def reads(self, mode: int) -> tuple[int, int]:
        """As of a BlockTile."""
        return 0, self.LINES

    def group_bytes(self, mode: int, ta: bool, tb: bool, itemsize: int) -> int:
        """Threadgroup memory; as the kernel counts it."""
        return (self.STAGES * (self.LINES + self.PARTS) * 64 * self.BK + 512) * itemsize


class SampleTile(NamedTuple):
    """2 * EACH places of sdd in SLOTS pieces (kernels/block_samples.metal), two fours of simdgroups.

    CLUSTER threadgroups read once what they share.
    """

    EACH: int
    SLOTS: int
    STAGES: int
    CLUSTER: int = 1
    BK: int = 64

    @property
    def kernel(self) -> str:
        return "block_samples"

    @property
    def SIDE(self) -> int:
        return 64

    @property
    def threads(self) -> int:
        return 256

    def reads(self, mode: int) -> tuple[int, int]:
        """As of a BlockTile."""
        return 2 * self.EACH, self.SLOTS

    def group_bytes(self, mode: int, ta: bool, tb: bool, itemsize: int) -> int:
        """Threadgroup memory; as the kernel counts it."""
        return (self.STAGES * self.SLOTS * 64 * self.BK + 768) * itemsize


class TileLists(NamedTuple):
    """What tiles compute: int32 arrays line, ptr, block, other of their kernel, and how many."""

    line: mx.array
    ptr: mx.array
    block: mx.array
    other: mx.array
    groups: int
    lengths: np.ndarray  # entries of each


def turns(lengths: np.ndarray, times: int, threadgroups: int) -> np.ndarray:
    """(rounds, threadgroups) int32: which of the len(lengths) * times tiles each computes, -1: none.

    Tiles go round by round, as they are counted; in a round those with most entries to who had fewest.
    """
    tiles = len(lengths) * times
    order = np.full((-(-tiles // threadgroups), threadgroups), -1, np.int32)
    had = np.zeros(threadgroups, np.int64)
    for turn, first in zip(order, range(0, tiles, threadgroups)):
        some = np.arange(first, min(first + threadgroups, tiles))
        taken = lengths[some % len(lengths)]
        some, taken = (a[np.argsort(-taken, kind="stable")] for a in (some, taken))
        who = np.argsort(had, kind="stable")[: len(some)]
        turn[who] = some
        had[who] += taken + OUTSIDE
    return order


OUTSIDE = 3  # entries that take as long as what a tile does beside them


class Sizes(NamedTuple):
    """Stored blocks; elements of a block along the lines and along the other axis, and of the matrix."""

    nnz: int
    size: int
    other_size: int
    extent: int
    other_extent: int


Tile = BlockTile | GroupTile | SampleTile


def block_tile(mode: int, sizes: Sizes, width: int, items: int, dtype: mx.Dtype) -> Tile | None:
    """A tile for a product, None where block_gemm.metal is to do it.

    width: the dense operand's free axis, of sdd the reduced one. items: heads of all batch items.
    """
    if not on_cuda() or dtype == mx.float32 or width % 8:
        return None
    if sizes.extent % sizes.size or sizes.other_extent % sizes.other_size:
        return None
    if sizes.size % 64 or sizes.other_size % 64:
        return None
    if not grouped() or "MLXSPARSE_BLOCK_TILES" in os.environ:
        return shape_of(mode)
    if mode == SDD:
        return sample_tile(sizes.nnz * (sizes.size // 64) * (sizes.other_size // 64))
    few = blocks(sizes.extent, 128) * blocks(width, 256) * items < CORES
    return GroupTile(2, 2, 5) if few else GroupTile(2, 4, 4)


CORES = 132  # of an H100: fewer large tiles leave some without work
SEARCHED = 1 << 14  # places up to which those that share most rows and columns are looked for


def sample_tile(places: int) -> SampleTile:
    """A tile of sdd for so many places of 64 x 64: eight of them where one round of the card nearly does."""
    if places > SEARCHED:
        return SampleTile(4, 9, 3)
    return SampleTile(4, 8, 3, 2) if 6 * CORES <= places <= 8 * CORES else SampleTile(2, 4, 6)


def shape_of(mode: int) -> Tile | None:
    """The tile of a mode."""
    # "LINES,DENSE,BK,STAGES,KEEP" or "group,LINES,PARTS,STAGES,KEEP", to measure; "0": none
    text = os.environ.get("MLXSPARSE_BLOCK_TILES")
    if text == "0":
        return None
    if text and text.startswith("sample,") and mode == SDD:
        return SampleTile(*(int(v) for v in text.split(",")[1:]))
    if text and text.startswith("group,") and mode != SDD:
        return GroupTile(*(int(v) for v in text.split(",")[1:]))
    if text:
        lines, dense, bk, stages, keep, *slots = (int(v) for v in text.split(","))
        if slots:
            return BlockTile(lines, dense, 64, bk, stages, keep, *slots)
    elif mode == SDD:
        lines, dense, bk, stages, keep = 1, 4, 64, 2, 0
    else:
        lines, dense, bk, stages, keep = 1, 4, 32, 3, 1
    na, nb = (dense, lines) if mode == DDS else (lines, dense)
    return BlockTile(na, nb, 64, bk, stages, keep)


def block_tiles(
    mode: int,
    a: mx.array,
    b: mx.array,
    lists: TileLists,
    sizes: Sizes,
    trans_a: bool,
    trans_b: bool,
    heads: int,
    tile: Tile,
) -> Callable[[mx.array, mx.array], mx.array]:
    """One of the three products of arrays like a and b; shapes as of kernel_blocks.block_gemm."""
    for name, array in (("a", a), ("b", b)):
        check_array(name, array, 4, a.dtype)
    batch, dtype = a.shape[0], a.dtype
    if mode == DSD:
        width = b.shape[2 if trans_b else 3]
        shape: tuple[int, ...] = (batch, heads, sizes.extent, width)
    elif mode == DDS:
        width = a.shape[3 if trans_a else 2]
        shape = (batch, heads, width, sizes.extent)
    else:
        width = a.shape[2 if trans_a else 3]
        shape = (batch, sizes.nnz, sizes.size, sizes.other_size)
    if 0 in shape or lists.groups == 0:
        return lambda *_: filled(shape, 0, dtype)
    fixed, shapes = tile._asdict(), [shape]
    more: list[int] = []
    arrays: list[mx.array] = [*lists[:4]]
    if isinstance(tile, SampleTile):
        grid = (lists.groups, 1, batch)
        shapes.append((lists.groups * batch * 64,))
    else:
        across = 1 if mode == SDD else blocks(width, tile.across(mode))
        grid = (lists.groups, across, batch)
        fixed["MODE"] = mode
    if isinstance(tile, GroupTile):
        each = lists.groups * across
        grid = (min(CORES, each * batch), 1, 1)
        order = turns(lists.lengths, across * batch, grid[0])
        more = [grid[0], order.size, each, each * batch]
        arrays.append(mx.array(order.reshape(-1)))
    threads, fit = tile.threads, 0
    if isinstance(tile, BlockTile):
        fixed |= {"EXACT": fp32_mode(dtype), "SLOTS": tile.pieces(mode)}
    elif isinstance(tile, SampleTile) and on_cuda():
        threads, fit = threads + 32, 1  # those that ask for copies
    run = ready(
        tile.kernel,
        [lists.groups, *sizes, width, heads, lists.other.size, *more],
        shapes,
        grid,
        threads,
        dtype=dtype,
        group_bytes=tile.group_bytes(mode, trans_a, trans_b, dtype.size),
        fit=fit,
        TA=int(trans_a),
        TB=int(trans_b),
        **fixed,
    ).holding(*arrays)
    return lambda a, b: run((a, b))[0]
