"""Write a page that shows a point cloud or its voxels in a browser.

One HTML file that needs no network: points or cubes coloured by any field or by class, a legend that hides
classes, and the values of a point at a click.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import CoordinateRangeError, PointCloudError
from ..io.cloud import COLOUR_FIELDS, PointCloud, atomic_write, colour_unit, whole_numbers
from ..io.points import read_points
from ..ops.voxel import Voxels, voxelize
from ..viz.colours import ASPRS
from ..viz.page import CLASS_FIELDS, cloud_page
from .common import UsageError, check_output_file
from .train import positive, positive_float

MAX_POINTS = 2_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse view`."""
    parser.add_argument("cloud", metavar="CLOUD", help="point-cloud file")
    parser.add_argument("-o", "--output", required=True, metavar="PAGE", help="HTML file to write")
    parser.add_argument(
        "--voxel", type=positive_float, metavar="SIZE", help="draw voxels of this edge, in the cloud's unit"
    )
    parser.add_argument("--color", metavar="FIELD", help="field that colours first: any, or x, y, z")
    parser.add_argument("--classes", metavar="FIELD", help="field of classes (default: found by its name)")
    parser.add_argument(
        "--names", type=class_names, metavar="NAMES",
        help='names of the classes: "ground,building,..." for 0, 1, ...; "2=ground,6=building"; '
        '"asprs"; or a JSON file {"2": "ground"}',
    )  # fmt: skip
    parser.add_argument(
        "--max-points", type=positive, default=MAX_POINTS, metavar="N",
        help="a larger cloud is thinned to one point a voxel, and the page says so (default: %(default)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Read, thin or voxelize, write; the page appears whole or not at all."""
    check_output_file(options.output, options.cloud)
    if Path(options.output).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"the output {options.output!r} is a page: name it .html")
    write_page(
        read_points(options.cloud), options.output, voxel=options.voxel, color=options.color,
        classes=options.classes, names=options.names, max_points=options.max_points,
    )  # fmt: skip
    return 0


def write_page(
    cloud: PointCloud,
    path: str | os.PathLike[str],
    *,
    voxel: float | None = None,
    color: str | None = None,
    classes: str | None = None,
    names: Mapping[int, str] | None = None,
    max_points: int = MAX_POINTS,
) -> None:
    """Write the page of a cloud, and print what was left out and what was written.

    voxel: edge of the voxels to draw instead of points. color, classes: names of fields, see
    `cloud_page`. names: class number -> name. A cloud of more than max_points points is thinned.
    Raises PointCloudError for unknown fields, no points, or more than max_points voxels.
    """
    finite = np.isfinite(cloud.points).all(axis=1)
    points = cloud.points[finite]
    fields = {key: values[finite] for key, values in fields_of(cloud, classes).items()}
    notes = []
    if not finite.all():
        notes.append(f"{len(finite) - len(points):,} points without a finite position are left out.")
    edges = None
    if voxel is not None:
        voxels = _voxelize(points, voxel)
        count = voxels.tensor.num_active
        if count > max_points:
            raise PointCloudError(
                f"{cloud.path!r} has {count} voxels of {voxel:g}, more than --max-points {max_points}; "
                "use a larger --voxel, or raise --max-points"
            )
        notes.insert(0, f"Voxels of {voxel:g}, from {len(points):,} points.")
        points, fields = voxel_fields(voxels, fields, classes)
        edges = voxels.voxel_size
    elif len(points) > max_points:
        kept, size = thin(points, max_points)
        share = f"{len(kept):,} of {len(points):,} points"
        notes.insert(0, f"Thinned: {share}, the first in each voxel of {size:.3g}.")
        points, fields = points[kept], {key: values[kept] for key, values in fields.items()}
    page = cloud_page(
        points, fields, title=Path(cloud.path).name, notes=notes, voxel_size=edges, start=color,
        class_field=classes, class_names=names,
    ).encode()  # fmt: skip
    with atomic_write(path) as stream:
        stream.write(page)
    for note in notes:
        print(note)
    kind = "points" if edges is None else "voxels"
    print(f"wrote {os.fspath(path)}: {len(points):,} {kind}, {len(page) / 1e6:.1f} MB")


