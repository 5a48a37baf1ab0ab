"""Argument checks that operators share."""

from __future__ import annotations

from typing import Any

from ..errors import DTypeError, ShapeError
from ..tensor import SparseTensor


def check_tensor(x: Any, name: str = "x") -> None:
    """DTypeError unless `x` is a SparseTensor."""
    if not isinstance(x, SparseTensor):
        raise DTypeError(
            f"{name} must be a SparseTensor, got {type(x).__name__}; make one with "
            "mlxsparse.SparseTensor(coords, feats) or mlxsparse.voxelize(points)"
        )


def check_groups(groups: Any, channels_in: int, channels_out: int) -> None:
    """ShapeError unless `groups` is an int that divides both channel counts."""
    if not isinstance(groups, int) or groups < 1 or channels_in % groups or channels_out % groups:
        raise ShapeError(
            f"groups must be a whole number that divides the channels in ({channels_in}) and out "
            f"({channels_out}), got {groups!r}"
        )
