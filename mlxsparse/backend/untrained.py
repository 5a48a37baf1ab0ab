"""Arrays of a module that are never trained: running statistics, masks, which parts of a weight it stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from ..errors import CheckpointError, DTypeError, TracedOnHostError
from .host import view


class Untrained(set[str]):
    """Names that a module does not train (Module._no_grad), of which those in `always` stay.

    Where a parent is unfrozen, MLX works on the sets of its children and calls none of their methods.
    """

    always: frozenset[str] = frozenset()

    def clear(self) -> None:
        super().clear()
        self.update(self.always)

    def difference_update(self, *others: Iterable[Any]) -> None:
        super().difference_update(*others)
        self.update(self.always)


def never_train(module: Module, *names: str) -> None:
    """Leave arrays of a module untrained, whatever is frozen and unfrozen later."""
    made = Untrained(module._no_grad | set(names))
    made.always = _always(module) | set(names)
    module._no_grad = made


def may_train(module: Module, *names: str) -> None:
    """Undo `never_train` of names that the module has no more."""
    made = Untrained(module._no_grad - set(names))
    made.always = _always(module) - set(names)
    module._no_grad = made


def _always(module: Module) -> frozenset[str]:
    return module._no_grad.always if isinstance(module._no_grad, Untrained) else frozenset()


PARTS = ("weight_blocks", "weight_taps")  # names of the arrays that say which parts a layer stores


class Stored(Module):
    """A layer whose weight may have some of its parts only; one of PARTS, a bool array, then says which.

    It goes with the weights into files, so that weights of other parts are not taken for those of this layer.
    The layer's own stays what it is until its parts change: what is put in its place is checked alone.
    """

    _parts: np.ndarray  # the same on the host
    changes = 0  # of the parts of all layers: traces hold them as constants

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARTS and name in self:  # MLX would take it out for None
            _check_array(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, name: str, value: Any) -> None:
        # MLX's load_weights and update put arrays of nested modules in here, and call no method of theirs.
        if name not in PARTS or name not in self:
            super().__setitem__(name, value)
            return
        _check_array(name, value)
        # Functions of all parameters make numbers of it, or one value everywhere: these say no parts.
        if value.dtype == mx.bool_ and value is not self[name]:
            with contextlib.suppress(TracedOnHostError):
                theirs = view(value)
                if theirs.shape[-self._parts.ndim :] != self._parts.shape or theirs.any() != theirs.all():
                    _require_same(self, name, theirs, name, "; some weights may have been put in already")

    def _store(self, name: str, mask: np.ndarray) -> None:
        """Note the parts that the weight has from now on."""
        if not np.array_equal(mask, getattr(self, "_parts", mask)):
            Stored.changes += 1
        self._parts = mask
        super().__setitem__(name, mx.array(mask))
        never_train(self, name)


def require_same_parts(model: Module, arrays: Mapping[str, mx.array]) -> None:
    """CheckpointError where arrays of a file, by their paths, are of other parts than a layer of `model`.

    Numbers, as in a file that was cast to half precision, say a part where they are not 0.
    """
    for path, layer in model.named_modules():
        for name in PARTS if isinstance(layer, Stored) else ():
            where = f"{path}.{name}" if path else name
            if name in layer and where in arrays:
                _require_same(layer, name, view(arrays[where] != 0), where)


def _check_array(name: str, value: Any) -> None:
    if not isinstance(value, mx.array):
        call = "update_layout(mask)" if name == "weight_blocks" else "keep_taps(index)"
        raise DTypeError(
            f"{name} says in an MLX array what the layer stores, got {type(value).__name__}; layer.{call} "
            "stores other parts"
        )


def _require_same(layer: Stored, name: str, theirs: np.ndarray, where: str, after: str = "") -> None:
    """CheckpointError where `theirs`, or one of several stacked, says other parts than the layer stores."""
    mine = layer._parts
    if theirs.shape[-mine.ndim :] != mine.shape:
        how = f"shape {theirs.shape}, not {mine.shape}"
    elif unlike := int((theirs != mine).sum()):
        how = f"{unlike} of {theirs.size} places differ"
    else:
        return
    more = f" or layer.update_layout(their {name})" if name == "weight_blocks" else ""
    raise CheckpointError(
        f"{where}: the weights are of other {name.removeprefix('weight_')} than this {type(layer).__name__} "
        f"stores ({how}); give it theirs before they are loaded, with blocks.restructure(model, "
        f"blocks.structure_of(saved_model)){more}{after}"
    )
