"""Train a MinkUNet to label the points of clouds, and label a cloud with it.

A cloud is split into a training and a held-out part by a plane, not point by point, so that the
score is on ground that the network has not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from ..blocks import restructure, structure_of
from ..errors import CheckpointError, MLXSparseError, PointCloudError
from ..models.base import load_config, load_weights, save_model
from ..models.minkunet import MinkUNet, ModelArgs
from .classes import labels_of
from .data import (
    Part,
    Settings,
    choose_settings,
    half_size,
    inputs_of,
    overlapping,
    split,
    tiles,
    to_voxels,
    turned,
)
from .metrics import confusion_matrix, iou_per_class, mean_iou, overall_accuracy
from .relief import LOW_CELLS, PLANE_CELLS
from .training import PRECISIONS, Plan, flat, lowered, train

__all__ = [
    "PRECISIONS", "Part", "Plan", "Score", "Settings", "choose_settings", "half_size", "inputs_of",
    "labels_of", "load", "new_model", "predict", "save", "score", "split", "tiles", "to_voxels", "train",
]  # fmt: skip

CROP_POINTS = 250_000
RELIEF_COLUMNS = len(LOW_CELLS) + len(PLANE_CELLS)
MARGIN = 32  # voxels that crops reach into their neighbours


@dataclass
class Score:
    """Confusion matrices (C, C), rows the truth: of the network, and of always answering one class."""

    matrix: np.ndarray
    majority_matrix: np.ndarray

    def report(self) -> dict[str, Any]:
        """IoU of each class, their mean and the accuracy, of both."""
        result: dict[str, Any] = {}
        for prefix, matrix in (("", self.matrix), ("majority_", self.majority_matrix)):
            result[prefix + "iou"] = iou_per_class(matrix).tolist()
            result[prefix + "mean_iou"] = mean_iou(matrix)
            result[prefix + "accuracy"] = overall_accuracy(matrix)
        return result


def new_model(settings: Settings, channels: Sequence[int], blocks: int, seed: int = 0) -> MinkUNet:
    """A fresh network for these settings; MLXSparseError for one larger than the machine's memory."""
    mx.random.seed(seed)
    model = MinkUNet(ModelArgs(settings.num_inputs + 3, len(settings.classes), tuple(channels), blocks))
    size = sum(value.nbytes for _, value in flat(model.parameters()))  # nothing is computed yet
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:  # MLX would end the process
        raise MLXSparseError(
            f"a network of {size / 1e9:.1f} GB does not fit in this machine's {memory / 1e9:.1f} GB: "
            "use fewer channels or blocks"
        )
    return model


