"""Tables without a header: KITTI's and nuScenes' .bin, SemanticKITTI's .label beside them.

KITTI: rows of float32 x, y, z, intensity. nuScenes: x, y, z, intensity, ring. Nothing in the file says which:
the name does (nuScenes: .pcd.bin), or the size, or whether a fifth column would hold ring numbers. Rows of
other widths show by values that no intensity has.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import PointCloudError
from .cloud import PointCloud, atomic_write, check_labels, check_range

_MAX_RING = 255
_MAX_INTENSITY = 0xFFFF
_FARTHEST = 1e6  # metres; more is not a LiDAR's range, so the bytes are something else


def read_bin(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> PointCloud:
    """Read KITTI's or nuScenes' .bin: fields intensity and, for nuScenes, ring.

    columns: the names of the columns, where they are others: ("x", "y", "z", "intensity", "time").
    Where X.label lies beside X.bin, or in ../labels (SemanticKITTI), the fields label (the lower 16 bits) and
    instance (the upper 16) are read too; their number says whether there are 4 or 5 columns. Points without
    a finite position are kept; PointCloudError where most have none, one is farther off than a sensor sees,
    or intensities are none and no .label fits; with `columns`, only where the size or the names do not fit.
    The detail "guessed" stands where nothing but the size told.
    """
    path = os.fspath(path)
    if columns is not None and (len(set(columns)) != len(columns) or not {"x", "y", "z"} <= set(columns)):
        raise PointCloudError(f"columns is {tuple(columns)}; different names with x, y and z are needed")
    try:
        size = os.path.getsize(path)
        widths = [c for c in ((4, 5) if columns is None else (len(columns),)) if size % (4 * c) == 0]
        if not widths:
            known = "16 (KITTI) or 20 bytes (nuScenes)" if columns is None else f"{4 * len(columns)} bytes"
            raise PointCloudError(
                f"{path!r} ends early: {size} bytes are no whole number of points of {known}"
            )
        values = np.fromfile(path, "<f4")
    except (OSError, MemoryError) as error:
        raise PointCloudError(f"cannot read {path!r}: {error}") from error
    named = path.lower().endswith(".pcd.bin")
    place = _labels_place(Path(path))
    codes = b"" if place is None else _codes(place, Path(path).name)
    fitting = [c for c in widths if len(codes) * c == size] if columns is None and size else []
    five = fitting == [5] or (not fitting and 5 in widths and (named or _has_rings(values)))
    names = tuple(columns or ("x", "y", "z", "intensity", "ring")[: 5 if five else 4])
    if columns is None:
        _check(values, len(names) if len(names) in widths else 5, path, told=bool(fitting))
    table = values.reshape(-1, len(names))
    fields = {
        name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names) if name not in ("x", "y", "z")
    }
    fields.update({} if place is None else _labels_of(codes, place, len(table)))
    told = five or columns is not None or place is not None
    details = {"columns": " ".join(names) + ", float32"}
    details.update({} if told else {"guessed": "the columns, by the size of the file"})
    details.update({} if place is None else {"labels": str(place)})
    kind = {"x y z intensity": "kitti", "x y z intensity ring": "nuscenes"}.get(" ".join(names), "bin")
    points = np.stack([table[:, names.index(axis)] for axis in "xyz"], axis=1).astype(np.float64)
    return PointCloud(points, fields, source=table, path=path, format=kind, details=details)


def _check(values: np.ndarray, width: int, path: str, *, told: bool) -> None:
    """PointCloudError where `values` are surely no rows of KITTI's or nuScenes' `width` columns.

    told: a .label says the width, so intensities may be negative (decibels), and rings anything.
    """
    table = values.reshape(-1, width)
    finite = np.isfinite(table[:, :3]).all(axis=1)
    lost, far = int((~finite).sum()), int((np.abs(table[finite, :3]) >= _FARTHEST).any(axis=1).sum())
    intensity = table[finite, 3]
    wrong = int(((intensity < 0) | (intensity > _MAX_INTENSITY)).sum())
    what = ""
    if far or 2 * lost > len(table):  # a few lost ones are pulses that did not come back
        kind = f"beyond {_FARTHEST:.0f} m" if far else "not finite"
        what = f"{far or lost} of {len(table)} positions are {kind}"
    elif told:
        return
    elif 100 * wrong > len(table):
        what = f"{wrong} of {len(table)} intensities are not within 0 to {_MAX_INTENSITY}"
    elif width == 5 and not (path.lower().endswith(".pcd.bin") or _has_rings(values)):
        what = f"the last of 5 columns is no ring, a whole number from 0 to {_MAX_RING}"
    if what:
        raise PointCloudError(
            f"{path!r} is no KITTI or nuScenes point file: read as float32, {what}; if its columns are "
            "others, name them: mlxsparse.io.raw.read_bin(path, ('x', 'y', 'z', 'intensity', 'time')); or "
            "save it as .npy: numpy.save(path, numpy.fromfile(path, 'f4').reshape(-1, 5))"
        )


def _has_rings(values: np.ndarray) -> bool:
    rows = values.reshape(-1, 5)
    ring = rows[np.isfinite(rows).all(axis=1), 4]
    return bool(np.all((ring >= 0) & (ring <= _MAX_RING) & (ring == np.floor(ring))))


def _labels_place(path: Path) -> Path | None:
    places = path.with_suffix(".label"), path.parent.parent / "labels" / f"{path.stem}.label"
    return next((place for place in places if place.is_file()), None)


def _codes(place: Path, cloud: str) -> bytes:
    try:
        return place.read_bytes()
    except (OSError, MemoryError) as error:
        raise PointCloudError(
            f"cannot read {str(place)!r}: {error}; move it away to read {cloud!r} without labels"
        ) from error


def _labels_of(content: bytes, place: Path, count: int) -> dict[str, np.ndarray]:
    if len(content) != 4 * count:
        raise PointCloudError(
            f"{str(place)!r} has {len(content)} bytes; {count} points need {4 * count}, one uint32 "
            "each; mend it or move it away"
        )
    codes = np.frombuffer(content, "<u4")
    return {"label": (codes & 0xFFFF).astype(np.int32), "instance": (codes >> 16).astype(np.int32)}


def check_labels_fit(labels: np.ndarray) -> None:
    """PointCloudError where a .label file has no room for the labels: they have the lower 16 bits."""
    check_range(labels, 0, 0xFFFF, "a .label file")


def write_label_file(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write SemanticKITTI's .label: one uint32 a point, in the points' order.

    The upper 16 bits are the field `instance` where the cloud has one; a warning says where it does not fit.
    """
    labels = check_labels(labels, len(cloud))
    check_labels_fit(labels)
    codes = labels.astype("<u4")
    instance = cloud.fields.get("instance")
    if instance is not None:
        if instance.shape == labels.shape and instance.dtype.kind in "iuf" and _fits_16_bits(instance):
            codes |= instance.astype("<u4") << 16
        else:
            words = f"the field instance is left out of {os.fspath(path)!r}, which holds one number a point"
            warnings.warn(f"{words}, 0 to 65535; .npy keeps it", stacklevel=3)
    with atomic_write(path) as stream:
        stream.write(codes.tobytes())


def _fits_16_bits(values: np.ndarray) -> bool:
    return bool(np.all((values >= 0) & (values <= 0xFFFF) & (values == np.floor(values))))
