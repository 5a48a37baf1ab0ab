"""Arrays of a module that are never trained: running statistics, masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
from mlx.nn import Module

SUFFIX = "_keep"  # after a parameter's name: its mask (blocks/masking.py)
MASKED = "_masked_class"  # in the class of a masked layer: what its class was
_OURS = __name__.partition(".")[0] + "."


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


def plainly_called(module: Any) -> bool:
    """Whether calling a layer is what a class of mlxsparse or mlx.nn does: a derived one may do more."""
    kind: Any = getattr(type(module), MASKED, type(module))
    where: str = kind.__call__.__module__
    return where.startswith((_OURS, "mlx.nn."))


def effective(module: Module, name: str) -> mx.array:
    """The parameter as the forward uses it: what its mask leaves out is 0."""
    value: mx.array = module[name]
    keep = module.get(name + SUFFIX)
    return value if keep is None else mx.where(keep, value, mx.zeros((), value.dtype))
