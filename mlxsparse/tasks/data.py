"""From point clouds to network input: settings, inputs, labels, held-out parts, crops, augmentation."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..backend.host import silent
from ..engine.sorting import distinct
from ..errors import MLXSparseError, PointCloudError
from ..io.cloud import COLOUR_FIELDS, INPUT_FIELDS, LABEL_FIELDS, PointCloud, colour_unit, usual_names
from ..ops.voxel import Voxels, voxelize
from .classes import labels_of, left_out_words
from .relief import LOW_CELLS, PLANE_CELLS, relief, scales_of, squashed

TILE_POINTS = 40_000
MAX_VOXELS_ACROSS = 2**29
FAR = 16  # times above or below the training: intensities of another sensor are nearer, other units are not


@dataclass
class Settings:
    """What turns a cloud into network input; kept in config.json beside the weights.

    classes: class number in the file of each output channel. fields: per-point inputs, scales: the
    value of each that becomes 1, of colours a share of full brightness (once in the unit of the training,
    which its size tells). relief: the scale of each column of `relief.relief`; empty: not used.
    names: of the classes, where they are known.
    """

    voxel_size: float
    classes: list[int]
    fields: list[str] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    relief: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def num_inputs(self) -> int:
        """Columns of `inputs_of`."""
        return 1 + len(self.fields) + self.last_return + len(self.relief)

    @property
    def last_return(self) -> bool:
        """Whether an input says that a return was the last of its pulse."""
        return {"return_number", "number_of_returns"} <= set(self.fields)

    def name(self, index: int) -> str:
        """What to call the class of output channel `index`."""
        return self.names[index] if self.names else f"class {self.classes[index]}"


@dataclass
class Part:
    """Points (n, 3) of one training or held-out part with inputs (n, F) and class indices (n,).

    A point of index -1 has no class: the network sees it, and neither loss nor score counts it.
    """

    points: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.points)

    @property
    def labelled(self) -> int:
        """How many of the points have a class."""
        return int(np.sum(self.labels >= 0))

    def take(self, rows: np.ndarray) -> Part:
        """The part's rows."""
        return Part(self.points[rows], self.inputs[rows], self.labels[rows])


def choose_settings(
    clouds: Sequence[PointCloud],
    voxel_size: float | None = None,
    *,
    use_relief: bool = False,
    names: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    ignore: Sequence[int] = (),
    class_field: str | None = None,
) -> Settings:
    """Settings for training clouds: their classes, inputs, and a voxel size.

    ignore: class numbers that say "no label" in these clouds; so does every negative one.
    class_field: where the classes are, as in `labels_of`.
    fields: the inputs, by default those of INPUT_FIELDS that all clouds have with one number a point.
    names: of the classes 0, 1, ...

    Without `voxel_size`, the size at which the first cloud has half as many voxels as points.
    """
    for cloud in clouds:
        if len(cloud) == 0:
            raise PointCloudError(f"{cloud.path!r} has no points: leave it out of the training")
    found = np.unique(np.concatenate([labels_of(cloud, class_field) for cloud in clouds]))
    classes = found[(found >= 0) & ~np.isin(found, ignore)]
    if len(classes) < 2:
        other = np.setdiff1d(found, classes).tolist()
        raise PointCloudError(
            f"every point of {clouds[0].path!r} has class {classes.tolist()}"
            + (f" or none ({', '.join(map(str, other))})" if other else "")
            + ": nothing to tell apart; a classified cloud is needed to train"
        )
    wanted = INPUT_FIELDS if fields is None else fields
    for name in fields or ():
        if name in (class_field, "classification", *LABEL_FIELDS):
            raise PointCloudError(f"the field {name!r} is what is to be found out: it cannot be an input")
        lacking = [c for c in clouds if not _has_input(c, name)]
        if lacking:
            raise PointCloudError(
                f"{lacking[0].path!r} has no field {name!r} of one number a point; "
                f"it has {sorted(lacking[0].fields)}{left_out_words(lacking[0])}"
            )
    fields = [n for n in wanted if n != class_field and all(_has_input(cloud, n) for cloud in clouds)]
    scales = []
    for name in fields:
        top = _top(np.concatenate([np.asarray(c.fields[name], np.float64) / _unit(c, name) for c in clouds]))
        scales.append(top if top > 0 else 1.0)
    if voxel_size is None:
        voxel_size = half_size(clouds[0].points, repr(clouds[0].path))
    if not (math.isfinite(voxel_size) and voxel_size > 0):
        raise MLXSparseError(f"voxel_size must be finite and above 0, got {voxel_size}")
    for cloud in clouds:
        check_extent(cloud, voxel_size)
    heights = scales_of([relief(cloud.points, voxel_size) for cloud in clouds]) if use_relief else []
    known = [names[c] for c in classes] if names and 0 <= classes.min() and classes.max() < len(names) else []
    return Settings(float(voxel_size), classes.tolist(), fields, scales, heights, known)


