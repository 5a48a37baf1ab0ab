"""Products with block-sparse matrices on the host: blocks of a line are gathered into few large products.

Each output is written by one task, its sums in ascending order of blocks: the same input gives the same bits.
"""

from __future__ import annotations

import numpy as np

from ..backend import fast_blocks
from ..backend.host import parallel, scratch
from .block_index import BlockIndex, Side

PANEL = 1024  # columns of the dense operand that one task multiplies
DEPTH = 4096  # elements along the reduced axis that are gathered at a time
GATHERED = 1 << 21  # elements of the dense operands of sdd that are gathered at a time
SMALL_WORK = 1 << 21  # multiply-adds that one thread does in about the time of waking another


def zero_edges(values: np.ndarray, index: BlockIndex) -> None:
    """Set what lies outside the matrix to 0; values (Z, nnz, br, bc)."""
    for blocks, (rows, cols) in index.edges():
        for z in range(len(values)):
            values[z, blocks, rows, cols] = 0


def line_matrix(
    values: np.ndarray, side: Side, head: int, first: int, last: int, a: int, b: int
) -> np.ndarray:
    """Lines [first, last) of one head as a matrix, over entries a to b of each (counted from its start)."""
    at = head * side.lines + first
    if last - first == 1:
        start = int(side.ptr[at])
        return one_line(values, side, start + a, start + b)
    chosen = np.concatenate([side.block[s + a : s + b] for s in side.ptr[at : at + last - first].tolist()])
    picked = values[chosen].reshape(last - first, b - a, *values.shape[1:])
    if side.by_row:
        return picked.transpose(0, 2, 1, 3).reshape((last - first) * side.size, -1)
    return picked.transpose(0, 3, 1, 2).reshape((last - first) * side.size, -1)


def one_line(values: np.ndarray, side: Side, a: int, b: int) -> np.ndarray:
    """The line that entries [a, b) belong to, as a matrix (size, (b - a) * other size)."""
    if side.by_row:  # stored one after the other
        first = int(side.block[a])
        return values[first : first + b - a].transpose(1, 0, 2).reshape(side.size, -1)
    return values[side.block[a:b]].reshape(-1, side.size).T


def whole_blocks(dense: np.ndarray, size: int) -> np.ndarray:
    """`dense` (Z, H, K, N), or a transposed view, with K padded by zeros to a multiple of `size`."""
    k = dense.shape[2]
    if k % size == 0:
        return dense
    if dense.strides[2] == dense.itemsize:
        return np.pad(dense.swapaxes(2, 3), ((0, 0),) * 3 + ((0, -k % size),)).swapaxes(2, 3)
    return np.pad(dense, ((0, 0), (0, 0), (0, -k % size), (0, 0)))


