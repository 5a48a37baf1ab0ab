"""Writes what a GPU machine shows into one file to attach to a report: `make mac-report`.

Device, MLX, system, the results of the kernel cases and the operator tests on the GPU, and a few timings.
`python tools/device_report.py [FILE [WORD ...]]`; needs what the tests need, and no network. With words, only
those parts of the tests whose command holds one of them, as `tests/gpu/`: to run again what failed.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import pathlib
import platform
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also where mlxsparse is not installed
from tests.gpu.run_kernels import PARTS  # noqa: E402

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
ALONE = "tests/gpu/test_memory.py"  # memory is let go late where others keep the machine busy
# Test files in which MLX compiles anew for each test, for seconds: run in so many parts.
PARTS_OF_FILES = {"tests/test_static_operators.py": 8, "tests/test_static.py": 4}


def commands() -> list[list[str]]:
    """The kernel cases, part by part, and every test file that runs on the GPU; the longest files first."""
    found = [
        [*PYTEST, "-p", "tests.plugin_part", "--part", f"{k}/{parts}", file]
        for file, parts in PARTS_OF_FILES.items()
        for k in range(parts)
    ]
    whole = [path for name in ("test_static_traces", "test_staged", "gpu/test_*") for path in _tests(name)]
    found += [[*PYTEST, str(path.relative_to(ROOT))] for path in whole]
    found += [[sys.executable, "tests/gpu/run_kernels.py", f"{part}/"] for part in PARTS]
    for path in _tests("**/test_*"):
        if path.parent.name != "gpu" and 'usefixtures("device")' in path.read_text(encoding="utf-8"):
            found.append([*PYTEST, "-k", "gpu", str(path.relative_to(ROOT))])
    return found


def _tests(name: str) -> list[pathlib.Path]:
    return sorted(ROOT.glob(f"tests/{name}.py"))


def outcome(command: list[str], texts: queue.SimpleQueue[str]) -> tuple[str, bool]:
    """What one command printed under a line that tells how it ended, and whether it failed.

    texts: folders for MLX's cache of compiled text, which it writes as other processes read it: one each.
    """
    if "pytest" in command and importlib.util.find_spec("pytest") is None:
        return f"\n== {command[-1]}: left out, pytest is not installed", True
    start, cache = time.time(), texts.get()
    own = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]), "MLX_PTX_CACHE_DIR": cache}
    done = subprocess.run(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **own},
    )
    texts.put(cache)
    status = "passed" if done.returncode == 0 else f"exit status {done.returncode}"
    told = f"\n== {' '.join(command[1:])}: {status}, {time.time() - start:.0f} s\n{done.stdout}"
    return told, done.returncode not in (0, 5)  # 5: no test of that file is for a GPU


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
    file, words = pathlib.Path((sys.argv[1:] or ["mac-report.txt"])[0]).resolve(), sys.argv[2:]
    wanted = [c for c in commands() if not words or any(word in " ".join(c) for word in words)]
    workers = max(1, min(12, (os.cpu_count() or 2) - 2))
    with file.open("w", encoding="utf-8") as report, tempfile.TemporaryDirectory() as caches:

        def write(line: str) -> None:
            print(line, flush=True)
            report.write(line + "\n")
            report.flush()

        for line in machine():
            write(line)
        texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        for worker in range(workers):
            texts.put(str(pathlib.Path(caches) / str(worker)))
        for alone in (True, False):
            with concurrent.futures.ThreadPoolExecutor(1 if alone else workers) as pool:
                now = [pool.submit(outcome, c, texts) for c in wanted if (ALONE in c) == alone]
                for done in concurrent.futures.as_completed(now):
                    told, bad = done.result()
                    write(told)
                    failed += bad
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