def _has_input(cloud: PointCloud, name: str) -> bool:
    """Whether the cloud has the field, one number a point."""
    values = np.asarray(cloud.fields.get(name, ()))
    return name in cloud.fields and values.shape == (len(cloud),) and values.dtype.kind in "iufb"


def _unit(cloud: PointCloud, name: str) -> int:
    """What an input of a cloud counts in: 1, and colours in what is their full brightness."""
    if name not in COLOUR_FIELDS:
        return 1
    return colour_unit([np.asarray(cloud.fields[c]) for c in COLOUR_FIELDS if _has_input(cloud, c)])


def _top(values: np.ndarray) -> float:
    """The 99th percentile of the finite values, 0 where there are none."""
    values = values[np.isfinite(values)]
    return float(np.percentile(values, 99)) if len(values) else 0.0


def _scales_of(cloud: PointCloud, settings: Settings) -> list[float]:
    """The value of each field of the settings, in the cloud's unit, that becomes 1."""
    colours = [scale for name, scale in zip(settings.fields, settings.scales) if name in COLOUR_FIELDS]
    stored = colour_unit([np.array(colours, np.float64)])
    return [
        scale * (_unit(cloud, name) / stored) if name in COLOUR_FIELDS else scale
        for name, scale in zip(settings.fields, settings.scales)
    ]


def check_extent(cloud: PointCloud, voxel_size: float) -> None:
    """PointCloudError where the finite points lie further apart than can be counted in voxels.

    Half of what `voxelize` takes, so that a turned and scaled crop fits too.
    """
    xyz = cloud.points[np.isfinite(cloud.points).all(axis=1)]
    with np.errstate(over="ignore"):
        span = float(np.ptp(xyz, axis=0).max()) if len(xyz) else 0.0
    if span / voxel_size > MAX_VOXELS_ACROSS:
        raise PointCloudError(
            f"{cloud.path!r} spans {span:.3g}, which is more than 2**29 voxels of {voxel_size:g}: "
            "remove the points that lie far off the others, or train with a larger voxel size"
        )


def half_size(points: np.ndarray, name: str = "the cloud") -> float:
    """Voxel size, to two digits, at which a cloud has about half as many voxels as different points.

    name: what errors call the cloud.
    """
    xyz = points[np.isfinite(points).all(axis=1)].astype(np.float64)
    if len(xyz) == 0:
        raise PointCloudError(f"{name} has no finite point")
    xyz = xyz[np.lexsort(xyz.T)]
    xyz = xyz[np.r_[True, (xyz[1:] != xyz[:-1]).any(axis=1)]]
    with np.errstate(over="ignore"):
        span = float(np.ptp(xyz, axis=0).max())
    if span == 0:
        raise PointCloudError(f"{name} has all its points at one place, so no voxel size fits it; give one")
    if not math.isfinite(span):
        raise PointCloudError(f"{name} spans more than a float64 holds: remove the points that lie far off")
    xyz -= xyz.min(axis=0)
    # Far below the span, which a single point far off the others may make.
    low, high = max(span / 2**64, sys.float_info.min), span
    while high > 1.0001 * low:
        middle = math.sqrt(low) * math.sqrt(high)
        few = 2 * _count_cells(np.floor(xyz / middle)) <= len(xyz)
        low, high = (low, middle) if few else (middle, high)
    return float(f"{high:.2g}")


