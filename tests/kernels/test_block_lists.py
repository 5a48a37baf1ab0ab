"""The lists of block_tiles.metal name every stored block once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxsparse.backend.kernel_block_tiles import BlockTile
from mlxsparse.engine.block_lists import merged, scattered

from .cases_blocks import index_of


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 7), st.integers(1, 9), st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_merged(
    heads: int, rows: int, cols: int, density: float, parts: int, together: int, by_row: bool, seed: int
) -> None:
    mask = np.random.default_rng(seed).random((heads, rows, cols)) < density
    block = (8 * parts, 16) if by_row else (16, 8 * parts)
    index = index_of(mask, block, (rows * block[0], cols * block[1]))
    side = index.by_row if by_row else index.by_col
    line, ptr, entry, other = merged(side, heads, 8, together)
    lengths = np.diff(ptr)
    assert (np.diff(lengths) <= 0).all(), "the longest list is first"
    assert sorted(line[line >= 0]) == list(range(heads * side.lines * parts))
    found = []
    for group, (a, b) in enumerate(zip(ptr[:-1], ptr[1:])):
        assert (np.diff(other[a:b]) > 0).all(), "places ascend"
        heads_of = {int(unit) // (side.lines * parts) for unit in line[group] if unit >= 0}
        assert len(heads_of) == 1
        for e in range(a, b):
            assert (entry[e] >= 0).any()
            found += [(int(line[group, g]), int(other[e]), int(n)) for g, n in enumerate(entry[e]) if n >= 0]
    wanted = []
    for at in range(heads * side.lines):
        for e in range(side.ptr[at], side.ptr[at + 1]):
            wanted += [(at * parts + part, int(side.other[e]), int(side.block[e])) for part in range(parts)]
    assert sorted(found) == sorted(wanted)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 7), st.integers(1, 12), st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]), st.sampled_from([(1, 1), (1, 2), (2, 2), (2, 4)]),
    st.integers(0, 99),
)  # fmt: skip
def test_scattered(
    heads: int,
    rows: int,
    cols: int,
    density: float,
    parts: tuple[int, int],
    shape: tuple[int, int],
    seed: int,
) -> None:
    mask = np.random.default_rng(seed).random((heads, rows, cols)) < density
    block = (8 * parts[0], 8 * parts[1])
    index = index_of(mask, block, (rows * block[0], cols * block[1]))
    line, above, cell, place = scattered(index, BlockTile(*shape, 8, 16, 2))
    units, found = rows * parts[0], []
    for group in range(len(line)):
        assert ((above[group] == 1) | (above[group] == 2)) and (cell[group] >= 0).any()
        for c, at in zip(cell[group], place[group]):
            if c >= 0:
                left, right = line[group, at % 256], line[group, at // 256]
                assert at % 256 < above[group] <= at // 256 and left >= 0 and right >= 0
                found.append((int(c), int(left), int(right)))
    wanted = []
    for b, (h, r, c) in enumerate(zip(index.heads, index.rows, index.cols)):
        for i in range(parts[0]):
            for j in range(parts[1]):
                row, col = int(h) * units + int(r) * parts[0] + i, int(c) * parts[1] + j
                wanted.append(((b * parts[0] + i) * parts[1] + j, row, col))
    assert sorted(found) == sorted(wanted)


def test_tiles_are_full() -> None:
    """Half of 64 x 64 blocks: nearly all tiles have eight places, of few pieces."""
    mask = np.random.default_rng(0).random((1, 64, 64)) < 0.5
    index = index_of(mask, (64, 64), (4096, 4096))
    line, _, cell, _ = scattered(index, BlockTile(2, 4, 64, 32, 4))
    assert (cell >= 0).mean() > 0.9
    assert (line >= 0).sum() < index.nnz  # a row of eight blocks alone has 9 pieces, two rows of four have 6
