"""How far the host runs ahead of the GPU.

MLX starts nothing before something is read, so every few calls the GPU gets what was called: it works while
the host goes on. And MLX keeps what a call read and made until the GPU has run it, so a host far ahead holds
the memory of all that it called. Large results are therefore waited for, some calls later: the GPU then still
has the calls since.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence

import mlx.core as mx

from .mail import begin

CALLS = 16  # after which the GPU gets what was called
PRODUCTS = 1 << 31  # multiplications that take a GPU about as long as CALLS small calls
AHEAD = 3 << 24  # bytes of results, likewise; two such stages at most are not computed yet
TRACED = 1 << 24  # likewise in a trace: the host has little to do between its stages
BACKWARD = 2  # times as much where a trace has gradients: most of what it makes is kept for them anyway


class _Pace(threading.local):
    calls = 0  # since the GPU got something
    nbytes = 0  # of results, since one was waited for
    before: mx.array | None = None  # tells when the GPU has run what it got last
    stages: list[tuple[mx.array, int]] | None = None  # of the trace that is being made: mark, bytes
    compiled = False  # it is one of mx.compile
    backward = False  # it has gradients
    staged = 0  # bytes since the last of them
    wanted: list[mx.array] | None = None  # gradients of weights that nothing waits for yet, in that trace


_pace = _Pace()


def called(result: mx.array, weight: int = 1) -> None:
    """Count a call outside of all transformations, as `weight` of them."""
    _pace.calls += weight
    _pace.nbytes += result.nbytes
    if _pace.nbytes >= AHEAD:
        _stage(_one() + 1, result)  # the mark tells of the result and holds none of it
        _pace.nbytes = 0
    elif _pace.calls >= CALLS:
        begin(result)
    else:
        return
    _pace.calls = 0


def weight_of(products: int) -> int:
    """What a call of so many multiplications counts."""
    return 1 + min(CALLS, CALLS * products // PRODUCTS)


def _mark(result: mx.array) -> mx.array:
    """Something small that is computed after `result`; a part of it would hold the memory of the whole."""
    return -result[(slice(1),) * result.ndim] if result.ndim and result.size else result


# ---------------------------------------------------------------- inside a trace


def staging() -> bool:
    """Whether `stages` are looked for here."""
    return _pace.stages is not None


def compiling() -> bool:
    """Whether `stages` of a compiled function are looked for here."""
    return _pace.stages is not None and _pace.compiled


def noted(result: mx.array) -> None:
    """Count a call inside a trace."""
    if _pace.stages is None:
        return
    _pace.staged += result.nbytes
    if _pace.staged >= TRACED:
        _pace.stages.append((_mark(result), _pace.staged))
        _pace.staged = 0


@contextlib.contextmanager
def stages(*, compiled: bool) -> Iterator[list[mx.array]]:
    """What to compute one after the other, of the calls inside; it is known once they have ended.

    compiled: they are traced by mx.compile.
    """
    before = _pace.stages, _pace.wanted, _pace.staged, _pace.compiled, _pace.backward
    found: list[tuple[mx.array, int]] = []
    _pace.stages, _pace.wanted, _pace.staged, _pace.compiled, _pace.backward = found, [], 0, compiled, False
    marks: list[mx.array] = []
    try:
        yield marks
        size = TRACED * (BACKWARD if _pace.backward else 1)
        since = 0
        for mark, nbytes in found:
            since += nbytes
            if since >= size:
                marks.append(mark)
                since = 0
    finally:
        _pace.stages, _pace.wanted, _pace.staged, _pace.compiled, _pace.backward = before


def first(gradient: mx.array) -> mx.array:
    """Have the gradient of a weight computed before the next cotangent: what it reads can go then."""
    if _pace.wanted is not None:
        _pace.wanted.append(gradient)
    return gradient


def next_cotangent(cotangent: mx.array) -> mx.array:
    """A cotangent, counted as a call, that is computed after what `first` was told of."""
    if _pace.wanted:
        cotangent = mx.depends([cotangent], _pace.wanted)[0]
        _pace.wanted.clear()
    _pace.backward = True
    noted(cotangent)
    return cotangent


def run(marks: Sequence[mx.array]) -> None:
    """Compute the stages of a trace, each when the one but one before it is done.

    Inside of a transformation nothing can be: they become stages of what is traced there, if it has any.
    """
    for i, mark in enumerate(marks):
        try:
            begun = _stage(mark)
        except RuntimeError as error:
            if "without a primitive" not in str(error):
                raise
            continue  # of a trace that MLX made for itself, by mx.compile: it is no value of this call
        if not begun:
            if _pace.stages is not None:
                _pace.stages.extend((mark, BACKWARD * TRACED) for mark in marks[i:])
            return


def _stage(mark: mx.array, *results: mx.array) -> bool:
    """Begin a mark with the results that it tells of, then wait for the stage before. False: not possible.

    The wait sleeps, as MLX's thread does that lets go of memory: woken before it, the host would take more.
    """
    if not begin(mark, *results):
        return False
    if _pace.before is not None:
        mx.eval(_pace.before)
    _pace.before = mark
    return True


@functools.cache
def _one() -> mx.array:
    return mx.array(1, mx.int32)
