"""Attention instead of convolution: a small voxel transformer beside a MinkUNet with as many parameters.

    python examples/voxel_transformer.py
    python examples/voxel_transformer.py --scenes 2 --epochs 2 --rings 24

Both label the points of street scenes; the same scenes, the same steps. Prints scores and seconds.
"""

import argparse
import time

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse.models import MinkUNet, VoxelTransformer, minkunet, voxel_transformer
from mlxsparse.tasks.metrics import confusion_matrix, mean_iou
from mlxsparse.tasks.scenes import STREET_CLASSES, Scene, street_scene

CLASSES = len(STREET_CLASSES)


def voxels_of(scene: Scene) -> ms.Voxels:
    """Voxels of 20 cm with the mean intensity and the mean height above the ground."""
    height = scene.points[:, 2:] / 5
    feats = np.concatenate([scene.intensity[:, None], height], axis=1).astype(np.float32)
    return ms.voxelize(scene.points, feats, 0.2)


def models() -> dict[str, mlx.nn.Module]:
    """Two networks of about 247,000 parameters."""
    attention = voxel_transformer.ModelArgs(2, CLASSES, channels=(16, 32, 48), blocks=2)
    convolution = minkunet.ModelArgs(2, CLASSES, channels=(20, 28, 40))
    return {"VoxelTransformer": VoxelTransformer(attention), "MinkUNet": MinkUNet(convolution)}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Train both, and print what they reach on scenes that they were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=6, help="training scenes")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rings", type=int, default=48, help="of the simulated LiDAR")
    options = parser.parse_args(arguments)
    if min(options.scenes, options.epochs, options.rings) < 1:
        parser.error("--scenes, --epochs and --rings take at least 1")
    mx.set_default_device(mx.cpu)

    scenes = [street_scene(seed, rings=options.rings) for seed in range(options.scenes + 2)]
    training, held_out = scenes[:-2], scenes[-2:]
    # Voxelized once: voxels keep their kernel maps and windows from epoch to epoch, and from model to model.
    data = [(voxels_of(scene), mx.array(scene.labels)) for scene in training]
    tests = [(voxels_of(scene), scene.labels) for scene in held_out]
    share = np.bincount(np.concatenate([scene.labels for scene in training]), minlength=CLASSES)
    weight = mx.array((1 / np.sqrt(share.clip(1))).astype(np.float32))

    def loss(model: mlx.nn.Module, voxels: ms.Voxels, labels: mx.array) -> mx.array:
        logits = voxels.devoxelize(feats=model(voxels.tensor))
        losses = mlx.nn.losses.cross_entropy(logits, labels, weights=weight[labels])
        return losses.sum() / weight[labels].sum()

    scores = {}
    mx.random.seed(0)
    for name, model in models().items():
        size = sum(a.size for _, a in tree_flatten(model.trainable_parameters()))
        steps = options.epochs * len(data)
        rate = optim.join_schedules(
            [optim.linear_schedule(1e-4, 4e-3, 5), optim.cosine_decay(4e-3, max(1, steps - 5))], [5]
        )
        optimizer, start = optim.AdamW(learning_rate=rate), time.perf_counter()
        step = ms.staged(mlx.nn.value_and_grad(model, loss))
        for epoch in range(options.epochs):
            values = []
            for voxels, labels in data:
                value, gradients = step(model, voxels, labels)
                gradients, _ = optim.clip_grad_norm(gradients, 5.0)
                optimizer.update(model, gradients)
                values.append(value.item())
            print(f"{name} epoch {epoch}  loss {np.mean(values):.3f}", flush=True)
        seconds = time.perf_counter() - start
        model.eval()
        matrix = np.zeros((CLASSES, CLASSES), np.int64)
        for voxels, labels in tests:
            answer = mx.argmax(voxels.devoxelize(feats=model(voxels.tensor)), axis=1)
            matrix += confusion_matrix(labels, np.array(answer).astype(np.int32), CLASSES)
        scores[name] = mean_iou(matrix)
        print(f"{name}: {size} parameters, {seconds:.0f} s, mean IoU on new scenes {100 * scores[name]:.1f}%")
    return scores


if __name__ == "__main__":
    main()
