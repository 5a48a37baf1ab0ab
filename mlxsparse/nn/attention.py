"""Attention on sparse tensors: rotary embedding, self and cross attention, the transformer block."""

from __future__ import annotations

import mlx.core as mx
from mlx.nn import Module

from .. import ops
from ..coords.geometry import TripleLike, triple, whole
from ..engine import dense
from ..engine.activation import gelu
from ..engine.curves import ORDERS
from ..errors import DTypeError, MLXSparseError, ShapeError
from ..ops.attention import check_turns, number
from ..tensor import FLOATS, SparseTensor
from .conv import SubmConv3d
from .layers import Linear
from .norm import LayerNorm

MODES = ("window", "serialized", "full")
Context = SparseTensor | mx.array


class RoPE3d(Module):
    """Rotary position embedding by the coordinates of a tensor's rows: ops.rope3d.

    dims: channels of a head, even and at least 6. Called with (x, a): a (capacity, H, dims) beside x's rows.
    """

    def __init__(self, dims: int, traditional: bool = True, base: float = 10000.0, scale: float = 1.0):
        super().__init__()
        dims, (base, scale) = whole(dims, "dims"), check_turns(base, scale)
        if dims % 2 or dims < 6:
            raise ShapeError(f"RoPE3d needs an even number of at least 6 channels a head, got {dims}")
        self.dims, self.traditional, self.base, self.scale = dims, traditional, base, scale

    def __call__(self, x: SparseTensor, a: mx.array) -> mx.array:
        if isinstance(a, mx.array) and (a.ndim != 3 or a.shape[2] != self.dims):
            raise ShapeError(f"RoPE3d({self.dims}) got an array of shape {tuple(a.shape)}")
        return ops.rope3d(x, a, base=self.base, scale=self.scale, traditional=self.traditional)

    def _extra_repr(self) -> str:
        return f"{self.dims}, traditional={self.traditional}, base={self.base}, scale={self.scale}"


