"""Block-sparse times dense through numba against NumPy, where numba is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxsparse.backend import fast_blocks
from mlxsparse.engine.block_index import BlockIndex

pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 5), st.integers(1, 5),
    st.sampled_from([(4, 4), (8, 5), (12, 3)]), st.sampled_from([1, 23, 24, 97, 200]),
    st.tuples(st.integers(0, 3), st.integers(0, 2)), st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 99),
)  # fmt: skip
def test_times(
    batch: int,
    heads: int,
    rows: int,
    cols: int,
    block: tuple[int, int],
    width: int,
    cut: tuple[int, int],
    flags: tuple[bool, bool, bool],
    seed: int,
) -> None:
    """Empty lines, ragged edges that hold NaN, turned blocks, transposed views of dense and out."""
    by_row, turned_in, turned_out = flags
    r = np.random.default_rng(seed)
    size = block if by_row else block[::-1]
    mask = r.random((heads, rows, cols)) < 0.6
    # The last block reaches into the shape, as in every layout.
    shape = (rows * size[0] - min(cut[0], size[0] - 1), cols * size[1] - min(cut[1], size[1] - 1))
    index = BlockIndex(mask.shape, size, shape, *(a.astype(np.int32) for a in np.nonzero(mask)))
    side = index.by_row if by_row else index.by_col
    values = r.standard_normal((batch, index.nnz, *size)).astype(np.float32)
    whole = np.zeros((batch, heads, rows * size[0], cols * size[1]), np.float32)
    for n, (h, i, j) in enumerate(zip(index.heads, index.rows, index.cols)):
        top, left = i * size[0], j * size[1]
        whole[:, h, top : top + size[0], left : left + size[1]] = values[:, n]
        values[:, n, max(0, shape[0] - top) :], values[:, n, :, max(0, shape[1] - left) :] = np.nan, np.nan
    whole = whole[:, :, : shape[0], : shape[1]]
    matrix = whole if by_row else whole.swapaxes(2, 3)
    depth, extent = side.other_extent, side.extent
    dense = r.standard_normal((batch, heads, width, depth)).astype(np.float32).swapaxes(2, 3)
    dense = dense if turned_in else np.ascontiguousarray(dense)
    out = np.full((batch, heads, width, extent) if turned_out else (batch, heads, extent, width), np.nan)
    out = out.astype(np.float32)
    y = out.swapaxes(2, 3) if turned_out else out
    lines = np.arange(heads)[:, None] * side.lines + np.arange(side.lines + 1)
    sizes = (side.size, side.other_size, side.other_extent)
    fast_blocks.times(values, not by_row, side.ptr[lines], side.block, side.other, sizes, dense, y)
    wanted = matrix.astype(np.float64) @ dense.astype(np.float64)
    assert np.allclose(y, wanted, atol=1e-4)
