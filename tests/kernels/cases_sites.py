"""Cases of created sets by sorting, of their window maps, and of the mirrored submanifold map."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_bits as kb
from mlxsparse.backend import kernel_coords as kc
from mlxsparse.backend import kernel_sites as ks
from mlxsparse.backend import tap_tiles as tt
from mlxsparse.backend.library import launch
from mlxsparse.testing import oracle

from .cases_coords import GEOMETRIES, tables, within
from .common import Case, equal, integers, sites, sized


def extent_of(coords: np.ndarray) -> ks.Extent:
    low = coords[:, 1:].min(axis=0).tolist() if len(coords) else [0, 0, 0]
    high = coords[:, 1:].max(axis=0).tolist() if len(coords) else [0, 0, 0]
    span = [h - a + 1 for a, h in zip(low, high)]
    batches = int(coords[:, 0].max()) + 1 if len(coords) else 0
    return ks.Extent(tuple(low), tuple(span), batches)


def reach(c: np.ndarray, geometry, bounds, forward: bool, capacity: int | None = None) -> ks.Reached:
    extent = ks.reached_extent(extent_of(c), *geometry, forward)
    padded = np.concatenate([c, np.full((3, 4), (-1, 7, 7, 7))])
    return ks.reached(integers(padded), extent, *geometry, bounds, forward=forward, capacity=capacity)


def created() -> None:
    c = sites(24, sized(60, 2000), sized(9, 30))
    for geometry in [*GEOMETRIES, ((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))]:
        for bounds in (None, (4, 3, 5), (4, 0, 5)):
            for forward, support in ((True, oracle.touched_support), (False, oracle.generative_support)):
                wanted = within(support(c, *geometry), bounds)
                got = reach(c, geometry, bounds, forward)
                equal(got.sites, wanted, f"sites {geometry} {bounds} {forward}")
                assert int(got.outside) == 0


def created_with_capacity() -> None:
    c = sites(25, sized(60, 2000), sized(9, 30))
    geometry = GEOMETRIES[1]
    wanted = oracle.touched_support(c, *geometry)
    for capacity in (len(wanted) + 300, len(wanted), len(wanted) // 2, 1):
        got = reach(c, geometry, None, True, capacity)
        assert int(got.total) == len(wanted)
        filler = np.tile([-1, 0, 0, 0], (max(0, capacity - len(wanted)), 1))
        equal(got.sites, np.concatenate([wanted[:capacity], filler]), "sites")


def created_tiny() -> None:
    one = np.array([[3, 1, -2, 3]], np.int32)
    for c in (one[:0], one):
        geometry = ((2, 2, 1), (2, 1, 1), (0, 1, 0), (1, 1, 1))
        equal(reach(c, geometry, None, True).sites, oracle.touched_support(c, *geometry), "touched")
        equal(reach(c, geometry, None, False).sites, oracle.generative_support(c, *geometry), "generated")
    made = ks.reached(integers(one[:0]), ks.Extent((0, 0, 0), (1, 1, 1), 1), (2, 2, 2), (2, 2, 2), capacity=2)
    equal(made.sites, np.tile([-1, 0, 0, 0], (2, 1)), "padding")


def outside() -> None:
    """Sites past 2^30, and bounds that were wrong, are reported."""
    far = np.array([[0, 0, 2**29, 0]], np.int32)
    geometry = ((1, 2, 1), (1, 2, 1), (0, 0, 0), (1, 1, 1))
    assert int(reach(far, geometry, None, False).outside) == 1
    near = np.array([[0, 0, 2**29 - 1, 0]], np.int32)
    assert int(reach(near, geometry, None, False).outside) == 0
    ends = ((1, 1, 1), (1, 2, 1), (0, 0, 0), (1, 1, 1))
    for y in (2**29, -(2**29)):  # 2^30 itself is outside
        c = np.array([[0, 0, y - np.sign(y), 0], [0, 0, y, 0]], np.int32)
        assert int(reach(c, ends, None, False).outside) == 1
        assert int(reach(c[:1], ends, None, False).outside) == 0
    c = integers(np.array([[0, 5, 5, 5]]))
    for low, span in (((6, 0, 0), (9, 9, 9)), ((0, 0, 0), (9, 5, 9))):
        got = ks.reached(c, ks.Extent(low, span, 1), (1, 1, 1), (1, 1, 1))
        assert int(got.outside) == 1 and got.sites.shape[0] == 0


def windows() -> None:
    c = sites(26, sized(120, 4000), sized(9, 30))
    for s in ((2, 2, 2), (1, 3, 2), (1, 1, 1)):
        geometry = (s, s, (0, 0, 0), (1, 1, 1))
        made = reach(c, geometry, None, True)
        out = oracle.parent_support(c, s)
        equal(made.sites, out, f"parents {s}")
        padded = np.concatenate([c, np.full((3, 4), (-1, 7, 7, 7))])
        nbr, back = tables(oracle.conv_pairs(c, out, s, s), int(np.prod(s)), len(padded), len(out))
        got = ks.window_map(integers(padded), made, s)
        equal(got.nbr, nbr, f"nbr {s}")
        equal(got.back, back, f"back {s}")
        few = reach(c, geometry, None, True, len(out) // 2)
        got = ks.window_map(integers(padded), few, s)
        equal(got.nbr, nbr[:, : len(out) // 2], "nbr of fewer rows than sites")
        equal(got.back, np.where(back < len(out) // 2, back, -1), "back of fewer rows than sites")


def windows_out_of_range() -> None:
    """An order or a place that does not exist is left out."""
    c, s = sites(29, 60), (2, 2, 2)
    made = reach(c, (s, s, (0, 0, 0), (1, 1, 1)), None, True)
    first = made.order[0].item()
    pairs = oracle.conv_pairs(c, oracle.parent_support(c, s), s, s)
    for wild in (len(c), -5, 2**31 - 1):
        order = np.array(made.order)
        order[0] = wild
        got = ks.window_map(integers(c), made._replace(order=integers(order)), s)
        nbr, back = tables(pairs, 8, len(c), made.sites.shape[0])
        nbr[nbr == first], back[:, first] = -1, -1
        equal(got.nbr, nbr, "nbr")
        equal(got.back, back, "back")


def no_keys() -> None:
    """Rows of a set without sites are padding."""
    keys, places = mx.zeros((8,), mx.uint64), mx.full((8,), 7, mx.int32)
    got = launch("key_sites", [keys[:0], places[:0]], [0, 9, 0, 0, 0, 1, 1, 1], [(9, 4)], (1, 1, 1))[0]
    equal(got, np.tile([-1, 0, 0, 0], (9, 1)), "sites")


# Sizes and dilations of maps of a set onto itself.
OWN = (((3, 3, 3), (1, 1, 1)), ((3, 1, 5), (2, 1, 1)), ((5, 3, 3), (1, 1, 2)), ((1, 1, 1), (1, 1, 1)))


def mirrored() -> None:
    low, high = -(2**31), 2**31 - 1
    ends = np.array(
        [[0, high, low, 0], [0, high - 1, low + 1, 0], [0, -2, 2, 2], [1, low, high, 1]]
        + [[1, low + 1, high - 1, 1], *([1, 4, 4, z] for z in (low, low + 1, high - 1, high))],
        np.int32,
    )
    for n in (0, 1, sized(120, 4000)):
        c = np.concatenate([sites(27, n, sized(6, 20)), ends]) if n > 1 else sites(27, n)
        if n > 1:  # row 0 is the neighbour of others, through taps before and after the middle
            middle = np.argmin(np.abs(c[:, 1:].astype(np.int64)).sum(axis=1) + 99 * c[:, 0])
            c[[0, middle]] = c[[middle, 0]]
        padded = np.concatenate([c, np.full((2, 4), (-1, 0, 0, 0))]).astype(np.int32)
        for size, d in OWN:
            p = tuple(k // 2 * e for k, e in zip(size, d))
            pairs = oracle.conv_pairs(c, c, size, (1, 1, 1), p, d)
            nbr, _ = tables(pairs, int(np.prod(size)), len(padded), len(padded))
            got = kc.submanifold_map(kc.hash_table(integers(padded)), size, d)
            equal(got.nbr, nbr, f"map {size}")
            equal_order(got.keys, got.nbr, size, len(c))
            table = kc.hash_table(integers(padded))
            turned = kc.submanifold_map(table, size, d, by_row=True)
            equal(turned.nbr, nbr.T, f"map by row {size}")
            equal(turned.keys, np.array(got.keys), f"keys by row {size}")
            by_row = tt.tap_tiles(turned.nbr, len(padded), size, len(c), by_row=True)
            by_tap = tt.tap_tiles(got.nbr, len(padded), size, len(c))
            for a, b in zip(by_row[:3], by_tap[:3], strict=True):
                equal(a, np.array(b), f"tiles by row {size}")
            if (size, d) == ((3, 3, 3), (1, 1, 1)):
                found = kc.near_blocks(table)
                equal(found.keys, np.array(got.keys), "keys of blocks")
                near = kc.near_tiles(table, len(c), found)
                for a, b in zip(near.arrays, by_tap.arrays, strict=True):
                    equal(a, np.array(b), "tiles of blocks")
                assert near[3:7] == by_tap[3:7]


def equal_order(keys: mx.array, nbr: mx.array, size, active: int) -> None:
    """Tiles by keys that were made with the map are those by keys that are not."""
    made = [tt.tap_tiles(nbr, nbr.shape[1], size, active, given) for given in (keys, None)]
    for a, b in zip(*made):
        equal(a, np.array(b), "tiles") if isinstance(a, mx.array) else None


def facts(rows: np.ndarray, count: int | None = None) -> kb.Facts:
    coords = integers(rows)
    return kb.counted(coords, [], kc.hash_table(coords, rows=count))[1]


def repeated_rows() -> None:
    c = sites(28, sized(300, 100_000), sized(9, 60))
    far = np.array([[5, -(2**31), 2**31 - 1, 0], [0, 7, -(2**31), 2**31 - 1], [-1, 0, 0, 0]], np.int32)
    for more, wanted in ((c[:0], False), (c[3:4], True), (far, False)):
        rows = np.concatenate([c, more])
        repeated, ends, _ = facts(rows)
        assert repeated == wanted
        equal(np.array(ends), np.stack([rows.min(axis=0), rows.max(axis=0)]), "bounds")
    for count in (1, 2, len(c), len(c) + 2):
        ends = np.array(facts(rows, count).ends)
        equal(ends, np.stack([rows[:count].min(axis=0), rows[:count].max(axis=0)]), f"bounds of {count}")


CASES: dict[str, Case] = {
    f.__name__: f
    for f in (
        created,
        created_with_capacity,
        created_tiny,
        outside,
        windows,
        windows_out_of_range,
        no_keys,
        mirrored,
        repeated_rows,
    )
}
