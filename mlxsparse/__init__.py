"""Sparse 3-D convolution and block sparsity for Apple MLX."""

from __future__ import annotations

from . import backend, blocks, blocksparse, errors, masks, nn, ops
from .backend.mail import wait
from .compiled import bucket, compile
from .coords import CoordinateManager, CoordinateMapKey, Kernel, KernelMap
from .ops.storage import load, save
from .ops.voxel import Voxels, coalesce, voxelize
from .tensor import SparseTensor
from .transforms import checkpoint, staged

__version__ = "0.1.0"

__all__ = [
    "CoordinateManager",
    "CoordinateMapKey",
    "Kernel",
    "KernelMap",
    "SparseTensor",
    "Voxels",
    "backend",
    "blocks",
    "blocksparse",
    "bucket",
    "checkpoint",
    "coalesce",
    "compile",
    "errors",
    "load",
    "masks",
    "nn",
    "ops",
    "save",
    "staged",
    "voxelize",
    "wait",
]
