"""What a mask makes of a layer: its class and the parameter that its forward uses (blocks/masking.py)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn import Module

SUFFIX = "_keep"  # after a parameter's name: its mask (blocks/masking.py)
MASKED = "_masked_class"  # in the class of a masked layer: what its class was
_OURS = __name__.partition(".")[0] + "."


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
