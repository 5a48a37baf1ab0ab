"""Tables without a header: KITTI's and nuScenes' .bin, SemanticKITTI's .label beside them.

KITTI: rows of float32 x, y, z, intensity. nuScenes: x, y, z, intensity, ring. Nothing in the file says which:
the name does (nuScenes: .pcd.bin), or the size, or whether a fifth column would hold ring numbers.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import PointCloudError
from .cloud import PointCloud, atomic_write, check_labels, check_range

_MAX_RING = 255
_FARTHEST = 1e6  # metres; more is not a LiDAR's range, so the bytes are something else


def read_bin(path: str | os.PathLike[str]) -> PointCloud:
    """Read KITTI's or nuScenes' .bin: fields intensity and, for nuScenes, ring.

    Where X.label lies beside X.bin, or in ../labels (SemanticKITTI), the fields label (the lower 16 bits) and
    instance (the upper 16) are read too. Points without a finite position are kept; PointCloudError where
    most have none, or one is farther off than a sensor sees.
    """
    path = os.fspath(path)
    try:
        size = os.path.getsize(path)
        columns = [c for c in (4, 5) if size % (4 * c) == 0]
        if not columns:
            raise PointCloudError(
                f"{path!r} ends early: {size} bytes are no whole number of points of 16 "
                "(KITTI) or 20 bytes (nuScenes)"
            )
        values = np.fromfile(path, "<f4")
    except (OSError, MemoryError) as error:
        raise PointCloudError(f"cannot read {path!r}: {error}") from error
    five = columns == [5] or (len(columns) == 2 and (path.lower().endswith(".pcd.bin") or _has_rings(values)))
    table = values.reshape(-1, 5 if five else 4)
    finite = np.isfinite(table[:, :3]).all(axis=1)
    lost, far = int((~finite).sum()), int((np.abs(table[finite, :3]) >= _FARTHEST).any(axis=1).sum())
    if far or 2 * lost > len(table):  # a few lost ones are pulses that did not come back
        what = f"beyond {_FARTHEST:.0f} m" if far else "not finite"
        raise PointCloudError(
            f"{path!r} is no KITTI or nuScenes point file: read as float32, {far or lost} of {len(table)} "
            f"positions are {what}"
        )
    names = ("intensity", "ring")[: table.shape[1] - 3]
    fields = {name: np.ascontiguousarray(table[:, 3 + i]) for i, name in enumerate(names)}
    place = _labels_place(Path(path))
    fields.update({} if place is None else _labels_of(place, Path(path).name, len(table)))
    kind = "nuscenes" if five else "kitti"
    return PointCloud(
        table[:, :3].astype(np.float64),
        fields,
        source=table,
        path=path,
        format=kind,
        details={
            "columns": " ".join(("x y z", *names)) + ", float32",
            **({} if place is None else {"labels": str(place)}),
        },
    )


def _has_rings(values: np.ndarray) -> bool:
    rows = values.reshape(-1, 5)
    ring = rows[np.isfinite(rows).all(axis=1), 4]
    return bool(np.all((ring >= 0) & (ring <= _MAX_RING) & (ring == np.floor(ring))))


def _labels_place(path: Path) -> Path | None:
    places = path.with_suffix(".label"), path.parent.parent / "labels" / f"{path.stem}.label"
    return next((place for place in places if place.is_file()), None)


def _labels_of(place: Path, cloud: str, count: int) -> dict[str, np.ndarray]:
    try:
        content = place.read_bytes()
    except (OSError, MemoryError) as error:
        raise PointCloudError(
            f"cannot read {str(place)!r}: {error}; move it away to read {cloud!r} without labels"
        ) from error
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
    """Write SemanticKITTI's .label: one uint32 a point, in the points' order."""
    labels = check_labels(labels, len(cloud))
    check_labels_fit(labels)
    with atomic_write(path) as stream:
        stream.write(labels.astype("<u4").tobytes())
