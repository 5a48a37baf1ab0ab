"""Make a trained network smaller and faster: prune, fine-tune, compress.

Reads weights that `mlxsparse train` or `demo` wrote and classified clouds to fine-tune on, of which it holds
out the end as `train` does; without clouds, the demo's scenes. Writes the smaller network, as the
other commands read it, and report.json, and prints mIoU, parameters, bytes and time before and after. What
was written can be pruned again, but for weights that were pruned in blocks.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from ..io.points import read_points
from ..tasks import data, pruning
from ..tasks import segmentation as task
from ..tasks.scenes import cloud_of
from .common import (
    VAL_SPLIT,
    UsageError,
    check_directory,
    check_named,
    check_once,
    check_seed,
    fraction,
    make_directory,
    positive,
    positive_float,
    progress_bar,
    split_clouds,
    words,
    write_json,
)
from .demo import HELD_OUT_SEEDS, KINDS


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
        "--lr", type=positive_float, default=2e-3,
        help="learning rate; narrower networks get as much more of it (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--classes", metavar="FIELD", help="field of the classes (default: by its name)")
    parser.add_argument(
        "--val-split", type=fraction, metavar="X", help=f"held-out share (default: {VAL_SPLIT})"
    )
    parser.add_argument(
        "--block", type=positive, default=16, help="channels of a block, for blocks (default: %(default)s)"
    )
    parser.add_argument(
        "--exclude", type=words, default=(), metavar="NAMES", help="layers to leave alone, as stem,decoder.2"
    )
    parser.add_argument(
        "--fold", action="store_true", help="fold batch norms into convolutions: faster, for use only"
    )
    parser.add_argument(
        "--kind", choices=sorted(KINDS), default="street",
        help="scenes of the demo that are used without clouds (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--scenes", type=positive, default=16, help="how many (default: %(default)s)")
    parser.add_argument("--held-out", type=positive, default=4, help="scenes to score (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Prune, write the directory, print the table."""
    check_directory(options.output, options.weights)
    check_named(options.weights, "--weights")
    check_seed(options.seed)
    check_once(options.clouds)
    if options.classes and not options.clouds:
        raise UsageError("--classes names a field of clouds, and none are given")
    model, settings = task.load(options.weights)
    block = (options.block, options.block)
    pruning.check(model, settings, options.structure, block, options.exclude)
    training, held_out = parts_of(options, settings)
    folder = make_directory(options.output)
    with progress_bar("fine-tune") as progress:
        result = pruning.prune(
            model, settings, training, held_out,
            structure=options.structure, sparsity=options.sparsity, epochs=options.epochs,
            learning_rate=options.lr, block=block, exclude=options.exclude,
            fold=options.fold, seed=options.seed, progress=progress,
        )  # fmt: skip
    task.save(result.model, settings, folder)  # before what is printed: that may fail
    report = {
        "structure": options.structure,
        "sparsity": options.sparsity,
        "device": options.device,
        "rows": [dataclasses.asdict(row) for row in result.rows],
    }
    write_json(folder / "report.json", report)
    print(result.report)
    print(pruning.table(result.rows))
    print(f"weights: {options.output}")
    return 0


def parts_of(
    options: argparse.Namespace, settings: task.Settings
) -> tuple[list[task.Part], list[task.Part]]:
    """(training, held-out) parts of the clouds, else of the demo's scenes."""
    if options.clouds:
        clouds = [read_points(path) for path in options.clouds]
        if other := data.other_classes(clouds, settings, options.classes):
            print(f"left out of tuning and scores: {other} that the weights do not know", file=sys.stderr)
        return split_clouds(clouds, settings, options.val_split, options.classes)
    make = KINDS[options.kind][0]
    seeds = [*range(options.scenes), *range(HELD_OUT_SEEDS, HELD_OUT_SEEDS + options.held_out)]
    scenes = [cloud_of(make(seed)) for seed in seeds]
    if other := data.other_classes(scenes[:1], settings):
        raise UsageError(f"without clouds the demo's scenes are used, and these weights do not know {other}")
    whole = [task.split(scene, settings, 0)[0] for scene in scenes]
    return whole[: options.scenes], whole[options.scenes :]
