"""Optional inner loops compiled by numba (``pip install 'mlxsparse[fast]'``), with the same bits as NumPy's.

Each function moves or adds rows in the order that the NumPy form does, and sums products in order, as
OpenBLAS's kernels for AVX-512 do; those for AVX2 take some rows in another order, and products then differ
by rounding. `available()` is False without numba or with ``MLXSPARSE_FAST=0``; callers then use NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .host import blas_addresses, num_threads, parallel, scratch, setting

SMALL = 100_000  # items that one thread does in about the time of waking another


@lru_cache(maxsize=1)
def _numba() -> Any:
    try:
        import numba
    except ImportError:
        return None
    return numba


def available() -> bool:
    """Whether the compiled loops are used."""
    return setting(b"MLXSPARSE_FAST") != b"0" and _numba() is not None


@lru_cache(maxsize=1)
def loops() -> Any:
    """The compiled functions, as attributes; compiled at first use and kept on disk by numba."""
    from . import _numba_loops

    return _numba_loops


@lru_cache(maxsize=1)
def _products() -> Any:
    from . import _numba_products

    return _numba_products


def add_rows(total: np.ndarray, target: np.ndarray, value: np.ndarray) -> None:
    """total[target[i]] += value[i] for distinct rows."""
    loops().add_rows(total, target, value)


def max_rows(best: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    """best[target[i]] = maximum(best[target[i]], source[ranks[i]]); NaN wins."""
    loops().max_rows(best, target, source, ranks)


def pool_windows(
    source: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    largest: bool,
    scale: np.ndarray | None,
    out: np.ndarray,
    block: slice,
) -> None:
    """out[block][o] = scale[block][o] * maximum or sum of source[rows[starts[o] + k]], k < counts[o]."""
    if largest:
        loops().max_windows(source, rows, starts, counts, out[block])
    else:
        share = np.ones(0, np.float32) if scale is None else scale[block]
        loops().sum_windows(source, rows, starts, counts, share, out[block])


def add_gathered(total: np.ndarray, target: np.ndarray, source: np.ndarray, ranks: np.ndarray) -> None:
    """total[target[i]] += source[ranks[i]] for distinct rows."""
    loops().add_gathered(total, target, source, ranks)


def _for_ranges(work: Callable[[int, int], None], items: int, groups: int) -> None:
    """Call ``work(low, high)`` for ranges of groups: each is one thread's, so every sum keeps its order."""
    parts = 1 if items < SMALL else num_threads()
    edges = np.arange(parts + 1) * groups // parts
    parallel(lambda i: work(edges[i], edges[i + 1]), parts)


def segment_sum(values: np.ndarray, ids: np.ndarray, share: np.ndarray | None, out: np.ndarray) -> None:
    """out[g] = share[g] * sum of values[i] with ids[i] == g, summed in float64 in order."""
    total = scratch(out.shape, np.float64)
    share = np.ones(0) if share is None else share

    def work(low: int, high: int) -> None:
        loops().segment_sum(values, ids, share, out, total[low:high], low, high)

    _for_ranges(work, len(ids), len(out))


def count(ids: np.ndarray, groups: int) -> np.ndarray:
    """How often each group occurs in ids, (groups,) int64; -1 is left out."""
    total = scratch(groups, np.int64)
    total[:] = 0
    loops().count(ids, total)
    return total


def pack(columns: Sequence[np.ndarray], low: list[int], bits: list[int], key: np.ndarray) -> None:
    """key = four int32 columns less `low`, side by side in `bits`, the first one highest."""
    loops().pack(*columns, np.array(low), np.array(bits), key)


def unpack(key: np.ndarray, low: list[int], bits: list[int], shift: Sequence[int], out: np.ndarray) -> None:
    """Rows of out = the fields of each key: (low + field) >> shift."""
    loops().unpack(key, np.array(low), np.array(bits), np.array(shift), out)


