"""Train a MinkUNet on classified point clouds.

Reads LAS, LAZ and PCD files with a class of each point, holds out the end of each cloud along its
longer horizontal axis, trains on the rest and writes model.safetensors, config.json and
report.json to the output directory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import PointCloudError
from ..io.points import read_points
from ..tasks import segmentation as task
from ..tasks.metrics import format_table
from .common import check_directory, progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse train`."""
    parser.add_argument("clouds", nargs="+", metavar="CLOUD", help="LAS, LAZ or PCD file with classes")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory for the weights")
    parser.add_argument(
        "--epochs", type=positive, default=30, help="passes over the data (default: %(default)s)"
    )
    parser.add_argument(
        "--val-split", type=fraction, default=0.2, metavar="X", help="held-out share (default: %(default)s)"
    )
    parser.add_argument(
        "--voxel-size", type=positive_float, metavar="SIZE",
        help="voxel edge in the cloud's unit (default: half as many voxels as points)",
    )  # fmt: skip
    parser.add_argument(
        "--channels", type=channels, default=(16, 32, 64, 64), help="per level, as 16,32,64,64"
    )
    parser.add_argument(
        "--blocks", type=positive, default=1, help="residual blocks a level (default: %(default)s)"
    )
    parser.add_argument(
        "--lr", type=positive_float, default=3e-3, help="learning rate (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Train, score on the held-out part, write the directory."""
    check_directory(options.output)
    clouds = [read_points(path) for path in options.clouds]
    settings = task.choose_settings(clouds, options.voxel_size)
    parts = [task.split(cloud, settings, options.val_split) for cloud in clouds]
    report = fit(
        [a for a, _ in parts], [b for _, b in parts], settings, options.output,
        epochs=options.epochs, learning_rate=options.lr, channels=options.channels,
        blocks=options.blocks, seed=options.seed,
    )  # fmt: skip
    print(f"weights: {Path(options.output)}  ({report['seconds']:.0f} s of training)")
    return 0


def fit(
    training: Sequence[task.Part],
    held_out: Sequence[task.Part],
    settings: task.Settings,
    directory: str,
    *,
    epochs: int,
    learning_rate: float = 3e-3,
    channels: Sequence[int] = (16, 32, 64, 64),
    blocks: int = 1,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> dict[str, object]:
    """Train with a progress bar, print the held-out table, save weights and report; returns the report."""
    total = sum(len(part.points) for part in training)
    if total == 0:
        raise PointCloudError("the training part has no points; lower --val-split")
    model = task.new_model(settings, channels, blocks, seed)
    start = time.perf_counter()
    with progress_bar("train") as progress:
        losses = task.train(
            model, settings, training,
            epochs=epochs, learning_rate=learning_rate, seed=seed, progress=progress,
        )  # fmt: skip
    seconds = time.perf_counter() - start
    report: dict[str, object] = {
        "classes": settings.classes,
        "voxel_size": settings.voxel_size,
        "training_points": total,
        "held_out_points": sum(len(part.points) for part in held_out),
        "epochs": epochs,
        "losses": losses,
        "seconds": seconds,
    }
    if report["held_out_points"]:
        counts = np.bincount(
            np.concatenate([part.labels for part in training]), minlength=len(settings.classes)
        )
        result = task.score(model, settings, held_out, int(counts.argmax()))
        report["score"] = score = result.report()
        print(format_table(result.matrix, list(names) if names else [f"class {c}" for c in settings.classes]))
        print(
            f"always the majority class: mean IoU {100 * score['majority_mean_iou']:.2f}, "
            f"accuracy {100 * score['majority_accuracy']:.2f}"
        )
    task.save(model, settings, directory)
    # NaN (a class absent from truth and prediction) is null in JSON.
    text = json.dumps(report, indent=2, default=float).replace("NaN", "null")
    (Path(directory) / "report.json").write_text(text + "\n")
    return report


# ---------------------------------------------------------------- option types


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def positive_float(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def fraction(text: str) -> float:
    """A number in [0, 1)."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


def channels(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    try:
        return tuple(positive(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 16,32,64,64") from None
