"""Train a MinkUNet to label the points of clouds, and label a cloud with it.

A cloud is split into a training and a held-out part by a plane, not point by point, so that the
score is on ground that the network has not seen.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np

from ..errors import CheckpointError, MLXSparseError, PointCloudError
from ..io.cloud import PointCloud
from ..models.base import load_config, load_weights, save_model
from ..models.minkunet import MinkUNet, ModelArgs
from ..ops.voxel import Voxels, voxelize
from .metrics import confusion_matrix, iou_per_class, mean_iou

#: Per-point fields that are used as inputs where every training cloud has them.
INPUT_FIELDS = ("intensity", "return_number", "number_of_returns", "red", "green", "blue")
LABEL_FIELDS = ("classification", "label")
TILE_POINTS = 40_000


@dataclass
class Settings:
    """What turns a cloud into network input; kept in config.json beside the weights."""

    voxel_size: float
    classes: list[int]  # class number in the file of each output channel
    fields: list[str] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)  # value of each field that becomes 1


@dataclass
class Part:
    """Points (n, 3) of one training or held-out part with inputs (n, F) and class indices (n,)."""

    points: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray


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
            result[prefix + "mean_iou"] = float(mean_iou(matrix))
            result[prefix + "accuracy"] = float(np.trace(matrix) / matrix.sum())
        return result


# ---------------------------------------------------------------- input


def labels_of(cloud: PointCloud) -> np.ndarray:
    """Class number of each point; PointCloudError if the cloud has no class field or one value only."""
    for name in LABEL_FIELDS:
        if name in cloud.fields:
            labels = np.asarray(cloud.fields[name])
            if labels.ndim == 1 and labels.dtype.kind in "iu":
                return labels.astype(np.int64)
    raise PointCloudError(
        f"{cloud.path!r} has no class of each point: a field {' or '.join(LABEL_FIELDS)} with whole numbers "
        f"is needed to train; it has {sorted(cloud.fields)}"
    )


def choose_settings(clouds: Sequence[PointCloud], voxel_size: float | None = None) -> Settings:
    """Settings for training clouds: their classes, common fields, and a voxel size.

    Without `voxel_size`, the size at which the first cloud has half as many voxels as points.
    """
    classes = np.unique(np.concatenate([labels_of(cloud) for cloud in clouds]))
    if len(classes) < 2:
        raise PointCloudError(
            f"every point of {clouds[0].path!r} has class {classes.tolist()}: nothing to tell apart; "
            "a classified cloud is needed to train"
        )
    names = [name for name in INPUT_FIELDS if all(name in cloud.fields for cloud in clouds)]
    scales = []
    for name in names:
        values = np.concatenate([np.asarray(cloud.fields[name], np.float64) for cloud in clouds])
        top = float(np.percentile(values[np.isfinite(values)], 99)) if len(values) else 1.0
        scales.append(top if top > 0 else 1.0)
    if voxel_size is None:
        voxel_size = half_size(clouds[0].points)
    if not (math.isfinite(voxel_size) and voxel_size > 0):
        raise MLXSparseError(f"voxel_size must be finite and above 0, got {voxel_size}")
    return Settings(float(voxel_size), classes.tolist(), names, scales)


def half_size(points: np.ndarray) -> float:
    """Voxel size, to two digits, at which a cloud has about half as many voxels as points."""
    xyz = points[np.isfinite(points).all(axis=1)]
    if len(xyz) == 0:
        raise PointCloudError("the cloud has no finite point")
    span = float(np.ptp(xyz, axis=0).max())
    if span == 0:
        return 1.0
    low, high = span / 2**20, span
    for _ in range(20):
        middle = math.sqrt(low * high)
        cells = np.floor((xyz - xyz.min(axis=0)) / middle).astype(np.int64)
        extent = cells.max(axis=0) + 1
        keys = (cells[:, 0] * extent[1] + cells[:, 1]) * extent[2] + cells[:, 2]
        low, high = (middle, high) if 2 * len(np.unique(keys)) > len(xyz) else (low, middle)
    return float(f"{high:.2g}")


def inputs_of(cloud: PointCloud, settings: Settings) -> np.ndarray:
    """(N, F) float32 network inputs: a constant 1 and the scaled fields."""
    columns = [np.ones(len(cloud), np.float32)]
    for name, scale in zip(settings.fields, settings.scales):
        if name not in cloud.fields:
            raise PointCloudError(
                f"{cloud.path!r} has no field {name!r}, which these weights were trained with; "
                f"it has {sorted(cloud.fields)}"
            )
        values = np.asarray(cloud.fields[name], np.float64) / scale
        columns.append(np.clip(np.nan_to_num(values), -2, 2).astype(np.float32))
    return np.stack(columns, axis=1)


def split(cloud: PointCloud, settings: Settings, val_split: float) -> tuple[Part, Part]:
    """(training, held-out): the last `val_split` of the points along the longer horizontal axis.

    Points with NaN or infinite coordinates, or of a class that is not in the settings, are in neither.
    """
    if not 0 <= val_split < 1:
        raise MLXSparseError(f"val_split must lie in [0, 1), got {val_split}")
    raw = labels_of(cloud)
    index = np.searchsorted(settings.classes, raw).clip(0, len(settings.classes) - 1)
    known = (np.asarray(settings.classes)[index] == raw) & np.isfinite(cloud.points).all(axis=1)
    points, inputs, labels = cloud.points[known], inputs_of(cloud, settings)[known], index[known]
    if len(points) == 0:
        raise PointCloudError(f"{cloud.path!r} has no labelled point with finite coordinates")
    along = points[:, int(np.argmax(np.ptp(points[:, :2], axis=0)))]
    held = along > np.quantile(along, 1 - val_split) if val_split else np.zeros(len(points), bool)
    parts = [Part(points[rows], inputs[rows], labels[rows].astype(np.int32)) for rows in (~held, held)]
    return parts[0], parts[1]


def tiles(part: Part, limit: int = TILE_POINTS) -> list[Part]:
    """The part cut in halves across its longer horizontal axis until each has at most `limit` points."""
    if len(part.points) <= limit:
        return [part] if len(part.points) else []
    along = part.points[:, int(np.argmax(np.ptp(part.points[:, :2], axis=0)))]
    order = np.argsort(along, kind="stable")
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    cut = [Part(part.points[rows], part.inputs[rows], part.labels[rows]) for rows in halves]
    return [tile for half in cut for tile in tiles(half, limit)]


def to_voxels(points: np.ndarray, inputs: np.ndarray, voxel_size: float) -> Voxels:
    """Voxels with the mean inputs and the mean offset of the points from the voxel's centre."""
    origin = np.zeros(3)
    finite = np.isfinite(points).all(axis=1)
    if finite.any():
        origin = points[finite].min(axis=0)
    offset = np.nan_to_num((points - origin) / voxel_size)
    offset = (offset - np.floor(offset) - 0.5).astype(np.float32)
    return voxelize(points, np.concatenate([inputs, offset], axis=1), voxel_size, origin=origin.tolist())


