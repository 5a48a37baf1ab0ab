"""Block-sparse attention on the host: keys and values of a run of block rows are gathered and met once.

Scores live for one run at a time, so memory beyond inputs and outputs does not grow with the layout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..backend.host import parallel, scratch
from .block_index import BlockIndex, Side
from .block_terms import Listed, Place, Terms

KEYS = 2048  # keys, or queries in the gradients of k and v, that are met at a time
LINES = 8  # block columns of one task in the gradients of k and v
SMALL_WORK = 1 << 20


class Job(NamedTuple):
    """q (Z, Hq, M, D), k (Z, Hk, N, D), v (Z, Hk, N, Dv) float32; the layout has Hq heads, or one for all."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    terms: Terms
    blocks: BlockIndex

    @property
    def small(self) -> bool:
        heads = self.q.shape[1] // self.blocks.grid[0]
        work = self.blocks.nnz * self.blocks.block[0] * self.blocks.block[1] * heads * len(self.q)
        return work * (self.q.shape[3] + self.v.shape[3]) < SMALL_WORK


def _rows(a: np.ndarray, place: Place) -> np.ndarray:
    """Rows of a (n, C): a view of consecutive ones, else gathered."""
    if isinstance(place, slice):
        return a[place]
    return np.take(a, place, axis=0, out=scratch((len(place), a.shape[1]), np.float32), mode="clip")


def _scores(job: Job, z: int, head: int, rows: Place, keys: Place, listed: Listed) -> np.ndarray:
    """Scores (rows, keys) of one head, in scratch."""
    key_head = head * job.k.shape[1] // job.q.shape[1]
    q = _rows(job.q[z, head], rows)
    k = _rows(job.k[z, key_head], keys)
    t = np.matmul(q, k.T, out=scratch((len(q), len(k)), np.float32))
    t *= np.float32(job.scale)
    job.terms.apply(t, (z, head, key_head), rows, keys, listed)
    return t


