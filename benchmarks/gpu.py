"""mlxsparse on a GPU, beside spconv on the same card in the same run where it is installed.

    python benchmarks/gpu.py WORK.npz [--only TEXT]... [--turns N] [--out FILE] [--limit MIB]
                             [--no-spconv] [--spconv FOLDER]

WORK.npz holds surf_100k and surf_1m, int32 (N, 4) batch, x, y, z in scan order. Milliseconds are medians of
synchronised calls and, in brackets, means of a chain of calls inside one wait, both by mlxsparse.wait, which
looks again and again as torch.cuda.synchronize does; "eval": by mx.eval, which sleeps. "map cached": the map
is there; other cases start from coordinates on the device: checks, hash, map and row order are in the time.
Memory: the peak of calls by themselves, then of calls that follow each other closely, each with its ratio.
spconv (torch with CUDA, spconv-cu126) runs in processes of its own: benchmarks/gpu_spconv.py.

A shared host runs the same Python twice as fast in one second as in the next. With --turns each side runs in
N processes, ours and spconv's in turn, and all figures are medians of a side's processes ("of": the lowest
and highest synchronised median of each side).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import numpy as np

import mlxsparse as ms
from benchmarks import gpu_static
from benchmarks.gpu_cases import BLOCKS, CHANNELS, CLASSES, CLOUDS, IN_CHANNELS, LEVELS, wanted
from benchmarks.gpu_static import Result, measure
from mlxsparse.models.minkunet import MinkUNet, ModelArgs

PRECISIONS = {  # name -> (dtype, MLXSPARSE_FP32)
    "fp16": (mx.float16, ""),
    "bf16": (mx.bfloat16, ""),
    "tf32": (mx.float32, "tf32"),
    "fp32": (mx.float32, "near"),
    "fp32 exact": (mx.float32, "exact"),
}
wait = ms.wait


def random(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    mx.random.seed(seed)
    made = mx.random.normal(shape).astype(dtype)
    mx.eval(made)
    return made


class Cloud:
    """Coordinates on the device, a tensor with its map, and one without."""

    def __init__(self, name: str, coords: np.ndarray):
        self.name = name
        self.coords = mx.array(coords) + 0  # in device memory
        self.batch_size = int(coords[:, 0].max()) + 1
        self.n = len(coords)
        mx.eval(self.coords)

    def fresh(self, feats: mx.array) -> ms.SparseTensor:
        """A tensor of which nothing is known yet."""
        return ms.SparseTensor(self.coords, feats, batch_size=self.batch_size)

    @property
    def nothing(self) -> mx.array:
        """Features without memory: a case is about the rows, or puts its own in their place."""
        return mx.broadcast_to(mx.zeros((1, 1)), (self.n, 1))


def convolutions(cloud: Cloud) -> Iterator[tuple[str, Callable[[], Result]]]:
    base = cloud.fresh(cloud.nothing)
    for precision, (dtype, mode) in PRECISIONS.items():
        for c in CHANNELS:

            def cached(c: int = c, dtype: mx.Dtype = dtype, mode: str = mode) -> Result:
                os.environ["MLXSPARSE_FP32"] = mode
                feats = random(1, cloud.n, c, dtype=dtype)
                w = (random(2, c, 3, 3, 3, c) / (10.4 * c) ** 0.5).astype(dtype)
                x = base.replace(feats)

                def chain(n: int) -> mx.array:
                    y = x
                    for _ in range(n):
                        y = ms.ops.subm_conv3d(y, w)
                    return y.feats

                found = measure(lambda: ms.ops.subm_conv3d(x, w).feats, wait, chain=chain)
                found["error"] = error(x, w)
                return found

            def step(c: int = c, dtype: mx.Dtype = dtype, mode: str = mode) -> Result:
                os.environ["MLXSPARSE_FP32"] = mode
                feats = random(1, cloud.n, c, dtype=dtype)
                w = (random(2, c, 3, 3, 3, c) / (10.4 * c) ** 0.5).astype(dtype)
                ct = random(3, cloud.n, c, dtype=dtype)

                def passes() -> Any:
                    return mx.vjp(lambda f, w: ms.ops.subm_conv3d(base.replace(f), w).feats, [feats, w], [ct])

                return measure(passes, wait, 10)

            yield f"{precision} subm{c}, map cached", cached
            if precision in ("fp16", "tf32", "fp32"):
                yield f"{precision} subm{c}, map cached, forward and both gradients", step


def error(x: ms.SparseTensor, w: mx.array) -> float:
    """Of 256 rows, relative to the largest value, in float64."""
    y = ms.ops.subm_conv3d(x, w).feats
    rows = mx.array(np.random.default_rng(0).integers(0, x.capacity, 256).astype(np.int32))
    nbr = neighbours(np.array(x.coords + 0), np.array(rows))
    feats = np.array(x.feats[mx.array(np.maximum(nbr, 0).ravel())].astype(mx.float32)).astype(np.float64)
    feats = feats.reshape(*nbr.shape, -1) * (nbr >= 0)[..., None]
    taps = np.array(w.astype(mx.float32)).astype(np.float64).reshape(w.shape[0], 27, -1)
    wanted = np.einsum("tmc,otc->mo", feats, taps)
    got = np.array(y[rows].astype(mx.float32))
    return float(f"{np.abs(got - wanted).max() / np.abs(wanted).max():.1e}")


def neighbours(sites: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(27, rows) row of each site around those rows, -1 where there is none: sites (N, 4) int32."""
    low = sites.min(axis=0) - 1
    shape = sites.max(axis=0) + 2 - low

    def numbers(sites: np.ndarray) -> np.ndarray:
        return np.ravel_multi_index(tuple((sites - low).T), tuple(shape))

    order = np.argsort(numbers(sites))
    ordered = numbers(sites[order])
    taps = np.column_stack([np.zeros(27, int), np.indices((3, 3, 3)).reshape(3, -1).T - 1])
    wanted = numbers((sites[rows][None] + taps[:, None]).reshape(-1, 4)).reshape(27, -1)
    at = np.minimum(np.searchsorted(ordered, wanted), len(sites) - 1)
    return np.where(ordered[at] == wanted, order[at], -1)


