"""The tree that orders rows of a 3 x 3 x 3 kernel map: grown as said, and tiles need fewer taps by it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.backend.library import launch
from mlxsparse.backend.tap_tiles import tap_order, tile_turns
from mlxsparse.backend.tap_tree import DEPTH, LETTERS, TREE
from mlxsparse.errors import CapacityError
from tests.conftest import kernels_on_the_cpu
from tools import tap_tree
from tools.metalcheck import toolchain

ROWS = tap_tree.ROWS


def made(seed: int, many: int) -> np.ndarray:
    """(N,) uint32 masks of the rows of made surfaces of all kinds, of which the shipped tree saw none."""
    rng = np.random.default_rng(seed)
    return np.concatenate([tap_tree.masks(tap_tree.surface(rng, i % 5)) for i in range(many)])


def test_masks_are_those_of_a_loop_over_sites() -> None:
    sites = np.unique(np.random.default_rng(0).integers(-3, 3, (60, 3)), axis=0)
    there = set(map(tuple, sites.tolist()))
    for site, mask in zip(sites.tolist(), tap_tree.masks(sites)):
        for tap, k in enumerate(np.ndindex(3, 3, 3)):
            near = tuple(s + d - 1 for s, d in zip(site, k))
            assert (int(mask) >> tap & 1) == (near in there)


def test_no_way_down_asks_for_a_tap_twice() -> None:
    assert len(TREE) == 2**DEPTH - 1 and set(TREE) <= set(LETTERS) and len(LETTERS) == 27
    for node in range(len(TREE)):
        way = [TREE[node]]
        while node:
            node = (node - 1) // 2
            way.append(TREE[node])
        assert len(way) == len(set(way))


def test_a_node_asks_for_the_tap_after_which_tiles_cost_least() -> None:
    rows = made(5, 10)

    def computed(rows: np.ndarray) -> float:
        having = np.array([(rows >> t & 1).sum() for t in range(27)])
        return float(tap_tree.cost(having, np.array(len(rows))))

    best = min(
        (computed(rows[rows >> t & 1 == 0]) + computed(rows[rows >> t & 1 == 1]), t)
        for t in range(27)
        if 0 < (rows >> t & 1).sum() < len(rows)
    )
    assert tap_tree.grown(rows, 1) == LETTERS[best[1]]


def test_no_rows_and_rows_of_one_kind_grow_a_whole_tree() -> None:
    for rows in (np.zeros(0, np.uint32), np.full(9, 5, np.uint32)):
        tree = tap_tree.grown(rows, 4)
        assert len(tree) == 15 and len({tree[i] for i in (0, 1, 3, 7)}) == 4  # one way down


def test_more_tiles_than_turns_hold_raise() -> None:
    with pytest.raises(CapacityError, match="2049 tiles"):
        tile_turns(mx.zeros((4 * 2049, 1), mx.uint32))


@pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing()))
def test_tiles_need_fewer_taps_by_the_tree() -> None:
    rows = made(7, 60)
    nbr = mx.array(np.where(rows >> np.arange(27)[:, None] & 1, 0, -1).astype(np.int32))

    def computed(depth: int) -> int:
        """Pairs that tiles of ROWS rows compute."""
        bits, window, _ = tap_order((3, 3, 3), len(rows))
        dims, groups = [len(rows), 27, window, 0, depth], (-(-len(rows) // 256), 1, 1)
        with mx.stream(mx.cpu), kernels_on_the_cpu():
            keys = np.array(launch("tap_keys", [nbr, bits], dims, [(len(rows),)], groups)[0])
        ordered = rows[np.argsort(keys, kind="stable")][: len(rows) // ROWS * ROWS]
        taps = np.bitwise_or.reduce(ordered.reshape(-1, ROWS), axis=1)
        return ROWS * sum(int(t).bit_count() for t in taps)

    assert computed(DEPTH) < 0.97 * computed(0)
