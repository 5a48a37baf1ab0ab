"""Tile shapes and row orders of the tiled convolution, timed on a GPU; maps: gpu_maps.py.

    python benchmarks/gpu_tiles.py WORK.npz [--cloud surf_1m] [--only orders|forward|grad]

WORK.npz as in gpu.py. Milliseconds: median of synchronised calls (mean of a chain).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import mlx.core as mx
import numpy as np

import mlxsparse as ms
from benchmarks.gpu_cases import measure
from mlxsparse.backend import kernel_coords, kernel_tiles, tap_tiles, tile_shapes
from mlxsparse.backend.tile_shapes import Tile

HALF, SINGLE = mx.float16, mx.float32
FORWARD = {  # (dtype, mode, channels) -> shapes
    (HALF, "", 32): [
        Tile(128, 32, 32, 4, 1, 3, 3),
        Tile(128, 32, 32, 4, 1, 2, 3),
        Tile(256, 32, 32, 4, 1, 2, 3, 4),
    ],
    (HALF, "", 64): [
        Tile(128, 64, 64, 2, 2, 2, 2, 4),
        Tile(128, 64, 64, 4, 1, 2, 2, 4),
        Tile(256, 64, 64, 8, 1, 2, 2, 2),
        Tile(256, 64, 64, 4, 2, 2, 2, 2),
        Tile(128, 64, 64, 4, 1, 2, 0, 4, 1),
        Tile(128, 64, 64, 4, 1, 3, 0, 3, 1),
        Tile(128, 64, 64, 8, 1, 3, 0, 3, 1),
        Tile(256, 64, 64, 8, 1, 2, 0, 2, 1),
    ],
    (HALF, "", 128): [
        Tile(128, 128, 64, 2, 2, 2, 3),
        Tile(128, 128, 32, 2, 2, 3, 3, 2),
        Tile(256, 128, 64, 4, 2, 2, 3, 1),
        Tile(128, 128, 64, 4, 1, 3, 0, 2, 1),
        Tile(128, 128, 64, 4, 1, 3, 1, 2, 1),
        Tile(256, 128, 64, 8, 1, 4, 0, 1, 1),
        Tile(64, 128, 64, 4, 1, 2, 0, 4, 1),
    ],
    (HALF, "", 256): [
        Tile(128, 128, 64, 2, 2, 2, 3),
        Tile(128, 256, 64, 8, 1, 4, 0, 1, 1),
        Tile(256, 128, 64, 8, 1, 4, 0, 1, 1),
        Tile(64, 256, 64, 4, 1, 2, 0, 2, 1),
    ],
    (SINGLE, "tf32", 32): [Tile(128, 32, 32, 4, 1, 2, 3), Tile(256, 32, 32, 8, 1, 2, 3, 2)],
    (SINGLE, "tf32", 64): [Tile(256, 64, 32, 4, 1, 2, 1), Tile(128, 64, 32, 2, 2, 2, 2, 4)],
    (SINGLE, "tf32", 128): [
        Tile(128, 128, 32, 2, 2, 2, 3),
        Tile(256, 128, 32, 4, 2, 2, 3, 1),
        Tile(128, 64, 32, 2, 2, 2, 2, 4),
    ],
    (SINGLE, "", 32): [Tile(128, 32, 32, 4, 1, 2, 3), Tile(256, 32, 32, 8, 1, 2, 3, 2)],
    (SINGLE, "", 64): [Tile(128, 64, 32, 2, 2, 2, 2, 2), Tile(128, 64, 32, 4, 2, 2, 3, 2)],
    (SINGLE, "", 128): [Tile(128, 128, 32, 4, 2, 2, 3, 1), Tile(128, 64, 32, 2, 2, 2, 2, 2)],
    (SINGLE, "exact", 64): [Tile(128, 64, 32, 2, 2, 2, 2, 3), Tile(128, 64, 32, 4, 2, 2, 2, 2)],
    (SINGLE, "exact", 128): [Tile(128, 128, 32, 2, 2, 2, 3), Tile(128, 64, 32, 2, 2, 2, 2, 3)],
}
ORDERED = [(HALF, "", 32), (HALF, "", 64), (HALF, "", 128)]
GRAD = {
    (HALF, "", 32): [Tile(32, 32, 128, 2, 2, 2), Tile(32, 32, 64, 2, 2, 2)],
    (HALF, "", 64): [
        Tile(64, 64, 64, 2, 2, 2),
        Tile(64, 64, 64, 2, 2, 3),
        Tile(64, 64, 64, 4, 1, 2, 0, 6, 1),
    ],
    (HALF, "", 128): [
        Tile(128, 128, 64, 2, 2, 2),
        Tile(128, 128, 32, 2, 2, 3),
        Tile(128, 128, 64, 8, 1, 3, 0, 2, 1),
    ],
    (SINGLE, "", 64): [Tile(64, 64, 32, 2, 2, 2), Tile(64, 64, 32, 2, 2, 3)],
    (SINGLE, "tf32", 64): [Tile(64, 64, 32, 2, 2, 2)],
}


def show(name: str, run: Callable[[], Any], **options: Any) -> None:
    try:
        found = measure(run, ms.wait, 10, **options)
        print(f"{name:64s} {found['sync']:8.3f} ({found['chain']:.3f})", flush=True)
    except Exception as error:
        print(f"{name:64s} {type(error).__name__}: {str(error)[:160]}", flush=True)


def computed(masks: np.ndarray, rows: int) -> int:
    """Pairs that tiles of `rows` places compute, those that do not exist included."""
    live = np.bitwise_or.reduce(masks.reshape(-1, rows // 32, masks.shape[1]), axis=1)
    return int(np.unpackbits(live.view(np.uint8)).sum()) * rows


def orders(coords: mx.array) -> None:
    """The same products over maps in other orders: windows."""
    n = coords.shape[0]
    nbr = kernel_coords.submanifold_map(kernel_coords.hash_table(coords), (3, 3, 3)).nbr
    pairs = int((nbr >= 0).sum().item())
    held = [inputs(key, n) for key in ORDERED]
    for window in (65536, 262144, n):
        os.environ["MLXSPARSE_WINDOW"] = str(window)
        tiles = tap_tiles.tap_tiles(nbr, n, (3, 3, 3))
        ms.wait(tiles.arrays)
        masks = np.array(tiles.masks)
        ratios = ", ".join(f"{rows} rows {computed(masks, rows) / pairs:.3f}" for rows in (32, 128, 256))
        print(f"window {window}: computed pairs by tiles of {ratios}")
        for key, (x, w) in zip(ORDERED, held):

            def chain(times: int, x: mx.array = x, w: mx.array = w, tiles: Any = tiles) -> mx.array:
                for _ in range(times):
                    x = kernel_tiles.forward(x, w, tiles)
                return x

            forward = lambda x=x, w=w, tiles=tiles: kernel_tiles.forward(x, w, tiles)  # noqa: E731
            show(f"  forward {str(key[0])[9:]} {key[2]}", forward, chain=chain)
        x = held[1][0]
        grad = lambda x=x, tiles=tiles: kernel_tiles.weight_grad(x, x, tiles)  # noqa: E731
        show("  weight gradient float16 64", grad)
    os.environ.pop("MLXSPARSE_WINDOW")
    x, w = held[1]
    start = time.perf_counter()
    for _ in range(100):
        kernel_tiles.forward(x, w, tiles)
    print(f"host time of one call {(time.perf_counter() - start) * 1e4:.1f} us")


def named(kind: str, key: tuple[mx.Dtype, str, int], tile: Tile) -> str:
    dtype, mode, channels = key
    return f"{kind} {str(dtype)[9:]} {mode} {channels} {'x'.join(map(str, tile))}"


def inputs(key: tuple[mx.Dtype, str, int], n: int) -> tuple[mx.array, mx.array]:
    dtype, _, c = key
    mx.random.seed(0)
    x = mx.random.normal((n, c)).astype(dtype)
    w = (mx.random.normal((c, 27, c)) / (10.4 * c) ** 0.5).astype(dtype)
    mx.eval(x, w)
    return x, w


def chosen(key: tuple[mx.Dtype, str, int], tile: Tile, weight: bool) -> None:
    os.environ["MLXSPARSE_FP32"] = key[1]
    tile_shapes.chosen.clear()
    tile_shapes.chosen[weight, key[2]] = tile


def sweep(coords: mx.array, only: str) -> Iterator[None]:
    n = coords.shape[0]
    tiles = tap_tiles.tap_tiles(
        kernel_coords.submanifold_map(kernel_coords.hash_table(coords), (3, 3, 3)).nbr, n, (3, 3, 3)
    )
    ms.wait(tiles.arrays)
    for key, shapes in FORWARD.items() if only in "forward" else ():
        x, w = inputs(key, n)
        for i, tile in enumerate(shapes):
            chosen(key, tile, False)

            def chain(times: int, x: mx.array = x, w: mx.array = w) -> mx.array:
                for _ in range(times):
                    x = kernel_tiles.forward(x, w, tiles)
                return x

            show(named("forward", key, tile), lambda x=x, w=w: kernel_tiles.forward(x, w, tiles), chain=chain)
            if i == 0:
                grad = lambda x=x, w=w: kernel_tiles.input_grad(x, w, tiles, flip=True)  # noqa: E731
                show(named("input gradient", key, tile), grad)
            yield
    for key, shapes in GRAD.items() if only in "grad" else ():
        x, w = inputs(key, n)
        for tile in shapes:
            chosen(key, tile, True)
            show(named("weight gradient", key, tile), lambda x=x: kernel_tiles.weight_grad(x, x, tiles))
            yield
    tile_shapes.chosen.clear()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--cloud", default="surf_1m")
    parser.add_argument("--only", default="", help="orders, forward or grad")
    options = parser.parse_args()
    mx.set_default_device(mx.gpu)
    coords = mx.array(np.load(options.work)[options.cloud].astype(np.int32)) + 0
    mx.eval(coords)
    for _ in sweep(coords, options.only) if options.only != "orders" else ():
        pass
    if options.only in ("", "orders"):
        orders(coords)
    return 0


if __name__ == "__main__":
    sys.exit(main())
