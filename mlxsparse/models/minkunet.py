"""MinkUNet: a sparse residual U-Net for semantic segmentation (Choy et al., CVPR 2019).

Encoder levels halve the lattice with a k2 s2 convolution, decoder levels go back with its transpose
onto the encoder's sites and concatenate its features.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlx.nn import Module

from .. import nn, ops
from ..errors import CheckpointError, ShapeError
from ..tensor import SparseTensor

# MLX ends the process, or cannot say the shape of a weight, where sizes are far beyond any memory.
MAX_CHANNELS, MAX_BLOCKS, MAX_SIZE = 2**16, 2**10, 2**20
SIZES = f"1 to {MAX_CHANNELS} channels, 1 to {MAX_BLOCKS} blocks, and others of at most {MAX_SIZE}"


@dataclass
class ModelArgs:
    """Channels in and classes out; `channels` of the stem and of each encoder level; blocks per level."""

    in_channels: int
    num_classes: int
    channels: Sequence[int] = (32, 64, 128, 256)
    blocks: int = 1
    stem_kernel: int = 3

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> ModelArgs:
        """From a config.json entry; CheckpointError for a missing, unknown or impossible value."""
        try:
            args = cls(**config)
        except TypeError as error:
            raise CheckpointError(f"the model entry of config.json does not fit MinkUNet: {error}") from None
        if not args.possible():
            raise CheckpointError(
                f"the model entry of config.json is not a MinkUNet's, which has sizes of {SIZES}: {config}"
            )
        return args

    def possible(self) -> bool:
        """Whether a network can have these sizes."""
        widths = levels_of(self.channels)
        return bool(widths) and (
            within(widths, MAX_CHANNELS)
            and within([self.blocks], MAX_BLOCKS)
            and within([self.in_channels, self.num_classes, self.stem_kernel], MAX_SIZE)
        )

    def to_dict(self) -> dict[str, Any]:
        """As config.json holds it."""
        plain = {k: int(v) for k, v in asdict(self).items() if k != "channels"}
        return {**plain, "channels": [int(c) for c in self.channels]}


def within(sizes: Iterable[Any], most: int) -> bool:
    """Whether all are whole numbers from 1 to `most`."""
    return all(isinstance(n, numbers.Integral) and 1 <= int(n) <= most for n in sizes)


def levels_of(values: Any) -> list[Any]:
    """Of any sequence, none of what is no sequence."""
    return [] if isinstance(values, str) or not isinstance(values, Iterable) else list(values)


class ConvNorm(Module):
    """A convolution without bias, batch normalisation, ReLU."""

    def __init__(self, conv: Module, channels: int):
        super().__init__()
        self.conv = conv
        self.norm = nn.BatchNorm(channels)
        self.act = nn.ReLU()

    def __call__(self, x: SparseTensor, **kwargs: Any) -> SparseTensor:
        return nn.conv_norm_act(self["conv"], self["norm"], self["act"], x, **kwargs)


class ResidualBlock(Module):
    """Two 3x3x3 submanifold convolutions and a shortcut, projected where channels change."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.first = ConvNorm(nn.SubmConv3d(in_channels, out_channels, bias=False), out_channels)
        self.conv = nn.SubmConv3d(out_channels, out_channels, bias=False)
        self.norm = nn.BatchNorm(out_channels)
        self.act = nn.ReLU()
        if in_channels != out_channels:
            self.shortcut = nn.Linear(in_channels, out_channels, bias=False)

    def __call__(self, x: SparseTensor) -> SparseTensor:
        layers = self["conv"], self["norm"], self["act"]
        return nn.conv_norm_act(*layers, self["first"](x), x, through=self.get("shortcut"))


def residual_blocks(in_channels: int, out_channels: int, count: int) -> nn.Sequential:
    """`count` residual blocks, the first of which changes the channels."""
    return nn.Sequential(
        *(ResidualBlock(in_channels if i == 0 else out_channels, out_channels) for i in range(count))
    )


class MinkUNet(Module):
    """SparseTensor with `in_channels` in, logits (num_classes channels) on the same sites out.

    ``net(x, capacity=(n1, n2, ...))`` gives the rows of each coarser level where x has a fixed capacity
    (compiled, or made by with_capacity); default x's own for every level, which always suffices.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        if not args.possible():
            raise ShapeError(f"a MinkUNet has at least one level and sizes of {SIZES}, got {args}")
        self.args = args
        c = list(args.channels)
        self.stem = nn.Sequential(
            ConvNorm(nn.SubmConv3d(args.in_channels, c[0], args.stem_kernel, bias=False), c[0]),
            ConvNorm(nn.SubmConv3d(c[0], c[0], bias=False), c[0]),
        )
        levels = list(zip(c, c[1:]))
        self.down = [ConvNorm(nn.Conv3d(a, a, 2, 2, bias=False), a) for a, _ in levels]
        self.encoder = [residual_blocks(a, b, args.blocks) for a, b in levels]
        self.up = [ConvNorm(nn.ConvTranspose3d(b, a, 2, 2, bias=False), a) for a, b in reversed(levels)]
        self.decoder = [residual_blocks(2 * a, a, args.blocks) for a, _ in reversed(levels)]
        self.head = nn.Linear(c[0], args.num_classes)

    def __call__(self, x: SparseTensor, capacity: Sequence[int | None] | None = None) -> SparseTensor:
        rows = [None] * len(self.down) if capacity is None else levels_of(capacity)
        if len(rows) != len(self.down):
            raise ShapeError(f"capacity must have {len(self.down)} values, one a level, got {capacity}")
        x = self.stem(x)
        skips = []
        for down, block, n in zip(self.down, self.encoder, rows):
            skips.append(x)
            x = down(x, capacity=n)
            for unit in block.layers:  # and not block(x), which would hold x to its end
                x = unit(x)
        for up, block in zip(self.up, self.decoder):
            x = ops.cat([up(x, out=skips[-1]), skips.pop()])  # and lets go of them
            for unit in block.layers:
                x = unit(x)
        return self.head(x)
