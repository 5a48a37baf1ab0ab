"""Cases of the tiled convolution: ordered maps, forward, both gradients, every dtype, against the oracle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_tiles as tiles
from mlxsparse.backend.library import grouped, launch, on_cuda
from mlxsparse.backend.tap_tiles import (
    PLACES,
    Starts,
    TapTiles,
    can_pack,
    packed,
    starts,
    table_of,
    tap_tiles,
    tile_turns,
)
from mlxsparse.backend.tile_shapes import Tile, chosen
from mlxsparse.testing import oracle

from .cases_conv import padded_values
from .cases_coords import tables
from .common import DTYPES, LARGE, Case, close, equal, integers, repeats, rng, sites, sized, values


def check(
    dtype: mx.Dtype,
    ci: int,
    co: int,
    kernel: tuple[int, int, int] = (3, 3, 3),
    stride: int = 1,
    n: int = 300,
    bias: bool = True,
    plain: bool = False,
    again: bool = False,
    turned: bool = False,
    packed: bool = False,
    shared: bool = False,
    tile: Tile | None = None,
    grad_tile: Tile | None = None,
) -> None:
    """Forward and both gradients, on x and ct with rows of NaN at the end, in the order that tiles use."""
    coords = sites(ci, n, sized(6, 16))
    if packed:
        coords[:, 3] *= 5  # blocks lack the taps along z
    p = tuple((k - 1) // 2 for k in kernel)
    out = coords if stride == 1 else oracle.touched_support(coords, kernel, stride, p)
    pairs = oracle.conv_pairs(coords, out, kernel, stride, p)
    taps, padding = int(np.prod(kernel)), 3
    nbr, back = tables(pairs, taps, len(coords) + padding, len(out) + padding)
    x, x64 = padded_values(1, (len(coords), ci), padding, dtype)
    w, w64 = values(2, (co, taps, ci), dtype)
    b, b64 = values(3, (co,), mx.float32)
    ct, ct64 = padded_values(4, (len(out), co), padding, dtype)
    shaped = w64.reshape(co, *kernel, ci)
    _, wanted = oracle.conv3d(
        coords, x64, shaped, b64 if bias else None, stride=stride, padding=p, out_coords=out
    )
    forwards = tap_tiles(integers(nbr), x.shape[0], kernel)
    if turned:
        forwards = forwards._replace(turns=tile_turns(forwards.masks))
    backwards = tap_tiles(integers(back), ct.shape[0], kernel)
    check_order(forwards, nbr)
    if packed:
        forwards, backwards = pack(forwards), pack(backwards)
    symmetric = stride == 1 and all(k % 2 for k in kernel)

    def results() -> list[mx.array]:
        y = tiles.forward(x, w, forwards, b if bias else None, active=len(out), plain=plain)
        dx = tiles.input_grad(ct, w, backwards, plain=plain)
        return [y, dx, tiles.weight_grad(ct, x, forwards, plain=plain)]

    stack = contextlib.ExitStack()
    if shared:
        stack.enter_context(shared_sums())
    choose((False, co), tile)
    choose((False, ci), tile)
    choose((True, max(ci, co)), grad_tile)
    try:
        y, dx, dw = results()
        close(y[: len(out)], wanted, dtype, "y")
        equal(y[len(out) :].astype(mx.float32), np.zeros((padding, co)), "padding of y")
        where = {"out_coords": out, "stride": stride, "padding": p}
        dx64, dw64, _ = oracle.conv_gradients(coords, x64, shaped, ct64, **where)
        close(dx[: len(coords)], dx64, dtype, "dx")
        equal(dx[len(coords) :].astype(mx.float32), np.zeros((padding, ci)), "padding of dx")
        close(dw, dw64.reshape(w64.shape), dtype, "dw")
        if symmetric:
            flipped = tiles.input_grad(ct, w, forwards, flip=True, plain=plain)
            close(flipped[: len(coords)], dx64, dtype, "dx by flipped taps")
        if again:
            repeats(results)
            more = 700  # of padding changes no bit of a sum
            longer = np.pad(nbr, ((0, 0), (0, more)), constant_values=-1)
            few, many = (
                tap_tiles(integers(t), x.shape[0], kernel, len(out)) for t in (nbr, longer)
            )
            unread = mx.full((more, co), np.nan, dtype)
            one, other = (
                tiles.weight_grad(c, x, side, plain=plain)
                for c, side in ((ct, few), (mx.concatenate([ct, unread]), many))
            )
            equal(one.astype(mx.float32), np.array(other.astype(mx.float32)), "dw with more padding")
    finally:
        chosen.clear()
        stack.close()


@contextlib.contextmanager
def shared_sums() -> Iterator[None]:
    """Two runs of a weight gradient add to one sum, however small it is; runs are short."""
    before = tiles.GRAD_RUN, tiles.GRAD_SHARED
    tiles._grad_calls.cache_clear()
    tiles.GRAD_RUN, tiles.GRAD_SHARED = 1, 0
    try:
        yield
    finally:
        tiles.GRAD_RUN, tiles.GRAD_SHARED = before
        tiles._grad_calls.cache_clear()


def together(bm: int, bn: int, simdgroups: int) -> Tile:
    """A tile whose simdgroups multiply four together, in Apple's 32 KB of memory."""
    return Tile(bm, bn, 32, simdgroups, 1, 2, FOURS=1)


