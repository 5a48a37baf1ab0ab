"""Error bits that travel with a sparse tensor: what went wrong where no operator could wait and look.

A status is (5,) int32: bits, the rows that the first overflow needed, and the stride (x, y, z) it was at.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Iterator
from typing import TypeAlias

import mlx.core as mx

from ..errors import CapacityError, CoordinateRangeError, MLXSparseError
from .mail import Sent, send

OVERFLOW, RANGE, EMPTY, OUTSIDE = 1, 2, 4, 8

_clear: weakref.WeakValueDictionary[int, mx.array] = weakref.WeakValueDictionary()


def clear() -> mx.array:
    """The status of what was checked on the host. An array of its own: a trace tells inputs by identity."""
    # Not from a list: on CUDA what the host writes past 8 bytes shares pages with what kernels read.
    made = mx.broadcast_to(_zero(), (5,))
    _clear[id(made)] = made
    return made


@functools.cache
def _zero() -> mx.array:
    return mx.array(0, mx.int32)


def is_clear(status: mx.array) -> bool:
    """Whether it came from `clear`: nothing needs to be read."""
    return _clear.get(id(status)) is status


def combined(first: mx.array, *others: mx.array) -> mx.array:
    """Bits of all; rows and stride of the first that has any."""
    found = first
    for part in others:
        if part is found or is_clear(part) or _holds(found, part):
            continue
        found = part if is_clear(found) or _holds(part, found) else _joined(found, part)
    return found


# What was combined into a status that lives: a network asks for the same again at every layer.
_Part: TypeAlias = "weakref.ref[mx.array]"
_parts: dict[int, tuple[_Part, dict[int, _Part]]] = {}


def _holds(whole: mx.array, part: mx.array) -> bool:
    known = _parts.get(id(whole))
    held = None if known is None else known[1].get(id(part))
    return held is not None and held() is part


def _joined(a: mx.array, b: mx.array) -> mx.array:
    made = _first(a, b)
    name = id(made)
    parts = {id(one): weakref.ref(one) for one in (a, b)}
    for whole in (a, b):
        if id(whole) in _parts:
            parts |= {known: one for known, one in _parts[id(whole)][1].items() if one() is not None}
    _parts[name] = weakref.ref(made, lambda _: _parts.pop(name, None)), parts
    return made


def _first(a: mx.array, b: mx.array) -> mx.array:
    place = _vector(0, 1, 2, 3, 4) == 0
    return mx.where(place, a | b, mx.where(a[:1] != 0, a, b))


def fitted(
    total: mx.array, capacity: int, outside: mx.array, stride: tuple[int, int, int]
) -> tuple[mx.array, mx.array]:
    """Active rows, int32, and status of a created set of `total` sites in `capacity` rows.

    outside: bool, it left its range, and has no rows.
    """
    # Vectors: MLX writes a scalar into the text of a fused kernel, which every capacity would compile anew.
    room, place = _vector(capacity, capacity, capacity, capacity, capacity), _vector(0, 1, 2, 3, 4)
    bits = mx.where(total > room, OVERFLOW, 0) | mx.where(outside, RANGE, 0)
    found = mx.where(place == 0, bits, mx.where(place == 1, total, _vector(0, 0, *stride)))
    found = mx.where(bits != 0, found, 0).astype(mx.int32)
    rows = mx.where(outside, 0, mx.minimum(total, room)).astype(mx.int32)
    _tell(found)
    return rows[0], found


@functools.lru_cache(maxsize=1024)
def _vector(*values: int) -> mx.array:
    return mx.array(values, dtype=mx.int32)


def report(wrong: mx.array, bit: int) -> None:
    """Tell those who watch that something went wrong (a bool on the device) where no tensor can carry it."""
    _tell(mx.where(wrong & (mx.arange(5) == 0), bit, 0).astype(mx.int32))


def _tell(status: mx.array) -> None:
    for seen in _here.watching:
        seen.append(status)


def found_again(status: mx.array) -> None:
    """Tell those who watch of a set that was there before they did."""
    if _here.watching and not is_clear(status) and not any(one is status for one in _here.watching[-1]):
        _tell(status)


def told(status: mx.array) -> bool:
    """Tell those who watch, of a status that is theirs to read. False: nobody does."""
    _tell(status)
    return bool(_here.watching)


class _Here(threading.local):
    def __init__(self) -> None:
        self.watching: list[list[mx.array]] = []  # of this thread: another one traces something else


_here = _Here()


@contextlib.contextmanager
def watching() -> Iterator[list[mx.array]]:
    """The statuses of all sets that are created inside."""
    seen: list[mx.array] = []
    _here.watching.append(seen)
    try:
        yield seen
    finally:
        _here.watching.pop()


def raise_for(status: mx.array) -> None:
    """Read a status, and raise what it tells of: CapacityError, CoordinateRangeError or MLXSparseError."""
    if not is_clear(status):
        raise_for_sent(send(status))


def raise_for_sent(status: Sent) -> None:
    """As `raise_for`, of what is on its way to the host."""
    ((bits, needed, *stride),) = status.read()
    if bits & RANGE:
        raise CoordinateRangeError(
            f"the sites of stride {tuple(stride)} leave (-2**30, 2**30), their spatial_shape, the bounds= of "
            "mlxsparse.compile, or a box of 2**62 cells, so the set was left empty: shift or crop them"
        )
    if bits & OVERFLOW:
        raise CapacityError(
            f"the sites of stride {tuple(stride)} need {needed} rows and had less: pass a capacity= of at "
            f"least {needed} there (mlxsparse.bucket({needed}) leaves room)"
        )
    if bits & OUTSIDE:
        raise CoordinateRangeError("dense: a site lies outside the grid; pass shape= and origin= that fit")
    if bits & EMPTY:
        raise MLXSparseError("global_max_pool: a batch item has no sites; pass empty=value")
