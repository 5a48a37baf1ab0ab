"""The dense layer's product on the rows of a sparse tensor."""

from __future__ import annotations

import mlx.core as mx

from ..backend import executor
from ..engine import dense
from ..errors import DTypeError, ShapeError
from ..tensor import SparseTensor
from .check import check_tensor
from .conv import on_map


def linear(x: SparseTensor, w: mx.array, bias: mx.array | None = None) -> SparseTensor:
    """y = x W^T + b on every active row: w (Co, Ci), bias (Co,), in x's dtype."""
    check_tensor(x)
    for name, a in (("weight", w), ("bias", bias)):
        if not isinstance(a, mx.array) and not (name == "bias" and a is None):
            raise ShapeError(f"{name} must be an mlx array, got {type(a).__name__}")
    if w.ndim != 2 or w.shape[1] != x.num_channels:
        raise ShapeError(
            f"weight must have shape (Co, {x.num_channels}) for this input, got {tuple(w.shape)}"
        )
    if bias is not None and bias.shape != (w.shape[0],):
        raise ShapeError(f"bias must have shape ({w.shape[0]},), got {tuple(bias.shape)}")
    if w.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        raise DTypeError(f"weight is {w.dtype}, feats are {x.dtype}: cast one (layer.set_dtype, x.astype)")
    if x._key is not None and executor() == "kernel":
        return x.replace(
            on_map("linear", x._key._record.identity, x.feats, w, bias, made=x._made), clean=True
        )
    return x.replace(dense.linear(x.feats, w, bias, x.active), clean=True)
