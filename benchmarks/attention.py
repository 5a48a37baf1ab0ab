"""Attention in windows beside padded batched attention on the same windows.

    python benchmarks/attention.py cpu [WORK.npz]      ratios to NumPy, memory from 10k to 1M voxels
    python benchmarks/attention.py gpu [WORK.npz]      beside mx.fast.scaled_dot_product_attention

WORK.npz holds surf_100k and surf_1m, (n, 4) int32; without it a wavy sheet is made.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.coords import groups

HEADS, CHANNELS, WINDOW = 8, 32, 8


def sheet(n: int) -> np.ndarray:
    """A wavy surface of n voxels."""
    side = int(np.ceil(np.sqrt(n)))
    x, y = (a.ravel()[:n] for a in np.meshgrid(np.arange(side), np.arange(side), indexing="ij"))
    z = (side / 12 * (np.sin(x / 37) + np.cos(y / 23))).astype(np.int64)
    return np.column_stack([np.zeros(n, np.int64), x, y, z]).astype(np.int32)


def uneven(windows: int = 1728, low: int = 20, high: int = 100) -> np.ndarray:
    """Windows with evenly drawn numbers of voxels: padding to the longest wastes about 2.4."""
    r = np.random.default_rng(1)
    side = round(windows ** (1 / 3))
    found = []
    for i in range(side**3):
        cell = r.choice(WINDOW**3, r.integers(low, high + 1), replace=False)
        corner = np.array(np.unravel_index(i, (side,) * 3)) * WINDOW
        found.append(corner + np.stack(np.unravel_index(cell, (WINDOW,) * 3), axis=1))
    xyz = np.concatenate(found)
    return np.column_stack([np.zeros(len(xyz), np.int64), xyz]).astype(np.int32)


def cube(n: int = 102_400) -> np.ndarray:
    """A dense box of whole windows: nothing to pad."""
    return np.argwhere(np.ones((1, 64, 40, n // 2560))).astype(np.int32)


class Padded:
    """Windows as rectangles: (W, L) rows, and which of them exist; L is the longest window."""

    def __init__(self, x: ms.SparseTensor, window: int):
        segments = groups.windows(x.key, (window,) * 3, (0, 0, 0))
        starts, order = segments.q.starts, segments.q.order
        self.lengths = np.diff(starts)
        self.longest = int(self.lengths.max())
        at = np.arange(self.longest)
        self.live = at < self.lengths[:, None]
        self.rows = order[np.where(self.live, starts[:-1, None] + at, starts[:-1, None])]
        self.positions = np.flatnonzero(self.live.ravel())
        self.back = np.empty(len(order), np.int64)  # place of each row in the rectangles
        self.back[self.rows.ravel()[self.positions]] = self.positions

    @property
    def waste(self) -> float:
        """Padded scores for each real one."""
        return len(self.lengths) * self.longest**2 / float((self.lengths**2).sum())


def numpy_padded(q: np.ndarray, k: np.ndarray, v: np.ndarray, to: Padded, chunk: int = 16) -> np.ndarray:
    """What one writes without this library: gather, batched products, masked softmax, scatter."""
    n, heads, d = q.shape
    out = np.empty_like(q)
    factor = np.float32(d**-0.5)
    for a in range(0, len(to.rows), chunk):
        rows, live = to.rows[a : a + chunk], to.live[a : a + chunk]
        qs, ks, vs = (t[rows].transpose(0, 2, 1, 3) for t in (q, k, v))
        t = np.matmul(qs, ks.swapaxes(2, 3))
        t *= factor
        np.copyto(t, np.float32(-np.inf), where=~live[:, None, None])
        t -= t.max(axis=3, keepdims=True)
        np.exp(t, out=t)
        t /= t.sum(axis=3, keepdims=True)
        out[rows[live]] = np.matmul(t, vs).transpose(0, 2, 1, 3)[live]
    return out


def numpy_gradients(q, k, v, ct, to: Padded, chunk: int = 16):  # type: ignore[no-untyped-def]
    """Gradients of numpy_padded, from probabilities computed again."""
    found = [np.empty_like(a) for a in (q, k, v)]
    factor = np.float32(q.shape[2] ** -0.5)
    for a in range(0, len(to.rows), chunk):
        rows, live = to.rows[a : a + chunk], to.live[a : a + chunk]
        qs, ks, vs, gs = (t[rows].transpose(0, 2, 1, 3) for t in (q, k, v, ct))
        gs = np.where(live[:, None, :, None], gs, np.float32(0))
        t = np.matmul(qs, ks.swapaxes(2, 3)) * factor
        np.copyto(t, np.float32(-np.inf), where=~live[:, None, None])
        t -= t.max(axis=3, keepdims=True)
        np.exp(t, out=t)
        t /= t.sum(axis=3, keepdims=True)
        dv = np.matmul(t.swapaxes(2, 3), gs)
        dp = np.matmul(gs, vs.swapaxes(2, 3))
        dp -= (dp * t).sum(axis=3, keepdims=True)
        dp *= t
        dp *= factor
        for to_rows, part in zip(found, (np.matmul(dp, ks), np.matmul(dp.swapaxes(2, 3), qs), dv)):
            to_rows[rows[live]] = part.transpose(0, 2, 1, 3)[live]
    return found


def median(run: Callable[[], object], times: int, warm: bool = True) -> float:
    """Milliseconds."""
    if warm:
        run()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return 1e3 * float(np.median(taken))


def inputs(n: int, dtype: mx.Dtype) -> list[mx.array]:
    r = np.random.default_rng(0)
    arrays = [mx.array(r.standard_normal((n, HEADS, CHANNELS), np.float32)).astype(dtype) for _ in range(4)]
    mx.eval(arrays)
    return arrays


def tensor(sites: np.ndarray) -> ms.SparseTensor:
    return ms.SparseTensor(mx.array(sites), mx.zeros((len(sites), 1)))


def resident_mib(what: str) -> float:
    """Linux: resident memory now ("VmRSS"), or its peak ("VmHWM") since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def described(name: str, to: Padded) -> str:
    sites = int(to.lengths.sum())
    return (
        f"{name}: {sites} voxels, {len(to.lengths)} windows of {to.lengths.mean():.1f}, "
        f"longest {to.longest}, padded scores {to.waste:.2f} of the real"
    )


