"""Attention inside segments on the host: segments of about one length are met together, in one product.

Segments are sorted by length and cut into chunks whose scores stay in cache; inside a chunk the longest sets
the size, which is at most an eighth above the shortest. A segment too long for that is met in pieces, with
running sums. Nothing of the size queries x keys is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..backend.host import parallel, scratch
from .segments import Segments, Side

SCORES = 1 << 18  # of one step, all heads
LONG = 1 << 18  # queries x keys of a segment from which it is met in pieces
QUERIES, KEYS = 256, 1024  # of one piece
SMALL_WORK = 1 << 20
PLAIN = 60.0  # scores within +- this need no shift before the exponential


class Job(NamedTuple):
    """q (N, H, D), k (M, KH, D), v (M, KH, Dv) float32, C-contiguous."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float
    segments: Segments

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return self.q.shape[1] // self.k.shape[1]


class Saved(NamedTuple):
    """What gradients read: ct and out (N, H, Dv), lse (N, H)."""

    ct: np.ndarray
    out: np.ndarray
    lse: np.ndarray


class Chunks(NamedTuple):
    """Chunks of short segments, and (segment, first, last position) of long ones' pieces."""

    short: list[np.ndarray]
    long_queries: list[tuple[int, int, int]]
    long_keys: list[tuple[int, int, int]]


