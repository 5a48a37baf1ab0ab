"""Host execution: NumPy views of MLX arrays without copies, and worker threads.

MLX streams are bound to the thread that made them, so worker threads call NumPy only.
"""

from __future__ import annotations

import ctypes
import glob
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import MLXSparseError, TracedOnHostError

COPIED = 1 << 22  # bytes up to which an array is made by copying: an evaluation waits for another thread
# NaN and infinity in features are the caller's; a warning from inside of an operator helps nobody.
_SILENT: dict[str, Any] = {"invalid": "ignore", "over": "ignore", "divide": "ignore"}
_DTYPES = {
    mx.float32: np.float32,
    mx.float16: np.float16,
    mx.int32: np.int32,
    mx.uint16: np.uint16,
    mx.uint8: np.uint8,
    mx.bool_: np.bool_,
}


def silent() -> np.errstate:
    """A context in which NumPy does not warn of NaN and infinity in features.

    Nor of products that have none: before NumPy 2.4 it does on Macs, where Apple's BLAS leaves all flags set.
    """
    return np.errstate(**_SILENT)


def require_values(*arrays: mx.array) -> None:
    """Evaluate; TracedOnHostError inside ``mx.compile`` or ``mx.vmap``, where an array has no value."""
    try:
        # Before mlx 0.32.4 np.asarray of a traced array throws past Python's except; eval does not.
        mx.eval(*arrays)
    except ValueError as error:
        if "during function transformations" not in str(error):
            raise
        raise TracedOnHostError(
            "an operator that needs values met a traced array, which has none yet: on the CPU device use "
            "mlxsparse.compile (it runs the function eagerly) in place of mx.compile, on a GPU call the "
            "operator outside the compiled function, and no mx.vmap"
        ) from None


def view(a: mx.array) -> np.ndarray:
    """Evaluate `a` and return its memory as a NumPy array (read it only). bfloat16 widens to float32.

    Raises TracedOnHostError inside ``mx.compile`` or ``mx.vmap``, where an array has no value.
    """
    a = a.astype(mx.float32) if a.dtype == mx.bfloat16 else a
    require_values(a)
    if a.size == 0:  # it may have no memory at all
        return np.empty(a.shape, str(a.dtype).rpartition(".")[2])
    return np.asarray(a)


def view32(a: mx.array) -> np.ndarray:
    """As `view`, C-contiguous, with float16 and bfloat16 widened to float32."""
    if a.dtype == mx.float32 and a.size:  # the usual case, which is quick
        require_values(a)
        return np.ascontiguousarray(a)
    return np.ascontiguousarray(view(a.astype(mx.float32)))


def _blank(size: int) -> np.ndarray:
    """Bytes to copy from; never written."""
    global _blanks
    if len(_blanks) < size + 2048:
        _blanks = np.zeros((1 << max(size - 1, 1 << 15).bit_length()) + 2048, np.uint8)
    # Zen 4 copies ten times slower between places that are about equal within a page, as heads of arrays are.
    return _blanks[2048 : 2048 + size]


_blanks = np.zeros(0, np.uint8)


def _keep_freed_memory() -> None:
    """Let glibc keep memory that is freed, up to 64 MiB, for the next array.

    It gives memory back to the system once twice the largest freed block that was mapped lies idle, and pages
    that come back are faulted in anew: up to a fifth of a forward. The largest block that it learns from has
    32 MiB; this one is never touched.
    """
    if sys.platform == "linux":
        np.empty((1 << 25) - (1 << 14), np.uint8)


_keep_freed_memory()


