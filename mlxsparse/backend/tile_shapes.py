"""Tile shapes of the tiled convolution (kernels/conv_tiles.metal, conv_tiles_grad.metal), as measured."""

from __future__ import annotations

import functools
from typing import NamedTuple

import mlx.core as mx

from .kernel_conv import fp32_mode
from .library import blocks, grouped, on_cuda

SPREAD = 256  # threadgroups below which the tile for few rows is better


class Tile(NamedTuple):
    """Shape of a tile (kernels/conv_tiles.metal)."""

    BM: int
    BN: int
    BK: int
    WM: int
    WN: int
    STAGES: int
    KEEP: int = 3
    FIT: int = 0  # threadgroups that one core shall hold: limits registers on CUDA; 0: the compiler decides
    FOURS: int = 0  # 1: four simdgroups multiply together (`library.grouped`); BK is then 64 on CUDA

    @property
    def threads(self) -> int:
        return 32 * self.WM * self.WN

    def sizes(self) -> dict[str, int]:
        """Template values."""
        return {name: value for name, value in self._asdict().items() if name != "FIT"}


# (output channels at most, tile) by backend (CUDA?), size of an element and fp32_mode. CUDA: measured on an
# H100 (docs/benchmarks/gpu-notes.md); Metal: 32 KB of threadgroup memory, not measured. Few shapes: each is
# another compilation.
FORWARD: dict[tuple[bool, int, int], list[tuple[int, Tile]]] = {
    (True, 2, 0): [
        (32, Tile(128, 32, 32, 4, 1, 3, 3)),
        (64, Tile(128, 64, 64, 2, 2, 2, 2, 4)),
        (1 << 30, Tile(128, 128, 64, 2, 2, 2, 3)),
    ],
    (True, 4, 0): [
        (32, Tile(128, 32, 32, 4, 1, 2, 3)),
        (64, Tile(256, 64, 32, 4, 1, 2, 1)),
        (1 << 30, Tile(128, 128, 32, 2, 2, 2, 3)),
    ],
    (True, 4, 1): [
        (32, Tile(128, 32, 32, 4, 1, 2, 3)),
        (64, Tile(128, 64, 32, 2, 2, 2, 2, 2)),
        (1 << 30, Tile(128, 128, 32, 4, 2, 2, 3, 1)),
    ],
    (True, 4, 2): [
        (32, Tile(128, 32, 32, 4, 1, 2, 3)),
        (64, Tile(128, 64, 32, 2, 2, 2, 2, 3)),
        (1 << 30, Tile(128, 128, 32, 2, 2, 2, 3)),
    ],
    (False, 2, 0): [(32, Tile(64, 32, 32, 4, 1, 2)), (1 << 30, Tile(64, 64, 32, 2, 2, 2))],
    (False, 4, 0): [(32, Tile(64, 32, 16, 4, 1, 2)), (1 << 30, Tile(64, 64, 16, 2, 2, 2))],
}
# Of more than 32 channels, where other tiles would be too few to fill the GPU.
FEW = {
    (True, 2, 0): Tile(64, 64, 64, 2, 2, 2, 2, 6),
    (True, 4, 1): Tile(128, 64, 32, 2, 2, 2, 2, 2),
    (True, 4, 2): Tile(128, 64, 32, 2, 2, 2, 2, 3),
}
# BM x BN: output x input channels; BK: places. Chosen by the larger of the two.
WEIGHT_GRAD: dict[tuple[bool, int, int], list[tuple[int, Tile]]] = {
    (True, 2, 0): [
        (32, Tile(32, 32, 128, 2, 2, 2)),
        (64, Tile(64, 64, 64, 2, 2, 2)),
        (1 << 30, Tile(128, 128, 64, 2, 2, 2)),
    ],
    (True, 4, 0): [
        (32, Tile(32, 32, 64, 2, 2, 2)),
        (64, Tile(64, 64, 32, 2, 2, 2)),
        (1 << 30, Tile(128, 128, 32, 2, 2, 2)),
    ],
    (True, 4, 1): [(32, Tile(32, 32, 64, 2, 2, 2)), (1 << 30, Tile(64, 64, 32, 2, 2, 2))],
    (True, 4, 2): [(32, Tile(32, 32, 64, 2, 2, 2)), (1 << 30, Tile(64, 64, 32, 2, 2, 2))],
    (False, 2, 0): [(1 << 30, Tile(32, 32, 32, 2, 2, 2))],
    (False, 4, 0): [(1 << 30, Tile(32, 32, 32, 2, 2, 2))],
}
# Of 16 bits and more than 32 channels on GPUs where four simdgroups multiply together: measured on an H200.
# Forward, of 64 x 64 results fewer than this and output channels at most this: the first that fits.
TOGETHER = [
    (1000, 1 << 30, Tile(64, 64, 64, 4, 1, 4, 0, 3, 1)),
    (1 << 30, 64, Tile(128, 64, 64, 4, 1, 2, 0, 4, 1)),
    (2000, 1 << 30, Tile(64, 128, 64, 4, 1, 4, 0, 2, 1)),
    (1 << 30, 128, Tile(128, 128, 64, 4, 1, 3, 0, 2, 1)),
    (1 << 30, 1 << 30, Tile(128, 256, 64, 8, 1, 4, 0, 1, 1)),
]
TOGETHER_GRAD = {  # (more than 64 output, input channels)
    (False, False): Tile(64, 64, 64, 4, 1, 2, 0, 6, 1),
    (True, False): Tile(128, 64, 64, 4, 1, 2, 0, 4, 1),
    (False, True): Tile(64, 128, 64, 4, 1, 2, 0, 4, 1),
    (True, True): Tile(128, 128, 64, 8, 1, 3, 0, 2, 1),
}
# What a caller chose instead: (weight gradient?, output channels) -> tile. Tuning and tests.
chosen: dict[tuple[bool, int], Tile] = {}


