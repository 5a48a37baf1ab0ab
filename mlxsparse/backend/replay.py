"""Launches that MLX replays: by itself it copies a kernel's text or machine code for each, which takes longer
than all the rest.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

AFTER = 4  # calls: a trace costs as much as a few

Run = Callable[[Sequence[mx.array]], list[mx.array]]


class _Here(threading.local):
    plain = False  # what is launched is outside of all transformations


here = _Here()


class plainly:  # noqa: N801, used as a statement
    """Launches inside are replayed, where `plain`."""

    __slots__ = ("_before", "_plain")

    def __init__(self, plain: bool):
        self._plain = plain

    def __enter__(self) -> None:
        self._before, here.plain = here.plain, self._plain

    def __exit__(self, *_: object) -> None:
        here.plain = self._before


def replayed(run: Run) -> Run:
    """`run` as a compiled function of MLX from some call on; for arrays that no transformation traces."""
    calls = itertools.count()
    compiled: list[Any] = []

    def replay(arrays: Sequence[mx.array]) -> list[mx.array]:
        if next(calls) < AFTER:
            return run(arrays)
        if not compiled:
            compiled.append(mx.compile(lambda *arrays: run(arrays)))
        made: list[mx.array] = compiled[0](*arrays)
        return made

    return replay
