"""Masks between named regions of a grid or of sparse voxels, compiled to attention over blocks."""

from __future__ import annotations

from .attend import CompiledProgram
from .canvas import CanvasLayout, mask_to_index_pairs
from .cover import rect_cover
from .dispatch import AttentionDispatcher
from .program import Connection, ConnectionProgram
from .spec import MaskSpec, Rect, RegionSpec
from .voxels import VoxelLayout

__all__ = [
    "AttentionDispatcher",
    "CanvasLayout",
    "CompiledProgram",
    "Connection",
    "ConnectionProgram",
    "MaskSpec",
    "Rect",
    "RegionSpec",
    "VoxelLayout",
    "mask_to_index_pairs",
    "rect_cover",
]
