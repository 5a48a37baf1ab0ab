"""Read and write point-cloud files of any supported format: the content decides, not the name.

    cloud = read_points("street.laz")
    write_labels(cloud, labels, "street_labelled.laz")
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from ..errors import PointCloudError
from . import las, pcd
from .cloud import EXTENSIONS, PointCloud, check_labels

__all__ = ["PointCloud", "read_points", "sniff_format", "write_labels"]

_PCD_HEADER = re.compile(rb"^(VERSION|FIELDS|COLUMNS)[ \t]", re.MULTILINE)
_NAMES = {"las": "LAS", "laz": "LAZ (compressed LAS)", "pcd": "PCD"}


def sniff_format(head: bytes) -> str | None:
    """The format "las", "laz" or "pcd" by the first bytes of a file (4096 are plenty), else None."""
    if head.startswith(b"LASF"):
        # The two high bits of the point format id mark LASzip compression.
        return "laz" if len(head) > 104 and head[104] & 0xC0 else "las"
    match = _PCD_HEADER.search(head)
    return "pcd" if match and b"\0" not in head[: match.start()] else None


def read_points(path: str | os.PathLike[str]) -> PointCloud:
    """Read a LAS, LAZ (COPC included) or PCD file (ascii, binary, binary_compressed).

    Returns a PointCloud with points float64 (N, 3) in the file's units and every other per-point field.
    Raises PointCloudError when the file is missing, a directory, empty, truncated, of an unknown format,
    or when its extension names another format than its content.
    """
    path = os.fspath(path)
    head = _read_head(path)
    if not head:
        raise PointCloudError(f"{path!r} is empty (0 bytes)")
    kind = sniff_format(head)
    extension = Path(path).suffix.lower()
    if kind is None:
        raise PointCloudError(f"{path!r}: the content is none of LAS, LAZ, PCD, the formats read here")
    promised = EXTENSIONS.get(extension)
    if promised is not None and promised != kind:
        raise PointCloudError(f"{path!r}: the extension {extension} says {_NAMES[promised]}, the content is "
                              f"{_NAMES[kind]}; rename the file if the content is what you meant")
    return pcd.read_pcd(path) if kind == "pcd" else las.read_las(path)


def write_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write `cloud` to `path` with `labels`, integers (N,), and everything else as it was read.

    LAS and LAZ: `classification` is replaced; points, scales, offsets, CRS records and all fields are kept;
    the extension .las or .laz chooses compression, any other extension keeps the source's. A COPC file comes
    out as plain LAZ. PCD: a `label` field is added (or replaced), the encoding is kept.
    The file appears whole or not at all. Raises PointCloudError for labels of another length or type, labels
    the format cannot hold, an extension of another format, or a cloud that was not read from a file.
    """
    path = os.fspath(path)
    labels = check_labels(labels, len(cloud))
    extension = Path(path).suffix.lower()
    promised = EXTENSIONS.get(extension, cloud.format)
    if cloud.source is None or cloud.format not in _NAMES:
        raise PointCloudError("cloud was not made by read_points, so there is no file to write again; "
                              "mlxsparse.io.las.write_las writes new files")
    if (promised == "pcd") != (cloud.format == "pcd"):
        raise PointCloudError(f"path {path!r} ends in {extension}, but the cloud was read from "
                              f"{_NAMES[cloud.format]}; write_labels keeps the format")
    if cloud.format == "pcd":
        pcd.write_pcd_labels(cloud, labels, path)
    else:
        las.write_las_labels(cloud, labels, path, compress=promised == "laz")


def _read_head(path: str) -> bytes:
    if os.path.isdir(path):
        raise PointCloudError(f"{path!r} is a directory; a point-cloud file is needed")
    try:
        with open(path, "rb") as stream:
            return stream.read(4096)
    except FileNotFoundError:
        raise PointCloudError(f"no such file: {path!r}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise PointCloudError(f"cannot read {path!r}: {error}") from error
