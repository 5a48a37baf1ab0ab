"""PCD files of the Point Cloud Library: ascii, binary and binary_compressed.

The header and the two plain encodings are read here rather than by pypcd4, which refuses version .5 headers,
accepts a binary body that ends early, rounds ascii values to ten decimals when it writes, and changes the
encoding of data that does not compress. LZF compression itself is `lzf`, which comes with pypcd4.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import PointCloudError
from .cloud import PointCloud, atomic_write, check_labels, check_range, optional_library, usual_names

_KEYS = set("VERSION FIELDS COLUMNS SIZE TYPE COUNT WIDTH HEIGHT VIEWPOINT POINTS DATA".split())
PADDING = "_ "  # begins the names of padding here: no word of a header has a blank
_ENCODINGS = ("ascii", "binary", "binary_compressed")
_TYPES = {f"{kind.upper()}{size}": f"<{kind}{size}"
          for kind, sizes in (("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("f", (4, 8))) for size in sizes}


@dataclass
class PcdSource:
    """A PCD file taken apart: header lines, the parsed layout, and the body.

    lines: header lines as they were, without line ends. names, types, counts: per field, names unique.
    data: structured array (N,). rows: the text rows of an ascii body, kept so that no digit changes.
    """

    lines: list[bytes]
    names: list[str]
    types: list[str]
    counts: list[int]
    encoding: str
    data: np.ndarray
    rows: list[bytes] | None = None


def read_pcd(path: str | os.PathLike[str]) -> PointCloud:
    """Read a PCD file. Packed `rgb` or `rgba` becomes red, green, blue (and alpha) uint8; NaN rows stay.

    Fields `r`, `g`, `b` and `i` are red, green, blue and intensity here, as in text.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            content = stream.read()
        source = _parse(content)
    except PointCloudError as error:
        raise PointCloudError(f"{path!r}: {error}") from error
    except OSError as error:
        raise PointCloudError(f"cannot read {path!r}: {error}") from error
    data = source.data
    for axis in "xyz":
        if axis in source.names and data[axis].ndim != 1:
            raise PointCloudError(f"{path!r}: the field {axis!r} has {data[axis].shape[1]} values a point; "
                                  "one is needed (COUNT 1)")
        if axis not in source.names:
            raise PointCloudError(f"{path!r} has no field {axis!r}; its fields are {', '.join(source.names)}")
    points = np.stack([data[axis].astype(np.float64) for axis in "xyz"], axis=1)
    return PointCloud(points, _fields(source), source=source, path=path, format="pcd",
                      details={"encoding": source.encoding})


