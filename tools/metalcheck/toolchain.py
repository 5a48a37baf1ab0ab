"""clang-19: which command, which flags, and a cache of what it made."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# clang sees the shim and nothing of the host. No -ffp-contract, no excess precision: what the text says.
# Variables that nobody set hold a pattern, not what is convenient.
_DIALECT = (
    "-std=c++17 -nostdinc -nostdinc++ -Wall -Wno-unknown-attributes -Wno-unknown-pragmas "
    "-Wno-ignored-attributes -Wno-unused -Werror=vla-cxx-extension -Werror=double-promotion "
    "-Xclang -cl-single-precision-constant -Xclang -ffloat16-excess-precision=none -fno-exceptions -fno-rtti "
    "-fno-strict-aliasing -ffp-contract=off -ftrivial-auto-var-init=pattern"
).split() + [f"-I{HERE / 'include'}"]
# Metal is C++14 before macOS 26. x86-64 has a type that is bfloat.
_TYPED = (
    "-x clcpp -cl-std=clc++2021 -target x86_64 -cl-no-stdinc -nostdinc -fsyntax-only -fno-caret-diagnostics "
    "-Xclang -cl-ext=-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_device_enqueue,"
    "-__opencl_c_program_scope_global_variables "
    "-cl-single-precision-constant -Werror=implicit-float-conversion -Werror=pre-c++17-compat"
).split() + [f"-I{HERE / 'include' / 'typed'}"]
# Flags of the compiler, and what runtime.cpp is told. To optimise what the address sanitizer adds takes clang
# far longer than kernels take to run.
SANITIZERS = {
    "address": (
        [
            "-O0",
            "-fsanitize=address,undefined",
            "-fno-sanitize=function",
            "-fno-sanitize-recover=undefined",
            "-fsanitize-coverage=func,trace-loads",  # runtime.cpp: alignment
        ],
        ["-DMSL_ASAN=1"],
    ),
    "thread": (["-O1", "-fsanitize=thread"], ["-DMSL_TSAN=1"]),
}


class MissingTool(RuntimeError):
    """Something that the checks need is not on this machine."""


class CompileError(RuntimeError):
    """clang rejected a kernel."""


def missing() -> str | None:
    """What this machine lacks for the checks, and how to get it; None when nothing does."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"needs Linux x86-64 (this is {sys.platform} {platform.machine()})"
    if not shutil.which(compiler()):
        return f"{compiler()} not found: on Debian 12 and Ubuntu 24.04, apt-get install clang-19"
    return None


def compiler() -> str:
    """The clang++ to use: METALCHECK_CLANG, else clang++-19."""
    return os.environ.get("METALCHECK_CLANG", "clang++-19")


def cache_folder() -> pathlib.Path:
    """METALCHECK_CACHE, else a folder of the user's in the system's temporary one."""
    named = os.environ.get("METALCHECK_CACHE")
    folder = pathlib.Path(named or pathlib.Path(tempfile.gettempdir()) / f"metalcheck-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@functools.cache
def _own_text() -> bytes:
    """What a compiled kernel depends on besides its text."""
    files = [p for p in sorted(HERE.rglob("*")) if p.suffix in (".cpp", ".h") or "include" in p.parts]
    return b"".join(p.read_bytes() for p in files if p.is_file())


@functools.cache
def _require() -> None:
    lacking = missing()
    if lacking:
        raise MissingTool(lacking)


def _clang(arguments: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([compiler(), *arguments], input=text, text=True, capture_output=True, check=False)


def diagnose(source: str) -> tuple[bool, str]:
    """Typed syntax check of a translation unit: (accepted, diagnostics)."""
    _require()
    path = _cached("check", source, [])
    if not path.exists():
        done = _clang([*_TYPED, "-"], source)
        _write(path, f"{done.returncode}\n{done.stderr}")
    code, _, text = path.read_text().partition("\n")
    return code == "0", text


def build(source: str, sanitizer: str | None) -> pathlib.Path:
    """A shared library, or with a sanitizer ("address", "thread") an executable."""
    _require()
    path = _cached("kernel", source, [str(sanitizer)])
    if path.exists():
        return path
    flags, defines = SANITIZERS[sanitizer] if sanitizer else ([], [])
    runtime = _object(HERE / "runtime.cpp", ["-O2", "-fPIC", *defines])
    kept = ["-g", "-DMSL_STRICT"] if sanitizer else ["-O2"]
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        made = f"{folder}/kernel.o"
        done = _clang(["-x", "c++", "-", "-c", "-fPIC", *kept, *flags, *_DIALECT, "-o", made], source)
        if done.returncode:
            raise CompileError(done.stderr)
        parts = [made, str(runtime)] + (
            [str(_object(HERE / "main.cpp", ["-O1"]))] if sanitizer else ["-shared"]
        )
        _checked([*flags, *parts, "-o", f"{folder}/out", "-lstdc++", "-lm", "-lpthread"])
        os.replace(f"{folder}/out", path)
    return path


def _object(file: pathlib.Path, flags: list[str]) -> pathlib.Path:
    path = _cached("object", file.read_text(), flags)
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            _checked(["-std=c++17", *flags, "-c", str(file), "-o", f"{folder}/out.o"])
            os.replace(f"{folder}/out.o", path)
    return path


def _checked(arguments: list[str]) -> None:
    done = _clang(arguments)
    if done.returncode:
        raise CompileError(done.stderr)


def _cached(kind: str, text: str, flags: list[str]) -> pathlib.Path:
    settings = repr((kind, flags, _DIALECT, _TYPED, SANITIZERS, compiler())).encode()
    key = hashlib.sha256(text.encode() + settings + _own_text()).hexdigest()[:24]
    return cache_folder() / f"{kind}-{key}{'.so' if kind == 'kernel' and flags == ['None'] else ''}"


def _write(path: pathlib.Path, text: str) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    os.replace(part, path)
