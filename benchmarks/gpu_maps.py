"""What map building on a GPU is made of, each step alone and in place.

    python benchmarks/gpu_maps.py WORK.npz [--cloud surf_1m] [--only steps|whole|network]

WORK.npz as in gpu.py. Milliseconds: median of synchronised calls (mean of a chain); "host" is the time until
a call returns, without a wait.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import mlx.core as mx
import numpy as np

import mlxsparse as ms
from benchmarks.gpu_cases import BLOCKS, CLASSES, IN_CHANNELS, LEVELS, measure
from mlxsparse.backend import kernel_bits, kernel_coords, kernel_sites, running, tap_tiles
from mlxsparse.backend.digit_order import places_by_key
from mlxsparse.backend.kernel_bits import Geometry
from mlxsparse.engine import device_map
from mlxsparse.models.minkunet import MinkUNet, ModelArgs

ONE, TWO, THREE, ZERO = (1,) * 3, (2,) * 3, (3,) * 3, (0,) * 3
HALVES, TOUCHED = (TWO, TWO, ZERO, ONE), (THREE, TWO, ONE, ONE)
wait = ms.wait


def show(name: str, run: Callable[[], Any], calls: int = 10) -> None:
    try:
        found = measure(run, wait, calls)
        spent = []
        for _ in range(calls):
            start = time.perf_counter()
            kept = run()
            spent.append(time.perf_counter() - start)
            wait(kept)
        host = 1e3 * sorted(spent)[calls // 2]
        print(f"{name:60s} {found['sync']:8.3f} ({found['chain']:.3f}) host {host:.3f}", flush=True)
    except Exception as error:
        print(f"{name:60s} {type(error).__name__}: {str(error)[:160]}", flush=True)


def steps(coords: mx.array) -> None:
    n = coords.shape[0]
    table = kernel_coords.hash_table(coords)
    near = kernel_coords.near_blocks(table)
    nbr = kernel_coords.submanifold_map(table, THREE, by_row=True).nbr
    wait([table.table, nbr, *near])
    show("an empty wait", lambda: mx.array(0) + 1)
    show("bounds of coordinates", lambda: [coords.min(axis=0), coords.max(axis=0)])
    show("bounds, read", lambda: kernel_sites.extent_of(coords, 8) and [])
    items = mx.arange(8, dtype=mx.int32)[None]
    show("batch counts", lambda: (coords[:, :1] == items).sum(axis=0))
    for times in (2, 4, 8):
        size = 1 << (times * n - 1).bit_length()
        show(f"hash insert, {size} slots", lambda size=size: kernel_coords.hash_table(coords, size).table)
        held = kernel_coords.hash_table(coords, size)
        show("  blocks around each row", lambda held=held: kernel_coords.near_blocks(held))
        show("  table of 27 taps", lambda held=held: kernel_coords.submanifold_map(held, THREE).nbr)
    show("fill 27 N with -1", lambda: mx.full((27, n), -1, mx.int32))
    for count in (n, 8 * n):
        ones = mx.ones((count,), mx.int32)
        wait(ones)
        show(f"cumsum of {count}", lambda ones=ones: mx.cumsum(ones))
        show(f"running sums of {count}", lambda ones=ones: running.running_sums(ones))
    last, window = tap_tiles.tap_order(THREE).none, tap_tiles.window_rows()
    show("order by digits", lambda: places_by_key(near.keys, last, window))
    show("MLX's sort, which it replaced", lambda: mx.argsort(near.keys))
    show("order and tiles, from blocks", lambda: kernel_coords.near_tiles(table, near)[:3])
    show("order and tiles, from a table", lambda: tap_tiles.tap_tiles(nbr, n, THREE, by_row=True)[:3])
    extent = kernel_sites.extent_of(coords, 8)
    for name, geometry in (("parents k2 s2", HALVES), ("touched k3 s2", TOUCHED)):
        box = kernel_sites.reached_extent(extent, *geometry, True)
        shape = Geometry(*geometry)
        print(f"{name}: box of {kernel_bits.cells(box)} cells")
        by_sort = lambda box=box, g=geometry: kernel_sites.reached(coords, box, *g).sites  # noqa: E731
        show(f"{name}, sorted (counts read)", by_sort)
        marked = lambda box=box, s=shape: kernel_bits.marked(coords, box, s)  # noqa: E731
        show("  fill the bits", lambda box=box: mx.zeros((kernel_bits.cells(box) // 32,), mx.uint32))
        show("  bits, without the count", lambda marked=marked: marked()[0])
        show("  bits and count", lambda marked=marked: marked()[:4])
        made = marked()
        m = int(made.total)
        show("  sites of the bits", lambda made=made, m=m: kernel_bits.sites(made, m))
        far = kernel_bits.sites(made, m)
        wait(far)
        assert bool(mx.array_equal(far, by_sort())), "bits and sort disagree"
        show("  map by bits", lambda made=made, m=m: kernel_bits.site_map(coords, made, m))
        show(
            "  map by hash", lambda far=far, g=geometry: kernel_coords.neighbour_map(table, far, g[0], *g[1:])
        )
        show(
            "  of its sites: 27-tap map by bits",
            lambda f=far, d=made: kernel_bits.submanifold_map(f, d, THREE),
        )
        show("  hash insert", lambda f=far: kernel_coords.hash_table(f).table)
        known = kernel_coords.hash_table(far)
        show("  27-tap map by hash", lambda known=known: kernel_coords.submanifold_map(known, THREE))
        found, size = kernel_bits.site_map(coords, made, m, by_row=True), geometry[0]
        by_tap = kernel_bits.site_map(coords, made, m)
        show("  its other side", lambda by_tap=by_tap: kernel_coords.flipped(by_tap, n))
        outputs = lambda t=found, s=size: tap_tiles.tap_tiles(t, n, s, by_row=True)[:3]  # noqa: E731
        show("  order and tiles, outputs", outputs)
        back = kernel_coords.flipped(by_tap, n)
        show("  order and tiles, inputs", lambda t=back, m=m, s=size: tap_tiles.tap_tiles(t, m, s)[:3])
        if size == geometry[1]:
            rows = lambda made=made, s=size, m=m: kernel_bits.in_windows(coords, made, s, m)  # noqa: E731
            show("  windows of the rows", lambda rows=rows: rows()[:4])
            there = rows()
            show("  from these, outputs", lambda found=there: kernel_bits.windows_output(found)[:3])
            show("  from these, inputs", lambda found=there: kernel_bits.windows_input(found)[:3])


def whole(coords: mx.array) -> None:
    n, items = coords.shape[0], 8
    mx.random.seed(0)
    feats = {c: mx.random.normal((n, c)).astype(mx.float16) for c in (1, IN_CHANNELS, 64)}
    weights = {k: mx.random.normal((64, k, k, k, 64)).astype(mx.float16) / 20 for k in (2, 3)}
    wait([feats, weights])

    def fresh(c: int, **options: Any) -> ms.SparseTensor:
        return ms.SparseTensor(coords, feats[c], batch_size=items, **options)

    def level(x: ms.SparseTensor, kernel: ms.Kernel, support: str = "parents") -> Any:
        return x.manager.stride(
            x.key, kernel.stride, kernel_size=kernel.size, padding=kernel.padding, support=support
        )

    two, three = ms.Kernel.of(2, 2, 0, 1), ms.Kernel.of(3, 2, 1, 1)
    show("tensor, checked", lambda: fresh(1).feats)
    show("tensor, unchecked", lambda: fresh(1, validate=False).feats)
    show("tensor and parents", lambda: level(fresh(1), two).coords)
    show("tensor and touched k3 s2", lambda: level(fresh(1), three, "touched").coords)

    def related(kernel: ms.Kernel, support: str) -> Any:
        x = fresh(1)
        return x.manager.kernel_map(x.key, level(x, kernel, support), kernel).relation.output.tiles.arrays

    def onto() -> Any:
        x = fresh(1)
        return x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold(3)).relation.output.tiles.arrays

    show("tensor, 3^3 map and tiles", onto)
    show("tensor, parents, map and tiles", lambda: related(two, "parents"))
    show("tensor, touched k3 s2, map and tiles", lambda: related(three, "touched"))
    show("k2 s2, 64", lambda: ms.ops.conv3d(fresh(64), weights[2], stride=2).feats)
    show("k3 s2, 64", lambda: ms.ops.conv3d(fresh(64), weights[3], stride=2, padding=1).feats)
    x = fresh(64)
    wait(ms.ops.max_pool3d(x, 2).feats)
    show("  map cached", lambda: ms.ops.max_pool3d(x, 2).feats)
    wait(ms.ops.conv3d(x, weights[3], stride=2, padding=1).feats)
    show("  k3 s2, map cached", lambda: ms.ops.conv3d(x, weights[3], stride=2, padding=1).feats)
    show("max pool k2 s2, 64", lambda: ms.ops.max_pool3d(fresh(64), 2).feats)


def network(coords: mx.array) -> None:
    n = coords.shape[0]
    mx.random.seed(0)
    feats = mx.random.normal((n, IN_CHANNELS)).astype(mx.float16)
    wait(feats)

    def fresh() -> ms.SparseTensor:
        return ms.SparseTensor(coords, feats, batch_size=8)

    def levels() -> Any:
        x = fresh()
        key, made = x.key, []
        for i in range(len(LEVELS)):
            made.append(x.manager.kernel_map(key, key, ms.Kernel.submanifold(3)).relation.output.tiles.arrays)
            if i + 1 < len(LEVELS):
                below = x.manager.stride(key, 2)
                pair = x.manager.kernel_map(key, below, ms.Kernel.of(2, 2)).relation
                made += [pair.output.tiles.arrays, pair.input.tiles.arrays]
                key = below
        return made

    show("all maps and tiles of the MinkUNet", levels)
    begin = device_map.begin
    device_map.begin = lambda *arrays: None
    show("  tiles not begun before the end", levels)
    device_map.begin = begin
    net = MinkUNet(ModelArgs(IN_CHANNELS, CLASSES, LEVELS, BLOCKS))
    net.set_dtype(mx.float16)
    net.eval()
    wait(net.parameters())
    known = fresh()
    for name, run in (
        ("MinkUNet, maps and all", lambda: net(fresh()).feats),
        ("  tiles not begun before the end", lambda: net(fresh()).feats),
        ("MinkUNet, maps cached", lambda: net(known).feats),
    ):
        mx.clear_cache()
        mx.reset_peak_memory()
        device_map.begin = begin if name.startswith("M") else lambda *arrays: None
        show(name, run, 5)
        chained = mx.get_peak_memory()
        mx.clear_cache()
        mx.reset_peak_memory()
        idle = mx.get_active_memory()
        kept = run()
        queued = mx.get_peak_memory()
        wait(kept)
        peaks = [idle, queued, mx.get_peak_memory(), chained]
        print("  MiB idle, queued, peak of one call, of a chain: " + ", ".join(str(p >> 20) for p in peaks))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--cloud", default="surf_1m")
    parser.add_argument("--only", default="", help="steps, whole or network")
    options = parser.parse_args()
    mx.set_default_device(mx.gpu)
    coords = mx.array(np.load(options.work)[options.cloud].astype(np.int32)) + 0
    mx.eval(coords)
    for part in (steps, whole, network):
        if options.only in part.__name__:
            part(coords)
    return 0


if __name__ == "__main__":
    sys.exit(main())
