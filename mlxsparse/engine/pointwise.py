"""Elementwise steps of a forward on the host, several in one pass; outside of MLX's transformations only.

MLX computes elementwise graphs in one thread of its own and waits for it, which costs a small network as
much as its arithmetic. Where a gradient may be asked for, callers leave the graph to MLX.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..backend import executor, fast, fast_rows
from ..backend.autodiff import traced
from ..backend.fast_rows import Finish
from ..backend.host import empty, num_threads, parallel, view32

PIECE = 1024  # values of a step, which stay in cache
LARGE = 1 << 21  # values from which threads share a pass of NumPy's


def direct(*arrays: mx.array) -> bool:
    """Whether the functions below may be used: float32 arrays on the host, and no transformation."""
    for a in arrays:
        if a.dtype != _FLOAT:
            return False
    return executor() == "host" and not traced(*arrays)


_FLOAT = mx.float32


def activated(
    x: mx.array,
    norm: Sequence[mx.array] = (),
    add: mx.array | None = None,
    *,
    eps: float = 0.0,
    relu: bool = True,
    own: bool = False,
) -> mx.array:
    """x, normalised, plus `add`, then max(., 0) with `relu`: x and add (n, C), all of it `direct`.

    norm: running mean, variance, weight and bias (C,) of a batch normalisation, or without the last two.
    own: nothing else will read x, whose memory the result gets.
    """
    source = view32(x)  # a copy where rows do not lie one after another
    own = own and np.may_share_memory(source, np.asarray(x))
    out, y = (x, source) if own else empty(tuple(x.shape), mx.float32)
    finish_rows(y, finish(norm, add, eps=eps, relu=relu), None if own else source)
    return out


_NONE = np.empty(0, np.float32)
_NO_ROWS = np.empty((0, 1), np.float32)


def finish(
    norm: Sequence[mx.array],
    add: mx.array | None,
    *,
    eps: float,
    relu: bool,
    through: mx.array | None = None,
) -> Finish:
    """What `activated` does with rows, for those who make them; through: a weight as in `Finish`."""
    vectors = [np.ascontiguousarray(v) for v in norm] + [_NONE] * (4 - len(norm))
    mean, var, weight, bias = vectors  # NumPy evaluates what it is given
    more = _NO_ROWS if add is None else np.ascontiguousarray(add)
    mix = None if through is None else np.ascontiguousarray(through)
    return Finish((mean, var, weight, bias), np.float32(eps), more, relu, mix)


class _Then(threading.local):
    steps: Finish | None = None


_then = _Then()


def then(steps: Finish | None) -> Finish | None:
    """Have the next convolution of this thread finish its rows: in float32, outside of transformations.

    Returns what was to be done and is not done yet.
    """
    before, _then.steps = _then.steps, steps
    return before


def finish_rows(y: np.ndarray, steps: Finish, x: np.ndarray | None = None) -> None:
    """y = x, or itself, after the steps of `finish`, without `through`."""
    assert steps.through is None
    if y.size == 0:
        return
    rows, channels = y.shape
    length = max(1, PIECE // channels) * channels  # whole rows
    source, target = _NONE if x is None else x.reshape(-1), y.reshape(-1)
    flat = steps._replace(add=steps.add.reshape(-1)[: y.size])
    if fast.available():
        fast_rows.activate(source, flat, length, target)
        return
    if y.size < LARGE:
        _activate(source, flat, length, target)
        return
    parts = 2 * num_threads()
    edges = np.arange(parts + 1) * rows // parts * channels

    def work(i: int) -> None:
        here = slice(edges[i], edges[i + 1])
        _activate(source[here], flat._replace(add=flat.add[here]), length, target[here])

    parallel(work, parts)


def _activate(x: np.ndarray, steps: Finish, length: int, y: np.ndarray) -> None:
    """`activated` of flat arrays, whole rows, by pieces of `length` values; without x, y is the source.

    The order of operations is nn.BatchNorm's, and so are the bits.
    """
    (mean, var, weight, bias), eps, add, relu, _ = steps
    scale = shift = _NONE
    if len(mean):
        scale = np.float32(1) / np.sqrt(var + eps)
        shift = -mean * scale
        if len(weight):
            scale, shift = scale * weight, shift * weight + bias
        scale, shift = (np.tile(v, length // len(v)) for v in (scale, shift))
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(y), length):
            part = y[first : first + length]
            if len(x):
                part[:] = x[first : first + length]
            if len(mean):
                part *= scale[: len(part)]
                part += shift[: len(part)]
            if len(add):
                part += add[first : first + length]
            if relu:
                np.maximum(part, 0, out=part)


def beside(arrays: Sequence[mx.array]) -> mx.array:
    """Arrays (n, Ci) side by side: (n, C1 + C2 + ...)."""
    sources = [view32(a) for a in arrays]
    out, y = empty((len(sources[0]), sum(a.shape[1] for a in sources)), mx.float32)
    first = 0
    for source in sources:
        last = first + source.shape[1]
        if fast.available():
            fast_rows.put_columns(source, y, first)
        else:
            y[:, first:last] = source
        first = last
    return out
