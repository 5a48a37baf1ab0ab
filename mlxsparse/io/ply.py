"""PLY files, ascii and binary of either byte order, through plyfile.

Everything that is not the label is kept: properties and their types, other elements such as faces, comments,
byte order (but of files where numbers lie beside lists, which plyfile writes in the machine's own alone).
plyfile reads ASCII headers alone: other bytes of comments are spelled out for it, and put back in writing.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import PointCloudError
from .cloud import (
    PointCloud,
    atomic_write,
    check_columns,
    check_labels,
    check_range,
    left_out,
    number_fields,
    optional_library,
    structured,
    usual_names,
)


def _plyfile() -> Any:
    return optional_library("plyfile", "a PLY file")


_END = re.compile(rb"[\r\n]end_header[\r\n]")
_COMMENT = re.compile(rb"(?<=[\r\n])(comment|obj_info)\b[^\r\n]*")


def read_ply(path: str | os.PathLike[str]) -> PointCloud:
    """Read a PLY file: the element `vertex` with x, y, z; its other one-value properties become fields.

    Where no element has this name, the only one with x, y, z is taken. `r`, `g`, `b` and `i` are red, green,
    blue and intensity here, as in text. A warning names lists that have the name of an input or class.
    """
    plyfile = _plyfile()
    path = os.fspath(path)
    try:
        data = plyfile.PlyData.read(_ascii_header(path), mmap=False)
    except (plyfile.PlyParseError, ValueError, TypeError, OverflowError, EOFError, MemoryError,
            OSError) as error:  # fmt: skip
        raise PointCloudError(f"{path!r} is damaged or ends early: {error}") from error
    element = _vertices(data)
    if element is None:
        raise PointCloudError(
            f"{path!r} has no element 'vertex'; it has {', '.join(e.name for e in data.elements) or 'none'}"
        )
    table = element.data
    for axis in "xyz":
        if axis in (table.dtype.names or ()) and table.dtype[axis].kind == "O":
            raise PointCloudError(f"{path!r}: the property {axis!r} is a list; one number a vertex is needed")
        if axis not in (table.dtype.names or ()) or table.dtype[axis].kind not in "iuf":
            raise PointCloudError(
                f"{path!r} has no property {axis!r}; its vertices have {', '.join(table.dtype.names or ())}"
            )
    points = np.stack([table[axis].astype(np.float64) for axis in "xyz"], axis=1)
    usual = usual_names(table.dtype.names)
    fields = {
        usual.get(name, name): np.ascontiguousarray(table[name])
        for name in table.dtype.names
        if table.dtype[name].kind in "iuf"
    }
    encoding = "ascii" if data.text else f"binary, {'little' if data.byte_order == '<' else 'big'} endian"
    others = [f"{e.name} ({e.count})" for e in data.elements if e is not element]
    details = {"encoding": encoding, **({"also holds": ", ".join(others)} if others else {})}
    lists = {name: "a list" for name in table.dtype.names if table.dtype[name].kind == "O"}
    details.update(left_out(path, lists, len(table)))
    return PointCloud(points, fields, source=data, path=path, format="ply", details=details)


def write_ply_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write a cloud again as PLY with a property `label` (int32), added or replaced.

    A cloud of another format becomes a binary PLY of x, y, z and its fields of one number a point.
    """
    labels = check_labels(labels, len(cloud))
    plyfile = _plyfile()
    check_labels_fit(cloud, labels)
    if cloud.format != "ply":
        _write_new(structured(cloud, labels, number_fields(cloud)), path)
        return
    source = cloud.source
    element = _vertices(source)
    old = element.data
    kept = [(name, old.dtype[name]) for name in old.dtype.names]
    kinds = [(name, kind if name != "label" else np.dtype("i4")) for name, kind in kept]
    if "label" not in old.dtype.names:
        kinds.append(("label", np.dtype("i4")))
    table = np.empty(len(old), kinds)
    for name in table.dtype.names or ():
        table[name] = labels if name == "label" else old[name]
    lists = {p.name: p for p in element.properties if isinstance(p, plyfile.PlyListProperty)}
    vertex = plyfile.PlyElement.describe(
        table, element.name, comments=element.comments,
        len_types={name: p.list_dtype("")[0] for name, p in lists.items()},
        val_types={name: p.list_dtype("")[1] for name, p in lists.items()},
    )  # fmt: skip
    elements = [vertex if e is element else e for e in source.elements]
    order = source.byte_order if source.text else _order(elements, source.byte_order)
    _write(plyfile.PlyData(elements, source.text, order, source.comments, source.obj_info), path)


def _vertices(data: Any) -> Any:
    """The element `vertex`, or the only one with x, y, z; None without such."""
    placed = [e for e in data.elements if {"x", "y", "z"} <= {p.name for p in e.properties}]
    return next((e for e in data.elements if e.name == "vertex"), placed[0] if len(placed) == 1 else None)


