"""Optional inner loops compiled by numba (``pip install 'mlxsparse[fast]'``), with the same bits as NumPy's.

Each function moves or adds rows in the order that the NumPy form does. `available()` is False
without numba or with ``MLXSPARSE_FAST=0``; callers then use NumPy.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache(maxsize=1)
def _numba() -> Any:
    try:
        import numba
    except ImportError:
        return None
    return numba


def available() -> bool:
    """Whether the compiled loops are used."""
    return os.environ.get("MLXSPARSE_FAST", "1") != "0" and _numba() is not None


@lru_cache(maxsize=1)
def loops() -> Any:
    """The compiled functions, as attributes; compiled at first use and kept on disk by numba."""
    from . import _numba_loops

    return _numba_loops


def add_rows(total: np.ndarray, target: np.ndarray, value: np.ndarray) -> None:
    """total[target[i]] += value[i] for distinct rows."""
    loops().add_rows(total, target, value)


def max_rows(best: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    """best[target[i]] = maximum(best[target[i]], source[ranks[i]]); NaN wins."""
    loops().max_rows(best, target, source, ranks)


def add_gathered(total: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    """total[target[i]] += source[ranks[i]] for distinct rows."""
    loops().add_gathered(total, target, source, ranks)


def segment_sum(values: np.ndarray, ids: np.ndarray, total: np.ndarray) -> None:
    """total[ids[i]] += values[i] in order, in float64; ids of -1 are left out."""
    loops().segment_sum(values, ids, total)