def cpu_set(name: str, sites: np.ndarray, times: int) -> None:
    """Ours beside numpy_padded."""
    x = tensor(sites)
    q, k, v, ct = inputs(len(sites), mx.float32)
    arrays = [np.asarray(a) for a in (q, k, v, ct)]
    to = Padded(x, WINDOW)
    print(described(name, to), flush=True)

    def ours() -> mx.array:
        y = ops.window_attention(x, q, k, v, WINDOW)
        mx.eval(y)
        return y

    def ours_gradients() -> list[mx.array]:
        _, found = mx.vjp(lambda *a: ops.window_attention(x, *a, WINDOW), [q, k, v], [ct])
        mx.eval(found)
        return found

    error = np.abs(np.asarray(ours()) - numpy_padded(*arrays[:3], to)).max()
    forward = beside(ours, lambda: numpy_padded(*arrays[:3], to), times)
    print(f"  forward              {forward}, error {error:.0e}", flush=True)
    if to.waste > 4:
        return
    wanted = numpy_gradients(*arrays, to)
    error = max(np.abs(np.asarray(a) - b).max() for a, b in zip(ours_gradients(), wanted))

    def theirs() -> None:
        numpy_padded(*arrays[:3], to)
        numpy_gradients(*arrays, to)

    print(f"  forward + gradients  {beside(ours_gradients, theirs, times)}, error {error:.0e}", flush=True)


def beside(ours: Callable[[], object], theirs: Callable[[], object], times: int) -> str:
    """Both in turn, so that a load on the machine meets both: medians, and the median ratio."""
    pairs = [[median(f, 1, warm=False) for f in (ours, theirs)] for _ in range(times)]
    mine, other = np.median(pairs, axis=0)
    return f"{mine:8.1f} / {other:8.1f} ms = {np.median([a / b for a, b in pairs]):.2f}"


def cpu_memory(sites: np.ndarray) -> None:
    n = len(sites)
    x = tensor(sites)
    q, k, v, _ = inputs(n, mx.float32)
    start = time.perf_counter()
    groups.windows(x.key, (WINDOW,) * 3, (0, 0, 0))
    made = (time.perf_counter() - start) * 1e3
    forget_peak()
    before = resident_mib("VmRSS")
    taken = median(lambda: mx.eval(ops.window_attention(x, q, k, v, WINDOW)), 1)
    grown = resident_mib("VmHWM") - before
    data = 4 * n * HEADS * CHANNELS * 4 / 2**20
    print(
        f"{n:8d} voxels: {taken:8.1f} ms, windows made in {made:.1f} ms; q, k, v and result {data:7.1f} MiB, "
        f"peak grew by {grown:7.1f} MiB",
        flush=True,
    )