def choose(key: tuple[bool, int], tile: Tile | None) -> None:
    """Take this tile, or the table's where there is none or this GPU cannot."""
    if tile is not None and (tile.FOURS == 0 or not on_cuda() or grouped()):
        chosen[key] = tile._replace(BK=64) if tile.FOURS and on_cuda() else tile


def check_order(made: TapTiles, nbr: np.ndarray) -> None:
    """Every row once, its pairs with it, and the taps of every 32 places."""
    rows, tiled, masks = (np.array(a) for a in (made.rows, made.nbr, made.masks))
    taps, m = nbr.shape
    tiled = tiled.transpose(1, 0, 2).reshape(taps, -1)  # (T, P)
    equal(np.sort(rows[rows >= 0]), np.arange(m), "rows of the tiles")
    wanted = np.full(tiled.shape, -1)
    wanted[:, rows >= 0] = nbr[:, rows[rows >= 0]]
    equal(tiled, wanted, "ordered map")
    live = (wanted.reshape(taps, -1, 32) >= 0).any(axis=2).T
    bits = (masks[:, np.arange(taps) // 32] >> (np.arange(taps) % 32).astype(np.uint32)) & 1
    equal(bits.astype(bool), live, "taps of the tiles")


def check_starts(made: TapTiles) -> tuple[Starts, np.ndarray]:
    """What a packed map has in front, right; it, and where each block begins."""
    found = starts(made)
    taps = np.bitwise_or.reduce(np.array(made.masks).reshape(-1, PLACES // 32), axis=1)
    many = np.array([int(t).bit_count() for t in taps]) * PLACES
    begin = -(-2 * len(taps) // 32) * 32 + np.cumsum(many) - many
    heads = np.stack([begin, taps.view(np.int32)], axis=1).reshape(-1)
    equal(found.heads[: len(heads)], heads, "heads")
    equal(found.total, begin[-1:] + many[-1:], "numbers")
    return found, heads


def pack(made: TapTiles) -> TapTiles:
    """Packed tiles, which hold the same map: of each 256 places the taps that one of them has."""
    assert can_pack(made), "tiles that cannot be packed"
    found, heads = check_starts(made)
    tiles = packed(made, found, int(found.total[0]))
    assert (tiles.taps, tiles.places, can_pack(tiles)) == (made.taps, made.places, False)
    equal(tiles.nbr[: len(heads)], heads, "heads of the packed map")
    equal(tiles.nbr[len(heads) : heads[0]], np.zeros(heads[0] - len(heads)), "what fills up")
    equal(table_of(tiles), np.array(table_of(made)), "packed map")
    return tiles


def packed_alone() -> None:
    """Many and few blocks, without a tap, with one and with all; of 9 and of 32 taps."""
    for taps, m in ((9, 1), (32, 700), (27, sized(1500, 1_000_000))):
        nbr = np.maximum(rng(taps).integers(-90, 60, (taps, m)), -1).astype(np.int32)
        nbr[:, m // 2 :] = -1  # whole blocks
        nbr[5, m // 3 :] = 7
        made = tap_tiles(integers(nbr), 60, (taps,), sort=m != 700)
        whole = pack(made)
        less = whole.nbr.size - 100  # than there is: nothing is written past the end
        equal(packed(made, starts(made), less).nbr, np.array(whole.nbr)[:less], "a wrong total")
    for blocks in (256, 257, 600):  # more than one each for the threads
        r = rng(blocks)  # of few taps, so that blocks differ
        masks = np.bitwise_and.reduce(r.integers(0, 2**32, (4, 8 * blocks, 1), dtype=np.uint32))
        check_starts(made._replace(masks=mx.array(masks), rows=mx.zeros((PLACES * blocks,), mx.int32)))
    assert not can_pack(tap_tiles(integers(nbr[:8]), 60)), "few taps are not worth it"
    assert not can_pack(tap_tiles(mx.full((33, 5), -1, mx.int32), 60)), "two words of taps"
    assert not can_pack(tap_tiles(mx.full((27, 0), -1, mx.int32), 60)), "no places"


def empty(dtype: mx.Dtype) -> None:
    """No outputs, no inputs, no pairs."""
    w, _ = values(2, (5, 27, 4), dtype)
    for n, m in ((0, 0), (0, 3), (3, 0), (3, 3)):
        made = tap_tiles(mx.full((27, m), -1, mx.int32), n)
        back = tap_tiles(mx.full((27, n), -1, mx.int32), m)
        x, ct = mx.ones((n, 4), dtype), mx.ones((m, 5), dtype)
        equal(tiles.forward(x, w, made).astype(mx.float32), np.zeros((m, 5)))
        equal(tiles.input_grad(ct, w, back).astype(mx.float32), np.zeros((n, 4)))
        equal(tiles.weight_grad(ct, x, made).astype(mx.float32), np.zeros((5, 27, 4)))


def out_of_range(dtype: mx.Dtype, tile: Tile | None = None, co: int = 5) -> None:
    """A table that names rows which do not exist reads nothing outside x: such pairs are none."""
    choose((False, co), tile)
    try:
        _out_of_range(dtype, co)
    finally:
        chosen.clear()


def _out_of_range(dtype: mx.Dtype, co: int) -> None:
    x, x64 = values(1, (20, 8), dtype)
    w, w64 = values(2, (co, 2, 8), dtype)
    first = np.array([0, 19, 20, 2**31 - 1, -2, -(2**31), 5])
    nbr = np.stack([first, np.full(7, -1)])
    inside = (first >= 0) & (first < 20)
    wanted = np.where(inside[:, None], x64[np.where(inside, first, 0)] @ w64[:, 0].T, 0)
    made = tap_tiles(integers(nbr), 20)
    assert int(made.nbr.max()) == 19, "an ordered map names a row that does not exist"
    ct, ct64 = values(3, (7, co), dtype)
    dw = np.zeros((co, 2, 8))
    dw[:, 0] = ct64[inside].T @ x64[first[inside]]
    close(tiles.forward(x, w, made), wanted, dtype)
    close(tiles.weight_grad(ct, x, made), dw, dtype)
    # The kernels look again, whatever an ordered map holds.
    less = dw.copy()
    less[:, 0] -= np.outer(ct64[0], x64[0])
    for plain in (False, True):
        for no_input, no_output in ((20, 7), (2**30, 2**30)):
            wild = made._replace(nbr=mx.where(made.nbr < 0, mx.array(no_input, mx.int32), made.nbr))
            close(tiles.forward(x, w, wild, plain=plain), wanted, dtype)
            close(tiles.weight_grad(ct, x, wild, plain=plain), dw, dtype)
            lost = made._replace(rows=mx.where(made.rows == 0, mx.array(no_output, mx.int32), made.rows))
            close(tiles.forward(x, w, lost, plain=plain)[1:], wanted[1:], dtype)
            close(tiles.weight_grad(ct, x, lost, plain=plain), less, dtype)


def turns() -> None:
    """Tiles with most taps first, of equal ones the last; of one word of taps and of more."""
    for n, words, low in ((1, 1, 0), (5, 3, 0), (300, 1, 2**30 - 1), (sized(300, 1024), 2, 0)):
        masks = rng(n).integers(low, 2**30, (8 * n, words)).astype(np.uint32)
        any_of = np.bitwise_or.reduce(masks.reshape(n, 8, words), axis=1)
        many = np.array([sum(int(w).bit_count() for w in row) for row in any_of])
        wanted = np.lexsort((-np.arange(n), -many))
        equal(tile_turns(mx.array(masks)), wanted, f"turns of {n} tiles")


def wild_turns() -> None:
    """Turns that name tiles which do not exist: such a tile is the last."""
    nbr = rng(6).integers(0, 20, (3, 900)).astype(np.int32)
    made = tap_tiles(integers(nbr), 20, sort=False)._replace(turns=integers(np.array([-1, 2**31 - 1, 4, 3])))
    (x, x64), (w, w64) = values(1, (20, 8), mx.float32), values(2, (8, 3, 8), mx.float32)
    wanted = np.einsum("tmc,otc->mo", x64[nbr], w64)
    close(tiles.forward(x, w, made)[768:], wanted[768:], mx.float32, "the last tile")


def wild_order() -> None:
    """An order that names rows that do not exist; places that end inside a threadgroup."""
    nbr = rng(6).integers(0, 20, (3, 50))
    order = rng(7).permutation(50)
    order[[2, 9, 17]] = 50, -3, 2**31 - 1
    dims = [20, 50, 3, 64, 96, 32, 0]
    arrays = [integers(nbr), integers(order)]
    tiled, rows, masks = launch("tap_tiles", arrays, dims, [(2, 3, 32), (64,), (2, 1)], (1, 1, 1))
    wanted = np.append(np.where((order >= 0) & (order < 50), order, -1), np.full(14, -1))
    equal(rows, wanted, "rows")
    taken = np.where(wanted >= 0, nbr[:, wanted], -1)
    equal(np.array(tiled).transpose(1, 0, 2).reshape(3, 64), taken, "ordered map")
    equal(masks, np.full((2, 1), 7), "taps")


SHAPES = {
    "16_to_40_channels": {"ci": 16, "co": 40, "again": True, "n": sized(300, 20000)},
    "in_turns": {"ci": 16, "co": 40, "kernel": (3, 3, 1), "turned": True, "n": sized(300, 20000)},
    "in_turns_half": {"ci": 8, "co": 72, "kernel": (3, 1, 1), "turned": True, "n": sized(300, 20000)},
    "packed": {"ci": 16, "co": 40, "packed": True, "turned": True, "n": sized(300, 20000)},
    "packed_strided": {"ci": 24, "co": 72, "kernel": (3, 3, 1), "stride": 2, "packed": True, "n": 700},
    "packed_unaligned": {"ci": 8, "co": 12, "plain": True, "packed": True, "n": sized(90, 2000)},
    "3_to_5_channels": {"ci": 3, "co": 5, "n": sized(90, 2000)},
    "one_site": {"ci": 4, "co": 4, "n": 1},
    "strided": {"ci": 24, "co": 72, "stride": 2, "bias": False, "n": sized(150, 5000)},
    "unaligned": {"ci": 8, "co": 12, "plain": True, "n": sized(90, 2000)},
    "one_tap": {"ci": 8, "co": 8, "kernel": (1, 1, 1), "n": sized(60, 2000)},
    "125_taps": {"ci": 4, "co": 4, "kernel": (5, 5, 5), "n": sized(100, 800)},
    "8_to_69_channels": {"ci": 8, "co": 69, "kernel": (1, 3, 1), "n": sized(60, 3000)},
    "odd_past_the_buffers": {"ci": 16, "co": 73, "kernel": (1, 1, 3), "n": sized(60, 5000)},
    "96_to_128_channels": {"ci": 96, "co": 128, "kernel": (1, 3, 1), "n": sized(40, 5000)},
    "results_past_the_buffers": {"ci": 16, "co": 72, "kernel": (1, 1, 3), "n": sized(60, 5000)},
    "three_stages": {"ci": 32, "co": 32, "kernel": (3, 1, 1), "n": sized(60, 5000)},
    "four_together": {"ci": 40, "co": 72, "kernel": (3, 3, 1), "turned": True, "n": sized(150, 9000)},
    "four_together_packed": {"ci": 40, "co": 72, "kernel": (3, 3, 1), "packed": True, "n": sized(600, 9000)},
    "four_together_twice": {"ci": 72, "co": 73, "again": True, "kernel": (1, 1, 3), "n": sized(60, 5000)},
    "four_together_strided": {"ci": 24, "co": 72, "stride": 2, "bias": False, "n": sized(150, 5000)},
    "shared_sums": {"ci": 16, "co": 40, "kernel": (3, 3, 1), "shared": True, "again": True, "n": 700},
    "shared_packed": {"ci": 16, "co": 40, "kernel": (3, 3, 1), "packed": True, "shared": True, "n": 700},
    "shared_unaligned": {"ci": 8, "co": 72, "kernel": (1, 3, 1), "plain": True, "shared": True, "n": 300},
    "four_together_shared": {"ci": 40, "co": 72, "kernel": (3, 1, 1), "shared": True, "n": sized(600, 9000)},
    "uneven_gradient": {"ci": 16, "co": 40, "kernel": (1, 3, 1), "n": sized(60, 5000)},
}
TILES = {  # that the tables of tiles do not have for every backend
    "three_stages": {2: Tile(64, 32, 32, 2, 2, 3), 4: Tile(64, 32, 16, 2, 2, 3)},
    "results_past_the_buffers": {2: Tile(128, 128, 16, 2, 2, 2), 4: Tile(128, 64, 16, 2, 2, 2)},
}
TILES["odd_past_the_buffers"] = TILES["results_past_the_buffers"]
TILES |= {
    "four_together": {2: together(128, 64, 4)},
    "four_together_packed": {2: together(128, 64, 4)},
    "four_together_shared": {2: together(128, 64, 4)},
    "four_together_twice": {2: together(128, 64, 8)},
    "four_together_strided": {2: together(64, 128, 4)},
}
GRAD_TILES = {  # whose threads copy other places of x than of ct
    "uneven_gradient": {2: Tile(64, 32, 64, 2, 2, 2), 4: Tile(32, 16, 64, 2, 1, 2)},
    "four_together": {2: together(64, 64, 4)},
    "four_together_packed": {2: together(64, 64, 4)},
    "four_together_shared": {2: together(64, 64, 4)},
    "four_together_twice": {2: together(128, 64, 8)},
    "four_together_strided": {2: together(128, 64, 4)},
}
# What differs there does not depend on the dtype.
FLOAT32 = (
    "one_site", "packed_unaligned", "shared_packed", "shared_unaligned", "125_taps", "one_tap",
    "8_to_69_channels", "odd_past_the_buffers",
)  # fmt: skip

def by_row() -> None:
    """Tiles of a map that lies row by row, of one and of more words of taps, are those of one by tap."""
    for taps in (2, 27, 32, 33, 70):
        m = sized(300, 30_000)
        nbr = rng(taps).integers(-40, 60, (taps, m)).astype(np.int32)  # from 50 on none, as below 0
        one, other = (
            tap_tiles(integers(t), 50, None, m - 7, by_row=rows)
            for t, rows in ((nbr, False), (nbr.T, True))
        )
        for a, b in zip(one[:3], other[:3], strict=True):
            equal(b, np.array(a), f"{taps} taps")


_PLAIN = turns, wild_turns, wild_order, by_row, packed_alone
CASES: dict[str, Case] = {f.__name__: f for f in _PLAIN}
for _name, _dtype in DTYPES.items():
    for _shape, _options in SHAPES.items():
        if _name != "f32" and not LARGE and _shape in FLOAT32:
            continue
        if _dtype.size not in TILES.get(_shape, {_dtype.size: None}):  # of 16 bits alone
            continue
        more = {"tile": TILES[_shape][_dtype.size]} if _shape in TILES else {}
        if _shape in GRAD_TILES:
            more["grad_tile"] = GRAD_TILES[_shape][_dtype.size]
        CASES[f"{_shape}-{_name}"] = partial(check, _dtype, **_options, **more)
    CASES[f"empty-{_name}"] = partial(empty, _dtype)
    CASES[f"out_of_range-{_name}"] = partial(out_of_range, _dtype)
    CASES[f"out_of_range_in_whole_pieces-{_name}"] = partial(out_of_range, _dtype, co=8)
CASES["out_of_range_past_the_buffers-f32"] = partial(
    out_of_range, mx.float32, TILES["results_past_the_buffers"][4]
)
