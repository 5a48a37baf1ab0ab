"""Block-sparse matrices: layouts, products, softmax and attention on (Z, H, M, N) arrays."""

from __future__ import annotations

from .layout import BlockLayout, segment_ids
from .matmul import SparseMatMul, dds, dsd, sdd
from .tensor import BlockSparseTensor, carry, pack, unpack

__all__ = [
    "BlockLayout",
    "BlockSparseTensor",
    "SparseMatMul",
    "carry",
    "dds",
    "dsd",
    "pack",
    "sdd",
    "segment_ids",
    "unpack",
]
