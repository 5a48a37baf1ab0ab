"""Compiled convolutions of few channels and passes over rows, for `fast.available()`; workers help."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import team
from .fast import or_none
from .host import blas_addresses

WAKE = 1 << 19  # values of a pass that workers are woken for
# Channels in and out up to which rows are multiplied where they lie; with wide registers.
FEW, FEW_WIDE = (16, 16), (128, 64)
PIECE = 1024  # values of a step, which stay in cache
_NONE = np.empty(0, np.float32)


class Finish(NamedTuple):
    """What is done with rows once they are made: normalised, plus `add`, then max(., 0) with `relu`.

    vectors: mean, variance, weight and bias (C,), or empty arrays in their place. add (rows, C) or (0, .), or
    (rows, C') with a weight (C, C') in `through`: then add @ through.T is added.
    """

    vectors: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    eps: np.float32
    add: np.ndarray
    relu: bool
    through: np.ndarray | None = None


_NO_ROWS = np.empty((0, 1), np.float32)
_NO_FINISH = Finish((_NONE,) * 4, np.float32(0), _NO_ROWS, False)
_NO_MIX = np.empty((0, 1, 0), np.float32)


@lru_cache(maxsize=1)
def _passes() -> Any:
    from . import _numba_passes

    return _numba_passes


def activate(x: np.ndarray, steps: Finish, length: int, y: np.ndarray) -> None:
    """As engine.pointwise._activate; workers help."""
    code, crew = _passes(), team.crew(len(y) >= WAKE)
    job = team.job(code.activate_part)
    code.activate(crew, job, x, *steps.vectors, steps.eps, steps.add, steps.relu, length, y)


def put_columns(source: np.ndarray, y: np.ndarray, first: int) -> None:
    """y[:, first : first + C] = source; workers help."""
    code, crew = _passes(), team.crew(source.size >= WAKE)
    code.put_columns(crew, team.job(code.put_columns_part), source, y, first)


@lru_cache(maxsize=1)
def _few() -> Any:
    from . import _numba_few

    return _numba_few


def _lanes(channels: int) -> int:
    """Channels of a vector."""
    return 4 if channels <= 4 else 16 if channels > 8 and _few().WIDE else 8


@cache
def few_channels(ci: int, co: int) -> bool:
    """Whether `convolve_few` takes products (m, ci) @ (ci, co): few channels, and the bits of this BLAS."""
    addresses = blas_addresses()
    most = FEW_WIDE if _few().WIDE else FEW
    if addresses is None or ci > most[0] or co > most[1]:
        return False
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((1024, ci), (ci, co)))
    ranks = np.arange(len(x), dtype=np.int32)
    weight = np.ascontiguousarray(w.T)[:, None]
    for m in (5, len(x)):
        y = np.empty((m, co), np.float32)
        edges = np.array([0, m])
        bounds = edges[:, None]
        convolve_few(addresses, x, None, weight, (ranks, ranks), edges, bounds, None, None, y, alone=True)
        if not np.array_equal(y, np.matmul(x[:m], w)):
            return False
    return True


def convolve_few(
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray | None,
    weight: np.ndarray,
    ranks: tuple[np.ndarray, np.ndarray],
    edges: np.ndarray,
    bounds: np.ndarray,
    bias: np.ndarray | None,
    out_order: np.ndarray | None,
    y: np.ndarray,
    *,
    group: int = 1,
    finish: Finish | None = None,
    wake: bool = False,
    alone: bool = False,
) -> None:
    """y[out_order[o]] = bias + sum of x[order[i]] @ weight[:, t].T over pairs (i, o), for `few_channels`.

    weight (Co, T, Ci). edges: of blocks of output ranks; bounds (blocks + 1, T): pairs of each tap in them. A
    pair alone in `group` blocks is multiplied as NumPy does it. wake, alone: as in `team.crew`.
    """
    code, lanes = _few(), _lanes(len(weight))
    job = team.job(code.few4 if lanes == 4 else code.few8 if lanes == 8 else code.few16)
    vectors, eps, add, relu, through = finish or _NO_FINISH
    rows, mix = _NO_ROWS, _NO_MIX
    if through is not None:
        add, rows, mix = _NO_ROWS, add, through[:, None]
    code.convolve(
        team.crew(wake, alone), (job, lanes), blas, x, or_none(order), weight, *ranks, edges, bounds, group,
        _NONE if bias is None else bias, or_none(out_order), vectors, eps, PIECE, add, relu, rows, mix, y,
    )  # fmt: skip


def few_times(
    blas: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, y: np.ndarray, count: int
) -> None:
    """y[:count] = x[:count] @ weight.T + bias, for `few_channels` and more than one row; weight (Co, Ci)."""
    ranks, edges = _in_order(count)
    convolve_few(
        blas, x, None, weight[:, None], (ranks, ranks), edges, edges[:, None], bias, None, y,
        group=len(edges), wake=count * weight.size >= WAKE,
    )  # fmt: skip


_ROWS = 512  # of a part


@lru_cache(maxsize=16)
def _in_order(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers below count, and edges of parts."""
    edges = np.arange(0, count + _ROWS, _ROWS)
    edges[-1] = count
    return np.arange(count, dtype=np.int32), edges
