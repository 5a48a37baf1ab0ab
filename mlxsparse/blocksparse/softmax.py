"""Softmax over the rows of a block-sparse matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..engine import block_softmax
from ..engine.block_softmax import Added
from ..errors import DTypeError, MLXSparseError, ShapeError
from .check import check_float, check_shape
from .layout import BlockLayout
from .matmul import Sparse, as_layout
from .tensor import BlockSparseTensor, check_values

MASK_MODES = ("add", "mul", "bool")


def sparse_softmax(
    x: Any,
    layout: BlockLayout | None = None,
    *,
    scale: float | mx.array = 1.0,
    rpe: Sparse | None = None,
    key_padding_mask: mx.array | None = None,
    attn_mask: mx.array | None = None,
    key_padding_mask_mode: str = "add",
    attn_mask_mode: str = "add",
    return_lse: bool = False,
) -> Any:
    """Softmax of x * scale + rpe + masks over each row's stored blocks; absent blocks count as -inf.

    x: packed values (Z, nnz, br, bc) of `layout`, or a BlockSparseTensor; it is not changed. scale: a
    number, or an MLX scalar that may be differentiated. rpe: (Z or 1, H or 1, M, N), or a BlockSparseTensor
    of the layout. key_padding_mask (Z, N) and attn_mask (M, N), by mode: "add" floats are added, and -inf
    masks whatever x holds; "mul" 0 masks, other values do nothing; "bool" False masks.

    -> (Z, nnz, br, bc) of x's dtype, float32 inside, 0 in rows that are masked throughout and outside the
    matrix; with return_lse also the log-sum-exp (Z, H, M) float32, -inf in such rows. Differentiable in x,
    scale, rpe and masks of mode "add". Raises ShapeError and DTypeError.
    """
    if isinstance(x, BlockSparseTensor):
        if layout is not None and layout != x.layout:
            raise ShapeError(f"x has {x.layout}, the call names {layout}")
        x, layout = x.values, x.layout
    if layout is None:
        raise ShapeError("x is packed values: pass their layout, or a BlockSparseTensor")
    check_values("x", x, layout)
    batch, (m, n) = x.shape[0], layout.shape
    bias, packed = check_bias("rpe", rpe, layout, batch, layout.num_heads)
    added = Added(
        rpe=bias,
        packed=packed,
        keys=_additive("key_padding_mask", key_padding_mask, key_padding_mask_mode, (batch, n)),
        pairs=_additive("attn_mask", attn_mask, attn_mask_mode, (m, n)),
    )
    factor = scale if isinstance(scale, mx.array) else mx.array(float(scale), mx.float32)
    check_float("scale", factor)
    if factor.size != 1:
        raise ShapeError(f"scale has shape {tuple(factor.shape)}, wanted a scalar")
    found = block_softmax.softmax(x, factor, added, layout.index, return_lse)
    return tuple(found) if return_lse else found[0]


class SparseSoftmax:
    """sparse_softmax with a fixed layout: ``SparseSoftmax(layout, block)(x, scale=..., attn_mask=...)``.

    Args:
        layout: a BlockLayout, or 0/1 integers or booleans (H, R, C) or (R, C).
        block: an int or (rows, columns); None with a BlockLayout.
        shape: (M, N) in elements where the last blocks lie partly outside.
    """

    def __init__(self, layout: Any, block: int | Sequence[int] | None, *, shape: Sequence[int] | None = None):
        self.layout = as_layout(layout, block, shape)

    def __call__(
        self,
        x: Sparse,
        scale: float | mx.array = 1.0,
        rpe: Sparse | None = None,
        key_padding_mask: mx.array | None = None,
        attn_mask: mx.array | None = None,
        key_padding_mask_mode: str = "add",
        attn_mask_mode: str = "add",
    ) -> mx.array:
        found: mx.array = sparse_softmax(
            x,
            self.layout,
            scale=scale,
            rpe=rpe,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            key_padding_mask_mode=key_padding_mask_mode,
            attn_mask_mode=attn_mask_mode,
        )
        return found

    def __repr__(self) -> str:
        return f"SparseSoftmax({self.layout})"


def check_bias(
    name: str, bias: Sparse | None, layout: BlockLayout, batch: int, heads: int
) -> tuple[mx.array | None, bool]:
    """(array, whether it is packed), of shapes (Z or 1, H or 1, M, N) or (Z or 1, nnz, br, bc)."""
    if bias is None:
        return None, False
    packed = isinstance(bias, BlockSparseTensor)
    values: Any = bias.values if isinstance(bias, BlockSparseTensor) else bias
    if isinstance(bias, BlockSparseTensor) and bias.layout != layout:
        raise ShapeError(f"{name} has {bias.layout}, wanted {layout}")
    check_float(name, values)
    if packed:
        allowed = values.shape[0] in (1, batch)
    else:
        allowed = values.ndim == 4 and values.shape[0] in (1, batch) and values.shape[1] in (1, heads)
        allowed = allowed and tuple(values.shape[2:]) == layout.shape
    if not allowed:
        wanted = f"({batch} or 1, {heads} or 1, {layout.shape[0]}, {layout.shape[1]})"
        raise ShapeError(f"{name} has shape {tuple(values.shape)}, wanted {wanted}")
    return values, packed


def _additive(name: str, mask: Any, mode: str, shape: tuple[int, int]) -> mx.array | None:
    """The mask as an addend, float32 for "mul" and "bool"."""
    if mode not in MASK_MODES:
        raise MLXSparseError(f"{name}_mode must be one of {MASK_MODES}, got {mode!r}")
    if mask is None:
        return None
    if not isinstance(mask, mx.array):
        raise DTypeError(f"{name} is a {type(mask).__name__}, wanted an MLX array")
    check_shape(name, mask, shape, "")
    if mode == "add":
        if mask.dtype == mx.bool_:
            raise DTypeError(f'{name} is bool: pass {name}_mode="bool" (True is kept)')
        return check_float(name, mask)
    if mode == "bool" and mask.dtype != mx.bool_:
        raise DTypeError(f'{name} is {mask.dtype}, mode "bool" wants bool; use mask != 0, or mode "mul"')
    return masked_addend(mask)


def masked_addend(keep: mx.array) -> mx.array:
    """0 where `keep` is not 0 or False, else -inf; float32."""
    return mx.where(keep != 0, mx.array(0.0), mx.array(-float("inf")))