def _ascii_header(path: str) -> Any:
    """`path`, or the file's bytes where its comments are not ASCII: each such byte as DEL and its number."""
    with open(path, "rb") as stream:
        head = stream.read(1 << 16)
        # Each time as much again; a header has no NUL, so that other files are not read whole.
        while (end := _END.search(head)) is None and b"\0" not in head and (more := stream.read(len(head))):
            head += more
        if end is None or (head[: end.start()].isascii() and b"\x7f" not in head[: end.start()]):
            return path
        rest = head[end.start() :] + stream.read()
    return io.BytesIO(_COMMENT.sub(_spelled, head[: end.start()]) + rest)


def _spelled(line: re.Match[bytes]) -> bytes:
    return re.sub(rb"[\x7f-\xff]", lambda byte: b"\x7f%02x" % byte[0][0], line[0])


def _order(elements: Sequence[Any], order: str) -> str:
    """The byte order to write in: plyfile leaves numbers beside lists in the machine's own."""
    lists = [[hasattr(p, "list_dtype") for p in e.properties] for e in elements]
    mixed = any(any(of) and not all(of) for of in lists)
    return {"little": "<", "big": ">"}[sys.byteorder] if mixed else order


def check_labels_fit(cloud: PointCloud, labels: np.ndarray) -> None:
    """PointCloudError where the labels, or the names of the cloud's fields, cannot be written as PLY."""
    check_range(labels, -(2**31), 2**31 - 1, "a label of 32 bits")
    if cloud.format != "ply":
        fields = number_fields(cloud)
        _words(["x", "y", "z", *fields, "label"])
        for name, values in fields.items():
            _kind(name, values)


def write_ply(path: str | os.PathLike[str], points: np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
    """Write a new binary PLY: points (N, 3) as float32, fields name -> (N,), as red, green, blue uint8."""
    check_columns(points, fields)
    columns = {axis: np.asarray(points[:, i], np.float32) for i, axis in enumerate("xyz")} | dict(fields)
    table = np.empty(len(points), [(name, np.asarray(v).dtype) for name, v in columns.items()])
    for name, values in columns.items():
        table[name] = values
    _write_new(table, path)


def _write_new(table: np.ndarray, path: str | os.PathLike[str]) -> None:
    plyfile = _plyfile()
    vertices = plyfile.PlyElement.describe(_plain(table), "vertex")
    _write(plyfile.PlyData([vertices], byte_order="<"), path)


def _plain(table: np.ndarray) -> np.ndarray:
    """The table in types that PLY has."""
    names = table.dtype.names or ()
    kinds = [(word, _kind(name, table[name])) for name, word in zip(names, _words(names))]
    plain = np.empty(len(table), kinds)
    for (new, _), old in zip(kinds, names):
        plain[new] = table[old]
    return plain


def _kind(name: str, values: np.ndarray) -> np.dtype[Any]:
    """The type of a property: PLY has no 64-bit integers, booleans, half or long floats."""
    kind = values.dtype
    if kind.kind == "b":
        return np.dtype("u1")
    if kind.kind in "iu" and kind.itemsize == 8:
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if low >= -(2**31) and high < 2**31:
            return np.dtype("i4")
        if max(-low, high) > 2**53:
            raise PointCloudError(f"field {name!r} reaches {low} or {high}, too far for PLY: write .npy")
        return np.dtype("f8")
    if kind.kind == "f" and kind.itemsize > 8:  # the machine's long double
        return np.dtype("f8")
    return np.dtype("f4") if kind == np.float16 else kind


def _words(names: Sequence[str]) -> list[str]:
    """Names of properties: one ASCII word each; PointCloudError where fields have no such names."""
    words: dict[str, str] = {}
    for name in names:
        word = "_".join(name.split())
        if not (word.isascii() and word.isprintable() and word):
            raise PointCloudError(f"the field {name!r} cannot be in a PLY file, whose names are ASCII; "
                                  "rename it, or write .npy")  # fmt: skip
        if word in words:
            raise PointCloudError(f"the fields {words[word]!r} and {name!r} would both be {word!r} in a PLY "
                                  "file; rename one, or write .npy")  # fmt: skip
        words[word] = name
    return list(words)


def _write(data: Any, path: str | os.PathLike[str]) -> None:
    with atomic_write(path) as stream:
        if "\x7f" not in data.header:
            data.write(stream)
            return
        whole = io.BytesIO()
        data.write(whole)
        end = len(data.header)
        head = whole.getvalue()[:end]
        stream.write(re.sub(rb"\x7f([0-9a-f]{2})", lambda byte: bytes([int(byte[1], 16)]), head))
        stream.write(whole.getbuffer()[end:])
