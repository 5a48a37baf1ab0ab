"""`python -m tools.metalcheck.nvrtc`: compiles every kernel for CUDA, on a machine without a GPU.

Needs NVIDIA's run-time compiler and headers, as wheels or from MLX's cuda12 and cuda13 extras. What it cannot
see: whether the results are right.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from mlxsparse.backend import (
    digit_order,
    kernel_block_tiles,
    kernel_blocks,
    kernel_segments,
    kernel_text,
    library,
    tile_shapes,
)
from mlxsparse.backend.cuda_compile import Compiler, header_folders
from mlxsparse.backend.cuda_text import Bounds

WHEELS = "nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"
ARCHITECTURES = ("sm_80", "sm_90a")
SIZES = 32  # at least as many as any kernel has
LARGE = (
    "block_flash", "block_flash_groups", "block_groups", "block_samples", "block_tiles", "conv_tiles",
    "conv_tiles_grad",
)  # in threadgroup memory  # fmt: skip


def sources() -> Iterator[tuple[str, str]]:
    """(variant, CUDA text) of every kernel, floating-point type and way to multiply float32."""
    yield "mail", kernel_text.text("mail.cu")
    for name, kernel in library.KERNELS.items():
        modes = range(3) if "EXACT" in kernel.template else (0,)
        kinds = kernel.floats if "T" in kernel.template else ("float32",)
        for kind, exact in itertools.product(kinds, modes):
            if exact and kind != "float32":
                continue
            for values in shapes(name, 4 if kind == "float32" else 2, exact):
                yield source(name, {"T": kind, **values, "EXACT": exact})


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
                tile = kernel_block_tiles.shape_of(mode)
                yield {"MODE": mode, "TA": ta, "TB": tb, **tile._asdict(), "SLOTS": 5}
        return
    if name == "block_groups":
        for mode, ta, tb in [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]:
            yield {"MODE": mode, "TA": ta, "TB": tb, **kernel_block_tiles.GroupTile(2, 4, 4)._asdict()}
        return
    if name == "block_samples":
        for places, (ta, tb) in itertools.product((1024, 2048), [(0, 0), (0, 1), (1, 1)]):
            yield {"TA": ta, "TB": tb, **kernel_block_tiles.sample_tile(places)._asdict()}
        return
    if name == "block_flash_groups":
        for groups, terms in itertools.product((1, 2), ((0, 0), (0, 1), (1, 1))):
            yield kernel_blocks.GroupFlash(128, groups, 64, 2, *terms).sizes()
        return
    if name == "block_flash":
        if itemsize == 2:
            for dim, terms in itertools.product((64, 128), ((0, 0), (0, 1), (1, 1))):
                yield kernel_blocks.flash_shape(dim, *terms).sizes()
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
    if name in ("digit_counts", "digit_places"):
        yield from ({"STEPS": steps} for steps in digit_order.STEPS)
        return
    if name not in ("conv_tiles", "conv_tiles_grad"):
        yield {}
        return
    forward = name == "conv_tiles"
    table = tile_shapes.FORWARD if forward else tile_shapes.WEIGHT_GRAD
    tiles = [tile for _, tile in table.get((True, itemsize, exact)) or table[True, itemsize, 0]]
    if itemsize == 2:
        tiles += [t for *_, t in tile_shapes.TOGETHER] if forward else tile_shapes.TOGETHER_GRAD.values()
    yield from ({**tile._asdict(), "FINISH": f} for tile in tiles for f in (range(3) if forward else (0,)))
    if forward and (True, itemsize, exact) in tile_shapes.FEW:
        yield from ({**tile_shapes.FEW[True, itemsize, exact]._asdict(), "FINISH": f} for f in (1, 2))


def source(name: str, values: dict[str, Any]) -> tuple[str, str]:
    bounds = Bounds(32 * values["WM"] * values["WN"], values["FIT"]) if values.get("FIT") else None
    if values.get("CLUSTER", 1) > 1:
        bounds = Bounds(256, 1, values["CLUSTER"])
    return f"{name}[{values}]", library.cuda_source(name, values, name in LARGE, bounds, SIZES)


def compiler() -> Compiler:
    """From an nvidia-cuda-nvrtc wheel."""
    places = [pathlib.Path(place or ".") for place in sys.path]
    found = next((p for place in places for p in sorted(place.glob("nvidia/*/lib/libnvrtc.so.*"))), None)
    if found is None:
        raise FileNotFoundError(f"libnvrtc not found: pip install {WHEELS}")
    return Compiler(found, header_folders())


def main() -> int:
    try:
        found = compiler()
    except FileNotFoundError as error:
        print(f"nvrtc: {error}", file=sys.stderr)
        return 2
    bad = count = 0
    for variant, text in sources():
        for architecture in ARCHITECTURES:
            count += 1
            message = found.compile(text, architecture)[1]
            if message:
                bad += 1
                print(f"FAIL {variant} {architecture}\n{message[:2000]}")
    print(f"{count - bad} of {count} variants compile for CUDA")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
