"""Cases of the coordinate kernels: hash table, kernel maps, order, created sets."""

from __future__ import annotations

import functools

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_coords as kc
from mlxsparse.backend.library import launch
from mlxsparse.backend.running import running_sums
from mlxsparse.backend.tap_tiles import tap_order, tap_tiles
from mlxsparse.errors import CoordinateRangeError
from mlxsparse.testing import oracle

from .common import LARGE, Case, equal, integers, rng, sites, sized

LOW, HIGH = -(2**31), 2**31 - 1


def lowest_rows(coords: np.ndarray, queries: np.ndarray) -> np.ndarray:
    first: dict[tuple[int, ...], int] = {}
    for row, site in enumerate(coords.tolist()):
        if site[0] >= 0:
            first.setdefault(tuple(site), row)
    return np.array([first.get(tuple(q), -1) for q in queries.tolist()], np.int32)


def check_lookup(coords: np.ndarray, queries: np.ndarray, capacity: int | None = None) -> None:
    table = kc.hash_table(integers(coords), capacity)
    equal(kc.find_rows(table, integers(queries)), lowest_rows(coords, queries), "rows")


def hash_duplicates() -> None:
    n = sized(700, 200_000)
    coords = np.column_stack([rng(1).integers(0, 2, n), rng(2).integers(-4, 5, (n, 3))]).astype(np.int32)
    coords[::17] = (-1, 0, 0, 0)  # padding in the middle is left out
    check_lookup(coords, np.concatenate([coords[::-1], coords + (0, 20, 0, 0)]))


def hash_full_range() -> None:
    ends = np.array([LOW, LOW + 1, -1, 0, 1, HIGH - 1, HIGH])
    grid = np.stack(np.meshgrid(ends, ends, ends, indexing="ij"), -1).reshape(-1, 3)
    coords = np.column_stack([rng(3).integers(0, HIGH, len(grid)), grid]).astype(np.int32)
    coords[:40, 0] = HIGH
    check_lookup(
        coords, np.concatenate([coords, coords ^ np.int32(1)]) & np.array([HIGH, -1, -1, -1], np.int32)
    )


def hash_full_table() -> None:
    """Every slot is taken, as each row has a block alone: a probe for an absent one visits all and ends."""
    n = sized(256, 4096)
    coords = np.column_stack([np.zeros(n), rng(4).permutation(n), np.arange(n), -np.arange(n)]).astype(
        np.int32
    )
    absent = coords + np.array([0, 0, 0, 5], np.int32)
    check_lookup(coords, np.concatenate([coords, absent]), capacity=n)
    for few in (16, 32, 64):  # the last free slot is found by the last probe
        check_lookup(coords[:few], np.concatenate([coords[:few], absent[:few]]), capacity=few)


@functools.cache
def _inverse(odd: int) -> int:
    return pow(odd, -1, 2**32)


def _unshift(h: np.ndarray, by: int) -> np.ndarray:
    out = h
    for _ in range(32 // by + 1):
        out = h ^ (out >> np.uint32(by))
    return out


# Of coord_hash of kernels/coord_hash.h.
SUM = np.array([0x9E3779B1, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1], np.uint32)


def hash_colliding_keys() -> None:
    """Blocks with one first hash: z is solved for it (kernels/coord_hash.h). Hash 0 has an empty tag, too."""
    for target in (0x12345678, 0):
        coords = keys_of_hash(target, sized(300, 2**20))
        check_lookup(coords, coords)


def keys_of_hash(target: int, n: int) -> np.ndarray:
    """A site of each of about n blocks (b, x, y, z) with this hash."""
    count = 4 * n + 200  # of three in four z is no such block of an int32
    b, x = np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)
    y = rng(5).integers(0, 2**29, count, dtype=np.uint32)
    before = b * SUM[0] + x * SUM[1] + y * SUM[2]
    h = _unshift(np.full(count, target, np.uint32), 13) * np.uint32(_inverse(0x85EBCA77))
    z = (_unshift(h, 15) - before) * np.uint32(_inverse(int(SUM[3])))
    assert len(np.unique(before + z * SUM[3])) == 1
    blocks = np.column_stack([b, x, y, z]).view(np.int32).astype(np.int64)
    blocks = blocks[np.abs(blocks[:, 3]) < 2**29]  # of 4 x 4 x 4 sites; of their eight blocks the first
    inside = np.column_stack([np.zeros(len(blocks)), rng(7).integers(0, 2, (len(blocks), 3))])
    return (blocks * [1, 4, 4, 4] + inside).astype(np.int32)


