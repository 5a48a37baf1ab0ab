"""Fast convolution on the GPU: rows ordered so that tiles share taps, tensor-core tiles over them.

The order is tap_tiles.py's. Channels are padded to 16 bytes. Sums run in fp32 in a fixed order and are
rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx

from ..errors import CapacityError, ShapeError
from .kernel_conv import fp32_mode
from .kernel_fixed import bits, unadded
from .library import (
    MAX_THREADS,
    Factory,
    Launch,
    blocks,
    check_array,
    factory,
    filled,
    ready,
    unread,
    unread_rows,
)
from .tap_tiles import PLACES, Layout, TapTiles
from .tile_shapes import Tile, grad_tile_for, tile_for

GRAD_GROUPS = 4096  # threadgroups that a weight gradient is divided into, at most
GRAD_LEAST = 1024  # threadgroups below which some wait for others, whatever partial sums take: 64 KB each
GRAD_RUN = 2048  # places of a run, at least: each run writes sums of every weight
GRAD_BYTES = 1 << 25  # of sums of its runs, at most where there are more threadgroups
GRAD_SHARED = 1 << 24  # past which two runs add to one partial sum
OFFSETS = 2**31  # copies of 16 bytes that a kernel can address


def _padded(a: mx.array, axis: int) -> mx.array:
    """`a` with zeros at the end of an axis, so that it is a multiple of 16 bytes long."""
    vector = 16 // a.dtype.size
    lack = -a.shape[axis] % vector
    if lack == 0:
        return a
    return mx.pad(a, [(0, lack if i == axis else 0) for i in range(a.ndim)])


def _check_reach(name: str, rows: int, channels: int, itemsize: int) -> None:
    if rows * channels * itemsize // 16 >= OFFSETS:
        raise CapacityError(
            f"{name} holds {rows} x {channels} elements, more than a kernel can address; split it"
        )


def forward(
    x: mx.array,
    w: mx.array,
    tiles: TapTiles,
    bias: mx.array | None = None,
    *,
    active: int | mx.array | None = None,
    plain: bool = False,
) -> mx.array:
    """y[o] = bias + sum over taps t of W[t] x[nbr[t, o]]: x (N, Ci), w (Co, T, Ci), bias (Co,) -> (M, Co).

    Rows at and past `active` (default M) are 0. plain: as if x were not aligned to 16 bytes.
    """
    call = product(x.shape, w.shape, x.dtype, tiles, bias is not None, active=active, plain=plain)
    return call(x, w, bias)


def input_grad(
    ct: mx.array, w: mx.array, tiles: TapTiles, *, flip: bool = False, plain: bool = False
) -> mx.array:
    """Gradient of x: ct (M, Co), w (Co, T, Ci), tiles of the input side -> (N, Ci).

    flip: the tiles are those of the output side of a map that is symmetric under t -> T - 1 - t.
    """
    check_array("weight", w, 3)
    return input_product(ct.shape, w.shape, w.dtype, tiles, flip=flip, plain=plain)(ct, w)


def input_product(
    ct: Sequence[int],
    w: Sequence[int],
    dtype: mx.Dtype,
    tiles: TapTiles,
    *,
    flip: bool = False,
    plain: bool = False,
) -> Callable[..., mx.array]:
    """`input_grad` of arrays of these shapes and dtype, as a function of ct and w for many calls.

    w: the array itself may have several axes of taps.
    """
    outs, taps, red = w
    turn = _turn_call(factory(), dtype, outs, taps, red, flip)
    call = product(ct, (red, taps, outs), dtype, tiles, False, plain=plain)
    return lambda ct, w: call(ct, turn([w])[0])


@functools.lru_cache(maxsize=512)
def _turn_call(make: Factory, dtype: mx.Dtype, outs: int, taps: int, red: int, flip: bool) -> Launch:
    """The weight (Ci, T, Co) of which the input gradient is the convolution, Co padded to 16 bytes."""
    vector = 16 // dtype.size
    wide = blocks(outs, vector) * vector
    return ready(
        "turn_weight",
        [outs, taps, red, wide, int(flip)],
        [(red, taps, wide)],
        (blocks(wide, 32) * blocks(red, 32), taps, 1),
        dtype=dtype,
    )


class Finish(NamedTuple):
    """A norm by statistics that are given, of the result: norm_fixed of kernel_fixed.py."""

    relu: bool
    added: bool  # another array is added before
    mixed: int = 0  # its channels, where its product with a weight (Co, mixed) is what is added
    eps: float | None = None  # of a norm whose parameters have the features' dtype: the kernel reads them


def product(
    x: Sequence[int],
    w: Sequence[int],
    dtype: mx.Dtype,
    tiles: TapTiles,
    biased: bool,
    *,
    active: int | mx.array | None = None,
    plain: bool = False,
    finish: Finish | None = None,
) -> Callable[..., mx.array]:
    """`forward` of arrays of these shapes and dtype, as a function of x, w and bias for many calls.

    w: the array itself may have several axes of taps. finish: what follows in the same pass; the function
    then takes the norm as well, [line (2, Co) float32] (kernel_fixed.line) or mean, variance, weight and bias
    (Co,), and what is added (M, Co), or (M, mixed) and its weight.
    """
    if len(x) != 2 or len(w) != 3:
        raise ShapeError(f"x has shape {tuple(x)}, weight {tuple(w)}, wanted 2 and 3 axes")
    rows = tiles.size if active is None else active
    prepare = _prepared if isinstance(rows, int) else _prepared.__wrapped__
    tile, mode = tile_for(dtype, w[0], tiles.places), fp32_mode(dtype)
    return prepare(
        factory(), tuple(x), tuple(w), dtype, tiles.layout, biased, rows, plain, finish, tile, mode
    )(tiles)


# What follows from sizes alone is derived once: a call from Python costs as much as a small kernel.
@functools.lru_cache(maxsize=512)
def _prepared(
    make: Factory,
    x: tuple[int, int],
    w: tuple[int, int, int],
    dtype: mx.Dtype,
    layout: Layout,
    biased: bool,
    rows: int | mx.array,
    plain: bool,
    finish: Finish | None,
    tile: Tile,
    mode: int,
) -> Callable[[TapTiles], Callable[..., mx.array]]:
    """`product` as a function of tiles that lie so."""
    (n, red), (outs, taps, channels) = x, w
    if taps != layout.taps:
        raise ShapeError(f"weight {w} has {taps} taps, the kernel map has {layout.taps}")
    if (n, red) != (layout.sources, channels):
        raise ShapeError(f"x has shape {x}, the map and weight {w} take {(layout.sources, channels)}")
    lack = -red % (16 // dtype.size)
    red += lack
    _check_reach("x", n, red, dtype.size)
    if outs * taps * red >= OFFSETS:
        raise CapacityError(f"weight {w} has more elements than a kernel can address; use groups")
    relu, added, mixed, eps = finish or (False, False, 0, None)
    wide = blocks(mixed, 16 // dtype.size) * (16 // dtype.size)
    _check_reach("what is added", layout.size, wide, dtype.size)
    own = int(eps is not None), bits(eps or 0.0)
    more = int(relu), int(added), wide, *own, int(layout.turned), int(layout.packed)
    whole = ready(
        "conv_tiles",
        (n, layout.size, layout.places, taps, red, outs, int(biased), rows, int(plain), *layout.steps, *more),
        [(layout.size, outs)],
        (layout.places // tile.BM, blocks(outs, tile.BN), 1),
        tile.threads,
        dtype=dtype,
        group_bytes=_bytes(dtype, tile, (tile.BM, tile.BK), (tile.BN, tile.BK), False),
        fit=tile.FIT,
        EXACT=mode,
        FINISH=0 if finish is None else 2 if mixed else 1,
        **tile.sizes(),
    )
    nothing = unadded(dtype)
    none = [nothing] * 4  # of the norm's parameters
    if finish is None:
        whole = whole.holding(unread(), nothing, nothing, *none)
    elif eps is None:
        whole = whole.holding(*none) if mixed else whole.holding(nothing, *none)

    def over(tiles: TapTiles) -> Callable[..., mx.array]:
        places = tiles.nbr, tiles.rows, tiles.masks, unread_rows() if tiles.turns is None else tiles.turns
        if finish is None and not biased and lack == 0:  # the usual case does nothing but launch
            held = whole.holding(unread(), *places)
            return lambda x, w, bias=None: held([x, w])[0]
        return functools.partial(run, places)

    def run(
        places: Sequence[mx.array],
        x: mx.array,
        w: mx.array,
        bias: mx.array | None = None,
        norm: Sequence[mx.array] = (),
        add: mx.array | None = None,
        mix: mx.array | None = None,
    ) -> mx.array:
        if biased and (bias is None or bias.shape != (outs,)):
            raise ShapeError(f"bias has shape {getattr(bias, 'shape', bias)}, wanted {(outs,)}")
        start = unread() if bias is None else bias.astype(mx.float32)
        last: list[mx.array] = []
        if finish is not None:
            line, own = (norm[:1], ()) if eps is None else ((unread(),), norm)
            last = [*line, nothing if add is None else _padded(add, 1) if mixed else add]
            if mix is not None:
                last.append(_padded(mix, 1))
            elif eps is not None:
                last.append(nothing)
            last += own
        return whole([_padded(x, 1), _padded(w, w.ndim - 1), start, *places, *last])[0]

    return over


def _bytes(dtype: mx.Dtype, tile: Tile, a: tuple[int, int], b: tuple[int, int], k_rows: bool) -> int:
    """Threadgroup memory of the buffers of two tiles; mirrors tile_ld of kernels/tile.h."""
    if tile.FOURS:
        return dtype.size * (tile.STAGES * (a[0] * a[1] + b[0] * b[1]) + 512)
    more = 8 if dtype.size == 4 and k_rows else 16 // dtype.size
    return tile.STAGES * dtype.size * sum(rows * (columns + more) for rows, columns in (a, b))


def weight_grad(ct: mx.array, x: mx.array, tiles: TapTiles, *, plain: bool = False) -> mx.array:
    """Gradient of w: (Co, T, Ci), from ct (M, Co) and x (N, Ci) of one dtype; tiles of the output side."""
    check_array("ct", ct, 2)
    check_array("x", x, 2)
    shape = ct.shape[1], tiles.taps, x.shape[1]
    return weight_product(ct.shape, x.shape, x.dtype, tiles, shape, plain=plain)(ct, x)


def weight_product(
    ct: Sequence[int],
    x: Sequence[int],
    dtype: mx.Dtype,
    tiles: TapTiles,
    shape: tuple[int, ...],
    *,
    plain: bool = False,
) -> Callable[[mx.array, mx.array], mx.array]:
    """`weight_grad` of arrays of these shapes and dtype, as a function of ct and x for many calls.

    shape: of the result, (Co, T, Ci) with any axes of taps between.
    """
    (m, co), (n, ci), taps = ct, x, tiles.taps
    if (m, n) != (tiles.size, tiles.sources):
        raise ShapeError(f"ct and x have {m} and {n} rows, the map {tiles.size} and {tiles.sources}")
    if tiles.places == 0 or taps == 0:
        return lambda ct, x: filled(shape, 0, dtype)
    vector = 16 // dtype.size
    outs, red = blocks(co, vector) * vector, blocks(ci, vector) * vector
    _check_reach("x", n, red, dtype.size)
    _check_reach("ct", m, outs, dtype.size)
    tile = grad_tile_for(dtype, outs, red)
    sizes = (n, m, tiles.places, taps, red, outs, tiles.used, int(plain), int(tiles.kept > 0), *tiles.steps)
    whole = (outs, red) == (co, ci)
    last = shape if whole else (outs, taps, red)
    parts, total = _grad_calls(factory(), dtype, tile, fp32_mode(dtype), sizes, last)
    parts = parts.holding(tiles.nbr, tiles.rows, tiles.masks)
    if whole:
        return lambda ct, x: total(parts([ct, x]))[0]
    return lambda ct, x: total(parts([_padded(ct, 1), _padded(x, 1)]))[0][:co, :, :ci].reshape(shape)


@functools.lru_cache(maxsize=256)
def _grad_calls(
    make: Factory, dtype: mx.Dtype, tile: Tile, exact: int, sizes: tuple[int, ...], last: tuple[int, ...]
) -> tuple[Launch, Launch]:
    """Sums of runs of places, of ct, x and the tiles; and their sum, of shape `last`."""
    n, size, places, taps, red, outs, used, plain, packed, *steps = sizes
    along = blocks(red, tile.BN)
    pieces = blocks(outs, tile.BM) * along
    each = max(1, taps * pieces)
    nbytes = max(1, 4 * taps * outs * red)  # of a sum
    most = max(GRAD_LEAST // each, min(GRAD_GROUPS // each, GRAD_BYTES // nbytes))
    # Rows with pairs come first (tap_keys): how they are divided depends on nothing else.
    run = blocks(used, max(1, min(most, used // GRAD_RUN)) * PLACES) * PLACES
    runs = blocks(used, run)
    share = 2 if runs * nbytes > GRAD_SHARED else 1
    sums = blocks(runs, share)
    shape = tile.sizes()
    del shape["KEEP"]  # both sides stream
    parts = ready(
        "conv_tiles_grad",
        [n, size, places, taps, red, outs, run, along, plain, *steps, runs, packed, share],
        [(sums, outs, taps, red)],
        (taps, runs, pieces),
        tile.threads,
        dtype=dtype,
        init=None if share == 1 else 0,
        group_bytes=_bytes(dtype, tile, (tile.BK, tile.BM), (tile.BK, tile.BN), True),
        fit=tile.FIT,
        EXACT=exact,
        **shape,
    )
    total = ready(
        "sum_parts",
        [sums, outs * taps * red],
        [last],
        (blocks(outs * taps * red, MAX_THREADS), 1, 1),
        dtype=dtype,
    )
    return parts, total