def cpu(work: dict[str, np.ndarray], times: int, only: str) -> None:
    mx.set_default_device(mx.cpu)
    for name, sites in sets(work).items():
        if only in name:
            cpu_set(name, sites, times)
    for n in (10_000, 100_000, 1_000_000) if only in "memory" else ():
        cpu_memory(work["surf_1m"][:n] if "surf_1m" in work else sheet(n))


def sets(work: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"uneven": uneven(), "cube": cube(), "surf_100k": work.get("surf_100k", sheet(100_000))}


def chain(run: Callable[[mx.array], mx.array], start: mx.array, length: int = 20) -> float:
    """Milliseconds of one call in a chain, where each reads the one before."""
    mx.eval(run(start))
    begin, a = time.perf_counter(), start
    for _ in range(length):
        a = run(a)
    mx.eval(a)
    mx.synchronize()
    return (time.perf_counter() - begin) / length * 1e3


def figures(run: Callable[[mx.array], mx.array], start: mx.array, times: int) -> tuple[float, float, float]:
    """Milliseconds in a chain and synchronised, and MiB that came on top of what was there."""
    mx.eval(run(start))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mean = chain(run, start)
    return mean, median(lambda: mx.eval(run(start)), times), (mx.get_peak_memory() - before) / 2**20


def gpu_set(x: ms.SparseTensor, to: Padded, dtype: mx.Dtype, times: int, wanted: str) -> None:
    q, k, v, ct = inputs(x.capacity, dtype)
    w, longest = to.rows.shape
    rows, back = mx.array(to.rows.ravel().astype(np.int32)), mx.array(to.back.astype(np.int32))
    mask = mx.array(to.live)[:, None, None]
    mx.eval(rows, back, mask)

    def gathered(a: mx.array) -> mx.array:
        return a[rows].reshape(w, longest, HEADS, CHANNELS).swapaxes(1, 2)

    def padded(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(a, b, c, scale=CHANNELS**-0.5, mask=mask)

    def whole(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
        y = padded(gathered(a), gathered(b), gathered(c))
        return y.swapaxes(1, 2).reshape(-1, HEADS, CHANNELS)[back]

    def ours(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
        return ops.window_attention(x, a, b, c, WINDOW)

    def both(f: Callable[..., mx.array]) -> Callable[[mx.array], mx.array]:
        def run(g: mx.array) -> mx.array:
            _, found = mx.vjp(f, [q, k, v], [g])
            return found[0] + found[1] + found[2]

        return run

    kind = str(dtype).rpartition(".")[2]
    if not wanted:
        error = mx.abs(ours(q, k, v).astype(mx.float32) - whole(q, k, v).astype(mx.float32)).max().item()
        print(f"  {kind}: difference {error:.1e}", flush=True)
    wide = [gathered(a) for a in (q, k, v)]
    mx.eval(wide)
    cases = {
        "forward": ((lambda a: ours(a, k, v), q), (lambda a: whole(a, k, v), q)),
        "forward, padded already": ((lambda a: ours(a, k, v), q), (lambda a: padded(a, *wide[1:]), wide[0])),
        "forward + gradients": ((both(ours), ct), (both(whole), ct)),
    }
    for case, sides in cases.items():
        if wanted not in case:
            continue
        (a, b, c), (d, e, f) = (figures(run, start, times) for run, start in sides)
        print(
            f"  {kind} {case:24s} chain {a:7.3f} / {d:7.3f} ms = {d / a:5.2f}x   synchronised {b:7.3f} / "
            f"{e:7.3f} ms = {e / b:5.2f}x   peak {c:6.0f} / {f:6.0f} MiB",
            flush=True,
        )


def gpu(work: dict[str, np.ndarray], times: int, only: str, wanted: str) -> None:
    mx.set_default_device(mx.gpu)
    for name, sites in sets(work).items():
        if only in name:
            x = tensor(sites)
            to = Padded(x, WINDOW)
            print(described(name, to), flush=True)
            for dtype in (mx.float16,) if wanted else (mx.float16, mx.float32):
                gpu_set(x, to, dtype, times, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=("cpu", "gpu"))
    parser.add_argument("work", nargs="?")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="", help='sets whose name contains this; on the CPU also "memory"')
    parser.add_argument("--case", default="", help="gpu: float16 only, and cases whose name contains this")
    options = parser.parse_args()
    work = dict(np.load(options.work)) if options.work else {}
    if options.device == "cpu":
        cpu(work, options.times, options.only)
    else:
        gpu(work, options.times, options.only, options.case)


if __name__ == "__main__":
    main()