def predict(
    model: MinkUNet,
    settings: Settings,
    points: np.ndarray,
    inputs: np.ndarray,
    *,
    votes: int = 1,
    crop_points: int = CROP_POINTS,
    precision: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Class index of each point: (N,) int64. A point with NaN or infinite coordinates gets -1.

    A cloud of more than `crop_points` points is labelled in crops that overlap by MARGIN voxels; the
    probabilities of all crops that hold a point are added. votes: times that each crop is labelled, turned by
    another angle each time. progress(done, total) counts crops. MLXSparseError for weights that give NaN.
    """
    if votes < 1 or crop_points < 1 or precision not in PRECISIONS:
        raise MLXSparseError(
            f"votes={votes} and crop_points={crop_points} must be at least 1, precision={precision!r} one of "
            f"{', '.join(PRECISIONS)}"
        )
    model.eval()
    finite = np.flatnonzero(np.isfinite(points).all(axis=1))
    answer = np.full(len(points), -1, np.int64)
    if len(finite) == 0:
        return answer
    xyz, values = points[finite], inputs[finite]
    crops = overlapping(xyz, crop_points, MARGIN * settings.voxel_size)
    total = np.zeros((len(finite), len(settings.classes)), np.float32)
    for i, rows in enumerate(crops):
        for vote in range(votes):
            place = turned(xyz[rows], 2 * np.pi * vote / votes) if vote else xyz[rows]
            total[rows] += _probabilities(model, settings, place, values[rows], precision)
        if progress:
            progress(i + 1, len(crops))
    if not np.isfinite(total).all():  # argmax would answer the first class
        raise MLXSparseError(
            "the weights give no finite values; "
            + ("label in float32, or " if precision != "float32" else "")
            + "train again with a lower learning rate"
        )
    answer[finite] = total.argmax(axis=1)
    return answer


def _probabilities(
    model: MinkUNet, settings: Settings, points: np.ndarray, inputs: np.ndarray, precision: str
) -> np.ndarray:
    voxels = to_voxels(points, inputs, settings.voxel_size)
    dtype = PRECISIONS[precision]
    with lowered(model, dtype):
        logits = model(voxels.tensor.astype(dtype))
    share = mx.softmax(voxels.devoxelize(feats=logits).astype(mx.float32), axis=1)
    return np.array(share)


def score(model: MinkUNet, settings: Settings, parts: Sequence[Part], majority: int) -> Score:
    """Score on the labelled points of the parts, beside always answering class index `majority`."""
    n = len(settings.classes)
    ours, theirs = np.zeros((n, n), np.int64), np.zeros((n, n), np.int64)
    for part in parts:
        if part.labelled:
            answer = predict(model, settings, part.points, part.inputs)
            ours += confusion_matrix(part.labels, answer, n, ignore=-1)
            theirs += confusion_matrix(part.labels, np.full(len(part), majority), n, ignore=-1)
    if ours.sum() == 0:
        raise PointCloudError("nothing is held out; raise val_split to measure a score")
    return Score(ours, theirs)


def save(model: MinkUNet, settings: Settings, directory: str | os.PathLike[str]) -> None:
    """Weights and config.json, as `load` reads them."""
    config: dict[str, Any] = {"task": "segmentation", "model": {"name": "minkunet", **model.args.to_dict()}}
    layers = structure_of(model)
    if layers != structure_of(MinkUNet(model.args)):  # pruned: the sizes of its layers are its own
        config["layers"] = layers
    save_model(model, {**config, "settings": asdict(settings)}, directory)


def load(directory: str | os.PathLike[str]) -> tuple[MinkUNet, Settings]:
    """(model, settings) of a directory that `save` wrote; CheckpointError if it is anything else."""
    config = load_config(directory)
    model_entry, layers = config.get("model"), config.get("layers") or {}
    entry: dict[str, Any] = dict(model_entry) if isinstance(model_entry, dict) else {}
    if config.get("task") != "segmentation" or entry.pop("name", None) != "minkunet":
        raise CheckpointError(
            f"{os.fspath(directory)!r} holds no segmentation MinkUNet: {config.get('task')!r}"
        )
    try:
        settings = Settings(**config["settings"])
        _check_settings(settings)
        if not isinstance(layers, dict):
            raise TypeError(f"layers is {layers!r}")
        args = ModelArgs.from_dict(entry)
        fits = args.in_channels == settings.num_inputs + 3 and args.num_classes == len(settings.classes)
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"config.json of {os.fspath(directory)!r} has no usable settings: {error}"
        ) from None
    if not fits:
        raise CheckpointError(
            f"config.json of {os.fspath(directory)!r} contradicts itself: a model of {args.in_channels} "
            f"inputs and {args.num_classes} classes, settings of {settings.num_inputs + 3} and "
            f"{len(settings.classes)}"
        )
    try:
        model = MinkUNet(args)
        restructure(model, layers)
    except (ValueError, TypeError, IndexError, OverflowError, RuntimeError) as error:
        raise CheckpointError(
            f"config.json of {os.fspath(directory)!r} describes no model that can be made: {error}"
        ) from error
    load_weights(model, directory)
    return model, settings


def _check_settings(settings: Settings) -> None:
    """TypeError where a value read from JSON is not what `Settings` holds."""

    def number(value: Any) -> bool:
        return type(value) in (int, float) and 0 < value < float("inf")

    def whole(value: Any) -> bool:
        return type(value) is int and -(2**63) <= value < 2**63

    count = len(settings.classes)
    good = {
        "voxel_size": number(settings.voxel_size),
        "classes": count > 0
        and all(map(whole, settings.classes))
        and all(a < b for a, b in zip(settings.classes, settings.classes[1:])),
        "fields": isinstance(settings.fields, list) and all(isinstance(f, str) for f in settings.fields),
        "scales": len(settings.scales) == len(settings.fields) and all(map(number, settings.scales)),
        "relief": len(settings.relief) in (0, RELIEF_COLUMNS) and all(map(number, settings.relief)),
        "names": isinstance(settings.names, list)
        and len(settings.names) in (0, count)
        and all(isinstance(name, str) for name in settings.names),
    }
    for name, fits in good.items():
        if not fits:
            raise TypeError(f"{name} is {getattr(settings, name)!r}")
