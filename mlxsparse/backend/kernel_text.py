"""Texts of the kernels: files of kernels/, what CUDA compiles, names."""

from __future__ import annotations

import functools
import hashlib
import pathlib
from typing import Any

from ..errors import DeviceError
from .cuda_compile import NAME
from .cuda_text import Bounds, whole
from .kernel_table import KERNELS, Kernel


@functools.cache
def folder() -> pathlib.Path:
    """Where the kernel texts are: in the installed package, else in the checkout."""
    package = pathlib.Path(__file__).resolve().parents[1]
    for place in (package / "kernels", package.parent / "kernels"):
        if (place / "prelude.cuh").is_file():
            return place
    raise DeviceError(f"mlxsparse's kernels/ is neither in {package} nor beside it; reinstall mlxsparse")


@functools.cache
def text(file: str) -> str:
    """Text of one file of kernels/."""
    return (folder() / file).read_text(encoding="utf-8")


def header(kernel: Kernel) -> str:
    return "".join(text(name) for name in kernel.headers)


def cuda_prelude() -> str:
    return text("prelude.cuh") + text("tile.cuh") + text("stage.cuh")


def cuda_source(
    name: str,
    values: dict[str, Any],
    dynamic: bool = False,
    bounds: Bounds | None = None,
    known: int = 0,
) -> str:
    """CUDA text of kernel `name`. values: of its template, T as a dtype or its name; the rest: `whole`."""
    kernel = KERNELS[name]
    kind = str(values.get("T", "")).removeprefix("mlx.core.")
    inputs, outputs = (
        {array: kind if of == "T" else of for array, of in side.items()}
        for side in (kernel.inputs, kernel.outputs)
    )
    constants = {key: kind if key == "T" else values[key] for key in kernel.template}
    head, body = cuda_prelude() + header(kernel), text(f"{name}.metal")
    return whole(NAME, inputs, outputs, constants, head, body, bounds, dynamic, known)


def unique_name(name: str) -> str:
    """A name that changes with the text: MLX knows kernels by name."""
    whole = cuda_prelude() + header(KERNELS[name]) + text(f"{name}.metal")
    return f"mlxsparse_{name}_{hashlib.sha256(whole.encode()).hexdigest()[:10]}"


def plain_name(unique: str) -> str:
    """The name in KERNELS of a `unique_name`."""
    return unique.removeprefix("mlxsparse_").rpartition("_")[0]
