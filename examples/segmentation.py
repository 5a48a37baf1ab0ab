"""A class for every point: a MinkUNet on street scenes, written out as a training loop.

    python examples/segmentation.py
    python examples/segmentation.py --scenes 1 --epochs 2 --page street.html

`mlxsparse train` and `segment` do this for files; here is what happens inside.
"""

import argparse
from pathlib import Path

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np

import mlxsparse as ms
from mlxsparse.models import MinkUNet
from mlxsparse.models.minkunet import ModelArgs
from mlxsparse.tasks.metrics import confusion_matrix, format_table, mean_iou
from mlxsparse.tasks.scenes import STREET_CLASSES, Scene, street_scene
from mlxsparse.viz.page import cloud_page


def voxels_of(scene: Scene) -> ms.Voxels:
    """Voxels of 20 cm with two features: the mean intensity, and the mean height above the ground."""
    height = scene.points[:, 2:] / 5
    feats = np.concatenate([scene.intensity[:, None], height], axis=1).astype(np.float32)
    return ms.voxelize(scene.points, feats, 0.2)


def main(arguments: list[str] | None = None) -> float:
    """Train, and print the score on a scene that was not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=6, help="training scenes")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rings", type=int, default=64, help="of the simulated LiDAR")
    parser.add_argument("--page", metavar="FILE", help="write the labelled scene as a page to look at")
    options = parser.parse_args(arguments)
    if options.page and not Path(options.page).absolute().parent.is_dir():
        parser.error(f"--page {options.page}: there is no such directory")
    if min(options.scenes, options.epochs, options.rings) < 1:
        parser.error("--scenes, --epochs and --rings take at least 1")
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)

    scenes = [street_scene(seed, rings=options.rings) for seed in range(options.scenes + 1)]
    training, held_out = scenes[:-1], scenes[-1]
    # Voxelized once: voxels keep their kernel maps from epoch to epoch.
    data = [(voxels_of(scene), mx.array(scene.labels)) for scene in training]
    classes = len(STREET_CLASSES)
    share = np.bincount(np.concatenate([scene.labels for scene in training]), minlength=classes)
    weight = mx.array((1 / np.sqrt(share.clip(1))).astype(np.float32))  # poles and people are few

    model = MinkUNet(ModelArgs(in_channels=2, num_classes=classes, channels=(16, 32, 64)))
    optimizer = optim.AdamW(learning_rate=optim.cosine_decay(8e-3, options.epochs * len(data)))

    def loss(model: MinkUNet, voxels: ms.Voxels, labels: mx.array) -> mx.array:
        logits = voxels.devoxelize(feats=model(voxels.tensor))  # a row for each point again
        losses = mlx.nn.losses.cross_entropy(logits, labels, weights=weight[labels])
        return losses.sum() / weight[labels].sum()

    step = ms.staged(mlx.nn.value_and_grad(model, loss))
    for epoch in range(options.epochs):
        values = []
        for voxels, labels in data:
            value, gradients = step(model, voxels, labels)
            optimizer.update(model, gradients)
            values.append(value.item())
        print(f"epoch {epoch}  loss {np.mean(values):.3f}")

    model.eval()
    voxels = voxels_of(held_out)
    answer = np.array(mx.argmax(voxels.devoxelize(feats=model(voxels.tensor)), axis=1)).astype(np.int32)
    matrix = confusion_matrix(held_out.labels, answer, classes)
    print(format_table(matrix, STREET_CLASSES))
    if options.page:
        names = dict(enumerate(STREET_CLASSES))
        fields = {"label": answer, "wrong": (answer != held_out.labels).astype(np.uint8)}
        html = cloud_page(held_out.points, fields, title="held-out street", class_names=names)
        Path(options.page).write_text(html, encoding="utf-8")
        print(f"wrote {options.page}")
    return mean_iou(matrix)


if __name__ == "__main__":
    main()
