"""Cases of created sets as bits, of the maps that belong to them, and of what does not fit."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_bits as kb
from mlxsparse.backend import kernel_coords as kc
from mlxsparse.backend import kernel_sites as ks
from mlxsparse.backend import kernel_tiles as kt
from mlxsparse.backend import tap_tiles as tt
from mlxsparse.testing import oracle

from .cases_coords import GEOMETRIES, tables, within
from .cases_sites import OWN, equal_order, extent_of
from .common import Case, equal, integers, shifted, sites, sized

PADDING = np.full((3, 4), (-1, 7, 7, 7))


def mark(c: np.ndarray, geometry, bounds=None, forward: bool = True) -> tuple[mx.array, kb.Marked]:
    extent = ks.reached_extent(extent_of(c), *geometry, forward)
    coords = integers(np.concatenate([c, PADDING]))
    return coords, kb.marked(coords, extent, kb.Geometry(*geometry, bounds, forward))


def counts(made: kb.Marked) -> tuple[int, int]:
    count, outside = np.array(made.found).tolist()
    return count, outside


def together() -> None:
    """Several sets at once are what each is alone."""
    for n in (1, sized(200, 20_000)):
        c = sites(47, n, sized(40, 120))
        coords = integers(np.concatenate([c, PADDING]))
        table = kc.hash_table(coords, rows=len(c))
        boxes = []
        for geometry in (
            ((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),
            ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
            ((4, 4, 4), (4, 4, 4), (0, 0, 0), (1, 1, 1)),
            ((1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
        ):
            extent = ks.reached_extent(extent_of(c), *geometry, True)
            boxes.append((extent._replace(span=(extent.span[0], 70, 90)), kb.Geometry(*geometry)))
        boxes[2] = boxes[2][0]._replace(low=(10**6, 0, 0)), boxes[2][1]  # all outside
        for many in (0, 1, 2, 4):
            made, facts = kb.counted(coords, boxes[:many], table)
            equal(np.array(facts.ends), np.stack([c.min(axis=0), c.max(axis=0)]), "bounds")
            assert not facts.repeated and len(made) == len(facts.counts) == many
            for got, found, (extent, geometry) in zip(made, facts.counts, boxes):
                alone = kb.marked(coords, extent, geometry)
                assert counts(alone) == found == counts(got)
                equal(kb.sites(got, found[0]), np.array(kb.sites(alone, found[0])), "sites")
                wanted = np.array(kb.site_map(coords, alone, found[0]))
                equal(kb.site_map(coords, got, found[0]), wanted, "map")


def sets_and_maps() -> None:
    c = sites(44, sized(60, 500), sized(9, 20))
    # More than one stretch of 65,536 cells.
    far = np.concatenate([c, c + np.array([5, 40, 0, 0], np.int32)])
    shapes = [*GEOMETRIES, ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))]
    for number, geometry in enumerate(shapes):
        for bounds in (None, (4, 3, 5)):
            for forward, support in ((True, oracle.touched_support), (False, oracle.generative_support)):
                used = far if number == 0 else c
                wanted = within(support(used, *geometry), bounds)
                coords, made = mark(used, geometry, bounds, forward)
                what = f"{geometry} {bounds} {forward}"
                assert counts(made) == (len(wanted), 0), what
                equal(kb.sites(made, len(wanted)), wanted, what)
                filler = np.tile([-1, 0, 0, 0], (300, 1))
                equal(kb.sites(made, len(wanted) + 300), np.concatenate([wanted, filler]), what)
                equal(kb.sites(made, len(wanted) // 2), wanted[: len(wanted) // 2], f"few {what}")
                if not len(wanted):
                    continue
                pairs = oracle.conv_pairs(*((used, wanted) if forward else (wanted, used)), *geometry)
                n, m = len(coords), len(wanted)
                nbr, back = tables(pairs, int(np.prod(geometry[0])), *((n, m) if forward else (m, n)))
                near, far_side = (nbr, back) if forward else (back, nbr)
                got = kb.site_map(coords, made, m)
                equal(got, near, f"map {what}")
                equal(kb.site_map(coords, made, m, by_row=True), near.T, f"map by row {what}")
                equal(kc.flipped(got, n), far_side, f"flipped map {what}")
                equal(kc.flipped(got, n // 2), far_side[:, : n // 2], f"flipped map of fewer rows {what}")
                equal(kb.site_map(coords, made, m // 2), near[:, : m // 2], f"few {what}")


def tiny() -> None:
    one = np.array([[3, 1, -2, 3]], np.int32)
    for c in (one[:0], one):
        geometry = ((2, 2, 1), (2, 1, 1), (0, 1, 0), (1, 1, 1))
        wanted = oracle.touched_support(c, *geometry)
        coords, made = mark(c, geometry)
        assert counts(made) == (len(wanted), 0)
        equal(kb.sites(made, len(wanted)), wanted, "touched")
        assert kb.site_map(coords, made, len(wanted)).shape == (4, len(wanted))


def outside() -> None:
    """Sites past 2^30, and bounds that were wrong, are reported and not written."""
    far = np.array([[0, 0, 2**29, 0]], np.int32)
    geometry = ((1, 2, 1), (1, 2, 1), (0, 0, 0), (1, 1, 1))
    _, made = mark(far, geometry, forward=False)
    assert counts(made) == (0, 1)
    _, made = mark(np.array([[0, 0, 2**29 - 1, 0]], np.int32), geometry, forward=False)
    assert counts(made) == (2, 0)
    for low, wrong in ((-(2**30), 1), (-(2**30) + 1, 0)):
        c = integers(np.array([[0, low, 0, 0]]))
        made = kb.marked(c, ks.Extent((low, 0, 0), (2, 1, 1), 1), kb.Geometry((1, 1, 1), (1, 1, 1)))
        assert counts(made) == (1 - wrong, wrong)
    # Cells of a box without extent: none.
    made = kb.marked(c, ks.Extent((0, 0, 0), (0, 1, 1), 1), kb.Geometry((1, 1, 1), (1, 1, 1)))
    equal(kb.sites(made, 3), np.tile([-1, 0, 0, 0], (3, 1)), "no cell")
    # The first cell past the box is that of an item too many.
    c = integers(np.array([[1, 0, 0, 0]]))
    for size in (1, 2):
        made = kb.marked(c, ks.Extent((0, 0, 0), (16, 16, 1), size), kb.Geometry((1, 1, 1), (1, 1, 1)))
        assert counts(made) == (size - 1, size == 1)
    c = integers(np.array([[0, 5, 5, 5], [7, 6, 6, 6]]))
    for low, span in (((6, 0, 0), (9, 9, 9)), ((0, 0, 0), (9, 5, 9)), ((0, 0, 0), (9, 9, 9))):
        made = kb.marked(c, ks.Extent(low, span, 1), kb.Geometry((1, 1, 1), (1, 1, 1)))
        inside = low == (0, 0, 0) and span == (9, 9, 9)
        assert counts(made) == (int(inside), 1)
        assert kb.site_map(c, made, 1).tolist() == [[0 if inside else -1]]
    # Of the eight sites that one touches four lie in the box.
    geometry = ((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
    one = np.array([[0, 1, 1, 1]], np.int32)
    made = kb.marked(integers(one), ks.Extent((0, 0, 0), (1, 2, 2), 1), kb.Geometry(*geometry))
    assert counts(made) == (4, 1)
    inside = oracle.touched_support(one, *geometry)[:4]
    nbr, _ = tables(oracle.conv_pairs(one, inside, *geometry), 27, 1, 4)
    equal(kb.site_map(integers(one), made, 4), nbr, "map of a part")


def last_coordinates() -> None:
    """Coordinates whose sums with the padding pass 32 bits."""
    high = 2**31 - 1
    c = np.array([[0, high - k, 0, 0] for k in range(9)], np.int32)
    geometry = ((3, 1, 1), (4, 1, 1), (2, 0, 0), (1, 1, 1))
    wanted = oracle.touched_support(c, *geometry)
    coords = integers(c)
    low = int(wanted[:, 1].min())
    made = kb.marked(coords, ks.Extent((low, 0, 0), (4, 1, 1), 1), kb.Geometry(*geometry))
    assert counts(made) == (len(wanted), 0)
    equal(kb.sites(made, len(wanted)), wanted, "sites")
    nbr, _ = tables(oracle.conv_pairs(c, wanted, *geometry), 3, len(c), len(wanted))
    equal(kb.site_map(coords, made, len(wanted)), nbr, "map")
    equal(kb.site_map(shifted(coords), made, len(wanted)), nbr, "map of a view")


def stretches() -> None:
    """Sites in the first and the last cells of stretches of 65,536."""
    numbers = np.array([0, 255, 256, 65535, 65536, 65537, 65791, 65792, 131071, 131072, 131100])
    c = np.column_stack([0 * numbers, numbers // 4096, numbers // 64 % 64, numbers % 64]).astype(np.int32)
    coords, made = mark(c, ((1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)))
    equal(kb.sites(made, len(c)), c, "sites")
    equal(kb.site_map(coords, made, len(c)), np.arange(len(c))[None], "rows")


def mirrored() -> None:
    for n in (1, sized(120, 4000)):
        c = oracle.parent_support(sites(45, n, sized(8, 30)), (1, 1, 1))
        _, made = mark(c, ((1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)))
        rows = np.concatenate([c, np.full((2, 4), (-1, 0, 0, 0))])
        for size, d in OWN:
            p = tuple(k // 2 * e for k, e in zip(size, d))
            pairs = oracle.conv_pairs(c, c, size, (1, 1, 1), p, d)
            nbr, _ = tables(pairs, int(np.prod(size)), len(rows), len(rows))
            found = kb.submanifold_map(integers(rows), made, size, d)
            equal(found.nbr, nbr, f"map {size}")
            equal_order(found.keys, found.nbr, size, len(c))
            turned = kb.submanifold_map(integers(rows), made, size, d, by_row=True)
            equal(turned.nbr, nbr.T, f"map by row {size}")
            equal(turned.keys, np.array(found.keys), f"keys by row {size}")
            few = len(c) // 2  # marked sites without a row have no pair
            found = kb.submanifold_map(integers(c[:few]), made, size, d)
            equal(found.nbr, np.where(nbr[:, :few] < few, nbr[:, :few], -1), f"few {size}")


def ordered_windows() -> None:
    """Both sides of windows in tiles, against those of the map."""
    for stride, n in (((2, 2, 2), 1), ((2, 2, 2), sized(300, 9000)), ((3, 1, 2), sized(2500, 70_000))):
        c = sites(46, n, sized(14, 60))
        coords, made = mark(c, (stride, stride, (0, 0, 0), (1, 1, 1)))
        count = counts(made)[0]
        for m in {count, count // 2, max(count // 64 * 64, 1)}:
            nbr = kb.site_map(coords, made, m)
            found = kb.in_windows(coords, made, stride, m)
            out = kb.windows_output(found)
            plain = tt.tap_tiles(nbr, len(coords), stride, sort=False)
            equal(out.nbr, np.array(plain.nbr), f"outputs {stride}")
            equal(out.rows, np.array(plain.rows), f"output rows {stride}")
            assert out[3:] == plain[3:] and not (np.array(plain.masks) & ~np.array(out.masks)).any()
            taken = 32 * np.arange(len(out.masks)) < m
            equal(out.masks[:, 0], np.where(taken, (1 << np.prod(stride)) - 1, 0), f"output masks {stride}")
            back = np.array(kc.flipped(nbr, len(coords)))
            got = kb.windows_input(found, len(c))
            assert (got.sources, got.size, got.active) == (m, len(coords), len(c))
            tap = np.where((back >= 0).any(axis=0), (back >= 0).argmax(axis=0), len(back))
            order, masks = np.full(got.places, -1), np.zeros(got.places // 32, int)
            start = 0
            for k in range(len(back) + 1):
                rows = np.flatnonzero(tap == k)
                order[start : start + len(rows)] = rows
                if k < len(back):
                    masks[start // 32 : (start + len(rows) + 31) // 32] = 1 << k
                    assert start + len(rows) <= got.used
                start += (len(rows) + 255) // 256 * 256
            equal(got.rows, order, f"order {stride}")
            equal(got.masks[:, 0], masks, f"masks {stride}")
            equal(got.nbr.reshape(-1), np.where(order < 0, -1, back.max(axis=0)[order]), f"rows {stride}")
            assert (got.taps, got.steps) == (len(back), (32, 0))
            equal(tt.table_of(got), back, f"table {stride}")
            equal(tt.table_of(out), np.array(nbr), f"table of outputs {stride}")
            same_products(got, tt.tap_tiles(integers(back), m))


def same_products(tiles: tt.TapTiles, others: tt.TapTiles) -> None:
    """Of small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(5)
    x, ct = (mx.array(rng.integers(-2, 3, (n, 8)).astype(np.float16)) for n in (tiles.sources, tiles.size))
    w = mx.array(rng.integers(-2, 3, (8, tiles.taps, 8)).astype(np.float16))
    for plain in (False, True):
        equal(kt.forward(x, w, tiles, plain=plain), np.array(kt.forward(x, w, others)), "product")
        equal(kt.weight_grad(ct, x, tiles, plain=plain), np.array(kt.weight_grad(ct, x, others)), "gradient")


def boxes() -> None:
    """Which boxes are marked."""
    assert kb.worthwhile(ks.Extent((0, 0, 0), (512, 512, 4), 1), 0)
    assert not kb.worthwhile(ks.Extent((0, 0, 0), (512, 512, 5), 1), 0)
    assert kb.worthwhile(ks.Extent((0, 0, 0), (1024, 1024, 256), 7), 10**6)
    assert not kb.worthwhile(ks.Extent((0, 0, 0), (1024, 1024, 256), 8), 10**7)
    assert not kb.worthwhile(ks.Extent((2**31, 0, 0), (1, 1, 1), 1), 10)


CASES: dict[str, Case] = {
    f.__name__: f
    for f in (
        sets_and_maps,
        together,
        stretches,
        tiny,
        outside,
        last_coordinates,
        mirrored,
        ordered_windows,
        boxes,
    )
}
