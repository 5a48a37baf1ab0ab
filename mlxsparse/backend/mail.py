"""Small results that the host waits for, and waiting for large ones.

MLX's CUDA backend waits for events that let the thread sleep; it is woken some 0.03 to 0.3 ms after the GPU
is done. Here the GPU writes into memory of the host, and the thread looks there again and again, as
torch.cuda.synchronize does. So values need no array that the host sees either, which MLX would move there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from .cuda_compile import machine_code
from .device import trace
from .host import view
from .kernel_text import text
from .replay import Run, kept

SLOTS, WORDS = 2048, 64  # of 32 bits: a ticket, then values
BELLS = 64  # as many threads may wait for large results at once
PLACES = SLOTS + BELLS
TICKETS = SLOTS * (2**20 - 1)  # then they begin again, from 1; slots follow each other there too
PATIENCE = 5e-3  # seconds; after that an event: whoever waits so long does not feel how late it wakes
_KINDS = {mx.int32: np.int32, mx.uint32: np.uint32, mx.int64: np.int64, mx.uint64: np.uint64}
# Lets go of Python's lock as well (from 3.12 on). To sleep, however short, takes Linux 0.05 ms.
_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
_numbers = itertools.count()
_fence = threading.Lock()


def begin(*arrays: mx.array) -> bool:
    """Start computing arrays that will be read soon; whether that was possible.

    What follows from the arguments of a transformation of MLX may not be started inside it: it stays lazy,
    and is computed once, with the first result that needs it.
    """
    try:
        mx.async_eval(*arrays)
    except ValueError:
        return False
    return True


class Ticket(NamedTuple):
    """Of what was sent to the box."""

    number: int  # from 1; it is written last
    mark: mx.array  # which the kernel that writes makes


class Bell(NamedTuple):
    """A word of the box that is 0 or 1, of one wait at a time."""

    at: int
    ring: Run  # launches the kernel that sets it: always the same launch, so that it can be kept


class Box:
    """Memory of the host that the GPU can write to, and the kernel that writes there (kernels/mail.cu)."""

    # address: of the memory, on the GPU; name, code: of the kernel.
    def __init__(self, memory: Any, address: int, name: str, code: bytes):
        self.memory = memory  # PLACES * WORDS of uint32
        self.newest = 0  # number of a ticket
        nothing = mx.array([0, 0], dtype=mx.int32)
        self.nothing = nothing, nothing
        places = np.uint64(address) + np.arange(PLACES, dtype=np.uint64) * np.uint64(4 * WORDS)
        self.places: list[list[int]] = places.view(np.int32).reshape(PLACES, 2).tolist()  # low, high
        self.launch = functools.partial(
            mx.fast.precompiled_cuda_kernel,
            name=name,
            compiled_source=code,
            output_shapes=[(1,)],
            output_dtypes=[mx.int32],
            grid=(WORDS, 1, 1),
            threadgroup=(WORDS, 1, 1),
            ensure_row_contiguous=True,
        )
        self.bells = [self._bell(slot) for slot in range(SLOTS, PLACES)]  # that no wait has

    def _bell(self, slot: int) -> Bell:
        scalars = [*self.places[slot], 1, 0, 0]
        return Bell(slot * WORDS, kept(lambda arrays: self.launch(inputs=list(arrays), scalars=scalars)))

    def computed(self, arrays: Sequence[mx.array]) -> bool:
        """Compute arrays, on whatever streams, and wait for them. False: inside of a transformation, say."""
        try:
            at, ring = bell = self.bells.pop()
        except IndexError:
            return False
        # One whose wait is broken off is not used again: its kernel might still come.
        self.memory[at] = 0
        (mark,) = ring([mx.depends(self.nothing[0], list(arrays)), self.nothing[1]])
        begun = begin(mark)
        if begun and not self._becomes(at, 1):
            mx.eval(mark)
        self.bells.append(bell)
        return begun

    def post(self, arrays: Sequence[mx.array]) -> Ticket | None:
        """Send at most two arrays here. None inside of a transformation."""
        ticket = self.newest = 1 + next(_numbers) % TICKETS
        more = 2 - len(arrays)
        sizes = [_words(a) for a in arrays] + [0] * more
        (mark,) = self.launch(
            inputs=[*arrays, *self.nothing[:more]],
            scalars=[*self.places[ticket % SLOTS], ticket, *sizes],
        )
        return Ticket(ticket, mark) if begin(mark) else None

    def has(self, ticket: Ticket) -> bool:
        """Whether what has this ticket arrives within PATIENCE."""
        return self._becomes(ticket.number % SLOTS * WORDS, ticket.number)

    def shows(self, ticket: Ticket) -> bool:
        """Whether what has this ticket is there, or has been."""
        return self.memory[ticket.number % SLOTS * WORDS] == ticket.number or self._is_old(ticket)

    def _becomes(self, at: int, value: int) -> bool:
        memory, until = self.memory, time.perf_counter() + PATIENCE
        while memory[at] != value:
            if time.perf_counter() > until:
                return False
            _let_others_run()
        with _fence:  # what is read next may not have been read before
            return True

    def words(self, ticket: Ticket, count: int) -> np.ndarray | None:
        """The first values that come with this ticket; None: others may have taken their place."""
        if self._is_old(ticket):
            return None
        if not self.has(ticket):
            mx.eval(ticket.mark)
            if not self.has(ticket):
                return None
        at = ticket.number % SLOTS * WORDS
        found = np.array(self.memory[at + 1 : at + 1 + count], np.uint32)
        return None if self._is_old(ticket) else found

    def _is_old(self, ticket: Ticket) -> bool:
        """Whether one that has its slot may have been posted since, before the host read what is there."""
        since = (self.newest - ticket.number) % TICKETS  # threads may have noted their numbers out of order
        return SLOTS // 2 <= since < TICKETS - SLOTS // 2


class Sent:
    """Small integer arrays on their way to the host."""

    __slots__ = ("_arrays", "_box", "_ticket")

    def __init__(self, arrays: Sequence[mx.array], box: Box | None = None, ticket: Ticket | None = None):
        self._arrays, self._box, self._ticket = arrays, box, ticket  # no box: they are read as MLX does it

    @property
    def arrived(self) -> bool | None:
        """Whether they are here; None: nothing tells but to wait."""
        return None if self._box is None or self._ticket is None else self._box.shows(self._ticket)

    def read(self) -> list[list[int]]:
        """Their values, of each array in row-major order.

        Raises TracedOnHostError inside ``mx.compile`` or ``mx.vmap``, where an array has no value.
        """
        if self._box is not None and self._ticket is not None:
            sizes = [_words(a) for a in self._arrays]
            words = self._box.words(self._ticket, sum(sizes))
            if words is not None:
                found, at = [], 0
                for a, size in zip(self._arrays, sizes):
                    found.append(words[at : at + size].view(_KINDS[a.dtype]).tolist())
                    at += size
                return found
        return [view(a).reshape(-1).tolist() for a in self._arrays]


def shared() -> bool:
    """Whether host and GPU share memory for what is sent: else nothing tells what arrived but to wait."""
    return _box_here() is not None


def send(*arrays: mx.array) -> Sent:
    """Start computing one or two small arrays of integers that the host will read.

    What is begun later is not waited for. Quick for 63 words of 32 bits together, or fewer.
    """
    box = _box_here()
    fits = len(arrays) <= 2 and all(a.dtype in _KINDS for a in arrays) and sum(map(_words, arrays)) < WORDS
    if box is not None and fits and (ticket := box.post(arrays)):
        return Sent(arrays, box, ticket)
    # Copies, as reading moves what is read to the host, with all that it is a view of.
    copies = [a + 0 for a in arrays]
    begin(*copies)
    return Sent(copies)


def read_ints(*values: mx.array) -> list[int]:
    """One or two 0-d arrays of integers as Python integers, in one wait for the device."""
    kinds = [v if v.dtype in _KINDS else v.astype(mx.int32) for v in values]
    return [value for (value,) in send(*kinds).read()]


def wait(*tree: Any) -> None:
    """Evaluate arrays, in any tree of lists, tuples and dicts, and wait until the device has them.

    As ``mx.eval``, which sleeps on a CUDA device and wakes 0.03 to 0.3 ms late: this looks again and again
    for up to 5 ms before it sleeps, which takes a core of the host meanwhile; memory that the call used is
    free a little later. Elsewhere both are the same.
    """
    arrays = list(tree)
    if any(type(a) is not mx.array for a in arrays):
        leaves: list[tuple[str, Any]] = tree_flatten(arrays)  # type: ignore[assignment]
        arrays = [a for _, a in leaves if isinstance(a, mx.array)]
    box = _box_here()
    if box is None or not arrays or not box.computed(arrays):
        mx.eval(*arrays)


def _words(a: mx.array) -> int:
    return a.size * a.dtype.size // 4


def _box_here() -> Box | None:
    """The box of the default device."""
    return _box() if mx.default_device().type == mx.DeviceType.gpu else None


@functools.cache
def _box() -> Box | None:
    """None where arrays are read as MLX does it: no CUDA, or no way to share memory with it."""
    if not mx.cuda.is_available():
        return None
    made = machine_code("mail", text("mail.cu"))
    mx.eval(mx.zeros((SLOTS,), mx.int32) + 1)  # CUDA has started
    address = None
    with contextlib.suppress(OSError, AttributeError):
        address = _shared(4 * PLACES * WORDS)
    if made is None or address is None:
        trace("no memory that host and GPU share: waits sleep", once=True)
        return None
    memory = (ctypes.c_uint32 * (PLACES * WORDS)).from_address(address[0])
    ctypes.memset(memory, 0, 4 * PLACES * WORDS)
    return Box(memory, address[1], *made)


def _shared(size: int) -> tuple[int, int] | None:
    """Pinned memory until the process ends: its address on the host and on the GPU."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    host, gpu = ctypes.c_void_p(), ctypes.c_uint64()
    every, mapped = 1, 2  # CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP
    if cuda.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
        if cuda.cuDeviceGet(ctypes.byref(device), 0):
            return None
        if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or cuda.cuCtxSetCurrent(context):
            return None
    if cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(size), every | mapped) or host.value is None:
        return None
    if cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(gpu), host, 0):
        return None
    return host.value, gpu.value