def maps(cloud: Cloud) -> Iterator[tuple[str, Callable[[], Result]]]:
    one = cloud.nothing
    kernel = ms.coords.Kernel.submanifold(3)

    def map_only() -> Any:
        x = cloud.fresh(one)
        return x.manager.kernel_map(x.key, x.key, kernel).relation.output.tiles.arrays

    yield "map only subm3", lambda: measure(map_only, wait)

    def no_check() -> Any:
        x = ms.SparseTensor(cloud.coords, one, batch_size=cloud.batch_size, validate=False)
        return x.manager.kernel_map(x.key, x.key, kernel).relation.output.tiles.arrays

    yield "map only subm3, unchecked", lambda: measure(no_check, wait)
    for precision, dtype in (("fp16", mx.float16), ("fp32", mx.float32)):

        def run(make: Callable[[ms.SparseTensor], Any], c: int, dtype: mx.Dtype = dtype) -> Result:
            os.environ["MLXSPARSE_FP32"] = ""
            feats = random(1, cloud.n, c, dtype=dtype)
            return measure(lambda: make(cloud.fresh(feats)).feats, wait, 10)

        w32, w2, w3 = (random(2, c, k, k, k, c, dtype=dtype) for c, k in ((32, 3), (64, 2), (64, 3)))
        runs: dict[str, tuple[int, Callable[[ms.SparseTensor], Any]]] = {
            "map+subm32": (32, lambda x, w=w32: ms.ops.subm_conv3d(x, w)),
            "conv k2s2 map+conv": (64, lambda x, w=w2: ms.ops.conv3d(x, w, stride=2)),
            "conv k3s2 map+conv": (64, lambda x, w=w3: ms.ops.conv3d(x, w, stride=2, padding=1)),
            "maxpool k2s2 map+pool": (64, lambda x: ms.ops.max_pool3d(x, 2)),
        }
        for name, (c, make) in runs.items():
            yield f"{precision} {name}", lambda make=make, c=c, run=run: run(make, c)


