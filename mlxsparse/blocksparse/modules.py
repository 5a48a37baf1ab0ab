"""Layers with block-sparse weights or block-sparse attention, on arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from ..backend import executor
from ..backend.features import zero_padding
from ..backend.untrained import Stored
from ..engine.dense import linear
from ..errors import DTypeError, MLXSparseError, ShapeError
from .attention import block_sparse_attention
from .check import check_float
from .layout import BlockLayout
from .matmul import Sparse, as_layout, dds


class BlockSparseLinear(Stored):
    """y = x W + b with a block-sparse W (input_dims, output_dims); `weight` (nnz, br, bc) in packed order.

    Args:
        input_dims, output_dims: channels; last blocks may lie partly outside.
        block: an int or (rows, columns); None with a BlockLayout.
        layout: a BlockLayout of shape (input_dims, output_dims), or 0/1 integers or booleans
            (ceil(input_dims / rows), ceil(output_dims / columns)).
        bias: learn an additive bias.

    Called with an array (..., input_dims), or with a SparseTensor, whose features it replaces.

    `weight_blocks` bool (ceil(input_dims / rows), ceil(output_dims / columns)), frozen, is the layout as it
    goes into files with the weights; loading those of another layout is a CheckpointError.
    """

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        block: int | Sequence[int] | None,
        layout: Any,
        bias: bool = True,
    ):
        super().__init__()
        self._layout = as_layout(layout, block, (input_dims, output_dims))
        if self._layout.num_heads != 1:
            raise ShapeError(f"layout has {self._layout.num_heads} heads, wanted 1")
        # As a dense layer of the inputs that an output really has.
        scale = 1 / math.sqrt(max(1.0, input_dims * self._layout.density))
        self.weight = mx.random.uniform(-scale, scale, self._layout.packed_shape()[1:])
        self._store("weight_blocks", self._layout.to_dense()[0])
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (output_dims,))

    @property
    def layout(self) -> BlockLayout:
        return self._layout

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, mx.array):
            if not hasattr(x, "replace") or not hasattr(x, "feats"):
                raise DTypeError(f"x is a {type(x).__name__}, wanted an MLX array or a SparseTensor")
            # What padding rows hold reaches no gradient, and the bias does not stay in them.
            if executor() == "host":
                rows = x.key.count  # the others are not computed
                y = self(x.feats[:rows])
                y = mx.pad(y, [(0, x.capacity - rows), (0, 0)]) if rows < x.capacity else y
                return x.replace(y, clean=True)
            return x.replace(self(x.feats if x.clean else zero_padding(x.feats, x.active_rows)))
        check_float("x", x)
        if x.ndim < 1 or x.shape[-1] != self._layout.shape[0]:
            raise ShapeError(f"x has shape {tuple(x.shape)}, wanted (..., {self._layout.shape[0]})")
        flat = x.reshape(1, 1, math.prod(x.shape[:-1]), x.shape[-1])
        y = dds(flat, self.weight[None].astype(x.dtype), self._layout)
        y = y.reshape(*x.shape[:-1], self._layout.shape[1])
        return y + self.bias.astype(x.dtype) if "bias" in self else y

    def update_layout(self, new: Any, fill: float = 0.0, *, state: Any = None) -> None:
        """Store other blocks; surviving ones keep their weights, new ones hold `fill`.

        new: a BlockLayout or a mask, as `layout`.
        state: this layer's part of an optimizer's state, as ``optimizer.state["layers"][2]`` for `layers[2]`
            of the model: changed in place, so that momentum and the like go with their blocks, 0 for new
            ones. Without it an optimizer that has made a step goes on with the state of other blocks.
            MLXSparseError where it is of no weight, ShapeError where it is of another number of blocks.

        The next call of a function of `mlxsparse.compile` traces it anew. One of `mx.compile` keeps the
        blocks that it was traced with: make it again.
        """
        if not isinstance(new, BlockLayout):
            new = as_layout(new, self._layout.block, self._layout.shape)
        layout, gather_idx = self._layout.update(new)
        move_blocks(self, gather_idx, fill, state)
        self._layout = layout
        self._store("weight_blocks", layout.to_dense()[0])

    def _extra_repr(self) -> str:
        (i, o), block = self._layout.shape, self._layout.block
        return f"{i}, {o}, block={block}, density={self._layout.density:.3g}, bias={'bias' in self}"


def move_blocks(layer: Module, gather_idx: np.ndarray, fill: float, state: Any = None) -> None:
    """Move the blocks of a layer, of the masks that pruning gave it and of an optimizer's state to another
    layout."""
    if state is not None:  # first: it may not fit
        if not isinstance(state, dict) or "weight" not in state:
            raise MLXSparseError(
                "state must be this layer's part of an optimizer's state, with an entry 'weight', as "
                f"optimizer.state['layers'][2] for layers[2] of the model; got {_told(state)}"
            )
        state["weight"] = _moved(state["weight"], gather_idx, layer.weight.shape[0])
    layer.weight = _rows(layer.weight, gather_idx, fill)
    if "weight_keep" in layer:  # new blocks are not pruned
        layer.weight_keep = _rows(layer.weight_keep, gather_idx, True)
        if (held := layer.__dict__.get("_choices")) is not None:  # copies of the layer share it
            chosen = held.masks.get("weight", {})
            moved = {pruner: _rows(keep, gather_idx, True) for pruner, keep in chosen.items()}
            layer._choices = type(held)({**held.masks, "weight": moved})


def _moved(state: Any, gather_idx: np.ndarray, count: int) -> Any:
    """What an optimizer keeps of a weight of `count` blocks, on another layout."""
    if isinstance(state, dict):
        return {name: _moved(value, gather_idx, count) for name, value in state.items()}
    if not isinstance(state, mx.array) or not state.ndim:
        return state
    if state.shape[0] != count:
        raise ShapeError(f"state has an array of shape {tuple(state.shape)} for a weight of {count} blocks")
    return _rows(state, gather_idx, 0)


def _rows(a: mx.array, gather_idx: np.ndarray, fill: float) -> mx.array:
    """Rows of an array of any type, `fill` where gather_idx is -1."""
    new = mx.full((len(gather_idx), *a.shape[1:]), fill, a.dtype)
    here = np.flatnonzero(gather_idx >= 0)
    if len(here):
        new[mx.array(here)] = a[mx.array(gather_idx[here])]
    return new


def _told(state: Any) -> str:
    return f"entries {sorted(map(str, state))}" if isinstance(state, dict) else f"a {type(state).__name__}"


class SparseMultiheadAttention(Module):
    """Multi-head attention over the blocks of a layout.

    Args:
        embed_dim: channels of inputs and outputs, divisible by num_heads.
        num_heads: query heads.
        layout: a BlockLayout (queries, keys) of num_heads heads or one, or a mask of 0 and 1 or booleans.
        block: tokens of a block's sides; None with a BlockLayout.
        num_key_heads: heads of keys and values, a divisor of num_heads (default num_heads).
        bias: learn biases of the four projections.
        causal: a query sees keys up to its own position.

    Called with query (Z, M, E) and, for cross attention, key and value (Z, N, E) -> (Z, M, E). `bias`,
    `key_padding_mask` (True counts) and `segments` are those of block_sparse_attention. The layout is for one
    length; ``layout=`` in the call gives that of another.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        layout: Any,
        block: int | Sequence[int] | None = None,
        *,
        num_key_heads: int | None = None,
        bias: bool = True,
        causal: bool = False,
    ):
        super().__init__()
        key_heads = num_heads if num_key_heads is None else num_key_heads
        if num_heads < 1 or embed_dim % num_heads or key_heads < 1 or num_heads % key_heads:
            raise ShapeError(
                f"num_heads={num_heads} must divide embed_dim={embed_dim}, and num_key_heads={key_heads} "
                f"must divide num_heads"
            )
        self._layout = as_layout(layout, block)
        if self._layout.num_heads not in (1, num_heads):
            raise ShapeError(f"layout has {self._layout.num_heads} heads, wanted 1 or {num_heads}")
        self.num_heads, self.num_key_heads, self.causal = num_heads, key_heads, causal
        scale = 1 / math.sqrt(embed_dim)
        narrow = embed_dim // num_heads * key_heads
        for name, size in (("q", embed_dim), ("k", narrow), ("v", narrow), ("out", embed_dim)):
            self[f"{name}_weight"] = mx.random.uniform(-scale, scale, (size, embed_dim))
            if bias:
                self[f"{name}_bias"] = mx.zeros((size,))

    @property
    def layout(self) -> BlockLayout:
        return self._layout

    def _project(self, name: str, x: mx.array) -> mx.array:
        weight, bias = self[f"{name}_weight"], self.get(f"{name}_bias")
        check_float("input", x)
        if x.ndim != 3 or x.shape[2] != weight.shape[1]:
            raise ShapeError(f"input has shape {tuple(x.shape)}, wanted (Z, tokens, {weight.shape[1]})")
        z, n, _ = x.shape
        # Sizes are named, not -1, which MLX refuses for arrays without elements.
        y = linear(x.reshape(z * n, weight.shape[1]), weight, bias, z * n)
        return y.reshape(z, n, weight.shape[0])

    def __call__(
        self,
        query: mx.array,
        key: mx.array | None = None,
        value: mx.array | None = None,
        *,
        layout: BlockLayout | None = None,
        bias: Sparse | None = None,
        key_padding_mask: mx.array | None = None,
        segments: Any = None,
    ) -> mx.array:
        key = query if key is None else key
        value = key if value is None else value

        def heads(name: str, x: mx.array, count: int) -> mx.array:
            y = self._project(name, x)
            return y.reshape(*y.shape[:2], count, y.shape[2] // count).swapaxes(1, 2)

        q = heads("q", query, self.num_heads)
        k, v = heads("k", key, self.num_key_heads), heads("v", value, self.num_key_heads)
        y = block_sparse_attention(
            q,
            k,
            v,
            self._layout if layout is None else layout,
            bias=bias,
            key_padding_mask=key_padding_mask,
            segments=segments,
            causal=self.causal,
        )
        return self._project("out", y.swapaxes(1, 2).reshape(query.shape))

    def _extra_repr(self) -> str:
        return f"{self.out_weight.shape[0]}, num_heads={self.num_heads}, {self._layout}"