def tile_for(dtype: mx.Dtype, channels: int, places: int) -> Tile:
    """The forward tile for `channels` output channels over `places`."""
    if chosen and (False, channels) in chosen:
        return chosen[False, channels]
    if _together(dtype, channels):
        return _of_many(channels, places // 64 * blocks(channels, 64))
    kind = on_cuda(), dtype.size, fp32_mode(dtype)
    tile = _measured(*kind, channels, False)
    if channels <= 32 or kind not in FEW:
        return tile
    return tile if places // tile.BM * blocks(channels, tile.BN) >= SPREAD else FEW[kind]


def grad_tile_for(dtype: mx.Dtype, outs: int, red: int) -> Tile:
    """The tile of a weight gradient of `outs` x `red` channels."""
    channels = max(outs, red)
    if chosen and (True, channels) in chosen:
        return chosen[True, channels]
    if _together(dtype, channels):
        return TOGETHER_GRAD[outs > 64, red > 64]
    return _measured(on_cuda(), dtype.size, fp32_mode(dtype), channels, True)


def _together(dtype: mx.Dtype, channels: int) -> bool:
    return dtype.size == 2 and channels > 32 and on_cuda() and grouped()


def _of_many(channels: int, results: int) -> Tile:
    """Of TOGETHER; no wider than 128 where that pads the channels less."""
    narrow = blocks(channels, 128) * 128 < blocks(channels, 256) * 256
    most = min(channels, 128) if narrow else channels
    return next(tile for fewer, widest, tile in TOGETHER if results < fewer and most <= widest)


@functools.lru_cache(maxsize=256)
def _measured(cuda: bool, itemsize: int, mode: int, channels: int, weight: bool) -> Tile:
    table = WEIGHT_GRAD if weight else FORWARD
    shapes = table.get((cuda, itemsize, mode)) or table[cuda, itemsize, 0]
    return next(tile for most, tile in shapes if channels <= most)
