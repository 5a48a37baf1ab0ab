"""Say what is in point-cloud files: format, extent, CRS, fields, classes.

Reads LAS, LAZ, COPC, PCD (ascii, binary, compressed), PLY, KITTI and nuScenes .bin, .npy, .npz and text.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from ..errors import MLXSparseError, PointCloudError
from ..io.cloud import NAMES, PointCloud
from ..io.points import read_points
from ..tasks.classes import labels_of
from ..tasks.data import half_size
from ..viz.page import field_digits, number_text

_MOST_CLASSES = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mlxsparse info`."""
    parser.add_argument("clouds", nargs="+", metavar="CLOUD", help="point-cloud file")


def run(options: argparse.Namespace) -> int:
    """Describe each file; status 1 if one cannot be read, after the others were described."""
    status = 0
    for path in options.clouds:
        try:
            lines = describe(read_points(path))
        except (MLXSparseError, OSError, MemoryError) as error:
            words = "out of memory: " * isinstance(error, MemoryError) + " ".join(str(error).split())
            print(f"mlxsparse: error: {words if path in words else f'{path!r}: {words}'}", file=sys.stderr)
            status = 1
        else:
            print("\n".join(lines), flush=True)
    return status


def describe(cloud: PointCloud) -> list[str]:
    """Lines of text about a cloud."""
    finite = np.isfinite(cloud.points).all(axis=1)
    lost = len(cloud) - int(finite.sum())
    lines = [cloud.path, f"  {'format':<11}{NAMES[cloud.format]}"]
    lines += [f"  {key:<11}{value}" for key, value in cloud.details.items()]
    lines.append(
        f"  {'points':<11}{len(cloud)}" + (f", {lost} of them without a finite position" if lost else "")
    )
    if finite.any():
        xyz = cloud.points[finite]
        lines += [f"  {axis:<11}{range_text(xyz[:, i])}" for i, axis in enumerate("xyz")]
        try:
            lines.append(f"  {'voxels':<11}half as many as different points at voxel size {half_size(xyz):g}")
        except PointCloudError as error:
            lines.append(f"  {'voxels':<11}none: {error}")
    for name, values in cloud.fields.items():
        if name not in ("x", "y", "z"):
            lines.append(f"  {name:<22}{_range(values)}")
    return lines + _classes(cloud)


def _range(values: np.ndarray) -> str:
    kind = str(values.dtype) + "".join(f" x {n}" for n in values.shape[1:])
    if values.dtype.kind not in "iufb":
        return kind
    known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not known.size:
        return kind
    return f"{kind:<9} {range_text(known)}"


def range_text(values: np.ndarray) -> str:
    """Least and most of numbers (N >= 1): whole ones whole, others with the digits that their span needs."""
    low, high = values.min(), values.max()
    digits = field_digits(float(high) - float(low))
    return f"{number_text(low, digits)} to {number_text(high, digits)}"


def _classes(cloud: PointCloud) -> list[str]:
    try:
        numbers, counts = np.unique(labels_of(cloud), return_counts=True)
    except PointCloudError:
        return ["  no classes: labels can be made by `mlxsparse segment`, not trained on"]
    shown = [
        f"  class {n:<8}{c} points ({100 * c / len(cloud):.1f}%)" + ", which is no label" * bool(n < 0)
        for n, c in zip(numbers, counts)
    ]
    return shown[:_MOST_CLASSES] + (
        [f"  and {len(shown) - _MOST_CLASSES} more"] * (len(shown) > _MOST_CLASSES)
    )
