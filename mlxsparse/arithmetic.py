"""Operators between sparse tensors, and between one and a scalar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .backend.features import check_channels, filled_padding, scalar
from .errors import DTypeError, IdentityError

HINT = (
    "SparseTensor is not an array: use the layer of mlxsparse.nn with the same name (nn.Linear, "
    "nn.BatchNorm, nn.ReLU, ...), or x.replace(layer(x.feats))"
)


def operation(symbol: str, function: Callable[[Any, Any], Any], divisor: int | None = None) -> Any:
    """Method for an operator between tensors with the same key, or a tensor and a scalar.

    divisor: which argument of `function` divides the other.
    """

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, type(self)):
            require_same_key(self, other, symbol)
            check_channels(symbol, self.feats, other.feats)
            clean = divisor is None and self.clean and other.clean
            left, right = operand(self, divisor == 0), operand(other, divisor == 1)
            return self.replace(function(left, right), clean=clean).noting(other)
        if (factor := scalar(other)) is not None:
            return self.replace(function(operand(self, divisor == 0), factor))
        got = type(other).__name__
        raise DTypeError(f"SparseTensor {symbol} takes one with the same key or a scalar, got {got}. {HINT}")

    return method


def operand(x: Any, divides: bool = False) -> Any:
    """Features with 0 in padding rows, 1 of what divides: a gradient there is a number, to be thrown away."""
    if x._key is not None and x._key.full:
        return x.feats
    return filled_padding(x.feats, x.active_rows, int(divides)) if divides or not x.clean else x.feats


def require_same_key(a: Any, b: Any, name: str) -> None:
    """IdentityError unless both tensors have the same key."""
    if a._key is not None and a._key is b._key:
        return
    if a.coords is b.coords and (a._key is None or b._key is None):
        return
    if any(t._key is None or t._key.rebuilt for t in (a, b)):
        raise IdentityError(
            f"{name}: an operand went through mx.compile, mx.checkpoint or tree_map and lost its identity; "
            "use mlxsparse.compile or mlxsparse.checkpoint, which keep it"
        )
    raise IdentityError(
        f"{name} needs operands with the same key, got {a.key} and {b.key}; "
        f'join different sites with mlxsparse.ops.add(a, b, join="inner"|"left"|"outer") and its kin'
    )
