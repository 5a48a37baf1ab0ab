"""Cases of attention inside segments, every dtype, against dense masked attention in float64."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_segments
from mlxsparse.backend.kernel_segments import Positions
from mlxsparse.engine.segments import Segments, Side
from mlxsparse.testing import oracle

from .common import DTYPES, Case, as_float, close, equal, integers, repeats, rng, sized, values

NAN = float("nan")


def side(seed: int, lengths: list[int], spare: int) -> tuple[Side, int, np.ndarray]:
    """Segments over rows in random order, `spare` rows in none; rows, and the segment of each row or -1."""
    size = sum(lengths)
    rows = rng(seed).permutation(size + spare)[:size].astype(np.int32)
    group = np.full(size + spare, -1)
    group[rows] = np.repeat(np.arange(len(lengths)), lengths)
    return Side(rows, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)), size + spare, group


def positions(segments: Segments, size: int) -> Positions:
    arrays = (segments.q.order, segments.k.order, segments.span, segments.tiles(size))
    return Positions(*map(integers, arrays))


LENGTHS = {
    "small": ([3, 1, 0, 7, 5, 2, 9, 1], [3, 1, 0, 7, 5, 2, 9, 1]),
    "long": ([70, 2, 90], [70, 2, 90]),
    "cross": ([20, 0, 4, 33], [5, 9, 0, 70]),
    "exact": ([9, 7], [30, 34]),  # a simdgroup is full, a step too: one more is outside
}


def poisoned(
    seed: int, shape: tuple[int, ...], used: np.ndarray, dtype: mx.Dtype
) -> tuple[mx.array, np.ndarray]:
    """Values, NaN in the rows that are in no segment; in float64 0 there."""
    a, wide = values(seed, shape, dtype)
    keep = used[:, None, None]
    return mx.where(mx.array(keep), a, mx.array(NAN, dtype)), np.where(keep, wide, 0)


def attend(
    dtype: mx.Dtype, lengths: str, d: int = 16, dv: int | None = None, heads: int = 2, key_heads: int = 2
) -> None:
    """Values in a tile that packs segments, and in one that splits them; spare rows hold NaN."""
    dv = dv or d
    q_lengths, k_lengths = LENGTHS[lengths]
    q_side, n, q_group = side(1, q_lengths, 3)
    k_side, m, k_group = side(2, k_lengths, 2)
    segments = Segments(q_side, k_side)
    q, q64 = poisoned(3, (n, heads, d), q_group >= 0, dtype)
    k, k64 = poisoned(4, (m, key_heads, d), k_group >= 0, dtype)
    v, v64 = poisoned(5, (m, key_heads, dv), k_group >= 0, dtype)
    allowed = (q_group[:, None] == k_group[None]) & (q_group >= 0)[:, None]
    tile = kernel_segments.segment_tile(max(d, dv), dtype)
    assert tile is not None
    at = positions(segments, tile.bm)

    def run() -> list[mx.array]:
        return [*kernel_segments.segment_attend(q, k, v, 0.3, at, tile)]

    y, lse = run()
    (wanted,) = oracle.grouped_attention(q64, k64, v64, allowed, 0.3)
    close(y, wanted, dtype, "y")
    scores = np.where(
        allowed[None],
        0.3 * np.einsum("nhd,mhd->hnm", q64, np.repeat(k64, heads // key_heads, axis=1)),
        -np.inf,
    )
    with np.errstate(divide="ignore"):
        wanted_lse = np.log(np.exp(scores).sum(axis=2)).T
    used = q_group >= 0
    assert np.allclose(np.array(lse)[used], wanted_lse[used], atol=5e-2 if dtype == mx.bfloat16 else 5e-3), (
        "lse"
    )
    repeats(run, 2)

    ct, ct64 = poisoned(6, (n, heads, dv), q_group >= 0, dtype)
    wanted_gradients = oracle.grouped_attention(q64, k64, v64, allowed, 0.3, ct64)
    delta = mx.array((wanted * ct64).sum(axis=2).astype(np.float32))
    lse = mx.array(np.where(used[:, None], wanted_lse, NAN).astype(np.float32))
    tile = kernel_segments.segment_tile(max(d, dv), dtype, grad=True)
    assert tile is not None
    at, turned = positions(segments, tile.bm), positions(segments.turned, tile.bm)
    for mode, arguments, tables in (
        (0, (q, k, ct, v), at),
        (1, (k, q, v, ct), turned),
        (2, (k, q, v, ct), turned),
    ):
        got = kernel_segments.segment_attend_grad(mode, *arguments, lse, delta, 0.3, tables, tile)
        close(got, wanted_gradients[mode], dtype, ("dq", "dk", "dv")[mode], least=0.1)


def not_finite(dtype: mx.Dtype) -> None:
    """A key or value that is not finite spoils its own segment, not its neighbours in a tile."""
    lengths = [4, 3, 5]
    whole, n, group = side(1, lengths, 0)
    segments = Segments(whole, whole)
    tile = kernel_segments.segment_tile(8, dtype)
    assert tile is not None
    at = positions(segments, tile.bm)
    q, q64 = values(3, (n, 1, 8), dtype)
    for which in range(2):
        kv = [values(4 + i, (n, 1, 8), dtype) for i in range(2)]
        hole = np.zeros((n, 1, 8), bool)
        # The last row of its segment, the next one its neighbour in a tile; two copies of 16 bytes.
        hole[whole.order[6], 0, 3 : 4 + which] = True
        kv[which] = (
            mx.where(mx.array(hole), mx.array((NAN, float("inf"))[which], dtype), kv[which][0]),
            kv[which][1],
        )
        y, _ = kernel_segments.segment_attend(q, kv[0][0], kv[1][0], 1.0, at, tile)
        got = np.array(y.astype(mx.float32))
        (wanted,) = oracle.grouped_attention(q64, kv[0][1], kv[1][1], group[:, None] == group[None], 1.0)
        clean = group != 1
        close(y[mx.array(np.flatnonzero(clean).astype(np.int32))], wanted[clean], dtype, "neighbours")
        assert not np.isfinite(got[~clean]).all(axis=2).any(), "the segment itself"


def loud(dtype: mx.Dtype) -> None:
    """Queries whose scores are far above those of others in their tile: each has a maximum of its own."""
    whole, n, _ = side(1, [32], 0)
    q, k, v = (values(3 + i, (n, 1, 8), dtype)[0] for i in range(3))
    far = np.ones((n, 1, 1), np.float32)
    far[whole.order[8:16]] = 100
    q = (q.astype(mx.float32) * mx.array(far)).astype(dtype)
    tile = kernel_segments.segment_tile(8, dtype)
    assert tile is not None
    y, _ = kernel_segments.segment_attend(q, k, v, 1.0, positions(Segments(whole, whole), tile.bm), tile)
    wide = (as_float(a) for a in (q, k, v))
    close(y, oracle.grouped_attention(*wide, np.ones((n, n), bool), 1.0)[0], dtype)


def bad_tables(dtype: mx.Dtype) -> None:
    """Lists that name rows, keys and queries which do not exist: those count as none."""
    q, q64 = values(1, (8, 1, 8), dtype)
    tile = kernel_segments.segment_tile(8, dtype)
    assert tile is not None
    rows = np.arange(8)
    (ct, ct64), every = values(2, (8, 1, 8), dtype), np.ones((8, 8), bool)
    (y64,) = oracle.grouped_attention(q64, q64, q64, every, 1.0)
    wanted = oracle.grouped_attention(q64, q64, q64, every, 1.0, ct64)
    delta = mx.array((y64 * ct64).sum(axis=2).astype(np.float32))
    grad_tile = kernel_segments.segment_tile(8, dtype, grad=True)
    assert grad_tile is not None
    for wrong in (2**31 - 1, -(2**31), -1, 8):
        listed = integers([*rows, wrong, wrong])
        # The last query's keys do not exist, nor does its row.
        span = integers([[0, 8]] * 9 + [[min(wrong, 0), wrong]])
        bad = [[wrong, 3, wrong, 5], [0, -5, 3, wrong], [9, 1, 7, 2], [8, 1, wrong, 5]]
        tiles = integers([[0, 9, 0, 8], *bad])
        at = Positions(listed, listed, span, tiles)
        y, lse = kernel_segments.segment_attend(q, q, q, 1.0, at, tile)
        close(y, y64, dtype)
        for mode, (c, d) in enumerate(((ct, q), (q, ct), (q, ct))):
            got = kernel_segments.segment_attend_grad(mode, q, q, c, d, lse, delta, 1.0, at, grad_tile)
            close(got, wanted[mode], dtype, ("dq", "dk", "dv")[mode])


def nothing(dtype: mx.Dtype) -> None:
    """No rows, and no keys."""
    none, _, _ = side(1, [], 0)
    tile = kernel_segments.segment_tile(4, dtype)
    assert tile is not None
    empty = mx.zeros((0, 1, 4), dtype)
    y, lse = kernel_segments.segment_attend(
        empty, empty, empty, 1.0, positions(Segments(none, none), tile.bm), tile
    )
    equal(y, np.zeros((0, 1, 4)))
    q_side, n, _ = side(2, [3, 2], 0)
    k_side, _, _ = side(2, [0, 0], 0)
    y, lse = kernel_segments.segment_attend(
        mx.ones((n, 1, 4), dtype), empty, empty, 1.0, positions(Segments(q_side, k_side), tile.bm), tile
    )
    equal(y, np.zeros((5, 1, 4)))
    assert (np.array(lse) == -np.inf).all()


def dots(dtype: mx.Dtype) -> None:
    for shape in ((0, 2, 3), (1, 1, 1), (70, 9, 5)):
        (a, a64), (b, b64) = values(1, shape, dtype), values(2, shape, dtype)
        close(kernel_segments.row_dots(a, b), (a64 * b64).sum(axis=2), mx.float32)


CASES: dict[str, Case] = {}
for _name, _dtype in DTYPES.items():
    for _lengths in LENGTHS:
        CASES[f"attend_{_lengths}-{_name}"] = partial(attend, _dtype, _lengths)
    CASES[f"attend_heads-{_name}"] = partial(attend, _dtype, "cross", 24, 17, 4, 2)
    CASES[f"attend_64-{_name}"] = partial(attend, _dtype, "small", 64, heads=sized(1, 4), key_heads=1)
    if _name != "f32":
        CASES[f"attend_128-{_name}"] = partial(attend, _dtype, "small", 128, heads=1, key_heads=1)
    CASES[f"not_finite-{_name}"] = partial(not_finite, _dtype)
    CASES[f"loud-{_name}"] = partial(loud, _dtype)
    CASES[f"bad_tables-{_name}"] = partial(bad_tables, _dtype)
    CASES[f"dots-{_name}"] = partial(dots, _dtype)
    CASES[f"nothing-{_name}"] = partial(nothing, _dtype)
