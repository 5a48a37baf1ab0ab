"""How blocks are scored and how sparsity grows: functions, so that one of your own fits as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import mlx.core as mx

from ..errors import MLXSparseError
from .base import SparseBlock
from .prox import check_order
from .scope import ScopeSpec
from .spec import BlockSpec
from .view import View

Criterion: TypeAlias = Callable[[SparseBlock], mx.array]
Schedule: TypeAlias = Callable[[int], float]


def magnitude(p: float = 2) -> Criterion:
    """Score of a block: its p-norm over the root of its size to the p, the mean size of its elements."""
    check_order(p)

    def score(block: SparseBlock) -> mx.array:
        return block.norms(p=p) / (1 if p == math.inf else block.block_numel ** (1 / p))

    return score


def n_of_m(view: View, n: int, m: int, name: str | None = None) -> tuple[ScopeSpec, int]:
    """(scope, nnz) of N:M sparsity: n of each m consecutive elements of the last axis are kept."""
    if not 0 <= n <= m or m < 1:
        raise MLXSparseError(f"n_of_m needs 0 <= n <= m and m >= 1, got n={n}, m={m}")
    return ScopeSpec(BlockSpec(view, (), name), (*(1,) * (view.ndim - 1), m)), n


def group_lasso_step(block: SparseBlock, strength: float, learning_rate: float) -> None:
    """Proximal step after an optimizer step: soft threshold by strength * learning_rate."""
    block.soft_threshold(strength * learning_rate)


def constant(sparsity: float) -> Schedule:
    """`sparsity` from the first step on."""
    return lambda step: sparsity


def linear(sparsity: float, steps: int, begin: int = 0) -> Schedule:
    """From 0 at step `begin` in a straight line to `sparsity`, `steps` later."""
    return lambda step: sparsity * _share(step, steps, begin)


def cubic(sparsity: float, steps: int, begin: int = 0) -> Schedule:
    """From 0 at step `begin`, fast first, to `sparsity`, `steps` later (Zhu and Gupta, 2017)."""
    return lambda step: sparsity * (1 - (1 - _share(step, steps, begin)) ** 3)


def _share(step: int, steps: int, begin: int) -> float:
    if steps < 1:
        raise MLXSparseError(f"steps must be at least 1, got {steps}")
    return min(max((step - begin) / steps, 0.0), 1.0)