def write_pcd_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write a cloud of `read_pcd` again with a `label` field (uint32; int32 if one is negative)."""
    source: PcdSource = cloud.source
    labels = check_labels(labels, len(cloud))
    kind = label_type(labels)
    if "label" in source.names:
        place = source.names.index("label")
        before, after = slice(0, place), slice(place + 1, None)
    else:
        before, after = slice(0, None), slice(0, 0)
    names = [*source.names[before], "label", *source.names[after]]
    types = [*source.types[before], kind, *source.types[after]]
    counts = [*source.counts[before], 1, *source.counts[after]]
    if source.rows is None:
        data = np.empty(len(labels), _dtype(names, types, counts))
        for name in names:
            data[name] = labels if name == "label" else source.data[name]
        body = _encode(data, source.encoding)
    else:
        first = sum(source.counts[before])
        last = first + sum(source.counts) - sum(source.counts[before]) - sum(source.counts[after])
        body = b"".join(b" ".join([*row[:first], b"%d" % label, *row[last:]]) + b"\n"
                        for row, label in zip(map(bytes.split, source.rows), labels.tolist()))
    with atomic_write(path) as stream:
        stream.write(_header(source.lines, names, types, counts))
        stream.write(body)


def label_type(labels: np.ndarray) -> str:
    """The type of a `label` field for these labels; PointCloudError where 32 bits do not hold them."""
    kind = "I4" if labels.size and labels.min() < 0 else "U4"
    limits = np.iinfo(_TYPES[kind])
    check_range(labels, limits.min, limits.max, "a PCD label field has 32 bits and")
    return kind


# --- header -----------------------------------------------------------------------------------------------


def _parse(content: bytes) -> PcdSource:
    lines, values, start = _split_header(content)
    names = values.get("FIELDS") or values.get("COLUMNS")
    if not names:
        raise PointCloudError("the PCD header has no FIELDS line")
    # Padding is written as `_`, possibly several times; a dtype wants names that differ.
    names = [f"{PADDING}{i}" if name == "_" else name for i, name in enumerate(names)]
    if len(set(names)) != len(names):
        raise PointCloudError(f"the PCD header names a field twice: {' '.join(names)}")
    sizes = values.get("SIZE", ["4"] * len(names))
    kinds = values.get("TYPE", ["F"] * len(names))
    counts = [_integer("COUNT", text) for text in values.get("COUNT", ["1"] * len(names))]
    if not len(names) == len(sizes) == len(kinds) == len(counts):
        raise PointCloudError(f"the PCD header has {len(names)} FIELDS but {len(sizes)} SIZE, {len(kinds)} "
                              f"TYPE and {len(counts)} COUNT entries")
    types = [f"{kind.upper()}{size}" for kind, size in zip(kinds, sizes)]
    unknown = sorted(set(types) - set(_TYPES))
    if unknown or min(counts) < 1:
        raise PointCloudError(f"the PCD header has types {unknown} and counts {counts}; known types are "
                              f"{' '.join(_TYPES)}, counts start at 1")
    count = _point_count(values)
    encoding = values["DATA"][0].lower() if values["DATA"] else ""
    dtype = _dtype(names, types, counts)
    rows = None
    if encoding == "ascii":
        rows = [row for row in content[start:].splitlines() if row.strip()]
        data = _decode_ascii(rows, dtype, count, names, types)
    elif encoding == "binary":
        data = _decode_binary(content[start:], dtype, count)
    elif encoding == "binary_compressed":
        data = _decode_compressed(content[start:], dtype, count)
    else:
        raise PointCloudError(f"the PCD header says DATA {encoding}; known are {', '.join(_ENCODINGS)}")
    return PcdSource(lines, names, types, counts, encoding, data, rows)


def _split_header(content: bytes) -> tuple[list[bytes], dict[str, list[str]], int]:
    """Header lines, key -> words, and where the body starts."""
    lines: list[bytes] = []
    values: dict[str, list[str]] = {}
    start = 0
    while "DATA" not in values:
        end = content.find(b"\n", start)
        if end < 0:
            raise PointCloudError("the PCD header ends before its DATA line")
        line = content[start:end].rstrip(b"\r")
        start = end + 1
        lines.append(line)
        words = line.decode("latin-1").split()
        if words and not words[0].startswith("#"):
            if words[0].upper() not in _KEYS:
                raise PointCloudError(f"the PCD header has an unknown entry {words[0]!r}")
            values[words[0].upper()] = words[1:]
    return lines, values, start


def _point_count(values: dict[str, list[str]]) -> int:
    size = {key: _integer(key, values[key][0]) for key in ("WIDTH", "HEIGHT", "POINTS") if values.get(key)}
    grid = size["WIDTH"] * size.get("HEIGHT", 1) if "WIDTH" in size else None
    count = size.get("POINTS", grid)
    if count is None:
        raise PointCloudError("the PCD header has neither POINTS nor WIDTH")
    if grid is not None and grid != count:
        raise PointCloudError(f"the PCD header says POINTS {count}, but WIDTH x HEIGHT is {grid}")
    return count


def _integer(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise PointCloudError(f"the PCD header has {key} {text!r}; a whole number is needed")
    return int(text)


def _dtype(names: list[str], types: list[str], counts: list[int]) -> np.dtype:
    specs: list[Any] = [(name, _TYPES[kind]) if count == 1 else (name, _TYPES[kind], (count,))
                        for name, kind, count in zip(names, types, counts)]
    try:
        return np.dtype(specs)
    except ValueError as error:
        raise PointCloudError(f"the PCD header describes points that are too large: {error}") from error


def _header(lines: list[bytes], names: list[str], types: list[str], counts: list[int]) -> bytes:
    """The header as it was, with the lines that describe the fields written anew."""
    described = {"SIZE": [kind[1:] for kind in types], "TYPE": [kind[0] for kind in types],
                 "COUNT": [str(count) for count in counts]}
    shown = ["_" if _is_padding(name) else name for name in names]
    out: list[bytes] = []
    for line in lines:
        key = line.split(None, 1)[0].decode("latin-1").upper() if line.strip() else ""
        if key in ("FIELDS", "COLUMNS"):
            out.append(" ".join([key, *shown]).encode("latin-1"))
            out += [" ".join([name, *words]).encode() for name, words in described.items()]
        elif key not in described:
            out.append(line)
    return b"\n".join(out) + b"\n"


# --- bodies -----------------------------------------------------------------------------------------------


def _fields(source: PcdSource) -> dict[str, np.ndarray]:
    fields: dict[str, np.ndarray] = {}
    packed = ["red"] if {"rgb", "rgba"} & set(source.names) else []
    usual = usual_names([*source.names, *packed])
    for name in source.names:
        values = np.ascontiguousarray(source.data[name])
        if name in ("rgb", "rgba") and values.ndim == 1 and values.dtype.itemsize == 4:
            bits = values.view("<u4")  # 0xAARRGGBB, also where the header calls it a float
            channels = {"red": 16, "green": 8, "blue": 0, **({"alpha": 24} if name == "rgba" else {})}
            fields.update({key: (bits >> shift).astype(np.uint8) for key, shift in channels.items()})
        elif not _is_padding(name):
            fields[usual.get(name, name)] = values
    return fields


def _is_padding(name: str) -> bool:
    return name.startswith(PADDING)


def _decode_ascii(rows: list[bytes], dtype: np.dtype, count: int, names: list[str],
                  types: list[str]) -> np.ndarray:
    if len(rows) < count:
        raise PointCloudError(f"the file ends early: the header says {count} points, "
                              f"{len(rows)} rows are there")
    del rows[count:]
    if not count:
        return np.empty(0, dtype)
    # The Point Cloud Library writes a packed float colour as the whole number of its bits.
    packed = [name for name, kind in zip(names, types)
              if name in ("rgb", "rgba") and kind == "F4" and dtype[name].shape == ()]
    # Integers are read wide: NumPy before 2 wraps what a narrow type cannot hold.
    wide = {"i": "<i8", "u": "<u8"}
    kinds = {name: "<f8" if name in packed else wide.get(dtype[name].base.kind, dtype[name].base)
             for name in names}
    parsed = np.dtype([(name, kinds[name], dtype[name].shape) for name in names])
    try:
        table = np.loadtxt(io.BytesIO(b"\n".join(rows)), dtype=parsed, comments=None, ndmin=1)
    except (ValueError, OverflowError) as error:
        raise PointCloudError(f"the ascii rows do not fit the PCD header: {error}") from error
    data = np.empty(count, dtype)
    for name in names:
        if name in packed:
            bits = table[name].astype("<f4").view("<u4")
            whole = (table[name] >= 1.0) & (table[name] < 2.0**32)
            bits[whole] = table[name][whole].astype(np.uint32)
            data[name] = bits.view("<f4")
        else:
            data[name] = table[name]
            if data.dtype[name].base.kind in "iu" and not np.array_equal(data[name], table[name]):
                raise PointCloudError(f"ascii rows do not fit the PCD header: field {name!r} holds values "
                                      f"beyond {data.dtype[name].base}")
    return data


def _decode_binary(body: bytes, dtype: np.dtype, count: int) -> np.ndarray:
    if len(body) < count * dtype.itemsize:
        raise PointCloudError(f"the file ends early: {count} points of {dtype.itemsize} bytes are "
                              f"{count * dtype.itemsize} bytes, {len(body)} are there")
    return np.frombuffer(body, dtype, count)


def _decode_compressed(body: bytes, dtype: np.dtype, count: int) -> np.ndarray:
    if len(body) < 8:
        if count == 0:
            return np.empty(0, dtype)
        raise PointCloudError("the file ends early: the sizes of the compressed body are missing")
    packed, unpacked = struct.unpack("<II", body[:8])
    if unpacked != count * dtype.itemsize:
        raise PointCloudError(f"the compressed body says {unpacked} bytes, but {count} points of "
                              f"{dtype.itemsize} bytes are {count * dtype.itemsize}")
    if len(body) - 8 < packed:
        raise PointCloudError(f"the file ends early: the compressed body says {packed} bytes, "
                              f"{len(body) - 8} are there")
    if count == 0:
        return np.empty(0, dtype)
    lzf = _lzf()  # its absence is no damage
    try:
        plain = lzf.decompress(body[8 : 8 + packed], unpacked)
    except ValueError as error:
        raise PointCloudError(f"the compressed body is damaged: {error}") from error
    if plain is None or len(plain) != unpacked:
        raise PointCloudError("the compressed body is damaged: it does not unpack to the size it states")
    # Compressed bodies hold one field after the other.
    data = np.empty(count, dtype)
    start = 0
    for name in dtype.names or ():
        column = np.frombuffer(plain, dtype[name], count, start)
        data[name] = column
        start += column.nbytes
    return data


def _encode(data: np.ndarray, encoding: str) -> bytes:
    if encoding == "binary":
        return data.tobytes()
    plain = b"".join(np.ascontiguousarray(data[name]).tobytes() for name in data.dtype.names or ())
    if len(plain) >= 2**32:
        raise PointCloudError(f"{len(plain)} bytes are more than a binary_compressed PCD can hold (4 GiB)")
    packed = _lzf().compress(plain) if plain else b""
    if packed is None:
        packed = _lzf_literals(plain)
    return struct.pack("<II", len(packed), len(plain)) + packed


def _lzf_literals(plain: bytes) -> bytes:
    """LZF stream of literal runs only: for bytes that do not get shorter, which `lzf` refuses to encode."""
    return b"".join(bytes([len(run) - 1]) + run
                    for run in (plain[i : i + 32] for i in range(0, len(plain), 32)))


def _lzf() -> Any:
    return optional_library("lzf", "a binary_compressed PCD file")
