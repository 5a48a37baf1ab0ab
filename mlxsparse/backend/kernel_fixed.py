"""Normalisation by statistics that are given, with what follows it, in one pass: norm_fixed.metal."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import mlx.core as mx

from .library import MAX_THREADS, SMALL, Factory, Launch, blocks, factory, ready

PASSES = 4  # rows that a thread takes
FIT = 3  # threadgroups that one core shall hold


def fixed_norm(
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    parameters: mx.Dtype,
    eps: float,
    active: int | mx.array,
    *,
    added: bool,
    relu: bool,
) -> Callable[..., mx.array]:
    """``(x - mean) / sqrt(var + eps) * weight + bias``, plus what is added, and 0 where that is less (relu).

    A function of x (N, C) of `dtype`; mean, var, weight, bias (C,) of `parameters`, `dtype` or float32;
    and, where `added`, another (N, C). Rows at and past `active` are 0.
    """
    n, channels = shape
    values = 16 // dtype.size
    lanes = min(blocks(channels, values), 32)
    rows = MAX_THREADS // lanes * PASSES
    call = ready(
        "norm_fixed" if parameters == dtype else "norm_fixed32",
        [n, channels, active, bits(eps), int(relu), int(added), rows],
        [shape],
        (blocks(n, rows), blocks(channels, 32 * values), 1),
        dtype=dtype,
        fit=FIT,
    )
    nothing = unadded(dtype)

    def run(
        x: mx.array, mean: mx.array, var: mx.array, weight: mx.array, bias: mx.array, *add: mx.array
    ) -> mx.array:
        return call([x, add[0] if add else nothing, mean, var, weight, bias])[0]

    return run


@functools.cache
def unadded(dtype: mx.Dtype) -> mx.array:
    """What stands for the array that is added."""
    return mx.array([0.0] * SMALL, dtype=dtype)


@functools.lru_cache(maxsize=256)
def _line(make: Factory, channels: int, dtype: mx.Dtype, eps: float) -> Launch:
    groups = (blocks(channels, MAX_THREADS), 1, 1)
    return ready("norm_line", [channels, bits(eps)], [(2, channels)], groups, dtype=dtype)


def line(channels: int, dtype: mx.Dtype, eps: float) -> Launch:
    """What such a norm multiplies and adds, (2, C) float32, of mean, var, weight, bias (C,) of `dtype`."""
    return _line(factory(), channels, dtype, eps)


@functools.lru_cache(maxsize=64)
def bits(value: float) -> int:
    """A float32 as the integer of its bits."""
    found: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return found
