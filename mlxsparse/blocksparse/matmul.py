"""Products of dense and block-sparse matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..engine import block_matmul
from ..errors import MLXSparseError, ShapeError
from .check import as_layout_mask, block_pair, check_float, check_path, check_same_dtype, whole_numbers
from .layout import BlockLayout, check_layout
from .tensor import BlockSparseTensor, check_values

MODES = ("sdd", "dsd", "dds")
Sparse = mx.array | BlockSparseTensor


def sdd(
    a: mx.array,
    b: mx.array,
    layout: BlockLayout,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    path: str | None = None,
) -> mx.array:
    """The layout's blocks of op(a) @ op(b), a and b dense.

    a (Z, H, M, K), or (Z, H, K, M) with trans_a; b (Z, H, K, N), or (Z, H, N, K) with trans_b; any K.
    -> (Z, nnz, br, bc) of their dtype, float32 sums, 0 outside the matrix. Differentiable in both.
    path: None (chosen by density), "blocks" or "dense"; on a GPU "dense" lets NaN pass through absent blocks.
    Raises ShapeError and DTypeError.
    """
    check_path(path)
    check_layout(layout)
    if (found := _known("sdd", a, b, layout, trans_a, trans_b, path)) is not None:
        return found
    _check_dense("a", a, layout)
    _check_dense("b", b, layout)
    check_same_dtype(a=a, b=b)
    m, k = _axes(a, trans_a)
    k2, n = _axes(b, trans_b)
    (wanted_m, wanted_n), flags = layout.shape, f"trans_a={trans_a}, trans_b={trans_b}"
    if m != wanted_m:
        raise _misfit("sdd", "a", a, trans_a, f"{wanted_m} rows after transposition", layout, flags)
    if n != wanted_n:
        raise _misfit("sdd", "b", b, trans_b, f"{wanted_n} columns after transposition", layout, flags)
    if k != k2 or a.shape[0] != b.shape[0]:
        raise ShapeError(f"sdd: a {tuple(a.shape)} and b {tuple(b.shape)} do not multiply with {flags}")
    return block_matmul.sdd(a, b, layout.index, trans_a, trans_b, path)


def dsd(
    s: Sparse,
    b: mx.array,
    layout: BlockLayout | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    path: str | None = None,
) -> mx.array:
    """op(S) @ op(b), S block-sparse and b dense.

    s: packed values (Z, nnz, br, bc) of `layout`, which describes S as it is stored, or a BlockSparseTensor.
    b (Z, H, K, N), or (Z, H, N, K) with trans_b -> (Z, H, M, N), float32 sums; rows without blocks are 0.
    Differentiable in both. path: as sdd. Raises ShapeError and DTypeError.
    """
    check_path(path)
    values, layout = _sparse("a", s, layout)
    if (found := _known("dsd", values, b, layout, trans_a, trans_b, path)) is not None:
        return found
    _check_dense("b", b, layout)
    check_values("a", values, layout, b.shape[0])
    check_same_dtype(a=values, b=b)
    wanted = layout.shape[0 if trans_a else 1]
    if _axes(b, trans_b)[0] != wanted:
        flags = f"trans_a={trans_a}, trans_b={trans_b}"
        raise _misfit("dsd", "b", b, trans_b, f"{wanted} rows after transposition", layout, flags)
    return block_matmul.dsd(values, b, layout.index, trans_a, trans_b, path)


def dds(
    a: mx.array,
    s: Sparse,
    layout: BlockLayout | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    path: str | None = None,
) -> mx.array:
    """op(a) @ op(S), a dense and S block-sparse.

    a (Z, H, M, K), or (Z, H, K, M) with trans_a; s as in dsd -> (Z, H, M, N), float32 sums; columns without
    blocks are 0. Differentiable in both. path: as sdd. Raises ShapeError and DTypeError.
    """
    check_path(path)
    values, layout = _sparse("b", s, layout)
    if (found := _known("dds", a, values, layout, trans_a, trans_b, path)) is not None:
        return found
    _check_dense("a", a, layout)
    check_values("b", values, layout, a.shape[0])
    check_same_dtype(a=a, b=values)
    wanted = layout.shape[1 if trans_b else 0]
    if _axes(a, trans_a)[1] != wanted:
        flags = f"trans_a={trans_a}, trans_b={trans_b}"
        raise _misfit("dds", "a", a, trans_a, f"{wanted} columns after transposition", layout, flags)
    return block_matmul.dds(a, values, layout.index, trans_a, trans_b, path)


class SparseMatMul:
    """One of the three products with a fixed layout: ``SparseMatMul(layout, block, "sdd")(a, b)``.

    Args:
        layout: a BlockLayout, or 0/1 integers or booleans (H, R, C) or (R, C). It describes the sparse
            operand as it is stored ("dsd": a, "dds": b), or the result ("sdd").
        block: an int or (rows, columns); None with a BlockLayout.
        mode: "sdd", "dsd" or "dds": sparse or dense result, left and right operand.
        trans_a, trans_b: the operand is stored transposed.
        shape: (M, N) in elements where the last blocks lie partly outside.
        path: as in sdd.
    """

    def __init__(
        self,
        layout: Any,
        block: int | Sequence[int] | None,
        mode: str,
        trans_a: bool = False,
        trans_b: bool = False,
        *,
        shape: Sequence[int] | None = None,
        path: str | None = None,
    ):
        if mode not in MODES:
            raise MLXSparseError(f"mode must be one of {MODES}, got {mode!r}")
        check_path(path)
        self.layout = as_layout(layout, block, shape)
        self.mode, self.trans_a, self.trans_b, self.path = mode, bool(trans_a), bool(trans_b), path

    def __call__(self, a: Any, b: Any) -> mx.array:
        product: Any = {"sdd": sdd, "dsd": dsd, "dds": dds}[self.mode]
        result: mx.array = product(
            a, b, self.layout, trans_a=self.trans_a, trans_b=self.trans_b, path=self.path
        )
        return result

    def __repr__(self) -> str:
        return f"SparseMatMul({self.mode}, trans_a={self.trans_a}, trans_b={self.trans_b}, {self.layout})"


def as_layout(
    layout: Any, block: int | Sequence[int] | None, shape: Sequence[int] | None = None
) -> BlockLayout:
    """A BlockLayout as it is; a 0/1 or boolean mask with its block size."""
    if isinstance(layout, BlockLayout):
        if block is not None and block_pair(block) != layout.block:
            raise ShapeError(f"block={block} does not fit {layout}")
        if shape is not None and whole_numbers("shape", shape) != layout.shape:
            raise ShapeError(f"shape={tuple(shape)} does not fit {layout}")
        return layout
    if block is None:
        raise ShapeError("a mask needs block=")
    return BlockLayout(as_layout_mask(layout), block, shape=shape)


def _known(
    mode: str, a: mx.array, b: mx.array, layout: BlockLayout, ta: bool, tb: bool, path: str | None
) -> mx.array | None:
    """The product where such a call was checked and made before, on a GPU; else None."""
    if not isinstance(a, mx.array) or not isinstance(b, mx.array):
        return None
    return block_matmul.known(mode, a, b, layout.index, ta, tb, path)


def _sparse(name: str, s: Sparse, layout: BlockLayout | None) -> tuple[mx.array, BlockLayout]:
    if isinstance(s, BlockSparseTensor):
        if layout is not None and layout != s.layout:
            raise ShapeError(f"{name} has {s.layout}, the call names {layout}")
        return s.values, s.layout
    if layout is None:
        raise ShapeError(f"{name} is packed values: pass their layout, or a BlockSparseTensor")
    return check_float(name, s), check_layout(layout)


def _check_dense(name: str, a: mx.array, layout: BlockLayout) -> None:
    check_float(name, a)
    if a.ndim != 4 or a.shape[1] != layout.num_heads:
        raise ShapeError(
            f"{name} has shape {tuple(a.shape)}, wanted (Z, H, rows, columns) with H = {layout.num_heads}"
        )


def _axes(a: mx.array, transposed: bool) -> tuple[int, int]:
    rows, columns = a.shape[2], a.shape[3]
    return (columns, rows) if transposed else (rows, columns)


def _misfit(
    mode: str, name: str, a: mx.array, transposed: bool, wanted: str, layout: BlockLayout, flags: str
) -> ShapeError:
    hint = f"trans_{name}={not transposed} or {name}.swapaxes(-1, -2)"
    return ShapeError(
        f"{mode}: {name} has shape {tuple(a.shape)}, wanted {wanted} with {flags} for {layout}; "
        f"if it is stored the other way, pass {hint}"
    )
