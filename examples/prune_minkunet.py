"""Prune a MinkUNet to half of its channels, train it on, compress it, and time it.

    python examples/prune_minkunet.py

The network learns to tell the floor from boxes in rooms that are made here. Pruned channels are masked in the
forward, so training goes on as before; `compress` then cuts them out of convolutions, norms and readers.
"""

import argparse
import time

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np

import mlxsparse as ms
from mlxsparse.blocks import Pruner, compress, cubic
from mlxsparse.models.minkunet import MinkUNet, ModelArgs


def room(rng: np.random.Generator) -> tuple[ms.Voxels, mx.array]:
    """A floor with boxes on it: voxels, and the class of each voxel (0 floor, 1 box)."""
    floor = np.column_stack([rng.uniform(0, 8, (4000, 2)), rng.normal(0, 0.02, 4000)])
    boxes = [rng.uniform([x, y, 0.1], [x + 1, y + 1, 1], (500, 3)) for x, y in rng.uniform(0, 7, (6, 2))]
    points = np.concatenate([floor, *boxes])
    feats = np.column_stack([np.ones(len(points)), rng.normal(size=len(points))]).astype(np.float32)
    voxels = ms.voxelize(points, feats, 0.2)
    height = voxels.tensor.coords[:, 3]
    return voxels, (height > height.min() + 1).astype(mx.int32)


def accuracy(model: MinkUNet, voxels: ms.Voxels, labels: mx.array) -> float:
    model.eval()
    return float((mx.argmax(model(voxels.tensor).feats, axis=1) == labels).mean().item())


def forward_ms(model: MinkUNet, x: ms.SparseTensor) -> float:
    times = []
    for _ in range(9):
        start = time.perf_counter()
        mx.eval(model(x).feats)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    if steps < 1:
        parser.error("--steps takes at least 1")
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    rng = np.random.default_rng(0)
    rooms = [room(rng) for _ in range(8)]
    unseen = room(rng)
    model = MinkUNet(ModelArgs(2, 2, (32, 64, 64)))
    optimizer = optim.AdamW(3e-3)

    def loss_of(model: MinkUNet, voxels: ms.Voxels, labels: mx.array) -> mx.array:
        return mlx.nn.losses.cross_entropy(model(voxels.tensor).feats, labels, reduction="mean")

    def train(model: MinkUNet, count: int, pruner: Pruner | None = None) -> None:
        step = ms.staged(mlx.nn.value_and_grad(model, loss_of))
        model.train()
        for i in range(count):
            _, gradients = step(model, *rooms[i % len(rooms)])
            optimizer.update(model, gradients)
            mx.eval(model.parameters(), optimizer.state)
            if pruner is not None and i % 5 == 4:
                pruner.update(i + 1)  # a few more channels go

    train(model, steps)
    before = accuracy(model, *unseen)
    ms_before = forward_ms(model, unseen[0].tensor)

    pruner = Pruner("channels", cubic(0.5, steps // 2)).attach(model)
    train(model, steps, pruner)
    print(pruner.report())
    ms_zeroed = forward_ms(model.eval(), unseen[0].tensor)

    small = compress(model, optimizer=optimizer)  # the optimizer can go on with the smaller model
    train(small, 4)
    after = accuracy(small, *unseen)
    ms_after = forward_ms(small, unseen[0].tensor)
    print(f"accuracy on an unseen room: {100 * before:.1f}% before, {100 * after:.1f}% after")
    print(f"forward: {ms_before:.1f} ms before, {ms_zeroed:.1f} ms zeroed, {ms_after:.1f} ms compressed")


if __name__ == "__main__":
    main()
