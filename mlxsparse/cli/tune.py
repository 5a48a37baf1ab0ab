"""Measure the paths of a convolution on this GPU and keep the fastest for each size.

Needs --device gpu. The table is read by every later run; `MLXSPARSE_TUNING` names another file, and
`MLXSPARSE_PATH` = tiles, rows, gather or dense forces a path whatever the table says.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import time
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np

from .. import ops
from ..backend import executor, tuning
from ..coords import Kernel
from ..engine.conv_kernel import tuning_case
from ..engine.device_map import DeviceMap
from ..errors import MLXSparseError
from ..tensor import SparseTensor
from .common import UsageError, check_directory, check_file, check_named, progress_bar

TYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse tune`."""
    parser.add_argument("-o", "--out", metavar="FILE", help="file to write (default: where it is read)")
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 3_000, 30_000, 200_000], metavar="N")
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 32, 64, 128, 256], metavar="C")
    parser.add_argument("--types", nargs="+", choices=sorted(TYPES), default=["float16", "float32"])
    parser.add_argument(
        "--calls", type=int, default=7, help="timed calls of each path (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; a file that cannot be written is told before."""
    if executor() != "kernel":
        raise UsageError("tune measures a GPU: --device gpu, where there is one; a CPU has one path")
    if min(options.rows + options.channels + [options.calls]) < 1:
        raise UsageError("--rows, --channels and --calls take positive numbers")
    target = str(tuning.table_path()) if options.out is None else options.out
    check_named(target, "--out")
    check_directory(str(pathlib.Path(target).parent))
    check_file(target)
    results = measure(options.rows, options.channels, options.types, options.calls)
    try:
        _print_table(results)
    finally:  # what was measured is written where it cannot be printed, and the other way
        tuning.write(results, pathlib.Path(target))
    print(f"wrote {target}")
    return 0


def _print_table(results: list[tuple[tuning.Case, dict[str, float]]]) -> None:
    print(f"{'case':52s} " + " ".join(f"{path:>10s}" for path in tuning.PATHS) + "  ms")
    for case, times in results:
        best = min(times, key=lambda path: times[path])
        channels = f"{case.channels_in} -> {case.channels_out}"
        name = f"{case.dtype} {case.rows} rows {channels}, {case.filled}% filled"
        cells = [_cell(times.get(path), path == best) for path in tuning.PATHS]
        print(f"{name:52s} " + " ".join(cells))


def _cell(ms: float | None, best: bool) -> str:
    return f"{'-':>10s}" if ms is None else f"{ms:9.3f}{'*' if best else ' '}"


def surface(rows: int) -> np.ndarray:
    """About `rows` sites of a closed surface, (n, 4) int32: what scans look like to a kernel."""
    radius = max(1.0, (rows / 16) ** 0.5)
    axis = np.arange(-int(radius) - 2, int(radius) + 3)
    x, y, z = np.meshgrid(axis, axis, axis, indexing="ij", sparse=True)
    shell = np.argwhere(np.abs(np.sqrt(x * x + y * y + z * z) - radius) < 0.64)
    return np.column_stack([np.zeros(len(shell)), shell]).astype(np.int32)


def box(rows: int) -> np.ndarray:
    """All sites of a cube, at least `rows`, (n, 4) int32."""
    side = next(n for n in itertools.count(1) if n**3 >= rows)
    sites = np.indices((side,) * 3).reshape(3, -1).T
    return np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)


def measure(
    sizes: list[int], channels: list[int], types: list[str], calls: int
) -> list[tuple[tuning.Case, dict[str, float]]]:
    """Milliseconds of a 3x3x3 submanifold convolution by each path that can run it, on surfaces and cubes."""
    results = []
    sets = list(itertools.product(sizes, types, (surface, box)))
    with progress_bar("measure", "set") as progress:
        for done, (rows, dtype, sites) in enumerate(sets, 1):
            results += _measure_set(sites(rows), dtype, channels, calls)
            progress(done, len(sets))
    return results


def _measure_set(
    coords: np.ndarray, dtype: str, channels: list[int], calls: int
) -> list[tuple[tuning.Case, dict[str, float]]]:
    results = []
    x = SparseTensor(coords, mx.zeros((len(coords), 1)), batch_size=1)
    pairs = x.manager.kernel_map(x.key, x.key, Kernel.submanifold(3)).relation
    assert isinstance(pairs, DeviceMap)
    for c in channels:
        feats = mx.random.normal((len(coords), c)).astype(TYPES[dtype])
        w = mx.random.normal((c, 3, 3, 3, c)).astype(TYPES[dtype])
        inputs = x.replace(feats)
        times = {}
        for path in tuning.PATHS:
            try:
                with tuning.forced(path):
                    times[path] = _median(partial(ops.subm_conv3d, inputs, w), calls)
            except MLXSparseError:
                continue  # this path cannot run it
        results.append((tuning_case(TYPES[dtype], w, pairs), times))
    return results


def _median(call: Callable[[], SparseTensor], calls: int) -> float:
    for _ in range(2):
        mx.eval(call().feats)
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        mx.eval(call().feats)
        times.append(time.perf_counter() - start)
    return round(1e3 * sorted(times)[calls // 2], 4)
