"""Cases of the block-sparse kernels: the three products, softmax and attention, every dtype."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_block_tiles, kernel_blocks
from mlxsparse.engine import block_kernel, block_lists
from mlxsparse.engine.block_index import BlockIndex
from mlxsparse.testing import oracle

from .common import DTYPES, LARGE, Case, close, equal, integers, repeats, rng, shifted, sized, values


def index_of(mask: np.ndarray, block: tuple[int, int], shape: tuple[int, int]) -> BlockIndex:
    heads, rows, cols = (a.astype(np.int32) for a in np.nonzero(mask))
    return BlockIndex(mask.shape, block, shape, heads, rows, cols)


def mask_of(seed: int, heads: int, rows: int, cols: int, density: float) -> np.ndarray:
    """Random blocks, with an empty row, column and (of several) head."""
    mask = rng(seed).random((heads, rows, cols)) < density
    mask[:, rows // 2] &= rows == 1
    mask[:, :, cols // 3] &= cols == 1
    if heads > 2:
        mask[1] = False
    return mask


def product(
    dtype: mx.Dtype,
    mode: str,
    ta: bool,
    tb: bool,
    block: tuple[int, int],
    k: int,
    grid: tuple[int, int, int] = (2, 3, 4),
    batch: int = 1,
    cut: tuple[int, int] = (0, 0),
    again: bool = False,
) -> None:
    """One product against dense float64; what the sparse operand holds outside the matrix is NaN."""
    heads = grid[0]
    m, n = grid[1] * block[0] - cut[0], grid[2] * block[1] - cut[1]
    mask = mask_of(1, *grid, 0.6)
    index = index_of(mask, block, (m, n))
    inner = {"sdd": k, "dsd": m if ta else n, "dds": n if tb else m}[mode]
    if mode == "sdd":
        sides = [(k, m) if ta else (m, k), (n, k) if tb else (k, n)]
    elif mode == "dsd":
        sides = [(m, n), (k, inner) if tb else (inner, k)]
    else:
        sides = [(inner, k) if ta else (k, inner), (m, n)]
    (a, a64), (b, b64) = (values(i, (batch, heads, *side), dtype) for i, side in enumerate(sides))
    operands = [a, b]
    sparse = {"sdd": None, "dsd": 0, "dds": 1}[mode]
    if sparse is not None:
        dense = (a64, b64)[sparse]
        inside = oracle.block_pack(np.ones_like(dense), mask, block) > 0
        packed = np.where(inside, oracle.block_pack(dense, mask, block), np.nan)
        operands[sparse] = mx.array(packed.astype(np.float32)).astype(dtype)
    call = getattr(block_kernel.KERNEL, mode)
    y = call(*operands, index, ta, tb, False)
    wanted = oracle.block_matmul(mode, a64, b64, mask, block, (m, n), ta, tb)
    close(y, oracle.block_pack(wanted, mask, block) if mode == "sdd" else wanted, dtype)
    if again:
        repeats(lambda: [call(*operands, index, ta, tb, False)])


def tiled(
    dtype: mx.Dtype,
    mode: str,
    ta: bool,
    tb: bool,
    shape: tuple[int, int] = (2, 2),
    parts: tuple[int, int] = (1, 1),
    heads: int = 2,
    width: int | None = None,
    plain: bool = False,
    side: int = 16,
    steps: tuple[int, int] | None = None,
    group: tuple[int, ...] | None = None,
    slots: int = 0,
    cores: int = 5,
) -> None:
    """One product in tiles against dense float64. shape: simdgroups of a tile; parts: pieces of a block.

    plain: from arrays that are not aligned to 16 bytes. group: a GroupTile, of sdd a SampleTile.
    """
    code = {"sdd": kernel_blocks.SDD, "dsd": kernel_blocks.DSD, "dds": kernel_blocks.DDS}[mode]
    tile: Any = kernel_block_tiles.BlockTile(*shape, side, *(steps or (64, 2)), SLOTS=slots)
    if group:
        grouped = kernel_block_tiles.SampleTile if mode == "sdd" else kernel_block_tiles.GroupTile
        tile, side = grouped(*group), 64
    block = (side * parts[0], side * parts[1])
    if mode != "sdd" and not group:  # the reduced axis of a block is a multiple of a step
        along = ta if mode == "dsd" else not tb
        block = (max(block[0], tile.BK), block[1]) if along else (block[0], max(block[1], tile.BK))
    grid = (heads, sized(3, 9), sized(4, 10))
    mask = mask_of(3, *grid, 0.6)
    m, n = grid[1] * block[0], grid[2] * block[1]
    index = index_of(mask, block, (m, n))
    k = width or sized(72, 328)
    inner = {"sdd": k, "dsd": m if ta else n, "dds": n if tb else m}[mode]
    if mode == "sdd":
        sides = [(k, m) if ta else (m, k), (n, k) if tb else (k, n)]
    elif mode == "dsd":
        sides = [(m, n), (k, inner) if tb else (inner, k)]
    else:
        sides = [(inner, k) if ta else (k, inner), (m, n)]
    operands, exact = [], []
    for i, size in enumerate(sides):
        x, x64 = values(i, (2, heads, *size), dtype)
        if i == {"sdd": None, "dsd": 0, "dds": 1}[mode]:
            x = mx.array(oracle.block_pack(x64, mask, block).astype(np.float32)).astype(dtype)
        if plain:
            x = shifted(x)
        operands.append(x)
        exact.append(x64)
    by_row = {"sdd": True, "dsd": not ta, "dds": tb}[mode]
    lines = index.by_row if by_row else index.by_col
    sizes = kernel_block_tiles.Sizes(
        index.nnz, lines.size, lines.other_size, lines.extent, lines.other_extent
    )
    lists = block_lists.tile_lists(index, lines, code, tile)
    with mock.patch.object(kernel_block_tiles, "CORES", cores):  # several tiles a threadgroup
        run = kernel_block_tiles.block_tiles(code, *operands, lists, sizes, ta, tb, heads, tile)
    y = run(*operands)
    wanted = oracle.block_matmul(mode, *exact, mask, block, (m, n), ta, tb)
    close(y, oracle.block_pack(wanted, mask, block) if mode == "sdd" else wanted, dtype)


def empty(dtype: mx.Dtype) -> None:
    """No blocks, no rows, no reduced elements."""
    for mask, k in (
        (np.zeros((1, 2, 2), bool), 3),
        (np.zeros((1, 0, 2), bool), 3),
        (np.ones((1, 2, 2), bool), 0),
    ):
        index = index_of(mask, (4, 4), (mask.shape[1] * 4, 8))
        m = index.shape[0]
        s = mx.ones((1, index.nnz, 4, 4), dtype)
        k_sdd = block_kernel.KERNEL.sdd(
            mx.ones((1, 1, m, k), dtype), mx.ones((1, 1, k, 8), dtype), index, False, False, False
        )
        equal(k_sdd.astype(mx.float32), np.zeros((1, index.nnz, 4, 4)))
        if index.nnz == 0:
            y = block_kernel.KERNEL.dsd(s, mx.ones((1, 1, 8, k), dtype), index, False, False, False)
            equal(y.astype(mx.float32), np.zeros((1, 1, m, k)))
            y = block_kernel.KERNEL.dds(mx.ones((1, 1, k, m), dtype), s, index, False, False, False)
            equal(y.astype(mx.float32), np.zeros((1, 1, k, 8)))


def out_of_range(dtype: mx.Dtype) -> None:
    """Tables that name blocks, places and lines which do not exist: those count as none."""
    bad = [2**31 - 1, -(2**31), -1, 3]
    tile = kernel_blocks.tile_of(kernel_blocks.DSD, 16, dtype, False)
    s, s64 = values(1, (1, 3, 16, 16), dtype)
    b, b64 = values(2, (1, 1, 48, 16), dtype)
    for wrong in bad:
        for which in ("block", "other", "ptr"):
            block, other, ptr = [0, 1, 2], [0, 1, 2], [0, 2, 3]
            if which == "ptr":
                ptr[2] = wrong if wrong > 3 else 3
            else:
                (block if which == "block" else other)[1] = wrong
            lines = kernel_blocks.Lines(integers(ptr), integers(block), integers(other), 2, 3, 16, 16, 32, 48)
            y = kernel_blocks.block_gemm(kernel_blocks.DSD, s, b, lines, False, False, 1, tile)
            wanted = np.zeros((1, 1, 32, 16))
            for entry in range(3):
                if which == "ptr" or entry != 1:
                    row = 0 if entry < 2 else 1
                    wanted[0, 0, row * 16 : row * 16 + 16] += (
                        s64[0, entry] @ b64[0, 0, entry * 16 : entry * 16 + 16]
                    )
            close(y, wanted, dtype, which)
    a, a64 = values(3, (1, 1, 32, 8), dtype)
    b, b64 = values(4, (1, 1, 8, 48), dtype)
    for wrong in bad:
        group = [[0, wrong, -1, -1, -1, -1, -1, -1], [2, -1, -1, -1, -1, -1, -1, -1]]
        other = [[0, 1, -1, -1, -1, -1, -1, -1], [wrong, -1, -1, -1, -1, -1, -1, -1]]
        ptr = integers([0, min(wrong, 2)])  # the second group's line
        lines = kernel_blocks.Lines(ptr, integers(group), integers(other), 2, 3, 16, 16, 32, 48)
        y = kernel_blocks.block_gemm(kernel_blocks.SDD, a, b, lines, False, False, 1, tile, 16)
        close(y[:, :1], (a64[0, 0, :16] @ b64[0, 0, :, :16])[None, None], dtype, "sdd")


def tiles_out_of_range(dtype: mx.Dtype) -> None:
    """Lists of tiles that name what does not exist: it counts as none."""
    tile = kernel_block_tiles.BlockTile(2, 2, 16, 64, 2)
    sizes = kernel_block_tiles.Sizes(2, 16, 64, 32, 128)
    s, s64 = values(1, (1, 2, 16, 64), dtype)
    b, b64 = values(2, (1, 1, 128, 32), dtype)
    first, second = (s64[0, i] @ b64[0, 0, i * 64 : i * 64 + 64] for i in (0, 1))
    zero = np.zeros_like(first)
    for wrong in (2**31 - 1, -(2**31), 2):
        for which in ("block", "other", "ptr"):
            block, other, ptr = [0, -1, -1, 1], [0, 1], [0, 2]
            if which == "ptr":
                ptr[1] = max(wrong, 2)
            else:
                (block if which == "block" else other)[3 if which == "block" else 1] = wrong
            lists = kernel_block_tiles.TileLists(*map(integers, ([0, 1], ptr, block, other)), 1, np.ones(1))
            y = kernel_block_tiles.block_tiles(
                kernel_blocks.DSD, s, b, lists, sizes, False, False, 1, tile
            )(s, b)
            wanted = np.concatenate([first, second if which == "ptr" else zero])
            close(y, wanted[None, None], dtype, which)
    sizes = kernel_block_tiles.Sizes(2, 16, 16, 32, 32)
    a, a64 = values(3, (1, 1, 32, 64), dtype)
    b, b64 = values(4, (1, 1, 64, 32), dtype)
    for wrong in (2**31 - 1, -(2**31), 9):
        for at in range(3):
            line, cell, place = [0, 1, 1, -1, -1], [0, 1, -1, -1], [512, 513, 0, 0]
            (line, cell, place)[at][1] = wrong
            lists = kernel_block_tiles.TileLists(*map(integers, (line, [2], cell, place)), 1, np.ones(1))
            y = kernel_block_tiles.block_tiles(
                kernel_blocks.SDD, a, b, lists, sizes, False, False, 1, tile
            )(a, b)
            close(y[:, :1], (a64[0, 0, :16] @ b64[0, 0, :, 16:])[None, None], dtype, "sdd")


def wrong_lists(dtype: mx.Dtype, plain: bool, side: int = 16) -> None:
    """An entry of the lists of tiles names what is just past the last: results of others stay.

    side: 16 for the tiles of block_tiles.metal, 64 for block_groups.metal and block_samples.metal.
    """
    for mode, block, heads in (("dsd", (side, 64), 2), ("sdd", (side, side), 1)):
        tile: Any = kernel_block_tiles.BlockTile(2, 2, 16, 64, 2)
        if side == 64 and mode == "dsd":
            tile = kernel_block_tiles.GroupTile(*((2, 4, 3) if LARGE else (2, 1, 2, 0, 16)))
        elif side == 64:
            tile = kernel_block_tiles.SampleTile(*((2, 5, 4) if LARGE else (1, 3, 3, 1, 16)))
        m, n, mask = 2 * block[0], 3 * block[1], np.ones((heads, 2, 3), bool)
        index = index_of(mask, block, (m, n))
        (a, a64), (b, b64) = (
            values(i, (1, heads, *side), dtype)
            for i, side in enumerate(((m, n), (n, 32)) if mode == "dsd" else ((m, 64), (64, n)))
        )
        wanted = oracle.block_matmul(mode, a64, b64, mask, block, (m, n), False, False)
        if mode == "dsd":
            a = mx.array(oracle.block_pack(a64, mask, block).astype(np.float32)).astype(dtype)
        else:
            wanted = oracle.block_pack(wanted, mask, block)
        code = kernel_blocks.DSD if mode == "dsd" else kernel_blocks.SDD
        lines = index.by_row
        lists = block_lists.tile_lists(index, lines, code, tile)
        sizes = kernel_block_tiles.Sizes(
            index.nnz, lines.size, lines.other_size, lines.extent, lines.other_extent
        )
        a, b = (shifted(a), shifted(b)) if plain else (a, b)
        if mode == "dsd":  # rows of both heads that stay
            tail: tuple[int, ...] = (32,)
            first, last = np.r_[: 2 * side], np.r_[2 * side : 4 * side]
            most = np.r_[:side, last]
            wrong = [("line", 0, 4, last), ("line", 1, 4, most), ("line", 1, 2, most)]
            wrong += [("block", 1, index.nnz, most), ("other", 5, 3, first)]
        else:  # blocks of other tiles than the last, or the first
            tail, slots = block, lists.line.size // lists.groups
            last = np.array(lists.line)[-slots:]
            na = int(lists.ptr[-1]) if side < 64 else int((last % 2 == 0).sum())  # pieces of op(A)
            past = (2, 3) if side < 64 else (4, 7)  # just after the last of op(A), of op(B)
            held = np.array(lists.block).reshape(lists.groups, -1)
            piece, place = slots * (lists.groups - 1), held[:-1].size
            cells, other = (a[a >= 0] for a in (held[:-1], held[1:]))
            wrong: list[Any] = [("line", piece + i, past[i == na], cells) for i in (0, na - 1, na)]
            wrong += [("block", place + 1, index.nnz, cells), ("other", 0, 256 * 4, other)]
            pairs = (0, slots), (0, na - 1), (na, na)  # pieces of op(A) and op(B)
            wrong += [("other", place + 1, i + 256 * j, cells) for i, j in pairs]
            if side == 64:  # a tile of no pieces
                wrong += [("line", slice(piece, None), -1, cells)]
        for name, at, value, kept in wrong:
            entries = np.array(getattr(lists, name))
            entries.reshape(-1)[at] = value
            changed = lists._replace(**{name: integers(entries)})
            y = kernel_block_tiles.block_tiles(code, a, b, changed, sizes, False, False, heads, tile)(a, b)
            got, want = y.reshape(-1, *tail)[integers(kept)], wanted.reshape(-1, *tail)[kept]
            close(got, want, dtype, f"{name} {value}")


CASES: dict[str, Case] = {}
for _name, _dtype in DTYPES.items():
    for _mode in ("sdd", "dsd", "dds"):
        for _ta in (False, True):
            for _tb in (False, True):
                CASES[f"{_mode}{'_ta' * _ta}{'_tb' * _tb}-{_name}"] = partial(
                    product,
                    _dtype,
                    _mode,
                    _ta,
                    _tb,
                    (sized(16, 64), sized(24, 64)),
                    sized(40, 300),
                    again=LARGE,
                )
    for _mode in ("sdd", "dsd", "dds"):
        CASES[f"{_mode}_ragged-{_name}"] = partial(
            product, _dtype, _mode, False, True, (20, 17), 37, batch=2, cut=(3, 5), grid=(3, 2, 3)
        )
        if _name != "f32" or LARGE:
            CASES[f"{_mode}_64-{_name}"] = partial(
                product, _dtype, _mode, _mode == "dds", False, (64, 64), sized(24, 700), grid=(1, 2, 3)
            )
    CASES[f"empty-{_name}"] = partial(empty, _dtype)
    CASES[f"out_of_range-{_name}"] = partial(out_of_range, _dtype)
CASES["sdd_wide_blocks-f16"] = partial(
    product, mx.float16, "sdd", False, False, (16, 200), 24, grid=(1, 2, 2)
)
CASES["dsd_wide_blocks-f16"] = partial(product, mx.float16, "dsd", True, False, (16, 200), 24, grid=(1, 2, 2))

for _name, _dtype in DTYPES.items():
    if _name == "f32":
        continue
    for _mode in ("sdd", "dsd", "dds"):
        for _ta in (False, True):
            for _tb in (False, True):
                CASES[f"{_mode}_tiles{'_ta' * _ta}{'_tb' * _tb}-{_name}"] = partial(
                    tiled, _dtype, _mode, _ta, _tb, heads=sized(1, 2)
                )
        CASES[f"{_mode}_tiles_plain-{_name}"] = partial(
            tiled, _dtype, _mode, False, False, plain=True, heads=1
        )
    CASES[f"tiles_out_of_range-{_name}"] = partial(tiles_out_of_range, _dtype)
    for _plain in (False, True):
        CASES[f"tiles_wrong_lists{'_plain' * _plain}-{_name}"] = partial(wrong_lists, _dtype, _plain)
        CASES[f"wrong_lists_groups_samples{'_plain' * _plain}-{_name}"] = partial(
            wrong_lists, _dtype, _plain, 64
        )
for _mode, _shape in (("sdd", (1, 4)), ("dsd", (1, 4)), ("dsd", (4, 1)), ("dds", (4, 1)), ("dds", (1, 4))):
    CASES[f"{_mode}_tiles_{_shape[0]}x{_shape[1]}-f16"] = partial(
        tiled, mx.float16, _mode, False, False, _shape, (2, 2)
    )
for _mode in ("dsd", "dds"):  # two steps along a block
    CASES[f"{_mode}_tiles_two_steps-f16"] = partial(
        tiled, mx.float16, _mode, False, False, (1, 2), (4, 4), steps=(32, 2)
    )
for _name, _dtype in (("f16", mx.float16), ("bf16", mx.bfloat16)):
    for _mode in ("dsd", "dds"):
        for _ta in (False, True):
            for _tb in (False, True):
                _tile = (2, 4, 4, int(_ta)) if LARGE else (2, 1, 2, int(_ta), 16)
                CASES[f"{_mode}_groups{'_ta' * _ta}{'_tb' * _tb}-{_name}"] = partial(
                    tiled, _dtype, _mode, _ta, _tb, heads=1, group=_tile
                )
        CASES[f"{_mode}_groups_plain-{_name}"] = partial(
            tiled, _dtype, _mode, False, False, plain=True, heads=1,
            group=(1, 2, sized(2, 3), 0, sized(16, 64)),
        )
        CASES[f"{_mode}_groups_wide-{_name}"] = partial(
            tiled, _dtype, _mode, False, False, parts=(2, 2), heads=sized(1, 3),
            group=(1, 2, sized(2, 3), 0, sized(16, 64)),
        )
        CASES[f"{_mode}_groups_one_round-{_name}"] = partial(
            tiled, _dtype, _mode, False, False, group=(2, 4, 3) if LARGE else (2, 1, 2, 0, 16), cores=99
        )
    for _ta in (False, True):
        for _tb in (False, True):
            CASES[f"sdd_samples{'_ta' * _ta}{'_tb' * _tb}-{_name}"] = partial(
                tiled, _dtype, "sdd", _ta, _tb, heads=2,
                group=(4, 8, 3, 1 + int(_ta)) if LARGE else (1, 3, 3, 1 + int(_ta), 16),
            )
    CASES[f"sdd_samples_plain-{_name}"] = partial(
        tiled, _dtype, "sdd", False, False, plain=True, heads=1,
        group=(2, 4, 6) if LARGE else (1, 3, 3, 1, 16),
    )
    CASES[f"sdd_samples_wide-{_name}"] = partial(
        tiled, _dtype, "sdd", False, False, parts=(2, 2), heads=sized(1, 3),
        group=(2, 4, 6) if LARGE else (1, 3, 3, 1, 16),
    )
CASES["sdd_samples_deep-f16"] = partial(  # whole passes of copies
    tiled, mx.float16, "sdd", False, False, heads=1, group=(2, 5, 4, 2) if LARGE else (1, 3, 2, 2, 32)
)
CASES["sdd_samples_slots-f16"] = partial(  # more pieces than a tile of two rows has
    tiled, mx.float16, "sdd", False, False, heads=1, group=(2, 5, 4) if LARGE else (1, 4, 3, 1, 16)
)
CASES["sdd_tiles_slots-f16"] = partial(tiled, mx.float16, "sdd", False, False, (2, 2), (1, 2), slots=4)
