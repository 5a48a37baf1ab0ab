"""Block-sparse matrices: layouts, products, softmax and attention on (Z, H, M, N) arrays."""

from __future__ import annotations

from .attention import block_sparse_attention
from .layout import BlockLayout
from .matmul import SparseMatMul, dds, dsd, sdd
from .modules import BlockSparseLinear, SparseMultiheadAttention
from .patterns import BigBird, BSLongformer, Dense, Fixed, LocalWindow, Strided, Variable
from .sequences import segment_ids
from .softmax import SparseSoftmax, sparse_softmax
from .tensor import BlockSparseTensor, carry, pack, unpack
from .voxel_patterns import Neighbor3d, VoxelWindow

__all__ = [
    "BSLongformer",
    "BigBird",
    "BlockLayout",
    "BlockSparseLinear",
    "BlockSparseTensor",
    "Dense",
    "Fixed",
    "LocalWindow",
    "Neighbor3d",
    "SparseMatMul",
    "SparseMultiheadAttention",
    "SparseSoftmax",
    "Strided",
    "Variable",
    "VoxelWindow",
    "block_sparse_attention",
    "carry",
    "dds",
    "dsd",
    "pack",
    "sdd",
    "segment_ids",
    "sparse_softmax",
    "unpack",
]
