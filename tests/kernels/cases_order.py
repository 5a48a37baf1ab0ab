"""Cases of sort keys of rows by their taps, and of the order by keys."""

from __future__ import annotations

import os

import mlx.core as mx
import numpy as np

from mlxsparse.backend.digit_order import CHUNK, places_by_key
from mlxsparse.backend.library import launch
from mlxsparse.backend.tap_tiles import tap_order, tap_tiles

from .common import Case, equal, integers, rng, sized


def keys_of(nbr: np.ndarray, bits: np.ndarray, tree: list[int], none: int) -> np.ndarray:
    arrays, m = [integers(nbr), integers(np.concatenate([bits, tree]))], nbr.shape[1]
    dims, groups = [m, len(nbr), 0, len(tree), none], (-(-m // 256), 1, 1)
    return np.array(launch("tap_keys", arrays, dims, [(m,)], groups)[0])


def keys() -> None:
    """Place of each row's taps in Gray code, row 0 of the other side among them; rows without a pair last."""
    nbr, bit = rng(5).integers(-1, 3, (4, 90)), np.array([3, 0, 26, 1])
    nbr[:, 40] = -1
    got = keys_of(nbr, bit, [], 1 << 27)
    gray = np.bitwise_or.reduce((nbr >= 0).astype(np.uint32) << bit[:, None].astype(np.uint32), axis=0)
    some = gray > 0
    equal((got ^ (got >> 1))[some], gray[some], "Gray code of the taps")
    equal(got[~some], np.full((~some).sum(), 1 << 27), "rows without a pair")


def keys_by_tree() -> None:
    """The leaf that a row's taps lead to; rows without a pair do not ask."""
    #     2
    #  ~9   26
    #     0    ~5
    #   ~7  ~11
    tree = [1 << 15 | 26 << 10 | 0 << 5 | 2, ~9, ~9, 5 << 15 | 0 << 10 | 0 << 5 | 0, ~5, ~7, ~7, ~11, ~11]
    nbr, bit = rng(8).integers(-1, 1, (4, 400)), np.array([26, 2, 1, 0])
    got = keys_of(nbr, bit, tree, 12)
    far, first, _, zero = nbr >= 0
    wanted = np.where(first, np.where(far, 5, np.where(zero, 11, 7)), 9)
    equal(got, np.where((nbr >= 0).any(axis=0), wanted, 12), "leaves")
    assert set(got) == {5, 7, 9, 11, 12}


def keys_of_a_cube() -> None:
    """The shipped tree, walked on the host, two taps a step."""
    bits, nodes, none = tap_order((3, 3, 3))
    tree = np.array(bits)[27:]
    nbr = rng(9).integers(-3, 1, (27, 300))
    got = keys_of(nbr, np.arange(27), tree.tolist(), none)
    for having, key in zip((nbr >= 0).T, got):
        node = int(tree[0])
        while node >= 0:
            one = having[node & 31]
            node = int(tree[(node >> 15) + 2 * one + having[node >> (10 if one else 5) & 31]])
        assert key == (~node if having.any() else none)
    assert len(tree) == nodes


def places(n: int, last: int, window: int, steps: int | None = None, kinds: int = 0) -> None:
    """Those of a stable sort of each window; none is left out."""
    r = rng(n)
    drawn = r.integers(0, last + 1, n) if kinds == 0 else r.choice(r.integers(0, last + 1, kinds), n)
    drawn[r.integers(0, n)] = last
    got = places_by_key(mx.array(drawn.astype(np.uint32)), last, window, steps)
    wanted = np.concatenate(
        [np.argsort(drawn[s : s + window], kind="stable") + s for s in range(0, n, window)]
    )
    equal(got, wanted, f"places of {n} rows by keys up to {last}")


def few_places() -> None:
    """One threadgroup of each kind, and two."""
    for n, last in ((1, 0), (1, 8192), (2, 1), (31, 127), (300, 128), (1024, 8192), (1025, 8192), (4097, 3)):
        places(n, last, CHUNK)


def many_places() -> None:
    """Several threadgroups to a window, several windows, the last of both cut off."""
    places(sized(2500, 70_001), 8192, 2048, 4)
    places(sized(9 * CHUNK + 500, 300_000), 2**14 - 1, sized(9, 20) * CHUNK)
    places(sized(2 * CHUNK + 77, 600_000), 2**13, CHUNK, 16)


def places_of_few_kinds() -> None:
    """Whole simdgroups of one digit, and of two."""
    for kinds in (1, 2):
        places(sized(1100, 400_000), 8192, 5 * CHUNK, kinds=kinds)


def places_by_long_keys() -> None:
    places(sized(600, 50_000), 2**27, CHUNK)
    places(sized(300, 20_000), 2**32 - 1, CHUNK)


def windows_of_a_map() -> None:
    """Rows of a map stay in their window; a window is a whole number of threadgroups."""
    nbr = rng(11).integers(-1, 1, (5, CHUNK + 300))
    os.environ["MLXSPARSE_WINDOW"] = str(CHUNK - 9)
    try:
        rows = np.array(tap_tiles(integers(nbr), 1).rows)
    finally:
        del os.environ["MLXSPARSE_WINDOW"]
    places = rows[: CHUNK + 300]
    equal(np.sort(places[:CHUNK]), np.arange(CHUNK), "rows of the first window")
    equal(np.sort(places[CHUNK:]), np.arange(CHUNK, CHUNK + 300), "rows of the second")


_PLAIN = (
    keys,
    keys_by_tree,
    keys_of_a_cube,
    few_places,
    many_places,
    places_of_few_kinds,
    places_by_long_keys,
    windows_of_a_map,
)
CASES: dict[str, Case] = {f.__name__: f for f in _PLAIN}
