"""Masks in the forward: a layer that uses where(keep, weight, 0) in place of its weight.

The gradient of a pruned element is exactly 0, so no optimizer moves it, and whatever moves it all the same
(momentum from before, weight decay of nothing) is not seen. The masks are frozen parameters
``<name>_keep`` (bool), so they are saved and loaded with the weights and captured by compiled steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from ..backend.host import view as host_view
from ..backend.untrained import may_train, never_train
from ..nn.masked import MASKED, SUFFIX, effective
from .param import ParamRef


class _Masked:
    """Mixed into a layer's class by `mask`."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        held = {name: self[name] for name in mask_names(self)}
        try:
            for name in held:
                self[name] = effective(self, name)
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        finally:
            for name, value in held.items():
                self[name] = value

    def __reduce_ex__(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Of the class that was masked: pickle would not find this one by its name."""
        made: Any = super().__reduce_ex__(protocol)
        return _new_masked, (getattr(type(self), MASKED),), *made[2:]


def _new_masked(base: Any) -> Any:
    masked = _masked_class(base)
    return masked.__new__(masked)


@dataclass
class _Choices:
    """What each pruner, by its number, keeps of a layer's parameters; None for masks that no pruner made.

    Not a dict: a module takes those for parameters.
    """

    masks: dict[str, dict[int | None, mx.array]]


@cache
def _masked_class(base: Any) -> Any:
    more = {"__module__": base.__module__, "__doc__": base.__doc__, MASKED: base}
    return type(base.__name__, (_Masked, base), more)


def mask_names(module: Module) -> list[str]:
    """Parameters of a layer that have a mask."""
    if not isinstance(module, _Masked):
        return []
    return [name[: -len(SUFFIX)] for name in module if name.endswith(SUFFIX)]


def set_mask(ref: ParamRef, keep: mx.array, pruner: int | None = None) -> None:
    """Put what `pruner` keeps (bool, the parameter's shape) into the layer that owns the slot.

    It takes the place of what this pruner kept before; what others pruned stays pruned.
    """
    module, name = ref.module, ref.key.rpartition(".")[2]
    masks = _choices(module)
    chosen = {**masks.get(name, {}), pruner: keep}
    if not isinstance(module, _Masked):
        module.__class__ = _masked_class(type(module))  # type: ignore[arg-type]
    module[name + SUFFIX] = reduce(mx.logical_and, chosen.values())
    never_train(module, name + SUFFIX)
    module._choices = _Choices({**masks, name: chosen})  # a new one: copies of the layer share the old


def _choices(module: Module) -> dict[str, dict[int | None, mx.array]]:
    held = module.__dict__.get("_choices")
    return {} if held is None else held.masks


def note_found(ref: ParamRef) -> None:
    """Note the mask of a slot as one of its own where it is not what pruners chose, as after load_weights."""
    module, name = ref.module, ref.key.rpartition(".")[2]
    if name not in mask_names(module):
        return
    masks, here = _choices(module), module[name + SUFFIX]
    chosen = masks.get(name, {})
    if not chosen or not np.array_equal(host_view(here), host_view(reduce(mx.logical_and, chosen.values()))):
        module._choices = _Choices({**masks, name: {None: here}})


def remove_masks(module: Module) -> None:
    """Zero what is pruned and make the layer what it was."""
    _drop_masks(module, mask_names(module))


def drop_idle_masks(module: Module) -> None:
    """Zero what is pruned and drop the masks that prune nothing; the others are noted as found ones."""
    kept = {name: module[name + SUFFIX] for name in mask_names(module)}
    kept = {name: keep for name, keep in kept.items() if not host_view(keep).all()}
    for name in kept:
        module[name] = effective(module, name)
    _drop_masks(module, [name for name in mask_names(module) if name not in kept])
    if kept:  # what pruners chose is of the layer that this one was copied from
        module._choices = _Choices({name: {None: keep} for name, keep in kept.items()})


def _drop_masks(module: Module, names: list[str]) -> None:
    for name in names:
        module[name] = effective(module, name)
        del module[name + SUFFIX]
        may_train(module, name + SUFFIX)
    if isinstance(module, _Masked) and not mask_names(module):
        module.__class__ = getattr(type(module), MASKED)
        module.__dict__.pop("_choices", None)
