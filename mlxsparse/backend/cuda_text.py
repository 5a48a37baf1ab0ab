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
    bounds: tuple[int, int] | None = None,
    dynamic: bool = False,
) -> str:
    """A whole CUDA text. inputs, outputs: name -> dtype; constants: of the template, dtypes by name."""
    arrays = [f"const {_TYPES[kind]}* {array}" for array, kind in inputs.items()]
    arrays += [f"{_TYPES[kind]}* {array}" for array, kind in outputs.items()]
    fixed = [
        f"using {key} = {_TYPES[value]};" if isinstance(value, str) else f"constexpr int {key} = {value};"
        for key, value in constants.items()
    ]
    limits = "" if bounds is None else f"__launch_bounds__({bounds[0]}, {bounds[1]}) "
    return "\n".join(
        (
            "#include <cuda_fp16.h>\n#include <cuda_bf16.h>",
            header,
            f'extern "C" __global__ void {limits}{name}({", ".join(arrays)}) {{',
            *fixed,
            shared_memory(body, dynamic),
            "}\n",
        )
    )


def launch_bounds(bounds: tuple[int, int] | None) -> str:
    """What makes the kernel that follows use few enough registers: (threads, threadgroups that a core holds).

    MLX writes the kernel's declaration, so the word that it begins with is redefined.
    """
    if bounds is None:
        return ""
    threads, fit = bounds
    attributes = f"__attribute__((global)) __launch_bounds__({threads}, {fit})"
    return f"#undef __global__\n#define __global__ {attributes}\n"