class SparseAttention(Module):
    """Multi-head attention between the sites of a tensor, or from them to a context.

    Args:
        dims: channels in and out, divisible by num_heads.
        mode: "window" (ops.window_attention with `window` and `shift`), "serialized"
            (ops.serialized_attention with `patch_size` and `order`), or "full", each batch item whole.
        rope: turn queries and keys by their coordinates (self attention only).
        qk_norm: divide each query and key by its root mean square and multiply by a learned weight (H, D).
        context_dims: channels of the context; the layer is then cross attention, called with (x, context).
            A context is a SparseTensor of the same batch_size, or (B, L, context_dims). A site sees all of
            its item's, so windows and patches of one's own raise MLXSparseError.
        bias: of the projections.

    Self attention has `qkv` (3 * dims, dims), queries first; cross attention `q` and `kv`. Both have `out`.
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        *,
        mode: str = "window",
        window: TripleLike = 8,
        shift: TripleLike = 0,
        patch_size: int = 1024,
        order: str = "hilbert",
        rope: bool = True,
        qk_norm: bool = False,
        context_dims: int | None = None,
        bias: bool = True,
    ):
        super().__init__()
        dims, num_heads = whole(dims, "dims", 1), whole(num_heads, "num_heads", 1)
        if dims % num_heads:
            raise ShapeError(f"num_heads={num_heads} must divide dims={dims}")
        if mode not in MODES:
            raise MLXSparseError(f"mode must be one of {MODES}, got {mode!r}")
        if order not in ORDERS:
            raise MLXSparseError(f"order must be one of {ORDERS}, got {order!r}")
        patch_size = whole(patch_size, "patch_size", 1)
        sides, offset = triple(window, "window", least=1), triple(shift, "shift")
        if context_dims is not None:
            changed = {
                "mode": mode == "serialized",
                "window": sides != (8, 8, 8),
                "shift": offset != (0, 0, 0),
                "patch_size": patch_size != 1024,
                "order": order != "hilbert",
            }
            if unused := [name for name, differs in changed.items() if differs]:
                raise MLXSparseError(
                    f"cross attention has no use for {', '.join(unused)}: a site sees the whole context; "
                    "leave out what chooses windows or patches, or context_dims"
                )
        self.num_heads, self.head_dims, self.mode = num_heads, dims // num_heads, mode
        self.window, self.shift, self.patch_size, self.order = window, shift, patch_size, order
        if context_dims is None:
            self.qkv = Linear(dims, 3 * dims, bias)
            if rope:
                self.rope = RoPE3d(dims // num_heads)
        else:
            self.q = Linear(dims, dims, bias)
            self.kv = Linear(whole(context_dims, "context_dims", 1), 2 * dims, bias)
        if qk_norm:
            self.q_scale = mx.ones((num_heads, dims // num_heads))
            self.k_scale = mx.ones((num_heads, dims // num_heads))
        self.out = Linear(dims, dims, bias)

    def __call__(self, x: SparseTensor, context: Context | None = None) -> SparseTensor:
        if ("kv" in self) != (context is not None):
            wanted = "(x, context)" if "kv" in self else "(x) alone"
            raise ShapeError(f"this SparseAttention is called with {wanted}: see context_dims")
        y = self._self(x) if context is None else self._cross(x, context)
        return self.out(x.replace(y.reshape(x.capacity, self.num_heads * self.head_dims)))

    def _self(self, x: SparseTensor) -> mx.array:
        q, k, v = self._split(self.qkv(x).feats, 3)
        q, k = self._normalized(q, "q_scale"), self._normalized(k, "k_scale")
        if "rope" in self:
            q, k = self.rope(x, q), self.rope(x, k)
        if self.mode == "window":
            return ops.window_attention(x, q, k, v, self.window, self.shift)
        if self.mode == "serialized":
            return ops.serialized_attention(x, q, k, v, self.patch_size, self.order)
        return ops.batch_attention(x, q, k, v)

    def _cross(self, x: SparseTensor, context: Context) -> mx.array:
        (q,) = self._split(self.q(x).feats, 1)
        q = self._normalized(q, "q_scale")
        if isinstance(context, SparseTensor):
            k, v = self._split(self.kv(context).feats, 2)
            return ops.batch_attention(x, q, self._normalized(k, "k_scale"), v, context)
        if not isinstance(context, mx.array) or context.dtype not in FLOATS:
            kind = context.dtype if isinstance(context, mx.array) else type(context).__name__
            raise DTypeError(f"context must be a SparseTensor or a floating MLX array, got {kind}")
        if context.shape[:1] != (x.batch_size,) or context.shape[2:] != (self.kv.weight.shape[1],):
            raise ShapeError(
                f"context must have shape ({x.batch_size}, L, {self.kv.weight.shape[1]}) for this layer and "
                f"batch, got {tuple(context.shape)}"
            )
        items, length, channels = context.shape
        rows = context.reshape(items * length, channels)
        k, v = self._split(dense.linear(rows, self.kv.weight, self.kv.get("bias"), len(rows)), 2)
        k = self._normalized(k, "k_scale")
        shape = (items, length, self.num_heads, self.head_dims)
        return ops.batch_attention(x, q, k.reshape(shape), v.reshape(shape))

    def _split(self, a: mx.array, parts: int) -> list[mx.array]:
        """(n, parts * dims) -> `parts` arrays (n, H, D)."""
        whole = a.reshape(a.shape[0], parts, self.num_heads, self.head_dims)
        return [whole[:, i] for i in range(parts)]

    def _normalized(self, a: mx.array, name: str) -> mx.array:
        if name not in self:
            return a
        wide = a.astype(mx.float32)
        wide = wide * mx.rsqrt((wide * wide).mean(axis=2, keepdims=True) + 1e-6)
        return (wide * self[name]).astype(a.dtype)

    def _extra_repr(self) -> str:
        how = {
            "window": f"window={self.window}, shift={self.shift}",
            "serialized": f"patch_size={self.patch_size}, order={self.order!r}",
            "full": "mode='full'",
        }
        kind = f"context_dims={self.kv.weight.shape[1]}" if "kv" in self else how[self.mode]
        return f"{self.out.weight.shape[0]}, num_heads={self.num_heads}, {kind}"


class SparseTransformerBlock(Module):
    """x + attention(norm(x)), with a context x + cross attention(norm(x), context), then x + MLP(norm(x)).

    Args:
        dims, num_heads, mode, window, shift, patch_size, order, rope, qk_norm: of SparseAttention.
        mlp_ratio: channels inside the MLP over dims.
        context_dims: with cross attention to a context of so many channels, given in the call.
        positional_conv: first x + 3x3x3 submanifold convolution (conditional positional encoding).
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        *,
        mode: str = "window",
        window: TripleLike = 8,
        shift: TripleLike = 0,
        patch_size: int = 1024,
        order: str = "hilbert",
        rope: bool = True,
        qk_norm: bool = False,
        mlp_ratio: float = 4.0,
        context_dims: int | None = None,
        positional_conv: bool = False,
    ):
        super().__init__()
        if positional_conv:
            self.position = SubmConv3d(dims, dims, 3)
        self.attention_norm = LayerNorm(dims)
        self.attention = SparseAttention(
            dims, num_heads, mode=mode, window=window, shift=shift, patch_size=patch_size, order=order,
            rope=rope, qk_norm=qk_norm,
        )  # fmt: skip
        if context_dims is not None:
            self.cross_norm = LayerNorm(dims)
            self.cross = SparseAttention(dims, num_heads, qk_norm=qk_norm, context_dims=context_dims)
        hidden = max(1, round(dims * number(mlp_ratio, "mlp_ratio")))
        self.mlp_norm = LayerNorm(dims)
        self.mlp_in, self.mlp_out = Linear(dims, hidden), Linear(hidden, dims)

    def __call__(self, x: SparseTensor, context: Context | None = None) -> SparseTensor:
        if ("cross" in self) != (context is not None):
            wanted = "(x, context)" if "cross" in self else "(x) alone"
            raise ShapeError(f"this SparseTransformerBlock is called with {wanted}: see context_dims")
        if "position" in self:
            x = x + self.position(x)
        x = x + self.attention(self.attention_norm(x))
        if context is not None:
            x = x + self.cross(self.cross_norm(x), context)
        y = self.mlp_in(self.mlp_norm(x))
        return x + self.mlp_out(y.replace(gelu(y.feats, y.num_active)))
