"""`python -m tools.metalcheck.nvrtc`: compiles every kernel for CUDA, on a machine without a GPU.

Needs NVIDIA's run-time compiler and headers, as wheels or from MLX's cuda12 and cuda13 extras. What it cannot
see: whether the results are right.
"""

from __future__ import annotations

import ctypes
import itertools
import pathlib
import sys
from collections.abc import Iterator

import mlx.core as mx

from mlxsparse.backend import kernel_block_tiles, kernel_blocks, kernel_segments, kernel_tiles, library
from mlxsparse.backend.cuda_text import launch_bounds

WHEELS = "nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"
ARCHITECTURES = ("sm_80", "sm_90")
LARGE = ("block_flash", "block_tiles", "conv_tiles", "conv_tiles_grad")  # in threadgroup memory
_TYPES = {"int32": "int", "uint32": "unsigned int", "uint64": "unsigned long", "float32": "float"}
_INCLUDES = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cuda/std/limits>
#define inf cuda::std::numeric_limits<float>::infinity()
"""


def sources() -> Iterator[tuple[str, str]]:
    """(variant, CUDA text) of every kernel, floating-point type and way to multiply float32."""
    for name, kernel in library.KERNELS.items():
        floats = ("float", "__half", "__nv_bfloat16") if "T" in kernel.template else ("float",)
        modes = range(3) if "EXACT" in kernel.template else (0,)
        for kind, exact in itertools.product(floats, modes):
            if exact and kind != "float":
                continue
            for values in shapes(name, 4 if kind == "float" else 2, exact):
                yield source(name, kernel, kind, {**values, "EXACT": exact})


def shapes(name: str, itemsize: int, exact: int) -> Iterator[dict[str, int]]:
    """Template values besides T and EXACT."""
    dtype = mx.float32 if itemsize == 4 else mx.float16
    if name == "block_gemm":
        for mode, ta, tb in [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 0, 0), (2, 1, 1)]:
            part = kernel_blocks.tile_of(mode, 64, dtype, bool(tb if mode != 1 else not ta), cuda=True)
            yield {"MODE": mode, "TA": ta, "TB": tb, "SUB": 64, **part.sizes()}
        return
    if name == "block_tiles":
        if itemsize == 2:
            for mode, ta, tb in [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 0, 0), (2, 1, 1)]:
                yield {"MODE": mode, "TA": ta, "TB": tb, **kernel_block_tiles.shape_of(mode)._asdict()}
        return
    if name == "block_flash":
        if itemsize == 2:
            for dim, rows, terms in itertools.product((64, 128), (64, 128), (0, 1)):
                yield kernel_blocks.flash_shape(dim, rows, terms).sizes()
        return
    if name == "block_attend":
        for dim in (32, 64, 128):
            found = kernel_blocks.attention_tile(dim, 128, dtype, cuda=True)
            if found is not None:
                yield found.sizes()
        return
    if name in ("segment_attend", "segment_attend_grad"):
        grad = name == "segment_attend_grad"
        for dim, mode in itertools.product((16, 32, 64, 128), range(3) if grad else (0,)):
            found = kernel_segments.segment_tile(dim, dtype, grad=grad, cuda=True)
            if found is not None:
                yield {"MODE": mode, **found.sizes()}
        return
    if name not in ("conv_tiles", "conv_tiles_grad"):
        yield {}
        return
    table = kernel_tiles.FORWARD if name == "conv_tiles" else kernel_tiles.WEIGHT_GRAD
    for _, tile in table.get((True, itemsize, exact)) or table[True, itemsize, 0]:
        yield tile._asdict()
    if name == "conv_tiles" and (True, itemsize, exact) in kernel_tiles.FEW:
        yield kernel_tiles.FEW[True, itemsize, exact]._asdict()


def source(name: str, kernel: library.Kernel, kind: str, values: dict[str, int]) -> tuple[str, str]:
    arrays = [f"const {_TYPES.get(t, kind)}* {n}" for n, t in kernel.inputs.items()]
    arrays += ["const int* dims", *(f"{_TYPES.get(t, kind)}* {n}" for n, t in kernel.outputs.items())]
    constants = [f"  constexpr int {p} = {values[p]};\n" for p in kernel.template if p != "T"]
    text = (  # as MLX builds it; dynamic, since a fixed array is limited to 48 KB
        _INCLUDES
        + library.cuda_prelude()
        + library.header(kernel)
        + launch_bounds((32 * values["WM"] * values["WN"], values["FIT"]) if values.get("FIT") else None)
        + f"\nnamespace mlx::core::cu {{\n__global__ void kernel({', '.join(arrays)}) {{\n"
        + "".join(constants)
        + (f"  using T = {kind};\n" if "T" in kernel.template else "")
        + library.shared_memory(library.text(f"{name}.metal"), dynamic=name in LARGE)
        + "\n}\n}\n"
    )
    return f"{name}[{kind}, {values}]", text


def _find(pattern: str) -> list[pathlib.Path]:
    return [p for place in sys.path for p in sorted(pathlib.Path(place or ".").glob(f"nvidia/{pattern}"))]


class Compiler:
    """NVRTC from an nvidia-cuda-nvrtc wheel."""

    def __init__(self) -> None:
        found = _find("*/lib/libnvrtc.so.*")
        if not found:
            raise FileNotFoundError(f"libnvrtc not found: pip install {WHEELS}")
        self.library = ctypes.CDLL(str(found[0]))
        self.includes = [*_find("*/include"), *_find("*/include/cccl")]

    def errors(self, text: str, architecture: str) -> str:
        """What NVRTC says about a text that it refuses; empty when it compiles."""
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        options = [f"--gpu-architecture={architecture}", "--device-as-default-execution-space", "--std=c++20"]
        options += [f"--include-path={path}" for path in self.includes]
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        if self.library.nvrtcCompileProgram(program, len(options), array) == 0:
            log = ""
        else:
            size = ctypes.c_size_t()
            self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            buffer = ctypes.create_string_buffer(size.value)
            self.library.nvrtcGetProgramLog(program, buffer)
            log = buffer.value.decode() or "refused without a message"
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return log


def main() -> int:
    try:
        compiler = Compiler()
    except FileNotFoundError as error:
        print(f"nvrtc: {error}", file=sys.stderr)
        return 2
    bad = count = 0
    for variant, text in sources():
        for architecture in ARCHITECTURES:
            count += 1
            log = compiler.errors(text, architecture)
            if log:
                bad += 1
                print(f"FAIL {variant} {architecture}\n{log[:2000]}")
    print(f"{count - bad} of {count} variants compile for CUDA")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
