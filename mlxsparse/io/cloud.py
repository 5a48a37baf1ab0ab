"""What every point-cloud format shares: the value that is read, and writing a file whole or not at all."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from .. import files
from ..errors import PointCloudError

#: File-name extensions and the content that each promises. "bin" is KITTI's or nuScenes' table of float32.
EXTENSIONS = {".las": "las", ".laz": "laz", ".pcd": "pcd", ".ply": "ply", ".bin": "bin", ".npy": "npy",
              ".npz": "npz", ".xyz": "text", ".txt": "text", ".csv": "text", ".asc": "text", ".pts": "text"}
#: What each format is called in messages.
NAMES = {"las": "LAS", "laz": "LAZ (compressed LAS)", "pcd": "PCD", "ply": "PLY", "kitti": "KITTI .bin",
         "nuscenes": "nuScenes .bin", "bin": "KITTI or nuScenes .bin", "npy": "NumPy .npy",
         "npz": "NumPy .npz", "text": "text of x y z", "label": "SemanticKITTI .label"}
#: Per-point fields that are inputs of a network where every training cloud has them.
INPUT_FIELDS = ("intensity", "return_number", "number_of_returns", "red", "green", "blue")
#: Those of them that together are a colour.
COLOUR_FIELDS = ("red", "green", "blue")

#: Short names of columns, in lower case.
SHORT_NAMES = {"r": "red", "g": "green", "b": "blue", "i": "intensity"}
#: Where classes may be, best first: `segment` writes `label` beside what was there (LAS: `classification`).
LABEL_FIELDS = ("label", "classification", "class", "scalar_Classification", "scalar_Label", "semantic",
                "segment")


@dataclass
class PointCloud:
    """Points of one file.

    points: float64 (N, 3), x y z in the file's own units; rows may hold NaN (PCD keeps invalid pixels).
    fields: name -> array of length N, in the file's own types: `intensity`, `classification`,
        `return_number`, `number_of_returns`, `red`, `green`, `blue`, ... whatever the file has.
    source: what the format needs to write the file again; opaque.
    path: where it was read. format: a key of `NAMES`.
    details: what else the file says about itself, in words: version, encoding, scale, offset, CRS;
        under "left out", what has the name of an input or a class and is nothing a point.
    """

    points: np.ndarray
    fields: dict[str, np.ndarray] = field(default_factory=dict)
    source: Any = None
    path: str = ""
    format: str = ""
    details: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.points)


def optional_library(name: str, what: str) -> Any:
    """The module `name`, or a PointCloudError that says how to install it for `what`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PointCloudError(f"{what} needs the library {name!r}, which is not installed; "
                              "install it with: pip install 'mlxsparse[io]'") from error


def column_names(table: np.ndarray, *, pts: bool = False) -> list[str]:
    """Names for the columns of a nameless table (N, C >= 3), x y z first.

    A fourth of four is intensity; three whole-numbered ones from 0 to 255 are red, green, blue. A further one
    comes before them, as intensity, or after them, where only one of the two fits; 255 after them in each of
    several rows is alpha. The others are column_4, column_5, ... pts: of a .pts file, which begins with the
    number of points, and has intensity before its colours.
    """
    extra = table.shape[1] - 3
    names = [f"column_{i + 4}" for i in range(extra)]
    whole = whole_bytes(table[:, 3:])
    colour = [*COLOUR_FIELDS]
    if extra == 1:
        names = ["intensity"]
    elif extra == 3 and all(whole):
        names = colour
    elif extra == 4 and all(whole[1:]) and (pts or not whole[0]):
        names = ["intensity", *colour]
    elif extra == 4 and all(whole[:3]) and not whole[3]:
        names = [*colour, "column_7"]
    elif extra == 4 and all(whole) and len(table) > 1 and _is_opaque(table[:, 5:]):
        names = [*colour, "alpha"]
    return ["x", "y", "z", *names]


def usual_names(names: Sequence[str]) -> dict[str, str]:
    """Name -> red, green, blue, intensity of columns r, g, b (all three) and i, where none is so named."""
    colours = [name for name in names if name.lower() in ("r", "g", "b")]
    if sorted(map(str.lower, colours)) != ["b", "g", "r"] or set(COLOUR_FIELDS) & set(names):
        colours = []
    other = [name for name in names if name.lower() == "i"]
    if len(other) != 1 or "intensity" in names:
        other = []
    return {name: SHORT_NAMES[name.lower()] for name in (*colours, *other)}


def whole_bytes(table: np.ndarray) -> list[bool]:
    """Of each column, whether it holds whole numbers from 0 to 255 alone."""
    return [bool(np.all((c >= 0) & (c <= 255) & (c == np.floor(c)))) for c in table.T]


def _is_opaque(last: np.ndarray) -> bool:
    """Whether the last column is 255 throughout, and the one before, which may be blue, is not."""
    return bool(np.all(last[:, 1] == 255) and not np.all(last[:, 0] == 255))


