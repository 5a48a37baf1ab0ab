"""Points as text: one row each, columns apart by blanks, commas or semicolons (.xyz, .txt, .csv, .asc, .pts).

Column names come from a header line, which may be a comment; without one from the values (`column_names`).
A header that is no comment and does not say which columns are x, y and z is an error, but of three columns.
Rows, and comments between them, are kept as they were, so that no digit changes when labels are added. Every
row may end in the delimiter.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import warnings
from dataclasses import dataclass, field

import numpy as np

from ..errors import PointCloudError
from .cloud import SHORT_NAMES, PointCloud, atomic_write, check_labels, column_names, whole_bytes

_ALIASES = {**SHORT_NAMES, "class": "label", "labels": "label"}
_AXIS = re.compile(r"([xyz])[ _]?[\[(]?m(?:et(?:er|re)s?)?[\])]?")  # x_m, "y [m]", z(metres)
_DELIMITERS = (b",", b";", b"\t", None)  # None: blanks
_OTHERS = (  # other texts with rows of numbers, by a line before them
    (re.compile(rb"(?i)n(col|row)s\s+\d+\s*$"), "an ESRI grid, a raster of heights: make points of it, "
     "as `gdal_translate -of XYZ` does"),
    (re.compile(rb"(ST)?C?N?4?n?OFF\b"), "an OFF mesh: save its vertices as .ply"),
    (re.compile(rb"DATASET\s+[A-Z_]+\s*$"), "a VTK file: save its points as .ply"),
    (re.compile(rb"v(\s+[-+.\d]\S*){3}"), "a Wavefront OBJ mesh: save its vertices as .ply"),
    (re.compile(rb"facet\s+normal\s|vertex\s+[-+.\d]|endsolid\b"), "an STL mesh: save its vertices as .ply"),
)  # fmt: skip


@dataclass
class TextSource:
    """before: lines before the rows. header: which of them names the columns, or None. rows: as they were.
    names: of the columns. delimiter: of the rows, None for blanks. apart: what a further column of a row, and
    of the header, comes after. mark: the byte order mark before it all, or nothing. comments: those between
    the rows, by the row that they come before. closed: whether each row ends in the delimiter."""

    before: list[bytes]
    header: int | None
    rows: list[bytes]
    names: list[str]
    delimiter: bytes | None
    apart: tuple[bytes, bytes]
    mark: bytes = b""
    comments: dict[int, list[bytes]] = field(default_factory=dict)
    closed: bool = False


def looks_like_text(head: bytes) -> bool:
    """Whether the first bytes of a file are text whose first row of numbers has three or more of them."""
    if b"\0" in head:
        return False
    lines = head.removeprefix(codecs.BOM_UTF8).splitlines()[: -1 if len(head) >= 4096 else None]
    return any(_numbers(line, closed=True) >= 3 for line in lines if not is_comment(line))


def other_format(head: bytes) -> str:
    """What the first bytes of a file are where they are another text with points, in words; "" else."""
    return "" if b"\0" in head else _other_format(head.removeprefix(codecs.BOM_UTF8).splitlines())


def column_of_words(head: bytes) -> str:
    """Where the first row that has three numbers or more has something else, in words; "" without such."""
    lines = head.removeprefix(codecs.BOM_UTF8).splitlines()
    for at, line in enumerate([] if b"\0" in head else lines):
        cells = [cell.strip() for cell in line.split(_delimiter(line))]
        other = [i for i, cell in enumerate(cells) if _numbers(cell) != 1]
        if not is_comment(line) and other and len(cells) - len(other) >= max(3, len(other)):
            return _no_number(at + 1, line, other[0], cells)
    return ""


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
    first = _first_row(lines, closed=True)
    closed = _is_closed(lines[first:])
    if not closed:
        first = _first_row(lines)
    before, rows = lines[:first], [line for line in lines[first:] if line.strip()]
    other = _other_format(before)
    if other:
        raise PointCloudError(f"{path!r} is {other}")
    if not rows:
        raise PointCloudError(f"{path!r} has no row of three or more numbers")
    comments: dict[int, list[bytes]] = {}
    # Counted, as that is far quicker than a look at each row.
    if any(content.count(sign) > sum(line.count(sign) for line in before) for sign in (b"#", b"//")):
        rows, comments = _apart(rows)
    delimiter = _delimiter(rows[0])
    try:
        table = np.loadtxt(
            io.BytesIO(b"\n".join(line.rstrip()[:-1] for line in rows) if closed else b"\n".join(rows)),
            ndmin=2,
            comments=None,
            delimiter=delimiter.decode() if delimiter else None,
        )
    except ValueError as error:
        why = _wrong_row(lines, first, delimiter, closed) or error
        raise PointCloudError(f"{path!r} is damaged or ends early: {why}") from error
    header, names, between = _named(before, table.shape[1], delimiter, path)
    lost = next((i for i, line in enumerate(before) if i != header and _is_broken_row(line)), None)
    if lost is not None:
        raise PointCloudError(
            f"{path!r}, line {lost + 1}, {_shown(before[lost])}: no row of three or more numbers and nothing "
            "else; mend it, or put # before it if it is no point"
        )
    count = _stated_count(before)
    if names is None:
        names = column_names(table, pts=count is not None)
        if len(names) == 7 and "red" not in names and all(whole_bytes(table[:, 3:])):
            warnings.warn(
                f"{path!r} does not say which columns are colours, nor do the values: they are column_4 "
                "to column_7; name them in a first line, such as `# x y z intensity r g b`",
                stacklevel=3,
            )
    if count is not None and count != len(rows):
        raise PointCloudError(f"{path!r} says it has {count} points; {len(rows)} rows are there")
    fields = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    points = np.stack([fields[axis] for axis in "xyz"], axis=1)
    apart = _mark(rows[0], delimiter)
    marks = apart, between or apart
    source = TextSource(before, header, rows, names, delimiter, marks, mark, comments, closed)
    return PointCloud(
        points, fields, source=source, path=path, format="text", details={"columns": " ".join(names)}
    )


def write_text_labels(cloud: PointCloud, labels: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write a cloud of `read_text` again, each row as it was, the label in a last column (or replaced)."""
    source: TextSource = cloud.source
    labels = check_labels(labels, len(cloud))
    (apart, between), comments = source.apart, source.comments
    before = list(source.before)
    place = source.names.index("label") if "label" in source.names else None
    if place is None and source.header is not None:
        before[source.header] = _with_cell(before[source.header], between, b"label", source.closed)
    elif place is None:
        before.append(b"# " + apart.join(name.encode() for name in [*source.names, "label"]))
    # A row that is closed ends in `apart` already.
    ending = (b"%d" + apart if source.closed else apart + b"%d") + b"\n"
    with atomic_write(path) as stream:
        stream.write(source.mark)
        for line in before:
            stream.write(line + b"\n")
        for at, (row, label) in enumerate(zip(source.rows, labels.tolist())):
            if at in comments:
                for line in comments[at]:
                    stream.write(line + b"\n")
            if place is None:
                stream.write(row.rstrip() + ending % label)
            elif source.delimiter is not None:
                cells = row.split(source.delimiter)
                cells[place] = b"%d" % label
                stream.write(source.delimiter.join(cells) + b"\n")
            else:
                start, end = [word.span() for word in re.finditer(rb"\S+", row)][place]
                stream.write(row[:start] + b"%d" % label + row[end:] + b"\n")
        for line in comments.get(len(source.rows), ()):
            stream.write(line + b"\n")