def pick(matrix: np.ndarray, other: np.ndarray, size: int) -> np.ndarray:
    """Rows of `matrix` (K, N) in the blocks `other`: (len(other) * size, N); a view of consecutive ones."""
    first, n = int(other[0]), len(other)
    if n == 1 or (int(other[-1]) - first == n - 1 and bool((np.diff(other) == 1).all())):
        return matrix[first * size : (first + n) * size]
    width = matrix.shape[1]
    if matrix.flags.c_contiguous:
        out = scratch((n, size, width), np.float32)
        matrix.reshape(len(matrix) // size, size, width).take(other, axis=0, out=out, mode="clip")
        return out.reshape(n * size, width)
    turned = matrix.T
    if not turned.flags.c_contiguous:
        turned = np.ascontiguousarray(turned)
    out = scratch((width, n, size), np.float32)
    turned.reshape(width, len(matrix) // size, size).take(other, axis=1, out=out, mode="clip")
    return out.reshape(width, n * size).T


def times(values: np.ndarray, side: Side, dense: np.ndarray, out: np.ndarray) -> None:
    """out[z, h] = S[z, h] @ dense[z, h]; S has the lines of `side` as its rows.

    values (Z, nnz, br, bc); dense (Z, H, K, N) and out (Z, H, extent, N), which may be transposed views. What
    `values` holds outside the matrix is not read.
    """
    batch, _, _, width = dense.shape
    dense = whole_blocks(dense, side.other_size)
    plan = side.plan
    small = values.size * width < SMALL_WORK
    if not small and fast_blocks.fits(side.size, side.size * len(side.ptr) / max(1, len(plan)), width):
        heads = len(side.ptr) // side.lines
        lines = np.arange(heads)[:, None] * side.lines + np.arange(side.lines + 1)
        sizes = (side.size, side.other_size, side.other_extent)
        fast_blocks.times(values, not side.by_row, side.ptr[lines], side.block, side.other, sizes, dense, out)
        return
    panels = -(-width // PANEL) if width > 1.5 * PANEL else 1
    parts = _panelled(dense, panels) if panels > 1 and dense.strides[3] == dense.itemsize else None

    def work(task: int) -> None:
        rest, at = divmod(task, len(plan))
        z, panel = divmod(rest, panels)
        left, right = (panel * PANEL, min((panel + 1) * PANEL, width)) if panels > 1 else (0, width)
        head = plan[at][0]
        matrix = dense[z, head][:, left:right] if parts is None else parts[panel][z, head]
        _one_run(values[z], side, plan[at], matrix, out[z, head, :, left:right])

    parallel(work, batch * panels * len(plan), blas=True, small=small)


def _one_run(
    values: np.ndarray, side: Side, run: tuple[int, int, int, int, int], matrix: np.ndarray, out: np.ndarray
) -> None:
    """The rows of `out` that belong to a run of lines, over pieces of the reduced axis."""
    head, first, last, a, b = run
    top, bottom = side.span(first, last)
    target = out[top:bottom]
    if a == b:
        target[:] = 0
    step = max(1, DEPTH // side.other_size)
    for start in range(0, b - a, step):
        stop = min(start + step, b - a)
        coefficients = line_matrix(values, side, head, first, last, start, stop)[: bottom - top]
        rows = pick(matrix, side.other[a + start : a + stop], side.other_size)
        spill = (int(side.other[a + stop - 1]) + 1) * side.other_size - side.other_extent
        if spill > 0:
            coefficients, rows = coefficients[:, :-spill], rows[:-spill]
        if start == 0:
            np.matmul(coefficients, rows, out=target)
        else:
            target += np.matmul(coefficients, rows)


def _panelled(dense: np.ndarray, panels: int) -> list[np.ndarray]:
    """Column panels of `dense`, each contiguous: gathered rows then are long enough and stay in cache."""
    parts: list[np.ndarray] = [np.empty(0)] * panels

    def work(p: int) -> None:
        parts[p] = np.ascontiguousarray(dense[..., p * PANEL : (p + 1) * PANEL])

    parallel(work, panels)
    return parts


def sampled(a: np.ndarray, b: np.ndarray, index: BlockIndex, values: np.ndarray) -> None:
    """values[z, n] = the n-th stored block of a[z, h] @ b[z, h], 0 outside the matrix.

    a (Z, H, M, K), b (Z, H, K, N), which may be transposed views; values (Z, nnz, br, bc).
    """
    side, (br, _) = index.by_col, index.block
    zero_edges(values, index)
    a = whole_blocks(a, br)
    depth = a.shape[3]
    per_z, per_step = side.lines * index.grid[0], max(1, GATHERED // max(1, br * depth))

    def work(task: int) -> None:
        z, line = divmod(task, per_z)
        head, col = divmod(line, side.lines)
        start, stop = side.listed(head, col)
        if start == stop:
            return
        left, right = side.span(col, col + 1)
        columns = b[z, head][:, left:right]
        for first in range(start, stop, per_step):
            last = min(first + per_step, stop)
            product = np.matmul(pick(a[z, head], side.other[first:last], br), columns)
            product = product.reshape(-1, br, right - left)
            spill = int(side.other[last - 1] + 1) * br - side.other_extent
            values[z, side.block[first:last], :, : right - left] = product
            if spill > 0:
                values[z, side.block[last - 1], br - spill :] = 0

    parallel(work, len(a) * per_z, blas=True, small=values.size * depth < SMALL_WORK)


# ---------------------------------------------------------------- dense forms


def unpack(values: np.ndarray, index: BlockIndex, fill: float = 0.0, reuse: bool = False) -> np.ndarray:
    """(Z, H, M, N): the matrix that `values` (Z, nnz, br, bc) stores, `fill` elsewhere. reuse: in scratch."""
    (h, r, c), (br, bc) = index.grid, index.block
    batch, side = len(values), index.by_row
    size = (batch, h, r, br, c, bc)
    whole = scratch(size, np.float32) if reuse else np.empty(size, values.dtype)

    def work(task: int) -> None:
        z, line = divmod(task, h * r)
        head, row = divmod(line, r)
        a, b = side.listed(head, row)
        strip = whole[z, head, row]
        if b - a < c:
            strip[:] = fill
        strip.transpose(1, 0, 2)[side.other[a:b]] = values[z, a:b]

    parallel(work, batch * h * r, small=whole.size < 1 << 18)
    matrix = whole.reshape(batch, h, r * br, c * bc)
    if index.ragged:
        return matrix[:, :, : index.shape[0], : index.shape[1]]
    return matrix


def pack(dense: np.ndarray, index: BlockIndex, values: np.ndarray) -> None:
    """values[:] = the stored blocks of `dense` (Z, H, M, N), 0 outside the matrix."""
    (h, r, c), (br, bc) = index.grid, index.block
    if index.ragged:
        m, n = index.shape
        dense = np.pad(dense, ((0, 0), (0, 0), (0, r * br - m), (0, c * bc - n)))
    blocked = dense.reshape(len(dense), h, r, br, c, bc).transpose(0, 1, 2, 4, 3, 5)
    for z in range(len(dense)):
        values[z] = blocked[z, index.heads, index.rows, index.cols]


def dense_times(
    values: np.ndarray, index: BlockIndex, turned: bool, dense: np.ndarray, out: np.ndarray
) -> bool:
    """`times` through the whole matrix. False, and nothing done, where NaN could leak past absent blocks."""
    if not np.isfinite(dense.sum()):
        return False
    if index.ragged:
        values = values.copy()
        zero_edges(values, index)
    whole = unpack(values, index, reuse=True)
    if turned:
        whole = whole.swapaxes(2, 3)
    for z in range(len(dense)):
        for h in range(dense.shape[1]):
            np.matmul(whole[z, h], dense[z, h], out=out[z, h])
    return True
