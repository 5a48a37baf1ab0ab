"""Runs Metal kernels on the CPU: a stand-in for mx.fast.metal_kernel with the same call contract."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxsparse.backend.host import view

from . import source, toolchain

MAX_GROUP_BYTES = 32768  # threadgroup memory of every Apple GPU
TIMEOUT = 60  # seconds of one kernel in a process of its own
_NUMPY = {
    mx.float32: np.float32,
    mx.float16: np.float16,
    mx.bfloat16: np.uint16,
    mx.int32: np.int32,
    mx.uint32: np.uint32,
    mx.int64: np.int64,
    mx.uint64: np.uint64,
    mx.uint8: np.uint8,
    mx.int8: np.int8,
    mx.int16: np.int16,
    mx.uint16: np.uint16,
    mx.bool_: np.bool_,
}


class KernelError(RuntimeError):
    """A kernel broke a rule while it ran, or a sanitizer stopped it."""


class _Options(ctypes.Structure):  # runtime.h: Options
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("group", ctypes.c_uint * 3),
        ("os_threads", ctypes.c_uint),
        ("seed", ctypes.c_uint),
        ("error", ctypes.c_char * 512),
        ("group_bytes", ctypes.c_uint),
        ("max_group_bytes", ctypes.c_uint),
    ]


@dataclass(frozen=True)
class Mode:
    """How kernels run: seed 0 in plain order, others at random; sanitizer "address", "thread" or None."""

    seed: int = 0
    sanitizer: str | None = None
    os_threads: int = 1


def _address(v: np.ndarray) -> int:
    return int(v.__array_interface__["data"][0])


@functools.cache
def _start() -> int:
    """Where buffers of MLX's CPU device start, as a remainder of 16; a GPU's start at 0."""
    return _address(view(mx.zeros((64,)))) % 16


def to_numpy(a: mx.array) -> np.ndarray:
    """Values of `a`, C-contiguous and aligned as `a` is in its buffer; bfloat16 as its bits in uint16."""
    bits = view(a.view(mx.uint16) if a.dtype == mx.bfloat16 else a)
    memory = np.empty(bits.nbytes + 16, np.uint8)
    first = _address(bits) - _start() if bits.flags.c_contiguous else 0  # MLX copies others
    skipped = (first - _address(memory)) % 16
    placed = memory[skipped : skipped + bits.nbytes].view(bits.dtype).reshape(bits.shape)
    placed[...] = bits
    return placed


def to_mlx(v: np.ndarray, dtype: mx.Dtype) -> mx.array:
    a = mx.array(v)
    return a.view(mx.bfloat16) if dtype == mx.bfloat16 else a


def metal_kernel_factory(mode: Mode = Mode()) -> Callable[..., Any]:  # noqa: B008
    """A function with mx.fast.metal_kernel's arguments whose kernels run on the CPU in `mode`."""

    def factory(
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
    ) -> Callable[..., list[mx.array]]:
        assert ensure_row_contiguous, "portable kernels take row-contiguous arrays"
        kernel = mx.fast.metal_kernel(
            name=name, input_names=input_names, output_names=output_names, source=source, header=header
        )
        return _Runner(kernel, mode)

    return factory


class _Runner:
    """A kernel; calling it runs it. Compiled once per variant of the text that MLX makes from it."""

    def __init__(self, kernel: Any, mode: Mode):
        self.kernel = kernel
        self.mode = mode
        self.variants: dict[Any, tuple[str, int]] = {}
        self.libraries: dict[str, Any] = {}

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
    ) -> list[mx.array]:
        if math.prod(threadgroup) > 1024:
            raise KernelError(f"threadgroup {threadgroup} has more than 1024 threads")
        arrays = list(inputs)
        call = {
            "output_shapes": output_shapes,
            "output_dtypes": output_dtypes,
            "grid": grid,
            "threadgroup": threadgroup,
            "template": template,
            "init_value": init_value,
        }
        text, buffers = self._variant(arrays, call)
        data = [to_numpy(a) for a in arrays]
        outputs = [_filled(shape, dtype, init_value) for shape, dtype in zip(output_shapes, output_dtypes)]
        if len(data) + len(outputs) != buffers:
            raise KernelError(
                f"the kernel takes {buffers} buffers, got {len(data)} and {len(outputs)} outputs"
            )
        built = str(toolchain.build(text, self.mode.sanitizer))
        if self.mode.sanitizer:
            outputs = _run_process(built, data, outputs, grid, threadgroup, self.mode.seed)
        else:
            self._run_here(built, data + outputs, grid, threadgroup)
        return [to_mlx(o, dtype) for o, dtype in zip(outputs, output_dtypes)]

    def _variant(self, arrays: list[mx.array], call: dict[str, Any]) -> tuple[str, int]:
        key = (
            tuple((a.dtype, a.ndim == 0, a.size < 8) for a in arrays),
            tuple(call["output_dtypes"]),
            tuple((name, str(value)) for name, value in call["template"] or ()),
        )
        if key not in self.variants:
            metal = source.metal_text(self.kernel, arrays, **call)
            self.variants[key] = source.cpp_source(metal)
        return self.variants[key]

    def _run_here(self, built: str, data: list[np.ndarray], grid: Any, threadgroup: Any) -> None:
        if built not in self.libraries:
            self.libraries[built] = ctypes.CDLL(built)
        library = self.libraries[built]
        options = _Options((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*threadgroup))
        options.os_threads, options.seed = self.mode.os_threads, self.mode.seed
        options.max_group_bytes = MAX_GROUP_BYTES
        pointers = (ctypes.c_void_p * len(data))(*[d.ctypes.data for d in data])
        if library.msl_run(library.msl_entry, pointers, ctypes.byref(options)):
            raise KernelError(options.error.decode())


def _filled(shape: Sequence[int], dtype: mx.Dtype, init_value: float | None) -> np.ndarray:
    """An output as Metal would hand it over: filled with init_value, else (poisoned) with 0xFF bytes."""
    out: np.ndarray = np.empty(shape, _NUMPY[dtype])
    if init_value is None:
        out.reshape(-1).view(np.uint8)[:] = 0xFF
    else:
        out[...] = to_numpy(mx.array(init_value).astype(dtype))
    return out


def _run_process(
    path: str,
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    seed: int,
) -> list[np.ndarray]:
    environment = dict(
        os.environ,
        ASAN_OPTIONS="detect_stack_use_after_return=0:detect_leaks=0:exitcode=67",
        TSAN_OPTIONS="report_signal_unsafe=0:exitcode=66:history_size=2:halt_on_error=1",
        UBSAN_OPTIONS="print_stacktrace=0",
    )
    buffers = inputs + outputs
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in", "wb") as file:
            head = [len(buffers), len(inputs), *grid, *threadgroup, seed, MAX_GROUP_BYTES]
            file.write(np.array(head, np.uint32).tobytes())
            for b in buffers:
                file.write(np.array([b.nbytes, _address(b) % 16], np.uint64).tobytes())
                file.write(b.tobytes())
        command = [path, f"{folder}/in", f"{folder}/out"]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise KernelError(f"still running after {TIMEOUT} s") from None
        if done.returncode:
            raise KernelError((done.stdout + done.stderr)[:3000] or f"exit status {done.returncode}")
        with open(f"{folder}/out", "rb") as file:
            return [np.frombuffer(file.read(b.nbytes), b.dtype).reshape(b.shape) for b in outputs]
