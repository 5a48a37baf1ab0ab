"""LAS, LAZ and COPC through laspy (with lazrs for compression).

laspy does the decoding. What is added here: files that end early are refused (laspy returns fewer points for
some of them), only the classification changes on the way back, and files are written whole or not at all.
"""

from __future__ import annotations

import copy
import os
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from ..errors import PointCloudError
from .cloud import PointCloud, atomic_write, check_columns, check_labels, check_range, optional_library

_CREATION_DATE_OFFSET = 90  # two uint16: day of year, year
_WITH_WAVES = (4, 5, 9, 10)  # point formats
_VLR_HEADER_BYTES = 54
_EVLR_HEADER_BYTES = 60
_COMPRESSED = 0xC0  # the bits of the point format id that LASzip sets


def _laspy() -> Any:
    # laspy finds lazrs by itself, but without it a LAZ file fails late and obscurely.
    optional_library("lazrs", "a LAS or LAZ file")
    return optional_library("laspy", "a LAS or LAZ file")


def read_las(path: str | os.PathLike[str]) -> PointCloud:
    """Read a LAS, LAZ or COPC file: float64 (N, 3) points and every other dimension by laspy's name."""
    laspy = _laspy()
    path = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            _check_complete(stream)
            data = laspy.read(stream, closefd=False)
        if len(data.points) != data.header.point_count:
            raise PointCloudError(f"the header says {data.header.point_count} points, "
                                  f"{len(data.points)} are there")
        points = np.ascontiguousarray(data.xyz, dtype=np.float64).reshape(-1, 3)
        names = [name for name in data.point_format.dimension_names if name not in ("X", "Y", "Z")]
        fields = {name: np.array(data[name]) for name in names}
        details = _details(data.header)
    except PointCloudError as error:
        raise PointCloudError(f"{path!r}: {error}") from error
    except Exception as error:  # laspy and lazrs raise many types on damaged bytes
        kind = type(error).__name__
        raise PointCloudError(f"{path!r} is damaged or ends early: {kind}: {error}") from error
    kind = "laz" if data.header.are_points_compressed else "las"
    return PointCloud(points, fields, source=data, path=path, format=kind, details=details)


def _details(header: Any) -> dict[str, str]:
    """Version, scale, offset and coordinate reference system, in words."""
    users = {record.user_id: record for record in [*header.vlrs, *(header.evlrs or [])]}
    details = {
        "version": f"{header.version}, point format {header.point_format.id}{', COPC' * ('copc' in users)}",
        "scale": " ".join(f"{value:g}" for value in header.scales),
        "offset": " ".join(f"{value + 0.0:.10g}" for value in header.offsets),
        "written by": str(header.generating_software).strip("\0 ") or "-",
    }
    if "LASF_Projection" in users:
        texts = [str(getattr(r, "string", "") or " ".join(getattr(r, "strings", [])) or "")
                 for r in header.vlrs if r.user_id == "LASF_Projection"]
        words = " ".join(" ".join(texts).replace("\0", " ").split())
        details["CRS"] = (words[:100] + "..." if len(words) > 100 else words) or "given by GeoTIFF keys"
    return details


def _check_complete(stream: BinaryIO) -> None:
    """Raise PointCloudError where the file is shorter than its header says; leaves `stream` at its start.

    laspy would read zero points, drop records, or loop over millions of records that are not there.
    """
    end = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    head = stream.read(375)  # the whole header of version 1.4
    if len(head) < 227 or len(head) < int.from_bytes(head[94:96], "little"):
        raise PointCloudError(f"the file ends early: {end} bytes do not hold a LAS header")
    size, points_at, records, point_format, point_bytes, count = struct.unpack_from("<HIIBHI", head, 94)
    if points_at > end or size + records * _VLR_HEADER_BYTES > points_at:
        raise PointCloudError(f"the file ends early or is damaged: the header says {records} records, then "
                              f"points from byte {points_at}; the file has {end} bytes")
    if head[25] >= 4:
        position, extended, count = struct.unpack_from("<QIQ", head, 235)
        for _ in range(extended):
            stream.seek(min(position, end))
            record = stream.read(_EVLR_HEADER_BYTES)
            position += _EVLR_HEADER_BYTES + int.from_bytes(record[20:28], "little")
            if len(record) < _EVLR_HEADER_BYTES or position > end:
                raise PointCloudError(f"the file ends early: a record reaches past its {end} bytes")
    if not point_format & _COMPRESSED and points_at + count * point_bytes > end:
        raise PointCloudError(f"the file ends early: {count} points of {point_bytes} bytes from byte "
                              f"{points_at} do not fit a file of {end} bytes")
    if point_format & _COMPRESSED and count:
        _check_chunk_table(stream, end, points_at, point_bytes, count)
    stream.seek(0)


