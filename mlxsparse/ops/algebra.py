"""Sparse tensors joined by value: arithmetic on one key, channels side by side."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..errors import MLXSparseError, ShapeError
from ..tensor import SparseTensor, require_same_key


def cat(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """Channels of tensors with the same key side by side: (capacity, C1 + C2 + ...)."""
    tensors = list(tensors)
    if not tensors:
        raise ShapeError("cat needs at least one tensor")
    for other in tensors[1:]:
        require_same_key(tensors[0], other, "cat")
    return tensors[0].replace(mx.concatenate([t.feats for t in tensors], axis=1))


def _strict(a: SparseTensor, b: SparseTensor, join: str, name: str) -> None:
    if join != "strict":
        raise MLXSparseError(f'{name}: join must be "strict", got {join!r}')
    require_same_key(a, b, name)


def add(a: SparseTensor, b: SparseTensor, join: str = "strict") -> SparseTensor:
    """a + b on the same key."""
    _strict(a, b, join, "add")
    return a.replace(a.feats + b.feats)


def sub(a: SparseTensor, b: SparseTensor, join: str = "strict") -> SparseTensor:
    """a - b on the same key."""
    _strict(a, b, join, "sub")
    return a.replace(a.feats - b.feats)


def mul(a: SparseTensor, b: SparseTensor, join: str = "strict") -> SparseTensor:
    """a * b on the same key."""
    _strict(a, b, join, "mul")
    return a.replace(a.feats * b.feats)


def maximum(a: SparseTensor, b: SparseTensor, join: str = "strict") -> SparseTensor:
    """Elementwise maximum on the same key."""
    _strict(a, b, join, "maximum")
    return a.replace(mx.maximum(a.feats, b.feats))
