"""Sparse tensors in safetensors files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..backend import host
from ..backend.features import zero_padding
from ..coords import CoordinateManager
from ..coords.checks import manager_of
from ..errors import CheckpointError, MLXSparseError
from ..files import atomic_write
from ..tensor import SparseTensor
from .check import check_tensor

FORMAT, VERSION = "mlxsparse.SparseTensor", 1
MAX_HEADER = 1 << 20  # bytes; ours has a few hundred
_TYPES: dict[str, Any] = {"I32": np.int32, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_ARRAYS = {"coords", "feats", "batch_counts"}


def save(path: str | os.PathLike[str], x: SparseTensor) -> None:
    """Write a sparse tensor as a safetensors file, which appears whole or not at all.

    Arrays coords (capacity, 4) int32, feats (capacity, C) in x's dtype and batch_counts (B,) int32;
    stride, batch_size, spatial_shape, active_rows, capacity rule and format version are metadata.
    Raises CheckpointError if the file cannot be written.
    """
    check_tensor(x)
    x.check()
    key = x.key
    coords = np.array(host.view(x.coords))
    coords[key.count :] = (-1, 0, 0, 0)
    feats = zero_padding(x.feats, x.active_rows)
    arrays = {
        "coords": coords,
        "feats": host.view(feats.view(mx.uint16) if x.dtype == mx.bfloat16 else feats),
        "batch_counts": key.counts.astype(np.int32),
    }
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "stride": json.dumps(x.stride),
        "batch_size": json.dumps(x.batch_size),
        "spatial_shape": json.dumps(x.spatial_shape),
        "active_rows": json.dumps(key.count),
        "fixed_capacity": json.dumps(key.fixed_capacity),
    }
    with atomic_write(path, CheckpointError) as stream:
        # Not mx.save_safetensors, which refuses arrays without elements in some versions.
        stream.write(_bytes(arrays, metadata))


def load(path: str | os.PathLike[str], *, manager: CoordinateManager | None = None) -> SparseTensor:
    """The sparse tensor that `save` wrote, with a new key.

    The file is checked before its contents are believed (sizes, types, coordinates, counts);
    CheckpointError if it is missing, truncated, malformed, or of another format or version.
    """
    name, manager = os.fspath(path), manager_of(manager)
    try:
        arrays, metadata = _read(Path(path))
        return _restore(arrays, metadata, manager)
    except OSError as error:
        raise CheckpointError(f"cannot read {name!r}: {error}") from error
    except (MLXSparseError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{name!r} does not hold a sparse tensor of mlxsparse.save: {error}") from error


def _bytes(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """A safetensors file: length of the header, JSON header, arrays."""
    names = {np.dtype(kind): name for name, kind in _TYPES.items()}
    header: dict[str, Any] = {"__metadata__": metadata}
    parts, at = [], 0
    for name, array in arrays.items():
        part = array.astype(array.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(part)],
        }
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8 bytes
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _read(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    """Arrays and metadata of a safetensors file whose parts lie within it."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise CheckpointError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length).decode("utf-8"))
        if not isinstance(header, dict):
            raise CheckpointError("the header is not a JSON object")
        metadata = header.pop("__metadata__", None)
        if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
            raise CheckpointError(f"its metadata does not name the format {FORMAT}")
        if metadata.get("version") != str(VERSION):
            raise CheckpointError(
                f"it has format version {metadata.get('version')!r}, this mlxsparse reads {VERSION}"
            )
        if set(header) != _ARRAYS:
            raise CheckpointError(f"it holds {sorted(header)}, wanted {sorted(_ARRAYS)}")
        return {name: _array(file, entry, 8 + length, size) for name, entry in header.items()}, metadata


def _array(file: Any, entry: Any, base: int, size: int) -> mx.array:
    dtype = np.dtype(_TYPES[entry["dtype"]])
    shape = tuple(_whole(n, "a dimension") for n in entry["shape"])
    first, last = (_whole(n, "an offset") for n in entry["data_offsets"])
    if last - first != math.prod(shape) * dtype.itemsize or base + last > size:
        raise CheckpointError(f"bytes [{first}, {last}) do not hold {shape} {entry['dtype']} in {size} bytes")
    file.seek(base + first)
    values = np.frombuffer(file.read(last - first), dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    array = mx.array(values)
    return array.view(mx.bfloat16) if entry["dtype"] == "BF16" else array


def _restore(
    arrays: dict[str, mx.array], metadata: dict[str, str], manager: CoordinateManager | None
) -> SparseTensor:
    stride, shape = json.loads(metadata["stride"]), json.loads(metadata["spatial_shape"])
    batch_size = _whole(json.loads(metadata["batch_size"]), "batch_size")
    counts = arrays["batch_counts"]
    if counts.ndim != 1 or counts.dtype != mx.int32 or counts.shape[0] != batch_size:
        raise CheckpointError(
            f"batch_counts is {counts.dtype} {tuple(counts.shape)} for batch_size {batch_size}"
        )
    x = SparseTensor(
        arrays["coords"],
        arrays["feats"],
        stride=stride,
        active_rows=_whole(json.loads(metadata["active_rows"]), "active_rows"),
        batch_counts=counts,
        batch_size=batch_size,
        spatial_shape=shape,
        manager=manager,
    )
    return x.with_capacity(x.capacity) if json.loads(metadata["fixed_capacity"]) is True else x


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckpointError(f"{name} must be a whole number, got {value!r}")
    return value
