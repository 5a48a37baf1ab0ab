"""Worker threads inside compiled code, for backend/team.py; imported only where numba is installed.

A job is a C function of (address of its arguments, part). The thread that has work opens a job and takes
parts itself; workers that are awake take parts beside it. It never waits for a worker to come, only for
parts that one has begun, so that a job on a busy machine takes no longer than alone.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from ._numba_jit import cfunc, njit

_I64 = ir.IntType(64)
_X86 = platform.machine() in ("x86_64", "AMD64")

# Words of the board, each on cache lines of its own.
TURN, OPEN, NEXT, LAST, INSIDE, ASLEEP, HELD, STOP, JOB = range(0, 144, 16)
ARGUMENTS, PARTS, HELPERS, REST = JOB + 1, JOB + 2, JOB + 3, JOB + 4  # the first three go with JOB
LOCK, WAIT, WAKE, UNLOCK, YIELD, MUTEX, CONDITION = range(JOB + 5, JOB + 12)  # addresses; they never change
WORDS = 144
SOON = 2_000  # looks for the end of others' parts before the core is offered to others: about 0.05 ms
LATE = 2_000_000  # cycles, besides four times what a part takes
ALONE = 60  # jobs without workers after one that came late: a few forwards of a network


def _word(builder: Any, board: Any, index: Any) -> Any:
    place = builder.add(board, builder.mul(index, _I64(8)))
    return builder.inttoptr(place, _I64.as_pointer())


@intrinsic
def _load(context: Any, board: Any, index: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, *args), "seq_cst", 8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _store(context: Any, board: Any, index: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word(builder, *args[:2]), "seq_cst", 8)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _add(context: Any, board: Any, index: Any, value: Any) -> Any:
    """Adds to a word; what it was before."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(builder, *args[:2]), args[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _exchange(context: Any, board: Any, index: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _word(builder, *args[:2]), args[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _call(context: Any, address: Any, first: Any, second: Any) -> Any:
    """A C function of two integers or pointers; what it returns is left alone."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _pause(context: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return target.get_dummy_value()

    return types.void(), generate


@intrinsic
def _cycles(context: Any) -> Any:
    """Of the processor, and 0 where a program may not count them."""

    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not _X86:
            return _I64(0)
        kind = ir.FunctionType(_I64, [])
        return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), [])

    return types.int64(), generate


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@njit(inline="always")
def words(address: int, count: int) -> np.ndarray:
    """int64 values at an address."""
    found: np.ndarray = carray(_pointer(address), (count,), np.int64)  # type: ignore[call-arg]
    return found


@njit(inline="always")
def ints(address: int, count: int) -> np.ndarray:
    """int32 values at an address."""
    found: np.ndarray = carray(_pointer(address), (count,), np.int32)  # type: ignore[call-arg]
    return found


@njit(inline="always")
def floats(address: int, count: int) -> np.ndarray:
    """float32 values at an address."""
    found: np.ndarray = carray(_pointer(address), (count,), np.float32)  # type: ignore[call-arg]
    return found


def compile_job(function: Any) -> Any:
    """A C function of (address of arguments, part)."""
    return cfunc("void(int64, int64)", cache=True, error_model="numpy")(function)


@njit(nogil=True, error_model="numpy")
def _take_parts(board: int, job: int, arguments: int, parts: int, owner: bool) -> int:
    """The owner takes parts from the first on, workers from the last: what is theirs stays in its cache.

    Returns how many of them.
    """
    taken = 0
    while _add(board, NEXT, 1) < parts:  # type: ignore[call-arg]
        _call(job, arguments, taken if owner else parts - 1 - _add(board, LAST, 1))
        taken += 1
    return taken


@njit(nogil=True, cache=True, error_model="numpy")
def share(board: int, job: int, arguments: int, parts: int, helpers: int, wake: bool) -> None:
    """Do all parts of a job, beside up to `helpers` workers; `wake`: also those that sleep.

    Whatever the arguments point to must be used after this too: numba frees an array after its last use.
    """
    if helpers == 0 or parts < 2 or _exchange(board, HELD, 1):  # type: ignore[call-arg]
        for part in range(parts):
            _call(job, arguments, part)  # type: ignore[call-arg]
        return
    place = words(board, WORDS)
    if place[REST] > 0:
        place[REST] -= 1
        _store(board, HELD, 0)
        for part in range(parts):
            _call(job, arguments, part)
        return
    place[JOB], place[ARGUMENTS], place[PARTS], place[HELPERS] = job, arguments, parts, helpers
    _store(board, NEXT, 0)
    _store(board, LAST, 0)
    _store(board, OPEN, 1)
    _add(board, TURN, 1)
    if wake and _load(board, ASLEEP):
        _rouse(board)
    start = _cycles()
    taken = _take_parts(board, job, arguments, parts, True)
    end = _cycles()
    _store(board, OPEN, 0)
    tries = 0
    while _load(board, INSIDE):
        _pause()
        tries += 1
        if tries > SOON:  # a worker that has a part may wait for this very core
            _call(place[YIELD], 0, 0)
    if taken and _cycles() - end > LATE + 4 * (end - start) // taken:
        place[REST] = ALONE  # another program has the core of a worker
    _store(board, HELD, 0)


@njit(nogil=True, error_model="numpy")
def _rouse(board: int) -> None:
    place = words(board, WORDS)
    _call(place[LOCK], place[MUTEX], 0)  # type: ignore[call-arg]
    _call(place[WAKE], place[CONDITION], 0)
    _call(place[UNLOCK], place[MUTEX], 0)


@njit(nogil=True, cache=True, error_model="numpy")
def stop(board: int) -> None:
    _store(board, STOP, 1)  # type: ignore[call-arg]
    _add(board, TURN, 1)
    _rouse(board)


@njit(nogil=True, cache=True, error_model="numpy")
def serve(board: int, number: int, spins: int) -> None:
    """Worker `number` (from 0): take parts of jobs until `stop`; look `spins` times before going to sleep."""
    place = words(board, WORDS)
    seen = 0
    while _load(board, STOP) == 0:  # type: ignore[call-arg]
        turn = _load(board, TURN)
        tries = 0
        while turn == seen and tries < spins:
            _pause()
            tries += 1
            turn = _load(board, TURN)
        if turn == seen:
            _call(place[LOCK], place[MUTEX], 0)
            _add(board, ASLEEP, 1)
            while _load(board, TURN) == seen:
                _call(place[WAIT], place[CONDITION], place[MUTEX])
            _add(board, ASLEEP, -1)
            _call(place[UNLOCK], place[MUTEX], 0)
            continue
        seen = turn
        # Inside first, then open: the owner closes first, then waits until nobody is inside.
        _add(board, INSIDE, 1)
        if _load(board, OPEN) and number < place[HELPERS]:
            _take_parts(board, place[JOB], place[ARGUMENTS], place[PARTS], False)
        _add(board, INSIDE, -1)
