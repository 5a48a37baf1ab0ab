"""Kernel texts as CUDA takes them."""

from __future__ import annotations

import re
from typing import NamedTuple

_THREADGROUP = re.compile(r"^([ \t]*)threadgroup[ \t]+([\w:<>, \t]+?[ \t]+\w+[ \t]*\[[^;\n]*\][ \t]*;)", re.M)
_SIZED = re.compile(r"^([ \t]*)threadgroup[ \t]+([\w:<>, \t]+?[ \t]+\w+)[ \t]*\[[^;\n]*\][ \t]*;", re.M)


def shared_memory(body: str, dynamic: bool = False) -> str:
    """A kernel's body with its `threadgroup T x[N];` as CUDA's shared memory.

    dynamic: its one array is as large as the launch says, which can be more than STATIC_BYTES.
    """
    if dynamic:
        return _SIZED.sub(r"\1extern __shared__ \2[];", body)
    return _THREADGROUP.sub(r"\1__shared__ \2", body)


_TYPES = {
    "int32": "int", "uint32": "unsigned int", "uint64": "unsigned long long",
    "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16",
}  # fmt: skip


def whole(
    name: str,
    inputs: dict[str, str],
    outputs: dict[str, str],
    constants: dict[str, int | str],
    header: str,
    body: str,
    bounds: Bounds | None = None,
    dynamic: bool = False,
    known: int = 0,
) -> str:
    """A whole CUDA text. inputs, outputs: name -> dtype; constants: of the template, dtypes by name.

    known: how many sizes are arguments of the kernel; 0: they lie in an input `dims`.
    """
    arrays = [f"const {_TYPES[kind]}* {array}" for array, kind in inputs.items()]
    arrays += [] if known else ["const int* dims"]
    arrays += [f"{_TYPES[kind]}* {array}" for array, kind in outputs.items()]
    sizes = [f"dims_{i}" for i in range(known)]
    arrays += [f"int {size}" for size in sizes]
    fixed = [f"const int dims[] = {{{', '.join(sizes)}}};"] if known else []
    fixed += [
        f"using {key} = {_TYPES[value]};" if isinstance(value, str) else f"constexpr int {key} = {value};"
        for key, value in constants.items()
    ]
    return "\n".join(
        (
            "#include <cuda_fp16.h>\n#include <cuda_bf16.h>",
            header,
            f'extern "C" __global__ void {limits(bounds)}{name}({", ".join(arrays)}) {{',
            *fixed,
            shared_memory(body, dynamic),
            "}\n",
        )
    )


class Bounds(NamedTuple):
    """What limits a CUDA kernel's registers: threads of a threadgroup, and threadgroups that a core holds.

    cluster: threadgroups that run together.
    """

    threads: int
    fit: int = 1
    cluster: int = 1


def limits(bounds: Bounds | None) -> str:
    """Attributes of a kernel within `bounds`."""
    if bounds is None:
        return ""
    together = f"CLUSTERED({bounds.cluster}) " if bounds.cluster > 1 else ""
    return f"{together}__launch_bounds__({bounds.threads}, {bounds.fit}) "


def launch_bounds(bounds: Bounds | None) -> str:
    """What gives the kernel that follows its `limits`.

    MLX writes the kernel's declaration, so the word that it begins with is redefined.
    """
    if bounds is None:
        return ""
    return f"#undef __global__\n#define __global__ __attribute__((global)) {limits(bounds)}\n"
