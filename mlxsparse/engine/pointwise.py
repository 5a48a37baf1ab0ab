"""Elementwise steps of a forward on the host, several in one pass; outside of MLX's transformations only.

MLX computes elementwise graphs in one thread of its own and waits for it, which costs a small network as
much as its arithmetic. Where a gradient may be asked for, callers leave the graph to MLX.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..backend import executor, fast
from ..backend.autodiff import traced
from ..backend.host import empty, num_threads, parallel, view, view32

PIECE = 1024  # values of a step, which stay in cache
LARGE = 1 << 21  # values from which threads share a pass


def direct(*arrays: mx.array) -> bool:
    """Whether the functions below may be used: float32 arrays on the host, and no transformation."""
    return all(a.dtype == mx.float32 for a in arrays) and executor() == "host" and not traced(*arrays)


def activated(
    x: mx.array,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    add: mx.array | None = None,
    *,
    relu: bool = True,
    own: bool = False,
) -> mx.array:
    """x * scale + shift + add, then max(., 0) with `relu`: x and add (n, C), scale and shift (C,) float32.

    own: nothing else will read x, whose memory the result gets.
    """
    rows, channels = x.shape
    out, y = (x, view(x)) if own else empty((rows, channels), mx.float32)
    if out.size == 0:
        return out
    length = max(1, PIECE // channels) * channels  # whole rows
    none = np.empty(0, np.float32)
    scale, shift = (none, none) if scale is None or shift is None else (scale, shift)
    source, target = none if own else view32(x).reshape(-1), y.reshape(-1)
    more = none if add is None else view32(add).reshape(-1)
    run = fast.loops().activate if fast.available() else _activate
    parts = 1 if out.size < LARGE else 2 * num_threads()
    edges = np.arange(parts + 1) * rows // parts * channels

    def work(i: int) -> None:
        here = slice(edges[i], edges[i + 1])
        run(source[here], scale, shift, more[here], relu, length, target[here])

    parallel(work, parts, small=parts == 1)
    return out


def _activate(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    add: np.ndarray,
    relu: bool,
    length: int,
    y: np.ndarray,
) -> None:
    """`activated` of flat arrays, whole rows, by pieces of `length` values; without x, y is the source."""
    if len(scale):
        scale, shift = (np.tile(v, length // len(v)) for v in (scale, shift))
    for first in range(0, len(y), length):
        part = y[first : first + length]
        if len(x):
            part[:] = x[first : first + length]
        if len(scale):
            part *= scale[: len(part)]
            part += shift[: len(part)]
        if len(add):
            part += add[first : first + length]
        if relu:
            np.maximum(part, 0, out=part)


def running(
    mean: mx.array, var: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """(scale, shift) float32 of a batch normalisation in evaluation, with the bits of MLX's operations."""
    scale: np.ndarray = np.float32(1) / np.sqrt(view(var) + np.float32(eps))
    shift: np.ndarray = -view(mean) * scale
    if weight is not None and bias is not None:
        w = view(weight)
        scale, shift = scale * w, shift * w + view(bias)
    return scale, shift


def beside(arrays: Sequence[mx.array]) -> mx.array:
    """Arrays (n, Ci) side by side: (n, C1 + C2 + ...)."""
    sources = [view32(a) for a in arrays]
    out, y = empty((len(sources[0]), sum(a.shape[1] for a in sources)), mx.float32)
    first = 0
    for source in sources:
        last = first + source.shape[1]
        if fast.available():
            fast.loops().put_columns(source, y, first)
        else:
            y[:, first:last] = source
        first = last
    return out
