"""Label a point cloud with trained weights.

Writes the input file again with the class of each point replaced (LAS, LAZ) or added as a field "label"
(PCD, PLY, npz, text); points, scales and all other fields stay as they are. Any cloud can also be
written as .ply or .npy, or its classes alone as .label, which is what KITTI's and nuScenes' .bin need. Large
clouds are labelled in overlapping crops.
"""

from __future__ import annotations

import argparse

import numpy as np

from ..io.points import check_output, read_points, write_labels
from ..tasks import segmentation as task
from .common import (
    check_label_extension,
    check_named,
    check_other,
    check_output_file,
    positive,
    progress_bar,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse segment`."""
    parser.add_argument(
        "cloud", metavar="CLOUD", help="point cloud of any format that `mlxsparse info` reads"
    )
    parser.add_argument(
        "--weights", required=True, metavar="DIR", help="directory that `mlxsparse train` wrote"
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="file to write")
    parser.add_argument(
        "--votes", type=positive, default=1, metavar="N",
        help="label N times, each time turned by another angle, and add up (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--crop-points", type=positive, default=task.CROP_POINTS, metavar="N",
        help="larger clouds are labelled in crops of about N points (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=sorted(task.PRECISIONS), default="float32",
        help="type that the network computes in (default: %(default)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Predict and write; the output appears whole or not at all."""
    check_output_file(options.output, options.cloud)
    check_label_extension(options.output)
    check_named(options.weights, "--weights")
    model, settings = task.load(options.weights)
    cloud = read_points(options.cloud)
    check_other(options.output, cloud.details.get("labels", ""), "where the cloud's classes are read from")
    # 0 is "never classified" in LAS: the answer for points without a finite position.
    lost = [] if np.isfinite(cloud.points).all() else [0]
    check_output(cloud, [*settings.classes, *lost], options.output)
    inputs = task.inputs_of(cloud, settings)
    with progress_bar("segment", "crop") as progress:
        answer = task.predict(
            model, settings, cloud.points, inputs, votes=options.votes, crop_points=options.crop_points,
            precision=options.precision, progress=progress,
        )  # fmt: skip
    labels = np.where(answer < 0, 0, np.asarray(settings.classes)[np.maximum(answer, 0)])
    write_labels(cloud, labels, options.output)
    for index in range(len(settings.classes)):
        count = int(np.sum(answer == index))
        share = count / len(labels) if len(labels) else 0.0
        print(f"{settings.name(index):>12}: {count:>9} points ({100 * share:.1f}%)")
    if np.any(answer < 0):
        print(f"{'no position':>12}: {int(np.sum(answer < 0)):>9} points, labelled 0")
    print(f"wrote {options.output}")
    return 0
