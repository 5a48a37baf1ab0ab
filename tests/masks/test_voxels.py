"""Programs over voxels against dense masked attention, with gradients, symmetries and refusals."""

from __future__ import annotations

import gc

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse.errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from mlxsparse.masks import (
    AttentionDispatcher,
    CanvasLayout,
    Connection,
    ConnectionProgram,
    MaskSpec,
    Rect,
    RegionSpec,
    VoxelLayout,
    voxels,
)
from mlxsparse.testing import oracle
from mlxsparse.testing.strategies import coordinate_sets

pytestmark = pytest.mark.usefixtures("device")


def everything(coords):
    return np.ones(len(coords), bool)


REGIONS = {
    "all": everything,
    "low": Rect(-2, 2, -9, 9, -9, 1),
    "item": ((0, 1), (-9, 9), (-9, 9), (0, 9)),
    "odd": lambda coords: coords[:, 1] % 2 == 1,
}


class Problem:
    """A random program over voxels: what to compile, and the dense mask that it means."""

    def __init__(self, coords, seed, fallback="drop", connections=3):
        rng = np.random.default_rng(seed)
        batch = {} if len(coords) else {"batch_size": 1}
        key = ms.CoordinateManager().insert(mx.array(coords.reshape(-1, 4)), **batch)
        box = REGIONS["low"].ranges
        inside = [((coords[:, a + 1] >= lo) & (coords[:, a + 1] < hi)) for a, (lo, hi) in enumerate(box)]
        members = {
            "all": everything(coords),
            "low": np.logical_and.reduce(inside),
            "item": (coords[:, 0] == 0) & (np.abs(coords[:, 1:3]) < 9).all(axis=1) & (coords[:, 3] >= 0),
            "odd": coords[:, 1] % 2 == 1,
        }
        for a in (1, 2):
            members["item"] &= (coords[:, a] >= -9) & (coords[:, a] < 9)
        members["item"] &= coords[:, 3] < 9
        self.layout = VoxelLayout(key, REGIONS, allow_empty=True)
        self.program, self.allowed = [], np.zeros((len(coords),) * 2, bool)
        for _ in range(connections):
            src, dst = (str(name) for name in rng.choice(list(REGIONS), 2))
            source, target = members[src], members[dst]
            named = {"fallback": "drop"}
            kind = rng.choice(["full", "tile", "grid", "matrix"])
            spec = MaskSpec()
            if kind == "tile":
                tile, shift = rng.integers(1, 5, 3).tolist(), rng.integers(-3, 4, 3).tolist()
                spec = MaskSpec("tile", tile_shape=tuple(tile), shift=tuple(shift))
                named = {"tile": tile, "shift": shift, "fallback": fallback}
            if kind == "grid":
                src, source = "low", members["low"]
                grid = rng.random(REGIONS["low"].shape) < 0.5
                spec = MaskSpec("sparse", mask=grid)
                chosen = np.zeros(len(coords), bool)
                for i in np.flatnonzero(source):
                    chosen[i] = grid[tuple(c - lo for c, (lo, _) in zip(coords[i, 1:], box))]
                named["chosen"] = chosen
            if kind == "matrix":
                named["matrix"] = rng.random((int(source.sum()), int(target.sum()))) < 0.3
                spec = MaskSpec("sparse", mask=named["matrix"])
            self.program.append(Connection(src, dst, spec))
            self.allowed |= oracle.voxel_mask(coords, source, target, **named)


def features(n, seed, heads=2, d=3, dv=4):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in ((n, heads, d), (n, 1, d), (n, 1, dv))]


def dense(q, k, v, allowed):
    """oracle.attention on (N, H, D) arrays."""
    out, lse = oracle.attention(*(a.transpose(1, 0, 2)[None] for a in (q, k, v)), allowed, q.shape[2] ** -0.5)
    return out[0].transpose(1, 0, 2), lse[0].T


def dense_gradients(q, k, v, allowed, ct):
    scale, (key, value) = q.shape[2] ** -0.5, (k[:, 0], v[:, 0])
    grads = [np.zeros_like(a, np.float64) for a in (q, k, v)]
    for h in range(q.shape[1]):
        p, _ = oracle.masked_softmax(scale * q[:, h] @ key.T, allowed)
        dp = ct[:, h] @ value.T
        ds = scale * p * (dp - (p * dp).sum(axis=1, keepdims=True))
        grads[0][:, h] = ds @ key
        grads[1][:, 0] += ds.T @ q[:, h]
        grads[2][:, 0] += p.T @ ct[:, h]
    return grads