def networks(cloud: Cloud) -> Iterator[tuple[str, Callable[[], Result]]]:
    def model(dtype: mx.Dtype) -> MinkUNet:
        mx.random.seed(0)
        made = MinkUNet(ModelArgs(IN_CHANNELS, CLASSES, LEVELS, BLOCKS))
        made.set_dtype(dtype)
        mx.eval(made.parameters())
        return made

    def infer(known: bool) -> Result:
        net = model(mx.float16)
        net.eval()
        feats = random(1, cloud.n, IN_CHANNELS, dtype=mx.float16)
        x = cloud.fresh(feats) if known else None
        return measure(lambda: net(cloud.fresh(feats) if x is None else x).feats, wait, 10)

    def train() -> Result:
        net = model(mx.float16)
        feats = random(1, cloud.n, IN_CHANNELS, dtype=mx.float16)
        labels = mx.random.randint(0, CLASSES, (cloud.n,))
        optimizer = mlx.optimizers.SGD(1e-3)

        def loss(net: MinkUNet, x: ms.SparseTensor) -> mx.array:
            return mlx.nn.losses.cross_entropy(net(x).feats.astype(mx.float32), labels, reduction="mean")

        step = ms.staged(mlx.nn.value_and_grad(net, loss))
        optimizer.init(net.trainable_parameters())
        state = [net.state, optimizer.state]
        update = ms.compile(lambda gradient: optimizer.update(net, gradient), inputs=state, outputs=state)

        def run() -> Any:
            value, gradient = step(net, cloud.fresh(feats))
            update(gradient)  # compiled: torch's updates all parameters in a few kernels too
            return net.parameters(), value

        return measure(run, wait, 5)

    yield "fp16 MinkUNet inference, maps and all", lambda: infer(False)
    yield "fp16 MinkUNet inference, maps cached", lambda: infer(True)
    yield "fp16 MinkUNet training step", train
    yield from gpu_static.cases(cloud.name, cloud.coords, cloud.batch_size)


def ceilings() -> Iterator[tuple[str, Callable[[], Result]]]:
    def copy() -> Result:
        a = mx.zeros((1 << 28,), mx.float32)
        found = measure(lambda: a + 1.0, wait, 10)
        found["TB/s"] = round(2 * a.nbytes / found["chain"] / 1e9, 3)
        return found

    def matmul() -> Result:
        a = random(0, 8192, 8192, dtype=mx.float16)
        found = measure(lambda: a @ a, wait, 10)
        found["TFLOP/s"] = round(2 * 8192**3 / found["chain"] / 1e9, 1)
        return found

    yield "copy", copy
    yield "fp16 matmul", matmul


