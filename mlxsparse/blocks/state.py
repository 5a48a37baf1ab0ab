"""An optimizer's state cut as the parameters that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import mlx.core as mx
from mlx.nn import Module
from mlx.utils import tree_flatten

from ..errors import CouplingError
from .masking import SUFFIX

Gather: TypeAlias = Callable[[mx.array], mx.array]


def cut_state(
    state: dict[str, Any], model: Module, gathers: Mapping[str, Callable[[str], Gather]]
) -> dict[str, Any]:
    """A copy of `state` with each parameter's arrays cut as the parameter.

    gathers: by the path of a layer that is cut, from the name of an array to what takes what stays of it.
    CouplingError for arrays that are of no parameter, or of another shape than theirs.
    """
    if set(state) == {"states"}:  # of a MultiOptimizer; all others have "step" as well
        return {"states": [cut_state(part, model, gathers) for part in state["states"]]}

    result: dict[str, Any] = _cut(state, model, "", gathers)
    return result


def _cut(here: Any, owner: Any, path: str, gathers: Mapping[str, Callable[[str], Gather]]) -> Any:
    """`here`, the state of `owner`, which lies at `path` of the model."""
    if isinstance(owner, mx.array):
        module_path, _, name = path.rpartition(".")
        gather = gathers.get(module_path)
        return here if gather is None else _cut_entry(here, owner, gather(name), path)
    if isinstance(here, dict):
        parts = [(k, v) for k, v in here.items() if not k.endswith(SUFFIX)]
        return {k: _cut_child(v, owner, k, path, gathers) for k, v in parts}
    if isinstance(here, (list, tuple)):
        return type(here)(_cut_child(v, owner, i, path, gathers) for i, v in enumerate(here))
    return here


def _cut_child(
    value: Any, owner: Any, key: Any, path: str, gathers: Mapping[str, Callable[[str], Gather]]
) -> Any:
    path = f"{path}.{key}" if path else str(key)
    try:
        child = owner[key]
    except (KeyError, IndexError, TypeError):
        _require_numbers(value, path)  # "step", "learning_rate"
        return value
    return _cut(value, child, path, gathers)


def _require_numbers(value: Any, path: str) -> None:
    flat: Any = tree_flatten({path: value})
    for _, entry in flat:
        if isinstance(entry, mx.array) and entry.ndim:
            raise CouplingError(
                f"the optimizer's state {path} has arrays, and the model no parameter of that name: it "
                "cannot be cut alike; make a new optimizer instead"
            )


def _cut_entry(entry: Any, parameter: mx.array, gather: Gather, path: str) -> Any:
    if isinstance(entry, dict):
        return {name: _cut_entry(value, parameter, gather, path) for name, value in entry.items()}
    if not isinstance(entry, mx.array) or entry.ndim == 0:
        return entry
    if entry.shape != parameter.shape:
        raise CouplingError(
            f"the optimizer's state of {path} has shape {tuple(entry.shape)}, the parameter "
            f"{tuple(parameter.shape)}: it cannot be cut alike; make a new optimizer instead"
        )
    return gather(entry)