@given(
    coordinate_sets(max_sites=24, far=False),
    st.integers(0, 10**6),
    st.sampled_from([None, 1, 3, 8]),
    st.sampled_from(["drop", "full"]),
    st.integers(0, 4),
)
def test_equal_to_dense_with_gradients(coords, seed, block, fallback, connections):
    p = Problem(coords, seed, fallback, connections)
    compiled = p.layout.compile(p.program, block=block, fallback=fallback)
    q, k, v = features(len(coords), seed)
    out, lse = compiled.attend(*map(mx.array, (q, k, v)), return_lse=True)
    wanted, wanted_lse = dense(q, k, v, p.allowed)
    np.testing.assert_allclose(np.array(out), wanted, atol=1e-5)
    np.testing.assert_allclose(np.array(lse), wanted_lse, atol=1e-5)
    alone = ~p.allowed.any(axis=1)
    assert not np.array(out)[alone].any()
    ct = np.random.default_rng(1).standard_normal(out.shape)
    _, got = mx.vjp(compiled.attend, [mx.array(a) for a in (q, k, v)], [mx.array(ct.astype(np.float32))])
    for a, b in zip(got, dense_gradients(q, k, v, p.allowed, ct)):
        np.testing.assert_allclose(np.array(a), b, atol=1e-5)


def cloud(n=400, seed=0, batch=2, span=12):
    rng = np.random.default_rng(seed)
    sites = np.column_stack([rng.integers(0, batch, 2 * n), rng.integers(-span, span, (2 * n, 3))])
    return rng.permutation(np.unique(sites, axis=0))[:n].astype(np.int32)


TILES = [Connection("all", "all", MaskSpec("tile", tile_shape=(4, 5, 6), shift=(1, -2, 0)))]
MIXED = [*TILES, Connection("low", "odd"), Connection("odd", "all", MaskSpec("tile", tile_shape=3))]


def run(coords, program, arrays, regions=REGIONS, **named):
    compiled = VoxelLayout(coords, regions).compile(program, **named)
    return np.array(compiled.attend(*(mx.array(a) for a in arrays)))


@pytest.mark.parametrize("program", [TILES, MIXED])
def test_permutation_of_rows(program):
    coords, arrays = cloud(), features(400, 1)
    order = np.random.default_rng(2).permutation(400)
    moved = run(coords[order], program, [a[order] for a in arrays])
    np.testing.assert_allclose(moved, run(coords, program, arrays)[order], atol=1e-6)


def test_translation_by_whole_windows():
    coords, arrays = cloud(), features(400, 1)
    step = np.array([4, 5, 6]) * (-7, 11, 3)
    moved = coords + np.array([0, *step], np.int32)
    region = {"all": everything, "box": ((-5, 5), (-5, 5), (-5, 5))}
    shifted = {"all": everything, "box": [(-5 + s, 5 + s) for s in step.tolist()]}
    program = [*TILES, Connection("all", "box")]
    wanted = run(coords, program, arrays, region)
    np.testing.assert_allclose(run(moved, program, arrays, shifted), wanted, atol=1e-6)


def test_a_query_of_several_pairs_has_one_softmax():
    """Connections whose keys overlap count a key once; the order of connections does not matter."""
    coords, arrays = cloud(), features(400, 1)
    whole = run(coords, [Connection("all", "all")], arrays)
    np.testing.assert_allclose(run(coords, [*MIXED, Connection("all", "all")], arrays), whole, atol=1e-6)
    np.testing.assert_allclose(run(coords, MIXED[::-1], arrays), run(coords, MIXED, arrays), atol=1e-6)


def test_windows_are_those_of_window_attention():
    coords, (q, k, v) = cloud(), (mx.array(a) for a in features(400, 1))
    x = ms.SparseTensor(mx.array(coords), mx.zeros((400, 1)))
    found = VoxelLayout(x, REGIONS).compile(TILES).attend(q, k, v)
    wanted = ms.ops.window_attention(x, q, k, v, (4, 5, 6), shift=(1, -2, 0))
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=1e-5)