def _check_chunk_table(stream: BinaryIO, end: int, points_at: int, point_bytes: int, count: int) -> None:
    """Raise PointCloudError where a compressed file's table says more chunks than it can have.

    lazrs takes memory for as many as the table says, and ends the process where there is not enough.
    """
    position = _integer_at(stream, points_at, 8)
    if position == -1:  # written to a stream: the position follows at the end
        position = _integer_at(stream, end - 8, 8)
    if not points_at + 8 <= position <= end - 8:
        raise PointCloudError(f"the file ends early or is damaged: its table of chunks would be at byte "
                              f"{position} of {end}")
    chunks = _integer_at(stream, position + 4, 4) & 0xFFFFFFFF
    # Each chunk begins with a whole point as it is.
    if chunks > count or chunks * point_bytes > end - points_at:
        raise PointCloudError(f"the file is damaged: its table says {chunks} chunks, more than {count} points"
                              f" in {end} bytes can have; copy the file again from where it came")


def _integer_at(stream: BinaryIO, position: int, size: int) -> int:
    stream.seek(position)
    return int.from_bytes(stream.read(size), "little", signed=True)


def write_las_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str], *,
                     compress: bool) -> None:
    """Write a cloud of `read_las` again with `labels` (N,) as classification; see `points.write_labels`."""
    laspy = _laspy()
    source = cloud.source
    labels = check_labels(labels, len(cloud))
    check_labels_fit(cloud, labels)
    header = copy.deepcopy(source.header)
    # A rewritten file has no octree, so COPC's records would lie about it.
    header.vlrs[:] = [record for record in header.vlrs if record.user_id != "copc"]
    data = laspy.LasData(header, points=source.points.copy())
    if source.evlrs is not None:
        kept = [record for record in source.evlrs if record.user_id != "copc"]
        data.evlrs = laspy.vlrs.vlrlist.VLRList(kept) if kept else None
    data.classification = labels
    _write(data, path, compress, keep_date=source.header.creation_date is not None)


def write_las(path: str | os.PathLike[str], points: np.ndarray,
              fields: Mapping[str, np.ndarray] | None = None,
              scale: float | tuple[float, float, float] = 0.001,
              offset: tuple[float, float, float] | None = None) -> None:
    """Write a new LAS file (LAZ if `path` ends in .laz), version 1.4, point format 7 with colour, else 6.

    points: (N, 3), file units. fields: LAS dimension name -> (N,), e.g. intensity uint16, classification
    (0 to 255), red, green, blue uint16; other names become extra dimensions of the array's type.
    scale: file units per integer step, above 0; offset: origin of the integers, by default floor of the
    minimum.
    Raises PointCloudError where a point is not finite or does not fit 32-bit integers at this scale, and
    where a field does not fit its dimension.
    """
    laspy = _laspy()
    points = np.asarray(points, dtype=np.float64)
    fields = dict(fields or {})
    check_columns(points, fields)
    if not np.isfinite(points).all():
        raise PointCloudError("points holds NaN or infinite rows, which LAS cannot store; drop them first")

    header = laspy.LasHeader(version="1.4", point_format=7 if {"red", "green", "blue"} & set(fields) else 6)
    header.generating_software = "mlxsparse"
    header.scales = _three("scale", scale)
    if not (header.scales > 0).all():
        raise PointCloudError(f"scale must be above 0, got {scale}")
    low = points.min(axis=0) if len(points) else np.zeros(3)
    header.offsets = _three("offset", np.floor(low) if offset is None else offset)
    with np.errstate(over="ignore"):
        steps = np.abs(points - header.offsets) / header.scales
    if len(points) and not steps.max() <= 2**31 - 1:
        raise PointCloudError(f"points reach {steps.max():.3g} steps from the offset, more than 32-bit "
                              "integers hold; use a larger scale or an offset near the points")
    standard, taken = set(header.point_format.dimension_names), laspy.LasData(header)
    for name in [name for name in fields if name not in standard]:
        if not name or hasattr(taken, name):  # laspy's own: it would be put in the place of that
            raise PointCloudError(f"fields[{name!r}]: a LAS dimension cannot have this name; rename it")
        dtype = np.asarray(fields[name]).dtype
        try:
            header.add_extra_dim(laspy.ExtraBytesParams(name=name, type=dtype))
        except Exception as error:
            raise PointCloudError(f"fields[{name!r}] ({dtype}) cannot be a LAS extra dimension: "
                                  f"{error}") from error

    data = laspy.LasData(header)
    data.xyz = points
    for name, values in fields.items():
        values = np.asarray(values)
        if name in standard:
            _check_range(name, values, header.point_format.dimension_by_name(name))
        data[name] = values
    _write(data, path, compress=os.fspath(path).lower().endswith(".laz"), keep_date=True)


