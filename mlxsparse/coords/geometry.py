"""Kernel geometry: sizes, strides and the two frozen relations between input and output sites.

Convolution and pooling: ``in = out * s - p + k * d``. Transposed: ``out = in * s - p + k * d``.
Tap t = (kx * Ky + ky) * Kz + kz; no flip.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..errors import CoordinateRangeError, ShapeError, StrideError

Triple: TypeAlias = tuple[int, int, int]
TripleLike: TypeAlias = int | Sequence[int]


def triple(value: TripleLike, name: str, *, least: int | None = None) -> Triple:
    """An int or three ints (x, y, z) as a 3-tuple, each at least `least`."""
    if type(value) is tuple and len(value) == 3:  # the usual case, which is quick
        x, y, z = value
        low = -(2**30) + 1 if least is None else least
        if type(x) is type(y) is type(z) is int and low <= x < 2**30 > y >= low <= z < 2**30:
            return value
    items = (value,) * 3 if isinstance(value, (int, np.integer)) else value
    try:
        x, y, z = items
        if not type(x) is type(y) is type(z) is int:
            x, y, z = _integer(x), _integer(y), _integer(z)
    except (TypeError, ValueError):
        raise ShapeError(f"{name} must be an int or three ints (x, y, z), got {value!r}") from None
    if max(abs(x), abs(y), abs(z)) >= 2**30:
        raise CoordinateRangeError(f"{name} must lie in (-2**30, 2**30) as coordinates do, got {value!r}")
    if least is not None and min(x, y, z) < least:
        raise ShapeError(f"{name} must be at least {least} on every axis, got {value!r}")
    return x, y, z


def whole(value: object, name: str, least: int = 0) -> int:
    """An integer of at least `least`; ShapeError else: 2.7 would become 2 unseen."""
    if type(value) is not int:
        try:
            value = _integer(value)
        except TypeError:
            raise ShapeError(f"{name} must be an integer, got {value!r}") from None
    if value < least:
        raise ShapeError(f"{name} must be at least {least}, got {value}")
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError
    return int(value)


@dataclass(frozen=True)
class Kernel:
    """Size K, stride s, padding p and dilation d of a kernel, each (x, y, z)."""

    size: Triple
    stride: Triple = (1, 1, 1)
    padding: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)

    @classmethod
    def of(
        cls,
        size: TripleLike,
        stride: TripleLike = 1,
        padding: TripleLike = 0,
        dilation: TripleLike = 1,
    ) -> Kernel:
        """Normalise and check ints or 3-sequences."""
        return _kernel(
            triple(size, "kernel_size", least=1),
            triple(stride, "stride", least=1),
            triple(padding, "padding"),
            triple(dilation, "dilation", least=1),
        )

    @classmethod
    def submanifold(
        cls, size: TripleLike, dilation: TripleLike = 1, padding: TripleLike | None = None
    ) -> Kernel:
        """Stride 1; the default padding ((K - 1) // 2) * d centres odd sizes, even ones reach 0..K/2."""
        k = triple(size, "kernel_size", least=1)
        if padding is None and type(dilation) is int:  # the usual case, which is quick
            return _centred(k, dilation)
        d = triple(dilation, "dilation", least=1)
        return _kernel(k, (1, 1, 1), _half(k, d) if padding is None else triple(padding, "padding"), d)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.size, self.stride, self.padding, self.dilation))

    @property
    def volume(self) -> int:
        """Number of taps."""
        return self.size[0] * self.size[1] * self.size[2]

    @property
    def covers_once(self) -> bool:
        """Every site belongs to exactly one window: K == s, p = 0, d = 1."""
        return self.size == self.stride and self.padding == (0, 0, 0) and self.dilation == (1, 1, 1)

    @property
    def reaches_one(self) -> bool:
        """Every input reaches at most one output of a strided operator."""
        return all(k == 1 or (k <= s and d == 1) for k, s, d in zip(self.size, self.stride, self.dilation))

    @property
    def is_centred(self) -> bool:
        """Stride 1, odd sizes, as much reach on both sides: tap t undoes tap T - 1 - t."""
        return self.stride == (1, 1, 1) and all(
            k % 2 == 1 and p == k // 2 * d for k, p, d in zip(self.size, self.padding, self.dilation)
        )

    def output_shape(self, shape: Triple) -> Triple:
        """floor((S + 2p - d(K-1) - 1) / s) + 1 on each axis, at least 0."""
        x, y, z = (
            max(0, (n + 2 * p - d * (k - 1) - 1) // s + 1)
            for n, k, s, p, d in zip(shape, self.size, self.stride, self.padding, self.dilation)
        )
        return x, y, z

    def transposed_shape(self, shape: Triple) -> Triple:
        """(S - 1) s - 2p + d(K-1) + 1 on each axis, at least 0."""
        x, y, z = (
            max(0, (n - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, k, s, p, d in zip(shape, self.size, self.stride, self.padding, self.dilation)
        )
        return x, y, z


@functools.lru_cache(maxsize=1024)
def _kernel(size: Triple, stride: Triple, padding: Triple, dilation: Triple) -> Kernel:
    """One object for equal geometry, so that looking its map up is quick."""
    if any((k - 1) * d >= 2**30 for k, d in zip(size, dilation)):
        raise CoordinateRangeError(f"kernel_size {size}, dilation {dilation} reach past 2**30 sites")
    return Kernel(size, stride, padding, dilation)


@functools.lru_cache(maxsize=256)
def _centred(size: Triple, dilation: int) -> Kernel:
    d = triple(dilation, "dilation", least=1)
    return _kernel(size, (1, 1, 1), _half(size, d), d)


def _half(size: Triple, dilation: Triple) -> Triple:
    """The padding that centres odd sizes: even ones reach 0 .. K/2."""
    x, y, z = ((k - 1) // 2 * d for k, d in zip(size, dilation))
    return x, y, z


def parent_shape(shape: Triple, stride: Triple) -> Triple:
    """ceil(S / s) on each axis: where floor(c / s) of sites in [0, S) lie."""
    x, y, z = (-(-n // s) for n, s in zip(shape, stride))
    return x, y, z


def multiply(stride: Triple, by: Triple) -> Triple:
    return stride[0] * by[0], stride[1] * by[1], stride[2] * by[2]


def divide(stride: Triple, by: Triple) -> Triple:
    """stride / by, StrideError unless exact."""
    if any(a % b for a, b in zip(stride, by)):
        raise StrideError(
            f"tensor stride {stride} is not divisible by the transposed stride {by}: a transposed operator "
            "needs an input whose stride is a multiple of its own; SparseTensor(..., stride=) gives it one"
        )
    return stride[0] // by[0], stride[1] // by[1], stride[2] // by[2]
