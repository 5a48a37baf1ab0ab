"""Block-sparse products, attention and layouts beside dense ones: `python benchmarks/blocksparse.py`.

CPU: 1024^3 in float32 with 32 x 32 blocks against np.matmul, attention against masked NumPy attention, a
layout of a million tokens. With --gpu: 4096^3 in float16 with blocks of 64 against mx.matmul, attention over
16,384 tokens against mx.fast.scaled_dot_product_attention. Times are medians of calls that are waited for one
by one, a ratio is ours over dense. On a GPU lines of calls inside one wait follow, the clock started before
the first call: the mean of 10 and of 100, and what one more costs (the difference between 40 and 10).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from mlxsparse.blocksparse import BlockLayout, LocalWindow, block_sparse_attention, dds, dsd, sdd, segment_ids

DENSITIES = (0.5, 0.25, 0.1)
ALTERNATE = False


def seconds(f: Callable[[], Any]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def beside(ours: Callable[[], Any], dense: Callable[[], Any], times: int) -> tuple[float, float]:
    """Median seconds of both: a series of each, or call by call in turn with --alternate.

    NumPy's BLAS threads spin for about 0.1 s after a product and so take cores from whatever comes next: a
    series starts when they sleep.
    """
    if ALTERNATE:
        ours(), dense()
        pairs = [(seconds(ours), seconds(dense)) for _ in range(times)]
        return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
    series = []
    for f in (ours, dense):
        time.sleep(0.3)
        for _ in range(8):  # the second core wakes up
            f()
        series.append(statistics.median(seconds(f) for _ in range(times)))
    return series[0], series[1]


def queued(f: Callable[[], mx.array]) -> tuple[float, float, float]:
    """Seconds of a call among 10 and among 100 in one wait, and of one more; of three series the best."""

    def whole(calls: int) -> float:
        best = math.inf
        for _ in range(3):
            start = time.perf_counter()
            results = [f() for _ in range(calls)]
            mx.eval(results)
            best = min(best, time.perf_counter() - start)
            del results
        return best

    ten = whole(10)
    return ten / 10, whole(100) / 100, (whole(40) - ten) / 30


def queued_line(ours: Callable[[], mx.array], dense: Callable[[], mx.array]) -> None:
    for name, a, b in zip(("of 10", "of 100", "one more"), queued(ours), queued(dense)):
        line(f"  {name}", a, b)


def line(name: str, ours: float, dense: float, note: str = "") -> None:
    print(f"{name:44s} {ours * 1e3:9.3f} ms {dense * 1e3:9.3f} ms {ours / dense:7.2f} {note}", flush=True)


def random_layout(rng: np.random.Generator, side: int, block: int, density: float) -> BlockLayout:
    """Exactly the share `density` of the blocks, at random places."""
    grid = side // block
    chosen = rng.permutation(grid * grid)[: round(density * grid * grid)]
    return BlockLayout.from_pairs(np.column_stack(np.divmod(chosen, grid)), block, shape=(side, side))


def products(side: int, block: int, dtype: mx.Dtype, times: int, path: str | None) -> None:
    rng = np.random.default_rng(0)
    a, b = (
        mx.array(rng.standard_normal((1, 1, side, side)).astype(np.float32)).astype(dtype) for _ in range(2)
    )
    mx.eval(a, b)
    x, y = np.array(a[0, 0].astype(mx.float32)), np.array(b[0, 0].astype(mx.float32))
    out = np.empty_like(x)
    on_gpu = mx.default_device() == mx.gpu

    def run(f: Callable[[], mx.array]) -> Callable[[], Any]:
        return lambda: mx.eval(f())

    dense = run(lambda: a @ b) if on_gpu else lambda: np.matmul(x, y, out=out)
    for density in DENSITIES:
        layout = random_layout(rng, side, block, density)
        values = sdd(a, b, layout)
        mx.eval(values)
        for name, f in (
            ("sdd", partial(sdd, a, b, layout, path=path)),
            ("dsd", partial(dsd, values, b, layout, path=path)),
            ("dds", partial(dds, a, values, layout, path=path)),
        ):
            line(f"{name} {side}^3 block {block} density {density}", *beside(run(f), dense, times))
            if on_gpu:
                queued_line(f, lambda: a @ b)


def cpu_attention(times: int) -> None:
    """A sliding window over 8 heads, against dense masked attention in NumPy."""
    rng = np.random.default_rng(1)
    n, heads, d = 2048, 4, 32
    q, k, v = (mx.array(rng.standard_normal((1, heads, n, d)).astype(np.float32)) for _ in range(3))
    layout = LocalWindow(1, 32, num_sliding_window_blocks=7)(n)
    mask = np.kron(layout.to_dense()[0], np.ones((32, 32))) > 0
    qn, kn, vn = (np.array(a) for a in (q, k, v))

    def dense() -> np.ndarray:
        t = np.where(mask, qn @ kn.swapaxes(2, 3) * d**-0.5, -np.inf)
        t = np.exp(t - t.max(axis=3, keepdims=True))
        return (t / t.sum(axis=3, keepdims=True)) @ vn

    note = f"density {layout.density:.2f}"
    line(
        f"attention, {n} tokens, {heads} heads of {d}",
        *beside(lambda: mx.eval(block_sparse_attention(q, k, v, layout)), dense, times),
        note,
    )

    def attend(x: mx.array, layout: BlockLayout, ids: mx.array) -> None:
        mx.eval(block_sparse_attention(x, x, x, layout, segments=ids))

    for tokens in (10_000, 100_000, 1_000_000):
        ends = np.append(np.arange(0, tokens, 480), tokens)
        layout, ids = BlockLayout.from_cu_seqlens(ends, 64), segment_ids(ends)
        x = mx.array(rng.standard_normal((1, 1, tokens, d)).astype(np.float32))
        mx.eval(x)
        taken = seconds(partial(attend, x, layout, ids))
        print(f"attention in sequences of 480, {tokens} tokens: {taken / tokens * 1e6:.2f} us a token")


def layouts() -> None:
    ends = np.append(np.arange(0, 1 << 20, 500), 1 << 20)
    taken = statistics.median(seconds(lambda: BlockLayout.from_cu_seqlens(ends, 64)) for _ in range(7))
    layout = BlockLayout.from_cu_seqlens(ends, 64)
    print(f"layout of {1 << 20} tokens from cu_seqlens, block 64, {layout.nnz} blocks: {taken * 1e3:.1f} ms")


def gpu_attention(times: int) -> None:
    rng = np.random.default_rng(2)
    n, heads = 16384, 8
    for d in (64, 128):
        q, k, v = (
            mx.array(rng.standard_normal((1, heads, n, d)).astype(np.float32)).astype(mx.float16)
            for _ in range(3)
        )
        mx.eval(q, k, v)

        dense = partial(mx.fast.scaled_dot_product_attention, q, k, v, scale=d**-0.5)
        for block in (64, 128):
            layout = random_layout(rng, n, block, 0.1)
            ours = partial(block_sparse_attention, q, k, v, layout)
            mx.reset_peak_memory()
            waited(ours)
            note = f"peak {mx.get_peak_memory() / 2**20:.0f} MiB"
            line(
                f"attention {n} tokens, {heads} heads of {d}, block {block}, 10%",
                *beside(partial(waited, ours), partial(waited, dense), times),
                note,
            )
            queued_line(ours, dense)


def waited(f: Callable[[], mx.array]) -> None:
    mx.eval(f())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="on the GPU device")
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--path", choices=["blocks", "dense"], help="force one way of multiplying")
    parser.add_argument("--alternate", action="store_true", help="ours and dense call by call")
    options = parser.parse_args()
    global ALTERNATE
    ALTERNATE = options.alternate
    print(f"{'':44s} {'ours':>12s} {'dense':>12s}   ratio")
    if options.gpu:
        mx.set_default_device(mx.gpu)
        products(4096, 64, mx.float16, options.times, options.path)
        gpu_attention(options.times)
        return
    mx.set_default_device(mx.cpu)
    products(1024, 32, mx.float32, options.times, options.path)
    cpu_attention(options.times)
    layouts()


if __name__ == "__main__":
    main()
