"""Which executor an operator uses, and what the environment offers."""

from __future__ import annotations

import functools
import os
import pathlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from ..errors import DeviceError

# MLX can gather the kernels of an evaluation in a CUDA graph. To put one together, to change the last one to
# it and to start it takes 0.1 to 0.5 ms, in which the GPU waits; without, it starts with the first kernel.
# And it hands the kernels over in pieces, each of one more than so many. A piece wakes two threads, as dear
# as several kernels; ten may be in flight, with all that they read and write: of a gradient as much as
# `mlxsparse.staged` lets be. MLX reads both at its first CUDA operation.
if mx.cuda.is_available():
    os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")
    os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", "24")

_traced: set[str] = set()
_kernels_everywhere = False


def executor() -> str:
    """Name of the executor for the default device: ``"host"`` on the CPU device, ``"kernel"`` on a GPU.

    ``with mx.stream(mx.cpu)`` counts, since it changes the default device. DeviceError for a GPU
    device where MLX has neither Metal nor CUDA, rather than silently running elsewhere.
    """
    if _kernels_everywhere:
        return "kernel"
    if mx.default_device().type == _CPU:
        return "host"
    _require_kernels()
    return "kernel"


_CPU = mx.DeviceType.cpu


@functools.cache
def _require_kernels() -> None:
    from .library import factory

    factory()


@contextmanager
def kernels_everywhere() -> Iterator[None]:
    """Run operators through kernels on the CPU device too: tests, with `library.using`."""
    global _kernels_everywhere
    before, _kernels_everywhere = _kernels_everywhere, True
    try:
        yield
    finally:
        _kernels_everywhere = before


def cache_folder() -> pathlib.Path:
    """The user's cache folder of mlxsparse: measured paths, compiled CUDA kernels."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME", "") or pathlib.Path.home() / ".cache") / "mlxsparse"


def tracing() -> bool:
    """Whether ``MLXSPARSE_TRACE=1``: a message may take as long to put together as a launch."""
    return os.environ.get("MLXSPARSE_TRACE", "") not in ("", "0")


def trace(message: str, *, once: bool = False) -> None:
    """Write `message` to stderr when ``MLXSPARSE_TRACE=1``; with `once`, one time a process."""
    if tracing() and not (once and message in _traced):
        _traced.add(message)
        print(f"mlxsparse: {message}", file=sys.stderr)


def info() -> dict[str, Any]:
    """What runs where: MLX version, default device, executor, host threads and their BLAS control."""
    from importlib.metadata import version

    from . import fast, host, tuning

    try:
        name = executor()
    except DeviceError as error:
        name = f"none ({error})"
    return {
        "mlx": version("mlx"),
        "numpy": version("numpy"),
        "device": str(mx.default_device()),
        "executor": name,
        "metal": mx.metal.is_available(),
        "cuda": bool(getattr(mx, "cuda", None) and mx.cuda.is_available()),
        "host_threads": host.num_threads(),
        "blas_threads": host.blas_control(),
        "fast": fast.available(),
        "tuning_table": str(tuning.table_path()) if tuning.table_path().exists() else None,
    }
