"""Arrays of a module that are never trained: running statistics, masks, which parts of a weight it stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from ..errors import CheckpointError, TracedOnHostError
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
    """

    def __setitem__(self, name: str, value: Any) -> None:
        # MLX's load_weights and update put arrays of nested modules in here, and call no method of theirs.
        if name in PARTS and name in self and value is not self[name]:
            with contextlib.suppress(TracedOnHostError):
                _require_same(self, name, value)
            if value.dtype != mx.bool_:  # of a function of all parameters, as a cast
                return
        super().__setitem__(name, value)

    def _store(self, name: str, mask: np.ndarray) -> None:
        """Note the parts that the weight has from now on."""
        super().__setitem__(name, mx.array(mask))
        never_train(self, name)


def _require_same(layer: Stored, name: str, value: Any) -> None:
    """CheckpointError where `value` says other parts; more than 0 and 1 (initializers) says none."""
    mine, theirs = view(layer[name]), view(value)
    if theirs.shape != mine.shape:
        how = f"shape {theirs.shape}, not {mine.shape}"
    elif np.isin(theirs, (0, 1)).all() and (unlike := int((theirs != mine).sum())):
        how = f"{unlike} of {mine.size} places differ"
    else:
        return
    more = f" or layer.update_layout(their {name})" if name == "weight_blocks" else ""
    raise CheckpointError(
        f"{name}: the weights are of other {name.removeprefix('weight_')} than this {type(layer).__name__} "
        f"stores ({how}); give it theirs before they are loaded, with blocks.restructure(model, "
        f"blocks.structure_of(saved_model)){more}"
    )
