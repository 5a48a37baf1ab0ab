"""Space-filling curves over lattice sites: Morton (Z-order) and Hilbert, on the host.

The curves run over the whole lattice, [-2**30, 2**30) on each axis, so the order of two sites never
depends on which other sites there are. Around the origin most of the 31 levels say the same for
every site; leaving such levels out keeps the order, and small clouds then fit one 64-bit key.
"""

from __future__ import annotations

import numpy as np

from ..backend.host import parallel
from .sorting import columns_of, lexicographic_order, stable_argsort

ORDERS = ("lexicographic", "morton", "morton-trans", "hilbert", "hilbert-trans")
LEVELS = 31  # bits per axis of the whole lattice
WORD = 21  # levels whose 3 bits each fit one 64-bit word
PERIOD = 3  # levels next to the origin in which a Hilbert curve turns full circle
CHUNK = 1 << 14  # sites whose temporaries stay in cache


def curve_order(coords: np.ndarray, order: str, depth: int | None = None) -> np.ndarray:
    """Rows of (n, 4) sites (batch, x, y, z), batch by batch along a curve; int64, ties by row.

    depth: the plain curve over [0, 2**depth) on each axis instead of the one over the whole lattice.
    """
    n = len(coords)
    if order == "lexicographic" or n < 2:
        found = lexicographic_order(columns_of(coords)).order
        return np.arange(n) if found is None else found
    axes = [np.ascontiguousarray(coords[:, axis], dtype=np.int64) for axis in (1, 2, 3)]
    if order.endswith("-trans"):
        axes[0], axes[1] = axes[1], axes[0]
    hilbert = order.startswith("hilbert")
    bias, levels = (0, depth) if depth is not None else _levels(axes, hilbert)
    high, low = _keys(axes, bias, levels, hilbert)
    return _sorted_rows(coords[:, 0], high, low, levels)


def _levels(axes: list[np.ndarray], hilbert: bool) -> tuple[int, int]:
    """(bias, levels) of the least part of the whole curve that orders these sites as it does.

    Where -2**m <= c < 2**m, the bits of c + 2**30 between its top one and its m lowest repeat the
    complement of the top one. Morton order needs none of these levels. The turns of a Hilbert curve
    repeat every PERIOD of them, after the first.
    """
    reach = max(max(-int(a.min()), int(a.max()) + 1) for a in axes)
    m = (reach - 1).bit_length()
    if hilbert and m < LEVELS - 1:
        m += 1 + (LEVELS - 2 - m) % PERIOD
    return 1 << m, m + 1


def _keys(
    axes: list[np.ndarray], bias: int, levels: int, hilbert: bool
) -> tuple[np.ndarray | None, np.ndarray]:
    """(high, low) words of each site's place on the curve, uint64; high is None where low is all."""
    n = len(axes[0])
    low = np.empty(n, np.uint64)
    high = np.empty(n, np.uint64) if levels > WORD else None

    def work(chunk: int) -> None:
        rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        cells = [(a[rows] + bias).astype(np.uint32) for a in axes]
        if hilbert:
            _hilbert(cells, levels)
        low[rows] = _interleave(cells)
        if high is not None:
            high[rows] = _interleave([c >> np.uint32(WORD) for c in cells])

    parallel(work, -(-n // CHUNK))
    return high, low


def _interleave(cells: list[np.ndarray]) -> np.ndarray:
    """Bits of three axes in turn, the first axis highest; the lowest 21 bits of each."""
    word = np.zeros(len(cells[0]), np.uint64)
    for cell in cells:
        v = cell.astype(np.uint64) & np.uint64(0x1FFFFF)
        for shift, mask in (
            (32, 0x001F00000000FFFF),
            (16, 0x001F0000FF0000FF),
            (8, 0x100F00F00F00F00F),
            (4, 0x10C30C30C30C30C3),
            (2, 0x1249249249249249),
        ):
            v |= v << np.uint64(shift)
            v &= np.uint64(mask)
        word <<= np.uint64(1)
        word |= v
    return word


def _hilbert(x: list[np.ndarray], levels: int) -> None:
    """Coordinates to the transposed Hilbert index, in place.

    J. Skilling, "Programming the Hilbert curve", AIP Conference Proceedings 707 (2004), with the
    branch on a bit written as a mask of all ones or zeros.
    """
    one = np.uint32(1)
    for level in range(levels - 1, 0, -1):
        below = np.uint32((1 << level) - 1)
        for i in range(3):
            invert = np.uint32(0) - ((x[i] >> np.uint32(level)) & one)
            if i:
                swap = (x[0] ^ x[i]) & below & ~invert
                x[i] ^= swap
                x[0] ^= swap
            x[0] ^= invert & below
    x[1] ^= x[0]
    x[2] ^= x[1]
    flip = np.zeros_like(x[2])
    for level in range(levels - 1, 0, -1):
        flip ^= (np.uint32(0) - ((x[2] >> np.uint32(level)) & one)) & np.uint32((1 << level) - 1)
    for axis in x:
        axis ^= flip


def _sorted_rows(batch: np.ndarray, high: np.ndarray | None, low: np.ndarray, levels: int) -> np.ndarray:
    """Rows by (batch, high, low), ties by row."""
    bits = int(batch.max()).bit_length() + 3 * levels
    if high is None and bits <= 63:
        key = batch.astype(np.int64) << (3 * levels)
        key |= low.view(np.int64)
        return stable_argsort(key, bits)
    top = batch.astype(np.uint64)
    if high is not None:
        top = (top << np.uint64(3 * (LEVELS - WORD))) | high  # 31 + 30 bits
    return np.lexsort((low, top))
