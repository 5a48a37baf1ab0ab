"""Which shape is it? A small classifier of point clouds, with a batch of clouds in one sparse tensor.

    python examples/classifier.py
    python examples/classifier.py --steps 20 --clouds 64
"""

import argparse

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np

import mlxsparse as ms
from mlxsparse import nn

SHAPES = ("ball", "box", "tube", "ring", "cone")
BATCH = 16  # clouds of a training step


def shape(kind: str, rng: np.random.Generator, n: int = 600) -> np.ndarray:
    """Points (n, 3) on the surface of a shape of random proportions, turned at random."""
    a, u = rng.uniform(0, 2 * np.pi, n), rng.uniform(-1, 1, n)
    if kind == "ball":
        s = np.sqrt(1 - u**2)
        p = np.stack([s * np.cos(a), s * np.sin(a), u], axis=1)
    elif kind == "box":
        p = rng.uniform(-1, 1, (n, 3))
        p[np.arange(n), rng.integers(0, 3, n)] = rng.choice([-1, 1], n)
    elif kind == "tube":
        p = np.stack([np.cos(a), np.sin(a), u], axis=1)
    elif kind == "ring":
        b = rng.uniform(0, 2 * np.pi, n)
        r = 1 - 0.35 * (1 - np.cos(b))
        p = np.stack([r * np.cos(a), r * np.sin(a), 0.35 * np.sin(b)], axis=1)
    else:
        s = np.sqrt((u + 1) / 2)  # as many points on every bit of the cone's surface
        p = np.stack([s * np.cos(a), s * np.sin(a), 1 - 2 * s], axis=1)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return (p * rng.uniform(0.7, 1.3, 3)) @ turn + rng.normal(0, 0.01, (n, 3))


def clouds(count: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Shapes in turn, and their numbers."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % len(SHAPES)
    return [shape(SHAPES[label], rng) for label in labels], labels


def batch_of(points: list[np.ndarray]) -> ms.SparseTensor:
    """One tensor for many clouds: the first coordinate of a site is the number of its cloud."""
    item = np.repeat(np.arange(len(points)), [len(p) for p in points])
    xyz = np.concatenate(points)
    ones = np.ones((len(xyz), 1), np.float32)
    return ms.voxelize(xyz, ones, 0.12, batch=item, batch_size=len(points)).tensor


class Classifier(mlx.nn.Module):
    """Three strided stages, then the mean and the maximum over the sites of each cloud."""

    def __init__(self, classes: int):
        super().__init__()
        stages = []
        for c_in, c_out in ((1, 16), (16, 32), (32, 64)):
            stages += [nn.SubmConv3d(c_in, c_out, bias=False), nn.BatchNorm(c_out), nn.ReLU()]
            stages += [nn.Conv3d(c_out, c_out, 2, stride=2, bias=False), nn.BatchNorm(c_out), nn.ReLU()]
        self.stages = nn.Sequential(*stages)
        self.head = mlx.nn.Linear(2 * 64, classes)  # behind the pooling features are plain arrays

    def __call__(self, x: ms.SparseTensor) -> mx.array:
        x = self.stages(x)
        return self.head(mx.concatenate([ms.ops.global_avg_pool(x), ms.ops.global_max_pool(x)], axis=1))


def main(arguments: list[str] | None = None) -> float:
    """Train, and print the accuracy on clouds that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clouds", type=int, default=320, help="training clouds, at least one batch of 16")
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args(arguments)
    if options.clouds < BATCH or options.steps < 1:
        parser.error(f"--clouds takes at least {BATCH}, --steps at least 1")
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)

    points, labels = clouds(options.clouds, seed=1)
    model, rng = Classifier(len(SHAPES)), np.random.default_rng(2)
    optimizer = optim.AdamW(learning_rate=optim.cosine_decay(5e-3, options.steps))

    def loss(model: Classifier, x: ms.SparseTensor, target: mx.array) -> mx.array:
        return mlx.nn.losses.cross_entropy(model(x), target, reduction="mean")

    step = ms.staged(mlx.nn.value_and_grad(model, loss))
    for i in range(options.steps):
        chosen = rng.choice(len(points), BATCH, replace=False)
        value, gradients = step(model, batch_of([points[k] for k in chosen]), mx.array(labels[chosen]))
        optimizer.update(model, gradients)
        if i % 20 == 0 or i == options.steps - 1:
            print(f"step {i:4d}  loss {value.item():.3f}")

    model.eval()
    points, labels = clouds(100, seed=3)
    answer = np.array(mx.argmax(model(batch_of(points)), axis=1))
    for number, name in enumerate(SHAPES):
        print(f"{name:>5}: {(answer[labels == number] == number).mean():.0%} right")
    accuracy = float((answer == labels).mean())
    print(f"accuracy on new clouds: {accuracy:.0%}")
    return accuracy


if __name__ == "__main__":
    main()
