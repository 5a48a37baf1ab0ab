"""Make a trained network smaller and faster: prune, fine-tune, compress.

Reads weights that `mlxsparse train` or `demo` wrote and classified clouds to fine-tune on, of which it holds
out the end as `train` does; without clouds, the demo's street scenes. Writes the smaller network, as the
other commands read it, and report.json, and prints mIoU, parameters, bytes and time before and after.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

from ..io.points import read_points
from ..tasks import pruning
from ..tasks import segmentation as task
from ..tasks.scenes import street_scene, write_scene
from .common import check_directory, progress_bar
from .train import fraction, positive, positive_float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse prune`."""
    parser.add_argument("clouds", nargs="*", metavar="CLOUD", help="cloud with classes, to fine-tune on")
    parser.add_argument("--weights", required=True, metavar="DIR", help="weights directory")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory for the smaller ones")
    parser.add_argument(
        "--structure", choices=("offsets", "channels", "blocks"), default="channels",
        help="what goes: taps of kernels, channels, or blocks of channels (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--sparsity", type=fraction, default=0.5, metavar="X", help="share that goes (default: %(default)s)"
    )
    parser.add_argument(
        "--epochs", type=positive, default=6, help="passes of fine-tuning (default: %(default)s)"
    )
    parser.add_argument(
        "--lr", type=positive_float, default=2e-3, help="learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--val-split", type=fraction, default=0.2, metavar="X", help="held-out share (default: %(default)s)"
    )
    parser.add_argument(
        "--block", type=positive, default=16, help="channels of a block, for blocks (default: %(default)s)"
    )
    parser.add_argument(
        "--exclude", default="", metavar="NAMES", help="layers to leave alone, as stem,decoder.2"
    )
    parser.add_argument(
        "--fold", action="store_true", help="fold batch norms into convolutions: faster, for use only"
    )
    parser.add_argument(
        "--scenes", type=positive, default=8, help="demo scenes, without clouds (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Prune, print the table, write the directory."""
    check_directory(options.output)
    model, settings = task.load(options.weights)
    training, held_out = parts_of(options, settings)
    with progress_bar("fine-tune") as progress:
        result = pruning.prune(
            model, settings, training, held_out,
            structure=options.structure, sparsity=options.sparsity, epochs=options.epochs,
            learning_rate=options.lr, block=(options.block, options.block),
            exclude=[name for name in options.exclude.split(",") if name],
            fold=options.fold, seed=options.seed, progress=progress,
        )  # fmt: skip
    print(result.report)
    print(pruning.table(result.rows))
    task.save(result.model, settings, options.output)
    report = {
        "structure": options.structure,
        "sparsity": options.sparsity,
        "device": options.device,
        "rows": [dataclasses.asdict(row) for row in result.rows],
    }
    text = json.dumps(report, indent=2, default=float).replace("NaN", "null")
    (Path(options.output) / "report.json").write_text(text + "\n")
    print(f"weights: {options.output}")
    return 0


def parts_of(
    options: argparse.Namespace, settings: task.Settings
) -> tuple[list[task.Part], list[task.Part]]:
    """(training, held-out) parts of the clouds, else of the demo's scenes, the last of which is held out."""
    if options.clouds:
        parts = [task.split(read_points(path), settings, options.val_split) for path in options.clouds]
        return [a for a, _ in parts], [b for _, b in parts]
    whole = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.scenes + 1):
            path = Path(folder) / f"scene{seed}.laz"
            write_scene(street_scene(seed), path)
            whole.append(task.split(read_points(path), settings, 0)[0])
    return whole[:-1], whole[-1:]
