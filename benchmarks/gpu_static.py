"""Static capacity on a GPU: compiled networks beside eager ones, and a stream of frames (cases of gpu.py)."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import numpy as np

import mlxsparse as ms
from benchmarks import gpu_cases
from benchmarks.gpu_cases import BLOCKS, CLASSES, IN_CHANNELS, LEVELS
from mlxsparse.models.minkunet import MinkUNet, ModelArgs

FRAMES = 50
STEPS = 16  # capacities of a power of two: 2% above what is there on average, 4.4% at most
Result = dict[str, float]
measure = functools.partial(
    gpu_cases.measure, peak=mx.get_peak_memory, reset=mx.reset_peak_memory, asleep=mx.eval
)
wait = ms.wait


def network(dtype: mx.Dtype) -> MinkUNet:
    mx.random.seed(0)
    made = MinkUNet(ModelArgs(IN_CHANNELS, CLASSES, LEVELS, BLOCKS))
    made.set_dtype(dtype)
    mx.eval(made.parameters())
    return made


def coarse_counts(coords: np.ndarray) -> list[int]:
    """Sites of each coarser level of the network."""
    counts, sites = [], coords.astype(np.int64)
    for _ in LEVELS[1:]:
        sites = np.concatenate([sites[:, :1], sites[:, 1:] // 2], axis=1)
        sites = np.unique(sites, axis=0)
        counts.append(len(sites))
    return counts


def padded(coords: mx.array, feats: mx.array, capacity: int, batch_size: int) -> ms.SparseTensor:
    """A tensor of fixed capacity of which nothing is read."""
    x = ms.SparseTensor(coords, feats, batch_size=batch_size, validate=False)
    return x.with_capacity(capacity)


def frames(coords: np.ndarray, number: int) -> list[np.ndarray]:
    """`number` parts of a cloud, from half of it to the whole, none of the size of another."""
    ranked = coords[np.argsort(coords[:, 1], kind="stable")]
    sizes = np.linspace(0.5, 1, number) * len(ranked)
    order = np.random.default_rng(0).permutation(number)
    scan = np.random.default_rng(1).permutation  # rows of a scan come in no order of ours
    return [scan(ranked[: int(sizes[i])]) for i in order]


def cases(name: str, on_device: mx.array, batch_size: int) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Cases of one cloud, (N, 4) int32."""
    coords = np.array(on_device + 0)  # of a copy, which may move to the host
    n = len(coords)
    levels = tuple(ms.bucket(c, STEPS) for c in coarse_counts(coords))
    box = tuple(map(int, coords[:, 1:].min(axis=0))), tuple(int(v) + 1 for v in coords[:, 1:].max(axis=0))

    def feats_of(n: int, dtype: mx.Dtype) -> mx.array:
        mx.random.seed(1)
        feats = mx.random.normal((n, IN_CHANNELS)).astype(dtype)
        mx.eval(feats)
        return feats

    def infer(check: str) -> Result:
        net = network(mx.float16)
        net.eval()
        feats, capacity = feats_of(n, mx.float16), ms.bucket(n, STEPS)
        step = ms.compile(net, check=check, bounds=box)

        def run() -> Any:
            x = padded(on_device, feats, capacity, batch_size)
            return step(x, capacity=levels).feats

        wanted = net(ms.SparseTensor(on_device, feats, batch_size=batch_size)).feats
        got = run()[:n]
        error = mx.abs(got.astype(mx.float32) - wanted.astype(mx.float32)).max() / mx.abs(wanted).max()
        found = {"error": float(f"{error.item():.1e}")}
        del wanted, got, error  # which would be in the peak
        found = {**measure(run, wait, 10), **found}
        step.check()
        return {**found, "compilations": step.compilations}

    def trainer(capacity: int, rows: tuple[int, ...] | None) -> tuple[MinkUNet, mlx.optimizers.SGD, Any]:
        net, optimizer = network(mx.float16), mlx.optimizers.SGD(1e-2)
        optimizer.init(net.trainable_parameters())
        for module in net.modules():
            if isinstance(module, ms.nn.BatchNorm):  # which the first step would do: another compilation
                module.running_mean = module.running_mean.astype(mx.float32)
                module.running_var = module.running_var.astype(mx.float32)
        mx.random.seed(2)
        labels = mx.random.randint(0, CLASSES, (n,))
        labels = mx.concatenate([labels, mx.zeros((capacity - n,), labels.dtype)])

        def loss(net: MinkUNet, x: ms.SparseTensor) -> mx.array:
            logits = net(x, capacity=rows).feats.astype(mx.float32)
            each = mlx.nn.losses.cross_entropy(logits, labels, reduction="none")
            return mx.where(mx.arange(capacity) < x.active_rows, each, 0).sum() / x.active_rows

        def update(x: ms.SparseTensor) -> mx.array:
            value, gradient = ms.staged(mlx.nn.value_and_grad(net, loss))(net, x)
            optimizer.update(net, gradient)
            return value

        return net, optimizer, update

    def train() -> Result:
        feats, capacity = feats_of(n, mx.float16), ms.bucket(n, STEPS)
        eager, _, plain = trainer(n, None)
        net, optimizer, update = trainer(capacity, levels)
        state = [net.state, optimizer.state]
        step = ms.compile(update, state, state, bounds=box)

        def run() -> Any:
            value = step(padded(on_device, feats, capacity, batch_size))
            return value, net.parameters()

        losses = []
        for _ in range(5):
            wanted, got = plain(ms.SparseTensor(on_device, feats, batch_size=batch_size)), run()
            wait([eager.parameters(), got])
            losses.append((wanted.item(), got[0].item()))
        found = {"error": max(abs(a - b) / abs(a) for a, b in losses), "loss": round(losses[-1][1], 4)}
        return {**measure(run, wait, 5), **found, "compilations": step.compilations}

    def stream(compiled: bool) -> Result:
        net = network(mx.float16)
        net.eval()
        parts = [(mx.array(part) + 0, feats_of(len(part), mx.float16)) for part in frames(coords, FRAMES)]
        mx.eval(parts)
        step = ms.compile(net, check="late", bounds=box)

        def one(part: tuple[mx.array, mx.array]) -> mx.array:
            if compiled:
                return step(padded(*part, ms.bucket(n, STEPS), batch_size), capacity=levels).feats
            return net(ms.SparseTensor(*part, batch_size=batch_size)).feats

        wait(one(parts[0]))
        equal = 0
        for part in parts if compiled else ():
            wanted = net(ms.SparseTensor(*part, batch_size=batch_size)).feats
            equal += mx.array_equal(one(part)[: len(wanted)], wanted).item()
        mx.clear_cache()
        mx.reset_peak_memory()
        start = time.perf_counter()
        for part in parts:
            wait(one(part))
        each = 1e3 * (time.perf_counter() - start) / len(parts)
        start = time.perf_counter()
        for part in parts:
            mx.async_eval(one(part))
        mx.synchronize()
        chain = 1e3 * (time.perf_counter() - start) / len(parts)
        step.check()
        found = {"sync": round(each, 4), "chain": round(chain, 4)}
        return {**found, "compilations": step.compilations, "equal": equal} if compiled else found

    yield "fp16 MinkUNet inference, maps and all, compiled", lambda: infer("step")
    yield "fp16 MinkUNet inference, maps and all, compiled, late check", lambda: infer("late")
    yield "fp16 MinkUNet training step, compiled", train
    yield f"fp16 MinkUNet, {FRAMES} frames, eager", lambda: stream(False)
    yield f"fp16 MinkUNet, {FRAMES} frames, compiled", lambda: stream(True)
