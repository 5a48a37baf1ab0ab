"""Plants mistakes and reports those that the checks miss."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from .check import text_errors
from .executor import KernelError, Mode, metal_kernel_factory
from .planted_bugs import BUGS
from .planted_text import RIGHT, WRONG

SEEDS = range(1, 6)


def _text_errors(header: str, body: str) -> list[str]:
    inputs = [mx.zeros((64,)), mx.zeros((3,), dtype=mx.int32)]
    kernel = mx.fast.metal_kernel(
        name="planted", input_names=["inp", "small"], output_names=["out"], source=body, header=header + "\n"
    )
    call = {
        "output_shapes": [(64,)],
        "output_dtypes": [mx.float32],
        "grid": (1, 1, 1),
        "threadgroup": (1, 1, 1),
    }
    return text_errors(header + "\n", body, kernel, inputs, **call)


def missed_in_text() -> Iterator[str]:
    """Wrong texts that were accepted and right ones that were refused."""
    for name, (header, body) in WRONG.items():
        if not _text_errors(header, body):
            yield f"{name}: accepted"
    for name, (header, body) in RIGHT.items():
        errors = _text_errors(header, body)
        if errors:
            yield f"{name}: refused ({errors[0]})"


def _run(name: str, body: str, mode: Mode) -> np.ndarray:
    kernel = metal_kernel_factory(mode)("planted", ["inp"], ["out"], body)
    out = kernel(
        inputs=[mx.arange(128).astype(mx.float32)],
        output_shapes=[(128,)],
        output_dtypes=[mx.float32],
        grid=(128, 1, 1),
        threadgroup=(64 if name.startswith("cross-threadgroup") else 128, 1, 1),
        init_value=0 if name.startswith("CAS") else None,
    )[0]
    return np.array(out).view(np.uint32)


def caught_by(name: str, body: str) -> list[str]:
    """The ways in which a bug shows: an error of the executor, random schedules, a sanitizer."""
    ways = []
    try:
        plain = _run(name, body, Mode())
        # Poison that no thread wrote over is a NaN.
        if np.isnan(plain.view(np.float32)).any():
            ways.append("poison")
        if any((_run(name, body, Mode(seed=seed)) != plain).any() for seed in SEEDS):
            ways.append("schedules")
    except KernelError:
        ways.append("executor")
    for sanitizer in ("address", "thread"):
        try:
            _run(name, body, Mode(sanitizer=sanitizer))
        except KernelError:
            ways.append(sanitizer)
    return ways


def missed_when_run() -> Iterator[str]:
    """Planted bugs that nothing showed."""
    for name, body in BUGS.items():
        if not caught_by(name, body):
            yield name
