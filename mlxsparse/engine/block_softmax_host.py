"""Softmax over the rows of a block-sparse matrix on the host: a task is a block row."""

from __future__ import annotations

import numpy as np

from ..backend.host import parallel
from .block_host import zero_edges
from .block_index import BlockIndex
from .block_terms import Terms

SMALL_WORK = 1 << 14  # elements that one thread takes in about the time of waking another


def softmax(
    x: np.ndarray, scale: float, terms: Terms, index: BlockIndex, y: np.ndarray, lse: np.ndarray
) -> None:
    """y (Z, nnz, br, bc) = softmax of x * scale + terms over each row's stored blocks, lse (Z, H, M).

    A row that is masked throughout has 0 and -inf; what lies outside the matrix is 0 and not read.
    """
    side, (br, bc) = index.by_row, index.block
    zero_edges(y, index)
    total = index.grid[0] * side.lines

    def work(task: int) -> None:
        z, line = divmod(task, total)
        head, row = divmod(line, side.lines)
        a, b = side.listed(head, row)
        top, bottom = side.span(row, row + 1)
        if a == b:
            lse[z, head, top:bottom] = -np.inf
            return
        t = x[z, a:b].transpose(1, 0, 2).reshape(br, -1) * np.float32(scale)
        keys = side.positions(a, b)
        n = keys.stop - keys.start if isinstance(keys, slice) else len(keys)
        t = t[: bottom - top, :n]
        terms.apply(t, (z, head, 0), slice(top, bottom), keys, (side, head, row, row + 1, 0, b - a))
        peak = t.max(axis=1)
        peak = np.where(peak == -np.inf, np.float32(0), peak)
        t -= peak[:, None]
        np.exp(t, out=t)
        sums = t.sum(axis=1)
        none = sums == 0
        t /= np.where(none, np.float32(1), sums)[:, None]
        lse[z, head, top:bottom] = np.log(sums) + peak
        whole, rest = divmod(n, bc)
        y[z, a : a + whole, : bottom - top] = t[:, : whole * bc].reshape(len(t), whole, bc).transpose(1, 0, 2)
        if rest:
            y[z, a + whole, : bottom - top, :rest] = t[:, whole * bc :]

    parallel(work, len(x) * total, small=x.size < SMALL_WORK)


def score_gradient(
    ct: np.ndarray, y: np.ndarray, lse_ct: np.ndarray | None, index: BlockIndex, dt: np.ndarray
) -> None:
    """dt (Z, nnz, br, bc): gradient of the scores from those of y (Z, nnz, br, bc) and of lse (Z, H, M)."""
    side = index.by_row
    total = index.grid[0] * side.lines
    if index.ragged:
        ct = ct.copy()
        zero_edges(ct, index)

    def work(task: int) -> None:
        z, line = divmod(task, total)
        head, row = divmod(line, side.lines)
        a, b = side.listed(head, row)
        if a == b:
            return
        p, g = y[z, a:b], ct[z, a:b]
        inner = np.einsum("nij,nij->i", p, g)
        if lse_ct is not None:
            top, bottom = side.span(row, row + 1)
            inner[: bottom - top] -= lse_ct[z, head, top:bottom]
        np.subtract(g, inner[None, :, None], out=dt[z, a:b])
        dt[z, a:b] *= p

    parallel(work, len(y) * total, small=y.size < SMALL_WORK)