def augmented(part: Part, rng: np.random.Generator) -> Part:
    """Turned about the vertical axis, mirrored, scaled by up to 5%."""
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    turn[:, 0] *= rng.choice([-1, 1])
    centre = part.points.mean(axis=0)
    return Part((part.points - centre) @ (turn * rng.uniform(0.95, 1.05)), part.inputs, part.labels)


# ---------------------------------------------------------------- training


def new_model(settings: Settings, channels: Sequence[int], blocks: int, seed: int = 0) -> MinkUNet:
    """A fresh network for these settings."""
    mx.random.seed(seed)
    args = ModelArgs(1 + len(settings.fields) + 3, len(settings.classes), tuple(channels), blocks)
    return MinkUNet(args)


def train(
    model: MinkUNet,
    settings: Settings,
    parts: Sequence[Part],
    *,
    epochs: int,
    learning_rate: float = 3e-3,
    seed: int = 0,
    progress: Callable[[int, int, float], None] | None = None,
) -> list[float]:
    """Train in place on the parts; returns the mean loss of each epoch.

    Cross-entropy at the points, classes weighted by the inverse root of their frequency, AdamW with
    a warm-up and a cosine to zero. progress(step, steps, loss) is called after every step.
    """
    batches = [tile for part in parts for tile in tiles(part)]
    if not batches:
        raise PointCloudError("nothing to train on: the training part has no points; lower val_split")
    if epochs < 1:
        raise MLXSparseError(f"epochs must be at least 1, got {epochs}")
    rng = np.random.default_rng(seed)
    counts = np.bincount(np.concatenate([b.labels for b in batches]), minlength=len(settings.classes))
    weights = 1 / np.sqrt(np.maximum(counts, 1) / counts.sum())
    weights = mx.array((weights / weights.mean()).astype(np.float32))
    steps = epochs * len(batches)
    warm = max(1, min(20, steps // 10))
    schedule = optim.join_schedules(
        [
            optim.linear_schedule(learning_rate / 10, learning_rate, warm),
            optim.cosine_decay(learning_rate, steps),
        ],
        [warm],
    )
    optimizer = optim.AdamW(learning_rate=schedule, weight_decay=1e-2)

    def loss_of(model: MinkUNet, voxels: Voxels, labels: mx.array) -> mx.array:
        logits = voxels.devoxelize(feats=model(voxels.tensor))
        return mlx.nn.losses.cross_entropy(logits, labels, weights[labels], reduction="mean")

    step = mlx.nn.value_and_grad(model, loss_of)
    model.train()
    history = []
    for epoch in range(epochs):
        losses = []
        for i, b in enumerate(rng.permutation(len(batches))):
            batch = augmented(batches[b], rng)
            voxels = to_voxels(batch.points, batch.inputs, settings.voxel_size)
            loss, gradients = step(model, voxels, mx.array(batch.labels))
            gradients, _ = optim.clip_grad_norm(gradients, 5.0)
            optimizer.update(model, gradients)
            mx.eval(model.parameters(), optimizer.state)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise MLXSparseError(f"the loss became {losses[-1]} at step {epoch * len(batches) + i + 1}")
            if progress:
                progress(epoch * len(batches) + i + 1, steps, losses[-1])
        history.append(float(np.mean(losses)))
    return history


# ---------------------------------------------------------------- use


def predict(model: MinkUNet, settings: Settings, points: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Class index of each point: (N,) int64. A point with NaN or infinite coordinates gets -1."""
    model.eval()
    voxels = to_voxels(points, inputs, settings.voxel_size)
    logits = voxels.devoxelize(feats=model(voxels.tensor))
    answer = np.array(mx.argmax(logits, axis=1)).astype(np.int64)
    answer[np.array(voxels.point_to_voxel) < 0] = -1
    return answer


def score(model: MinkUNet, settings: Settings, parts: Sequence[Part], majority: int) -> Score:
    """Held-out score beside always answering class index `majority`."""
    n = len(settings.classes)
    ours, theirs = np.zeros((n, n), np.int64), np.zeros((n, n), np.int64)
    for part in parts:
        if len(part.points):
            ours += confusion_matrix(part.labels, predict(model, settings, part.points, part.inputs), n)
            theirs += confusion_matrix(part.labels, np.full(len(part.labels), majority), n)
    if ours.sum() == 0:
        raise PointCloudError("nothing is held out; raise val_split to measure a score")
    return Score(ours, theirs)


def save(model: MinkUNet, settings: Settings, directory: str | os.PathLike[str]) -> None:
    """Weights and config.json, as `load` reads them."""
    config = {"task": "segmentation", "model": {"name": "minkunet", **model.args.to_dict()}}
    save_model(model, {**config, "settings": asdict(settings)}, directory)


def load(directory: str | os.PathLike[str]) -> tuple[MinkUNet, Settings]:
    """(model, settings) of a directory that `save` wrote; CheckpointError if it is anything else."""
    config = load_config(directory)
    entry: dict[str, Any] = dict(config.get("model") or {})
    if config.get("task") != "segmentation" or entry.pop("name", None) != "minkunet":
        raise CheckpointError(
            f"{os.fspath(directory)!r} holds no segmentation MinkUNet: {config.get('task')!r}"
        )
    try:
        settings = Settings(**config["settings"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"config.json of {os.fspath(directory)!r} has no usable settings: {error}"
        ) from None
    model = MinkUNet(ModelArgs.from_dict(entry))
    load_weights(model, directory)
    return model, settings
