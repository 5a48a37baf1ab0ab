"""Prune a segmentation network, fine-tune it, and measure what became of score, size and time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module
from mlx.utils import tree_flatten

from .. import nn
from ..backend.untrained import PARTS
from ..blocks import Pruner, compress
from ..blocks.masking import SUFFIX
from ..errors import MLXSparseError
from ..models.minkunet import MinkUNet
from ..tensor import SparseTensor
from . import segmentation as task
from .metrics import mean_iou

MASKED = 3  # epochs
TIMED = 15  # forwards of each model, taken in turn


@dataclass
class Measure:
    """One row of the table: mIoU in [0, 1] (NaN if not scored), parameters, their bytes, ms of a forward
    (NaN if not timed)."""

    name: str
    mean_iou: float
    parameters: int
    bytes: int
    ms: float


@dataclass
class Pruned:
    """The compressed, fine-tuned model and the rows before, zeroed and after."""

    model: MinkUNet
    rows: list[Measure]
    report: str


def prune(
    model: MinkUNet,
    settings: task.Settings,
    training: Sequence[task.Part],
    held_out: Sequence[task.Part],
    *,
    structure: str = "channels",
    sparsity: float = 0.5,
    epochs: int = 6,
    learning_rate: float = 2e-3,
    block: Sequence[int] = (16, 16),
    exclude: Sequence[str] = (),
    fold: bool = False,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> Pruned:
    """Prune `model` (which becomes the masked one) in two steps, fine-tuning after each; then compress.

    The first step prunes 1 - sqrt(1 - sparsity); the second, to `sparsity`, is fine-tuned compressed. An
    epoch is a pass over the training parts; a third of them, at most MASKED, belongs to the first step, which
    runs at the old speed. A network of a share of the channels is tuned at learning_rate / share (at most
    four times the rate), since Adam's steps move a sum of fewer terms less.
    fold: batch norms are folded into the convolutions of the result, which then is for evaluation only.
    """
    before = score_of(model, settings, held_out)
    dense = copy_of(model)
    amounts = (1 - (1 - sparsity) ** 0.5, sparsity)
    pruner = Pruner(
        structure, lambda step: amounts[step], block=block, exclude=exclude, sample=sample_of(model, settings)
    )
    pruner.attach(model)
    first = min(epochs // 3, MASKED)
    if first:
        tune(model, settings, training, first, learning_rate, seed, progress)
    pruner.update(1)
    report = str(pruner.report())
    small = compress(model, sample=sample_of(model, settings))
    assert isinstance(small, MinkUNet)
    if epochs - first:
        share = max(1 - sparsity, 0.25) if structure == "channels" else 1.0
        tune(small, settings, training, epochs - first, learning_rate / share, seed + 1, progress)
    final = nn.fold_batch_norms(small) if fold else small
    assert isinstance(final, MinkUNet)
    named = [("before", dense), ("zeroed, not compressed", model), ("compressed", final)]
    times = [float("nan")] * 3
    part = next((part for part in held_out if len(part)), None)
    if part is not None:
        x = task.to_voxels(part.points, part.inputs, settings.voxel_size).tensor
        times = forward_ms([m for _, m in named], x)
    scores = [before, float("nan"), score_of(final, settings, held_out)]
    rows = [
        Measure(name, score, *size_of(m), ms) for (name, m), score, ms in zip(named, scores, times)
    ]
    return Pruned(final, rows, report)


def table(rows: Sequence[Measure]) -> str:
    """Rows as text, ratios to the first."""
    first = rows[0]
    lines = [f"{'':24}{'mIoU':>7}{'parameters':>12}{'MB':>8}{'ms':>9}{'speed':>8}"]
    for row in rows:
        score = "" if np.isnan(row.mean_iou) else f"{100 * row.mean_iou:.2f}"
        timed = "" if np.isnan(row.ms) else f"{row.ms:>9.1f}{first.ms / row.ms:>7.2f}x"
        lines.append(f"{row.name:24}{score:>7}{row.parameters:>12}{row.bytes / 1e6:>8.2f}{timed}")
    return "\n".join(lines)


# ---------------------------------------------------------------- pieces


def tune(
    model: MinkUNet,
    settings: task.Settings,
    parts: Sequence[task.Part],
    epochs: int,
    learning_rate: float,
    seed: int,
    progress: Callable[[int, int, float], None] | None,
) -> None:
    """Train on for some epochs."""
    task.train(model, settings, parts, task.Plan(epochs, learning_rate, seed), progress=progress)


def score_of(model: MinkUNet, settings: task.Settings, held_out: Sequence[task.Part]) -> float:
    """Mean IoU on the held-out parts, NaN if there are none."""
    if not any(part.labelled for part in held_out):
        return float("nan")
    return float(mean_iou(task.score(model, settings, held_out, 0).matrix))


def check(
    model: MinkUNet, settings: task.Settings, structure: str, block: Sequence[int], exclude: Sequence[str]
) -> None:
    """MLXSparseError where `prune` could not prune the model so; leaves the model as it is."""
    if any(isinstance(module, (nn.BlockSparseConv3d, nn.BlockSparseLinear)) for module in model.modules()):
        raise MLXSparseError(
            "these weights were pruned in blocks already, and such layers are not pruned again: start from "
            "weights that were not"
        )
    sample = sample_of(model, settings)
    Pruner(structure, 0.5, block=block, exclude=exclude, sample=sample).attach(copy_of(model))


def sample_of(model: MinkUNet, settings: task.Settings) -> SparseTensor:
    """A small tensor that the model takes, to follow its channels and to compare models on."""
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 12, (400, 3)) * settings.voxel_size
    inputs = rng.uniform(0, 1, (400, settings.num_inputs)).astype(np.float32)
    return task.to_voxels(points, inputs, settings.voxel_size).tensor


def copy_of(model: MinkUNet) -> MinkUNet:
    """A copy with the weights of now, in arrays of its own."""
    copied = copy.deepcopy(model)  # not MinkUNet(model.args): the layers of a pruned model have other sizes
    mx.eval(copied.parameters())
    return copied


def forward_ms(
    models: Sequence[Module],
    x: SparseTensor,
    repeats: int = TIMED,
    *,
    maps: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median milliseconds of a forward of each model in evaluation, in turn.

    maps: each forward makes its kernel maps; without, they are made before.
    """
    times: list[list[float]] = [[] for _ in models]
    for model in models:
        model.eval()
    for _ in range(repeats + 1):
        for i, model in enumerate(models):
            start = clock()
            given = SparseTensor(x.coords, x.feats) if maps else x
            mx.eval(model(given).feats)
            times[i].append(clock() - start)
    return [1e3 * float(np.median(t[1:])) for t in times]


def size_of(model: Module) -> tuple[int, int]:
    """(parameters, bytes) without masks and what says which taps and blocks are stored."""
    arrays = [v for k, v in _arrays(model) if not k.endswith((SUFFIX, *PARTS))]
    return sum(v.size for v in arrays), sum(v.nbytes for v in arrays)


def _arrays(model: Module) -> list[tuple[str, mx.array]]:
    leaves: Any = tree_flatten(model.parameters())
    return list(leaves)