def empty(shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """An uninitialised MLX array and a writable NumPy view of its memory."""
    size = math.prod(shape) * dtype.size
    if size <= COPIED:
        # MLX's `empty` writes to all of its memory too, and takes that from a thread that keeps less of it.
        a = mx.array(_blank(size).view(_DTYPES[dtype]).reshape(shape))
    else:
        a = mx.empty(shape, dtype)
        mx.eval(a)
    return a, np.asarray(a)


def scratch(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised NumPy array for results in between, in memory that is kept for the next call.

    The system hands out fresh pages for each large array, and to touch those first costs more than
    most passes over them. At most `KEPT` bytes lie idle; `clear_scratch` frees them.
    """
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if size < 1 << 19:
        return np.empty(shape, dtype)
    return np.asarray(_Lease(size))[:size].view(dtype).reshape(shape)


KEPT = 1 << 27
_idle: list[np.ndarray] = []  # longest idle first
_idle_lock = threading.Lock()


class _Lease:
    """A buffer that goes back to `_idle` with the last array on it."""

    def __init__(self, size: int) -> None:
        with _idle_lock:
            fit = next((i for i, b in enumerate(_idle) if size <= len(b) <= 2 * size), None)
            found = None if fit is None else _idle.pop(fit)
        self.buffer = np.empty(size, np.uint8) if found is None else found
        # NumPy's arrays keep the object behind this alive.
        self.__array_interface__ = self.buffer.__array_interface__

    def __del__(self) -> None:
        # May run anywhere, inside __init__ too: appending disturbs nobody, and never waits.
        if KEPT is None or len(self.buffer) > KEPT // 4:  # None: Python is taking the module apart
            return
        _idle.append(self.buffer)
        if _idle_lock.acquire(blocking=False):
            while sum(map(len, _idle)) > KEPT:
                _idle.pop(0)
            _idle_lock.release()


def clear_scratch() -> None:
    """Give the memory that `scratch` keeps back to the system."""
    with _idle_lock:
        _idle.clear()


def to_mlx(v: np.ndarray) -> mx.array:
    """An MLX array with the values of `v` (float32, bool, or integers, which become int32), evaluated."""
    dtype = mx.float32 if v.dtype == np.float32 else mx.bool_ if v.dtype == bool else mx.int32
    if mx.default_device().type != mx.DeviceType.cpu:
        # Memory of a GPU may not be writable through a view: copied in.
        return mx.array(np.ascontiguousarray(v, _DTYPES[dtype]))
    a, out = empty(v.shape, dtype)
    np.copyto(out, v, casting="same_kind")
    return a


# ---------------------------------------------------------------- threads


# What os.environ keeps. It takes a microsecond to say that a variable is not there, 100 times a forward.
_environment: Any = getattr(os.environ, "_data", None) if os.supports_bytes_environ else None


def setting(name: bytes) -> bytes | None:
    """A variable of the environment."""
    if _environment is not None:
        found: bytes | None = _environment.get(name)
        return found
    text = os.environ.get(name.decode())
    return None if text is None else text.encode()


_MOST_THREADS = 256


def num_threads() -> int:
    """Host worker threads: ``MLXSPARSE_THREADS`` up to 256, else the cores of this process, at most 8.

    Raises MLXSparseError where that is no whole number.
    """
    wanted = setting(b"MLXSPARSE_THREADS")
    if wanted:
        try:
            return min(max(1, int(wanted)), _MOST_THREADS)
        except ValueError:
            text = wanted.decode(errors="replace")
            raise MLXSparseError(f"MLXSPARSE_THREADS is {text!r}; a whole number is needed") from None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(8, cores)


class _Blas:
    """Thread count of the OpenBLAS inside NumPy's wheel, so that each worker runs one BLAS thread."""

    def __init__(self) -> None:
        self.local: Callable[[int], int] | None = None
        self.set: Callable[[int], Any] | None = None
        self.get: Callable[[], int] | None = None
        self.gemm: np.ndarray | None = None  # addresses of cblas_sgemm and cblas_sgemv, 64-bit integers
        self.lock = threading.Lock()
        root = os.path.dirname(os.path.dirname(np.__file__))
        patterns = ("numpy.libs/*openblas*", "numpy/.dylibs/*openblas*")
        for path in sorted(p for pattern in patterns for p in glob.glob(os.path.join(root, pattern))):
            try:
                library = ctypes.CDLL(path)
            except OSError:
                continue
            for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
                setter = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                getter = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
                if setter is not None and getter is not None:
                    self.set, self.get = setter, getter
                    names = (f"{prefix}cblas_sgemm{suffix}", f"{prefix}cblas_sgemv{suffix}")
                    found = [getattr(library, name, None) for name in names]
                    if suffix and None not in found:
                        places = [ctypes.cast(f, ctypes.c_void_p).value for f in found]  # type: ignore[arg-type]
                        self.gemm = np.array(places, np.int64)
                    break

    @contextmanager
    def one_thread(self) -> Any:
        # A process-wide setting: held under a lock and put back, so that the caller's own NumPy
        # code finds what it had.
        assert self.set is not None and self.get is not None
        with self.lock:
            before = self.get()
            self.set(1)
            try:
                yield
            finally:
                self.set(before)


_blas: _Blas | None = None
_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()
_worker_ids: list[int] = []  # of the system, for _apart


def _get_blas() -> _Blas:
    global _blas
    if _blas is None:
        _blas = _Blas()
    return _blas


def blas_control() -> str:
    """``"openblas"`` when BLAS threads of NumPy can be set from here, else ``"none"``."""
    return "openblas" if _get_blas().set is not None else "none"


def blas_addresses() -> np.ndarray | None:
    """(2,) int64: where cblas_sgemm and cblas_sgemv of NumPy's OpenBLAS are, for compiled code; or None."""
    return _get_blas().gemm


def _drop_pool_after_fork() -> None:
    global _pool, _pool_lock, _blas, _idle_lock
    _pool, _blas, _pool_lock, _idle_lock = None, None, threading.Lock(), threading.Lock()
    _worker_ids.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pool_after_fork)


def parallel(
    work: Callable[[int], Any], tasks: int | Iterable[int], *, blas: bool = False, small: bool = False
) -> None:
    """Run ``work(task)`` for every task on the host threads; NumPy only inside `work`.

    Tasks write to disjoint memory and `blas` tasks (which call BLAS) see one BLAS thread each, so
    results do not depend on the number of threads. `small`: not worth waking a thread for. The
    first exception is raised, once every thread has stopped.
    """
    items = list(range(tasks) if isinstance(tasks, int) else tasks)
    workers = 1 if small else min(num_threads(), len(items))
    control: AbstractContextManager[Any] = nullcontext()
    if blas and _get_blas().set is not None:
        control = _get_blas().one_thread()
    if workers <= 1:
        with control, silent():
            for task in items:
                work(task)
        return
    queue = iter(items)
    guard = threading.Lock()

    def drain() -> None:
        while True:
            with guard:
                task = next(queue, None)
            if task is None:
                return
            with silent():
                work(task)

    pool = _get_pool()  # here: `_apart` leaves this thread one core, which threads made by it would keep
    helping = min(workers - 1, pool._max_workers)
    with control, _apart():
        helpers = [pool.submit(drain) for _ in range(helping)]
        try:
            drain()
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            number = max(1, num_threads() - 1)
            _pool = ThreadPoolExecutor(
                number,
                thread_name_prefix="mlxsparse",
                initializer=lambda: _worker_ids.append(threading.get_native_id()),
            )
            here = threading.Barrier(number + 1)
            try:
                for _ in range(number):  # all start now
                    _pool.submit(here.wait)
                here.wait()
            except RuntimeError:  # the system gives no more of them, and is asked for no more
                here.abort()
                _pool._max_workers = len(_pool._threads)
        return _pool


@lru_cache(maxsize=1)
def current_core() -> Callable[[], int] | None:
    """Which core the calling thread runs on, where Linux tells and threads can be placed."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None)  # keeps Python's lock: it is as short as that


@contextmanager
def _apart() -> Any:
    """Keep the calling thread on its core, and the worker threads on the others, for one parallel region.

    Threads that hand Python's lock to each other wake each other, and on machines of few cores Linux
    then draws them onto one core, where they take turns for tens of milliseconds while another idles.
    """
    core = current_core()
    allowed = os.sched_getaffinity(0) if core is not None else set()
    if core is None or len(allowed) < 2:
        yield
        return
    mine = {core()} & allowed
    try:
        for worker in _worker_ids:
            os.sched_setaffinity(worker, allowed - mine)
        os.sched_setaffinity(0, mine)
    except OSError:  # not allowed here: placement is the system's
        pass
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
