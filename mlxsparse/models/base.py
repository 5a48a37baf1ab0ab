"""Weights and configuration of a model in a directory: model.safetensors and config.json."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn import Module
from mlx.utils import tree_flatten

from ..backend.untrained import PARTS, require_same_parts
from ..errors import CheckpointError
from ..files import atomic_write

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save_model(model: Module, config: dict[str, Any], directory: str | os.PathLike[str]) -> None:
    """Write model.safetensors and config.json; each appears whole or not at all.

    CheckpointError if they cannot be written.
    """
    folder = Path(directory)
    # MLX does not notice a full disk, so it writes to memory.
    memory = io.BytesIO()
    mx.save_safetensors(memory, dict(tree_flatten(model.parameters())), {"format": "mlx"})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / WEIGHTS, CheckpointError) as stream:
            stream.write(memory.getbuffer())
        with atomic_write(folder / CONFIG, CheckpointError) as stream:
            stream.write((json.dumps(config, indent=2) + "\n").encode())
    except OSError as error:
        raise CheckpointError(f"cannot write weights to {os.fspath(directory)!r}: {error}") from error


def load_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """config.json of a weights directory, a dict; CheckpointError if missing or malformed."""
    path = Path(directory) / CONFIG
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{os.fspath(directory)!r} has no {CONFIG}; a directory that `mlxsparse train -o` wrote is needed"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{str(path)!r} must hold a JSON object, got {type(config).__name__}")
    return config


def load_weights(model: Module, directory: str | os.PathLike[str]) -> None:
    """Load model.safetensors into `model`, floats in the types that its parameters have.

    CheckpointError, and `model` as it was, if the file cannot be read, or a name, a shape, the blocks or taps
    that a layer stores, or the kind of number (floats, whole ones) differ.
    """
    path = Path(directory) / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{os.fspath(directory)!r} has no {WEIGHTS}")
    try:
        arrays: Any = mx.load(str(path), format="safetensors")
        mx.eval(arrays)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"cannot read {str(path)!r}: {reason}; copy it again, or train again"
        ) from error
    require_same_parts(model, arrays)
    # Directories of before have no arrays that say which taps and blocks are stored; config.json told it.
    here: Any = tree_flatten(model.parameters())
    arrays = {k: v for k, v in here if k.rpartition(".")[2] in PARTS} | arrays
    for name, mine in here:
        if name in arrays and name.rpartition(".")[2] not in PARTS:
            arrays[name] = _of_type(arrays[name], mine.dtype, f"{str(path)!r}: {name}")
    try:
        model.load_weights(list(arrays.items()), strict=True)
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} does not fit the model of its {CONFIG}: {error}") from error


def _of_type(value: mx.array, dtype: mx.Dtype, where: str) -> mx.array:
    """Floats as `dtype`, others as they are; CheckpointError where one of both is floats and one is not."""
    floats = mx.issubdtype(value.dtype, mx.floating)
    if floats != mx.issubdtype(dtype, mx.floating):
        raise CheckpointError(
            f"{where} is {str(value.dtype).removeprefix('mlx.core.')}, where the model has "
            f"{str(dtype).removeprefix('mlx.core.')}: save it in a type of that kind"
        )
    return value.astype(dtype) if floats else value
