"""From a kernel to text: the Metal source that MLX generates, and C++ that clang compiles from it."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

# Kernel argument attribute -> its value from runtime.h's ThreadContext.
_BUILTINS = {
    "dispatch_threads_per_threadgroup": "v(c->dispatch_size)",
    "grid_size": "v(c->grid)",
    "simdgroup_index_in_threadgroup": "c->simdgroup",
    "simdgroups_per_threadgroup": "c->simdgroups",
    "thread_execution_width": "32u",
    "thread_index_in_simdgroup": "c->lane",
    "thread_index_in_threadgroup": "c->index",
    "thread_position_in_grid": "v(c->in_grid)",
    "thread_position_in_threadgroup": "v(c->in_group)",
    "threadgroup_position_in_grid": "v(c->group)",
    "threadgroups_per_grid": "v(c->groups)",
    "threads_per_grid": "v(c->grid)",
    "threads_per_simdgroup": "32u",
    "threads_per_threadgroup": "v(c->group_size)",
}
_PRELUDE = """#include <metal_stdlib>
typedef bfloat bfloat16_t; typedef half float16_t;
#line 1 "kernel.metal"
"""
_ENTRY = """
struct _u3 { uint x, y, z, _; };
struct _context {
  _u3 in_grid, in_group, group, group_size, dispatch_size, grid, groups;
  uint lane, simdgroup, index, simdgroups;
};
static inline uint3 v(_u3 a) { return uint3{a.x, a.y, a.z}; }
extern "C" void msl_entry(void** b, const _context* c) { CALL; }
"""
_THREADGROUP = re.compile(
    r"^([ \t]*)threadgroup[ \t]+([A-Za-z_][\w:<>, \t]*?)[ \t]+(\w+)[ \t]*((?:\[[^;\n]*\])*)[ \t]*;", re.M
)
_VECTOR = re.compile(r"\b((?:float|half|char|uchar|short|ushort|int|uint|long|ulong)[234])\(")
_export_lock = threading.Lock()


def metal_text(kernel: Any, inputs: Sequence[mx.array], **call: Any) -> str:
    """The text that MLX gives to Metal's compiler for this call, on any machine.

    MLX prints it when asked for `verbose`; while a function is exported nothing is compiled or run.
    """
    with _export_lock, tempfile.TemporaryDirectory() as folder, open(f"{folder}/text", "w+") as captured:
        sys.stdout.flush()
        before = os.dup(1)
        os.dup2(captured.fileno(), 1)
        try:
            mx.export_function(
                f"{folder}/f.mlxfn", lambda *a: kernel(inputs=list(a), verbose=True, **call), *inputs
            )
        finally:
            os.dup2(before, 1)
            os.close(before)
        captured.seek(0)
        found = re.search(r"```\n(.*)\n```", captured.read(), re.S)
    if not found:
        raise RuntimeError("MLX printed no kernel text; its `verbose` output has changed")
    return found.group(1)


def typed_source(metal: str) -> str:
    """The text in C++ for OpenCL: to be looked at (include/typed), not to be run."""

    def declaration(m: re.Match[str]) -> str:  # kernels alone have any there, and no template is one
        indent, kind, name, dims = m.groups()
        return f"{indent}threadgroup {kind} (&{name}){dims} = *(threadgroup {kind} (*){dims})0;"

    text = _THREADGROUP.sub(declaration, metal)
    text = _VECTOR.sub(r"metal::_make<\1>(", text)
    # Without a body, in which clang could not make a member whose constructor is of `thread`; Apple's can.
    text = re.sub(r"(\(\) thread) \{\}", r"\1;", text)
    return _PRELUDE + re.sub(r"template \[\[host_name\(.*?\)\]\] \[\[kernel\]\]", "template", text)


def _share_threadgroup_variables(text: str) -> str:
    """Each `threadgroup T x[N];` becomes storage that the fibers of one threadgroup share."""

    def declaration(m: re.Match[str]) -> str:
        indent, kind, name, dims = m.groups()
        return (
            f"{indent}typedef {kind} _tg_{name}{dims}; "
            f"auto& {name} = *(_tg_{name}*)msl_tg(sizeof(_tg_{name}), __LINE__);"
        )

    return _THREADGROUP.sub(declaration, text)


def cpp_source(metal: str) -> tuple[str, int]:
    """(one C++ translation unit with the entry msl_entry, number of buffers)."""
    kernel = re.search(r"\[\[kernel\]\] void (\w+)\((.*?)\) \{\n", metal, re.S)
    if not kernel:
        raise RuntimeError("no kernel in the text that MLX generated; its format has changed")
    name, signature = kernel.groups()
    instance = re.search(r"template \[\[host_name\(.*?\)\]\] \[\[kernel\]\] decltype\((.*)\) .*;\n", metal)
    call, text = (instance.group(1), metal[: instance.start()]) if instance else (name, metal)
    arguments, buffers = [], 0
    for parameter in signature.split(",\n"):
        if "[[buffer(" in parameter:
            kind = re.sub(r"\s*\w+ \[\[buffer.*", "", parameter.strip())
            is_reference = kind.endswith("&")
            arguments.append(f"*({kind[:-1]}*)b[{buffers}]" if is_reference else f"({kind})b[{buffers}]")
            buffers += 1
        else:
            attribute = re.search(r"\[\[(\w+)\]\]", parameter)
            if not attribute or attribute.group(1) not in _BUILTINS:
                raise RuntimeError(f"kernel argument that the executor does not know: {parameter.strip()}")
            arguments.append(_BUILTINS[attribute.group(1)])
    body = _share_threadgroup_variables(text)
    return _PRELUDE + body + _ENTRY.replace("CALL", f"{call}({', '.join(arguments)})"), buffers
