"""The lists of block_tiles, block_groups and block_samples name every stored block once."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxsparse.backend.kernel_block_tiles import turns
from mlxsparse.engine import block_samples
from mlxsparse.engine.block_lists import clustered, merged, scattered
from mlxsparse.engine.block_samples import sampled

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
    st.integers(1, 3), st.integers(1, 7), st.integers(1, 12),
    st.sampled_from([0.0, 0.2, 0.6, 1.0]), st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    st.sampled_from([(1, 2), (2, 3), (4, 5), (4, 4), (8, 9), (8, 8), (8, 6)]),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_places_of_sdd(
    heads: int,
    rows: int,
    cols: int,
    density: float,
    parts: tuple[int, int],
    shape: tuple[int, int],
    near: bool,
    seed: int,
) -> None:
    mask = np.random.default_rng(seed).random((heads, rows, cols)) < density
    block = (8 * parts[0], 8 * parts[1])
    index = index_of(mask, block, (rows * block[0], cols * block[1]))
    with mock.patch.object(block_samples, "SPAN", 4):
        line, above, cell, place = sampled(index, *shape, 8) if near else scattered(index, shape[0], 8)
    if near:
        assert line.shape[1] == shape[1] and cell.shape[1] == shape[0]
    units, found = rows * parts[0], []
    for group in range(len(line)):
        assert (near or above[group] in (1, 2)) and (cell[group] >= 0).any()
        used = {int(p) for c, at in zip(cell[group], place[group]) if c >= 0 for p in (at % 256, at // 256)}
        assert used == set(np.flatnonzero(line[group] >= 0)), "every piece is read for something"
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


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 7), st.integers(1, 12), st.sampled_from([0.2, 0.6, 1.0]),
    st.sampled_from([(2, 3), (4, 5), (8, 8)]), st.sampled_from([1, 2]), st.integers(0, 99),
)  # fmt: skip
def test_tiles_of_a_cluster(
    heads: int, rows: int, cols: int, density: float, shape: tuple[int, int], cluster: int, seed: int
) -> None:
    mask = np.random.default_rng(seed).random((heads, rows, cols)) < density
    mask[0, 0, 0] = True
    index = index_of(mask, (8, 8), (rows * 8, cols * 8))
    line, shared, cell, place = clustered(sampled(index, *shape, 8), rows, cols, cluster)
    assert len(line) % cluster == 0 and len(shared) * cluster == len(line)
    found = []
    for group in range(len(line)):
        alike = [s for s in range(shape[1]) if shared[group // cluster] >> s & 1]
        first = group - group % cluster
        assert all(line[group, s] == line[first, s] >= 0 for s in alike)
        own = set(line[group][line[group] >= 0])
        other = set(line[first + 1 - group % cluster]) if cluster > 1 else set()
        assert {line[group, s] for s in alike} == own & other, "what both read is shared"
        for c, at in zip(cell[group], place[group]):
            if c >= 0:
                left, right = (int(line[group, slot]) for slot in (at % 256, at // 256))
                assert left >= 0 and right >= 0 and left % 2 == 0 and right % 2 == 1
                head, row = divmod(left // 2, rows)
                assert head == right // 2 // cols
                found.append((int(c), head, row, right // 2 % cols))
    assert sorted(found) == sorted(
        (i, int(h), int(r), int(c)) for i, (h, r, c) in enumerate(zip(index.heads, index.rows, index.cols))
    )


@pytest.mark.parametrize("density, most", [(0.5, 0.81), (0.25, 0.86), (0.1, 1.0)])
def test_tiles_are_full(density: float, most: float) -> None:
    """64 x 64 blocks: nearly all tiles have eight places, of few pieces."""
    mask = np.random.default_rng(0).random((1, 64, 64)) < density
    index = index_of(mask, (64, 64), (4096, 4096))
    line, _, cell, _ = sampled(index, 8, 8, 64)
    assert (cell >= 0).mean() > 0.93
    assert (line >= 0).sum() < most * index.nnz  # a row of eight has 9 pieces, two rows of four have 6


def test_tiles_of_large_layouts_are_full() -> None:
    mask = np.random.default_rng(0).random((1, 64, 64)) < 0.5
    index = index_of(mask, (64, 64), (4096, 4096))
    line, _, cell, _ = scattered(index, 8, 64)
    assert (cell >= 0).mean() > 0.9
    assert (line >= 0).sum() < index.nnz


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5), st.integers(1, 7))
def test_turns(lengths: list[int], times: int, threadgroups: int) -> None:
    """Every tile once, those of a round before those of the next; a threadgroup has no gaps."""
    order = turns(np.array(lengths), times, threadgroups)
    tiles = len(lengths) * times
    assert sorted(order[order >= 0]) == list(range(tiles))
    assert ((order >= 0).sum(axis=1)[:-1] == threadgroups).all()
    for i, turn in enumerate(order):
        assert (turn[turn >= 0] // threadgroups == i).all()


def test_turns_are_even() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(6, 16, 32))[::-1]
    order = turns(lengths, 16, 128)
    whole = lengths[order % 32].sum(axis=0)
    assert whole.max() - whole.min() <= 4
