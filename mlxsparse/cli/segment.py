"""Label a point cloud with trained weights.

Writes the input file again with the class of each point replaced (LAS, LAZ) or added as a field
"label" (PCD); points, scales and all other fields stay as they are.
"""

from __future__ import annotations

import argparse

import numpy as np

from ..io.points import read_points, write_labels
from ..tasks import segmentation as task
from .common import check_output_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse segment`."""
    parser.add_argument("cloud", metavar="CLOUD", help="LAS, LAZ or PCD file")
    parser.add_argument(
        "--weights", required=True, metavar="DIR", help="directory that `mlxsparse train` wrote"
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="file to write")


def run(options: argparse.Namespace) -> int:
    """Predict and write; the output appears whole or not at all."""
    check_output_file(options.output)
    model, settings = task.load(options.weights)
    cloud = read_points(options.cloud)
    answer = task.predict(model, settings, cloud.points, task.inputs_of(cloud, settings))
    # 0 is "never classified" in LAS: the answer for points without a finite position.
    labels = np.where(answer < 0, 0, np.asarray(settings.classes)[np.maximum(answer, 0)])
    write_labels(cloud, labels, options.output)
    for number, name in [(c, f"class {c}") for c in settings.classes]:
        share = float(np.mean(labels == number)) if len(labels) else 0.0
        print(f"{name:>12}: {int(np.sum(labels == number)):>9} points ({100 * share:.1f}%)")
    if np.any(answer < 0):
        print(f"{'no position':>12}: {int(np.sum(answer < 0)):>9} points, labelled 0")
    print(f"wrote {options.output}")
    return 0
