"""A compiled program: rows in an order in which its attention is a block layout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np

from ..blocksparse import BlockLayout, block_sparse_attention
from ..blocksparse.attention import check_heads
from ..blocksparse.check import check_float, check_shape
from ..engine.queries import scaled
from ..engine.rows import put_rows
from ..errors import ShapeError


class CompiledProgram:
    """``layout, rows = compiled``: a block layout (P, P) and the row that stands at each of P positions.

    Attributes:
        layout: BlockLayout of one head, which all heads share.
        rows: (P,) int32, -1 at positions that only fill a block. Rows that take no part are not in it.
        num_rows: rows that the program was compiled for.
        segments: None, or int32 numbers (P,) of queries and (P,) of keys: only equal ones see each other.
            Without them every pair of real rows in a stored block does.
    """

    def __init__(
        self,
        layout: BlockLayout,
        rows: np.ndarray,
        num_rows: int,
        segments: tuple[mx.array, mx.array] | None,
    ):
        rows.flags.writeable = False
        self.layout, self.rows, self.num_rows, self.segments = layout, rows, num_rows, segments
        self._backs: dict[int, tuple[np.ndarray, int]] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter((self.layout, self.rows))

    @cached_property
    def keys(self) -> mx.array | None:
        """(1, P) bool: positions that hold a row; None where all do."""
        real = self.rows >= 0
        return None if real.all() else mx.array(real[None])

    @cached_property
    def _there(self) -> tuple[np.ndarray, int]:
        """Position of each row, those without one past the P, and how many positions that makes."""
        place = np.full(self.num_rows, -1, np.int32)
        real = self.rows >= 0
        place[self.rows[real]] = np.flatnonzero(real)
        out = np.flatnonzero(place < 0)
        place[out] = len(self.rows) + np.arange(len(out))
        return place, len(self.rows) + len(out)

    def _back(self, rows: int) -> tuple[np.ndarray, int]:
        """Row of each position, those that only fill a block past all `rows`, and how many that makes."""
        found = self._backs.get(rows)
        if found is None:
            back = self.rows.copy()
            holes = np.flatnonzero(back < 0)
            back[holes] = rows + np.arange(len(holes))
            found = self._backs[rows] = back, rows + len(holes)
        return found

    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float | mx.array | None = None,
        return_lse: bool = False,
    ) -> Any:
        """One softmax for each query over all the keys that the program lets it see.

        q (N, Hq, D), k (N, Hk, D), v (N, Hk, Dv): rows as they were compiled, N at least `num_rows`; rows
        past those are padding and not read. Hq a multiple of Hk. scale: 1 / sqrt(D) by default;
        an MLX array of one element may be learned.
        -> (N, Hq, Dv) of q's dtype, float32 inside; with return_lse also (N, Hq) float32. Rows without any
        key have exactly 0, and -inf, and gradient 0. Differentiable. Raises ShapeError and DTypeError.
        """
        for name, a in (("q", q), ("k", k), ("v", v)):
            check_float(name, a)
            check_shape(name, a, (None,) * 3, " (rows, heads, channels)")
        batched = [a.transpose(1, 0, 2)[None] for a in (q, k, v)]
        found = self.attend_batched(*batched, scale=scale, return_lse=return_lse)
        if not return_lse:
            return found[0].transpose(1, 0, 2)
        return found[0][0].transpose(1, 0, 2), found[1][0].transpose(1, 0)

    def attend_batched(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float | mx.array | None = None,
        return_lse: bool = False,
    ) -> Any:
        """As `attend` for q (Z, Hq, N, D), k and v (Z, Hk, N, ..) -> (Z, Hq, N, Dv), (Z, Hq, N)."""
        rows = q.shape[2] if q.ndim == 4 else self.num_rows
        if rows < self.num_rows:
            raise ShapeError(f"q has {rows} rows, the program was compiled for {self.num_rows}")
        check_heads(q, k, v)
        q, factor = scaled(q, scale)
        check_shape("k", k, (None, None, rows, None), " (Z, H, rows, channels)")
        z, heads = q.shape[:2]
        if self.layout.nnz == 0:
            out = mx.zeros((z, heads, rows, v.shape[3]), q.dtype)
            return (out, mx.full((z, heads, rows), -float("inf"))) if return_lse else out
        keys = self.keys
        if keys is not None:
            keys = mx.broadcast_to(keys, (z, len(self.rows)))
        found = block_sparse_attention(
            self._moved(q),
            self._moved(k),
            self._moved(v),
            self.layout,
            scale=factor,
            key_padding_mask=keys,
            segments=self.segments,
            return_lse=return_lse,
        )
        if not return_lse:
            return self._returned(found, rows, 0.0)
        lse = self._returned(found[1][..., None], rows, -float("inf"))
        return self._returned(found[0], rows, 0.0), lse[..., 0]

    def _moved(self, a: mx.array) -> mx.array:
        """(Z, H, N, C) -> (Z, H, P, C), positions that only fill a block 0."""
        place, size = self._there
        z, h, n, c = a.shape
        flat = a.transpose(2, 0, 1, 3).reshape(n, z * h * c)
        p = len(self.rows)
        return put_rows(flat, place, size)[:p].reshape(p, z, h, c).transpose(1, 2, 0, 3)

    def _returned(self, a: mx.array, rows: int, fill: float) -> mx.array:
        """(Z, H, P, C) -> (Z, H, rows, C), `fill` for rows without a position."""
        z, h, p, c = a.shape
        flat = a.transpose(2, 0, 1, 3).reshape(p, z * h * c)
        back, size = self._back(rows)
        made = put_rows(flat, back, size, fill)[:rows]
        return made.reshape(rows, z, h, c).transpose(1, 2, 0, 3)

    def __repr__(self) -> str:
        return f"CompiledProgram({self.layout}, rows={self.num_rows}, segments={self.segments is not None})"
