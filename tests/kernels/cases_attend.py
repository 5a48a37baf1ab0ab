"""Cases of block-sparse softmax and attention kernels, every dtype, against dense formulas in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_blocks
from mlxsparse.backend.kernel_blocks import Addends, Lines
from mlxsparse.engine import block_kernel
from mlxsparse.testing import oracle

from .cases_blocks import index_of, mask_of
from .common import (
    DTYPES,
    LARGE,
    TOLERANCE,
    Case,
    close,
    equal,
    integers,
    repeats,
    rng,
    shifted,
    sized,
    values,
)

NAN = float("nan")


def single(a: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(a, np.float32))


def addends_of(
    kinds: tuple[str, ...], seed: int, batch: int, heads: int, key_heads: int, shape: tuple[int, int]
) -> tuple[Addends, np.ndarray, np.ndarray]:
    """Addends of these kinds; their sum (Z, H, M, N), and which pairs they allow."""
    r, (m, n) = rng(seed), shape
    added, allowed = np.zeros((batch, heads, m, n)), np.ones((batch, heads, m, n), bool)
    found = Addends()
    if "bias" in kinds or "wide_bias" in kinds:
        size = (batch, heads, m, n) if "bias" in kinds else (1, 1, m, n)
        bias = r.standard_normal(size).astype(np.float32)
        bias[r.random(size) < 0.1] = -np.inf
        found = found._replace(bias=single(bias))
        allowed = allowed & (bias > -np.inf)
        added = added + np.where(np.isfinite(bias), bias, 0)
    if "keys" in kinds:
        keep = r.random((batch, key_heads, n)) < 0.7
        found = found._replace(keys=single(np.where(keep, 0, -np.inf)))
        allowed = allowed & np.repeat(keep, heads // key_heads, axis=1)[:, :, None]
    if "pairs" in kinds:
        pairs = r.standard_normal((m, n)).astype(np.float32)
        found, added = found._replace(pairs=single(pairs)), added + pairs
    if "ids" in kinds:
        q_ids, k_ids = r.integers(0, 2, m), r.integers(0, 2, n)
        found = found._replace(q_ids=integers(q_ids), k_ids=integers(k_ids))
        allowed = allowed & (q_ids[:, None] == k_ids[None])
    if "causal" in kinds:
        found = found._replace(causal=n - m)
        allowed = allowed & (np.arange(n)[None] <= np.arange(m)[:, None] + n - m)
    return found, added, allowed


def softmax(dtype: mx.Dtype, kinds: tuple[str, ...], block: tuple[int, int] = (5, 7), heads: int = 3) -> None:
    """Values, log-sum-exp and gradient; what x and the cotangent hold outside the matrix is NaN."""
    mask = mask_of(2, heads, 3, sized(4, 20), 0.6)
    shape = (3 * block[0] - 2, mask.shape[2] * block[1] - 3)
    index = index_of(mask, block, shape)
    x, x64 = values(1, (2, heads, *shape), dtype)
    inside = oracle.block_pack(np.ones_like(x64), mask, block) > 0

    def packed(dense: np.ndarray) -> mx.array:
        return single(np.where(inside, oracle.block_pack(dense, mask, block), NAN)).astype(dtype)

    addends, added, allowed = addends_of(kinds, 3, 2, heads, heads, shape)
    if "packed" in kinds or "shared" in kinds:
        bias = rng(4).standard_normal((1 if "shared" in kinds else 2, heads, *shape))
        addends, added = (
            addends._replace(bias=single(oracle.block_pack(bias, mask, block)), packed=True),
            added + bias,
        )
    keep = oracle.element_mask(mask, block, shape)[None] & allowed
    wanted, wanted_lse = oracle.masked_softmax(x64 * 0.5 + added, keep)
    y, lse = block_kernel._softmax(packed(x64), single(np.array([0.5])), addends, index)
    close(y, oracle.block_pack(wanted, mask, block), dtype, "y")
    assert np.allclose(np.array(lse), wanted_lse, atol=1e-4), "lse"
    ct, ct64 = values(5, x64.shape, dtype)
    lse_ct = rng(6).standard_normal(wanted_lse.shape)
    p64 = oracle.block_unpack(np.array(y.astype(mx.float32)).astype(np.float64), mask, block, shape)
    dt64 = p64 * (ct64 - (p64 * ct64).sum(axis=-1, keepdims=True) + lse_ct[..., None])
    dt = block_kernel.score_gradient(packed(ct64), y, single(lse_ct), index)
    close(dt, oracle.block_pack(dt64, mask, block), mx.float32, "dt")
    repeats(lambda: [*block_kernel._softmax(packed(x64), single(np.array([0.5])), addends, index)], 2)


def attend(
    dtype: mx.Dtype,
    kinds: tuple[str, ...] = (),
    block: tuple[int, int] = (16, 16),
    d: int = 16,
    dv: int | None = None,
    heads: int = 2,
    key_heads: int = 1,
    shared: bool = False,
    rows: int = 3,
    cut: tuple[int, int] = (3, 5),
    flash: Any = None,
    late: bool = False,
    plain: bool = False,
) -> None:
    """Attention in one kernel; masked keys hold NaN.

    flash: a FlashTile or GroupFlash. late: no first blocks, and no first and last row. plain: arrays that
    are not aligned to 16 bytes.
    """
    mask = mask_of(7, 1 if shared else heads, rows, 12 if late else sized(3, 12), 0.7)
    mask[:, :, -1] |= mask[:, :, 0]  # ragged blocks
    if late:
        mask[:, :, :2] = mask[:, [0, -1]] = False
    shape = (rows * block[0] - cut[0], mask.shape[2] * block[1] - cut[1])
    index = index_of(mask, block, shape)
    (m, n), dv = shape, dv or d
    q, q64 = values(1, (2, heads, m, d), dtype)
    if late:  # rows whose scores are far above those of others in their tile
        far = np.where(np.arange(m) % 16 < 8, 1, 64)[:, None]
        q, q64 = q * mx.array(far).astype(dtype), q64 * far
    k, k64 = values(2, (2, key_heads, n, d), dtype)
    v, v64 = values(3, (2, key_heads, n, dv), dtype)
    addends, added, allowed = addends_of(kinds, 4, 2, heads, key_heads, shape)
    keys = None
    if "padding" in kinds:
        keep = rng(5).random((2, n)) < 0.6
        keys, allowed = single(np.where(keep, 0, -np.inf)), allowed & keep[:, None, None]
        hole = mx.array(keep)[:, None, :, None]
        k, v = (mx.where(hole, a, mx.array(NAN, dtype)) for a in (k, v))
    keep = oracle.element_mask(mask, block, shape)[None] & allowed
    wanted, wanted_lse = oracle.attention(q64, k64, v64, keep, 0.3, added)
    if plain:
        q, k, v = shifted(q), shifted(k), shifted(v)
    tile: Any = kernel_blocks.attention_tile(max(d, dv), block[0], dtype)
    if flash:
        tile = flash
    assert tile is not None
    lines = block_kernel._lines(index, index.by_row)
    order = index.row_order if flash else None

    def run() -> list[mx.array]:
        marks = None if flash and not tile.marks else kernel_blocks.block_marks(k, v, keys)
        made = kernel_blocks.block_attend(q, k, v, 0.3, marks, addends, lines, index.grid[0], tile, order)
        return made(q, k, v)

    y, lse = run()
    close(y, wanted, dtype, "y")
    assert np.allclose(np.array(lse), wanted_lse, atol=10 * TOLERANCE[dtype]), "lse"
    repeats(run, 2)


def not_finite(dtype: mx.Dtype, tile: Any) -> None:
    """Queries that see a key or value which is not finite are NaN, no other."""
    block, heads, rows = tile.bm, 2, 3
    mask = mask_of(7, heads, rows, 4, 0.6)
    shape = (rows * block - 3, 4 * block - 5)
    index = index_of(mask, (block, block), shape)
    (m, n), d = shape, tile.dim - 8
    q, q64 = values(1, (1, heads, m, d), dtype)
    k, k64 = values(2, (1, 1, n, d), dtype)
    v, v64 = values(3, (1, 1, n, d), dtype)
    whole = oracle.element_mask(mask, (block, block), shape)[None]
    wanted, wanted_lse = oracle.attention(q64, k64, v64, whole, 0.3)
    lines = block_kernel._lines(index, index.by_row)
    for of, bad in ((k, np.inf), (k, -np.inf), (k, NAN), (v, np.inf), (v, -np.inf), (v, NAN)):
        at = (np.arange(n) == block + 1)[:, None] & (np.arange(d) == d - 1)
        spoiled = mx.where(mx.array(at), mx.array(bad, dtype), of)
        arrays = (spoiled, v) if of is k else (k, spoiled)
        y, lse = kernel_blocks.block_attend(
            q, *arrays, 0.3, None, Addends(), lines, heads, tile, index.row_order
        )(q, *arrays)
        hit = whole[..., block + 1]
        got, got_lse = np.array(y.astype(mx.float32)), np.array(lse)
        assert np.isnan(got[hit]).all() and np.isnan(got_lse[hit]).all(), f"{bad} is not seen"
        assert np.isfinite(got[~hit]).all(), f"{bad} is seen by others"
        assert np.abs(got - wanted)[~hit].max() < TOLERANCE[dtype] * np.abs(wanted).max()
        assert np.allclose(got_lse[~hit], wanted_lse[~hit], atol=10 * TOLERANCE[dtype])


def bad_tables(dtype: mx.Dtype) -> None:
    """Lists that name columns and entries which do not exist: those count as none."""
    q, q64 = values(1, (1, 1, 16, 8), dtype)
    k, k64 = values(2, (1, 1, 32, 8), dtype)
    x, x64 = values(3, (1, 2, 16, 16), dtype)
    keep = np.repeat([True, False], 16)[None]
    for wrong in (2**31 - 1, -(2**31), -1, 3):
        ptr, other = integers([0, max(wrong, 2)]), integers([0, wrong])
        lines = Lines(ptr, integers([0, 1]), other, 1, 2, 16, 16, 16, 32)
        tile = kernel_blocks.attention_tile(8, 16, dtype)
        assert tile is not None
        marks = kernel_blocks.block_marks(k, k, None)
        y, _ = kernel_blocks.block_attend(q, k, k, 1.0, marks, Addends(), lines, 1, tile)(q, k, k)
        close(y, oracle.attention(q64, k64, k64, keep, 1.0)[0], dtype, "attend")
        y, _ = kernel_blocks.block_softmax(x, single(np.ones(1)), Addends(), lines, 1)
        wanted = np.stack([oracle.masked_softmax(x64[0, 0], np.ones((16, 16), bool))[0], np.zeros((16, 16))])
        close(y, wanted[None], dtype, "softmax")
        dt = kernel_blocks.block_softmax_grad(x, x, None, lines, 1)
        product = x64[0, 0] * (x64[0, 0] - (x64[0, 0] ** 2).sum(axis=1, keepdims=True))
        close(dt, np.stack([product, np.zeros((16, 16))])[None], mx.float32, "gradient")


def marks(dtype: mx.Dtype) -> None:
    """Each key that is masked, not finite in its key, or in its value."""
    k = np.zeros((2, 2, 9, 40), np.float32)
    v = np.zeros((2, 2, 9, 3), np.float32)
    k[0, 0, 1, 39], k[1, 1, 2, 0], v[0, 1, 3, 2], v[1, 0, 4, 0] = NAN, np.inf, -np.inf, NAN
    keys = np.zeros((2, 9), np.float32)
    keys[0, 3] = keys[1, 8] = -np.inf
    wanted = np.where(np.isfinite(k).all(axis=3) & np.isfinite(v).all(axis=3), 0, NAN)
    for given, want in ((None, wanted), (keys, np.where(keys[:, None] == -np.inf, -np.inf, wanted))):
        got = kernel_blocks.block_marks(
            single(k).astype(dtype), single(v).astype(dtype), None if given is None else single(given)
        )
        assert np.array_equal(np.array(got), want, equal_nan=True)
    got = kernel_blocks.block_marks(mx.zeros((1, 1, 0, 4), dtype), mx.zeros((1, 1, 0, 4), dtype), None)
    equal(got, np.zeros((1, 1, 0)))


ALL = ("bias", "padding", "ids", "causal")
CASES: dict[str, Case] = {}
for _name, _dtype in DTYPES.items():
    for _kinds in ((), ("bias", "keys"), ("packed",), ("shared",), ("wide_bias", "pairs", "ids", "causal")):
        CASES[f"softmax_{'_'.join(_kinds) or 'plain'}-{_name}"] = partial(softmax, _dtype, _kinds)
    CASES[f"attend-{_name}"] = partial(attend, _dtype)
    CASES[f"attend_all-{_name}"] = partial(attend, _dtype, ALL, (20, 12), 24, 17, 4, 2, shared=True)
    CASES[f"attend_wide_bias-{_name}"] = partial(
        attend, _dtype, ("wide_bias",), (8, 40), 10, heads=3, key_heads=3
    )
    # More than 8 entries, so that the one behind them is outside of the array, as is the one before.
    CASES[f"attend_late-{_name}"] = partial(attend, _dtype, ("causal",), rows=5, late=True)
    CASES[f"attend_unaligned-{_name}"] = partial(attend, _dtype, ("padding",), (20, 12), 24, 16, plain=True)
    CASES[f"attend_64-{_name}"] = partial(attend, _dtype, (), (64, 64), 64, rows=2)
    CASES[f"bad_tables-{_name}"] = partial(bad_tables, _dtype)
    CASES[f"marks-{_name}"] = partial(marks, _dtype)
    if _name != "f32":
        CASES[f"attend_128-{_name}"] = partial(attend, _dtype, ("padding",), (32, 64), 128, rows=1)
        for _what, _kinds, _hold, _stages, _terms, _marks in (
            ("", ("padding",), 1, 2, 0, 1), ("_all", ALL, 0, 3, 1, 1), ("_plain", (), 1, 3, 0, 0)
        ):  # fmt: skip
            _tile: Any = kernel_blocks.FlashTile(32, 16, 16, 1, _stages, _hold, _terms, _marks)
            CASES[f"flash{_what}-{_name}"] = partial(
                attend, _dtype, _kinds, (16, 32), 24, 32, 4, 2, _terms == 0, flash=_tile
            )
        CASES[f"flash_unaligned-{_name}"] = partial(
            attend, _dtype, (), (16, 16), 24, plain=True,
            flash=kernel_blocks.FlashTile(32, 16, 16, 1, 2, 1, 0, 0),
        )  # fmt: skip
        CASES[f"flash_groups_unaligned-{_name}"] = partial(
            attend, _dtype, (), (64, 64), 56, 64, rows=2, cut=(3, 5), plain=True,
            flash=kernel_blocks.GroupFlash(sized(64, 128), 1, sized(16, 64), 2, 0, 0),
        )  # fmt: skip
        CASES[f"flash_late-{_name}"] = partial(
            attend, _dtype, ("wide_bias", "causal"), (16, 16), 24, rows=5,
            flash=kernel_blocks.FlashTile(32, 16, 16, 1, 3, 1, 1, 0), late=True,
        )  # fmt: skip
        CASES[f"flash_two_simdgroups-{_name}"] = partial(
            attend, _dtype, ("padding",), (32, 32), 24, 32, rows=1,
            flash=kernel_blocks.FlashTile(32, 32, 16, 2, 2, 1, 0, 1),
        )  # fmt: skip
        CASES[f"flash_not_finite-{_name}"] = partial(
            not_finite, _dtype, kernel_blocks.FlashTile(32, 16, 16, 1, 2, 0, 0, 0)
        )
        for _what, _kinds, _terms, _marks in (
            ("", (), 0, 0), ("_all", ALL, 1, 1), ("_keys", ("padding",), 0, 1)
        ):  # fmt: skip
            _tile = kernel_blocks.GroupFlash(sized(64, 128), 1, sized(16, 64), 2, _terms, _marks)
            CASES[f"flash_groups{_what}-{_name}"] = partial(
                attend, _dtype, _kinds, (64, sized(16, 64)), 56, 64, 2, 1, _terms == 0, flash=_tile
            )
        CASES[f"flash_groups_late-{_name}"] = partial(
            attend, _dtype, ("wide_bias", "causal"), (64, sized(16, 64)), 104, rows=4, late=True,
            flash=kernel_blocks.GroupFlash(128, 1, sized(16, 64), 2, 1, 0),
        )  # fmt: skip
        CASES[f"flash_groups_not_finite-{_name}"] = partial(
            not_finite, _dtype, kernel_blocks.GroupFlash(sized(64, 128), 1, sized(16, 64), 2, 0, 0)
        )
        if LARGE:
            for _groups in (1, 2):
                for _terms in (0, 1):
                    CASES[f"flash_groups_{_groups}{'_all' * _terms}-{_name}"] = partial(
                        attend, _dtype, ALL if _terms else (), (64 * _groups, 64), 128 - 8 * _terms, heads=4,
                        flash=kernel_blocks.GroupFlash(128, _groups, 64, 2, _terms, _terms),
                    )  # fmt: skip
            for _dim, _size in ((64, 64), (128, 64), (64, 128), (128, 128)):
                for _terms, _marks in ((0, 0), (1, 1)):
                    _shape = kernel_blocks.flash_shape(_dim, _terms, _marks)
                    CASES[f"flash_{_dim}_{_size}{'_all' * _terms}-{_name}"] = partial(
                        attend, _dtype, ALL if _terms else (), (_size, _size), _dim - 8 * _terms, heads=4,
                        cut=(0, 0) if _dim > 64 else (3, 5), flash=_shape,
                    )  # fmt: skip
                CASES[f"flash_not_finite_{_dim}-{_name}"] = partial(
                    not_finite, _dtype, kernel_blocks.flash_shape(_dim, 0, 0)
                )
            CASES[f"attend_128_rows-{_name}"] = partial(attend, _dtype, (), (128, 128), 64, heads=4)
