"""Attention between the sites of sparse tensors: in windows, in patches along a curve, in whole batch items.

Queries, keys and values are arrays (rows, heads, channels) beside the rows of a tensor.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import host
from ..backend.features import scalar
from ..coords import groups
from ..coords.geometry import TripleLike, triple, whole
from ..engine import segment_attention
from ..engine.curves import ORDERS
from ..engine.queries import scaled
from ..engine.rows import take_rows
from ..engine.segments import Segments, Side
from ..errors import DTypeError, MLXSparseError, ShapeError, listed
from ..tensor import FLOATS, SparseTensor
from .check import check_tensor
from .sort import checked_depth

Offsets = Any  # int32 array (B + 1,), or a sequence of integers


def window_attention(
    x: SparseTensor,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    window: TripleLike,
    shift: TripleLike = 0,
    *,
    scale: float | mx.array | None = None,
) -> mx.array:
    """softmax(q k^T * scale) v between the sites of each window of x's lattice.

    A site is in window floor((c + shift) / window) of its batch item, c = (x, y, z); negative coordinates
    too. q (capacity, H, D), k (capacity, KH, D), v (capacity, KH, Dv) of one float type, row by row with x;
    KH divides H, and query head h reads key head h * KH // H. scale: 1 / sqrt(D) by default;
    an MLX array of one element may be learned.

    -> (capacity, H, Dv) of q's type, float32 inside; 0 in padding rows, which may hold anything.
    Differentiable in q, k, v and such a scale. Windows are made once for x's coordinates.
    Raises ShapeError, DTypeError.
    """
    check_tensor(x)
    size, offset = triple(window, "window", least=1), triple(shift, "shift", least=-(2**30))
    q, factor = _check(q, k, v, scale, q_rows=x.capacity, k_rows=x.capacity)
    if max(size) > 2**30 or max(offset) > 2**30:
        raise ShapeError(f"window and shift must be at most 2**30, got {size} and {offset}")
    return segment_attention.attention(q, k, v, factor, groups.windows(x.key, size, offset))


def serialized_attention(
    x: SparseTensor,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    patch_size: int,
    order: str = "hilbert",
    *,
    depth: int | None = None,
    borrow: bool = True,
    scale: float | mx.array | None = None,
) -> mx.array:
    """Attention between `patch_size` consecutive sites along a curve, item by item (Point Transformer V3).

    order, depth: as in `serialize` ("morton" is PTv3's "z"). The last patch of an item has fewer sites; with
    `borrow` it also sees the sites before it, `patch_size` in all, as PTv3 fills it. q, k, v, scale and
    result as in `window_attention`.
    """
    check_tensor(x)
    patch_size = whole(patch_size, "patch_size", 1)
    if order not in ORDERS:
        raise MLXSparseError(f"order must be one of {ORDERS}, got {order!r}")
    q, factor = _check(q, k, v, scale, q_rows=x.capacity, k_rows=x.capacity)
    depth = checked_depth(x, depth)
    segments, rows = groups.patches(x.key, patch_size, order, depth, borrow)
    if rows is not None:
        k, v = (take_rows(a.reshape(x.capacity, -1), rows).reshape(-1, *a.shape[1:]) for a in (k, v))
    return segment_attention.attention(q, k, v, factor, segments)


def batch_attention(
    x: SparseTensor,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    context: SparseTensor | None = None,
    *,
    scale: float | mx.array | None = None,
) -> mx.array:
    """Attention of all sites of a batch item to all of the same item, or to those of `context`.

    Without context k and v are (capacity, KH, D or Dv) beside x; with a context tensor of the same
    batch_size, beside its rows; or (B, L, KH, D or Dv), L tokens for each item. Items without keys give 0.
    Rest as in `window_attention`.
    """
    check_tensor(x)
    if context is None and isinstance(k, mx.array) and k.ndim == 4:
        if k.shape[0] != x.batch_size or not isinstance(v, mx.array) or v.shape[:2] != k.shape[:2]:
            raise ShapeError(
                f"k and v must be ({x.batch_size}, L, KH, channels) for this batch, got {tuple(k.shape)} and "
                f"{tuple(getattr(v, 'shape', ()))}"
            )
        items, length = k.shape[:2]
        starts = np.arange(items + 1) * length
        k, v = (a.reshape(items * length, *a.shape[2:]) for a in (k, v))
        q, factor = _check(q, k, v, scale, q_rows=x.capacity)

        def make() -> Segments:
            return Segments(groups.items(x.key), Side(np.arange(starts[-1], dtype=np.int32), starts))

        segments = groups.kept(x.key, ("tokens", length), make)
        return segment_attention.attention(q, k, v, factor, segments)
    if context is None:
        q, factor = _check(q, k, v, scale, q_rows=x.capacity, k_rows=x.capacity)
        return segment_attention.attention(q, k, v, factor, groups.whole_items(x.key))
    check_tensor(context, "context")
    if context.batch_size != x.batch_size:
        raise ShapeError(
            f"context has batch_size {context.batch_size}, x has {x.batch_size}; they must agree"
        )
    q, factor = _check(q, k, v, scale, q_rows=x.capacity, k_rows=context.capacity)
    segments = groups.items_with(x.key, context.key)
    return segment_attention.attention(q, k, v, factor, segments)


def varlen_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    q_offsets: Offsets,
    k_offsets: Offsets | None = None,
    *,
    scale: float | mx.array | None = None,
) -> mx.array:
    """Attention inside sequences of different length that lie one after the other.

    Sequence i has the queries q_offsets[i] to q_offsets[i + 1] and the keys k_offsets[i] to k_offsets[i + 1]
    (default: the same): (B + 1,) integers from 0 that do not fall. q (N, H, D), k (M, KH, D), v (M, KH, Dv);
    rows past the last offset are padding. -> (N, H, Dv); rest as in `window_attention`. Reads the offsets.
    """
    _check_array("q", q, None)
    q, factor = _check(q, k, v, scale, k_rows=None if k_offsets is not None else len(q))
    starts = _offsets("q_offsets", q_offsets, len(q))
    ends = starts if k_offsets is None else _offsets("k_offsets", k_offsets, len(k))
    if len(starts) != len(ends):
        raise ShapeError(
            f"q_offsets name {len(starts) - 1} sequences and k_offsets {len(ends) - 1}; they must agree"
        )
    segments = _sequences(starts.tobytes(), None if k_offsets is None else ends.tobytes())
    return segment_attention.attention(q, k, v, factor, segments)


def rope3d(
    x: SparseTensor, a: mx.array, *, base: float = 10000.0, scale: float = 1.0, traditional: bool = True
) -> mx.array:
    """Rotary position embedding of a (capacity, H, D) by the coordinates of x's rows.

    With f = D // 6 frequencies base ** (-i / f), pair j of channels turns by the angle scale * c * frequency:
    the first f pairs by x, then f by y, f by z; further channels stay. Products of rotated queries and keys
    depend on differences of coordinates only. Pairs are neighbours (2j, 2j + 1), or with traditional=False
    (j, j + D // 2). Angles are float64. -> a's shape and type; padding rows 0. Differentiable in a.
    """
    check_tensor(x)
    _check_array("a", a, x.capacity)
    d = a.shape[2]
    if d % 2 or d < 6:
        raise ShapeError(f"a has {d} channels a head; wanted an even number of at least 6, two for each axis")
    base, scale = check_turns(base, scale)
    name = ("rotary", d, base, scale)
    cos, sin = groups.kept(x.key, (*name, host_name()), lambda: _turns(x, d // 6, d // 2, base, scale))
    wide = a.astype(mx.float32)
    if traditional:
        pairs = wide.reshape(*a.shape[:2], d // 2, 2)
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = wide[..., : d // 2], wide[..., d // 2 :]
    turned = [first * cos - second * sin, first * sin + second * cos]
    if traditional:
        y = mx.stack(turned, axis=3).reshape(a.shape)
    else:
        y = mx.concatenate(turned, axis=2)
    if x.num_active < x.capacity:
        live = (mx.arange(x.capacity) < x.active_rows)[:, None, None]
        y = mx.where(live, y, mx.array(0.0))
    return y.astype(a.dtype)


def check_turns(base: float, scale: float) -> tuple[float, float]:
    """Base and scale of a rotary embedding; MLXSparseError unless they are finite, and base positive."""
    base, scale = number(base, "base"), number(scale, "scale")
    if base <= 0:
        raise MLXSparseError(f"base must be positive, got {base}")
    return base, scale


def host_name() -> str:
    """The default device: arrays that are kept belong to one."""
    return str(mx.default_device())


def _turns(x: SparseTensor, f: int, pairs: int, base: float, scale: float) -> tuple[mx.array, mx.array]:
    """Cosine and sine of each row's angles, (capacity, 1, pairs) float32."""
    frequency = base ** (-np.arange(f) / f)
    rows = x.key._record.rows()
    cos, sin = np.ones((x.capacity, pairs), np.float32), np.zeros((x.capacity, pairs), np.float32)
    for axis in range(3):
        found, inverse = np.unique(rows[:, axis + 1], return_inverse=True)  # a scene has few on each axis
        angle = scale * found.astype(np.float64)[:, None] * frequency
        at = slice(axis * f, (axis + 1) * f)
        cos[: len(rows), at] = np.cos(angle).astype(np.float32)[inverse.ravel()]
        sin[: len(rows), at] = np.sin(angle).astype(np.float32)[inverse.ravel()]
    return mx.array(cos[:, None]), mx.array(sin[:, None])


# ---------------------------------------------------------------- checks


def _check(
    q: Any, k: Any, v: Any, scale: Any, q_rows: int | None = None, k_rows: int | None = None
) -> tuple[mx.array, float]:
    """Queries and scale, as `scaled` gives them; ShapeError or DTypeError unless q, k and v fit together."""
    _check_array("q", q, q_rows)
    _check_array("k", k, k_rows)
    _check_array("v", v, k.shape[0])
    if not q.dtype == k.dtype == v.dtype:
        raise DTypeError(f"q, k and v must have one type, got {q.dtype}, {k.dtype} and {v.dtype}; cast them")
    if k.shape[2] != q.shape[2]:
        raise ShapeError(f"k has {k.shape[2]} channels a head, q has {q.shape[2]}; they must agree")
    heads, key_heads = q.shape[1], k.shape[1]
    if v.shape[1] != key_heads or key_heads == 0 or heads % key_heads:
        raise ShapeError(
            f"q has {heads} heads, k {key_heads} and v {v.shape[1]}; k and v need the same number, a divisor "
            "of q's"
        )
    return scaled(q, scale)


def number(value: Any, name: str) -> float:
    """A finite number as a float; MLXSparseError else: float() would read text, and lose the gradient of an
    MLX array."""
    known = None if isinstance(value, mx.array) else scalar(value)
    if known is None or not math.isfinite(known):
        raise MLXSparseError(f"{name} must be a finite number, got {value!r}")
    return float(known)


def _check_array(name: str, a: Any, rows: int | None) -> None:
    if not isinstance(a, mx.array) or a.dtype not in FLOATS:
        kind = a.dtype if isinstance(a, mx.array) else type(a).__name__
        raise DTypeError(f"{name} must be a float32, float16 or bfloat16 MLX array, got {kind}")
    if a.ndim != 3 or (rows is not None and a.shape[0] != rows):
        wanted = "rows" if rows is None else rows
        raise ShapeError(f"{name} must have shape ({wanted}, heads, channels), got {tuple(a.shape)}")


def _offsets(name: str, offsets: Offsets, rows: int) -> np.ndarray:
    try:
        found = host.view(offsets) if isinstance(offsets, mx.array) else np.asarray(offsets)
    except ValueError:  # of lists of different length
        raise ShapeError(f"{name} must have shape (sequences + 1,), got {offsets!r}") from None
    if found.dtype.kind not in "iu":
        raise DTypeError(f"{name} must be integers, got {found.dtype}")
    if found.ndim != 1 or len(found) == 0:
        raise ShapeError(f"{name} must have shape (sequences + 1,), got {found.shape}")
    starts: np.ndarray = found.astype(np.int64)
    if starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > rows:
        raise ShapeError(f"{name} must rise from 0 to at most {rows} rows, got {listed(starts.tolist())}")
    return starts


@functools.lru_cache(maxsize=32)
def _sequences(q: bytes, k: bytes | None) -> Segments:
    def side(content: bytes) -> Side:
        starts = np.frombuffer(content, np.int64)
        return Side(np.arange(starts[-1], dtype=np.int32), starts)

    queries = side(q)
    return Segments(queries, queries if k is None else side(k))