def hash_shared_blocks() -> None:
    """Rows of full and of partly filled blocks, in any order, some of them twice, at both ends of int32."""
    n = sized(600, 60_000)
    near = np.column_stack([rng(8).integers(0, 2, n), rng(9).integers(-3, 3, (n, 3))])
    for shift in (0, LOW + 3, HIGH - 3):
        coords = (near + [0, shift, 0, shift]).clip(LOW, HIGH).astype(np.int32)
        coords[::13] = (-1, 0, 0, 0)
        check_lookup(coords, coords ^ np.array([0, 0, 1, 0], np.int32))


def hash_of_more_rows() -> None:
    """A table that names a row past the coordinates reads nothing there."""
    coords = sites(6, sized(200, 20_000), sized(9, 60)) * np.array([1, 2, 2, 2], np.int32)
    table = kc.hash_table(integers(coords))
    fewer = table._replace(coords=integers(coords[:-1]))
    wanted = np.append(np.arange(len(coords) - 1), -1)
    equal(kc.find_rows(fewer, integers(coords)), wanted, "rows")
    near = coords ^ np.array([0, 0, 0, 1], np.int32)
    inside = mx.arange(table.table.size) // 8 % (table.status + 2)  # slots, cells, status
    cell = ((inside >= table.capacity // 8) & (inside < table.status)).reshape(table.table.shape)
    past = mx.array(~np.uint32(len(coords)))
    wild = table._replace(table=mx.where(cell & (table.table == 0), past, table.table))
    equal(kc.find_rows(wild, integers(near)), lowest_rows(coords, near), "rows that do not exist")
    own = [kc.submanifold_map(of, (3, 3, 3), by_row=True).nbr for of in (table, wild)]
    equal(own[1], np.array(own[0]), "map of rows that do not exist")
    found, other = (kc.near_blocks(of) for of in (table, wild))
    assert np.array(other.keys).max() <= tap_order((3, 3, 3)).none
    tiles = [kc.near_tiles(of, found=found) for of in (table, wild)]
    for one, other in zip(*(of.arrays for of in tiles), strict=True):
        equal(one, np.array(other), "tiles of rows that do not exist")
    past_all = found._replace(near=found.near | mx.array(2**30, mx.uint32))
    assert (np.array(kc.near_tiles(table, found=past_all).nbr) == -1).all()


def near_to_the_last_row() -> None:
    """A cube without padding whose last row has a block alone, and an order of rows that do not exist."""
    side = sized(8, 20)
    cube = np.argwhere(np.ones((1, side, side, side)))
    coords = np.concatenate([cube, [[0, 99, 99, 99]]]).astype(np.int32)
    table, n = kc.hash_table(integers(coords)), len(coords)
    nbr = kc.submanifold_map(table, (3, 3, 3)).nbr
    found = kc.near_blocks(table)
    wanted, tiles = tap_tiles(nbr, n, (3, 3, 3)), kc.near_tiles(table, found=found)
    for one, other in zip(tiles.arrays, wanted.arrays, strict=True):
        equal(one, np.array(other), "tiles")
    places = -(-n // 256) * 256
    order = np.arange(n, dtype=np.int32)
    order[[3, 70]] = n, -1
    shapes, groups = [(places // 32, 27, 32), (places,), (places // 32, 1)], (places // 256, 1, 1)
    inputs = [found.near, table.table, integers(order)]
    by_place, rows, _ = launch("near_tiles", inputs, [n, table.capacity, places], shapes, groups)
    equal(rows[:n], np.where((order < 0) | (order >= n), -1, order), "rows of places")
    for place in (3, 70):
        equal(by_place[place // 32, :, place % 32], np.full(27, -1), "taps of no row")


def hash_tiny() -> None:
    none = np.zeros((0, 4), np.int32)
    one = np.array([[0, 5, -6, 7]], np.int32)
    for coords in (none, one):
        for queries in (none, one, np.array([[0, 5, -6, 8], [-1, 5, -6, 7]], np.int32)):
            check_lookup(coords, queries)


# ---------------------------------------------------------------- kernel maps


def tables(pairs: list[oracle.Pair], taps: int, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """The oracle's pairs as neighbour tables (nbr, back)."""
    nbr, back = np.full((taps, m), -1, np.int32), np.full((taps, n), -1, np.int32)
    for pair in pairs:
        nbr[pair.tap, pair.out_row] = pair.in_row
        back[pair.tap, pair.in_row] = pair.out_row
    return nbr, back


def check_map(coords: np.ndarray, queries: np.ndarray, size, stride, padding, dilation) -> None:
    got = kc.neighbour_map(
        kc.hash_table(integers(coords)), integers(queries), size, stride, padding, dilation
    )
    pairs = oracle.conv_pairs(coords, queries, size, stride, padding, dilation)
    nbr, back = tables(pairs, int(np.prod(size)), len(coords), len(queries))
    equal(got.nbr, nbr, "nbr")
    equal(got.back, back, "back")


def map_submanifold() -> None:
    c = sites(10, sized(120, 4000), sized(6, 20))
    check_map(c, c, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    check_map(c, c, (3, 1, 2), (1, 1, 1), (2, 0, 3), (2, 1, 3))


def map_strided() -> None:
    c = sites(11, sized(120, 4000), sized(8, 24))
    out = oracle.touched_support(c, (3, 2, 3), (2, 3, 1), (1, 0, 2), (1, 2, 1))
    check_map(c, out, (3, 2, 3), (2, 3, 1), (1, 0, 2), (1, 2, 1))


def map_125_taps() -> None:
    c = sites(12, sized(40, 2000), sized(5, 20))
    check_map(c, c, (5, 5, 5), (1, 1, 1), (2, 2, 2), (1, 1, 1))


def map_near_the_limits() -> None:
    """Products past 32 bits are missing, not wrapped."""
    c = np.array([[0, HIGH, LOW, 0], [0, HIGH - 1, LOW + 1, 0], [0, -2, 2, 2], [1, LOW, HIGH, 1]], np.int32)
    check_map(c, c, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    q = np.array([[0, 2**30, -(2**30), 0], [0, -(2**30) - 1, 1, 1], [1, -(2**30), 2**30, 1]], np.int32)
    check_map(c, q, (2, 2, 2), (2, 2, 2), (0, 0, 1), (1, 1, 1))


def map_tiny() -> None:
    none, one = np.zeros((0, 4), np.int32), np.array([[0, 1, 2, 3]], np.int32)
    for c in (none, one):
        for q in (none, one):
            check_map(c, q, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))


# ---------------------------------------------------------------- order and created sets


def order_any_range() -> None:
    n = sized(400, 300_000)
    coords = rng(20).integers(LOW, HIGH + 1, (n, 4), dtype=np.int64).astype(np.int32)
    coords[: n // 2, :3] = coords[0, :3]
    coords[::5] = coords[3]
    equal(kc.sorted_order(integers(coords)), np.lexsort(coords.T[::-1]), "order")
    for small in (coords[:0], coords[:1]):
        equal(kc.sorted_order(integers(small)), np.arange(len(small)), "order")


def unique_any_range() -> None:
    n = sized(300, 200_000)
    coords = rng(21).integers(-2, 2, (n, 4)).astype(np.int32) * np.int32(2**30)
    coords[:, 0] = rng(22).integers(-1, 3, n)
    equal(kc.sorted_unique(integers(coords)), np.unique(coords[coords[:, 0] >= 0], axis=0), "sites")


def sums() -> None:
    for n in (0, 1, 1024, 4096, 4097, 8193, 20_001, 1 << 20):
        values = rng(46).integers(-3, 9, n).astype(np.int32)
        equal(running_sums(integers(values)), np.cumsum(values, dtype=np.int32), f"{n} sums")


def flags_with_and_without_capacity() -> None:
    for n in (0, 1, sized(700, 100_000)):
        flags = rng(23).random(n) < 0.3
        wanted = np.flatnonzero(flags)
        equal(kc.flagged(mx.array(flags)), wanted, "numbers")
        more, less = len(wanted) + 5, len(wanted) // 2
        equal(kc.flagged(mx.array(flags), more), np.append(wanted, [-1] * 5), "numbers")
        equal(kc.flagged(mx.array(flags), less), wanted[:less], "numbers")


GEOMETRIES = [
    ((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ((3, 2, 1), (1, 3, 2), (0, 2, 1), (2, 1, 1)),
]


def supports() -> None:
    c = sites(24, sized(60, 2000), sized(9, 30))
    for size, s, p, d in GEOMETRIES[: None if LARGE else 2]:
        for bounds in (None, (4, 3, 5)):
            got = kc.touched(integers(c), size, s, p, d, bounds)
            wanted = oracle.touched_support(c, size, s, p, d)
            equal(got, within(wanted, bounds), f"touched {size}")
            got = kc.generated(integers(c), size, s, p, d, bounds)
            wanted = oracle.generative_support(c, size, s, p, d)
            equal(got, within(wanted, bounds), f"generated {size}")


def within(rows: np.ndarray, bounds: tuple[int, int, int] | None) -> np.ndarray:
    return rows if bounds is None else rows[((rows[:, 1:] >= 0) & (rows[:, 1:] < bounds)).all(axis=1)]


def parent_sites() -> None:
    c = sites(25, sized(200, 5000), sized(9, 40))
    c = np.concatenate([c, [[0, LOW, HIGH, -1]]]).astype(np.int32)
    for s in ((1, 1, 1), (2, 2, 2), (3, 1, 4)):
        equal(kc.parents(integers(c), s), oracle.parent_support(c, s), f"parents {s}")
    for s in ((2, 2, 2), (1, 3, 1)):
        equal(kc.parents(integers(c[:0]), s), np.zeros((0, 4)), "parents of none")
        equal(kc.parents(integers(c[:1]), s), oracle.parent_support(c[:1], s), "parents of one")


def supports_tiny() -> None:
    one = np.array([[3, 1, -2, 3]], np.int32)
    for c in (one[:0], one):
        args = ((2, 2, 1), (2, 1, 1), (0, 1, 0), (1, 1, 1))
        equal(kc.touched(integers(c), *args, None), oracle.touched_support(c, *args), "touched")
        equal(kc.generated(integers(c), *args, None), oracle.generative_support(c, *args), "generated")


def supports_out_of_range() -> None:
    """The last sites inside (-2^30, 2^30), and the first outside."""

    def reach(y: int, d: int) -> np.ndarray:
        c = integers(np.array([[0, 0, y, 0]]))
        return np.array(kc.generated(c, (1, 2, 1), (1, 2, 1), (0, 0, 0), (1, d, 1), None))

    equal(reach(2**29 - 1, 1), np.array([[0, 0, 2**30 - 2, 0], [0, 0, 2**30 - 1, 0]]))
    equal(reach(-(2**29) + 1, -1), np.array([[0, 0, -(2**30) + 1, 0], [0, 0, -(2**30) + 2, 0]]))
    for y, d in ((2**29 - 1, 2), (-(2**29) + 1, -2), (2**29 + 1, 1)):
        try:
            reach(y, d)
        except CoordinateRangeError as error:
            assert "along y" in str(error)
        else:
            raise AssertionError("a site outside (-2^30, 2^30) was not refused")


CASES: dict[str, Case] = {
    f.__name__: f
    for f in (
        hash_duplicates,
        hash_full_range,
        hash_full_table,
        hash_colliding_keys,
        hash_shared_blocks,
        hash_of_more_rows,
        near_to_the_last_row,
        hash_tiny,
        map_submanifold,
        map_strided,
        map_125_taps,
        map_near_the_limits,
        map_tiny,
        order_any_range,
        unique_any_range,
        sums,
        flags_with_and_without_capacity,
        supports,
        parent_sites,
        supports_tiny,
        supports_out_of_range,
    )
}
