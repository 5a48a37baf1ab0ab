"""What is added to the scores of block-sparse attention and softmax, and what masks them, on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .block_host import line_matrix
from .block_index import BlockIndex, Side

Listed = tuple[Side, int, int, int, int, int]
Place = slice | np.ndarray  # elements of one axis; of two axes at least one is a slice


class Terms(NamedTuple):
    """Addends float32; -inf masks a pair, whatever the score holds, and NaN marks a row or key as not finite.

    bias: (Z or 1, H or 1, M, N), or `packed` (Z or 1, nnz, br, bc). keys (Z or 1, Hk or 1, N). rows (Z, H,
    M). q_segments (M,), k_segments (N,) int32: pairs of different ones are masked. causal: keys past i +
    causal are.
    """

    bias: np.ndarray | None = None
    packed: bool = False
    keys: np.ndarray | None = None
    rows: np.ndarray | None = None
    pairs: np.ndarray | None = None
    q_segments: np.ndarray | None = None
    k_segments: np.ndarray | None = None
    causal: int | None = None

    def apply(
        self,
        t: np.ndarray,
        where: tuple[int, int, int],
        rows: Place,
        keys: Place,
        listed: Listed,
    ) -> None:
        """Add to scores t (len(rows), len(keys)) and set masked ones to -inf, in place.

        where: batch item, head, key head. listed: side, layout head, first and last line, entries a to b.
        """
        z, head, key_head = where
        masked: np.ndarray | None = None
        if self.rows is not None:
            t += self.rows[z, head][rows][:, None]
        for addend in (
            self._bias(z, head, rows, keys, listed, t.shape),
            None if self.pairs is None else self.pairs[rows, keys],
            None if self.keys is None else _item(self.keys, z, key_head)[keys][None],
        ):
            if addend is not None:
                t += addend
                masked = _either(masked, addend == -np.inf)
        if self.q_segments is not None and self.k_segments is not None:
            masked = _either(masked, self.q_segments[rows][:, None] != self.k_segments[keys][None])
        if self.causal is not None:
            i, j = _numbers(rows), _numbers(keys)
            if len(i) and len(j) and j[-1] > i[0] + self.causal:
                masked = _either(masked, j[None] > i[:, None] + self.causal)
        if masked is not None:
            np.copyto(t, -np.inf, where=masked)

    def _bias(
        self,
        z: int,
        head: int,
        rows: Place,
        keys: Place,
        listed: Listed,
        size: tuple[int, ...],
    ) -> np.ndarray | None:
        if self.bias is None:
            return None
        if not self.packed:
            found: np.ndarray = _item(self.bias, z, head)[rows, keys]
            return found
        side, *lines = listed
        matrix = line_matrix(self.bias[min(z, len(self.bias) - 1)], side, *lines)
        matrix = matrix if side.by_row else matrix.T
        return matrix[: size[0], : size[1]]


def _item(a: np.ndarray, z: int, head: int) -> np.ndarray:
    found: np.ndarray = a[min(z, a.shape[0] - 1), min(head, a.shape[1] - 1)]
    return found


def _either(a: np.ndarray | None, b: np.ndarray) -> np.ndarray:
    return b if a is None else a | b


def _numbers(place: Place) -> np.ndarray:
    return np.arange(place.start, place.stop) if isinstance(place, slice) else place


# ---------------------------------------------------------------- gradients of addends


def dense_sum(dt: np.ndarray, index: BlockIndex, batch: int, heads: int, out: np.ndarray) -> None:
    """out (batch, heads, M, N) = dt (Z, nnz, br, bc) at its places; batch = 1 and heads = 1 sum over it."""
    (h, r, c), (br, bc), (m, n) = index.grid, index.block, index.shape
    whole = np.zeros((batch, heads, r, br, c, bc), np.float32)
    blocked = whole.transpose(0, 1, 2, 4, 3, 5)
    ptr = np.searchsorted(index.heads, np.arange(h + 1))
    for z in range(len(dt)):
        for head in range(h):
            part = slice(ptr[head], ptr[head + 1])
            target = blocked[min(z, batch - 1), min(head, heads - 1)]
            target[index.rows[part], index.cols[part]] += dt[z, part]
    out[:] = whole.reshape(batch, heads, r * br, c * bc)[:, :, :m, :n]


def key_sum(dt: np.ndarray, index: BlockIndex, out: np.ndarray) -> None:
    """out (Z, N) = sums of dt (Z, nnz, br, bc) over heads and rows."""
    _, bc = index.block
    sums = np.zeros((len(dt), index.grid[2], bc), np.float32)
    for z in range(len(dt)):
        np.add.at(sums[z], index.cols, dt[z].sum(axis=1))
    out[:] = sums.reshape(len(dt), index.grid[2] * bc)[:, : index.shape[1]]