def peers(work: pathlib.Path, only: Sequence[str], folder: str) -> dict[str, Result]:
    """spconv's results of the same cases; TF32 in a process of its own, as it keeps its choice of kernels.

    folder: where its packages are, if not on the path already; its processes alone see it.
    """
    if not folder and not all(importlib.util.find_spec(name) for name in ("torch", "spconv")):
        return {}
    places = [p for p in (os.environ.get("PYTHONPATH", ""), folder) if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    found: dict[str, Result] = {}
    script = pathlib.Path(__file__).with_name("gpu_spconv.py")
    of = {"fp16": ("fp16", "map only"), "fp32": ("fp32",), "tf32": ("tf32",)}  # what its process measures
    named = {text: [p for p, parts in of.items() if any(part in text for part in parts)] for text in only}
    for precision in of:
        texts = [text for text in only if precision in (named[text] or of)]
        if not texts:
            continue
        command = [sys.executable, str(script), str(work), precision, *texts]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode:
            print(f"spconv {precision}: {done.stderr[-600:]}", file=sys.stderr)
        for line in lines:
            found.update(json.loads(line))
    return found


def ours(work: pathlib.Path, only: Sequence[str], show: Callable[[str, Result], None]) -> dict[str, Result]:
    """Our results of the cases whose names contain one of `only`, each shown as it comes."""
    figures: dict[str, Result] = {}

    def run(name: str, case: Callable[[], Result]) -> None:
        mx.clear_cache()
        mx.reset_peak_memory()
        try:
            found = case()
        except Exception as error:  # a case that fails is a result, and the others are wanted too
            print(f"{name:62s} {type(error).__name__}: {str(error)[:200]}", flush=True)
            return
        found.setdefault("peak MiB", mx.get_peak_memory() // 2**20)
        figures[name] = found
        show(name, found)

    for name, case in ceilings():
        if wanted(name, only):
            run(name, case)
    clouds = np.load(work)
    for label in CLOUDS:
        if label not in clouds:
            continue
        cloud = Cloud(label, clouds[label].astype(np.int32))
        for group in (convolutions, maps, networks):
            for name, case in group(cloud):
                if wanted(f"{label} {name}", only):
                    run(f"{label} {name}", case)
    return figures


def ours_alone(work: pathlib.Path, only: Sequence[str], limit: int | None) -> dict[str, Result]:
    """Our results, of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "figures.json"
        options = [f"--only={text}" for text in only] + ([f"--limit={limit}"] if limit else [])
        command = [sys.executable, __file__, str(work), "--no-spconv", f"--out={out}", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Result] = json.loads(out.read_text())["mlxsparse"]
        return found


def middle(turns: Sequence[dict[str, Result]]) -> dict[str, Result]:
    """Medians of each figure of each case (the worst of what tells of errors), with the range of "sync"."""
    found: dict[str, Result] = {}
    for name in dict.fromkeys(name for turn in turns for name in turn):
        results = [turn[name] for turn in turns if name in turn]
        keys = dict.fromkeys(key for result in results for key in result)
        worst: dict[str, Callable[[Any], float]] = {"error": max, "equal": min, "compilations": max}
        found[name] = {
            key: worst.get(key, statistics.median)([r[key] for r in results if key in r]) for key in keys
        }
        sync = [r["sync"] for r in results]
        if len(turns) > 1:
            found[name].update({"turns": len(results), "lowest": min(sync), "highest": max(sync)})
    return found


def line(name: str, found: Result, other: Result | None) -> str:
    beside, ratio, memory, of = "", "", f"{found['peak MiB']:.0f}", ""
    if "turns" in found:
        of = f"of {found['lowest']:.3f} to {found['highest']:.3f}"
    if other:
        beside = f"{other['sync']:.3f} ({other['chain']:.3f})"
        ratio = f"{found['sync'] / other['sync']:.2f} ({found['chain'] / other['chain']:.2f})"
        memory += f" {found['peak MiB'] / max(1, other['peak MiB']):.2f}"
        if "close MiB" in found:
            memory += f" {found['close MiB']:.0f} {found['close MiB'] / max(1, other['close MiB']):.2f}"
        of += f", {other['lowest']:.3f} to {other['highest']:.3f}" if of else ""
    shown = ("sync", "chain", "peak MiB", "close MiB", "turns", "lowest", "highest")
    more = " ".join([of] * bool(of) + [f"{k} {v}" for k, v in found.items() if k not in shown])
    mine = f"{found['sync']:.3f} ({found['chain']:.3f})"
    return f"{name:62s} {mine:>22s} {beside:>20s} {ratio:>14s} {memory:>19s} {more}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--only", action="append", default=[], help="cases whose name contains this")
    parser.add_argument("--turns", type=int, default=1, help="processes of each side")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for all figures")
    parser.add_argument("--no-spconv", action="store_true")
    parser.add_argument("--spconv", default="", help="folder of spconv's packages, if not on the path")
    parser.add_argument("--limit", type=int, help="mx.set_memory_limit of our side, in MiB")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns must be at least 1")
    mx.set_default_device(mx.gpu)
    if options.limit:
        mx.set_memory_limit(options.limit << 20)
    work, only = options.work, options.only or [""]
    info = getattr(mx, "device_info", None)
    name = info().get("device_name", "") if info else mx.default_device()
    print(f"mlx {mx.__version__}, {name}", flush=True)
    heading = f"{'case':62s} {'sync (chain) ms':>22s} {'spconv':>20s} {'ratio':>14s} {'peak, close MiB':>19s}"

    others: dict[str, Result] = {}

    def show(case: str, found: Result) -> None:
        print(line(case, found, others.get(case.partition(", compiled")[0])), flush=True)

    turns: list[tuple[dict[str, Result], dict[str, Result]]] = []
    for turn in range(options.turns):
        start = time.perf_counter()
        theirs = {} if options.no_spconv else peers(work, only, options.spconv)
        between = time.perf_counter()
        if options.turns == 1:
            others = theirs
            print(heading, flush=True)
            turns.append((theirs, ours(work, only, show)))
        else:
            turns.append((theirs, ours_alone(work, only, options.limit)))
            took = f"{between - start:.0f} s of spconv, {time.perf_counter() - between:.0f} s of ours"
            print(f"turn {turn + 1} of {options.turns}: {took}", flush=True)
        others, figures = (middle([each[side] for each in turns]) for side in (0, 1))
        if options.out:  # after each turn: a run that is broken off leaves what it has
            options.out.write_text(json.dumps({"mlxsparse": figures, "spconv": others}, indent=1))
        if turn > 0:
            print(heading)
            for case, found in figures.items():
                show(case, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
