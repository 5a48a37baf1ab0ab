"""Worker threads for compiled loops, without Python's lock: a part is handed over within a microsecond.

`parallel` in host.py wakes its threads with Python, 50 to 100 us each time and more where they wait for
Python's lock. Workers here look for work for a while (LOOKS), so that a chain of small layers finds them
awake, and one that sleeps or waits for a core holds nobody up: the caller does all parts that nobody took.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from functools import cache
from typing import Any

import numpy as np

from .host import current_core, num_threads

LOOKS = 40_000  # times that a worker looks for work before it sleeps: about a millisecond


@cache
def _compiled() -> Any:
    from . import _numba_team

    return _numba_team


@cache
def job(function: Any) -> int:
    """Address of a function (address of arguments, part), compiled; it raises nothing."""
    made = _compiled().compile_job(function)
    _functions.append(made)
    return int(made.address)


_functions: list[Any] = []  # compiled code lives as long as they do


class _Team:
    def __init__(self) -> None:
        code, libc = _compiled(), ctypes.CDLL(None)
        # On lines of a cache of their own.
        memory = np.zeros(code.WORDS + 80, np.int64)
        skip = -memory.ctypes.data % 128 // 8
        self.words = board = memory[skip:]
        self.board = board.ctypes.data
        board[code.MUTEX] = self.board + 8 * code.WORDS
        board[code.CONDITION] = self.board + 8 * (code.WORDS + 16)
        libc.pthread_mutex_init(ctypes.c_void_p(int(board[code.MUTEX])), None)
        libc.pthread_cond_init(ctypes.c_void_p(int(board[code.CONDITION])), None)
        for word, name in (
            (code.LOCK, "pthread_mutex_lock"),
            (code.UNLOCK, "pthread_mutex_unlock"),
            (code.WAIT, "pthread_cond_wait"),
            (code.WAKE, "pthread_cond_broadcast"),
            (code.YIELD, "sched_yield"),
        ):
            board[word] = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        self.core = -1  # that workers keep away from
        self.threads: list[threading.Thread] = []
        self.lock = threading.Lock()
        code.share(self.board, 0, 0, 0, 0, False)  # compiled before a thread starts

    def grow(self, helpers: int) -> None:
        with self.lock:
            while len(self.threads) < helpers:
                # More threads than cores only take time from each other by looking.
                looks = LOOKS if len(self.threads) + 1 < (os.cpu_count() or 1) else 0
                thread = threading.Thread(
                    target=_compiled().serve,
                    args=(self.board, len(self.threads), looks),
                    name=f"mlxsparse-team-{len(self.threads)}",
                    daemon=True,
                )
                thread.start()
                self.threads.append(thread)
                self.core = -1

    def place(self) -> None:
        """Keep workers on other cores than the caller's, which the system may have moved.

        Linux leaves threads that wake each other on one core for a while if another one has anything to do.
        """
        find = current_core()
        core = -1 if find is None else find()
        if core == self.core:
            return
        self.core = core
        others = os.sched_getaffinity(0) - {core}
        for thread in self.threads if others else ():
            assert thread.native_id is not None  # started
            try:
                os.sched_setaffinity(thread.native_id, others)
            except OSError:  # not allowed here, or gone
                return

    def stop(self) -> None:
        _compiled().stop(self.board)
        for thread in self.threads:
            thread.join(1.0)


_team: _Team | None = None
_lock = threading.Lock()


def crew(wake: bool, alone: bool = False) -> tuple[int, int, bool]:
    """For `share`: address of the board, workers that may help (none if `alone`), whether to wake them."""
    global _team
    helpers = 0 if alone else num_threads() - 1
    found = _team
    if found is None:
        with _lock:
            found = _team = _team or _Team()
    if len(found.threads) < helpers:
        found.grow(helpers)
    if helpers:
        found.place()
    return found.board, helpers, wake


def _stop() -> None:
    if _team is not None:
        _team.stop()


def _forget() -> None:  # threads do not come along
    global _team, _lock
    _kept.append(_team)  # never freed: a child may fork in the middle of anything
    _team, _lock = None, threading.Lock()


_kept: list[_Team | None] = []
atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
