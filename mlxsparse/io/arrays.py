"""NumPy files: a table of points (.npy), or several arrays of one length (.npz)."""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np

from ..errors import PointCloudError
from .cloud import (
    COLOUR_FIELDS,
    PointCloud,
    atomic_write,
    check_labels,
    check_range,
    column_names,
    left_out,
    other_fields,
    structured,
    usual_names,
)

#: Names under which an .npz keeps its points, best first.
_POINTS = ("points", "xyz", "pc", "coord", "coords", "positions")
#: Under which it keeps their colours, a table (N, 3), or (N, 4) with alpha; compared in lower case.
_COLOURS = ("color", "colour", "colors", "colours", "rgb")


def read_npy(path: str | os.PathLike[str]) -> PointCloud:
    """Read a .npy: a plain table (N, C >= 3), x y z first, or a structured one with fields x, y, z.

    Numbers named `r`, `g`, `b` and `i` are red, green, blue and intensity here, as in text.
    """
    path = os.fspath(path)
    array = _load(path)
    points, fields = _table(array, path)
    words = f"{array.dtype.base if array.dtype.names is None else 'structured'}, shape {array.shape}"
    fields = _with_usual_names(fields)
    return PointCloud(points, fields, source=array, path=path, format="npy", details={"array": words})


def read_npz(path: str | os.PathLike[str]) -> PointCloud:
    """Read an .npz: the points are the array `points`, `xyz`, `pc`, `coord`, or the only table (N, C >= 3).

    Other arrays of N rows become fields, but for those named x, y or z: the points have these already.
    A table (N, 3) named `color`, `colour`, `colors`, `colours` or `rgb` is the fields red, green, blue, where
    nothing else is; so are numbers named `r`, `g`, `b`, and `i` is intensity. Classes, N integers named
    `label` or `labels`, are the field `label`; PointCloudError where the file has both and they differ. A
    warning names arrays of an input or class that are nothing a point.
    """
    path = os.fspath(path)
    # NumPy gives members that are no arrays as bytes.
    arrays = {name: a for name, a in _load(path).items() if isinstance(a, np.ndarray)}
    tables = [name for name, a in arrays.items() if a.ndim == 2 and a.shape[1] >= 3 and a.dtype.kind in "iuf"]
    named = [name for name in _POINTS if name in tables]
    if not named and len(tables) != 1:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise PointCloudError(
            f"{path!r} has no array that is surely the points: name one "
            f"{' or '.join(_POINTS)} (N, 3); it has {shapes or 'no arrays'}"
        )
    key = (named or tables)[0]
    points, fields = _table(arrays[key], path)
    columns = {
        name: values
        for name, values in arrays.items()
        if name not in (key, "x", "y", "z", "label", "labels") and values.shape[:1] == (len(points),)
    }
    for name in _classes(arrays, len(points)):
        labels = arrays[name].reshape(-1)
        known = fields.setdefault("label", labels)
        # NaN, no label, is the same in both.
        floats = known.dtype.kind == labels.dtype.kind == "f"
        if known is not labels and not np.array_equal(known, labels, equal_nan=floats):
            raise PointCloudError(
                f"{path!r} has both label and labels, and they differ; remove the one that is not the class"
            )
    fields = _with_usual_names(_with_colours({**fields, **columns}))
    details = {"arrays": ", ".join(f"{n} {a.dtype} {a.shape}" for n, a in arrays.items())}
    cloud = PointCloud(points, fields, source=arrays, path=path, format="npz", details=details)
    unused = {
        name: f"{arrays[name].dtype}, shape {arrays[name].shape}"
        for name in not_of_points(cloud)
        # Words of another length are the names of the classes.
        if arrays[name].dtype.kind in "iufb" or arrays[name].shape[:1] == (len(points),)
    }
    cloud.details.update(left_out(path, unused, len(points)))
    return cloud


