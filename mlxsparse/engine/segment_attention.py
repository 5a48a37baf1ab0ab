"""Attention inside segments (windows, patches, batch items), differentiable in q, k and v.

Rows that are in no segment are never read; they are 0 in results and gradients. A query that sees a key or
value that is not finite gets a result that is not finite, others do not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import executor, kernel_segments
from ..backend.autodiff import Gradient, differentiable
from ..backend.host import empty, view32
from ..backend.kernel_blocks import MAX_DIM
from ..backend.kernel_segments import Positions
from ..errors import ShapeError
from . import segment_host as host
from .segments import Segments
from .tables import integers


def attention(q: mx.array, k: mx.array, v: mx.array, scale: float, segments: Segments) -> mx.array:
    """(N, H, Dv) of q's dtype. q (N, H, D), k (M, KH, D), v (M, KH, Dv); head h reads key head h * KH // H.

    Sums are float32 and rounded once. Queries of a segment without keys give 0.
    """
    run: Any = _Kernel if executor() == "kernel" else _Host
    width = max(q.shape[2], v.shape[2])
    if run is _Kernel and width > MAX_DIM[q.dtype.size]:
        raise ShapeError(
            f"{width} channels a head in {q.dtype}: the GPU takes {MAX_DIM[2]} in 16 bits, {MAX_DIM[4]} in "
            "float32; use more heads, or cast q, k and v"
        )
    engine = run(scale, segments)
    gradients: list[Gradient] = [partial(engine.gradient, i) for i in range(3)]
    y: mx.array = differentiable("segment attention", engine.forward, gradients, q, k, v)
    return y


class _Host:
    def __init__(self, scale: float, segments: Segments):
        self.scale, self.segments = scale, segments
        self.saved: tuple[mx.array, np.ndarray, np.ndarray] | None = None
        self.found: tuple[np.ndarray, list[mx.array]] | None = None

    def forward(self, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        job = host.Job(view32(q), view32(k), view32(v), self.scale, self.segments)
        out, y = empty((*q.shape[:2], v.shape[2]), mx.float32)
        lse = np.empty(tuple(q.shape[:2]), np.float32)
        if self.segments.partial(len(y)):
            y[:] = 0
        host.forward(job, y, lse)
        self.saved = out, y, lse
        return out.astype(q.dtype)

    def gradient(self, which: int, ct: mx.array, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """All three at once: they share the probabilities. The next call finds its own."""
        if self.saved is None:
            self.forward(q, k, v)
        assert self.saved is not None
        g = view32(ct)
        if self.found is None or not np.array_equal(self.found[0].view(np.int32), g.view(np.int32)):
            made = [empty(tuple(a.shape), mx.float32) for a in (q, k, v)]
            for i, (_, values) in enumerate(made):
                if (self.segments if i == 0 else self.segments.turned).partial(len(values)):
                    values[:] = 0
            job = host.Job(view32(q), view32(k), view32(v), self.scale, self.segments)
            host.gradients(job, host.Saved(g, *self.saved[1:]), *(values for _, values in made))
            self.found = g, [a for a, _ in made]
        return self.found[1][which].astype((q, k, v)[which].dtype)


class _Kernel:
    def __init__(self, scale: float, segments: Segments):
        # The kernel looks for the largest score before it scales: the scale is positive.
        self.scale, self.sign, self.segments = max(abs(scale), 1e-30), -1 if scale < 0 else 1, segments
        self.saved: tuple[mx.array, mx.array] | None = None

    def forward(self, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        q = q if self.sign > 0 else -q
        tile = kernel_segments.segment_tile(max(q.shape[2], v.shape[2]), q.dtype)
        assert tile is not None
        at = _positions(self.segments, tile.bm)
        self.saved = kernel_segments.segment_attend(q, k, v, self.scale, at, tile)
        return self.saved[0]

    def gradient(self, which: int, ct: mx.array, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        if self.saved is None:
            self.forward(q, k, v)
        assert self.saved is not None
        q = q if self.sign > 0 else -q
        tile = kernel_segments.segment_tile(max(q.shape[2], v.shape[2]), q.dtype, grad=True)
        assert tile is not None
        y, lse = self.saved
        delta = kernel_segments.row_dots(ct.astype(y.dtype), y)
        a, b, c, d = (q, k, ct, v) if which == 0 else (k, q, v, ct)
        at = _positions(self.segments if which == 0 else self.segments.turned, tile.bm)
        found = kernel_segments.segment_attend_grad(which, a, b, c, d, lse, delta, self.scale, at, tile)
        return -found if which == 0 and self.sign < 0 else found


def _positions(segments: Segments, size: int) -> Positions:
    """The lists on the device, made once."""
    q = segments.kept("queries", lambda: integers(segments.q.order))
    k = segments.kept("keys", lambda: integers(segments.k.order))
    span = segments.kept("span", lambda: integers(segments.span))
    tiles = segments.kept(("device tiles", size), lambda: integers(segments.tiles(size)))
    return Positions(q, k, span, tiles)