def _count_cells(cells: np.ndarray) -> int:
    """How many rows differ, of float64 whole numbers (n, 3) from 0 to any size."""
    keys = cells[:, 0]
    extent = cells.max(axis=0) + 1
    if np.prod(extent) < 2.0**62:
        x, y, z = cells.astype(np.int64).T
        return len(distinct((x * int(extent[1]) + y) * int(extent[2]) + z))
    for column in (cells[:, 1], cells[:, 2]):  # ranks in place of numbers that an int64 does not hold
        found, rank = np.unique(column, return_inverse=True)
        keys = np.unique(keys, return_inverse=True)[1] * len(found) + rank
    return len(distinct(keys))


def inputs_of(cloud: PointCloud, settings: Settings) -> np.ndarray:
    """(N, settings.num_inputs) float32 network inputs: a constant 1, the scaled fields, whether a return was
    the last of its pulse, and the relief. Fields r, g, b and i of the settings are red, green, blue and
    intensity where the cloud has these alone. PointCloudError where a field is missing or not one number a
    point, and for points that `check_extent` refuses. A warning names fields whose values are far from those
    of the training, as in another unit."""
    check_extent(cloud, settings.voxel_size)
    columns = [np.ones(len(cloud), np.float32)]
    far = []
    # Readers of PLY and PCD gave r, g, b and i these names when there were weights of the others.
    usual = {old: new for old, new in usual_names(settings.fields).items() if old not in cloud.fields}
    names = [usual[n] if usual.get(n) in cloud.fields else n for n in settings.fields]
    for name, scale in zip(names, _scales_of(cloud, replace(settings, fields=names))):
        if name not in cloud.fields:
            raise PointCloudError(
                f"{cloud.path!r} has no field {name!r}, which these weights were trained with; "
                f"it has {sorted(cloud.fields)}{left_out_words(cloud)}"
            )
        if not _has_input(cloud, name):
            raise PointCloudError(
                f"{cloud.path!r}: the field {name!r} ({cloud.fields[name].dtype}, shape "
                f"{cloud.fields[name].shape}) is not one number a point, which these weights need"
            )
        values = np.asarray(cloud.fields[name], np.float64)
        top = _top(values)
        # A scale of 1 is that of training values of 0 as well.
        if len(cloud) and not scale / FAR <= top <= scale * FAR and (top > 0 or scale != _unit(cloud, name)):
            far.append(f"{name} ({top:.3g}, in training {scale:.3g})")
        columns.append(np.clip(np.nan_to_num(values / scale), -2, 2).astype(np.float32))
    if far:
        warnings.warn(
            f"{cloud.path!r}: is the unit that of the training? 99th percentile of {', '.join(far)}: labels "
            "from other units are wrong",
            stacklevel=2,
        )
    if settings.last_return:
        last = cloud.fields["return_number"] == cloud.fields["number_of_returns"]
        columns.append(np.asarray(last, np.float32))
    if settings.relief:
        if len(settings.relief) != len(LOW_CELLS) + len(PLANE_CELLS):
            raise MLXSparseError(f"settings.relief has {len(settings.relief)} scales, "
                                 f"{len(LOW_CELLS) + len(PLANE_CELLS)} are needed")  # fmt: skip
        columns += list(squashed(relief(cloud.points, settings.voxel_size), settings.relief).T)
    return np.stack(columns, axis=1)


def other_classes(
    clouds: Sequence[PointCloud], settings: Settings, class_field: str | None = None
) -> str:
    """The points to which `split` gives no class of the settings, in words; empty where there are none."""
    labels = np.concatenate([labels_of(cloud, class_field) for cloud in clouds])
    classes, counts = np.unique(labels, return_counts=True)
    other = ~np.isin(classes, settings.classes)
    named = ", ".join(map(str, classes[other]))
    total = int(counts.sum())
    return f"{counts[other].sum()} of {total} points, of classes {named}" if named else ""


