"""Block-sparse matrices: layouts, products, softmax and attention on (Z, H, M, N) arrays."""

from __future__ import annotations

from .attention import block_sparse_attention
from .layout import BlockLayout, segment_ids
from .matmul import SparseMatMul, dds, dsd, sdd
from .softmax import SparseSoftmax, sparse_softmax
from .tensor import BlockSparseTensor, carry, pack, unpack

__all__ = [
    "BlockLayout",
    "BlockSparseTensor",
    "SparseMatMul",
    "SparseSoftmax",
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
