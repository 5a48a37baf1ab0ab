"""CPU workloads a-h of mlxsparse, one JSON object out, or a server that a comparison drives.

    python benchmarks/bench_mlxsparse.py WORK [--reps 7] [--only c_,g_]      times every case here
    python benchmarks/bench_mlxsparse.py WORK --serve                        one timed run per line of stdin

WORK holds the shared workload: surf_100k.npy and surf_1m.npy (int32 (N, 4) batch, x, y, z; scan order) and
lidar_points_1m.npy (float32 (N, 4) x, y, z, intensity), and, once another library wrote them, references
ref_*.npz that results are compared with. Cases without "map cached" start from raw coordinates: sorting,
validation and the kernel map are inside the time. Set BENCH_THREADS (default 2) for the threads.
"""

from __future__ import annotations

import os

THREADS = os.environ.get("BENCH_THREADS", "2")
os.environ["MLXSPARSE_THREADS"] = THREADS
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, THREADS)

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np

import mlxsparse as ms

mx.set_default_device(mx.cpu)
Case = tuple[Callable[[], Any], Callable[[Any], dict[str, Any]]]
VOXEL = 0.05
CHANNELS = (32, 64, 128, 256)


def features(n: int, c: int, seed: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal((n, c), dtype=np.float32))


def weight(k: int, ci: int, co: int, seed: int = 0) -> mx.array:
    """(Co, k, k, k, Ci) of the workload's fixed random weights."""
    rng = np.random.default_rng(seed + 1000 * k + ci + co)
    w = rng.standard_normal((k, k, k, ci, co), dtype=np.float32) / np.sqrt(ci * k**3)
    return mx.array(np.ascontiguousarray(w.astype(np.float32).transpose(4, 0, 1, 2, 3)))


def error_to(work: Path, name: str, y: np.ndarray, coords: np.ndarray | None = None) -> float | str | None:
    """Largest error relative to the largest value of the stored reference."""
    path = work / f"ref_{name}.npz"
    if not path.exists():
        return None
    stored = np.load(path)
    want = stored["out"]
    if coords is not None:
        if len(coords) != len(stored["coords"]):
            return f"{len(coords)} sites, the reference has {len(stored['coords'])}"
        a, b = np.lexsort(coords.T[::-1]), np.lexsort(stored["coords"].T[::-1])
        y, want = y[a], want[b]
    return float(np.abs(y - want).max() / np.abs(want).max())