def split(
    cloud: PointCloud, settings: Settings, val_split: float, class_field: str | None = None
) -> tuple[Part, Part]:
    """(training, held-out): the last `val_split` of the labelled points along the longer horizontal axis, of
    two or more at least one, of none or one none: then all is in the training part.

    Points of a class that is not in the settings lie between them without a class, on their side of the cut.
    Points with NaN or infinite coordinates are in neither part. class_field: as in `labels_of`.
    """
    if not 0 <= val_split < 1:
        raise MLXSparseError(f"val_split must lie in [0, 1), got {val_split}")
    raw = labels_of(cloud, class_field)
    index = np.searchsorted(settings.classes, raw).clip(0, len(settings.classes) - 1)
    index = np.where(np.asarray(settings.classes)[index] == raw, index, -1)
    finite = np.isfinite(cloud.points).all(axis=1)
    part = Part(cloud.points[finite], inputs_of(cloud, settings)[finite], index[finite].astype(np.int32))
    known = part.labels >= 0
    count = part.labelled
    held = np.zeros(len(part), bool)
    if val_split and count > 1:
        along = part.points[:, int(np.argmax(np.ptp(part.points[known, :2], axis=0)))]
        # By rank, for points that share a position too: at least one is held out, and one is not.
        cut = min(math.floor((count - 1) * (1 - val_split)), count - 2) + 1
        order = np.argsort(along, kind="stable")
        held[order[np.flatnonzero(known[order])[cut] :]] = True
    return part.take(~held), part.take(held)


# ---------------------------------------------------------------- pieces


def halved(points: np.ndarray, limit: int) -> list[np.ndarray]:
    """Rows of pieces of at most `limit` points: cut in halves across the longer horizontal axis, again and
    again. Every row is in one piece."""
    pieces, waiting = [], [np.arange(len(points))]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= limit:
            pieces += [rows] if len(rows) else []
            continue
        flat = points[rows, :2]
        order = np.argsort(flat[:, int(np.argmax(np.ptp(flat, axis=0)))], kind="stable")
        middle = len(rows) // 2
        waiting += [rows[order[middle:]], rows[order[:middle]]]
    return pieces


def tiles(part: Part, limit: int = TILE_POINTS) -> list[Part]:
    """The part in pieces of at most `limit` points, as `halved` cuts them."""
    return [part.take(rows) for rows in halved(part.points, limit)]


def overlapping(points: np.ndarray, limit: int, margin: float) -> list[np.ndarray]:
    """Rows of overlapping crops: the pieces of `halved`, each with all points within `margin` around it.

    Every row is in at least one crop; rows (n, 3) must be finite.
    """
    crops = []
    order = np.argsort(points[:, 0], kind="stable")
    x = points[order, 0]
    for piece in halved(points, limit):
        low, high = points[piece, :2].min(axis=0) - margin, points[piece, :2].max(axis=0) + margin
        near = order[np.searchsorted(x, low[0], "left") : np.searchsorted(x, high[0], "right")]
        crops.append(np.sort(near[(points[near, 1] >= low[1]) & (points[near, 1] <= high[1])]))
    return crops


def to_voxels(points: np.ndarray, inputs: np.ndarray, voxel_size: float) -> Voxels:
    """Voxels with the mean inputs and the mean offset of the points from the voxel's centre."""
    origin = np.zeros(3)
    finite = np.isfinite(points).all(axis=1)
    if finite.any():
        origin = points[finite].min(axis=0)
    offset = np.nan_to_num((points - origin) / voxel_size)
    offset = (offset - np.floor(offset) - 0.5).astype(np.float32)
    return voxelize(points, np.concatenate([inputs, offset], axis=1), voxel_size, origin=origin.tolist())


def turned(points: np.ndarray, angle: float, mirror: bool = False, scale: float = 1.0) -> np.ndarray:
    """Points about their middle, turned about the vertical axis, mirrored in x before that, scaled."""
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]]) * scale
    turn[:, 0] *= -1 if mirror else 1
    with silent():
        return np.asarray((points - points.mean(axis=0)) @ turn)


def augmented(part: Part, rng: np.random.Generator) -> Part:
    """Turned about the vertical axis, mirrored, scaled by up to 5%, up to a fifth of the points left out."""
    points = turned(part.points, rng.uniform(0, 2 * np.pi), rng.random() < 0.5, rng.uniform(0.95, 1.05))
    kept = rng.random(len(points)) >= rng.uniform(0, 0.2)
    if not kept.any():
        kept[:] = True
    return Part(points, part.inputs, part.labels).take(kept)
