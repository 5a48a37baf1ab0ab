"""Programs over voxels: compiling beside attending, and rect_cover: `python benchmarks/masks.py [--gpu]`.

100,000 voxels of bumpy surfaces, 8 heads of 32. A compile is measured on an object that holds no cache, with
the coordinate key at hand, as a model does for each new cloud; the ratio is compile over one forward pass.
Medians of --times runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

import mlxsparse as ms
from mlxsparse.masks import Connection, MaskSpec, VoxelLayout, rect_cover, voxels

HEADS, CHANNELS = 8, 32


def surfaces(n: int) -> np.ndarray:
    """(n, 4) int32 voxels of bumpy sheets, two batch items, rows in no order."""
    rng = np.random.default_rng(0)
    side = int((n / 2) ** 0.5) + 1
    x, y = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    z = np.rint(6 * np.sin(x / 17) + 4 * np.cos(y / 11)).astype(np.int64)
    sheets = [np.stack([np.full_like(x, b), x, y, z + 2 * b], axis=-1).reshape(-1, 4) for b in (0, 1)]
    return rng.permutation(np.concatenate(sheets))[:n].astype(np.int32)


def tile(side: int, shift: int = 0) -> MaskSpec:
    return MaskSpec("tile", tile_shape=side, shift=shift)


PROGRAMS = {
    "windows of 8": [Connection("all", "all", tile(8))],
    "windows of 8 and shifted ones": [
        Connection("all", "all", tile(8)),
        Connection("left", "left", tile(8, 4)),
    ],
    "windows of 8, a hub of 8^3": [Connection("all", "all", tile(8)), Connection("all", "hub")],
    "windows of 3": [Connection("all", "all", tile(3))],
}


def median(f: Callable[[], Any], times: int) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        f()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def program(name: str, items: list[Connection], layout: VoxelLayout, times: int) -> None:
    def compile_anew() -> Any:
        voxels._compiled.pop(layout.key._record, None)
        return layout.compile(items)

    made = compile_anew()
    n = layout.key.count
    rng = np.random.default_rng(1)
    q, k, v = (mx.array(rng.standard_normal((n, HEADS, CHANNELS)).astype(np.float32)) for _ in range(3))
    mx.eval(q, k, v, made.attend(q, k, v))
    compiling = median(compile_anew, times)
    attending = median(lambda: mx.eval(made.attend(q, k, v)), times)
    way = "segments" if made.segments is not None else "padded"
    print(
        f"{name:32s} {way:9s} {made.layout.block[0]:4d} {len(made.rows) / n:6.2f} {made.layout.nnz:8d} "
        f"{compiling * 1e3:9.1f} ms {attending * 1e3:9.1f} ms {compiling / attending:6.3f}",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gpu", action="store_true")
    options.add_argument("--voxels", type=int, default=100_000)
    options.add_argument("--times", type=int, default=5)
    asked = options.parse_args()
    mx.set_default_device(mx.gpu if asked.gpu else mx.cpu)
    print("program, way, rows of a block, positions per voxel, blocks, compile, attend, compile / attend")
    coords = surfaces(asked.voxels)
    x = ms.SparseTensor(coords, mx.zeros((len(coords), 1)))
    regions = {
        "all": lambda c: np.ones(len(c), bool),
        "left": lambda c: c[:, 1] < 110,
        "hub": ((0, 8), (0, 8), (-9, 9)),
    }
    layout = VoxelLayout(x, regions)
    for name, items in PROGRAMS.items():
        program(name, items, layout, asked.times)
    print("rect_cover: shape, density, boxes, time")
    for shape in ((64,) * 3, (24,) * 4):
        for density in (0.1, 0.5, 0.9):
            mask = np.random.default_rng(0).random(shape) < density
            boxes = rect_cover(mask)
            seconds = median(lambda m=mask: rect_cover(m), 3)  # type: ignore[misc]
            print(f"{shape!s:32s} {density:7.1f} {len(boxes):8d} {seconds * 1e3:9.1f} ms")


if __name__ == "__main__":
    main()