def colour_unit(channels: Sequence[np.ndarray]) -> int:
    """What is full brightness in channels (N,) of one colour: 1, 255 or 65535, by their highest value.

    1 is of floats alone. NaN and infinite values do not count.
    """
    whole = any(c.dtype.kind != "f" for c in channels)
    top = max((float(c.max(initial=0, where=np.isfinite(c))) for c in channels), default=0.0)
    return 65535 if top > 255 else 255 if whole or top > 1 else 1


def whole_numbers(values: np.ndarray) -> np.ndarray | None:
    """Floats (N,) as int64, NaN (no label) as -1; None where one is not whole, or none is a number."""
    known = values[~np.isnan(values)]
    if (len(values) and not len(known)) or not np.all(
        (known >= -(2.0**63)) & (known < 2.0**63) & (known == np.floor(known))
    ):
        return None
    return np.where(np.isnan(values), -1, values).astype(np.int64)


def left_out(path: str, unused: Mapping[str, str], count: int) -> dict[str, str]:
    """The detail "left out" of those that have the name of an input or class, and a warning that says so.

    unused: name -> type and shape, of what was read and became no field of the `count` points.
    """
    known = (*INPUT_FIELDS, *LABEL_FIELDS, "labels")
    words = ", ".join(f"{name} ({kind})" for name, kind in unused.items() if name in known)
    if not words:
        return {}
    warnings.warn(f"{path!r}: {left_out_sentence(words, count)}", stacklevel=4)
    return {"left out": words}


def left_out_sentence(words: str, count: int) -> str:
    """What the detail "left out" of a cloud of `count` points means, for warnings and errors."""
    return f"left out, not one value for each of its {count} points: {words}"


def other_fields(cloud: PointCloud) -> dict[str, np.ndarray]:
    """The fields beside x, y, z and the label."""
    return {name: v for name, v in cloud.fields.items() if name not in ("x", "y", "z", "label")}


def number_fields(cloud: PointCloud) -> dict[str, np.ndarray]:
    """Those of them that hold one number a point."""
    return {name: v for name, v in other_fields(cloud).items() if v.ndim == 1 and v.dtype.kind in "iufb"}


def structured(cloud: PointCloud, labels: np.ndarray, fields: Mapping[str, np.ndarray]) -> np.ndarray:
    """Table (N,) of x, y, z (float64, or the fields that hold the same), `fields`, `label`."""
    columns = {}
    for i, axis in enumerate(("x", "y", "z")):
        own = cloud.fields.get(axis)
        same = own is not None and np.array_equal(own, cloud.points[:, i], equal_nan=True)
        columns[axis] = own if own is not None and same else cloud.points[:, i]
    columns.update(fields)
    check_range(labels, -(2**31), 2**31 - 1, "a label of 32 bits")
    columns["label"] = labels.astype(np.int32)
    table = np.empty(len(cloud), [(name, v.dtype, v.shape[1:]) for name, v in columns.items()])
    for name, values in columns.items():
        table[name] = values
    return table


def check_columns(points: np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
    """PointCloudError unless points are (N, 3) and every field has N values."""
    if np.ndim(points) != 2 or np.shape(points)[1] != 3:
        raise PointCloudError(f"points has shape {np.shape(points)}; (N, 3) is needed")
    for name, values in fields.items():
        if np.shape(values) != (len(points),):
            shape = np.shape(values)
            raise PointCloudError(f"fields[{name!r}] has shape {shape}; ({len(points)},) is needed")


def check_labels(labels: np.ndarray, count: int) -> np.ndarray:
    """`labels` as an integer array (count,); PointCloudError for another shape or a non-integer type."""
    labels = np.asarray(labels)
    if labels.shape != (count,):
        raise PointCloudError(f"labels has shape {labels.shape}; one label for each point of the cloud, "
                              f"shape ({count},), is needed")
    if labels.dtype.kind not in "iu":
        raise PointCloudError(f"labels has dtype {labels.dtype}; integer class numbers are needed "
                              "(use labels.astype(np.int32))")
    return labels


def check_range(labels: np.ndarray, low: int, high: int, what: str) -> None:
    """PointCloudError where integer `labels` leave [low, high], the classes that `what` holds."""
    if labels.size and (labels.min() < low or labels.max() > high):
        raise PointCloudError(f"labels reach from {labels.min()} to {labels.max()}; {what} stores classes "
                              f"{low} to {high}")


def check_target(path: str | os.PathLike[str]) -> None:
    """PointCloudError where `path` can be no file: a device, a pipe, or a name that the system refuses."""
    files.check_target(path, PointCloudError)


def atomic_write(path: str | os.PathLike[str]) -> AbstractContextManager[BinaryIO]:
    """`files.atomic_write`, whose errors are PointCloudErrors that name `path`."""
    return files.atomic_write(path, PointCloudError)