def fields_of(cloud: PointCloud, class_field: str | None = None) -> dict[str, np.ndarray]:
    """Numeric fields (N,) of a cloud without x, y, z; classes (class_field, or by their names) as integers,
    even where the file has floats, of which NaN is -1; red, green and blue, where not all 0, as "colour"
    uint8 (N, 3), or "colour (rgb)" where there is one."""
    fields = {
        name: np.asarray(values)
        for name, values in cloud.fields.items()
        if name.lower() not in ("x", "y", "z")  # every page has them already
        and np.ndim(values) == 1
        and np.asarray(values).dtype.kind in "fiub"
    }
    for name, values in fields.items():  # some programs write every field as float
        if values.dtype.kind == "f" and (name == class_field or name.lower() in CLASS_FIELDS):
            found = whole_numbers(values)
            fields[name] = values if found is None else found
    if all(name in fields for name in COLOUR_FIELDS):
        colour = np.stack([fields.pop(name) for name in COLOUR_FIELDS], axis=1)
        unit = colour_unit([colour])
        colour = np.nan_to_num(colour).clip(0, unit)
        if unit == 1:
            colour = np.round(255 * colour)
        elif unit == 65535:  # as LAS has it, made of 8 bits by 256 or by 257
            colour = colour // 256
        if colour.any():
            name = "colour"
            while name in fields:  # a field of the cloud's own
                name += " (rgb)"
            fields = {name: colour.astype(np.uint8), **fields}
    return fields


def thin(points: np.ndarray, limit: int) -> tuple[np.ndarray, float]:
    """(rows kept, voxel size): the first point of each voxel, of a size that leaves at most `limit`."""
    with np.errstate(over="ignore"):
        low, high = 0.0, float(np.ptp(points, axis=0).max()) or 1.0
    if not math.isfinite(high):
        raise PointCloudError(
            "the points span more than a float64 holds: remove those that lie far off the others"
        )
    size = high / math.sqrt(limit)  # clouds are surfaces
    best: tuple[Voxels, float] | None = None
    for _ in range(12):
        voxels = _voxelize(points, size)
        count = voxels.tensor.num_active
        if count <= limit:
            best, high = (voxels, size), size
            if count >= 0.8 * limit:
                break
        else:
            low = size
        guess = size * math.sqrt(count / (0.9 * limit))
        size = guess if low < guess < high else (low + high) / 2
    if best is None:  # a single voxel always fits
        best = _voxelize(points, 2 * high), 2 * high
    rows = np.array(best[0].point_to_voxel)
    first = np.empty(best[0].tensor.num_active, np.int64)
    first[rows[::-1]] = np.arange(len(rows))[::-1]
    return np.sort(first), best[1]


def voxel_fields(
    voxels: Voxels, fields: dict[str, np.ndarray], class_field: str | None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Centres (V, 3) and fields (V,) of voxels: the mean of numbers and colours, the most frequent class."""
    rows = np.array(voxels.point_to_voxel)
    count = voxels.tensor.num_active
    sizes = np.bincount(rows, minlength=count)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(rows, values.astype(np.float64), minlength=count) / sizes

    result: dict[str, np.ndarray] = {}
    for name, values in fields.items():
        whole = values.dtype.kind in "iub" and values.ndim == 1
        if whole and (name == class_field or name.lower() in CLASS_FIELDS):
            numbers, index = np.unique(values, return_inverse=True)
            result[name] = numbers[np.array(voxels.mode(index.astype(np.int32)))]
        elif values.ndim == 2:
            channels = [np.round(mean(values[:, c])) for c in range(values.shape[1])]
            result[name] = np.stack(channels, axis=1).astype(np.uint8)
        else:
            result[name] = mean(values)
    result["points in voxel"] = sizes
    sites = np.array(voxels.tensor.coords)[:, 1:].astype(np.float64)
    return (sites + 0.5) * voxels.voxel_size + voxels.origin, result


def class_names(text: str) -> dict[int, str]:
    """Class number -> name, from the forms that --names takes."""
    if text.lower() == "asprs":
        return dict(ASPRS)
    try:
        if text.endswith(".json"):
            return {int(number): str(name) for number, name in json.loads(Path(text).read_text()).items()}
        if not text:
            raise ValueError("an unset variable of a shell")
        parts = [part.strip() for part in text.split(",")]
        if "=" in text:
            pairs = [part.split("=", 1) for part in parts]
            return {int(number): name.strip() for number, name in pairs}
        return dict(enumerate(parts))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} gives no class names: {error}") from None
    except (ValueError, AttributeError):
        form = '{"number": "name"}' if text.endswith(".json") else "number=name,number=name or name,name"
        raise argparse.ArgumentTypeError(f"{text!r} gives no class names: {form} is needed") from None


def _voxelize(points: np.ndarray, size: float) -> Voxels:
    """Voxels with no feature but a 1, counted from the lowest corner of the cloud."""
    origin = points.min(axis=0).tolist() if len(points) else [0.0, 0.0, 0.0]
    try:
        with mx.stream(mx.cpu):
            return voxelize(points, np.ones((len(points), 1), np.float32), size, origin=origin)
    except CoordinateRangeError:
        raise PointCloudError(
            f"the points span more than 2**30 voxels of {size:.3g}: remove those that lie far off the "
            "others, or use a larger --voxel"
        ) from None
