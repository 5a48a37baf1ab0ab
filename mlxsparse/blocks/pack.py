"""Layers of which some blocks are 0 as layers that store the others only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from .. import nn
from ..blocksparse import BlockSparseLinear
from ..errors import CheckpointError
from ..nn.block_conv import BlockSparseConv3d
from ..nn.conv import NormalizedConv3d
from ..nn.masked import plainly_called
from .flow import LINEAR, STORED


@dataclass
class Packing:
    """Blocks (output, input) that a layer stores: `mask` (ceil(Co / bo), all taps, ceil(Ci / bi)); `taps` are
    those that the dense weight has."""

    block: tuple[int, int]
    mask: np.ndarray
    taps: tuple[int, ...]
    size: tuple[int, ...]  # of the kernel
    channels: tuple[int, int]  # (out, in)
    transposed: bool  # a linear layer stores W (in, out), its dense weight is (out, in)

    def gather(self, a: mx.array) -> mx.array:
        """(nnz, bo, bi) blocks of an array like the dense weight; (nnz, bi, bo) of a linear layer's."""
        (bo, bi), (rows, _, cols) = self.block, self.mask.shape
        a = a.reshape(a.shape[0], -1, a.shape[-1])
        a = mx.pad(a, [(0, rows * bo - a.shape[0]), (0, 0), (0, cols * bi - a.shape[2])])
        blocks = a.reshape(rows, bo, len(self.taps), cols, bi).transpose(0, 2, 3, 1, 4)
        kept = self.mask[:, list(self.taps)]
        order = np.flatnonzero(kept)
        if self.transposed:  # row-major over (input block, output block)
            order = np.flatnonzero(kept[:, 0].T)
            blocks = blocks.transpose(2, 1, 0, 4, 3)
        return blocks.reshape(-1, *blocks.shape[3:])[mx.array(order, mx.int32)]


