"""BlockSparseTensor: packed values of a layout's blocks."""

from __future__ import annotations

import weakref
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend.features import filling
from ..engine import block_matmul
from ..engine.rows import take_rows
from ..errors import DTypeError, IdentityError, MLXSparseError, ShapeError
from .check import check_float, check_shape
from .layout import BlockLayout, check_layout

_layouts: weakref.WeakValueDictionary[str, BlockLayout] = weakref.WeakValueDictionary()


def pack(x: mx.array, layout: BlockLayout) -> mx.array:
    """The layout's blocks of x: (Z, H, M, N) -> (Z, nnz, br, bc), 0 outside the matrix. Differentiable."""
    check_float("x", x)
    check_layout(layout)
    check_shape("x", x, (None, layout.num_heads, *layout.shape), f" to fit {layout}")
    return block_matmul.pack(x, layout.index)


def unpack(values: mx.array, layout: BlockLayout, fill: float = 0.0) -> mx.array:
    """The matrix with these blocks, `fill` elsewhere: (Z, nnz, br, bc) -> (Z, H, M, N). Differentiable."""
    check_values("values", values, layout)
    return block_matmul.unpack(values, layout.index, filling(fill))


def carry(values: mx.array, gather_idx: np.ndarray, fill: float = 0.0) -> mx.array:
    """Values on an updated layout: (Z, nnz, br, bc) -> (Z, len(gather_idx), br, bc); `fill` if new.

    gather_idx: (n,) integers in [-1, nnz), -1 for new blocks, as BlockLayout.update gives them. Raises
    ShapeError, DTypeError and MLXSparseError.
    """
    check_float("values", values)
    check_shape("values", values, (None,) * 4, "")
    z, nnz, br, bc = values.shape
    rows = np.asarray(gather_idx)
    if rows.ndim != 1:
        raise ShapeError(f"gather_idx has shape {rows.shape}, wanted (n,)")
    if rows.size and rows.dtype.kind not in "iu":
        raise DTypeError(f"gather_idx is {rows.dtype}, wanted integers")
    if rows.size and (rows.min() < -1 or rows.max() >= nnz):
        raise MLXSparseError(f"gather_idx reaches from {rows.min()} to {rows.max()}, wanted [-1, {nnz})")
    rows = rows.astype(np.int32)
    every = (np.arange(z, dtype=np.int32)[:, None] * nnz + rows).astype(np.int32)
    moved = take_rows(
        values.reshape(z * nnz, br * bc),
        np.where(rows < 0, -1, every).astype(np.int32).reshape(-1),
        filling(fill),
    )
    return moved.reshape(z, len(rows), br, bc)


def check_values(name: str, values: mx.array, layout: BlockLayout, batch: int | None = None) -> None:
    check_float(name, values)
    check_layout(layout)
    if values.shape[1:] != (layout.nnz, *layout.block) or batch not in (None, values.shape[0]):
        check_shape(name, values, (batch, layout.nnz, *layout.block), f" (Z, nnz, br, bc) to fit {layout}")


class BlockSparseTensor(tuple):
    """Packed values (Z, nnz, br, bc) and the layout that says where they are.

    It is a tuple so that MLX's transformations take it apart and put it together again. Differentiate in its
    `values`: MLX takes arrays only for what it differentiates in, and a module that holds it has no parameter
    in it (none is trained or saved): hold the values. Raises ShapeError where they do not fit the layout.
    """

    _layout: BlockLayout

    def __new__(cls, values: Any, layout: BlockLayout | None = None) -> BlockSparseTensor:
        if layout is None:
            leaves = tuple(values)
            found = _layouts.get(leaves[1]) if len(leaves) == 2 and isinstance(leaves[1], str) else None
            if found is None:
                raise IdentityError("BlockSparseTensor(values, layout) needs a layout")
        else:
            check_values("values", values, layout)
            found = _layouts.setdefault(layout._digest, layout)
            leaves = (values, layout._digest)
        made = tuple.__new__(cls, leaves)
        made._layout = found
        return made

    @property
    def values(self) -> mx.array:
        """(Z, nnz, br, bc)."""
        found: mx.array = tuple.__getitem__(self, 0)
        return found

    @property
    def layout(self) -> BlockLayout:
        return self._layout

    @property
    def dtype(self) -> mx.Dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(Z, H, M, N) of the matrix."""
        return (self.values.shape[0], self.layout.num_heads, *self.layout.shape)

    @classmethod
    def from_dense(cls, x: mx.array, layout: BlockLayout) -> BlockSparseTensor:
        """The layout's blocks of x (Z, H, M, N)."""
        return cls(pack(x, layout), layout)

    def to_dense(self, fill: float = 0.0) -> mx.array:
        """(Z, H, M, N), `fill` where no block is stored."""
        return unpack(self.values, self.layout, fill)

    def t(self) -> BlockSparseTensor:
        """The transposed matrix, blocks in its own packed order."""
        turned = carry(self.values, self.layout.col_order).swapaxes(2, 3)
        return BlockSparseTensor(turned, self.layout.t())

    def update(self, new: Any, fill: float = 0.0) -> BlockSparseTensor:
        """On another choice of blocks (see BlockLayout.update); surviving blocks keep their values."""
        layout, gather_idx = self.layout.update(new)
        return BlockSparseTensor(carry(self.values, gather_idx, fill), layout)

    def astype(self, dtype: mx.Dtype) -> BlockSparseTensor:
        return BlockSparseTensor(self.values.astype(dtype), self.layout)

    def __getitem__(self, key: Any) -> Any:
        raise TypeError("BlockSparseTensor is not indexed: use .values, .layout or .to_dense()")

    def __len__(self) -> int:
        return 2

    def __add__(self, other: Any) -> Any:
        raise TypeError("BlockSparseTensor has no arithmetic: use .values")

    __mul__ = __rmul__ = __add__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        return BlockSparseTensor, (self.values, self.layout)

    def __repr__(self) -> str:
        return f"BlockSparseTensor(shape={self.shape}, dtype={self.dtype}, {self.layout})"
