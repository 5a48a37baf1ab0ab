"""Networks, one file each."""

from __future__ import annotations

from .minkunet import MinkUNet
from .voxel_transformer import VoxelTransformer

__all__ = ["MinkUNet", "VoxelTransformer"]
