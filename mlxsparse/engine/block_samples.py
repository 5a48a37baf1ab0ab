"""Which places a tile of sdd computes (kernels/block_samples.metal): some that share rows and columns."""

from __future__ import annotations

import numpy as np

from .block_index import BlockIndex

SPAN = 64  # pieces of a side of what is looked through at once


def sampled(index: BlockIndex, cells: int, slots: int, piece: int) -> tuple[np.ndarray, ...]:
    """line (groups, slots), rows (groups,), block and other (groups, cells): block_tiles.metal's mode 2.

    A tile is up to `cells` places of piece x piece that lie in at most `slots` rows and columns together.
    """
    down, across = index.block[0] // piece, index.block[1] // piece
    units, columns = index.grid[1] * down, index.grid[2] * across
    cell = np.arange(index.nnz * down * across)
    block = cell // (down * across)
    line = index.heads[block].astype(np.int64) * index.grid[1] + index.rows[block]
    row = line * down + cell // across % down
    col = index.cols[block].astype(np.int64) * across + cell % across
    head = row // max(1, units)
    part = (head * (units // SPAN + 1) + row % max(1, units) // SPAN) * (columns // SPAN + 1) + col // SPAN
    lines, rows, blocks, others = [], [], [], []
    for name in np.unique(part):
        some = part == name
        r, c, which = row[some], col[some], cell[some]
        r0, c0 = int(r.min()), int(c.min())
        at = np.full((int(r.max()) - r0 + 1, int(c.max()) - c0 + 1), -1, np.int64)
        at[r - r0, c - c0] = which
        for down_, across_, places in _tiles(at >= 0, cells, slots):
            lines.append(_filled([*(r0 + i for i in down_), *(c0 + j for j in across_)], slots, -1))
            rows.append(len(down_))
            blocks.append(_filled([int(at[i, j]) for i, j in places], cells, -1))
            seat = {j: len(down_) + k for k, j in enumerate(across_)}
            others.append(_filled([down_.index(i) + 256 * seat[j] for i, j in places], cells, 0))
    shapes = ((-1, slots), (-1,), (-1, cells), (-1, cells))
    made = (lines, rows, blocks, others)
    return tuple(np.array(a, np.int64).reshape(s) for a, s in zip(made, shapes))


def _filled(values: list[int], length: int, rest: int) -> list[int]:
    return values + [rest] * (length - len(values))


Found = tuple[list[int], list[int], list[tuple[int, int]]]
Start = tuple[list[int], list[int]]


def _tiles(there: np.ndarray, cells: int, slots: int) -> list[Found]:
    """Rows, columns and places of tiles that cover `there` (rows, columns), each place once."""
    rest = there.astype(np.float32)
    found: list[Found] = []
    half = cells // 2
    while rest.any():
        by_row = rest @ rest.T
        np.fill_diagonal(by_row, 0)
        first, second = (int(i) for i in divmod(int(by_row.argmax()), len(by_row)))
        most = by_row[first, second]
        if most >= half > 0 and slots >= half + 2:  # whole tiles of two rows
            shared = np.flatnonzero(rest[first] * rest[second])
            for k in range(0, len(shared) // half * half, half):
                pair, across = sorted((first, second)), [int(i) for i in shared[k : k + half]]
                rest[np.ix_(pair, across)] = 0
                found.append((pair, across, [(i, j) for i in pair for j in across]))
            continue
        by_col = rest.T @ rest
        np.fill_diagonal(by_col, 0)
        if slots < 3 or max(most, by_col.max()) == 0:
            start: Start = [int(rest.sum(axis=1).argmax())], []
        elif by_col.max() > most:
            start = [], [int(i) for i in divmod(int(by_col.argmax()), len(by_col))]
        else:
            start = [first, second], []
        found.append(_grown(rest, start, cells, slots))
    return found


def _grown(rest: np.ndarray, start: Start, cells: int, slots: int) -> Found:
    """A tile of a line or two, then of the lines that bring most places; takes these from `rest`."""
    rows, cols = start
    few_rows, few_cols = rest.sum(axis=1) / 1024, rest.sum(axis=0) / 1024  # of equals, those with least left
    count = 0
    while count < cells and len(rows) + len(cols) < slots:
        down = rest[:, cols].sum(axis=1) - few_rows
        across = rest[rows].sum(axis=0) - few_cols
        down[rows] = across[cols] = -1
        if max(down.max(), across.max()) < 0.5:  # nothing near: a place elsewhere
            left = rest.copy()
            left[rows] = left[:, cols] = 0
            if not left.any() or len(rows) + len(cols) + 2 > slots:
                break
            i, j = divmod(int(left.argmax()), left.shape[1])
            rows.append(i)
            cols.append(j)
            count += 1
        elif down.max() >= across.max():
            rows.append(int(down.argmax()))
            count += int(rest[rows[-1], cols].sum())
        else:
            cols.append(int(across.argmax()))
            count += int(rest[rows, cols[-1]].sum())
    places = [(i, j) for i in rows for j in cols if rest[i, j]][:cells]
    for i, j in places:
        rest[i, j] = 0
    return sorted({i for i, _ in places}), sorted({j for _, j in places}), sorted(places)
