"""The tree that orders rows of a 3 x 3 x 3 kernel map: grown as said, and tiles need fewer taps by it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.backend.tap_tiles import tap_tiles, tile_turns
from mlxsparse.backend.tap_tree import LEAF, LETTERS, TREE, nodes
from mlxsparse.errors import CapacityError
from tests.conftest import kernels_on_the_cpu
from tools import tap_tree
from tools.metalcheck import toolchain

ROWS = tap_tree.ROWS


def made(seed: int, many: int, stride: int = 1) -> np.ndarray:
    """(N,) uint32 masks of the rows of made surfaces of all kinds, of which the shipped tree saw none."""
    rng = np.random.default_rng(seed)
    return np.concatenate([tap_tree.masks(tap_tree.surface(rng, i % 5), stride) for i in range(many)])


def ways(tree: str) -> list[list[tuple[int, bool]]]:
    """The taps asked for on the way to each leaf and what was answered, from left to right."""
    found, way = [], []
    for letter in tree:
        if letter != LEAF:
            way.append((LETTERS.index(letter), False))
            continue
        found.append(list(way))
        while way and way[-1][1]:
            way.pop()
        if way:
            way[-1] = way[-1][0], True
    return found


@pytest.mark.parametrize("stride", [1, 2])
def test_masks_are_those_of_a_loop_over_sites(stride: int) -> None:
    sites = np.unique(np.random.default_rng(0).integers(-3, 3, (60, 3)), axis=0)
    there = set(map(tuple, sites.tolist()))
    outputs = sites.tolist()
    if stride == 2:
        reached = {
            tuple((s + 1 - k) // 2 for s, k in zip(site, tap))
            for site in there
            for tap in np.ndindex(3, 3, 3)
            if all((s + 1 - k) % 2 == 0 for s, k in zip(site, tap))
        }
        outputs = sorted(reached)
    found = tap_tree.masks(sites, stride)
    assert len(found) == len(outputs)
    for site, mask in zip(outputs, found.tolist()):
        for tap, k in enumerate(np.ndindex(3, 3, 3)):
            near = tuple(stride * s + d - 1 for s, d in zip(site, k))
            assert (mask >> tap & 1) == (near in there)


def test_the_shipped_tree_is_whole_and_no_way_down_asks_for_a_tap_twice() -> None:
    leaves = ways(TREE)
    assert len(leaves) == tap_tree.LEAVES and len(TREE) == 2 * len(leaves) - 1
    assert set(TREE) <= {*LETTERS, LEAF} and len(LETTERS) == 27
    for way in leaves:
        assert len({tap for tap, _ in way}) == len(way)


def test_nodes_lead_to_the_leaves_in_the_order_of_gray_code() -> None:
    tree, numbers = nodes(), []
    for way in ways(TREE):
        node = tree[0]
        for i in range(0, len(way), 2):
            (tap, having), (then, also) = (*way[i : i + 2], (None, False))[:2]
            assert node >= 0 and node & 31 == tap
            assert then is None or node >> (10 if having else 5) & 31 == then
            node = tree[(node >> 15) + 2 * having + also]
        numbers.append(~node)
    assert sorted(numbers) == list(range(len(numbers)))
    # Neighbours part at one tap, behind which both go the same way as far as they ask for the same.
    by_number = [way for _, way in sorted(zip(numbers, ways(TREE)))]
    for one, other in zip(by_number, by_number[1:]):
        same = next(i for i, (a, b) in enumerate(zip(one, other)) if a != b)
        for a, b in zip(one[same + 1 :], other[same + 1 :]):
            if a[0] != b[0]:
                break
            assert a == b


def test_a_node_asks_for_the_tap_after_which_tiles_cost_least() -> None:
    rows = made(5, 10)

    def computed(rows: np.ndarray) -> float:
        having = np.array([(rows >> t & 1).sum() for t in range(27)])
        return float(tap_tree.cost(having, np.array(len(rows))))

    def gain(rows: np.ndarray) -> tuple[float, int]:
        parts = {t: (rows[rows >> t & 1 == 0], rows[rows >> t & 1 == 1]) for t in range(27)}
        whole = {t: pair for t, pair in parts.items() if len(pair[0]) and len(pair[1])}
        return max((computed(rows) - computed(a) - computed(b), t) for t, (a, b) in whole.items())

    rows = rows[rows != 0]
    first = gain(rows)[1]
    assert tap_tree.grown(rows, 2) == LETTERS[first] + LEAF * 2
    parts = [gain(rows[rows >> first & 1 == one]) for one in (0, 1)]
    # Of two leaves the one that gains most asks on.
    second = LETTERS[max(parts)[1]] + LEAF * 2
    wanted = (second, LEAF) if parts[0] > parts[1] else (LEAF, second)
    assert tap_tree.grown(rows, 3) == LETTERS[first] + "".join(wanted)


def test_a_tree_of_few_kinds_of_rows_has_a_leaf_for_each() -> None:
    assert tap_tree.grown(np.zeros(0, np.uint32), 9) == LEAF
    assert tap_tree.grown(np.array([0, 5, 5], np.uint32), 9) == LEAF
    assert tap_tree.grown(np.array([1, 2, 2, 4, 4, 4], np.uint32), 9).count(LEAF) == 3


def test_more_tiles_than_turns_hold_raise() -> None:
    with pytest.raises(CapacityError, match="1025 tiles"):
        tile_turns(mx.zeros((8 * 1025, 1), mx.uint32))


@pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing()))
@pytest.mark.parametrize("stride", [1, 2])
def test_tiles_need_fewer_taps_by_the_tree(stride: int) -> None:
    rows = made(7, 40, stride)
    rows = rows[: len(rows) // ROWS * ROWS]
    nbr = mx.array(np.where(rows >> np.arange(27)[:, None] & 1, 0, -1).astype(np.int32))

    def computed(size: tuple[int, ...]) -> int:
        """Pairs that tiles of ROWS rows compute."""
        with mx.stream(mx.cpu), kernels_on_the_cpu():
            masks = np.array(tap_tiles(nbr, 1, size).masks)[: len(rows) // 32, 0]
        taps = np.bitwise_or.reduce(masks.reshape(-1, ROWS // 32), axis=1)
        return ROWS * sum(int(t).bit_count() for t in taps)

    assert computed((3, 3, 3)) < 0.95 * computed((27,))
