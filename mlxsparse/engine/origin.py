"""What an array was made from, so that a gradient that needs it makes it again.

A training step holds the input of each norm and of each convolution until their gradients. Where a
convolution reads a norm's result, or several side by side, that is the same numbers twice: a pass over the
rows gives them again. That is for large arrays: a launch takes the host as long as the GPU a few megabytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx

from ..backend import kernel_norm

LEAST = 1 << 24  # bytes of an array that is made again

# None: the array itself; ("norm", was something added): a norm with a ReLU; ("cat", *kinds): side by side.
Kind: TypeAlias = "tuple[Any, ...] | None"


class Origin(NamedTuple):
    """How an array was made, and what from."""

    kind: Kind
    arrays: tuple[mx.array, ...]


_known: dict[int, tuple[weakref.ref[mx.array], Origin]] = {}
_held: dict[int, weakref.ref[mx.array]] = {}


def note_norm(y: mx.array, x: mx.array, coef: mx.array, add: mx.array | None) -> None:
    """y is a norm of x with these coefficients (kernel_norm.py), plus `add`, then a ReLU."""
    _note(y, Origin(("norm", add is not None), (x, coef) if add is None else (x, coef, add)))


def note_cat(y: mx.array, parts: Sequence[mx.array], made: Sequence[bool]) -> None:
    """y has the channels of `parts` side by side; made: of each, SparseTensor._made."""
    found = [(one and origin(part)) or Origin(None, (part,)) for part, one in zip(parts, made)]
    _note(y, Origin(("cat", *(one.kind for one in found)), tuple(a for one in found for a in one.arrays)))


def _note(y: mx.array, made: Origin) -> None:
    if y.nbytes < LEAST:
        return
    name = id(y)
    _known[name] = weakref.ref(y, lambda _: _known.pop(name, None)), made


def origin(y: mx.array) -> Origin | None:
    """What y was made from, if that was noted."""
    found = _known.get(id(y))
    return found[1] if found is not None and found[0]() is y else None


def hold(x: mx.array) -> None:
    """Say that a gradient holds x itself."""
    name = id(x)
    _held[name] = weakref.ref(x, lambda _: _held.pop(name, None))


def held(x: mx.array) -> bool:
    """Whether a gradient holds x itself, which is large, so that holding it costs nothing."""
    found = _held.get(id(x))
    return x.nbytes >= LEAST and found is not None and found() is x


def again(kind: Kind, arrays: Sequence[mx.array], count: int | mx.array) -> mx.array:
    """The array of this kind from these, of `count` active rows: the same bits."""
    return _again(kind, iter(arrays), count)


def _again(kind: Kind, arrays: Iterator[mx.array], count: int | mx.array) -> mx.array:
    if kind is None:
        return next(arrays)
    if kind[0] == "cat":
        return mx.concatenate([_again(part, arrays, count) for part in kind[1:]], axis=1)
    x, coef = next(arrays), next(arrays)
    return kernel_norm.apply(x, coef, count, relu=True, add=next(arrays) if kind[1] else None)