def test_tiles_become_segments_or_blocks_with_the_same_result():
    coords, arrays = cloud(2000, span=20), features(2000, 1)
    layout = VoxelLayout(coords, REGIONS)
    small = layout.compile(Connection("all", "all", MaskSpec("tile", tile_shape=3)))
    large = layout.compile(Connection("all", "all", MaskSpec("tile", tile_shape=20)))
    assert small.segments is not None and len(small.rows) == 2000
    assert large.segments is None and len(small.rows) <= len(large.rows) < 2 * 2000
    tile = oracle.voxel_mask(coords[:300], everything(coords[:300]), everything(coords[:300]), (3, 3, 3))
    first = run(
        coords[:300], Connection("all", "all", MaskSpec("tile", tile_shape=3)), [a[:300] for a in arrays]
    )
    np.testing.assert_allclose(first, dense(*(a[:300] for a in arrays), tile)[0], atol=1e-5)


@pytest.mark.parametrize("block", [None, 16, 64])
def test_rows_are_a_permutation(block):
    for program in (TILES, MIXED, [Connection("low", "odd")]):
        layout = VoxelLayout(cloud(), REGIONS)
        compiled = layout.compile(program, block=block)
        blocks, rows = compiled
        assert blocks is compiled.layout and blocks.shape == (len(rows),) * 2
        real = rows[rows >= 0]
        assert len(np.unique(real)) == len(real)
        taking_part = {
            r for c in program for name in (c.src, c.dst) for r in layout.region_rows(name).tolist()
        }
        assert set(real.tolist()) <= taking_part


def test_padding_and_rows_without_part_are_not_read():
    coords = cloud()
    x = ms.SparseTensor(mx.array(coords), mx.zeros((400, 1))).with_capacity(450)
    compiled = VoxelLayout(x, REGIONS).compile(Connection("low", "low"))
    low = VoxelLayout(x, REGIONS).region_rows("low")
    arrays = [np.full((450, *a.shape[1:]), np.nan, np.float32) for a in features(1, 0)]
    for a, b in zip(arrays, features(400, 1)):
        a[low] = b[low]
    out = np.array(compiled.attend(*map(mx.array, arrays)))
    wanted = run(coords, Connection("low", "low"), features(400, 1))
    assert out.shape[0] == 450 and not out[400:].any()
    np.testing.assert_allclose(out[:400], wanted, atol=1e-6)
    grads = mx.grad(lambda *a: compiled.attend(*a).sum(), [0, 1, 2])(*map(mx.array, arrays))
    assert all(np.isfinite(np.array(g)).all() for g in grads)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision(dtype):
    coords, arrays = cloud(), features(400, 1)
    compiled = VoxelLayout(coords, REGIONS).compile(MIXED)
    out = compiled.attend(*(mx.array(a).astype(dtype) for a in arrays))
    assert out.dtype == dtype
    np.testing.assert_allclose(np.array(out.astype(mx.float32)), run(coords, MIXED, arrays), atol=3e-2)


def test_empty_overlap():
    coords, arrays = cloud(), features(400, 1)
    regions = {**REGIONS, "low": lambda c: c[:, 1] < -6, "high": lambda c: c[:, 1] >= 6}
    program = [Connection("low", "high", MaskSpec("tile", tile_shape=6))]
    compiled = VoxelLayout(coords, regions).compile(program)
    assert compiled.layout.nnz == 0
    assert np.array_equal(run(coords, program, arrays, regions), np.zeros((400, 2, 4), np.float32))
    for g in mx.grad(lambda *a: compiled.attend(*a).sum(), [0, 1, 2])(*map(mx.array, arrays)):
        assert not np.array(g).any()
    whole = run(coords, Connection("low", "high"), arrays, regions)
    np.testing.assert_allclose(run(coords, program, arrays, regions, fallback="full"), whole, atol=1e-6)
    with pytest.raises(MLXSparseError, match="meet no voxel"):
        VoxelLayout(coords, regions).compile(program, fallback="error")


def test_no_voxels():
    key = ms.CoordinateManager().insert(mx.zeros((0, 4), mx.int32), batch_size=2)
    compiled = VoxelLayout(key, {"all": everything}, allow_empty=True).compile(Connection("all", "all"))
    assert compiled.attend(*map(mx.array, features(0, 0))).shape == (0, 2, 4)


