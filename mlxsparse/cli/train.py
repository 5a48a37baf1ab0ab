"""Train a MinkUNet on classified point clouds.

Reads LAS, LAZ, COPC, PCD, PLY, KITTI .bin with a .label beside it, .npy, .npz or text with a class of each
point, holds out the end of each cloud along its longer horizontal axis, trains on the rest, and writes
model.safetensors, config.json and report.json to the output directory, and after every epoch a
checkpoint from which --resume goes on. Points of a negative class, or of one that --ignore names, have no
label: they are neither trained nor scored, but the network sees them. A cloud may have no labelled point
where another has some.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .. import __version__
from ..errors import PointCloudError
from ..io.cloud import INPUT_FIELDS
from ..io.points import read_points
from ..tasks import segmentation as task
from ..tasks.data import other_classes
from ..tasks.metrics import format_table
from ..tasks.training import CHECKPOINT
from .common import (
    VAL_SPLIT,
    channels,
    check_directory,
    check_once,
    check_seed,
    classes,
    fraction,
    make_directory,
    positive,
    positive_float,
    progress_bar,
    split_clouds,
    words,
    write_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse train`."""
    parser.add_argument("clouds", nargs="+", metavar="CLOUD", help="point cloud with a class of each point")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory for the weights")
    parser.add_argument(
        "--epochs", type=positive, default=30, help="passes over the data (default: %(default)s)"
    )
    parser.add_argument(
        "--val-split", type=fraction, metavar="X", help=f"held-out share (default: {VAL_SPLIT})"
    )
    parser.add_argument(
        "--voxel-size", type=positive_float, metavar="SIZE",
        help="voxel edge in the cloud's unit (default: half as many voxels as different points)",
    )  # fmt: skip
    parser.add_argument(
        "--channels", type=channels, default=(16, 32, 64, 64), help="per level, as 16,32,64,64"
    )
    parser.add_argument(
        "--blocks", type=positive, default=1, help="residual blocks a level (default: %(default)s)"
    )
    parser.add_argument(
        "--fields", type=words, metavar="NAMES",
        help="per-point fields to use, as intensity,red, or none (default: those there of "
        f"{', '.join(INPUT_FIELDS)})",
    )  # fmt: skip
    parser.add_argument("--classes", metavar="FIELD", help="field of the classes (default: by its name)")
    parser.add_argument(
        "--ignore", type=classes, default=(), metavar="NUMBERS",
        help="classes that mean no label, as 0,1 (negative ones always do)",
    )  # fmt: skip
    parser.add_argument(
        "--no-relief", action="store_true", help="do not use heights above the lowest points around a point"
    )
    parser.add_argument("--no-augment", action="store_true", help="do not turn, mirror, scale and thin out")
    parser.add_argument(
        "--lr", type=positive_float, default=3e-3, help="learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--precision", choices=sorted(task.PRECISIONS), default="float32",
        help="type that the network computes in; weights stay float32 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in DIR, if one is there"
    )


def run(options: argparse.Namespace) -> int:
    """Train, score on the held-out part, write the directory."""
    check_directory(options.output)
    check_seed(options.seed)
    check_once(options.clouds)
    clouds = [read_points(path) for path in options.clouds]
    settings = task.choose_settings(
        clouds, options.voxel_size, use_relief=not options.no_relief, fields=options.fields,
        ignore=options.ignore, class_field=options.classes,
    )  # fmt: skip
    if other := other_classes(clouds, settings, options.classes):
        print(f"left out of training and scores: {other}", file=sys.stderr)
    training, held_out = split_clouds(clouds, settings, options.val_split, options.classes)
    print(f"inputs: {', '.join(input_names(settings)) or 'positions alone'}", file=sys.stderr)
    plan = task.Plan(options.epochs, options.lr, options.seed, options.precision, not options.no_augment)
    report = fit(
        training, held_out, settings, options.output, plan,
        channels=options.channels, blocks=options.blocks, resume=options.resume,
    )  # fmt: skip
    print(f"weights: {Path(options.output)}  ({report['seconds']:.0f} s of training)")
    return 0


def input_names(settings: task.Settings) -> list[str]:
    """What the network is given of each point beside its position."""
    return [*settings.fields, *(["relief"] if settings.relief else [])]


def fit(
    training: Sequence[task.Part],
    held_out: Sequence[task.Part],
    settings: task.Settings,
    directory: str,
    plan: task.Plan,
    *,
    channels: Sequence[int],
    blocks: int = 1,
    resume: bool = False,
    watch: task.Part | None = None,
) -> dict[str, Any]:
    """Train with a progress bar, save weights and report, print the held-out table; returns the report.

    watch: a part to score after each epoch, for the curve.
    """
    total = sum(part.labelled for part in training)
    if total == 0:
        raise PointCloudError("the training part has no labelled points; lower --val-split")
    model = task.new_model(settings, channels, blocks, plan.seed)
    folder = make_directory(directory)
    labels = np.concatenate([part.labels for part in training])
    majority = int(np.bincount(labels[labels >= 0]).argmax())
    curve: list[tuple[int, float]] = []

    def after_epoch(epoch: int, loss: float) -> None:
        if watch is not None:
            curve.append((epoch, task.score(model, settings, [watch], majority).report()["mean_iou"]))

    start = time.perf_counter()
    with progress_bar("train") as progress:
        losses = task.train(
            model, settings, training, plan,
            checkpoint=folder / CHECKPOINT, resume=resume, progress=progress, after_epoch=after_epoch,
        )  # fmt: skip
    task.save(model, settings, folder)  # before the score: what was trained is not lost if that fails
    report: dict[str, Any] = {
        "classes": settings.classes,
        "class_names": [settings.name(i) for i in range(len(settings.classes))],
        "voxel_size": settings.voxel_size,
        "inputs": input_names(settings),
        "training_points": total,
        "held_out_points": sum(part.labelled for part in held_out),
        "unlabelled_points": sum(len(part) - part.labelled for part in [*training, *held_out]),
        "epochs": plan.epochs,
        "precision": plan.precision,
        "losses": losses,
        "seconds": time.perf_counter() - start,
        "device": mx.default_device().type.name,
        "version": __version__,
    }
    if curve:
        report["curve"] = curve
    if report["held_out_points"]:
        result = task.score(model, settings, held_out, majority)
        report["score"] = score = result.report()
    write_json(folder / "report.json", report)  # before what is printed: that may fail
    if report["held_out_points"]:
        print(format_table(result.matrix, report["class_names"]))
        print(
            f"always the majority class: mean IoU {100 * score['majority_mean_iou']:.2f}, "
            f"accuracy {100 * score['majority_accuracy']:.2f}"
        )
    return report