def sort_keys(key: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Order of keys below 2**bits (int64, ties by position) and the keys in it; None as for group_keys."""
    found = _sort_pairs(key, bits)
    if found is None:
        return None
    parts, row_bits = found
    order, ranked = scratch(len(key), np.int64), scratch(len(key), np.int64)

    def work(i: int) -> None:
        here = slice(len(parts[0])) if i == 0 else slice(len(parts[0]), None)
        loops().unzip(parts[i], row_bits, order[here], ranked[here])

    parallel(work, 2, small=len(key) < SMALL)
    return order, ranked


def sort_part(key: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray] | None:
    """As `sort_keys`, in the calling thread."""
    n = len(key)
    row_bits = max(n - 1, 0).bit_length()
    if row_bits + bits > 64:
        return None
    both, other = scratch(n, np.uint64), scratch(n, np.uint64)
    loops().split(key, -1, row_bits, both)
    both = loops().sort_bits(both, other, row_bits, row_bits + bits)
    order, ranked = scratch(n, np.int64), scratch(n, np.int64)
    loops().unzip(both, row_bits, order, ranked)
    return order, ranked


def group_keys(key: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Distinct keys below 2**bits in order, group of each position (int32), first position and size of each.

    None where key and position do not share 64 bits.
    """
    found = _sort_pairs(key, bits)
    if found is None:
        return None
    parts, row_bits = found
    groups = [0, 0]

    def measure(i: int) -> None:
        groups[i] = loops().count_groups(parts[i], row_bits)

    parallel(measure, 2, small=len(key) < SMALL)
    total = sum(groups)
    distinct, first, counts = (scratch(total, np.int64) for _ in range(3))
    numbers = scratch(len(key), np.int32)

    def number(i: int) -> None:
        loops().number_groups(parts[i], row_bits, i * groups[0], distinct, numbers, first, counts)

    parallel(number, 2, small=len(key) < SMALL)
    return distinct, numbers, first, counts


def _sort_pairs(key: np.ndarray, bits: int) -> tuple[list[np.ndarray], int] | None:
    """(two arrays of ``key << row_bits | position``, sorted and one after the other, row_bits)."""
    n = len(key)
    row_bits = max(n - 1, 0).bit_length()
    if row_bits + bits > 64:
        return None
    # Each thread sorts the keys of one range; ranges then only have to be put end to end.
    both, other = scratch(n, np.uint64), scratch(n, np.uint64)
    edge = int(np.median(key[:: n // 1024])) if n >= SMALL and num_threads() > 1 else -1
    low = loops().split(key, edge, row_bits, both)
    parts, others = [both[:low], both[low:]], [other[:low], other[low:]]

    def sort(i: int) -> None:
        parts[i] = loops().sort_bits(parts[i], others[i], row_bits, row_bits + bits)

    parallel(sort, 2, small=n < SMALL)
    return parts, row_bits


def blas() -> np.ndarray | None:
    """What `convolve_block` and `put_products` need of NumPy's BLAS; None without it or without numba."""
    return blas_addresses() if available() else None


def convolve_block(
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray | None,
    taps: np.ndarray,
    ranks: tuple[np.ndarray, np.ndarray],
    spans: tuple[np.ndarray, np.ndarray],
    first: int,
    total: np.ndarray,
    room: list[np.ndarray],
) -> None:
    """total[o - first] += x[order[i]] @ taps[t] for pairs (i, o) of `ranks`, tap t's in its span.

    spans: where each tap's pairs start and end. room: rows for what is gathered, and for the products.
    """
    _products().convolve_block(blas, x, or_none(order), taps, *ranks, *spans, first, total, *room)


def put_products(
    blas: np.ndarray,
    x: np.ndarray,
    order: np.ndarray | None,
    weight: np.ndarray,
    ranks: np.ndarray,
    rows: np.ndarray,
    y: np.ndarray,
    room: list[np.ndarray],
) -> None:
    """y[rows[i]] = x[order[ranks[i]]] @ weight; `room` as in `convolve_block`."""
    _products().put_products(blas, x, or_none(order), weight, ranks, rows, y, *room)


def rows_times(
    blas: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, y: np.ndarray
) -> None:
    """y = x @ weight + bias, for more than one row."""
    _products().rows_times(blas, x, weight, np.empty(0, np.float32) if bias is None else bias, y)


_RANKS_ARE_ROWS = np.empty(0, np.int32)


def or_none(order: np.ndarray | None) -> np.ndarray:
    return _RANKS_ARE_ROWS if order is None else order