def packing_of(
    module: Module, weight: np.ndarray, block: tuple[int, int], taps: tuple[int, ...]
) -> Packing | None:
    """How a layer is packed that keeps `weight` (Co, len(taps), Ci), True where not 0; None: it stays dense.

    Dense stay transposed, grouped and normalized convolutions, submanifold ones with a padding of their own,
    layers of derived classes with a __call__ of their own, and layers without a block of zeros.
    """
    if not _packs(module):
        return None
    size = _size(module)
    (bo, bi), (co, ci) = block, (weight.shape[0], weight.shape[-1])
    rows, cols = -(-co // bo), -(-ci // bi)
    padded = np.zeros((rows * bo, len(taps), cols * bi), bool)
    padded[:co, :, :ci] = weight
    some: np.ndarray = np.asarray(padded.reshape(rows, bo, len(taps), cols, bi).any(axis=(1, 4)))
    if some.all():
        return None
    if not some.any():
        some[0, 0, 0] = True
    mask = np.zeros((rows, math.prod(size), cols), bool)
    mask[:, list(taps)] = some
    return Packing(block, mask, taps, size, (co, ci), isinstance(module, LINEAR))


def _packs(module: Module) -> bool:
    if not plainly_called(module):
        return False
    if isinstance(module, LINEAR):
        return True
    if isinstance(module, NormalizedConv3d) or getattr(module, "groups", 1) != 1:
        return False
    return isinstance(module, nn.Conv3d) or (isinstance(module, nn.SubmConv3d) and module.padding is None)


def _size(module: Module) -> tuple[int, ...]:
    taps = getattr(module, "_taps", None)
    return tuple(module["weight"].shape[1:-1]) if taps is None else taps.kernel_size


def packed(module: Module, packing: Packing) -> Module:
    """The block-sparse layer in place of `module`; its weight is still to be set."""
    (co, ci), (bo, bi) = packing.channels, packing.block
    if isinstance(module, LINEAR):
        layer: Module = BlockSparseLinear(ci, co, (bi, bo), packing.mask[:, 0].T, bias="bias" in module)
    else:
        layout = packing.mask.reshape(packing.mask.shape[0], *packing.size, packing.mask.shape[2])
        strided = isinstance(module, nn.Conv3d)
        layer = BlockSparseConv3d(
            ci, co, packing.size, (bo, bi), layout,
            stride=module.stride if strided else 1, padding=module.padding if strided else None,
            dilation=module.dilation, support=module.support if strided else "touched", bias="bias" in module,
        )  # fmt: skip
    layer._training = module.training
    return layer


def to_json(module: Module) -> dict[str, Any] | None:
    """Description of a block-sparse layer and its layout of now, for from_json; None of any other."""
    if not isinstance(module, STORED):
        return None
    block, mask, channels = _stored(module)
    return {
        "block": list(block),
        "grid": list(mask.shape),
        "mask": np.packbits(mask).tobytes().hex(),
        "channels": list(channels),
    }


def from_json(module: Module, entry: dict[str, Any]) -> Module:
    """The packed layer in place of a fresh dense one; a fresh block-sparse one with the layout in place."""
    grid = tuple(int(n) for n in entry["grid"])
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(entry["mask"]), np.uint8))
    block = (int(entry["block"][0]), int(entry["block"][1]))
    channels = (int(entry["channels"][0]), int(entry["channels"][1]))
    stored = isinstance(module, STORED)
    fits = len(bits) >= math.prod(grid) and (stored or _packs(module))
    if fits and stored:
        own_block, own_mask, own_channels = _stored(module)
        fits = (own_block, own_mask.shape, own_channels) == (block, grid, channels)
    if not fits:
        raise CheckpointError(f"a packed layer of the grid {grid} does not fit {type(module).__name__}")
    mask = bits[: math.prod(grid)].reshape(grid).astype(bool)
    if stored:
        linear = isinstance(module, BlockSparseLinear)
        module.update_layout(mask[:, 0].T if linear else mask.reshape(module.layout.shape))
        return module
    taps = tuple(range(grid[1]))
    return packed(module, Packing(block, mask, taps, _size(module), channels, isinstance(module, LINEAR)))


def live_blocks(module: Module, weight: np.ndarray) -> np.ndarray:
    """bool (nnz,): blocks of a block-sparse layer that hold something in `weight` (nnz, ...), True where not
    0; what they hold past the last channel is not read."""
    _, mask, (co, ci) = _stored(module)
    linear = isinstance(module, BlockSparseLinear)
    first, *_, last = np.nonzero(mask[:, 0].T if linear else mask)
    rows, cols = weight.shape[1:]
    m, n = (ci, co) if linear else (co, ci)
    row = first[:, None] * rows + np.arange(rows) < m
    col = last[:, None] * cols + np.arange(cols) < n
    live: np.ndarray = (weight & row[:, :, None] & col[:, None]).any(axis=(1, 2))
    return live


def keep_blocks(module: Module, kept: np.ndarray) -> None:
    """Let a block-sparse layer store these of its blocks only, by their places among them."""
    mask = module.layout.to_dense()[0] if isinstance(module, BlockSparseLinear) else module.layout
    new = np.zeros(mask.shape, bool)
    new.reshape(-1)[np.flatnonzero(mask)[kept]] = True
    module.update_layout(new)


def stored_block(module: Module) -> tuple[int, int]:
    """(output, input) channels of a block-sparse layer's blocks."""
    return _stored(module)[0]


def _stored(module: Module) -> tuple[tuple[int, int], np.ndarray, tuple[int, int]]:
    """Block, mask and channels of a block-sparse layer, in the terms of Packing."""
    if isinstance(module, BlockSparseLinear):
        layout = module.layout
        (bi, bo), (ci, co) = layout.block, layout.shape
        return (bo, bi), layout.to_dense()[0].T[:, None], (co, ci)
    mask = module.layout
    return module._block, mask.reshape(mask.shape[0], -1, mask.shape[-1]), module._channels

