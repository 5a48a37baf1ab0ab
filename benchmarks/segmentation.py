"""Measurements of the main job on real files.

    python benchmarks/segmentation.py files FOLDER [FOLDER_OF_WEIGHTS]    segment every file, count the points
    python benchmarks/segmentation.py ground TILE.laz                     IoU of class 2, and what limits it

The first trains geometry-only weights on a street scene unless it is given some. The second trains on
the tile's classes as they are, and again with class 2 for every last return on the surface of class 2.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import mlx.core as mx
import numpy as np

import mlxsparse
from mlxsparse.cli.main import main as mlxsparse_command
from mlxsparse.io.cloud import PointCloud
from mlxsparse.io.points import read_points
from mlxsparse.tasks import segmentation as task
from mlxsparse.tasks.metrics import iou_per_class, mean_iou
from mlxsparse.tasks.scenes import street_scene, write_scene

VOXEL, EPOCHS, CHANNELS = 1.5, 40, (16, 32, 64)  # feet, for the tile
NEAR = 0.5  # feet between a point and the surface of class 2


def files(folder: Path, weights: Path | None) -> None:
    """A row for each file: what `mlxsparse segment` did, and whether every point is in the output once."""
    with tempfile.TemporaryDirectory() as scratch:
        if weights is None:
            weights = Path(scratch) / "weights"
            write_scene(street_scene(0), Path(scratch) / "scene.laz")
            options = ["--epochs", "3", "--fields", "none", "--voxel-size", "0.2", "--val-split", "0"]
            train = ["train", str(Path(scratch) / "scene.laz"), "-o", str(weights), *options]
            assert mlxsparse_command(train) == 0
        print("| file | points | status | seconds | every point once |\n|---|---|---|---|---|")
        for path in sorted(p for p in folder.iterdir() if p.is_file()):
            out = Path(scratch) / f"out{path.suffix if path.suffix != '.bin' else '.label'}"
            start = time.perf_counter()
            status = mlxsparse_command(["segment", str(path), "--weights", str(weights), "-o", str(out)])
            seconds = time.perf_counter() - start
            once, count = "-", "-"
            if status == 0:
                before, after = read_points(path), read_points(out)
                once = "yes" if np.array_equal(before.points, after.points, equal_nan=True) else "NO"
                count = str(len(before))
                out.unlink()
            print(f"| {path.name} | {count} | {status} | {seconds:.1f} | {once} |", flush=True)


def ground(tile: Path) -> None:
    """IoU of class 2 on the last fifth of a LAS tile, of the network and of the majority class."""
    cloud = read_points(tile)
    for name, labels in (("as they are", None), ("ground completed", completed(cloud))):
        if labels is not None:
            cloud.fields["classification"] = labels
        settings = task.choose_settings([cloud], VOXEL, use_relief=True)
        training, held_out = task.split(cloud, settings, 0.2)
        model = task.new_model(settings, CHANNELS, 1)
        start = time.perf_counter()
        task.train(model, settings, [training], task.Plan(EPOCHS))
        counts = np.bincount(training.labels, minlength=len(settings.classes))
        result = task.score(model, settings, [held_out], int(counts.argmax()))
        at = settings.classes.index(2)
        print(
            f"classes {name}: share of class 2 {np.mean(cloud.fields['classification'] == 2):.3f}; "
            f"IoU of class 2 {iou_per_class(result.matrix)[at]:.3f} "
            f"(majority {iou_per_class(result.majority_matrix)[at]:.3f}), "
            f"mean {mean_iou(result.matrix):.3f} (majority {mean_iou(result.majority_matrix):.3f}); "
            f"{time.perf_counter() - start:.0f} s of training",
            flush=True,
        )


def completed(cloud: PointCloud) -> np.ndarray:
    """The classes, with 2 for each last return within NEAR of the mean height of the four class 2 points
    nearest to it as seen from above."""
    labels = np.array(cloud.fields["classification"])
    last = np.asarray(cloud.fields["return_number"] == cloud.fields["number_of_returns"])
    flat = cloud.points - cloud.points.min(axis=0)
    known = flat[labels == 2]
    cell = 0.25
    voxels = mlxsparse.voxelize(known * (1, 1, 0), known[:, 2:].astype(np.float32), cell, origin=(0, 0, 0))
    rows, _ = mlxsparse.ops.knn(voxels.tensor, flat * (1, 1, 0) / cell - (0.5, 0.5, 0), 4)
    surface = np.asarray(voxels.tensor.feats)[np.asarray(rows), 0].mean(axis=1)
    labels[last & (np.abs(flat[:, 2] - surface) < NEAR)] = 2
    return labels


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    if len(sys.argv) in (3, 4) and sys.argv[1] == "files":
        files(Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) == 4 else None)
    elif len(sys.argv) == 3 and sys.argv[1] == "ground":
        ground(Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
