"""Bytes through each level of an NVIDIA card's memory, by the counters that Nsight Compute reads.

    python benchmarks/gpu_bytes.py WORK.npz [--cloud surf_1m] [--only TEXT] [--ncu PROGRAM]

WORK.npz as in gpu.py. Each case runs a few times unseen, then once under `ncu` (CUDA's toolkit; the driver
must let it read counters). Of every kernel: its time alone, with caches flushed before; MB that pass from and
to device memory, the L2 cache and the L1 cache; which share of its peak each reaches, and the matrix
units' instructions.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

METRICS = {  # column -> counter, unit of the column
    "ms": ("gpu__time_duration.sum", 1e-6),
    "memory MB": ("dram__bytes.sum", 1e-6),
    "L2 MB": ("lts__t_bytes.sum", 1e-6),
    "L1 MB": ("l1tex__t_bytes.sum", 1e-6),
    "memory %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    "L2 %": ("lts__t_bytes.avg.pct_of_peak_sustained_elapsed", 1.0),
    "L1 %": ("l1tex__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    "matrix %": ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed", 1.0),
}
INSIDE = "MLXSPARSE_UNDER_NCU"  # set for the process whose kernels are counted


def cases(coords: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, and what to run once."""
    import mlx.core as mx

    import mlxsparse as ms
    from benchmarks import gpu

    cloud = gpu.Cloud("", coords)
    base = cloud.fresh(gpu.random(0, cloud.n, 1))
    subm = ms.coords.Kernel.submanifold(3)

    def own_map() -> Any:
        x = cloud.fresh(base.feats)
        return x.manager.kernel_map(x.key, x.key, subm).relation.output.tiles.arrays

    yield "map alone", own_map
    for precision in ("fp16", "tf32", "fp32"):
        dtype, mode = gpu.PRECISIONS[precision]
        for c in gpu.CHANNELS:
            feats, ct = gpu.random(1, cloud.n, c, dtype=dtype), gpu.random(3, cloud.n, c, dtype=dtype)
            w = (gpu.random(2, c, 3, 3, 3, c) / (10.4 * c) ** 0.5).astype(dtype)

            def passes(feats: Any = feats, w: Any = w, ct: Any = ct, mode: str = mode) -> Any:
                os.environ["MLXSPARSE_FP32"] = mode
                return mx.vjp(lambda f, w: ms.ops.subm_conv3d(base.replace(f), w).feats, [feats, w], [ct])

            yield f"{precision} submanifold {c}, forward and both gradients", passes
    feats = gpu.random(1, cloud.n, 64, dtype=mx.float16)
    for name, k in (("k2 s2", 2), ("k3 s2", 3)):
        w = gpu.random(2, 64, k, k, k, 64, dtype=mx.float16)

        def strided(w: Any = w, k: int = k) -> Any:
            return ms.ops.conv3d(cloud.fresh(feats), w, stride=2, padding=k - 2).feats

        yield f"fp16 {name} 64, map and convolution", strided


def run_inside(options: argparse.Namespace) -> None:
    import mlx.core as mx
    import numpy as np

    mx.set_default_device(mx.gpu)
    driver = ctypes.CDLL("libcuda.so.1")
    for name, run in cases(np.load(options.work)[options.cloud].astype(np.int32)):
        if options.only not in name:
            continue
        for _ in range(3):
            mx.eval(run())
        print(f"case {name}", flush=True)
        driver.cuProfilerStart()
        mx.eval(run())
        mx.synchronize()
        driver.cuProfilerStop()


def table(printed: str) -> Iterator[str]:
    """Lines for people from what the case names and ncu's CSV came to."""
    lines = printed.splitlines()
    names = [line.removeprefix("case ") for line in lines if line.startswith("case ")]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        yield printed[-2000:]
        return
    yield f"{'kernel':60s} " + " ".join(f"{column:>10s}" for column in METRICS)
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    yield f"(cases in order: {'; '.join(names)})"
    for row in rows:
        if not row["ID"]:  # the line of units
            continue
        values = []
        for counter, scale in METRICS.values():
            text = row.get(counter, "").replace(",", "")
            number = text.replace(".", "").isdigit()
            values.append(f"{float(text) * scale:10.3f}" if number else f"{text:>10s}")
        yield f"{row['Kernel Name'][:60]:60s} " + " ".join(values)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--cloud", default="surf_1m")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--ncu", default=shutil.which("ncu") or "/usr/local/cuda/bin/ncu")
    options = parser.parse_args()
    if INSIDE in os.environ:
        run_inside(options)
        return 0
    if shutil.which(options.ncu) is None:
        parser.error(f"there is no {options.ncu}: it comes with CUDA's toolkit; --ncu PROGRAM")
    counters = ",".join(counter for counter, _ in METRICS.values())
    command = [options.ncu, "--clock-control", "none", "--profile-from-start", "off"]
    command += ["--csv", "--page", "raw", "--print-units", "base", "--metrics", counters]
    command += [sys.executable, __file__, *sys.argv[1:]]
    done = subprocess.run(
        command, env={**os.environ, INSIDE: "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print("\n".join(table(done.stdout)))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
