"""Convolution on sparse tensors with a block-sparse weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from .. import ops
from ..backend.untrained import Stored
from ..blocksparse import BlockLayout, unpack
from ..blocksparse.check import as_layout_mask, block_pair
from ..blocksparse.modules import move_blocks
from ..coords.geometry import Triple, TripleLike, triple
from ..errors import DTypeError, ShapeError
from ..ops.conv import Target
from ..tensor import SparseTensor
from .conv import check_support


class BlockSparseConv3d(Stored):
    """Convolution whose weight (Co, Kx, Ky, Kz, Ci) stores some (bo, bi) blocks of its channels per tap.

    Args:
        in_channels, out_channels: channels; last blocks may lie partly outside.
        kernel_size, dilation: int or (x, y, z).
        block: an int or (output channels, input channels).
        layout: bool or 0/1 (ceil(Co / bo), Kx, Ky, Kz, ceil(Ci / bi)): the blocks that are stored.
        stride, padding, support: as Conv3d. By default (stride 1, no padding) the convolution is submanifold
            and refuses another support, `out` and `capacity`; any other takes these as Conv3d does.
        bias: learn an additive bias.

    `weight` (nnz, bo, bi) holds the blocks in the order of ``np.argwhere(layout)``. `weight_blocks`, frozen,
    is the layout as it goes into files; loading weights of another one is a CheckpointError. Taps without any
    block are left out of the kernel map, so time falls with them; within a tap the product is dense.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: TripleLike,
        block: int | Sequence[int],
        layout: Any,
        *,
        stride: TripleLike = 1,
        padding: TripleLike | None = None,
        dilation: TripleLike = 1,
        support: str = "touched",
        bias: bool = True,
    ):
        super().__init__()
        self._size = triple(kernel_size, "kernel_size", least=1)
        self._channels = (out_channels, in_channels)
        self._block = block_pair(block)
        self.stride = triple(stride, "stride", least=1)
        self.padding: Triple | None = None if padding is None else triple(padding, "padding")
        self.dilation = triple(dilation, "dilation", least=1)
        self.support = check_support(support)
        if self._submanifold and support != "touched":
            raise ShapeError("a submanifold BlockSparseConv3d has no support; give the layer a padding")
        self._set_layout(self._checked(layout))
        scale = 1 / math.sqrt(max(1.0, in_channels * math.prod(self._size) * float(self._mask.mean())))
        self.weight = mx.random.uniform(-scale, scale, self._layout.packed_shape()[1:])
        if bias:
            self.bias = mx.zeros((out_channels,))

    @property
    def _submanifold(self) -> bool:
        return self.padding is None and self.stride == (1, 1, 1)

    def _checked(self, layout: Any) -> np.ndarray:
        mask = as_layout_mask(layout)
        (co, ci), (bo, bi) = self._channels, self._block
        wanted = (-(-co // bo), *self._size, -(-ci // bi))
        if mask.shape != wanted:
            raise ShapeError(
                f"layout has shape {mask.shape}, wanted {wanted}: output blocks, taps, input blocks"
            )
        return mask

    def _set_layout(self, mask: np.ndarray) -> None:
        self._mask = mask
        self._store("weight_blocks", mask)
        by_tap = mask.reshape(mask.shape[0], -1, mask.shape[-1])
        self._taps = tuple(np.flatnonzero(by_tap.any(axis=(0, 2))).tolist())
        kept = by_tap[:, list(self._taps)].reshape(mask.shape[0], -1)
        # Whole blocks along (tap, input channel): what lies past the last channel is cut off after unpacking.
        shape = (self._channels[0], kept.shape[1] * self._block[1])
        self._layout = BlockLayout(kept, self._block, shape=shape)

    @property
    def layout(self) -> np.ndarray:
        """bool (output blocks, Kx, Ky, Kz, input blocks), read-only; copy it to make another."""
        return self._mask

    def dense_weight(self) -> mx.array:
        """(Co, taps that have a block, Ci), 0 where no block is stored; differentiable in `weight`."""
        (co, ci), bi = self._channels, self._block[1]
        whole = unpack(self.weight[None], self._layout)
        return whole.reshape(co, len(self._taps), -(-ci // bi) * bi)[:, :, :ci]

    def __call__(
        self, x: SparseTensor, out: Target | None = None, capacity: int | None = None
    ) -> SparseTensor:
        if not isinstance(x, SparseTensor):
            raise DTypeError(f"BlockSparseConv3d takes a SparseTensor, got {type(x).__name__}")
        if x.num_channels != self._channels[1]:
            raise ShapeError(f"x has {x.num_channels} channels, wanted {self._channels[1]}")
        bias = self.get("bias")
        weight = self.dense_weight().astype(x.dtype)
        bias = None if bias is None else bias.astype(x.dtype)
        taps = ops.Taps(self._size, self._taps)
        if self._submanifold:
            if out is not None or capacity is not None:
                name = "capacity" if out is None else "out"
                raise ShapeError(
                    f"a submanifold BlockSparseConv3d takes no {name}=; give the layer a padding"
                )
            return ops.subm_conv3d(x, weight, bias, dilation=self.dilation, taps=taps)
        return ops.conv3d(
            x,
            weight,
            bias,
            stride=self.stride,
            padding=self.padding or 0,
            dilation=self.dilation,
            taps=taps,
            support=self.support if out is None else "touched",
            out=out,
            capacity=capacity,
        )

    def update_layout(self, new: Any, fill: float = 0.0, *, state: Any = None) -> None:
        """Store other blocks; surviving ones keep their weights, new ones hold `fill`.

        new: a mask, as `layout`.
        state, and what it means for compiled functions: as BlockSparseLinear.update_layout.
        """
        mask = self._checked(new)
        place = np.full(mask.shape, -1, np.int32)
        place[self._mask] = np.arange(int(self._mask.sum()))
        move_blocks(self, place[mask], fill, state)
        self._set_layout(mask)

    def _extra_repr(self) -> str:
        co, ci = self._channels
        return f"{ci}, {co}, kernel_size={self._size}, block={self._block}, density={self._mask.mean():.3g}"
