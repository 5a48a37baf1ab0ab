"""Which executor an operator uses, and what the environment offers."""

from __future__ import annotations

import os
import sys
from typing import Any

import mlx.core as mx

from ..errors import DeviceError

_traced: set[str] = set()


def executor() -> str:
    """Name of the executor for the current default device: ``"host"`` on the CPU device.

    ``with mx.stream(mx.cpu)`` counts, since it changes the default device. The GPU device has no
    kernels in this version; it raises DeviceError rather than silently running elsewhere.
    """
    device = mx.default_device()
    if device.type == mx.DeviceType.cpu:
        return "host"
    raise DeviceError(
        f"no GPU kernels in this version of mlxsparse for {device}; "
        "call mx.set_default_device(mx.cpu), or run inside `with mx.stream(mx.cpu):`"
    )


def trace(message: str, *, once: bool = False) -> None:
    """Write `message` to stderr when ``MLXSPARSE_TRACE=1``; with `once`, one time a process."""
    if os.environ.get("MLXSPARSE_TRACE", "") not in ("", "0") and not (once and message in _traced):
        _traced.add(message)
        print(f"mlxsparse: {message}", file=sys.stderr)


def info() -> dict[str, Any]:
    """What runs where: MLX version, default device, executor, host threads and their BLAS control."""
    from importlib.metadata import version

    from . import fast, host

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
    }
