"""What every point-cloud format shares: the value that is read, and writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import secrets
import stat
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

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
#: Where classes may be, best first: `segment` writes `label` beside what was there (LAS: `classification`).
LABEL_FIELDS = ("label", "classification", "class", "scalar_Classification", "scalar_Label")


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

    A fourth of four is intensity; three whole-numbered ones from 0 to 255 are red, green, blue, and one after
    them is alpha, one before them intensity; the others are column_4, column_5, ... pts: of a .pts file,
    which begins with the number of points, and has intensity before its colours.
    """
    extra = table.shape[1] - 3
    names = [f"column_{i + 4}" for i in range(extra)]
    whole = [bool(np.all((c >= 0) & (c <= 255) & (c == np.floor(c)))) for c in table[:, 3:].T]
    colour = ["red", "green", "blue"]
    if extra == 1:
        names = ["intensity"]
    elif pts and extra == 4 and all(whole[1:]):
        names = ["intensity", *colour]
    elif extra in (3, 4) and all(whole[:3]):
        names = [*colour, "alpha"][:extra]
    elif extra == 4 and all(whole[1:]):
        names = ["intensity", *colour]
    return ["x", "y", "z", *names]


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


class _Writer:
    """A binary file that libraries can only reach through its methods.

    NumPy writes to a file's descriptor where there is one, past the errors of a full disk; and what some
    libraries raise instead of an OSError does not say what happened: `error` does.
    """

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self._stream.write(content)
        except OSError as error:
            self.error = error
            raise

    def fileno(self) -> int:
        raise io.UnsupportedOperation("write to this file by write()")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def check_target(path: str | os.PathLike[str]) -> None:
    """PointCloudError where `path` can be no file: a device, a pipe, or a name that the system refuses."""
    try:
        mode = os.stat(path).st_mode  # through links, /dev/stdout too
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise PointCloudError(f"cannot write {os.fspath(path)!r}: {error}") from error
    # A folder has the error of the system, where it is to be replaced.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise PointCloudError(f"cannot write {os.fspath(path)!r}: it is a device or a pipe, and a file would "
                              "take its place; name a file")


def _temporary(target: Path) -> Path:
    """A new name beside `target`; of a long name only the start, for names end at 255 bytes."""
    name, end = target.name, f".{secrets.token_hex(4)}.tmp"
    while len(os.fsencode(name)) > 254 - len(end):
        name = name[:-1]  # by characters: half of one is no name everywhere
    return target.with_name(f".{name}{end}")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Binary file whose content appears at `path` whole when the block ends, or not at all if it raises.

    The bytes go to a temporary file in the same directory, which is flushed to disk and then renamed.
    An OSError becomes a PointCloudError that names `path`.
    """
    # A link keeps pointing where it did: its target is replaced.
    target = Path(os.path.realpath(path))
    check_target(path)
    temporary = _temporary(target)
    writer: Any = None
    try:
        with open(temporary, "xb+") as stream:
            writer = _Writer(stream)
            yield writer
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except Exception as error:
        reason = error if isinstance(error, OSError) else writer.error if writer else None
        if reason is None:
            raise
        raise PointCloudError(f"cannot write {os.fspath(path)!r}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
