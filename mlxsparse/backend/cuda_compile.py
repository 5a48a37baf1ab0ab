"""CUDA kernels compiled once a machine, instead of by every process.

mx.fast.cuda_kernel gives each text MLX's own headers, which take NVIDIA's run-time compiler over a second a
kernel, and keeps nothing on disk. The kernels here need only CUDA's headers for half precision: the compiler
that MLX has loaded is called with those (0.05 to 0.4 s a kernel) and the result kept in the user's cache
folder. Where compiler or headers are not found, mx.fast.cuda_kernel is used.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..errors import MLXSparseError
from ..files import atomic_write
from .device import cache_folder, trace

NAME = "KERNEL_NAME"  # what the kernel is called in a text
OPTIONS = ("--std=c++17", "--device-as-default-execution-space")


class Compiler:
    """NVIDIA's run-time compiler (NVRTC): a library and the folders of CUDA's headers."""

    def __init__(self, library: pathlib.Path, includes: Sequence[pathlib.Path]):
        self.library = ctypes.CDLL(str(library))
        self.options = [*OPTIONS, *(f"--include-path={path}" for path in includes)]
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, text: str, architecture: str) -> tuple[bytes, str]:
        """(machine code, "") of a text, or (b"", what the compiler says). architecture: as "sm_90a"."""
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *self.options)]
        array = (ctypes.c_char_p * len(options))(*options)
        if self.library.nvrtcCompileProgram(program, len(options), array) == 0:
            result = self._read(program, "CUBIN"), ""
        else:
            message = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            result = b"", message or "refused without a message"
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return result

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw


def _loaded() -> pathlib.Path | None:
    """The compiler's library that MLX has loaded into this process, on Linux."""
    try:
        maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/libnvrtc.so" in line)
    return next(map(pathlib.Path, found), None)


def header_folders() -> list[pathlib.Path]:
    """Where CUDA's headers can be: MLX's own, wheels of NVIDIA, CUDA_HOME, the usual place."""
    mlx = pathlib.Path(mx.__file__).parent / "include"
    wheels = [p for place in sys.path for p in sorted(pathlib.Path(place or ".").glob("nvidia/*/include"))]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = [mlx / "cccl", *wheels, *(pathlib.Path(home) / "include" for home in homes if home)]
    return [path for path in (*found, *(path / "cccl" for path in found)) if path.is_dir()]


@functools.cache
def _compiler() -> Compiler | None:
    library = _loaded()
    return None if library is None else Compiler(library, header_folders())


@functools.cache
def _architecture() -> str | None:
    """The GPU's, as MLX compiles for it: "sm_90a". None where MLX does not tell."""
    info: dict[str, Any] = getattr(mx, "device_info", dict)()
    major, minor = info.get("compute_capability_major"), info.get("compute_capability_minor")
    return None if major is None else f"sm_{major}{minor}{'a' if int(major) >= 9 else ''}"


def machine_code(name: str, text: str) -> tuple[str, bytes] | None:
    """(the kernel's name, machine code) of a CUDA text whose kernel is called NAME; None: leave it to MLX."""
    compiler, architecture = _compiler(), _architecture()
    if compiler is None or architecture is None:
        trace("NVIDIA's compiler was not found beside MLX: MLX compiles in every process", once=True)
        return None
    key = "\n".join((architecture, compiler.version, *OPTIONS, text))
    called = f"mlxsparse_{name}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    path = cache_folder() / "cuda" / f"{called}.cubin"
    if (kept := _kept(path)) is not None:
        return called, kept
    code, message = compiler.compile(text.replace(NAME, called), architecture)
    if not code and "could not open source file" in message:
        trace("CUDA's headers were not found: MLX compiles in every process", once=True)
        return None
    if not code:
        raise MLXSparseError(f"kernel {name} does not compile for {architecture}: {message[:2000]}")
    _keep(path, code)
    return called, code


def _kept(path: pathlib.Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _keep(path: pathlib.Path, code: bytes) -> None:
    """Write whole or not at all; a folder that cannot be written costs each process the compilation."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, MLXSparseError) as file:
            file.write(code)
    except (OSError, MLXSparseError) as error:
        trace(f"compiled kernels are not kept: {error}", once=True)