def write_npy_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write any cloud as a structured .npy: x, y, z, its fields, and `label` (int32)."""
    labels = check_labels(labels, len(cloud))
    with atomic_write(path) as stream:
        np.save(stream, structured(cloud, labels, other_fields(cloud)), allow_pickle=False)


def write_npz_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write a cloud of `read_npz` again, every array as it was, with the array `label` (int32).

    It takes the place of the classes that were there; PointCloudError where `label` is something else.
    """
    labels = check_labels(labels, len(cloud))
    check_range(labels, -(2**31), 2**31 - 1, "a label of 32 bits")
    check_npz(cloud)
    old = _classes(cloud.source, len(cloud))
    arrays = {name: values for name, values in cloud.source.items() if name not in old}
    arrays["label"] = labels.astype(np.int32)
    # As np.savez_compressed does, whose own arguments no array may be named after: file, allow_pickle.
    with atomic_write(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def check_npz(cloud: PointCloud) -> None:
    """PointCloudError where the array `label` of a cloud of `read_npz` is no classes, which would be lost."""
    if "label" in cloud.source and "label" not in _classes(cloud.source, len(cloud)):
        shape = cloud.source["label"].shape
        raise PointCloudError(
            f"{cloud.path!r} has an array 'label' of shape {shape}, which is no class a point: rename it"
        )


def not_of_points(cloud: PointCloud) -> list[str]:
    """Arrays of a cloud of `read_npz` that are no points, fields or classes."""
    classes = _classes(cloud.source, len(cloud))
    other = [name for name in ("label", "labels") if name not in classes]
    return [name for name, a in cloud.source.items() if a.shape[:1] != (len(cloud),) or name in other]


def _classes(arrays: dict[str, np.ndarray], count: int) -> list[str]:
    """Which arrays are classes: one number a point."""
    shapes = (count,), (count, 1)
    named = [name for name in ("label", "labels") if name in arrays]
    return [name for name in named if arrays[name].shape in shapes and arrays[name].dtype.kind in "iufb"]


def _with_usual_names(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fields, of which r, g, b and i are red, green, blue and intensity where they are numbers (N,)."""
    numbers = {name for name, values in fields.items() if values.ndim == 1 and values.dtype.kind in "iuf"}
    usual = usual_names([name for name in fields if len(name) > 1 or name in numbers])
    return {usual.get(name, name): values for name, values in fields.items()}


def _with_colours(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The fields, of which the first table of colours is red, green, blue, unless one has such a name."""
    if any(name in fields for name in COLOUR_FIELDS):
        return fields
    for name, table in fields.items():
        numbers = table.ndim == 2 and table.dtype.kind in "iuf"
        alone = 3 if "alpha" in fields else 4  # a second alpha would take the place of the first
        if name.lower() in _COLOURS and numbers and 3 <= table.shape[1] <= alone:
            columns = zip((*COLOUR_FIELDS, "alpha"), map(np.ascontiguousarray, table.T))
            return {**dict(columns), **{key: values for key, values in fields.items() if key != name}}
    return fields


def _load(path: str) -> Any:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, MemoryError, KeyError, zipfile.BadZipFile) as error:
        raise PointCloudError(f"{path!r} is damaged, ends early, or holds Python objects: {error}") from error
    except Exception as error:  # zlib.error and what else damaged archives raise
        raise PointCloudError(f"{path!r} is damaged: {type(error).__name__}: {error}") from error


def _table(array: np.ndarray, path: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    names = array.dtype.names
    if names is not None and array.ndim == 1:
        missing = [axis for axis in "xyz" if axis not in names]
        if missing:
            raise PointCloudError(f"{path!r} has no field {missing[0]!r}; its fields are {', '.join(names)}")
        for axis in "xyz":
            if array.dtype[axis].kind not in "iuf":  # a field of several values has kind V
                raise PointCloudError(
                    f"{path!r}: the field {axis!r} is {array.dtype[axis]}; one number a point is needed"
                )
        fields = {name: np.ascontiguousarray(array[name]) for name in names}
    elif names is None and array.ndim == 2 and array.shape[1] >= 3 and array.dtype.kind in "iuf":
        fields = {name: np.ascontiguousarray(c) for name, c in zip(column_names(array), array.T)}
    else:
        raise PointCloudError(
            f"{path!r} holds an array of {array.dtype}, shape {array.shape}; points are "
            "numbers of shape (N, 3) or more columns, or a structured array with x, y, z"
        )
    points = np.stack([fields[axis].astype(np.float64) for axis in "xyz"], axis=1)
    return points, fields