def cases(work: Path) -> dict[str, Case]:
    """{name: (set-up, timed run)}; a run returns facts about its work."""
    found: dict[str, Case] = {}

    def load(name: str) -> np.ndarray:
        return np.load(work / f"{name}.npy")

    def run_voxelize(points: np.ndarray) -> dict[str, Any]:
        voxels = ms.voxelize(points[:, :3], points, VOXEL)
        mx.eval(voxels.tensor)
        return {"voxels": voxels.tensor.num_active}

    found["a_voxelize_1m"] = (lambda: load("lidar_points_1m"), run_voxelize)

    def run_map(coords: mx.array) -> dict[str, Any]:
        manager = ms.CoordinateManager()
        key = manager.insert(coords)
        return {"pairs": manager.kernel_map(key, key, ms.Kernel.submanifold(3)).num_pairs}

    for size in ("100k", "1m"):
        found[f"b_map_subm3_{size}"] = (lambda size=size: mx.array(load(f"surf_{size}")), run_map)  # type: ignore[misc]

    def tensor(c: int, size: str = "100k") -> ms.SparseTensor:
        coords = load(f"surf_{size}")
        return ms.SparseTensor(mx.array(coords), features(len(coords), c))

    def subm_setup(c: int) -> Any:
        x, w = tensor(c), weight(3, c, c)
        y = ms.ops.subm_conv3d(x, w)
        return x, w, error_to(work, f"subm3_c{c}", np.array(y.feats))

    def run_subm(state: Any) -> dict[str, Any]:
        x, w, error = state
        mx.eval(ms.ops.subm_conv3d(x, w).feats)
        pairs = x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold(3)).num_pairs
        return {"pairs": pairs, "gflop": 2e-9 * pairs * w.shape[0] * w.shape[-1], "relerr": error}

    for c in (32, 64, 128):
        found[f"c_subm3_100k_c{c}"] = (lambda c=c: subm_setup(c), run_subm)  # type: ignore[misc]

    def down(coords: mx.array, feats: mx.array, w: mx.array) -> ms.SparseTensor:
        k = w.shape[1]
        x = ms.SparseTensor(coords, feats)
        y = ms.ops.conv3d(x, w, stride=2, padding=k // 2 if k == 3 else 0)
        mx.eval(y.feats)
        return y

    def down_setup(k: int, support: str) -> Any:
        coords = mx.array(load("surf_100k"))
        state = coords, features(len(coords), 64), weight(k, 64, 64), support
        y = run_parents(state) if support == "parents" else down(*state[:3])
        return state, error_to(work, f"down_k{k}", np.array(y.feats), np.array(y.coords))

    def run_parents(state: Any) -> ms.SparseTensor:
        coords, feats, w, _ = state
        y = ms.ops.conv3d(
            ms.SparseTensor(coords, feats), w, stride=2, padding=w.shape[1] // 2, support="parents"
        )
        mx.eval(y.feats)
        return y

    def run_down(state: Any) -> dict[str, Any]:
        (coords, feats, w, support), error = state
        y = run_parents((coords, feats, w, support)) if support == "parents" else down(coords, feats, w)
        return {"n_out": y.num_active, "rule": support, "relerr": error}

    found["d_down_k3s2_100k_c64"] = (lambda: down_setup(3, "parents"), run_down)
    found["d_down_k3s2_touched_100k_c64"] = (lambda: down_setup(3, "touched"), run_down)
    found["d_down_k2s2_100k_c64"] = (lambda: down_setup(2, "touched"), run_down)

    def inverse_setup() -> Any:
        x, w = tensor(64), weight(2, 64, 64)
        y = ms.ops.conv3d(x, w, stride=2)
        y = y.replace(features(y.num_active, 64, 3))
        ms.ops.conv_transpose3d(y, w, stride=2, out=x)
        return x, y, w

    def run_inverse(state: Any) -> dict[str, Any]:
        x, y, w = state
        mx.eval(ms.ops.conv_transpose3d(y, w, stride=2, out=x).feats)
        return {"n_out": x.num_active}

    found["e_inverse_k2s2_100k_c64"] = (inverse_setup, run_inverse)

    def run_pool(state: Any) -> dict[str, Any]:
        y = ms.ops.max_pool3d(ms.SparseTensor(*state), 2)
        mx.eval(y.feats)
        return {"n_out": y.num_active}

    found["f_maxpool_k2s2_100k_c64"] = (
        lambda: (mx.array(load("surf_100k")), features(100_000, 64)),
        run_pool,
    )

    def run_both(state: Any) -> dict[str, Any]:
        x, w, _ = state
        step = mx.value_and_grad(lambda f, w: ms.ops.subm_conv3d(x.replace(f), w).feats.sum(), argnums=(0, 1))
        mx.eval(step(x.feats, w))
        return {}

    found["g_subm3_fwdbwd_100k_c64"] = (lambda: subm_setup(64), run_both)

    def unet_setup(cached: bool) -> Any:
        coords, net = mx.array(load("surf_100k")), UNet()
        net.eval()
        feats = features(len(coords), 4)
        x = ms.SparseTensor(coords, feats)
        error = error_to(work, "unet", np.array(net(x).feats))
        return net, coords, feats, x if cached else None, error

    def run_unet(state: Any) -> dict[str, Any]:
        net, coords, feats, x, error = state
        mx.eval(net(x if x is not None else ms.SparseTensor(coords, feats)).feats)
        return {"relerr": error}

    found["h_unet_100k_total"] = (lambda: unet_setup(False), run_unet)
    found["h_unet_100k_mapcached"] = (lambda: unet_setup(True), run_unet)
    return found


class UNet(mlx.nn.Module):
    """The workload's 4-level residual U-Net, with its fixed weights."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(5)

        def conv(kind: str, k: int, ci: int, co: int) -> mlx.nn.Module:
            w = rng.standard_normal((k, k, k, ci, co), dtype=np.float32) * (2 / (ci * min(10, k**3))) ** 0.5
            made = {
                "subm": lambda: ms.nn.SubmConv3d(ci, co, k, bias=False),
                "down": lambda: ms.nn.Conv3d(ci, co, k, k, bias=False),
                "up": lambda: ms.nn.ConvTranspose3d(ci, co, k, k, bias=False),
            }[kind]()
            made.weight = mx.array(np.ascontiguousarray(w.astype(np.float32).transpose(4, 0, 1, 2, 3)))
            return made

        def linear(ci: int, co: int) -> mlx.nn.Module:
            made = ms.nn.Linear(ci, co, bias=False)
            made.weight = mx.array((rng.standard_normal((ci, co), dtype=np.float32) * (1 / ci) ** 0.5).T)
            return made

        def block(ci: int, co: int) -> dict[str, mlx.nn.Module]:
            parts = {"1": conv("subm", 3, ci, co), "2": conv("subm", 3, co, co)}
            return parts | ({"s": linear(ci, co)} if ci != co else {})

        c = CHANNELS
        self.stem = [conv("subm", 3, 4, 32), conv("subm", 3, 32, 32)]
        self.down, self.encoder, self.up, self.decoder = [], [], [], []
        for i in range(3):
            self.down.append(conv("down", 2, c[i], c[i]))
            self.encoder.append(block(c[i], c[i + 1]))
        for i in (2, 1, 0):
            self.up.append(conv("up", 2, c[i + 1], c[i]))
            self.decoder.append(block(2 * c[i], c[i]))
        self.head = linear(32, 20)
        self.norm = {str(n): ms.nn.BatchNorm(n) for n in c}
        self.relu = ms.nn.ReLU()

    def unit(
        self, conv: mlx.nn.Module, x: ms.SparseTensor, relu: bool = True, **kwargs: Any
    ) -> ms.SparseTensor:
        y = conv(x, **kwargs)
        y = self.norm[str(y.num_channels)](y)
        return self.relu(y) if relu else y

    def block(self, parts: dict[str, mlx.nn.Module], x: ms.SparseTensor) -> ms.SparseTensor:
        y = self.unit(parts["2"], self.unit(parts["1"], x), relu=False)
        return self.relu(y + (self.unit(parts["s"], x, relu=False) if "s" in parts else x))

    def __call__(self, x: ms.SparseTensor) -> ms.SparseTensor:
        x = self.unit(self.stem[1], self.unit(self.stem[0], x))
        skips = [x]
        for down, parts in zip(self.down, self.encoder):
            x = self.block(parts, self.unit(down, x))
            skips.append(x)
        for i, (up, parts) in enumerate(zip(self.up, self.decoder)):
            skip = skips[2 - i]
            x = self.block(parts, ms.ops.cat([self.unit(up, x, out=skip), skip]))
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("work", type=Path)
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--only", default="", help="parts of case names, with commas between")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    found = cases(options.work)
    ready: dict[str, Any] = {}

    def once(name: str) -> tuple[float, dict[str, Any]]:
        setup, run = found[name]
        if name not in ready:
            ready.clear()
            gc.collect()
            state = setup()
            ready[name] = state, run(state)  # a warm-up, and the facts
        state, facts = ready[name]
        start = time.perf_counter()
        run(state)
        return time.perf_counter() - start, facts

    info = ms.backend.info()
    versions = {"mlxsparse": ms.__version__, "mlx": info["mlx"], "numpy": info["numpy"]}
    if options.serve:
        print(json.dumps({"peer": "mlxsparse", "versions": versions, "cases": list(found)}), flush=True)
        for line in sys.stdin:
            if not line.strip():
                continue
            try:
                seconds, facts = once(line.strip())
                print(json.dumps({"t": seconds, "info": facts}), flush=True)
            except Exception as error:  # the driver shows it beside the other libraries' times
                print(json.dumps({"err": f"{type(error).__name__}: {error}"[:300]}), flush=True)
        return
    results = {}
    wanted = [part for part in options.only.split(",") if part]
    for name in found:
        if wanted and not any(part in name for part in wanted):
            continue
        times = []
        for _ in range(options.reps):
            seconds, facts = once(name)
            times.append(1e3 * seconds)
        row = {"median_ms": float(np.median(times)), "min_ms": min(times), **facts}
        if "gflop" in facts:
            row["gflop_per_s"] = facts["gflop"] / row["median_ms"] * 1e3
        results[name] = row
        print(name, row, file=sys.stderr, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "peer": "mlxsparse",
                "threads": int(THREADS),
                "versions": versions,
                "peak_mib": peak,
                "results": results,
            }
        )
    )


if __name__ == "__main__":
    main()
