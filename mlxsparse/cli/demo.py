"""Make labelled scenes, train a small U-Net on them, and score it on scenes that it has not seen.

Writes to the output directory: scene.png (a held-out scene: input, truth, prediction), training.png (loss
and score by epoch), truth.ply and prediction.ply (that scene, coloured by class), scene.laz (the scene
itself, to try `mlxsparse segment` on), the weights, and report.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..io.cloud import PointCloud, atomic_write
from ..io.ply import write_ply
from ..tasks import baseline
from ..tasks import segmentation as task
from ..tasks.metrics import iou_per_class, mean_iou
from ..tasks.scenes import Scene, cloud_of, indoor_scene, street_scene, write_scene
from ..viz import pictures
from ..viz.render import Camera, along
from .common import check_directory, make_directory, need_library, positive, write_json
from .train import fit

#: Generator, voxel size, cell of the baseline's normals (metres), and how to look at a scene.
KINDS: dict[str, tuple[Any, float, float, Camera]] = {
    "street": (street_scene, 0.2, 0.4, Camera((0, 0, 0.5), 40, 28, 32, height=600, point=0.13)),
    "indoor": (indoor_scene, 0.06, 0.12, Camera((0, 0, 0.4), 15, 30, 58, height=700, point=0.04)),
}
HELD_OUT_SEEDS = 1000  # the first one; training scenes count from 0
CHANNELS = (16, 32, 64, 64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse demo`."""
    parser.add_argument(
        "-o", "--output", default="out", metavar="DIR", help="directory (default: %(default)s)"
    )
    parser.add_argument("--kind", choices=sorted(KINDS), default="street", help="(default: %(default)s)")
    parser.add_argument("--scenes", type=positive, default=16, help="training scenes (default: %(default)s)")
    parser.add_argument("--held-out", type=positive, default=4, help="scenes to score (default: %(default)s)")
    parser.add_argument("--epochs", type=positive, default=14, help="passes over them (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """The whole main job on data of its own making."""
    check_directory(options.output)
    need_library("matplotlib", "the demo's pictures")
    need_library("plyfile", "the demo's PLY files")
    start = time.perf_counter()
    make, voxel_size, cell, camera = KINDS[options.kind]
    seeds = [*range(options.scenes), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + options.held_out)]
    scenes: list[Scene] = [make(seed) for seed in seeds]
    names = scenes[0].class_names
    clouds = [cloud_of(scene) for scene in scenes]
    known, unseen = clouds[: options.scenes], clouds[options.scenes :]
    print(
        f"{len(known)} training and {len(unseen)} held-out {options.kind} scenes, "
        f"{sum(map(len, clouds))} points, {time.perf_counter() - start:.1f} s"
    )
    level = logistic(known, unseen, len(names), cell)

    settings = task.choose_settings(known, voxel_size, use_relief=True, names=names)
    parts = [task.split(cloud, settings, 0)[0] for cloud in clouds]
    training, held_out = parts[: options.scenes], parts[options.scenes :]
    plan = task.Plan(options.epochs)
    report = fit(training, held_out, settings, options.output, plan, channels=CHANNELS, watch=held_out[0])
    score = report["score"]
    base = mean_iou(level)
    folder = make_directory(options.output)
    model, settings = task.load(folder)
    answer = task.predict(model, settings, unseen[0].points, task.inputs_of(unseen[0], settings))
    write_pictures(folder, scenes[options.scenes], answer, report, base, camera)
    write_scene(scenes[options.scenes], folder / "scene.laz")
    seconds = time.perf_counter() - start
    summary = {
        "mean_iou": score["mean_iou"],
        "iou": dict(zip(names, score["iou"])),
        "baseline_mean_iou": base,
        "baseline_iou": dict(zip(names, iou_per_class(level).tolist())),
        "majority_mean_iou": score["majority_mean_iou"],
        "seconds": seconds,
        "training_seconds": report.pop("seconds"),
        "kind": options.kind,
        "training_scenes": options.scenes,
        "held_out_scenes": options.held_out,
    }
    write_json(folder / "report.json", {**summary, **report})
    print(f"logistic regression on height, normal, intensity: mean IoU {100 * base:.2f}")
    print(
        f"wrote {folder}: scene.png, training.png, scene.laz, truth.ply, prediction.ply, weights, "
        f"report.json; {seconds:.0f} s in all"
    )
    return 0


def logistic(known: list[PointCloud], unseen: list[PointCloud], classes: int, cell: float) -> np.ndarray:
    """Confusion matrix of the baseline on the held-out clouds."""
    tables = [
        (
            baseline.features(cloud.points, cloud.fields["intensity"] / 65535, cell),
            cloud.fields["classification"].astype(np.int64),
        )
        for cloud in known + unseen
    ]
    return baseline.fit_and_score(tables[: len(known)], tables[len(known) :], classes)


def write_pictures(
    folder: Path, scene: Scene, answer: np.ndarray, report: dict[str, Any], base: float, camera: Camera
) -> None:
    """scene.png, training.png, truth.ply, prediction.ply."""
    score = 100 * report["score"]["mean_iou"]
    colours = {"truth": scene.labels, "prediction": answer}
    panels = [("input: intensity", pictures.value_colours(scene.intensity))]
    panels += [(name, pictures.class_colours(labels)) for name, labels in colours.items()]
    with atomic_write(folder / "scene.png") as stream:
        title = f"a scene that was not trained on (mean IoU of all such scenes: {score:.0f}%)"
        view = along(scene.points, camera)
        pictures.draw_segmentation(stream, scene.points, panels, scene.class_names, view, title)
    with atomic_write(folder / "training.png") as stream:
        pictures.draw_training(stream, report["losses"], report.get("curve", ()), base)
    for name, labels in colours.items():
        red, green, blue = pictures.class_colours(labels).T
        fields = {"red": red, "green": green, "blue": blue, "intensity": scene.intensity,
                  "label": labels.astype(np.int32)}  # fmt: skip
        write_ply(folder / f"{name}.ply", scene.points, fields)
