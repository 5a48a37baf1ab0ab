"""Tile shapes of the tiled convolution (kernels/conv_tiles.metal, conv_tiles_grad.metal), as measured."""

from __future__ import annotations

import functools
from typing import NamedTuple

import mlx.core as mx

from .kernel_conv import fp32_mode
from .library import blocks, on_cuda

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

    @property
    def threads(self) -> int:
        return 32 * self.WM * self.WN

    def sizes(self) -> dict[str, int]:
        """Template values."""
        return {name: value for name, value in self._asdict().items() if name != "FIT"}


# (output channels at most, tile) by backend (CUDA?), size of an element and fp32_mode. CUDA: measured on an
# H100 (docs/benchmarks/gpu.md); Metal: 32 KB of threadgroup memory, not measured. Few shapes: each is another
# compilation.
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
# What a caller chose instead: (weight gradient?, output channels) -> tile. Tuning and tests.
chosen: dict[tuple[bool, int], Tile] = {}


def tile_for(dtype: mx.Dtype, channels: int, places: int, *, weight: bool = False) -> Tile:
    """The tile for `channels` output channels, for a weight gradient the larger count, over `places`."""
    if chosen and (weight, channels) in chosen:
        return chosen[weight, channels]
    kind = on_cuda(), dtype.size, fp32_mode(dtype)
    tile = _measured(*kind, channels, weight)
    if weight or channels <= 32 or kind not in FEW:
        return tile
    return tile if places // tile.BM * blocks(channels, tile.BN) >= SPREAD else FEW[kind]


@functools.lru_cache(maxsize=256)
def _measured(cuda: bool, itemsize: int, mode: int, channels: int, weight: bool) -> Tile:
    table = WEIGHT_GRAD if weight else FORWARD
    shapes = table.get((cuda, itemsize, mode)) or table[cuda, itemsize, 0]
    return next(tile for most, tile in shapes if channels <= most)