def _pieces(side: Side, a: int, b: int) -> list[tuple[int, int]]:
    step = max(1, KEYS // side.other_size)
    return [(s, min(s + step, b)) for s in range(a, b, step)]


def forward(job: Job, out: np.ndarray, lse: np.ndarray) -> None:
    """out (Z, Hq, M, Dv), lse (Z, Hq, M); queries without any key have 0 and -inf."""
    side, heads = job.blocks.by_row, job.q.shape[1]
    runs = _runs_of(job.blocks, side, heads)

    def work(task: int) -> None:
        z, run = divmod(task, len(runs))
        head, layout_head, first, last = runs[run]
        top, bottom = side.span(first, last)
        rows = slice(top, bottom)
        key_head = head * job.k.shape[1] // heads
        peak = np.full(bottom - top, -np.inf, np.float32)
        total = np.zeros(bottom - top, np.float32)
        sums = out[z, head, rows]
        sums[:] = 0
        start, end = side.listed(layout_head, first)
        for a, b in _pieces(side, start, end):
            keys = side.positions(a, b)
            t = _scores(job, z, head, rows, keys, (side, layout_head, first, last, a - start, b - start))
            higher = np.maximum(peak, t.max(axis=1))
            safe = np.where(higher == -np.inf, np.float32(0), higher)
            t -= safe[:, None]
            np.exp(t, out=t)
            values = _rows(job.v[z, key_head], keys)
            if a == start:
                np.matmul(t, values, out=sums)
                total = t.sum(axis=1)
            else:
                fade = np.exp(peak - safe)
                sums *= fade[:, None]
                sums += t @ values
                total = total * fade + t.sum(axis=1)
            peak = higher
        sums /= np.where(total == 0, np.float32(1), total)[:, None]
        lse[z, head, rows] = np.where(total == 0, np.float32(-np.inf), np.log(total) + peak)

    parallel(work, len(job.q) * len(runs), blas=True, small=job.small)


def _runs_of(index: BlockIndex, side: Side, heads: int) -> list[tuple[int, int, int, int]]:
    """(head, layout head, first, last) of the runs, for `heads` heads."""
    found = [(int(h), int(first), int(last)) for h, first, last in side.runs]
    if index.grid[0] == heads:
        return [(h, h, first, last) for h, first, last in found]
    return [(h, 0, first, last) for h in range(heads) for _, first, last in found]


class Saved(NamedTuple):
    """What gradients read: ct (Z, Hq, M, Dv), lse and delta = sum(ct * out) - gradient of lse, (Z, Hq, M)."""

    ct: np.ndarray
    lse: np.ndarray
    delta: np.ndarray


def _probabilities(t: np.ndarray, lse: np.ndarray) -> np.ndarray:
    t -= np.where(lse == -np.inf, np.float32(0), lse)[:, None]
    return np.exp(t, out=t)


def _score_gradient(
    job: Job, saved: Saved, p: np.ndarray, z: int, head: int, rows: Place, keys: Place
) -> np.ndarray:
    """Gradient of the scores p was made from: p * (ct v^T - delta), in p."""
    key_head = head * job.k.shape[1] // job.q.shape[1]
    ct = _rows(saved.ct[z, head], rows)
    v = _rows(job.v[z, key_head], keys)
    dp = np.matmul(ct, v.T, out=scratch((len(ct), len(v)), np.float32))
    dp -= saved.delta[z, head][rows][:, None]
    p *= dp
    return p


def query_gradient(job: Job, saved: Saved, dq: np.ndarray | None, ds: np.ndarray | None) -> None:
    """dq (Z, Hq, M, D), and with `ds` (Z, nnz, br, bc) the gradient of the scores (layout of Hq heads)."""
    side, heads = job.blocks.by_row, job.q.shape[1]
    runs, (br, bc) = _runs_of(job.blocks, side, heads), job.blocks.block

    def work(task: int) -> None:
        z, run = divmod(task, len(runs))
        head, layout_head, first, last = runs[run]
        top, bottom = side.span(first, last)
        rows = slice(top, bottom)
        key_head = head * job.k.shape[1] // heads
        if dq is not None:
            dq[z, head, rows] = 0
        start, end = side.listed(layout_head, first)
        for a, b in _pieces(side, start, end):
            keys = side.positions(a, b)
            t = _scores(job, z, head, rows, keys, (side, layout_head, first, last, a - start, b - start))
            p = _probabilities(t, saved.lse[z, head, rows])
            d = _score_gradient(job, saved, p, z, head, rows, keys)
            if dq is not None:
                dq[z, head, rows] += d @ _rows(job.k[z, key_head], keys)
            if ds is not None:
                for line in range(first, last):
                    at = side.listed(layout_head, line)[0] + a - start
                    part = d[(line - first) * br : (line - first + 1) * br]
                    for n in range(b - a):
                        block = part[:, n * bc : (n + 1) * bc]
                        ds[z, at + n, : len(block), : block.shape[1]] = block
        if dq is not None:
            dq[z, head, rows] *= np.float32(job.scale)

    parallel(work, len(job.q) * len(runs), blas=True, small=job.small)


def key_gradient(job: Job, saved: Saved, out: np.ndarray, of_values: bool) -> None:
    """dv (Z, Hk, N, Dv) if `of_values`, else dk (Z, Hk, N, D); summed over the query heads of a key head."""
    side, heads, key_heads = job.blocks.by_col, job.q.shape[1], job.k.shape[1]
    group = heads // key_heads
    by_head: list[list[tuple[int, int, int]]] = [[] for _ in range(heads)]
    for head, layout_head, first, last in _runs_of(job.blocks, side, heads):
        by_head[head].append((layout_head, first, last))
    pieces = -(-side.lines // LINES)

    def work(task: int) -> None:
        rest, piece = divmod(task, pieces)
        z, key_head = divmod(rest, key_heads)
        low, high = piece * LINES, min((piece + 1) * LINES, side.lines)
        left, right = side.span(low, high)
        out[z, key_head, left:right] = 0
        for head in range(key_head * group, (key_head + 1) * group):
            for layout_head, first, last in by_head[head]:
                if first < high and last > low:
                    one_run(z, head, key_head, layout_head, max(first, low), min(last, high))
        if not of_values:
            out[z, key_head, left:right] *= np.float32(job.scale)

    def one_run(z: int, head: int, key_head: int, layout_head: int, first: int, last: int) -> None:
        keys = slice(*side.span(first, last))
        start, end = side.listed(layout_head, first)
        for a, b in _pieces(side, start, end):
            rows = side.positions(a, b)
            t = _scores(job, z, head, rows, keys, (side, layout_head, first, last, a - start, b - start))
            p = _probabilities(t, saved.lse[z, head][rows])
            if of_values:
                out[z, key_head, keys] += p.T @ _rows(saved.ct[z, head], rows)
            else:
                d = _score_gradient(job, saved, p, z, head, rows, keys)
                out[z, key_head, keys] += d.T @ _rows(job.q[z, head], rows)

    parallel(work, len(job.q) * key_heads * pieces, blas=True, small=job.small)
