"""What pruning brings and costs: a MinkUNet on the demo's street scenes, pruned, fine-tuned and timed.

    python -m benchmarks.pruning --channels 32,64,128,128 --cases channels:.5:8,channels:.75:16,offsets:.5:12

A case is structure:sparsity:epochs of fine-tuning; with 0 epochs only times are of interest. Times are
medians of forwards taken in turn in one process, kernel maps made before; then the processor's time with one
host thread, which other programs disturb less, and with kernel maps made each time. `--weights DIR` keeps the
trained network there and uses it the next time.

    python -m benchmarks.pruning --no-score --device gpu --dtype float16 --work WORK.npz

times random weights only: on each array of coordinates in WORK.npz (`gpu.py` says what it holds), or on a
street scene. Milliseconds are medians of synchronised forwards in turn and, in brackets, means of a chain.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxsparse import SparseTensor, nn
from mlxsparse.blocks import Pruner, compress
from mlxsparse.cli.common import channels
from mlxsparse.cli.demo import KINDS
from mlxsparse.cli.prune import parts_of
from mlxsparse.models.minkunet import MinkUNet, ModelArgs
from mlxsparse.ops import conv
from mlxsparse.tasks import pruning
from mlxsparse.tasks import segmentation as task
from mlxsparse.tasks.scenes import cloud_of, street_scene

IN_CHANNELS = 4  # of random networks


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """Pairs, multiply-adds and processor seconds of the convolutions inside the block."""
    total = {"pairs": 0.0, "work": 0.0, "seconds": 0.0}
    real = conv.convolve

    def count(x: Any, w: Any, bias: Any, pairs: Any, rows: int, groups: int) -> mx.array:
        total["pairs"] += len(pairs.in_rank)
        total["work"] += len(pairs.in_rank) * w.shape[0] * w.shape[-1]
        mx.eval(x)
        start = time.process_time()
        y = real(x, w, bias, pairs, rows, groups)
        mx.eval(y)
        total["seconds"] += time.process_time() - start
        return y

    conv.convolve = count
    try:
        yield total
    finally:
        conv.convolve = real


def convolutions(models: list[Any], x: SparseTensor, repeats: int) -> list[dict[str, float]]:
    """Pairs and multiply-adds of a forward of each model; median and least processor ms in convolutions."""
    found: list[dict[str, float]] = [{} for _ in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(repeats):
        for i, model in enumerate(models):
            with counted() as total:
                mx.eval(model(x).feats)
            times[i].append(total["seconds"])
            found[i] = total
    return [
        {**f, "ms": 1e3 * float(np.median(t)), "least ms": 1e3 * min(t)} for f, t in zip(found, times)
    ]


def in_turn(models: dict[str, Any], x: SparseTensor, calls: int) -> dict[str, tuple[float, float]]:
    """ms of a forward: (median of synchronised ones, least mean of a chain of them), models in turn."""

    def run(model: Any, n: int) -> float:
        mx.synchronize()
        start = time.perf_counter()
        made = []
        for _ in range(n):
            made.append(model(x).feats)
            mx.async_eval(made[-1])
        mx.eval(made)
        mx.synchronize()
        return 1e3 * (time.perf_counter() - start) / n

    turns = [[run(m, 1) for m in models.values()] for _ in range(calls + 2)][min(2, calls) :]
    chains = [[run(m, calls) for m in models.values()] for _ in range(3 if calls > 1 else 1)]
    found = zip(np.median(turns, axis=0).tolist(), np.min(chains, axis=0).tolist())
    return dict(zip(models, found))


def variants(options: argparse.Namespace) -> dict[str, Any]:
    """Random networks, dense, zeroed, compressed, and with folded batch norms; made on the CPU device."""
    with mx.stream(mx.cpu):
        mx.random.seed(0)
        dense = MinkUNet(ModelArgs(IN_CHANNELS, 6, options.channels))
        found: dict[str, Any] = {"dense": dense}
        for case in options.cases.split(","):
            structure, sparsity = case.split(":")[:2]
            zeroed = pruning.copy_of(dense)
            Pruner(structure, float(sparsity)).attach(zeroed)
            found.setdefault("zeroed, not compressed", zeroed)
            found[f"{structure} {sparsity}"] = compress(zeroed, tolerance=1e-3)
        folded = {k: nn.fold_batch_norms(m) for k, m in found.items() if not k.startswith("zeroed")}
        found.update({f"{k}, folded": m for k, m in folded.items()})
        for model in found.values():
            model.set_dtype(getattr(mx, options.dtype))
            mx.eval(model.eval().parameters())
    return found


def clouds(work: str | None) -> Iterator[tuple[str, SparseTensor]]:
    """Named tensors with random features."""
    if work is None:
        points = cloud_of(street_scene(0)).points
        found = task.to_voxels(points, np.ones((len(points), IN_CHANNELS), np.float32), 0.2).tensor
        yield "street", found.replace(mx.random.normal((found.capacity, IN_CHANNELS)))
        return
    with np.load(work) as arrays:
        for name in arrays:
            coords = arrays[name]
            yield name, SparseTensor(mx.array(coords), mx.random.normal((len(coords), IN_CHANNELS)))


def times_only(options: argparse.Namespace) -> None:
    models = variants(options)
    for name, x in clouds(options.work):
        x = x.astype(getattr(mx, options.dtype))
        times = in_turn(models, x, options.repeats)
        where = f"{name}: {x.num_active} voxels, {mx.default_device()}"
        print(f"\nMinkUNet {tuple(options.channels)}, {options.dtype}, {where}")
        for label, (one, chained) in times.items():
            first = times["dense, folded" if label.endswith("folded") else "dense"]
            ratios = f"{first[0] / one:5.2f}x ({first[1] / chained:.2f}x)"
            print(f"{label:26} {one:8.2f} ({chained:.2f}) ms  {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=channels, default=(32, 64, 128, 128))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--scenes", type=int, default=16)
    parser.add_argument("--weights")
    parser.add_argument("--cases", default="channels:.5:8,channels:.75:16,offsets:.5:12")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="of the fine-tuning")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--no-score", action="store_true", help="random weights, times only")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--work", help="npz of coordinates (n, 4) int32 to time on, with --no-score")
    options = parser.parse_args()
    options.clouds, options.kind, options.held_out = [], "street", 4
    mx.set_default_device(mx.gpu if options.device == "gpu" else mx.cpu)
    if options.no_score:
        times_only(options)
        return
    scenes = [cloud_of(street_scene(seed)) for seed in range(options.scenes)]
    settings = task.choose_settings(scenes, KINDS["street"][1], use_relief=True)
    folder = Path(options.weights or tempfile.mkdtemp())
    if (folder / "config.json").exists():
        model, settings = task.load(folder)
        training, held_out = parts_of(options, settings)
    else:
        training, held_out = parts_of(options, settings)
        model = task.new_model(settings, options.channels, 1)
        pruning.tune(model, settings, training, options.epochs, 3e-3, 0, None)
        task.save(model, settings, folder)
    part = held_out[0]
    x = task.to_voxels(part.points, part.inputs, settings.voxel_size).tensor
    print(f"MinkUNet {tuple(model.args.channels)}, {x.num_active} voxels, {mx.default_device()}")
    for case in options.cases.split(","):
        structure, sparsity, epochs = case.split(":")
        dense = pruning.copy_of(model)
        result = pruning.prune(
            pruning.copy_of(model), settings, training, held_out,
            structure=structure, sparsity=float(sparsity), epochs=int(epochs), seed=options.seed,
        )  # fmt: skip
        print(f"\n{structure}, sparsity {sparsity}, {epochs} epochs of fine-tuning")
        print(pruning.table(result.rows))
        folded = [nn.fold_batch_norms(m) for m in (dense, result.model)]
        before, after = pruning.forward_ms(folded, x, options.repeats)
        print(f"both with folded batch norms: {before:.1f} ms, {after:.1f} ms, {before / after:.2f}x")
        if options.device == "gpu":
            continue
        os.environ["MLXSPARSE_THREADS"] = "1"
        times = {}
        for maps in (False, True):
            print(f"processor's time of one thread, kernel maps made {'each time' if maps else 'before'}:")
            for name, pair in (("", (dense, result.model)), (" folded", folded)):
                a, b = pruning.forward_ms(pair, x, options.repeats, maps=maps, clock=time.process_time)
                times[maps, name] = b / a
                print(f"  dense{name} {a:.1f} ms, compressed {b:.1f} ms: {a / b:.2f}x")
        whole, part_of = convolutions([dense.eval(), result.model.eval()], x, options.repeats)
        del os.environ["MLXSPARSE_THREADS"]
        share = {name: round(part_of[name] / whole[name], 3) for name in ("pairs", "work", "ms", "least ms")}
        print(f"convolutions alone, compressed / dense: {json.dumps(share)}")
        over = [times[False, ""], share["ms"]]
        whole_over, part_over = (value / share["pairs"] for value in over)
        print(f"time over pairs kept: forward {whole_over:.2f}, convolutions {part_over:.2f}", flush=True)


if __name__ == "__main__":
    main()