def chunks_of(segments: Segments, heads: int) -> Chunks:
    lq, lk = segments.lengths
    live = (lq > 0) & (lk > 0)
    long = live & (lq * lk > LONG)
    short = np.flatnonzero(live & ~long)
    # Lengths rounded up to three significant bits: at most an eighth is padding on each side.
    q_class, k_class = _rounded(lq[short]), _rounded(lk[short])
    order = np.lexsort((short, lq[short], lk[short], q_class, k_class))
    short, q_class, k_class = short[order], q_class[order], k_class[order]
    size = np.maximum(1, SCORES // np.maximum(1, q_class * k_class * heads))
    edges = np.flatnonzero(np.diff(q_class) | np.diff(k_class)) + 1
    found = []
    for a, b in zip([0, *edges.tolist()], [*edges.tolist(), len(short)]):
        if b > a:
            step = int(size[a])
            found += [short[i : min(i + step, b)] for i in range(a, b, step)]
    found.reverse()  # the most work first
    which = np.flatnonzero(long).tolist()
    return Chunks(found, _pieces(segments.q.starts, which, QUERIES), _pieces(segments.k.starts, which, KEYS))


def _rounded(length: np.ndarray) -> np.ndarray:
    step = np.left_shift(1, np.maximum(0, np.frexp(length.astype(np.float64))[1] - 4)).astype(np.int64)
    return -(-length // step) * step


def _pieces(starts: np.ndarray, which: list[int], size: int) -> list[tuple[int, int, int]]:
    found = []
    for s in which:
        a, b = int(starts[s]), int(starts[s + 1])
        found += [(s, i, min(i + size, b)) for i in range(a, b, size)]
    return found


class Rows(NamedTuple):
    """Rows of a chunk's segments, padded to the longest: rows (W, L), live (W, L) or None where all are."""

    rows: np.ndarray
    live: np.ndarray | None

    @staticmethod
    def of(side: Side, which: np.ndarray) -> Rows:
        first = side.starts[which]
        length = side.starts[which + 1] - first
        at = np.arange(int(length.max()))
        place = first[:, None] + at
        if int(length.min()) == len(at):
            return Rows(side.order.take(place), None)
        live = at < length[:, None]
        return Rows(side.order.take(np.where(live, place, first[:, None])), live)

    def take(self, a: np.ndarray) -> np.ndarray:
        """(W, L, H, C) rows of a (N, H, C), 0 where there is none."""
        width = a.shape[1] * a.shape[2]
        out = scratch((self.rows.size, width), np.float32)
        np.take(a.reshape(len(a), width), self.rows.ravel(), axis=0, out=out, mode="clip")
        if self.live is not None:
            out[~self.live.ravel()] = 0
        return out.reshape(*self.rows.shape, *a.shape[1:])

    def put(self, values: np.ndarray, to: np.ndarray) -> None:
        """values (W, L, ...) into the rows of `to`."""
        if self.live is None:
            to[self.rows] = values
        else:
            to[self.rows[self.live]] = values[self.live]

    @property
    def weight(self) -> np.ndarray:
        """(W, 1, 1, L, 1) float32: 1 for rows that exist."""
        if self.live is None:
            return np.ones((1, 1, 1, self.rows.shape[1], 1), np.float32)
        return self.live.astype(np.float32)[:, None, None, :, None]


def _by_head(a: np.ndarray, key_heads: int) -> np.ndarray:
    """(W, L, H, C) -> (W, KH, group, L, C), a view."""
    w, n, heads, c = a.shape
    return a.reshape(w, n, key_heads, heads // key_heads, c).transpose(0, 2, 3, 1, 4)


def _head_steps(w: int, q: int, k: int, group: int, key_heads: int) -> list[slice]:
    step = max(1, SCORES // (w * q * k * group))
    return [slice(h, min(h + step, key_heads)) for h in range(0, key_heads, step)]


def forward(job: Job, out: np.ndarray, lse: np.ndarray) -> None:
    """out (N, H, Dv), lse (N, H); only the rows of queries with keys are written."""
    chunks = job.segments.kept(("chunks", job.q.shape[1]), lambda: chunks_of(job.segments, job.q.shape[1]))
    long = len(chunks.long_queries)

    def work(task: int) -> None:
        if task < long:
            _long_forward(job, chunks.long_queries[task], out, lse)
        else:
            _short_forward(job, chunks.short[task - long], out, lse)

    parallel(work, long + len(chunks.short), blas=True, small=_small(job))


def _small(job: Job) -> bool:
    lq, lk = job.segments.lengths
    return int((lq * lk).sum()) * job.q.shape[1] * (job.q.shape[2] + job.v.shape[2]) < SMALL_WORK


def _short_forward(job: Job, which: np.ndarray, out: np.ndarray, lse: np.ndarray) -> None:
    queries, keys = Rows.of(job.segments.q, which), Rows.of(job.segments.k, which)
    heads, (key_heads, outs) = job.q.shape[1], job.v.shape[1:]
    q, k, v = queries.take(job.q), keys.take(job.k), keys.take(job.v)
    q *= np.float32(job.scale)
    w, lq, lk = len(which), q.shape[1], k.shape[1]
    y = scratch((w, lq, heads, outs), np.float32)
    logs = np.empty((w, lq, heads), np.float32)
    qh, kh, vh, yh = (_by_head(a, key_heads) for a in (q, k, v, y))
    lh = _by_head(logs[..., None], key_heads)
    for h in _head_steps(w, lq, lk, job.group, key_heads):
        t = scratch((w, h.stop - h.start, job.group, lq, lk), np.float32)
        np.matmul(qh[:, h], kh[:, h].swapaxes(3, 4), out=t)
        shift = None
        # Two reductions of all scores cost less than a maximum for each query.
        if not (t.max() <= PLAIN and t.min() >= -PLAIN):
            _mask(t, keys.live)
            shift = t.max(axis=4, keepdims=True)
            shift[shift == -np.inf] = 0
            t -= shift
        np.exp(t, out=t)
        total = np.matmul(t, keys.weight)
        part = yh[:, h]
        np.matmul(t, vh[:, h], out=part)
        part /= total
        np.log(total, out=total)
        lh[:, h] = total if shift is None else total + shift
    queries.put(y, out)
    queries.put(logs, lse)


def _mask(t: np.ndarray, live: np.ndarray | None) -> None:
    """-inf for keys that are padding: t (W, KH, group, Lq, Lk)."""
    if live is not None:
        np.copyto(t, np.float32(-np.inf), where=~live[:, None, None, None])


def _pieces_of(side: Side, s: int, size: int) -> list[np.ndarray]:
    """Rows of a segment, `size` at a time."""
    a, b = int(side.starts[s]), int(side.starts[s + 1])
    return [side.order[i : min(i + size, b)] for i in range(a, b, size)]


def _long_forward(job: Job, piece: tuple[int, int, int], out: np.ndarray, lse: np.ndarray) -> None:
    s, a, b = piece
    rows = job.segments.q.order[a:b]
    for head in range(job.q.shape[1]):
        q = job.q[rows, head] * np.float32(job.scale)
        key_head = head // job.group
        peak, total = np.full(len(rows), -np.inf, np.float32), np.zeros(len(rows), np.float32)
        sums = np.zeros((len(rows), job.v.shape[2]), np.float32)
        for keys in _pieces_of(job.segments.k, s, KEYS):
            t = np.matmul(q, job.k[keys, key_head].T)
            higher = np.maximum(peak, t.max(axis=1))
            safe = np.where(higher == -np.inf, np.float32(0), higher)
            t -= safe[:, None]
            np.exp(t, out=t)
            fade = np.exp(peak - safe)
            sums *= fade[:, None]
            sums += t @ job.v[keys, key_head]
            total = total * fade + t.sum(axis=1)
            peak = higher
        sums /= total[:, None]
        out[rows, head] = sums
        lse[rows, head] = np.log(total) + peak


# ---------------------------------------------------------------- gradients


def gradients(job: Job, saved: Saved, dq: np.ndarray, dk: np.ndarray, dv: np.ndarray) -> None:
    """Gradients of q, k and v; only rows of segments that have queries and keys are written."""
    chunks = job.segments.kept(("chunks", job.q.shape[1]), lambda: chunks_of(job.segments, job.q.shape[1]))
    tasks: list[Callable[[], None]] = []
    tasks += [lambda p=p: _long_query_gradient(job, saved, p, dq) for p in chunks.long_queries]  # type: ignore[misc]
    tasks += [lambda p=p: _long_key_gradient(job, saved, p, dk, dv) for p in chunks.long_keys]  # type: ignore[misc]
    tasks += [lambda c=c: _short_gradients(job, saved, c, dq, dk, dv) for c in chunks.short]  # type: ignore[misc]
    parallel(lambda i: tasks[i](), len(tasks), blas=True, small=_small(job))


def _short_gradients(
    job: Job, saved: Saved, which: np.ndarray, dq: np.ndarray, dk: np.ndarray, dv: np.ndarray
) -> None:
    queries, keys = Rows.of(job.segments.q, which), Rows.of(job.segments.k, which)
    key_heads = job.k.shape[1]
    q, ct = queries.take(job.q), queries.take(saved.ct)
    k, v = keys.take(job.k), keys.take(job.v)
    q *= np.float32(job.scale)
    delta = np.einsum("wlhc,wlhc->wlh", ct, queries.take(saved.out))[..., None]
    lse = queries.take(saved.lse[..., None])
    if queries.live is not None:
        lse[~queries.live] = np.inf  # probability 0
    w, lq, lk = len(which), q.shape[1], k.shape[1]
    parts = [scratch(a.shape, np.float32) for a in (q, k, v)]
    qh, kh, vh, gh, lh, xh = (_by_head(a, key_heads) for a in (q, k, v, ct, lse, delta))
    dqh, dkh, dvh = (_by_head(a, key_heads) for a in parts)
    for h in _head_steps(w, lq, lk, 2 * job.group, key_heads):
        shape = (w, h.stop - h.start, job.group, lq, lk)
        p, ds = scratch(shape, np.float32), scratch(shape, np.float32)
        np.matmul(qh[:, h], kh[:, h].swapaxes(3, 4), out=p)
        p -= lh[:, h]
        _mask(p, keys.live)
        np.exp(p, out=p)
        np.matmul(gh[:, h], vh[:, h].swapaxes(3, 4), out=ds)
        ds -= xh[:, h]
        ds *= p
        np.matmul(ds, kh[:, h], out=dqh[:, h])
        _summed(ds, qh[:, h], dkh[:, h])
        _summed(p, gh[:, h], dvh[:, h])
    parts[0] *= np.float32(job.scale)
    queries.put(parts[0], dq)
    keys.put(parts[1], dk)
    keys.put(parts[2], dv)


def _summed(weights: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """weights^T values, added up over the query heads of a key head."""
    if weights.shape[2] == 1:
        np.matmul(weights.swapaxes(3, 4), values, out=out)
    else:
        np.sum(np.matmul(weights.swapaxes(3, 4), values), axis=2, keepdims=True, out=out)


def _probabilities(
    job: Job, saved: Saved, rows: np.ndarray, keys: np.ndarray, head: int
) -> tuple[np.ndarray, np.ndarray]:
    """p and the gradient of the scores, (rows, keys), of one head."""
    key_head = head // job.group
    p = np.matmul(job.q[rows, head] * np.float32(job.scale), job.k[keys, key_head].T)
    p -= saved.lse[rows, head][:, None]
    np.exp(p, out=p)
    ct = saved.ct[rows, head]
    ds = np.matmul(ct, job.v[keys, key_head].T)
    ds -= np.einsum("nc,nc->n", ct, saved.out[rows, head])[:, None]
    ds *= p
    return p, ds


def _long_query_gradient(job: Job, saved: Saved, piece: tuple[int, int, int], dq: np.ndarray) -> None:
    s, a, b = piece
    rows = job.segments.q.order[a:b]
    for head in range(job.q.shape[1]):
        total = np.zeros((len(rows), job.q.shape[2]), np.float32)
        for keys in _pieces_of(job.segments.k, s, KEYS):
            _, ds = _probabilities(job, saved, rows, keys, head)
            total += ds @ job.k[keys, head // job.group]
        dq[rows, head] = total * np.float32(job.scale)


def _long_key_gradient(
    job: Job, saved: Saved, piece: tuple[int, int, int], dk: np.ndarray, dv: np.ndarray
) -> None:
    s, a, b = piece
    keys = job.segments.k.order[a:b]
    for key_head in range(job.k.shape[1]):
        k_total = np.zeros((len(keys), job.k.shape[2]), np.float32)
        v_total = np.zeros((len(keys), job.v.shape[2]), np.float32)
        for rows in _pieces_of(job.segments.q, s, QUERIES):
            for head in range(key_head * job.group, (key_head + 1) * job.group):
                p, ds = _probabilities(job, saved, rows, keys, head)
                k_total += ds.T @ job.q[rows, head]
                v_total += p.T @ saved.ct[rows, head]
        dk[keys, key_head] = k_total * np.float32(job.scale)
        dv[keys, key_head] = v_total
