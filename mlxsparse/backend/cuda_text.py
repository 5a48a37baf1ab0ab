"""Kernel texts as CUDA takes them."""

from __future__ import annotations

import re

_THREADGROUP = re.compile(r"^([ \t]*)threadgroup[ \t]+([\w:<>, \t]+?[ \t]+\w+[ \t]*\[[^;\n]*\][ \t]*;)", re.M)
_SIZED = re.compile(r"^([ \t]*)threadgroup[ \t]+([\w:<>, \t]+?[ \t]+\w+)[ \t]*\[[^;\n]*\][ \t]*;", re.M)


def shared_memory(body: str, dynamic: bool = False) -> str:
    """A kernel's body with its `threadgroup T x[N];` as CUDA's shared memory.

    dynamic: its one array is as large as the launch says, which can be more than STATIC_BYTES.
    """
    if dynamic:
        return _SIZED.sub(r"\1extern __shared__ \2[];", body)
    return _THREADGROUP.sub(r"\1__shared__ \2", body)


def launch_bounds(bounds: tuple[int, int] | None) -> str:
    """What makes the kernel that follows use few enough registers: (threads, threadgroups that a core holds).

    MLX writes the kernel's declaration, so the word that it begins with is redefined.
    """
    if bounds is None:
        return ""
    threads, fit = bounds
    attributes = f"__attribute__((global)) __launch_bounds__({threads}, {fit})"
    return f"#undef __global__\n#define __global__ {attributes}\n"
