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
