"""2-D layers: each z slice on its own, with the 3-D layers' operators.

K = (kx, ky, 1), stride (sx, sy, 1), padding (px, py, 0), dilation (dx, dy, 1), from an int or two
ints (x, y). Weights keep the 3-D layout, (Co, Kx, Ky, 1, Ci / groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from mlx.nn import Module

from ..coords.geometry import Triple, triple
from ..errors import ShapeError
from .conv import Conv3d, ConvTranspose3d, GenerativeConvTranspose3d, SubmConv3d, _Transposed
from .pool import AvgPool3d, MaxPool3d, SumPool3d, _Pool

PairLike: TypeAlias = int | Sequence[int]


def _flat(value: Any, name: str, along_z: int = 1) -> Triple:
    """(x, y, along_z) of an int or (x, y)."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value), int(value), along_z
    try:
        x, y = value
    except (TypeError, ValueError):
        raise ShapeError(f"{name} must be an int or two ints (x, y), got {value!r}") from None
    return x, y, along_z


_ALONG_Z = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}


class _Flat(Module):
    """Geometry that is set later, too, is an int or (x, y), or the three ints that a layer keeps of it."""

    def __setattr__(self, name: str, value: Any) -> None:
        along_z = _ALONG_Z.get(name)
        if along_z is not None and value is not None:
            kept = isinstance(value, (list, tuple)) and len(value) == 3 and value[2] == along_z
            value = triple(value if kept else _flat(value, name, along_z), name)
        super().__setattr__(name, value)


class SubmConv2d(_Flat, SubmConv3d):
    """SubmConv3d with a kernel of one site along z."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PairLike = 3,
        dilation: PairLike = 1,
        padding: PairLike | None = None,
        groups: int = 1,
        bias: bool = True,
    ):
        super().__init__(
            in_channels,
            out_channels,
            _flat(kernel_size, "kernel_size"),
            _flat(dilation, "dilation"),
            None if padding is None else _flat(padding, "padding", 0),
            groups,
            bias,
        )


class Conv2d(_Flat, Conv3d):
    """Conv3d with a kernel of one site and stride 1 along z."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PairLike,
        stride: PairLike = 1,
        padding: PairLike = 0,
        dilation: PairLike = 1,
        groups: int = 1,
        bias: bool = True,
        support: str = "touched",
    ):
        super().__init__(
            in_channels,
            out_channels,
            _flat(kernel_size, "kernel_size"),
            _flat(stride, "stride"),
            _flat(padding, "padding", 0),
            _flat(dilation, "dilation"),
            groups,
            bias,
            support,
        )


class _Transposed2d(_Flat, _Transposed):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PairLike,
        stride: PairLike = 1,
        padding: PairLike = 0,
        dilation: PairLike = 1,
        groups: int = 1,
        bias: bool = True,
    ):
        super().__init__(
            in_channels,
            out_channels,
            _flat(kernel_size, "kernel_size"),
            _flat(stride, "stride"),
            _flat(padding, "padding", 0),
            _flat(dilation, "dilation"),
            groups,
            bias,
        )


class ConvTranspose2d(_Transposed2d, ConvTranspose3d):
    """ConvTranspose3d with a kernel of one site and stride 1 along z."""


class GenerativeConvTranspose2d(_Transposed2d, GenerativeConvTranspose3d):
    """GenerativeConvTranspose3d with a kernel of one site and stride 1 along z."""


class _Pool2d(_Flat, _Pool):
    def __init__(
        self,
        kernel_size: PairLike,
        stride: PairLike | None = None,
        padding: PairLike = 0,
        dilation: PairLike = 1,
        support: str = "touched",
        **more: bool,
    ):
        super().__init__(
            _flat(kernel_size, "kernel_size"),
            None if stride is None else _flat(stride, "stride"),
            _flat(padding, "padding", 0),
            _flat(dilation, "dilation"),
            support,
            **more,
        )


class MaxPool2d(_Pool2d, MaxPool3d):
    """MaxPool3d over windows of one site along z."""


class AvgPool2d(_Pool2d, AvgPool3d):
    """AvgPool3d over windows of one site along z; `count_include_empty` as there."""


class SumPool2d(_Pool2d, SumPool3d):
    """SumPool3d over windows of one site along z."""