def test_regions_at_a_stride_and_replacement():
    coords = cloud()
    x = ms.SparseTensor(mx.array(coords), mx.zeros((400, 1)), stride=(2, 2, 2))
    layout = VoxelLayout(
        x, {"own": ((-4, 4), (0, 8), (0, 8)), "base": RegionSpec(((-8, 8), (0, 16), (0, 16)), 1)}
    )
    assert np.array_equal(layout.region_rows("own"), layout.region_rows("base"))
    coarse = VoxelLayout(x, {"coarse": RegionSpec(((-1, 1), (0, 2), (0, 2)), stride=8)})
    assert np.array_equal(coarse.region_rows("coarse"), layout.region_rows("own"))
    late = Connection("low", "odd", ConnectionProgram(write_mode="replace"))
    arrays, low = features(400, 1), VoxelLayout(coords, REGIONS).region_rows("low")
    out, rest = run(coords, [*TILES, late], arrays), np.setdiff1d(np.arange(400), low)
    np.testing.assert_allclose(out[low], run(coords, Connection("low", "odd"), arrays)[low], atol=1e-6)
    np.testing.assert_allclose(out[rest], run(coords, TILES, arrays)[rest], atol=1e-6)


@pytest.mark.parametrize("mask", ["tile", "matrix", "box"])
def test_replacement_by_a_query_without_keys_over_voxels_and_over_a_canvas(mask):
    """Three sites in a line; the later connection has no key for the first. Voxels lose, a canvas keeps."""
    late = {
        "tile": MaskSpec("tile", tile_shape=(1, 1, 1)),
        "matrix": MaskSpec("sparse", mask=np.array([[False], [True]])),
        "box": MaskSpec("sparse", mask=np.array([False, True]).reshape(2, 1, 1)),
    }[mask]
    regions = {"source": (0, 2, 0, 1, 0, 1), "one": (1, 2, 0, 1, 0, 1), "last": (2, 3, 0, 1, 0, 1)}
    program = [
        Connection("source", "last"),
        Connection("source", "one", ConnectionProgram(write_mode="replace", mask_spec=late)),
    ]
    values = mx.array([1.0, 2.0, 4.0])
    sites = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0]], np.int32)
    q = values.reshape(3, 1, 1)
    voxels_out = VoxelLayout(sites, regions).compile(program).attend(q, q, q).reshape(3).tolist()
    assert voxels_out == [4 if mask == "box" else 0, 2, 0]
    canvas = CanvasLayout(
        1, spatial_shape=(3, 1, 1), regions={name: (0, 1, *box) for name, box in regions.items()}
    )
    if mask == "box":
        late = MaskSpec("sparse", mask=late.mask[None])
        program[1] = Connection("source", "one", ConnectionProgram(write_mode="replace", mask_spec=late))
    q = values.reshape(1, 1, 3, 1)
    assert AttentionDispatcher(canvas, program)(q, q, q).reshape(3).tolist() == [4, 2, 0]


def test_cache_lives_with_the_key():
    x = ms.SparseTensor(mx.array(cloud()), mx.zeros((400, 1)))
    program = [Connection("all", "all", MaskSpec("tile", tile_shape=4))]
    first = VoxelLayout(x, REGIONS).compile(program)
    assert VoxelLayout(x.replace(x.feats + 1), REGIONS).compile(tuple(program)) is first
    assert VoxelLayout(x, REGIONS).compile(program, block=8) is not first
    assert VoxelLayout(x, {**REGIONS, "odd": lambda c: c[:, 2] > 0}).compile(program) is not first
    assert VoxelLayout(cloud(), REGIONS).compile(program) is not first  # equal rows, another key
    seen = []

    def loss(weight, x):  # MLX takes x apart and puts it together: a fresh key over the same coordinates
        seen.append(VoxelLayout(x, REGIONS).compile(program))
        q = x.feats[:, None] + weight
        return seen[0].attend(q, q, q).sum()

    mx.eval(mx.grad(loss)(mx.array(1.0), x))
    assert seen == [first]
    del loss
    before = len(voxels._compiled)
    del x
    gc.collect()
    assert len(voxels._compiled) == before - 1


def test_a_region_keeps_its_own_copy_of_a_bool_array():
    member = np.ones(400, bool)
    layout = VoxelLayout(cloud(), {"all": member})
    member[:] = False
    assert np.array_equal(layout.region_rows("all"), np.arange(400))


