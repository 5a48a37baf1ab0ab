"""Read and write point-cloud files of any supported format: the content decides, not the name.

cloud = read_points("street.laz")
write_labels(cloud, labels, "street_labelled.laz")
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..errors import PointCloudError
from . import arrays, las, pcd, ply, raw, text
from .cloud import (
    EXTENSIONS,
    NAMES,
    PointCloud,
    check_labels,
    check_range,
    check_target,
    number_fields,
    other_fields,
)

__all__ = ["PointCloud", "check_output", "output_format", "read_points", "sniff_format", "write_labels"]

_PCD_HEADER = re.compile(rb"^(VERSION|FIELDS|COLUMNS)[ \t]", re.MULTILINE)
_READERS: dict[str, Callable[[str], PointCloud]] = {
    "las": las.read_las, "laz": las.read_las, "pcd": pcd.read_pcd, "ply": ply.read_ply, "bin": raw.read_bin,
    "npy": arrays.read_npy, "npz": arrays.read_npz, "text": text.read_text,
}  # fmt: skip


def sniff_format(head: bytes) -> str | None:
    """The format ("las", "laz", "pcd", "ply", "npy", "npz", "text") by a file's first 4096 bytes, else None.

    KITTI's and nuScenes' .bin have nothing to tell them by.
    """
    if head.startswith(b"LASF"):
        # The two high bits of the point format id mark LASzip compression.
        return "laz" if len(head) > 104 and head[104] & 0xC0 else "las"
    if re.match(rb"ply\s", head):
        return "ply"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    match = _PCD_HEADER.search(head)
    if match and b"\0" not in head[: match.start()]:
        return "pcd"
    return "text" if text.looks_like_text(head) else None


def read_points(path: str | os.PathLike[str]) -> PointCloud:
    """Read LAS, LAZ (COPC included), PCD, PLY, KITTI and nuScenes .bin, .npy, .npz, or text of x y z.

    Returns a PointCloud with points float64 (N, 3) in the file's units and every other per-point field.
    Raises PointCloudError when the file is missing, a directory, empty, truncated, of an unknown format,
    or when its extension names another format than its content.
    """
    path = os.fspath(path)
    head = _read_head(path)
    if not head:
        raise PointCloudError(f"{path!r} is empty (0 bytes)")
    kind = sniff_format(head) or _sniff_past_comments(path, head)
    extension = Path(path).suffix.lower()
    promised = EXTENSIONS.get(extension)
    if kind is None and promised == "bin":
        kind = "bin"
    other = text.other_format(head) if kind is None else ""
    if other:
        raise PointCloudError(f"{path!r} is {other}")
    words = text.column_of_words(head) if kind is None else ""
    if words:
        raise PointCloudError(f"{path!r}, {words}; leave the column out, or write a number for each word")
    if kind is None:
        raise PointCloudError(
            f"{path!r}: the content is none of LAS, LAZ, PCD, PLY, .npy, .npz or rows of "
            "x y z; KITTI and nuScenes files are told by the extension .bin"
        )
    if promised is not None and promised != kind:
        raise PointCloudError(
            f"{path!r}: the extension {extension} says {NAMES[promised]}, the content is "
            f"{NAMES[kind]}; rename the file if the content is what you meant"
        )
    return _READERS[kind](path)


def output_format(source: str, path: str | os.PathLike[str]) -> str:
    """The format in which labels for a cloud of format `source` are written to `path`, by its extension.

    PointCloudError where the extension is unknown or of a format that the cloud does not have: a cloud keeps
    its format, or becomes .ply or .npy, or leaves its labels alone in a .label.
    """
    path = os.fspath(path)
    extension = Path(path).suffix.lower()
    wanted = {".label": "label", "": source}.get(extension) or EXTENSIONS.get(extension)
    if source not in NAMES:
        raise PointCloudError(
            "cloud was not made by read_points, so there is no file to write again; "
            "mlxsparse.io.las.write_las writes new files"
        )
    if wanted is None:
        known = ", ".join([*EXTENSIONS, ".label"])
        raise PointCloudError(f"the output {path!r} has an extension that says no format; known are {known}")
    wanted = "bin" if wanted in ("kitti", "nuscenes") else wanted
    same = wanted == source or {wanted, source} <= {"las", "laz"}
    if wanted in ("ply", "npy", "label") or (same and wanted != "bin"):
        return wanted
    if wanted == "bin":
        raise PointCloudError(
            f"the output {path!r}: a .bin has no room for a class; name a .label (one uint32"
            " a point), .ply or .npy file"
        )
    raise PointCloudError(
        f"path {path!r} ends in {extension}, but the cloud was read from {NAMES[source]}; "
        "labelling keeps the format, or makes a .ply, .npy or .label of it"
    )


def check_output(cloud: PointCloud, classes: Sequence[int], path: str | os.PathLike[str]) -> None:
    """PointCloudError where `write_labels` could not write `cloud` with labels of these classes to `path`.

    To be asked before the labels are worked out.
    """
    kind = output_format(cloud.format if cloud.source is not None else "", path)
    check_target(path)
    labels = np.asarray(classes, np.int64)
    if kind in ("las", "laz"):
        las.check_labels_fit(cloud, labels)
    elif kind == "ply":
        ply.check_labels_fit(cloud, labels)
    elif kind == "pcd":
        pcd.label_type(labels)
    elif kind in ("npy", "npz"):
        check_range(labels, -(2**31), 2**31 - 1, "a label of 32 bits")
        if kind == "npz":
            arrays.check_npz(cloud)
    elif kind == "label":
        raw.check_labels_fit(labels)


def write_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write `cloud` to `path` with `labels`, integers (N,), and everything else as it was read.

    LAS and LAZ: `classification` is replaced; points, scales, offsets, CRS records and all fields are kept;
    the extension .las or .laz chooses compression, a name without one keeps it. A COPC file
    comes out as plain LAZ. PCD, PLY, npz, text: a `label` field is added (or replaced), the
    encoding is kept. Any cloud can go to .npy (its fields and `label`) and .ply (those of one number a
    point: a warning names the others), or its labels and `instance` to .label, which is what a .bin needs.
    The file appears whole or not at all. Raises PointCloudError for labels of another length or type, labels
    the format cannot hold, an extension of another format, or a cloud that was not read from a file.
    """
    path = os.fspath(path)
    labels = check_labels(labels, len(cloud))
    kind = output_format(cloud.format if cloud.source is not None else "", path)
    if kind in ("las", "laz"):
        las.write_las_labels(cloud, labels, path, compress=kind == "laz")
        return
    write = {
        "pcd": pcd.write_pcd_labels,
        "ply": ply.write_ply_labels,
        "npy": arrays.write_npy_labels,
        "npz": arrays.write_npz_labels,
        "text": text.write_text_labels,
        "label": raw.write_label_file,
    }
    write[kind](cloud, labels, path)
    if kind == "ply" and cloud.format != "ply":
        lost = [name for name in other_fields(cloud) if name not in number_fields(cloud)]
        if lost:
            words = f"left out of {path!r}, as PLY holds one number a point: {', '.join(lost)}"
            warnings.warn(f"{words}; .npy keeps them", stacklevel=2)
    if kind in ("ply", "npy") and cloud.format == "npz":
        lost = arrays.not_of_points(cloud)
        if lost:
            words = f"left out of {path!r}, which has what points have alone: {', '.join(lost)}"
            warnings.warn(f"{words}; .npz keeps them", stacklevel=2)


def _read_head(path: str) -> bytes:
    if os.path.isdir(path):
        raise PointCloudError(f"{path!r} is a directory; a point-cloud file is needed")
    try:
        # A pipe gives its bytes once, and they are read twice: here and by the reader of the format.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise PointCloudError(f"{path!r} is a pipe or a device, no regular file; copy it to a file first")
        with open(path, "rb") as stream:
            return stream.read(4096)
    except FileNotFoundError:
        raise PointCloudError(f"no such file: {path!r}") from None
    except PointCloudError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise PointCloudError(f"cannot read {path!r}: {error}") from error


def _sniff_past_comments(path: str, head: bytes) -> str | None:
    """The format by the first 4096 bytes that are in no comment line, where `head` has such lines."""
    if b"\0" in head or not any(text.is_comment(line) for line in head.splitlines()):
        return None
    kept = b""
    try:
        with open(path, "rb") as stream:
            for line in stream:
                if not text.is_comment(line):
                    kept += line
                if len(kept) >= 4096:
                    break
    except (OSError, MemoryError) as error:
        raise PointCloudError(f"cannot read {path!r}: {error}") from error
    return sniff_format(kept[:4096])
