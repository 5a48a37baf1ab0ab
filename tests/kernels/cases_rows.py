"""Cases of the row kernels, every dtype: pooling, segments, gathers, scatters, pools of batch items."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_rows as kr
from mlxsparse.errors import MLXSparseError
from mlxsparse.testing import oracle

from .cases_conv import padded_values
from .cases_coords import tables
from .common import (
    DTYPES,
    Case,
    as_float,
    close,
    equal,
    integers,
    repeats,
    rng,
    shifted,
    sites,
    sized,
    values,
)

POOL = ((3, 2, 2), (2, 2, 1), (1, 0, 1), (1, 1, 2))  # size, stride, padding, dilation
PADDING = 2


class Pooling:
    """A strided relation with padding rows at the end of both sides, and values for both."""

    def __init__(self, dtype: mx.Dtype, channels: int, n: int):
        size, s, p, d = POOL
        self.coords = sites(31, n, sized(6, 20))
        self.out = oracle.touched_support(self.coords, size, s, p, d)
        pairs = oracle.conv_pairs(self.coords, self.out, size, s, p, d)
        taps, self.m, self.n = int(np.prod(size)), len(self.out), len(self.coords)
        nbr, back = tables(pairs, taps, self.n + PADDING, self.m + PADDING)
        self.nbr, self.back = integers(nbr), integers(back)
        self.x, self.x64 = padded_values(1, (self.n, channels), PADDING, dtype)
        self.ct, self.ct64 = padded_values(2, (self.m, channels), PADDING, dtype)
        self.where = {"out_coords": self.out}
        self.args = POOL


def sum_pool(dtype: mx.Dtype, channels: int = 5, n: int = 60) -> None:
    r = Pooling(dtype, channels, n)
    y = kr.gather_sum(r.x, r.nbr)
    close(y[: r.m], oracle.sum_pool3d(r.coords, r.x64, *r.args, **r.where)[1], dtype, "sum")
    equal(y[r.m :].astype(mx.float32), np.zeros((PADDING, channels)), "padding")
    dx = kr.gather_sum(r.ct, r.back)
    close(dx[: r.n], oracle.sum_pool3d_gradient(r.coords, r.x64, r.ct64, *r.args, **r.where), dtype, "dx")


def average_pool(dtype: mx.Dtype) -> None:
    r = Pooling(dtype, 3, 60)
    counts = np.maximum((np.array(r.nbr) >= 0).sum(axis=0), 1)
    share = mx.array((1 / counts).astype(np.float32))
    y = kr.gather_sum(r.x, r.nbr, after=share, active=r.m)
    close(y[: r.m], oracle.avg_pool3d(r.coords, r.x64, *r.args, **r.where)[1], dtype, "mean")
    first = kr.gather_sum(r.x, r.nbr, after=share, active=5)  # rows past it have pairs all the same
    close(first[:5], as_float(y[:5]), dtype, "active rows")
    equal(first[5:].astype(mx.float32), np.zeros((r.m + PADDING - 5, 3)), "rows past the active ones")
    dx = kr.gather_sum(r.ct, r.back, before=share, active=r.n)
    close(dx[: r.n], oracle.avg_pool3d_gradient(r.coords, r.x64, r.ct64, *r.args, **r.where), dtype, "dx")


def max_pool(dtype: mx.Dtype, channels: int = 5, n: int = 60) -> None:
    r = Pooling(dtype, channels, n)
    x = mx.round(r.x)  # many ties
    x64 = as_float(x)[: r.n]
    y, winner = kr.max_pool(x, r.nbr)
    close(y[: r.m], oracle.max_pool3d(r.coords, x64, *r.args, **r.where)[1], dtype, "max")
    equal(y[r.m :].astype(mx.float32), np.zeros((PADDING, channels)), "padding")
    dx = kr.max_pool_grad(r.ct, winner, r.back)
    wanted = oracle.max_pool3d_gradient(r.coords, x64, r.ct64, *r.args, **r.where)
    close(dx[: r.n], wanted, dtype, "dx")
    alone, _ = kr.max_pool(x, r.nbr, winner=False)
    equal(alone, np.array(y.astype(mx.float32) if dtype == mx.bfloat16 else y), "without winners")
    wide = integers(np.concatenate([np.full((37, r.nbr.shape[1]), -1), np.array(r.nbr)]))  # past 32 taps
    wanted = np.where(np.array(winner) < 0, -1, np.array(winner) + 37)
    equal(kr.max_pool(x, wide)[1], wanted, "winner of many")
    repeats(lambda: [*kr.max_pool(x, r.nbr), kr.max_pool_grad(r.ct, winner, r.back)])
    for a, b in zip(kr.max_pool(shifted(x), r.nbr), (y, winner), strict=True):
        equal(a.astype(mx.float32), as_float(b), "shifted")


def max_pool_of_nan(dtype: mx.Dtype) -> None:
    """NaN wins over numbers, the first NaN keeps; minus infinity is a value like others."""
    nan, inf = float("nan"), float("inf")
    x = mx.array([[1.0, -inf, 2.0], [nan, -inf, 3.0], [nan, -inf, 3.0]]).astype(dtype)
    y, winner = kr.max_pool(x, integers(np.array([[0, -1], [1, -1], [2, -1]])))
    equal(winner, np.array([[1, 0, 1], [-1, -1, -1]]), "winner")
    got = np.array(y.astype(mx.float32))
    assert np.isnan(got[0, 0]) and got[0, 1] == -inf and got[0, 2] == 3 and (got[1] == 0).all(), got


def gather_weighted(dtype: mx.Dtype) -> None:
    """Eight weighted rows per point, as in trilinear interpolation, and its gradient through segments."""
    n, m, channels = sized(40, 3000), sized(70, 9000), 4
    x, x64 = values(1, (n, channels), dtype)
    ct, ct64 = values(2, (m, channels), dtype)
    nbr = rng(3).integers(-1, n, (8, m))
    weight = rng(4).random((8, m)).astype(np.float32)
    hit = nbr >= 0
    wanted = (np.where(hit, weight, 0)[..., None] * x64[np.maximum(nbr, 0)]).sum(axis=0)
    close(kr.gather_sum(x, integers(nbr), weight=mx.array(weight)), wanted, dtype, "y")
    dx64 = np.zeros((n, channels))
    np.add.at(dx64, nbr[hit], (weight[..., None] * ct64)[hit])
    parts = kr.segments(integers(nbr.reshape(-1)), n)
    dx, _ = kr.segment_reduce(ct, parts, "sum", weight=mx.array(weight.reshape(-1)))
    close(dx.astype(dtype), dx64, dtype, "dx")


def rows_out_and_in(dtype: mx.Dtype) -> None:
    n, m = sized(50, 5000), sized(90, 9000)
    x, x64 = values(1, (n, 33), dtype)
    rows = rng(2).integers(-1, n, m)
    wanted = np.where((rows >= 0)[:, None], x64[np.maximum(rows, 0)], 0)
    equal(kr.take_rows(x, integers(rows)).astype(mx.float32), wanted, "taken")
    place = rng(3).permutation(n + 7)[:n]
    place[4] = -1
    for fill in (0.0, 2.5):
        wanted = np.full((n + 7, 33), fill)
        wanted[place[place >= 0]] = x64[place >= 0]
        equal(kr.put_rows(x, integers(place), n + 7, fill).astype(mx.float32), wanted, "put")
    for bad in (n, -2):
        try:
            kr.take_rows(x, integers(np.array([0, bad])))
        except MLXSparseError as error:
            assert "out of range" in str(error)
        else:
            raise AssertionError(f"row {bad} of {n} was not refused")
    # Unchecked, such rows are zeros; nothing outside x is read or written.
    wild = integers(np.array([0, n, 2**31 - 1, -(2**31)]))
    equal(kr.take_rows(x, wild, check=False)[1:].astype(mx.float32), np.zeros((3, 33)), "outside")
    equal(kr.put_rows(x, wild[1:], 4, check=False).astype(mx.float32), np.zeros((4, 33)), "outside")


def segment(dtype: mx.Dtype, channels: int = 5) -> None:
    """Every mode and its gradient; empty segments, items in none, ties, NaN."""
    n, size = sized(90, 20_000), sized(30, 4000)
    group = rng(1).integers(-1, size, n)
    group[group == 7] = 8  # an empty segment
    x = mx.round(values(2, (n, channels), dtype)[0] * 2)
    x64 = as_float(x)
    ct, ct64 = values(3, (size, channels), dtype)
    parts = kr.segments(integers(group), size)
    equal(parts.counts, np.bincount(group[group >= 0], minlength=size), "counts")
    items = [np.flatnonzero(group == g) for g in range(size)]
    for mode in kr.MODES:
        y, winner = kr.segment_reduce(x, parts, mode)
        wanted, won = np.zeros((size, channels)), np.full((size, channels), -1)
        for g, rows in enumerate(items):
            if len(rows):
                wanted[g] = {
                    "sum": x64[rows].sum(axis=0),
                    "mean": x64[rows].mean(axis=0),
                    "max": x64[rows].max(axis=0),
                    "min": x64[rows].min(axis=0),
                    "first": x64[rows[0]],
                }[mode]
                if mode not in ("sum", "mean"):
                    won[g] = rows[np.argmax(x64[rows] == wanted[g], axis=0)]
        close(y, wanted, mx.float32, mode)
        equal(winner, won, f"winner of {mode}")
        if mode in ("max", "min", "first"):
            dx64 = np.zeros((n, channels))
            np.put_along_axis(dx64, won[won[:, 0] >= 0], ct64[won[:, 0] >= 0], axis=0)
            close(kr.winner_grad(ct, winner, parts.group), dx64, dtype, f"gradient of {mode}")


def global_pool(dtype: mx.Dtype) -> None:
    """Batch items of very different length, two of them empty; rows of items interleaved."""
    n, channels = sized(1500, 60_000), 3
    batch = np.where(rng(1).random(n) < 0.95, 1, rng(2).integers(0, 5, n))
    batch[batch == 3] = 1
    coords = np.column_stack([batch, np.arange(n), np.zeros((n, 2))]).astype(np.int64)
    x, x64 = values(3, (n, channels), dtype)
    counts = np.bincount(batch, minlength=6)
    order = integers(np.argsort(batch, kind="stable"))
    for mode, wanted in (
        ("sum", oracle.global_sum_pool(coords, x64, 6)),
        ("mean", oracle.global_avg_pool(coords, x64, 6)),
    ):
        close(kr.batch_reduce(x, order, counts, mode)[0], wanted, mx.float32, mode)
    y, row = kr.batch_reduce(x, order, counts, "max")
    for b in range(6):
        rows = np.flatnonzero(batch == b)
        won = rows[np.argmax(x64[rows], axis=0)] if len(rows) else np.full(channels, -1)
        equal(row[b], won, f"row of the maximum of item {b}")
        equal(
            y[b], x64[won, np.arange(channels)] if len(rows) else np.zeros(channels), f"maximum of item {b}"
        )


def empty(dtype: mx.Dtype) -> None:
    none = mx.zeros((0, 3), dtype)
    no_rows = mx.zeros((0,), mx.int32)
    for m in (0, 2):
        nbr = mx.full((4, m), -1, mx.int32)
        zeros = np.zeros((m, 3))
        equal(kr.gather_sum(none, nbr).astype(mx.float32), zeros)
        equal(kr.max_pool(none, nbr)[0].astype(mx.float32), zeros)
        back = mx.full((4, 0), -1, mx.int32)
        equal(kr.max_pool_grad(mx.ones((m, 3), dtype), mx.zeros((m, 3), mx.int32), back), np.zeros((0, 3)))
        equal(kr.put_rows(none, no_rows, m).astype(mx.float32), zeros)
        parts = kr.segments(no_rows, m)
        for mode in kr.MODES:
            equal(kr.segment_reduce(none, parts, mode)[0], zeros, mode)
    equal(kr.take_rows(none, no_rows), np.zeros((0, 3)))
    for mode in ("sum", "mean", "max"):
        equal(kr.batch_reduce(none, no_rows, np.zeros(2, int), mode)[0], np.zeros((2, 3)), mode)


def one(dtype: mx.Dtype) -> None:
    """One row, one channel: inputs under 8 elements."""
    x = mx.array([[3.0]]).astype(dtype)
    here = mx.zeros((1, 1), mx.int32)
    for got in (
        kr.gather_sum(x, here),
        kr.max_pool(x, here)[0],
        kr.max_pool_grad(x, here, here),
        kr.take_rows(x, here[0]),
        kr.put_rows(x, here[0], 1),
        kr.segment_reduce(x, kr.segments(here[0], 1), "max")[0],
        kr.winner_grad(x, here, here[0]),
    ):
        equal(got.astype(mx.float32), np.array([[3.0]]))


CASES: dict[str, Case] = {}
for _name, _dtype in DTYPES.items():
    for _case in (
        sum_pool,
        average_pool,
        max_pool,
        max_pool_of_nan,
        gather_weighted,
        rows_out_and_in,
        segment,
        global_pool,
        empty,
        one,
    ):
        CASES[f"{_case.__name__}-{_name}"] = partial(_case, _dtype)
CASES["sum_pool_1000_channels-f32"] = partial(sum_pool, mx.float32, channels=1000, n=10)
for _name, _dtype in DTYPES.items():
    for _channels in (4, 24, 64):
        CASES[f"max_pool_{_channels}_channels-{_name}"] = partial(max_pool, _dtype, channels=_channels, n=40)
CASES["max_pool_1000_channels-f32"] = partial(max_pool, mx.float32, channels=1000, n=10)