def test_memory_is_linear():
    """Positions and stored pairs per voxel do not grow with the number of voxels."""
    per_voxel = []
    for n in (2_000, 20_000):
        side = int((n * 2) ** (1 / 3))
        compiled = VoxelLayout(cloud(n, batch=1, span=side), REGIONS).compile(TILES)
        per_voxel.append((len(compiled.rows) / n, compiled.layout.nnz * compiled.layout.block[0] ** 2 / n))
    assert per_voxel[1][0] < 1.5 * per_voxel[0][0] and per_voxel[1][1] < 1.5 * per_voxel[0][1]


X = ms.SparseTensor(np.array([[0, 0, 0, 0], [0, 1, 2, 3], [1, 0, 0, 0]], np.int32), mx.zeros((3, 1)))
BOX = ((0, 2), (0, 3), (0, 4))
L = VoxelLayout(X, {"all": everything, "box": BOX})
SHAPED = ms.SparseTensor(X.coords, X.feats, spatial_shape=(4, 4, 4))


def compile_mask(mask, src="box"):
    return L.compile(Connection(src, "all", MaskSpec("sparse", mask=mask)))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: VoxelLayout(X, {"a": ((5, 6), (0, 1), (0, 1))}), MLXSparseError, "'a' has no voxels"),
        (lambda: VoxelLayout(X, {"a": (0, 1, 0, 1)}), ShapeError, "'a' has 2 axes"),
        (lambda: VoxelLayout(X, {"a": (0, 1, 0, 1, 0)}), TypeError, "pairs of bounds"),
        (lambda: VoxelLayout(X, {"a": (1, 0, 0, 1, 0, 1)}), ShapeError, "lo 1 > hi 0"),
        (lambda: VoxelLayout(X, {"a": (0, 3, *(0, 1) * 3)}), CoordinateRangeError, "'a' covers the items"),
        (lambda: VoxelLayout(SHAPED, {"a": ((0, 5), (0, 4), (0, 4))}), CoordinateRangeError, "spatial_shape"),
        (lambda: VoxelLayout(X, {"a": np.ones(2, bool)}), ShapeError, "'a' has shape"),
        (lambda: VoxelLayout(X, {"a": lambda c: mx.array(c[:, 0])}), DTypeError, "'a' is int32"),
        (lambda: VoxelLayout(np.zeros((3, 3), np.int32), {}), ShapeError, "coords"),
        (lambda: VoxelLayout(X, [(0, 1) * 3]), DTypeError, "regions is a list"),
        (lambda: L.region_rows("b"), MLXSparseError, "no region 'b'"),
        (lambda: L.compile(Connection("all", "b")), MLXSparseError, "no region 'b'"),
        (lambda: L.compile("all"), DTypeError, "wanted Connections"),
        (lambda: L.compile([], fallback="zero"), MLXSparseError, "fallback"),
        (lambda: L.compile([], block=0), ShapeError, "block"),
        (lambda: L.compile(Connection("all", "all", MaskSpec("tile", tile_h=2))), ShapeError, "tile_shape="),
        (lambda: compile_mask(None), MLXSparseError, "'box' -> 'all' has no mask"),
        (lambda: compile_mask(np.ones((2, 3, 5), bool)), ShapeError, "'box' -> 'all'"),
        (lambda: compile_mask(np.ones((1, 2, 3, 4), bool)), ShapeError, "'box' -> 'all'"),
        (lambda: compile_mask(np.ones((3, 2), bool)), ShapeError, "pair of voxels"),
        (lambda: compile_mask(np.ones((2, 3, 4), bool), "all"), ShapeError, "no box"),
        (lambda: L.compile([]).attend(*[mx.zeros((2, 1, 4))] * 3), ShapeError, "compiled for 3"),
        (lambda: L.compile([]).attend(*[mx.zeros((3, 4))] * 3), ShapeError, "rows, heads"),
        (lambda: L.compile([]).attend(*[mx.zeros((3, 1, 4), mx.int32)] * 3), DTypeError, "q is"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_program_that_is_too_large_is_refused():
    """Ten thousand tiles of one voxel that all see each other: 10^8 pairs of classes."""
    sites = np.stack(np.unravel_index(np.arange(10_000), (25, 20, 20)), axis=1)
    layout = VoxelLayout(np.insert(sites, 0, 0, axis=1).astype(np.int32), {"all": everything})
    alone = Connection("all", "all", MaskSpec("tile", tile_shape=1))
    assert layout.compile(alone).layout.shape == (10_000, 10_000)
    with pytest.raises(MLXSparseError, match="larger tiles"):
        layout.compile([alone, Connection("all", "all")])
