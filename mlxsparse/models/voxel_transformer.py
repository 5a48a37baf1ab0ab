"""VoxelTransformer: a U-Net of windowed attention over voxels, for semantic segmentation.

Levels as in MinkUNet: k2 s2 convolutions halve the lattice, their transposes go back onto the encoder's
sites. On each level transformer blocks attend inside windows, every second one inside windows moved by half;
what lies further apart meets on a coarser level. The first block of each level starts with a convolution,
which tells neighbours apart (Point Transformer V3, CVPR 2024).
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlx.nn import Module

from .. import nn, ops
from ..errors import CheckpointError, ShapeError
from ..tensor import SparseTensor
from .minkunet import MAX_BLOCKS, MAX_CHANNELS, MAX_SIZE, SIZES, levels_of, within


@dataclass
class ModelArgs:
    """Channels in and classes out; channels of each level; blocks per level and path; of attention: channels
    of a head, sites of a window's side; channels inside the MLPs over those outside."""

    in_channels: int
    num_classes: int
    channels: Sequence[int] = (32, 64, 128, 256)
    blocks: int = 2
    head_channels: int = 16
    window: int = 8
    mlp_ratio: float = 2.0

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> ModelArgs:
        """From a config.json entry; CheckpointError for a missing, unknown or impossible value."""
        try:
            args = cls(**config)
        except TypeError as error:
            raise CheckpointError(
                f"the model entry of config.json does not fit VoxelTransformer: {error}"
            ) from None
        if not args.possible():
            raise CheckpointError(
                "the model entry of config.json is not a VoxelTransformer's, which has sizes of "
                f"{SIZES}: {config}"
            )
        return args

    def possible(self) -> bool:
        """Whether a network can have these sizes."""
        widths, ratio, head = levels_of(self.channels), self.mlp_ratio, self.head_channels
        others = [self.in_channels, self.num_classes, self.window]
        if not (widths and within([head, *widths], MAX_CHANNELS) and within([self.blocks], MAX_BLOCKS)):
            return False
        if not (within(others, MAX_SIZE) and isinstance(ratio, numbers.Real) and 0 < ratio <= MAX_SIZE):
            return False
        return head >= 6 and head % 2 == 0 and all(c % head == 0 for c in widths)

    def to_dict(self) -> dict[str, Any]:
        """As config.json holds it."""
        plain = {k: int(v) for k, v in asdict(self).items() if k not in ("channels", "mlp_ratio")}
        return {**plain, "channels": [int(c) for c in self.channels], "mlp_ratio": float(self.mlp_ratio)}


class VoxelTransformer(Module):
    """SparseTensor with `in_channels` in, logits (num_classes channels) on the same sites out."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        if not args.possible():
            raise ShapeError(
                f"a VoxelTransformer has sizes of {SIZES}, heads of 6, 8, ... channels and levels of whole "
                f"heads, got {args}"
            )
        self.args = args
        c = list(args.channels)
        self.stem = nn.Sequential(
            nn.SubmConv3d(args.in_channels, c[0], 3, bias=False), nn.LayerNorm(c[0]), nn.GELU()
        )
        levels = list(zip(c, c[1:]))
        self.encoder = [self._blocks(width) for width in c]
        self.down = [nn.Sequential(nn.Conv3d(a, b, 2, 2), nn.LayerNorm(b)) for a, b in levels]
        self.up = [nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(levels)]
        self.join = [nn.Linear(2 * a, a) for a, _ in reversed(levels)]
        self.decoder = [self._blocks(a) for a, _ in reversed(levels)]
        self.norm = nn.LayerNorm(c[0])
        self.head = nn.Linear(c[0], args.num_classes)

    def _blocks(self, width: int) -> nn.Sequential:
        a = self.args
        return nn.Sequential(
            *(
                nn.SparseTransformerBlock(
                    width,
                    width // a.head_channels,
                    window=a.window,
                    shift=a.window // 2 if i % 2 else 0,
                    mlp_ratio=a.mlp_ratio,
                    positional_conv=i == 0,
                )
                for i in range(a.blocks)
            )
        )

    def __call__(self, x: SparseTensor) -> SparseTensor:
        x = self.encoder[0](self.stem(x))
        skips = []
        for down, blocks in zip(self.down, self.encoder[1:]):
            skips.append(x)
            x = blocks(down(x))
        for up, join, blocks in zip(self.up, self.join, self.decoder):
            skip = skips.pop()
            x = blocks(join(ops.cat([up(x, out=skip), skip])))
        return self.head(self.norm(x))
