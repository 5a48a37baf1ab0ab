"""Writes what a GPU machine shows into one file to attach to a report: `make mac-report`.

Device, MLX, system, the results of the kernel cases and the operator tests on the GPU, and a few timings.
`python tools/device_report.py [FILE]`; needs what the tests need, and no network.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also where mlxsparse is not installed
TESTS = [
    [sys.executable, "tests/gpu/run_kernels.py"],
    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "tests/gpu"],
    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-k", "gpu"]
    + ["tests/ops", "tests/nn", "tests/test_slice.py", "tests/interop/test_golden_network.py"],
]


def machine() -> Iterator[str]:
    info = getattr(mx, "device_info", None)  # not in every MLX that we support
    yield f"system     {platform.platform()}, Python {platform.python_version()}"
    yield f"macOS      {platform.mac_ver()[0] or 'no'}"
    yield f"mlx        {mx.__version__}, Metal {mx.metal.is_available()}, CUDA {mx.cuda.is_available()}"
    yield f"device     {mx.default_device()} {info() if info else ''}"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    yield f"commit     {commit.stdout.strip() or 'unknown'}"


def milliseconds(run: Callable[[], object]) -> float:
    """Median of ten, after three."""
    spent = []
    for _ in range(13):
        start = time.perf_counter()
        mx.eval(run())
        mx.synchronize()
        spent.append(1e3 * (time.perf_counter() - start))
    return float(np.median(spent[3:]))


def timings() -> Iterator[str]:
    from mlxsparse import nn
    from mlxsparse.tensor import SparseTensor

    random = np.random.default_rng(0)
    sites = np.unique(random.integers(0, 64, (120_000, 3)), axis=0)
    coords = np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)
    for dtype in (mx.float32, mx.float16):
        for channels in (16, 64):
            feats = mx.array(random.standard_normal((len(sites), channels)).astype(np.float32)).astype(dtype)
            x = SparseTensor(coords, feats)
            layer = nn.SubmConv3d(channels, channels)
            layer.set_dtype(dtype)
            forward = milliseconds(lambda layer=layer, x=x: layer(x).feats)

            def loss(feats: mx.array, layer: nn.SubmConv3d = layer, x: SparseTensor = x) -> mx.array:
                return layer(x.replace(feats)).feats.astype(mx.float32).sum()

            backward = milliseconds(lambda loss=loss, feats=feats: mx.grad(loss)(feats))
            yield (
                f"3x3x3, {len(sites)} sites, {channels} channels, {dtype}: forward {forward:.2f} ms, "
                f"with input gradient {backward:.2f} ms"
            )


def main() -> int:
    if not (mx.metal.is_available() or mx.cuda.is_available()):
        print("needs MLX with Metal or CUDA: this machine has neither", file=sys.stderr)
        return 2
    mx.set_default_device(mx.gpu)
    failed = 0
    file = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "mac-report.txt").resolve()
    with file.open("w", encoding="utf-8") as report:

        def write(line: str) -> None:
            print(line, flush=True)
            report.write(line + "\n")
            report.flush()

        for line in machine():
            write(line)
        for command in TESTS:
            if "pytest" in command and importlib.util.find_spec("pytest") is None:
                write("\n== pytest is not installed: operator tests left out")
                failed += 1
                continue
            start = time.time()
            done = subprocess.run(
                command,
                cwd=ROOT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
            )
            failed += done.returncode != 0
            name = " ".join(command[1:])
            write(f"\n== {name}: exit status {done.returncode}, {time.time() - start:.0f} s")
            write(done.stdout)
        write("\n== timings")
        try:
            for line in timings():
                write(line)
        except Exception as error:  # the report is for such errors
            failed += 1
            write(f"{type(error).__name__}: {error}")
    print(f"wrote {file}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