def _with_cell(line: bytes, apart: bytes, cell: bytes, closed: bool) -> bytes:
    line = line.rstrip()
    return line + cell + apart if closed and line.endswith(apart) else line + apart + cell


def _delimiter(row: bytes) -> bytes | None:
    return next((mark for mark in (b",", b";") if mark in row), None)


def _first_row(lines: list[bytes], *, closed: bool = False) -> int:
    """Where the first row of three numbers is, or how many lines there are."""
    clean = (i for i, line in enumerate(lines) if _numbers(line, closed=closed) >= 3 and not is_comment(line))
    return next(clean, len(lines))


def _other_format(lines: list[bytes]) -> str:
    found = (what for line in lines for pattern, what in _OTHERS if pattern.match(line.lstrip()))
    return next(found, "")


def _is_closed(lines: list[bytes]) -> bool:
    """Whether each row ends in the delimiter of the first line, a row."""
    delimiter = _delimiter(lines[0]) if lines else None
    rows = (line for line in lines if line.strip() and not is_comment(line))
    return delimiter is not None and all(line.rstrip().endswith(delimiter) for line in rows)


def _apart(lines: list[bytes]) -> tuple[list[bytes], dict[int, list[bytes]]]:
    """The rows, and the comments by the row that they come before."""
    rows: list[bytes] = []
    comments: dict[int, list[bytes]] = {}
    for line in lines:
        if is_comment(line):
            comments.setdefault(len(rows), []).append(line)
        else:
            rows.append(line)
    return rows, comments


def _cells(line: bytes, delimiter: bytes | None, closed: bool) -> list[bytes]:
    return (line.rstrip()[:-1] if closed else line).split(delimiter)


def _wrong_row(lines: list[bytes], first: int, delimiter: bytes | None, closed: bool) -> str:
    """The first row that has another number of columns than the one at `first`, or no numbers, in words."""
    columns = len(_cells(lines[first], delimiter, closed))
    for at, line in enumerate(lines[first:], first + 1):
        cells = _cells(line, delimiter, closed)
        if not line.strip() or is_comment(line):
            continue
        wrong = next((i for i, cell in enumerate(cells) if _numbers(cell.strip()) != 1), None)
        if wrong is not None:
            return _no_number(at, line, wrong, cells)
        if len(cells) != columns:
            return f"line {at}, {_shown(line)}, has {len(cells)} columns, the rows before it have {columns}"
    return ""


def _no_number(at: int, line: bytes, cell: int, cells: list[bytes]) -> str:
    return f"line {at}, {_shown(line)}: column {cell + 1}, {_shown(cells[cell])}, is no number"


def _shown(line: bytes) -> str:
    return repr(line.decode("utf-8", "backslashreplace").strip()[:60])


def _numbers(line: bytes, *, closed: bool = False) -> int:
    """How many numbers the line is made of; 0 if it holds anything else. closed: a delimiter may end it."""
    delimiter = _delimiter(line)
    line = line.rstrip()
    if closed and delimiter and line.endswith(delimiter):
        line = line[:-1]
    try:
        return len([float(word) for word in line.split(delimiter)])
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
    if delimiter:
        text = text.removesuffix(delimiter.decode())
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
