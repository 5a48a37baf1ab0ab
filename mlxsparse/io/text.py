"""Points as text: one row each, columns apart by blanks, commas or semicolons (.xyz, .txt, .csv, .asc, .pts).

Column names come from a header line, which may be a comment; without one from the values (`column_names`).
A header that is no comment and does not say which columns are x, y and z is an error, but of three columns.
Rows are kept as they were, so that no digit changes when labels are added.
"""

from __future__ import annotations

import codecs
import io
import os
import re
from dataclasses import dataclass

import numpy as np

from ..errors import PointCloudError
from .cloud import PointCloud, atomic_write, check_labels, column_names

_ALIASES = {"r": "red", "g": "green", "b": "blue", "i": "intensity", "class": "label", "labels": "label"}
_AXIS = re.compile(r"([xyz])[ _]?[\[(]?m(?:et(?:er|re)s?)?[\])]?")  # x_m, "y [m]", z(metres)
_DELIMITERS = (b",", b";", b"\t", None)  # None: blanks


@dataclass
class TextSource:
    """before: lines before the rows. header: which of them names the columns, or None. rows: as they were.
    names: of the columns. delimiter: of the rows, None for blanks. apart: what a further column of a row, and
    of the header, comes after. mark: the byte order mark before it all, or nothing."""

    before: list[bytes]
    header: int | None
    rows: list[bytes]
    names: list[str]
    delimiter: bytes | None
    apart: tuple[bytes, bytes]
    mark: bytes = b""


def looks_like_text(head: bytes) -> bool:
    """Whether the first bytes of a file are text whose first row of numbers has three or more of them."""
    if b"\0" in head:
        return False
    lines = head.removeprefix(codecs.BOM_UTF8).splitlines()[: -1 if len(head) >= 4096 else None]
    return any(_numbers(line) >= 3 for line in lines if not is_comment(line))


def is_comment(line: bytes) -> bool:
    """Whether the line begins with # or //."""
    return line.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"#", b"//"))


def read_text(path: str | os.PathLike[str]) -> PointCloud:
    """Read points from text; fields are float64, by the names of the header or the order of the columns."""
    path = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except (OSError, MemoryError) as error:
        raise PointCloudError(f"cannot read {path!r}: {error}") from error
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    lines = content[len(mark) :].splitlines()
    clean = (i for i, line in enumerate(lines) if _numbers(line) >= 3 and not is_comment(line))
    first = next(clean, len(lines))
    before, rows = lines[:first], [line for line in lines[first:] if line.strip()]
    if not rows:
        raise PointCloudError(f"{path!r} has no row of three or more numbers")
    delimiter = _delimiter(rows[0])
    try:
        table = np.loadtxt(
            io.BytesIO(b"\n".join(rows)),
            ndmin=2,
            comments=None,
            delimiter=delimiter.decode() if delimiter else None,
        )
    except ValueError as error:
        raise PointCloudError(f"{path!r} is damaged or ends early: {error}") from error
    header, names, between = _named(before, table.shape[1], delimiter, path)
    lost = next((i for i, line in enumerate(before) if i != header and _is_broken_row(line)), None)
    if lost is not None:
        shown = before[lost].decode("utf-8", "backslashreplace").strip()
        raise PointCloudError(
            f"{path!r}, line {lost + 1}, {shown[:60]!r}: no row of three or more numbers and nothing else; "
            "mend it, or put # before it if it is no point"
        )
    count = _stated_count(before)
    if names is None:
        names = column_names(table, pts=count is not None)
    if count is not None and count != len(rows):
        raise PointCloudError(f"{path!r} says it has {count} points; {len(rows)} rows are there")
    fields = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    points = np.stack([fields[axis] for axis in "xyz"], axis=1)
    apart = _mark(rows[0], delimiter)
    source = TextSource(before, header, rows, names, delimiter, (apart, between or apart), mark)
    return PointCloud(
        points, fields, source=source, path=path, format="text", details={"columns": " ".join(names)}
    )


