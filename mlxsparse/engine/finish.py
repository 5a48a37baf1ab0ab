"""A norm that a layer wants of its convolution's result, in the convolution's own pass where kernels can.

The layer says so around the call of its convolution (`wanted`); the convolution takes it up (`take`) and says
whether it did. The result has the bits of the two passes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import mlx.core as mx


class Norm:
    """By statistics that are given, plus an array, then a ReLU: nn/fixed.py."""

    __slots__ = ("add", "done", "eps", "parameters", "relu")

    def __init__(self, parameters: tuple[mx.array, ...], eps: float, relu: bool, add: mx.array | None):
        self.parameters = parameters  # mean, variance, weight, bias (C,)
        self.eps = eps
        self.relu = relu
        self.add = add
        self.done = False


class _Here(threading.local):
    norm: Norm | None = None


_here = _Here()


@contextlib.contextmanager
def wanted(norm: Norm) -> Iterator[None]:
    """Of the one convolution that is called inside."""
    before, _here.norm = _here.norm, norm
    try:
        yield
    finally:
        _here.norm = before


def take() -> Norm | None:
    """What the caller of this convolution wants; told once."""
    norm, _here.norm = _here.norm, None
    return norm
