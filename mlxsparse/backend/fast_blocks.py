"""Block-sparse times dense on the host through numba, where it is (backend/fast.py).

Unlike the loops of fast.py, sums are added in another order than NumPy's BLAS adds them: results differ by
rounding from those without numba. They do not depend on the number of threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from . import fast
from .host import num_threads, parallel, scratch

GROUP = 4  # panels that a task packs: what K rows of them take stays in cache
ROWS = 96  # BLAS is as fast for lines, or runs of equal lines, of more rows


@lru_cache(maxsize=1)
def _loops() -> Any:
    from . import _numba_blocks

    return _numba_blocks


def fits(size: int, rows: float, width: int) -> bool:
    """Whether `times` is to do lines of `size` rows, `rows` on average in a run of equal ones."""
    return size % 4 == 0 and rows < ROWS and width >= 96 * num_threads() and fast.available()


def times(
    values: np.ndarray,
    turned: bool,
    ptr: np.ndarray,
    block: np.ndarray,
    other: np.ndarray,
    sizes: tuple[int, int, int],
    dense: np.ndarray,
    out: np.ndarray,
) -> None:
    """out[z, h] = S[z, h] @ dense[z, h], both (Z, H, rows, columns) or views; values (Z, nnz, br, bc).

    ptr (H, lines + 1), block and other are the lines' entries; turned: blocks are stored transposed; sizes:
    rows of a block, its columns, and of the matrix. What `values` holds past those is not read.
    """
    loops, values = _loops(), np.ascontiguousarray(values)
    batch, heads, depth, width = dense.shape
    groups = -(-width // (GROUP * loops.WIDTH))
    block, other = (np.ascontiguousarray(a, np.int64) for a in (block, other))

    def work(task: int) -> None:
        rest, group = divmod(task, groups)
        z, head = divmod(rest, heads)
        left = group * GROUP * loops.WIDTH
        right = min(left + GROUP * loops.WIDTH, width)
        panels = scratch((-(-(right - left) // loops.WIDTH), depth, loops.WIDTH), np.float32)
        loops.pack(dense[z, head, :, left:right], panels)
        place = values[z].ctypes.data
        loops.times(place, turned, ptr[head], block, other, *sizes, panels, out[z, head, :, left:right])

    parallel(work, batch * heads * groups)
