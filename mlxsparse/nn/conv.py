"""Convolution layers on sparse tensors; weight (Co, Kx, Ky, Kz, Ci / groups)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from .. import ops
from ..backend.untrained import Stored
from ..coords.geometry import Triple, TripleLike, triple, whole
from ..errors import ShapeError
from ..ops.conv import Target
from ..tensor import SparseTensor


class _Conv(Stored):
    """Weights and their description, shared by the convolution layers."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: TripleLike,
        dilation: TripleLike,
        groups: int,
        bias: bool,
    ):
        super().__init__()
        in_channels = whole(in_channels, "in_channels", 1)
        out_channels = whole(out_channels, "out_channels", 1)
        groups = whole(groups, "groups", 1)
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}"
            )
        size = triple(kernel_size, "kernel_size", least=1)
        scale = 1 / math.sqrt(in_channels // groups * math.prod(size))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, *size, in_channels // groups))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.dilation = triple(dilation, "dilation", least=1)
        self.groups = groups

        self._taps: ops.Taps | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """An int as three: what a Module keeps of it otherwise is nothing that the layer reads."""
        if value is not None and name in ("stride", "padding", "dilation"):
            value = triple(value, name, least=None if name == "padding" else 1)
        super().__setattr__(name, value)

    def _bias(self) -> mx.array | None:
        return self.get("bias")

    def keep_taps(self, index: Sequence[int]) -> None:
        """Keep some taps t = (kx*Ky + ky)*Kz + kz, ascending: weight becomes (Co, len(index), Ci / groups).

        Output sites and kernel maps stay those of the whole kernel. `weight_taps` bool (Kx, Ky, Kz), frozen,
        is the choice as it goes into files; loading weights of other taps is a CheckpointError.
        """
        co, *size, ci = self.weight.shape
        old = self._taps or ops.Taps(triple(size, "kernel_size"), tuple(range(math.prod(size))))
        try:
            new = ops.Taps(old.kernel_size, tuple(index))
        except TypeError:
            raise ShapeError(f"index must be the taps to keep, a sequence of ints, got {index!r}") from None
        if not set(new.index) <= set(old.index):
            raise ShapeError(f"taps {new.index} are not all among those that the layer has, {old.index}")
        place = [old.index.index(t) for t in new.index]
        self.weight = self.weight.reshape(co, len(old.index), ci)[:, mx.array(place, mx.int32)]
        self._taps = new
        if "weight_taps" not in self:  # all of them, until now
            self._parts = np.ones(new.kernel_size, bool)
        kept = np.isin(np.arange(math.prod(new.kernel_size)), new.index)
        self._store("weight_taps", kept.reshape(new.kernel_size))

    def _extra_repr(self) -> str:
        co, *size, ci = self.weight.shape
        size = size if self._taps is None else list(self._taps.kernel_size)
        parts = [f"{ci * self.groups}, {co}, kernel_size={tuple(size)}"]
        parts += [f"{name}={self[name]}" for name in ("stride", "padding") if self.get(name) is not None]
        if self._taps is not None:
            parts.append(f"taps={len(self._taps.index)}")
        return ", ".join(
            [*parts, f"dilation={self.dilation}", f"groups={self.groups}", f"bias={'bias' in self}"]
        )


def check_support(support: str) -> str:
    """The support; ShapeError unless an operator knows it, which else would tell when the layer is called."""
    if support not in ("touched", "parents"):
        raise ShapeError(f'support must be "touched" or "parents", got {support!r}')
    return support


def _warn_of_place(size: Triple, dilation: Triple, padding: Triple) -> None:
    """Of an odd submanifold kernel off its centre: networks for spconv have paddings that are not read."""
    centre = tuple((k - 1) // 2 * d for k, d in zip(size, dilation))
    if any(k % 2 and p != middle for k, p, middle in zip(size, padding, centre)):
        warnings.warn(
            f"padding={padding} puts a submanifold kernel {size} off its centre, which is {centre}: leave "
            "padding out to centre it, as spconv does whatever its padding says",
            stacklevel=3,
        )


class SubmConv3d(_Conv):
    """Submanifold convolution: the output lives on the input's sites.

    Args:
        in_channels, out_channels: channels, both divisible by `groups`.
        kernel_size, dilation: int or (x, y, z).
        padding: ((K - 1) // 2) * dilation by default, which centres odd kernels; a warning tells of odd ones
            that it moves off their centre. (spconv centres them whatever its padding says.)
        bias: learn an additive bias.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: TripleLike = 3,
        dilation: TripleLike = 1,
        padding: TripleLike | None = None,
        groups: int = 1,
        bias: bool = True,
    ):
        super().__init__(in_channels, out_channels, kernel_size, dilation, groups, bias)
        self.padding: Triple | None = None if padding is None else triple(padding, "padding")
        if self.padding is not None:
            _warn_of_place(triple(kernel_size, "kernel_size"), self.dilation, self.padding)

    def __call__(self, x: SparseTensor) -> SparseTensor:
        return ops.subm_conv3d(  # looking up an attribute of a Module takes ten times as long as an item
            x, self["weight"], self.get("bias"), dilation=self["dilation"], padding=self.get("padding"),
            groups=self.groups, taps=self._taps,
        )  # fmt: skip


class NormalizedConv3d(SubmConv3d):
    """Submanifold convolution over the weight that met an active site (Knutsson & Westin, 1993).

    Args and parameters as SubmConv3d; see ops.normalized_conv3d.
    """

    def __call__(self, x: SparseTensor) -> SparseTensor:
        return ops.normalized_conv3d(
            x, self.weight, self._bias(), dilation=self.dilation, padding=self.padding, groups=self.groups,
            taps=self._taps,
        )  # fmt: skip


class Conv3d(_Conv):
    """Strided convolution onto the sites that it reaches ("touched") or the "parents" floor(c / s).

    Args: as SubmConv3d, with stride, padding (int or (x, y, z)) and support.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: TripleLike,
        stride: TripleLike = 1,
        padding: TripleLike = 0,
        dilation: TripleLike = 1,
        groups: int = 1,
        bias: bool = True,
        support: str = "touched",
    ):
        super().__init__(in_channels, out_channels, kernel_size, dilation, groups, bias)
        self.stride = triple(stride, "stride", least=1)
        self.padding = triple(padding, "padding")
        self.support = check_support(support)

    def __call__(
        self, x: SparseTensor, out: Target | None = None, capacity: int | None = None
    ) -> SparseTensor:
        return ops.conv3d(
            x,
            self["weight"],
            self.get("bias"),
            stride=self["stride"],
            padding=self["padding"],
            dilation=self["dilation"],
            groups=self.groups,
            taps=self._taps,
            support=self.support if out is None else "touched",
            out=out,
            capacity=capacity,
        )


class _Transposed(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: TripleLike,
        stride: TripleLike = 1,
        padding: TripleLike = 0,
        dilation: TripleLike = 1,
        groups: int = 1,
        bias: bool = True,
    ):
        super().__init__(in_channels, out_channels, kernel_size, dilation, groups, bias)
        self.stride = triple(stride, "stride", least=1)
        self.padding = triple(padding, "padding")


class ConvTranspose3d(_Transposed):
    """Transposed convolution onto known sites: ``layer(x, out=skip)``, the encoder's tensor.

    Without `out` the result lies on the live key that the input's key was made from.
    """

    def __call__(self, x: SparseTensor, out: Target | None = None) -> SparseTensor:
        return ops.conv_transpose3d(
            x,
            self["weight"],
            self.get("bias"),
            stride=self["stride"],
            padding=self["padding"],
            dilation=self["dilation"],
            groups=self.groups,
            taps=self._taps,
            out=out,
        )


class GenerativeConvTranspose3d(_Transposed):
    """Transposed convolution onto every site that it reaches."""

    def __call__(self, x: SparseTensor, capacity: int | None = None) -> SparseTensor:
        return ops.generative_conv_transpose3d(
            x,
            self["weight"],
            self.get("bias"),
            stride=self["stride"],
            padding=self["padding"],
            dilation=self["dilation"],
            groups=self.groups,
            taps=self._taps,
            capacity=capacity,
        )
