"""A norm that a layer wants of its convolution's result, in the convolution's own pass where kernels can.

The layer says so around the call of its convolution (`want`); the convolution takes it up (`take`) and says
whether it did. The result has the bits of the two passes.
"""

from __future__ import annotations

import threading

import mlx.core as mx


class Norm:
    """By statistics that are given, plus an array, then a ReLU: nn/fixed.py."""

    __slots__ = ("add", "done", "eps", "mix", "parameters", "relu")

    def __init__(
        self,
        parameters: tuple[mx.array, ...],
        eps: float,
        relu: bool,
        add: mx.array | None,
        mix: mx.array | None = None,
    ):
        self.parameters = parameters  # mean, variance, weight, bias (C,)
        self.eps = eps
        self.relu = relu
        self.add = add
        self.mix = mix  # weight (Co, Ci) of a dense layer through which `add` goes before, if any
        self.done = False


class _Here(threading.local):
    norm: Norm | None = None


_here = _Here()


def want(norm: Norm | None) -> Norm | None:
    """Of the next convolution that is called; what was wanted before, for afterwards."""
    before, _here.norm = _here.norm, norm
    return before


def take() -> Norm | None:
    """What the caller of this convolution wants; told once."""
    norm, _here.norm = _here.norm, None
    return norm
