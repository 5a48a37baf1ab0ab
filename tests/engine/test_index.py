"""The sorted index: order, duplicates, lookups over the whole int32 range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlxsparse.engine.index import LIMIT, build_index, lookup
from mlxsparse.engine.sorting import columns_of, lexicographic_order, sorted_unique, stable_argsort

near = st.integers(-3, 3)
far = st.integers(-LIMIT + 1, LIMIT - 1)
sites = (
    hnp.arrays(
        np.int32,
        st.tuples(st.integers(0, 40), st.just(4)),
        elements=st.one_of(near, far, st.sampled_from([LIMIT - 1, -LIMIT + 1])),
    )
    .map(lambda c: np.abs(c) * [1, 0, 0, 0] + c * [0, 1, 1, 1])
    .map(lambda c: c.astype(np.int32))
)


@given(sites)
def test_order_is_lexicographic_and_stable(coords):
    order, _ = lexicographic_order(columns_of(coords))
    want = np.lexsort(coords.T[::-1])
    assert np.array_equal(np.arange(len(coords)) if order is None else order, want)


@given(sites)
def test_sorted_unique(coords):
    assert np.array_equal(sorted_unique(columns_of(coords)), np.unique(coords, axis=0).reshape(-1, 4))


@given(sites, sites)
def test_lookup(coords, queries):
    coords = np.unique(coords, axis=0).reshape(-1, 4)
    coords = coords[np.random.default_rng(0).permutation(len(coords))]
    index = build_index(coords)
    assert index.duplicate is None
    where = {tuple(c): row for row, c in enumerate(coords.tolist())}
    queries = np.concatenate([queries, coords, coords + [[0, 0, 0, 1]]])
    assert lookup(index, queries).tolist() == [where.get(tuple(q), -1) for q in queries.tolist()]


@pytest.mark.parametrize("scale", [1, 2**27])
def test_duplicates_are_named(scale):
    coords = (
        np.array([[0, 3, 1, 2], [1, 3, 1, 2], [0, 0, 0, 0], [0, 3, 1, 2]]) * [1, scale, scale, scale]
    ).astype(np.int32)
    assert build_index(coords).duplicate == (0, 3)


def test_points_2_to_the_21_apart_do_not_alias_spconv_532_545():
    coords = np.array([[0, 0, 0, 0], [0, 2**21, 0, 0], [0, 0, 2**21, 0], [0, 0, 0, 2**21]], np.int32)
    assert build_index(coords).duplicate is None
    assert lookup(build_index(coords), np.array([[0, 0, 0, 2**20]])).tolist() == [-1]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("bits", [1, 16, 17, 40, 62])
def test_both_sorts_are_stable(vector, bits, monkeypatch):
    from mlxsparse.engine import sorting

    monkeypatch.setattr(sorting, "_vector_sort", lambda: vector)
    rng = np.random.default_rng(bits)
    key = rng.integers(0, 2**bits, 3000)
    key[::3] = key[0]
    assert np.array_equal(stable_argsort(key, bits), np.argsort(key, kind="stable"))