def write_text_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write a cloud of `read_text` again, each row as it was, the label in a last column (or replaced)."""
    source: TextSource = cloud.source
    labels = check_labels(labels, len(cloud))
    apart, between = source.apart
    before = list(source.before)
    place = source.names.index("label") if "label" in source.names else None
    if place is None and source.header is not None:
        before[source.header] = before[source.header].rstrip() + between + b"label"
    elif place is None:
        before.append(b"# " + apart.join(name.encode() for name in [*source.names, "label"]))
    with atomic_write(path) as stream:
        stream.write(source.mark)
        for line in before:
            stream.write(line + b"\n")
        for row, label in zip(source.rows, labels.tolist()):
            if place is None:
                stream.write(row.rstrip() + apart + b"%d\n" % label)
            elif source.delimiter is not None:
                cells = row.split(source.delimiter)
                cells[place] = b"%d" % label
                stream.write(source.delimiter.join(cells) + b"\n")
            else:
                start, end = [word.span() for word in re.finditer(rb"\S+", row)][place]
                stream.write(row[:start] + b"%d" % label + row[end:] + b"\n")


def _delimiter(row: bytes) -> bytes | None:
    return next((mark for mark in (b",", b";") if mark in row), None)


def _numbers(line: bytes) -> int:
    """How many numbers the line is made of; 0 if it holds anything else."""
    try:
        return len([float(word) for word in line.split(_delimiter(line))])
    except ValueError:
        return 0


def _is_broken_row(line: bytes) -> bool:
    """Whether a line before the rows is a point that cannot be read: most of it, or its start, is numbers."""
    cells = line.split(_delimiter(line))
    if is_comment(line) or not line.strip() or line.strip().isdigit():  # nothing else than a count
        return False
    numeric = [_numbers(cell.strip()) == 1 for cell in cells]
    return numeric[0] or 2 * sum(numeric) > len(cells)


def _named(
    before: list[bytes], columns: int, delimiter: bytes | None, path: str
) -> tuple[int | None, list[str] | None, bytes | None]:
    """The last line before the rows that names every column, the names, and what is between them; else None.

    PointCloudError for a line that names columns, but not these.
    """
    for at in reversed(range(len(before))):
        for mark in dict.fromkeys((delimiter, *_DELIMITERS)):
            words = _words(before[at], mark)
            names = _usual(words)
            if len(names) == columns and {"x", "y", "z"} <= set(names) and len(set(names)) == columns:
                return at, names, _mark(before[at], mark)
    last = next((line for line in reversed(before) if line.strip()), b"")
    if is_comment(last):
        return None, None, None
    for mark in _DELIMITERS:
        words = _words(last, mark)
        axes = {"x", "y", "z"} <= set(_usual(words))
        if axes or (len(words) == columns > 3 and not any(_numbers(word.encode()) for word in words)):
            why = f"a row has {columns}, each with its own" if axes else "x, y and z must be among them"
            raise PointCloudError(
                f"{path!r} names its columns {', '.join(words)[:80]!r}: {why}; mend the line, or put # in "
                "front of it to have the first three columns taken as x, y, z"
            )
    return None, None, None


def _mark(line: bytes, delimiter: bytes | None) -> bytes:
    """What a further column comes after."""
    return delimiter or (b"\t" if b"\t" in line.strip() else b" ")


def _words(line: bytes, delimiter: bytes | None) -> list[str]:
    text = line.decode("utf-8", "replace").strip().lstrip("#/").strip()
    return [w.strip().strip('"').lower() for w in text.split(delimiter.decode() if delimiter else None)]


def _usual(words: list[str]) -> list[str]:
    """The usual names of columns, each once: class keeps its own beside label."""
    names: list[str] = []
    for word in words:
        axis = _AXIS.fullmatch(word)
        usual = axis[1] if axis else _ALIASES.get(word, word)
        names.append(word if usual != word and (usual in words or usual in names) else usual)
    return names


def _stated_count(before: list[bytes]) -> int | None:
    """The number of points where a line holds nothing else, as in .pts files."""
    alone = [line.strip() for line in before if line.strip().isdigit()]
    return int(alone[0]) if len(alone) == 1 else None
