"""A cloud as one HTML page that draws it: no server, nothing fetched, opened from a file.

    html = cloud_page(points, {"intensity": values}, title="street.laz")

The page is the template page.html with three parts put in: what the page shows (JSON), its numbers (zlib,
then base64) and the script viewer.min.js, which tools/viewer makes from three.js. The numbers are columns,
each starting at a multiple of 4 bytes: positions float32 (N, 3) relative to the middle of the bounds, then
the fields.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from ..errors import PointCloudError
from .colours import class_colour

#: Names of fields that hold a class of each point; compared in lower case.
CLASS_FIELDS = (
    "classification", "label", "class", "labels", "prediction", "truth", "semantic",
    "segment", "scalar_label", "scalar_classification",
)  # fmt: skip
MAX_CLASSES = 256
_FARTHEST = 1e38  # float32, in which the page computes, ends at 3.4e38


@dataclass
class _Columns:
    """Numbers of the page, one column after the other."""

    data: bytearray

    def add(self, values: np.ndarray) -> dict[str, Any]:
        """Where the script finds `values`: type, byte offset, length."""
        values = np.ascontiguousarray(values)
        self.data.extend(b"\0" * (-len(self.data) % 4))
        at = len(self.data)
        self.data.extend(values.tobytes())
        return {"type": values.dtype.str[1:], "at": at, "length": values.size}


def cloud_page(
    points: np.ndarray,
    fields: Mapping[str, np.ndarray],
    *,
    title: str,
    notes: Sequence[str] = (),
    voxel_size: Sequence[float] | None = None,
    start: str | None = None,
    class_field: str | None = None,
    class_names: Mapping[int, str] | None = None,
) -> str:
    """HTML text of a page that draws points, or cubes around them.

    points: (N, 3) float, finite, x y z in any unit; N >= 1. fields: name -> numbers (N,), or colours
    uint8 (N, 3). notes: sentences shown below the controls. voxel_size: edges (x, y, z) of the cubes, of
    which `points` are then the centres. start: the field that colours first; default classes, else
    colours, else z. class_field: the field shown as classes; default the first with a name of
    `CLASS_FIELDS` that can be. class_names: names of class numbers.

    x, y and z are fields of every page. A field with one value throughout is only named, with it,
    unless it is `start`. Raises PointCloudError for no points, an unknown `start` or `class_field`, and
    for a class field with other than whole numbers or more than 256 values, and for points too far apart for
    float32. Field values beyond 1e38 count as infinite.
    """
    points = np.asarray(points, np.float64)
    if len(points) == 0:
        raise PointCloudError("there is no point with a finite position to draw")
    for name in (start, class_field):
        if name is not None and name not in fields and (name not in ("x", "y", "z") or name == class_field):
            known = ", ".join(["x", "y", "z", *fields])
            raise PointCloudError(f"the cloud has no field {name!r}; it has {known}")
    if class_field is None:
        named = (name for name in fields if name.lower() in CLASS_FIELDS)
        class_field = next((name for name in named if _is_classes(fields[name])), None)
    elif not _is_classes(fields[class_field]):
        raise PointCloudError(
            f"the field {class_field!r} cannot be shown as classes: "
            f"whole numbers with at most {MAX_CLASSES} values are needed"
        )

    low, high = points.min(axis=0), points.max(axis=0)
    if not (high / 2 - low / 2 < _FARTHEST).all():
        raise PointCloudError(
            f"the points reach from {low.tolist()} to {high.tolist()}, too far apart to draw in float32: "
            "remove the points that lie far off the others"
        )
    centre = low / 2 + high / 2
    columns = _Columns(bytearray())
    local = (points - centre).astype(np.float32)
    page: dict[str, Any] = {
        "title": title,
        "kind": "points" if voxel_size is None else "voxels",
        "count": len(points),
        "centre": centre.tolist(),
        "focus": np.percentile(local, (1, 99), axis=0).tolist(),
        "digits": _digits(float(np.max(high - low))),
        "positions": columns.add(local),
    }
    if voxel_size is not None:
        half = np.asarray(voxel_size, np.float64) / 2
        page["voxel"] = (2 * half).tolist()
        low, high = low - half, high + half
        page["focus"] = (np.array(page["focus"]) + [-half, half]).tolist()
    page["low"], page["high"] = low.tolist(), high.tolist()

    shown: list[dict[str, Any]] = []
    constant: dict[str, list[str]] = {}
    for name, values in fields.items():
        values = np.asarray(values)
        if name != start and name != class_field and values.ndim == 1 and _is_constant(values):
            constant.setdefault(number_text(values[0]), []).append(name)
            continue
        described = _field(columns, values, name == class_field, class_names)
        shown.append({"name": name, "label": name, **described})
    for axis, (name, label) in enumerate((("x", "x"), ("y", "y"), ("z", "z (height)"))):
        shown.append({"name": name, "label": label, "axis": axis, **_range(points[:, axis])})
    page["fields"] = shown
    colours = next((f["name"] for f in shown if f["kind"] == "rgb"), "z")
    classes = next((f["name"] for f in shown if f["kind"] == "class" and len(f["classes"]) > 1), colours)
    page["start"] = start or classes
    page["notes"] = list(notes)
    page["constant"] = [f"{', '.join(names)} = {value}" for value, names in constant.items()]

    packed = base64.b64encode(zlib.compress(bytes(columns.data), 6)).decode()
    folder = resources.files(__package__)
    text = (folder / "page.html").read_text(encoding="utf-8")
    # "<" would end the script element that the JSON stands in.
    shows = json.dumps(page, allow_nan=False).replace("<", "\\u003c")
    viewer = (folder / "viewer.min.js").read_text(encoding="utf-8")
    parts = {"@PAGE@": shows, "@DATA@": packed, "@VIEWER@": viewer}
    # Of the template alone: a name may hold a mark as well.
    return "".join(parts.get(part, part) for part in re.split("(@PAGE@|@DATA@|@VIEWER@)", text))


def _is_classes(values: np.ndarray) -> bool:
    values = np.asarray(values)
    return values.ndim == 1 and values.dtype.kind in "iub" and len(np.unique(values)) <= MAX_CLASSES


def _is_constant(values: np.ndarray) -> bool:
    return bool(np.all(values == values[0]))


def _digits(span: float) -> int:
    """Digits after the point that tell 1/100,000 of `span` apart, 6 at most."""
    return min(field_digits(span), 6) if span > 0 else 3


def field_digits(span: float) -> int:
    """Digits after the point that tell 1/100,000 of `span` apart, 100 (the most of a script) of 0."""
    return int(np.clip(5 - np.floor(np.log10(span)), 0, 100)) if span > 0 else 100


def number_text(value: Any, digits: int = 100) -> str:
    """A NumPy number in its shortest form, rounded to `digits` after the point; whole ones whole."""
    if value.dtype.kind != "f":
        return str(int(value))
    if digits < 100:
        value = np.float64(round(float(value), digits))
    return str(int(value)) if float(value).is_integer() and abs(float(value)) < 2**53 else str(value)


def _field(
    columns: _Columns, values: np.ndarray, classes: bool, names: Mapping[int, str] | None
) -> dict[str, Any]:
    """Description of a field for the script; its numbers go into `columns`."""
    if values.ndim == 2:
        return {"kind": "rgb", "values": columns.add(values.astype(np.uint8))}
    if classes:
        numbers, index, counts = np.unique(values, return_inverse=True, return_counts=True)
        legend = []
        for place, (number, count) in enumerate(zip(numbers.tolist(), counts.tolist())):
            number = int(number)
            name = (names or {}).get(number, f"class {number}")
            colour = class_colour(place, name)
            legend.append({"value": number, "name": name, "count": count, "colour": colour})
        return {"kind": "class", "classes": legend, "values": columns.add(index.astype(np.uint8))}
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        values[values > _FARTHEST], values[values < -_FARTHEST] = np.inf, -np.inf
    finite = values if values.dtype.kind in "iu" else values[np.isfinite(values)]
    base = float(finite.min()) if len(finite) else 0.0
    span = (float(finite.max()) - base) if len(finite) else 0.0
    shifted = values.astype(np.float64) - base
    if values.dtype.kind in "iu" and len(values):  # float64 has no more than 2**53 of them
        shifted = values.astype(np.uint64) - values.min().astype(np.uint64)
    # Counted from the lowest, whole numbers are exact, also where a file has them as floats.
    whole = len(finite) == len(values) and bool(np.all(shifted == np.floor(shifted)))
    kinds = [k for k in (np.uint8, np.uint16, np.uint32) if whole and span <= np.iinfo(k).max]
    return {**_range(finite), "base": base, "values": columns.add(shifted.astype([*kinds, np.float32][0]))}


def _range(values: np.ndarray) -> dict[str, Any]:
    """The range that colours span: the middle 98% of the values, all where that is one value."""
    if len(values) == 0:
        return {"kind": "number", "low": 0.0, "high": 1.0, "digits": 0, "clipped": False}
    lowest, highest = float(values.min()), float(values.max())
    whole = values.dtype.kind in "iu" or bool(np.all(values == np.floor(values)))
    method: Any = "nearest" if whole else "linear"  # of whole numbers, one of them
    low, high = (float(v) for v in np.percentile(values, (1, 99), method=method))
    if low == high:
        low, high = lowest, highest
    # As float32 tells apart, counted from the lowest; values far above do not take digits from the others.
    digits = 0 if whole else field_digits(high - lowest)
    clipped = low > lowest or high < highest
    return {"kind": "number", "low": low, "high": high, "digits": digits, "clipped": clipped}
