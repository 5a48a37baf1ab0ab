"""Cases of the norm by given statistics, every dtype: ReLU, an added array, padding, odd widths, views; and
of the same norm in the pass of a tiled convolution.
"""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_tiles as tiles
from mlxsparse.backend.kernel_fixed import fixed_norm, line
from mlxsparse.backend.tap_tiles import itself, tap_tiles
from mlxsparse.backend.tile_shapes import Tile, chosen

from .cases_tiles import choose, together
from .common import DTYPES, Case, as_float, close, equal, integers, rng, sized, values

EPS = 1e-3


def parameters(channels: int, kind: mx.Dtype) -> tuple[list[mx.array], list[np.ndarray]]:
    """Mean, variance, weight, bias."""
    made = [values(seed, (channels,), kind)[0] for seed in (1, 2, 3, 4)]
    made[1] = mx.abs(made[1]) + mx.array(0.5, kind)
    return made, [as_float(a) for a in made]


def norm(dtype: mx.Dtype, kind: mx.Dtype | None = None) -> None:
    kind = dtype if kind is None else kind
    sizes = (1, 3, 1), (70, 32, 70), (300, 20, 290), (9, 300, 9), (5, 8, 0), (sized(900, 90_000), 64, 77)
    for n, c, active in sizes:
        given, (mean, var, w, b) = parameters(c, kind)
        x, _ = values(5, (n, c), dtype)
        x = mx.concatenate([x[:active], mx.full((n - active, c), float("nan"), dtype)])
        more, more64 = values(6, (n, c), dtype)
        whole = (as_float(x)[:active] - mean) / np.sqrt(var + EPS) * w + b
        for added, relu in ((False, False), (False, True), (True, True), (True, False)):
            call = fixed_norm((n, c), dtype, kind, EPS, active, added=added, relu=relu)
            y = call(x, *given, *([more] if added else []))
            wanted = whole + more64[:active] if added else whole
            close(y[:active], np.maximum(wanted, 0) if relu else wanted, dtype, "rows", least=4.0)
            equal(as_float(y[active:]), np.zeros((n - active, c)), "padding")


def counted(dtype: mx.Dtype) -> None:
    """The number of active rows in an array; rows that begin anywhere in their buffer."""
    given, (mean, var, w, b) = parameters(24, mx.float32)
    whole, _ = values(5, (50, 25), dtype)
    x = whole.reshape(-1)[1 : 1 + 40 * 24].reshape(40, 24)
    call = fixed_norm((40, 24), dtype, mx.float32, EPS, mx.array(33, mx.int32), added=False, relu=True)
    y = call(x, *given)
    wanted = np.maximum((as_float(x)[:33] - mean) / np.sqrt(var + EPS) * w + b, 0)
    close(y[:33], wanted, dtype, "rows", least=4.0)
    equal(as_float(y[33:]), np.zeros((7, 24)), "padding")


PAST = {2: Tile(128, 128, 16, 2, 2, 2), 4: Tile(128, 64, 16, 2, 2, 2)}  # whose results do not fit its buffers


def in_one_pass(dtype: mx.Dtype, co: int, plain: bool = False, tile: Tile | None = None) -> None:
    """The bits of the convolution, then the norm."""
    m, taps, ci, active = sized(90, 5000), 3, 8, sized(80, 4900)
    nbr = rng(7).integers(-1, m, (taps, m))
    nbr[:, active:] = -1
    order = tap_tiles(integers(nbr), m)
    x, w = values(1, (m, ci), dtype)[0], values(2, (co, taps, ci), dtype)[0]
    bias, add = values(3, (co,), mx.float32)[0], values(4, (m, co), dtype)[0]
    add = mx.concatenate([add[:active], mx.full((m - active, co), float("nan"), dtype)])
    wide = 19 if co % 2 else 40
    source, mix = values(5, (m, wide), dtype)[0], values(6, (co, wide), dtype)[0]
    source = mx.concatenate([source[:active], mx.full((m - active, wide), float("nan"), dtype)])
    choose((False, co), tile)
    try:
        for kind in {dtype, mx.float32}:
            given, _ = parameters(co, kind)
            for added, relu, biased in ((False, True, False), (True, True, True), (True, False, False)):
                more, start = ([add] if added else []), bias if biased else None
                y = tiles.forward(x, w, order, start, active=active, plain=plain)
                apart = fixed_norm((m, co), dtype, kind, EPS, active, added=added, relu=relu)
                finish = tiles.Finish(relu, added)
                one = tiles.product(
                    x.shape, w.shape, dtype, order, biased, active=active, plain=plain, finish=finish
                )
                got = one(x, w, start, line(co, kind, EPS)(given), *more)
                wanted = as_float(apart(y, *given, *more))
                equal(as_float(got), wanted, "one pass and two")
                assert not as_float(got)[active:].any()
                if kind == dtype:
                    one = tiles.product(
                        x.shape, w.shape, dtype, order, biased, active=active, plain=plain,
                        finish=finish._replace(eps=EPS),
                    )  # fmt: skip
                    equal(as_float(one(x, w, start, given, *more)), wanted, "by its own parameters")
                mixed = tiles.Finish(relu, True, wide)
                through = tiles.forward(source, mix[:, None], itself(m, active), plain=plain)
                one = tiles.product(
                    x.shape, w.shape, dtype, order, biased, active=active, plain=plain, finish=mixed
                )
                got = one(x, w, start, line(co, kind, EPS)(given), source, mix)
                apart = fixed_norm((m, co), dtype, kind, EPS, active, added=True, relu=relu)
                wanted = as_float(apart(y, *given, through))
                equal(as_float(got), wanted, "with a dense layer")
                if kind == dtype:
                    one = tiles.product(
                        x.shape, w.shape, dtype, order, biased, active=active, plain=plain,
                        finish=mixed._replace(eps=EPS),
                    )  # fmt: skip
                    got = one(x, w, start, given, source, mix)
                    equal(as_float(got), wanted, "with a dense layer, by its own parameters")
    finally:
        chosen.clear()


CASES: dict[str, Case] = {}
for _name, _dtype in DTYPES.items():
    CASES[f"norm-{_name}"] = partial(norm, _dtype)
    CASES[f"counted-{_name}"] = partial(counted, _dtype)
    if _dtype != mx.float32:
        CASES[f"norm_of_float32-{_name}"] = partial(norm, _dtype, mx.float32)
    for _co in (5, 8, 40, 73):
        CASES[f"in_one_pass_{_co}-{_name}"] = partial(in_one_pass, _dtype, _co)
    CASES[f"in_one_pass_plain-{_name}"] = partial(in_one_pass, _dtype, 12, True)
    if _dtype.size == 2:
        tile = together(128, 64, 4)
        CASES[f"in_one_pass_four_together-{_name}"] = partial(in_one_pass, _dtype, 72, tile=tile)
    for _co in (72, 73):
        more = {"co": _co, "tile": PAST[_dtype.size]}
        CASES[f"in_one_pass_past_the_buffers_{_co}-{_name}"] = partial(in_one_pass, _dtype, **more)
