"""Canvases: regions, index pairs, and the dispatcher against dense masked attention."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse.blocksparse import BlockLayout
from mlxsparse.errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from mlxsparse.masks import (
    AttentionDispatcher,
    CanvasLayout,
    Connection,
    ConnectionProgram,
    MaskSpec,
    RegionSpec,
    VoxelLayout,
    mask_to_index_pairs,
)
from mlxsparse.masks.relation import relation_of_pairs
from mlxsparse.testing import oracle

pytestmark = pytest.mark.usefixtures("device")
LAYOUT = CanvasLayout(
    T=3,
    H=4,
    W=5,
    d_model=8,
    regions={
        "all": (0, 3, 0, 4, 0, 5),
        "left": ((0, 3), (0, 4), (0, 2)),
        "late": RegionSpec((2, 3, 1, 4, 1, 5)),
        "one": (0, 1, 3, 4, 4, 5),
    },
    t_current=2,
)
VOXELS = VoxelLayout(np.zeros((1, 4), np.int32), {"all": np.ones(1, bool)})


def test_regions():
    assert LAYOUT.num_positions == 60 and (LAYOUT.H, LAYOUT.W) == (4, 5)
    for name, region in LAYOUT.regions.items():
        box = region.bounds.ranges
        indices = LAYOUT.region_indices(name)
        assert indices == oracle.positions_of(LAYOUT.shape, box)
        assert LAYOUT.region_numel(name) == len(indices) == np.prod(LAYOUT.region_size(name))
        assert sum((LAYOUT.region_indices_at_t(name, t) for t in range(-1, 5)), []) == indices
        assert LAYOUT.region_timesteps(name) == list(range(*box[0]))
    assert LAYOUT.output_mask() == list(range(40, 60))


@given(st.data())
def test_pairs_of_tiles(data):
    space = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    shape = (data.draw(st.integers(1, 2)), *space)

    def box():
        return [
            sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in shape
        ]

    source, target = box(), box()
    tile = tuple(data.draw(st.integers(1, 3)) for _ in space)
    layout = CanvasLayout(shape[0], spatial_shape=space, regions={"a": source, "b": target})
    spec = MaskSpec("tile", tile_shape=tile)
    wanted = oracle.tile_pairs(shape, source, target, tile)
    assert mask_to_index_pairs(spec, layout, "a", "b") == wanted
    if len(tile) == 2:
        again = MaskSpec("tile", tile_h=tile[0], tile_w=tile[1])
        assert mask_to_index_pairs(again, layout, "a", "b") == wanted
    dropped = mask_to_index_pairs(spec, layout, "a", "b", fallback="drop")
    assert all(pair in wanted for pair in dropped) and len(dropped) <= len(wanted)


def test_pairs_full_and_sparse():
    everything = (LAYOUT.region_indices("left"), LAYOUT.region_indices("late"))
    assert mask_to_index_pairs(MaskSpec(), LAYOUT, "left", "late") == [everything]
    assert mask_to_index_pairs(MaskSpec("sparse"), LAYOUT, "left", "late") == [everything]
    rng = np.random.default_rng(0)
    grid = rng.random((3, 4, 2)) < 0.5
    pairs = mask_to_index_pairs(MaskSpec("sparse", mask=grid), LAYOUT, "left", "late")
    chosen = [i for i, keep in zip(everything[0], grid.reshape(-1)) if keep]
    assert sorted(i for q, _ in pairs for i in q) == chosen and all(k == everything[1] for _, k in pairs)
    matrix = rng.random((24, 12)) < 0.1
    pairs = mask_to_index_pairs(MaskSpec("sparse", mask=matrix), LAYOUT, "left", "late")
    wanted = np.zeros((60, 60), bool)
    wanted[np.ix_(*everything)] = matrix
    assert np.array_equal(oracle.allowed_of_pairs(pairs, 60), wanted)


@pytest.mark.parametrize("block", [1, 7, (4, 16)])
@pytest.mark.parametrize(
    "spec",
    [
        MaskSpec(),
        MaskSpec("sparse"),
        MaskSpec("tile", tile_h=2),
        MaskSpec("sparse", mask=np.indices((3, 4, 2)).sum(axis=0) % 2 == 0),
        MaskSpec("sparse", mask=np.eye(24, 12, dtype=bool)),
        MaskSpec("sparse", mask=np.zeros((24, 12), bool)),
    ],
)
def test_blocks_of_a_mask_hold_its_pairs(spec, block):
    layout = BlockLayout.from_maskspec(spec, LAYOUT, "left", "late", block)
    allowed = oracle.allowed_of_pairs(mask_to_index_pairs(spec, LAYOUT, "left", "late"), 60)
    wanted = np.zeros(layout.grid[1:], bool)
    rows, cols = np.nonzero(allowed)
    wanted[rows // layout.block[0], cols // layout.block[1]] = True
    assert layout == BlockLayout(wanted, block, shape=(60, 60))


def test_blocks_of_a_mask_know_the_fallback():
    spec = MaskSpec("tile", tile_h=1)
    full, drop = (
        BlockLayout.from_maskspec(spec, LAYOUT, "left", "one", 4, fallback=fallback)
        for fallback in ("full", "drop")
    )
    assert full.nnz > drop.nnz == 0


def random_program(rng):
    names = list(LAYOUT.regions)
    for _ in range(rng.integers(1, 5)):
        src, dst = rng.choice(names, 2)
        sizes = LAYOUT.region_numel(src), LAYOUT.region_numel(dst)
        yield Connection(
            str(src),
            str(dst),
            [
                MaskSpec(),
                MaskSpec("tile", tile_h=int(rng.integers(1, 4)), tile_w=2),
                MaskSpec("sparse", mask=rng.random(LAYOUT.region_size(src)) < 0.5),
                MaskSpec("sparse", mask=rng.random(sizes) < 0.2),
            ][rng.integers(4)],
        )


@pytest.mark.parametrize("fallback", ["drop", "full"])
@pytest.mark.parametrize("block", [None, 1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_dispatcher_is_dense_masked_attention(seed, block, fallback):
    rng = np.random.default_rng(seed)
    program = list(random_program(rng))
    dispatcher = AttentionDispatcher(LAYOUT, program, block=block, fallback=fallback)
    allowed = oracle.allowed_of_pairs([pair for pairs in dispatcher.pairs for pair in pairs], 60)
    q, k, v = (
        rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 60, 3), (2, 2, 60, 3), (2, 2, 60, 5))
    )
    wanted, wanted_lse = oracle.attention(q, k, v, allowed, 0.7)
    out, lse = dispatcher(*map(mx.array, (q, k, v)), scale=0.7, return_lse=True)
    np.testing.assert_allclose(np.array(out), wanted, atol=1e-5)
    np.testing.assert_allclose(np.array(lse), wanted_lse, atol=1e-5)
    assert not np.array(out)[:, :, ~allowed.any(axis=1)].any()


@pytest.mark.parametrize("kind", ["triangle", "random", "band"])
def test_rows_that_all_differ_are_met_without_padding(kind):
    rng, i = np.random.default_rng(0), np.arange(60)
    mask = {
        "triangle": np.tri(60, dtype=bool),
        "random": rng.random((60, 60)) < 0.1,
        "band": np.abs(i[:, None] - i) < 4,
    }[kind]
    dispatcher = AttentionDispatcher(LAYOUT, {("all", "all"): MaskSpec("sparse", mask=mask)})
    layout = dispatcher.compiled.layout
    assert layout.nnz * layout.block[0] * layout.block[1] == mask.sum()
    q, k, v = (rng.standard_normal((1, 2, 60, 4)).astype(np.float32) for _ in range(3))
    wanted, _ = oracle.attention(q, k, v, mask, 0.5)
    np.testing.assert_allclose(np.array(dispatcher(*map(mx.array, (q, k, v)))), wanted, atol=1e-5)


def test_overlapping_key_sets_are_one_relation_of_distinct_links():
    mask = np.tri(50, dtype=bool)[:, ::-1] | (np.random.default_rng(0).random((50, 50)) < 0.1)
    mask[7], mask[:, 9], mask[20] = False, False, mask[21]
    pairs = [([i], np.flatnonzero(row).tolist()) for i, row in enumerate(mask) if row.any()]
    query, key, links = relation_of_pairs(pairs, 50)
    assert (query[7], key[9], query[20]) == (-1, -1, query[21])
    assert len(np.unique(links, axis=0)) == len(links)
    met = np.zeros((query.max() + 1, key.max() + 1), bool)
    met[tuple(links.T)] = True
    np.testing.assert_array_equal(met[query][:, key] & (query >= 0)[:, None] & (key >= 0), mask)


def test_write_modes_and_triggers():
    q = mx.array(np.random.default_rng(1).standard_normal((1, 1, 60, 4)).astype(np.float32))
    first, second = Connection("all", "one"), ("left", "late")

    def out(program, **named):
        return np.array(AttentionDispatcher(LAYOUT, program, **named)(q, q, q))

    late = Connection(*second, ConnectionProgram(trigger="seen", write_mode="replace"))
    assert np.array_equal(out([first, late]), out([first]))
    left = LAYOUT.region_indices("left")
    rest = [i for i in range(60) if i not in left]
    found = out([first, late], fired={"seen"})
    np.testing.assert_allclose(found[:, :, rest], out([first])[:, :, rest], atol=1e-6)
    np.testing.assert_allclose(found[:, :, left], out(Connection(*second))[:, :, left], atol=1e-6)
    assert np.array_equal(out({("all", "one"): MaskSpec()}), out([first]))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: CanvasLayout(2, 2, 2, regions={"a": (0, 1, 0, 1)}), ShapeError, "'a' has 2 axes"),
        (
            lambda: CanvasLayout(2, 2, 2, regions={"a": (0, 3, 0, 1, 0, 1)}),
            CoordinateRangeError,
            "'a' covers",
        ),
        (
            lambda: CanvasLayout(2, 2, 2, regions={"a": (-1, 1, 0, 1, 0, 1)}),
            CoordinateRangeError,
            "'a' covers",
        ),
        (lambda: CanvasLayout(2, 2, 2, regions={"a": (0, 1, 1, 1, 0, 1)}), ShapeError, "'a' is empty"),
        (lambda: CanvasLayout(2, 2, 2, regions={"a": (0, 1, 1, 0, 0, 1)}), ShapeError, "lo 1 > hi 0"),
        (lambda: CanvasLayout(2, 2, 2, regions={"a": (0, 1, 0, 1, 0)}), TypeError, "pairs of bounds"),
        (lambda: CanvasLayout(2, 2, 2, spatial_shape=(2, 2)), MLXSparseError, "one of the two"),
        (lambda: LAYOUT.region_indices("b"), MLXSparseError, "no region 'b'"),
        (
            lambda: mask_to_index_pairs(MaskSpec("tile", tile_shape=2), LAYOUT, "all", "one"),
            ShapeError,
            "tiles of",
        ),
        (
            lambda: mask_to_index_pairs(MaskSpec("sparse", mask=np.ones((2, 2), bool)), LAYOUT, "all", "one"),
            ShapeError,
            "mask of 'all' -> 'one'",
        ),
        (
            lambda: mask_to_index_pairs(MaskSpec(), LAYOUT, "all", "one", fallback="no"),
            MLXSparseError,
            "fallback",
        ),
        (
            lambda: mask_to_index_pairs(MaskSpec("tile"), LAYOUT, "all", "one", fallback="error"),
            MLXSparseError,
            "meets nothing",
        ),
        (lambda: mask_to_index_pairs("full", LAYOUT, "all", "one"), DTypeError, "wanted a MaskSpec"),
        (lambda: BlockLayout.from_maskspec(MaskSpec(), LAYOUT, "all", "b", 2), MLXSparseError, "no region"),
        (lambda: BlockLayout.from_maskspec(MaskSpec(), LAYOUT, "all", "one", 0), ShapeError, "block"),
        (
            lambda: BlockLayout.from_maskspec(MaskSpec(), VOXELS, "all", "all", 2),
            DTypeError,
            "layout is a VoxelLayout, wanted a CanvasLayout; over voxels",
        ),
        (lambda: AttentionDispatcher(LAYOUT, [Connection("all", "b")]), MLXSparseError, "no region 'b'"),
        (lambda: AttentionDispatcher(LAYOUT, 3), DTypeError, "wanted Connections"),
        (lambda: AttentionDispatcher(LAYOUT, [], fired="seen"), DTypeError, "fired must be a collection"),
        (lambda: AttentionDispatcher(LAYOUT, ["all"]), DTypeError, "wanted Connections"),
        (lambda: AttentionDispatcher(VOXELS, []), DTypeError, "wanted a CanvasLayout; over voxels"),
        (lambda: AttentionDispatcher(LAYOUT, {"on": MaskSpec()}), DTypeError, "'on', wanted \\(src, dst\\)"),
        (lambda: CanvasLayout(2, 2, 2, regions=[(0, 1) * 3]), DTypeError, "regions is a list"),
        (lambda: AttentionDispatcher(LAYOUT, [])(*[mx.ones((1, 1, 61, 4))] * 3), ShapeError, "q has shape"),
        (lambda: Connection("a", "b", "full"), DTypeError, "wanted a ConnectionProgram"),
        (lambda: ConnectionProgram("observe"), MLXSparseError, "operator"),
        (lambda: ConnectionProgram(write_mode="gate"), MLXSparseError, "write_mode"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()