def _three(name: str, value: Any) -> np.ndarray:
    """One number or three as float64 (3,); PointCloudError for anything else, and for NaN and infinity."""
    try:
        three = np.broadcast_to(np.asarray(value, dtype=np.float64), (3,)).copy()
    except (TypeError, ValueError):
        three = np.full(3, np.nan)
    if not np.isfinite(three).all():
        raise PointCloudError(f"{name} must be finite, one number or three (x, y, z), got {value}")
    return three


def _check_range(name: str, values: np.ndarray, dimension: Any) -> None:
    """Raise PointCloudError where `values` would not survive the dimension's integer type or its few bits."""
    if values.dtype.kind not in "iufb":
        raise PointCloudError(f"fields[{name!r}] has dtype {values.dtype}; numbers are needed")
    if dimension.kind.name == "FloatingPoint" or not values.size:
        return
    if name == "classification" and values.dtype.kind == "f" and np.array_equal(values, np.floor(values)):
        values = values.astype(np.float64)  # whole numbers in a float type; NaN is none
    elif values.dtype.kind == "f":
        raise PointCloudError(f"fields[{name!r}] ({values.dtype}, {values.min()} to {values.max()}) does not "
                              f"fit the LAS dimension, whole numbers {dimension.min} to {dimension.max}; "
                              "scale and round it first")
    if values.min() < dimension.min or values.max() > dimension.max:
        raise PointCloudError(f"fields[{name!r}] reaches from {values.min()} to {values.max()}, which does "
                              f"not fit the LAS dimension ({dimension.min} to {dimension.max})")


def check_labels_fit(cloud: PointCloud, labels: np.ndarray) -> None:
    """PointCloudError where a cloud of `read_las` cannot be written again with the labels.

    Its point format may have no room for them. And waveforms that lie in the file itself are not written
    by laspy, or not where the header says.
    """
    header = cloud.source.header
    point_format = header.point_format.id
    if point_format in _WITH_WAVES and header.global_encoding.waveform_data_packets_internal:
        raise PointCloudError(
            f"{cloud.path!r} holds waveforms, which would be lost: write .npy, .ply, or the classes as .label"
        )
    check_range(labels, 0, 31 if point_format < 6 else 255, f"LAS point format {point_format}")


def _write(data: Any, path: str | os.PathLike[str], compress: bool, keep_date: bool) -> None:
    with atomic_write(path) as stream:
        try:
            data.write(stream, do_compress=compress)
        except OSError:
            raise
        except Exception as error:
            kind = type(error).__name__
            raise PointCloudError(f"cannot write {os.fspath(path)!r}: {kind}: {error}") from error
        if not keep_date:
            # laspy fills an unset date with today's; the file did not have one.
            stream.seek(_CREATION_DATE_OFFSET)
            stream.write(bytes(4))
