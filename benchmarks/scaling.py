"""Time and memory per voxel from 10,000 to 10,000,000 voxels: index, map, convolution forward and backward.

    python benchmarks/scaling.py WORK [--sizes 10000,100000,...] [--channels 32] [--backward]

Voxels are those of WORK/surf_1m.npy (8 scenes, scan order): a part of them, or several copies as further
batch items. Each size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

import mlxsparse as ms


def voxels(work: Path, n: int) -> np.ndarray:
    """(n, 4) distinct sites, a like surface at every size."""
    one = np.load(work / "surf_1m.npy")
    if n <= len(one):
        # The same share of the space of every scene, so that density stays what it is.
        near = np.concatenate([_nearest(one[one[:, 0] == b], n // 8) for b in range(8)])
        return np.ascontiguousarray(near)
    copies = -(-n // len(one))
    items = int(one[:, 0].max()) + 1
    shifted = [one + np.array([i * items, 0, 0, 0], np.int32) for i in range(copies)]
    return np.concatenate(shifted)[:n]


def _nearest(sites: np.ndarray, n: int) -> np.ndarray:
    """The n sites nearest to the scene's median, horizontally, in their order."""
    off = sites[:, 1:3] - np.median(sites[:, 1:3], axis=0)
    chosen = np.argsort((off**2).sum(axis=1), kind="stable")[:n]
    return sites[np.sort(chosen)]


def median(times: list[float]) -> float:
    return float(np.median(times))


def measure(work: Path, n: int, channels: int, backward: bool, reps: int) -> dict[str, float]:
    """Seconds of each step and peak memory of this process for n voxels."""
    mx.set_default_device(mx.cpu)
    coords = mx.array(voxels(work, n))
    n = coords.shape[0]
    rng = np.random.default_rng(0)
    x = ms.SparseTensor(coords, mx.array(rng.standard_normal((n, channels), dtype=np.float32)))
    w = mx.array(rng.standard_normal((channels, 3, 3, 3, channels), dtype=np.float32) / 30)
    kernel = ms.Kernel.submanifold(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times: dict[str, list[float]] = {"index": [], "map": [], "forward": [], "backward": []}

    def timed(name: str, work: object) -> None:
        start = time.perf_counter()
        work()  # type: ignore[operator]
        times[name].append(time.perf_counter() - start)

    step = mx.grad(lambda f, w: ms.ops.subm_conv3d(x.replace(f), w).feats.sum(), argnums=(0, 1))
    for _ in range(reps):
        x.manager.clear()
        timed("index", lambda: x.key.index)
        timed("map", lambda: x.manager.kernel_map(x.key, x.key, kernel))
        timed("forward", lambda: mx.eval(ms.ops.subm_conv3d(x, w).feats))
        if backward:
            timed("backward", lambda: mx.eval(step(x.feats, w)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = x.manager.kernel_map(x.key, x.key, kernel)
    data = coords.nbytes + 2 * x.feats.nbytes + w.nbytes + found.nbytes
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "voxels": n,
        "pairs": found.num_pairs,
        **{name: median(values) for name, values in times.items() if values},
        "peak_mib": peak * unit / 2**20,
        "start_mib": before * unit / 2**20,
        "inputs_outputs_map_mib": data / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("work", type=Path)
    parser.add_argument("--sizes", default="10000,100000,1000000,10000000")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--one", type=int, help="measure this size in this process and print JSON")
    options = parser.parse_args()
    if options.one:
        row = measure(options.work, options.one, options.channels, options.backward, options.reps)
        print(json.dumps(row))
        return
    names = ("index", "map", "forward", "backward")
    print(
        f"{'voxels':>10} {'pairs':>6} "
        + " ".join(f"{name:>8}" for name in names)
        + "  ns/voxel | peak MiB, of data"
    )
    for size in options.sizes.split(","):
        command = [
            sys.executable,
            __file__,
            str(options.work),
            "--one",
            size,
            "--channels",
            str(options.channels),
        ]
        command += ["--reps", str(options.reps)] + (["--backward"] if options.backward else [])
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        n = row["voxels"]
        steps = " ".join(f"{1e9 * row[s] / n:8.0f}" if s in row else f"{'-':>8}" for s in names)
        ratio = row["peak_mib"] / row["inputs_outputs_map_mib"]
        print(
            f"{n:>10} {row['pairs'] / n:6.2f} {steps}           | {row['peak_mib']:8.0f} {ratio:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
