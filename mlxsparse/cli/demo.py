"""Make street scenes, train on them, and label one that was not seen.

Writes to the output directory: the scenes as LAZ files, the weights, report.json, and
labelled.laz, the last scene with the predicted classes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from ..io.points import read_points, write_labels
from ..tasks import segmentation as task
from ..tasks.scenes import street_scene, write_scene
from .common import check_directory
from .train import fit, positive

VOXEL_SIZE = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse demo`."""
    parser.add_argument(
        "-o", "--output", default="out", metavar="DIR", help="directory (default: %(default)s)"
    )
    parser.add_argument("--scenes", type=positive, default=8, help="training scenes (default: %(default)s)")
    parser.add_argument("--epochs", type=positive, default=12, help="passes over them (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """The whole main job on data of its own making."""
    check_directory(options.output)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    scenes = [street_scene(seed) for seed in range(options.scenes + 1)]
    paths = [folder / f"scene{seed}.laz" for seed in range(len(scenes))]
    for scene, path in zip(scenes, paths):
        write_scene(scene, path)
    points = sum(len(scene.points) for scene in scenes)
    print(f"{len(scenes)} scenes, {points} points, {time.perf_counter() - start:.1f} s")

    clouds = [read_points(path) for path in paths]
    settings = task.choose_settings(clouds, VOXEL_SIZE)
    parts = [task.split(cloud, settings, 0)[0] for cloud in clouds]
    names = [scenes[0].class_names[c] for c in settings.classes]
    fit(parts[:-1], parts[-1:], settings, options.output, epochs=options.epochs, names=names)

    model, settings = task.load(folder)
    answer = task.predict(model, settings, clouds[-1].points, task.inputs_of(clouds[-1], settings))
    write_labels(clouds[-1], np.asarray(settings.classes)[answer], folder / "labelled.laz")
    print(f"wrote {folder / 'labelled.laz'}; {time.perf_counter() - start:.0f} s in all")
    return 0
