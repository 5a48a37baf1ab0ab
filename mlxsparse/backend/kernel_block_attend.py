"""Tiles of attention over stored blocks: which kernel, how many queries and keys at a time."""

from __future__ import annotations

import os
from typing import NamedTuple

import mlx.core as mx

from .library import grouped, on_cuda


class AttentionTile(NamedTuple):
    """Channels that are held, queries and keys of a step, simdgroups."""

    dim: int
    bm: int
    bn: int
    wm: int

    @property
    def kernel(self) -> str:
        return "block_attend"

    @property
    def fit(self) -> int:
        return 0

    @property
    def threads(self) -> int:
        return 32 * self.wm

    def sizes(self) -> dict[str, int]:
        """As template parameters of block_attend.metal."""
        return {name.upper(): value for name, value in self._asdict().items()}

    def group_bytes(self, itemsize: int) -> int:
        return 0


class FlashTile(NamedTuple):
    """The same for block_flash.metal; steps in flight; queries in registers, addends, marks read or not."""

    dim: int
    bm: int
    bn: int
    wm: int
    stages: int
    hold: int
    terms: int = 0
    marks: int = 1
    fit: int = 0  # threadgroups that a core shall hold

    @property
    def kernel(self) -> str:
        return "block_flash"

    @property
    def threads(self) -> int:
        return 32 * self.wm

    def sizes(self) -> dict[str, int]:
        return {name.upper(): value for name, value in self._asdict().items() if name != "fit"}

    def group_bytes(self, itemsize: int) -> int:
        row = self.dim + 16 // itemsize
        rows = (0 if self.hold else self.bm) + 2 * self.stages * self.bn
        return (rows * row + 16 // itemsize) * itemsize


class GroupFlash(NamedTuple):
    """The same for block_flash_groups.metal: `groups` of 64 queries; on CUDA of 128 channels."""

    dim: int
    groups: int
    bn: int
    stages: int
    terms: int = 0
    marks: int = 1
    fit: int = 0

    @property
    def kernel(self) -> str:
        return "block_flash_groups"

    @property
    def bm(self) -> int:
        return 64 * self.groups

    @property
    def threads(self) -> int:
        return 128 * self.groups

    def sizes(self) -> dict[str, int]:
        return {name.upper(): value for name, value in self._asdict().items() if name != "fit"}

    def group_bytes(self, itemsize: int) -> int:
        step = 2 * self.bn * self.dim
        return ((self.stages - 1) * step + max(step, self.bm * self.dim) + 512) * itemsize


def flash_tile(
    d: int, dv: int, block: tuple[int, int], scale: float, dtype: mx.Dtype, terms: bool, marks: bool
) -> FlashTile | GroupFlash | None:
    """A tile of block_flash.metal, None where block_attend.metal is to do it.

    terms: there is a bias, ids or a causal limit. marks: some keys are masked for all queries.
    """
    most = max(d, dv)
    if not on_cuda() or dtype == mx.float32 or most > MAX_DIM[2] or d % 8 or dv % 8 or not scale > 0:
        return None
    if block[0] % 64 or block[1] % 32:
        return None
    dim, reads = 64 if most <= 64 else 128, (int(terms), int(terms or marks))
    if grouped() and dim == 128 and block[1] % 64 == 0 and "MLXSPARSE_FLASH_TILE" not in os.environ:
        return GroupFlash(dim, 1, 64, 2, *reads, 3 - int(terms))
    return flash_shape(dim, *reads)


def flash_shape(dim: int, terms: int, marks: int) -> FlashTile | GroupFlash | None:
    """A tile for `dim` channels, of 64 queries. Measured on an H100 (docs/benchmarks/blocksparse.md)."""
    forced = os.environ.get("MLXSPARSE_FLASH_TILE")  # "BM,BN,WM,STAGES,HOLD,FIT", to measure; "0": none
    if forced == "0":
        return None
    if forced and forced.startswith("group,") and dim == 128:  # "group,GROUPS,STAGES,FIT"
        groups, stages, fit = (int(v) for v in forced.split(",")[1:])
        return GroupFlash(dim, groups, 64, stages, terms, marks, fit)
    if forced:
        bm, bn, wm, stages, hold, fit = (int(v) for v in forced.split(","))
        return FlashTile(dim, bm, bn, wm, stages, hold, terms, marks, fit)
    fit = (4 if dim == 64 else 3) - terms  # by registers, of which addends take more
    return FlashTile(dim, 64, 64, 4, 2, 1, terms, marks, fit)


MAX_DIM = {2: 128, 4: 64}  # channels that a threadgroup's memory holds, by bytes of an element


def attention_tile(dim: int, size: int, dtype: mx.Dtype, cuda: bool | None = None) -> AttentionTile | None:
    """A tile for `dim` channels and block rows of `size` elements; None where channels are too many."""
    if dim > MAX_DIM[dtype.size]:
        return None
    held = next(d for d in (16, 32, 64, 128) if d >= dim)
    forced = os.environ.get("MLXSPARSE_ATTENTION_TILE")  # "BM,BN,WM", for measurements
    if forced:
        bm, bn, wm = (int(v) for v in forced.split(","))
        return AttentionTile(held, bm, bn, wm)
    if dtype == mx.float32:
        return AttentionTile(held, 16 if size <= 16 else 32, 16 if held == 64 else 32, 1)
    if on_cuda() if cuda is None else cuda:
        if held == 128:
            return AttentionTile(held, 32 if size <= 32 else 64, 32, 1 if size <= 32 else 4)
        bm = 16 if size <= 16 else 32 if size <= 32 else 64 if size <= 64 else 128
        return AttentionTile(held, bm, 64, max(1, bm // 32))
    if held == 128:
        return AttentionTile(held, 16 if size <= 16 else 32, 32, 1 if size <= 16 else 2)
    bm = 16 if size <= 16 else 32 if size <= 32 else 64
    return AttentionTile(held, bm, 32, bm // 16)
