"""BlockSpec, BlockCoupling, ScopeSpec, ScopeCoupling against NumPy; polarity; errors before writes."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxsparse.blocks import BlockCoupling, BlockSpec, ScopeCoupling, ScopeSpec, View, keep_largest
from mlxsparse.errors import CouplingError, DTypeError, MLXSparseError, ShapeError, StaleViewError


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def blocks_of(a, block):
    """Every block of an array, row-major: a list of arrays."""
    grid = [n // b for n, b in zip(a.shape, block)]
    return [a[tuple(slice(i * b, (i + 1) * b) for i, b in zip(index, block))] for index in np.ndindex(*grid)]


@st.composite
def blocked(draw):
    grid = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    block = draw(st.lists(st.integers(1, 3), min_size=len(grid), max_size=len(grid)))
    return tuple(g * b for g, b in zip(grid, block)), tuple(block), tuple(grid)


@settings(deadline=None, max_examples=60)
@given(blocked(), st.sampled_from([1, 2, 3, np.inf]))
def test_blocks_norms_and_masks(case, p):
    shape, block, grid = case
    a = values(*shape)
    spec = BlockSpec(View(mx.array(a)), block)
    each = blocks_of(a, block)
    assert spec.grid_shape == grid and spec.num_blocks == len(each) and spec.ndim == len(shape)
    assert spec.block_numel == spec.numel_per_block() == each[0].size
    merged = np.array(spec.block_view(merge=True)).reshape(len(each), -1)
    np.testing.assert_array_equal(merged, [b.reshape(-1) for b in each])
    np.testing.assert_array_equal(np.array(spec.block_view()).reshape(len(each), *block), each)
    assert spec.block_view(reorder=False).shape == tuple(n for pair in zip(grid, block) for n in pair)
    norms = [np.linalg.norm(b.reshape(-1).astype(np.float64), p) for b in each]
    np.testing.assert_allclose(np.array(spec.norms(p=float(p))).reshape(-1), norms, rtol=1e-5)
    np.testing.assert_array_equal(np.array(spec.min()).reshape(-1), [b.min() for b in each])
    np.testing.assert_array_equal(np.array(spec.max()).reshape(-1), [b.max() for b in each])
    unblocked = View.unblock(spec.block_view(merge=True), shape, block)
    np.testing.assert_array_equal(np.array(unblocked), a)
    np.testing.assert_array_equal(
        np.array(View.unblock(spec.block_view(reorder=False), shape, block, reorder=False)), a
    )
    mask = np.random.default_rng(1).random(grid) < 0.5
    wide = np.kron(mask, np.ones(block, bool))
    np.testing.assert_array_equal(np.array(spec.get_masks(mx.array(mask))[spec]), wide)
    fake = spec.broadcast_block_to_element(mx.array(mask), fake=True)
    assert fake.shape == tuple(n for g in grid for n in (g, 1))
    spec.prune_blocks(mx.array(mask))
    np.testing.assert_array_equal(np.array(spec.data), np.where(wide, 0, a))
    assert spec.nnz() == np.count_nonzero(~wide) and spec.nnz_blocks() == np.count_nonzero(~mask)
    spec.set_data(mx.array(a))
    spec.keep_blocks(mx.array(mask))
    np.testing.assert_array_equal(np.array(spec.data), np.where(wide, a, 0))
    spec.set_data(1)
    spec.apply_multiplier(mx.array(mask.astype(np.float32)) * 3)
    np.testing.assert_array_equal(np.array(spec.data), np.where(wide, 3, 0))


def test_shapes_and_names():
    view = View(mx.ones((4, 6)))
    assert BlockSpec(view).block_shape == (1, 1) and BlockSpec(view, (-1, 2)).block_shape == (4, 2)
    spec = BlockSpec(view, (1, 6), "rows")
    assert spec.name == "rows" and spec.specs() == (spec,) == spec.blocks() and spec.parameters() == (view,)
    assert (
        spec.param == view.param and spec == BlockSpec(View(view), (1, -1), "rows") and "rows" in repr(spec)
    )
    assert spec.expand_block_tensor(mx.ones(4)).shape == (4, 1)
    for wrong in ((3, 2), (4,), (0, 1), (-2, 1), (1.5, 2), 2):
        with pytest.raises(ShapeError, match="block shape"):
            BlockSpec(view, wrong)
    with pytest.raises(ShapeError):
        spec.expand_block_tensor(mx.ones(5))
    with pytest.raises(ShapeError):
        spec.set_data(mx.ones((5, 6)))
    with pytest.raises(ShapeError):
        spec.norms(mx.ones((3, 3)))
    with pytest.raises(MLXSparseError, match="no entry"):
        spec.norms({})
    with pytest.raises(MLXSparseError, match="fn"):
        spec.reduce()
    with pytest.raises(ShapeError, match="reduce"):
        spec.reduce(fn=lambda b: b)
    for integers in (mx.ones((4, 1), mx.int32), np.ones((4, 1), bool)):
        with pytest.raises(DTypeError, match="bool"):
            spec.apply_mask(integers)


def test_values_may_have_the_view_s_or_the_parameter_s_shape():
    a = values(2, 6)
    view = View(mx.array(a), (6, 2), (1, 6))
    spec = BlockSpec(view, (1, -1))
    np.testing.assert_allclose(np.array(spec.norms(mx.array(a)))[:, 0], np.linalg.norm(a, axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        np.array(spec.norms(mx.array(a.T)))[:, 0], np.linalg.norm(a, axis=0), rtol=1e-6
    )
    assert spec.norms({spec: mx.array(a.T)}).tolist() == spec.norms().tolist()


def test_norms_accumulate_in_float32_and_have_a_gradient_at_zero():
    spec = BlockSpec(View(mx.full((1, 4096), 0.1, mx.float16)), (1, -1))
    np.testing.assert_allclose(spec.norms().item(), 0.1 * 64, rtol=1e-3)
    assert spec.norms(p=1).dtype == mx.float32
    gradient = mx.grad(lambda v: spec.norms(v).sum())(mx.zeros((1, 4096)))
    assert not mx.any(mx.isnan(gradient)).item() and gradient.sum().item() == 0


def test_thresholds():
    a = np.array([[3.0, 4, 0, 1], [0, 0, 0.5, 0.5]], np.float32)
    spec = BlockSpec(View(mx.array(a)), (1, 2))
    spec.hard_threshold(1.0)  # norms 5, 1, 0, 0.71: strict
    assert spec.data.tolist() == [[3, 4, 0, 1], [0, 0, 0, 0]]
    spec.hard_threshold(0.5, mx.array([[0.0, 0, 9, 9], [9, 9, 9, 9]]))
    assert spec.data.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    spec.set_data(mx.array(a))
    spec.soft_threshold(1.0)
    np.testing.assert_allclose(np.array(spec.data), [[2.4, 3.2, 0, 0], [0, 0, 0, 0]], atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 999), st.floats(0.01, 3), st.floats(0.1, 4))
def test_the_conditioned_threshold_minimises_its_objective(seed, t, spread):
    rng = np.random.default_rng(seed)
    x, h = rng.standard_normal((3, 4)), rng.uniform(0.2, 0.2 + spread, (3, 4))
    spec = BlockSpec(View(mx.array(x.astype(np.float32))), (1, -1))
    spec.soft_threshold(t, mx.array(h.astype(np.float32)), max_iter=40)
    z = np.array(spec.data).astype(np.float64)

    def objective(z):
        return (0.5 * h * (z - x) ** 2).sum(axis=1) + t * np.linalg.norm(z, axis=1)

    best = objective(z)
    for scale in (1e-1, 1e-2, 1e-3):
        for _ in range(20):
            assert (best <= objective(z + scale * rng.standard_normal(z.shape)) + 1e-5).all()
    assert (best <= objective(np.zeros_like(z)) + 1e-6).all()
    plain = BlockSpec(View(mx.array(x.astype(np.float32))), (1, -1))
    expected = plain.soft_thresholded(t)[plain.param]
    ones = plain.soft_thresholded(t, mx.ones((3, 4)))[plain.param]
    np.testing.assert_allclose(np.array(ones), np.array(expected), atol=1e-5)


# Couplings ------------------------------------------------------------------------------


def coupled():
    """Columns of one matrix with rows of another and entries of a bias, 4 blocks each."""
    a, b, c = values(3, 8), values(4, 5, seed=1), values(4, seed=2)
    specs = [
        BlockSpec(View(mx.array(a)), (3, 2), "a"),
        BlockSpec(View(mx.array(b)), (1, 5), "b"),
        BlockSpec(View(mx.array(c), (4, 1)), (1, 1), "c"),
    ]
    return a, b, c, BlockCoupling(specs, [(1, 0), (0, 1), ()], "all")


def test_a_coupling_is_one_grid():
    a, b, c, block = coupled()
    assert block.grid_shape == (4, 1) and block.shape == (-1, -1) and block.block_numel == 6 + 5 + 1
    merged = np.array(block.block_view())
    for i in range(4):
        parts = [a[:, 2 * i : 2 * i + 2].reshape(-1), b[i], c[i : i + 1]]
        np.testing.assert_array_equal(merged[i, 0], np.concatenate(parts))
    for spec, back in block.unconcat(block.block_view()).items():
        np.testing.assert_array_equal(np.array(back), np.array(spec.data))
    np.testing.assert_allclose(np.array(block.norms())[:, 0], np.linalg.norm(merged[:, 0], axis=1), rtol=1e-6)
    mask = mx.array([[True], [False], [False], [True]])
    masks = {spec.name: np.array(m) for spec, m in block.get_masks(mask).items()}
    assert masks["a"].shape == (3, 8) and masks["a"][0].tolist() == [True] * 2 + [False] * 4 + [True] * 2
    block.apply_mask(mask)
    x, y, z = (np.array(spec.data) for spec in block.specs())
    assert not x[:, [0, 1, 6, 7]].any() and not y[[0, 3]].any() and not z[[0, 3]].any()
    np.testing.assert_array_equal(x[:, 2:6], a[:, 2:6])
    assert block.nnz_blocks() == 2
    block.set_data(dict.fromkeys(block.specs(), 1))
    assert block.nnz() == 24 + 20 + 4 and set(block.data) == set(block.specs())


def test_pure_twins_of_a_coupling_compile_and_leave_the_slots():
    *_, block = coupled()
    refs = [spec.param for spec in block.specs()]
    before = [np.array(ref.value) for ref in refs]
    mask = mx.array([[True], [False], [True], [False]])

    def step(*arrays):
        new = block.masked(mask, dict(zip(refs, arrays)))
        new = block.multiplied(mx.full((4, 1), 2.0), new)
        new = block.soft_thresholded(0.1, params=new)
        new = block.hard_thresholded(0.2, params=new)
        return [new[ref] for ref in refs]

    out = mx.compile(step)(*(ref.value for ref in refs))
    for ref, old in zip(refs, before):
        np.testing.assert_array_equal(np.array(ref.value), old)
    block.apply_mask(mask)
    block.apply_multiplier(mx.full((4, 1), 2.0))
    block.soft_threshold(0.1)
    block.hard_threshold(0.2)
    for ref, new in zip(refs, out):
        np.testing.assert_allclose(np.array(ref.value), np.array(new), atol=1e-6)
    with pytest.raises(MLXSparseError, match="no value"):
        block.masked(mask, {})


def test_couplings_that_do_not_fit_are_refused():
    p = View(mx.ones((4, 6)))
    rows, columns = BlockSpec(p, (1, -1)), BlockSpec(p, (-1, 1))
    other = BlockSpec(View(mx.ones((4, 2))), (1, -1))
    for specs, orders, text in [
        ([], (), "at least one"),
        ([p], (), "BlockSpecs"),
        ([rows, rows], (), "share"),
        ([rows, BlockSpec(View(p, (4, 1), (6, 1)), (1, -1))], (), "share"),
        ([rows, columns], [(0, 1), (1, 0)], "must agree"),
        ([rows, other], [(0, 0), ()], "permutation"),
        ([rows, other], [(0, 1)], "one for each"),
        ([rows, other], [(0, 1, 2), ()], "permutation"),
        ([rows, other], [(0.9, 1.9), ()], "order must be an integer, got 0.9"),
        ([rows, other], [0, 1], "order must be a sequence"),
    ]:
        with pytest.raises(CouplingError, match=text):
            BlockCoupling(specs, orders)
    halves = [BlockSpec(View(p, (4, 3), (6, 1), offset=o), (1, -1)) for o in (0, 3)]
    whole = BlockCoupling(halves)  # one slot, no common element
    whole.apply_mask(mx.array([[True], [False], [False], [False]]))
    assert p.data.sum().item() == 18
    with pytest.raises(MLXSparseError, match="one array"):
        whole.norms(mx.ones((4, 6)))
    with pytest.raises(MLXSparseError, match="one array"):
        whole.set_data(mx.ones((4, 6)))


def test_nothing_is_written_when_a_part_cannot_be():
    import mlx.nn

    one, two = mlx.nn.Linear(3, 4), mlx.nn.Linear(3, 4)
    block = BlockCoupling([BlockSpec(View((m, "weight")), (1, -1)) for m in (one, two)])
    two.weight = mx.ones((4, 5))
    before = np.array(one.weight)
    with pytest.raises(StaleViewError):
        block.apply_mask(mx.array([[True]] * 4))
    np.testing.assert_array_equal(np.array(one.weight), before)
    block.specs()[1].view.param.module.weight = mx.ones((4, 3))
    with pytest.raises((ShapeError, MLXSparseError)):
        block.set_data({block.specs()[0]: 0, block.specs()[1]: mx.ones((9, 9))})
    np.testing.assert_array_equal(np.array(one.weight), before)


# Scopes ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_exactly_k_are_kept_ties_to_the_lowest_index(data):
    n = data.draw(st.integers(1, 9))
    scores = np.array(
        data.draw(st.lists(st.sampled_from([0, 1, 2, np.nan]), min_size=n, max_size=n)), np.float32
    )
    k = data.draw(st.integers(0, n))
    rank = sorted(range(n), key=lambda i: (-(scores[i] if scores[i] == scores[i] else -np.inf), i))
    expected = np.zeros(n, bool)
    expected[rank[:k]] = True
    assert np.array(keep_largest(mx.array(scores), k)).tolist() == expected.tolist()
    assert np.array(mx.compile(lambda s: keep_largest(s, k))(mx.array(scores))).tolist() == expected.tolist()


def test_two_of_four():
    a = values(3, 8)
    view = View(mx.array(a))
    scope = ScopeSpec(BlockSpec(view, (1, 1)), (1, 4))
    assert scope.grid_shape == (3, 2) and scope.num_scopes == 6 and scope.scope_numel == 4
    keep = np.array(scope.get_masks(2)[scope.specs()[0]]).reshape(3, 2, 4)
    size = np.abs(a).reshape(3, 2, 4)
    assert (keep.sum(axis=-1) == 2).all()
    assert (np.where(keep, size, np.inf).min(axis=-1) >= np.where(keep, 0, size).max(axis=-1)).all()
    twin = scope.hard_thresholded(nnz=2)[view.param]
    scope.hard_threshold(nnz=2)
    np.testing.assert_array_equal(np.array(view.data), np.where(keep.reshape(3, 8), a, 0))
    np.testing.assert_array_equal(np.array(twin), np.array(view.data))
    assert ScopeSpec(view, (1, 4)).block_mask(2).shape == (3, 8)


def test_scopes_by_sparsity_threshold_values_and_nnz_each():
    view = View(mx.ones((4, 4)))
    scope = ScopeSpec(BlockSpec(view, (1, 2), "b"), (2,))
    assert (
        scope.grid_shape == (2, 1) and scope.scope_numel == 4 and scope.name == "b" and scope.shape == (2, 2)
    )
    assert scope.block_mask(sparsity=0.5).tolist() == [[True, True], [False, False]] * 2
    assert scope.block_mask(0).tolist() == [[False, False]] * 4
    assert scope.block_mask(mx.array([[1], [3]])).sum().item() == 4
    assert scope.block_mask(sparsity=0.3).sum().item() == 6  # floor(0.3 * 4) = 1 goes
    assert scope.block_mask(thresholds=1.5).sum().item() == 0
    assert (
        scope.block_mask(thresholds=mx.array([[1.5], [1.0]])).tolist() == [[False] * 2] * 2 + [[True] * 2] * 2
    )
    chosen = values(4, 4)
    keep = np.array(scope.block_mask(1, values=mx.array(chosen)))
    norms = np.linalg.norm(chosen.reshape(4, 2, 2), axis=-1).reshape(2, 4)
    assert keep.reshape(2, 4).argmax(axis=1).tolist() == norms.argmax(axis=1).tolist()
    np.testing.assert_array_equal(
        np.array(scope.scope_to_block(mx.array([[5], [6]]))), [[5, 5]] * 2 + [[6, 6]] * 2
    )
    assert scope.block_to_scope(mx.ones((4, 2))).shape == (2, 1, 2, 2)
    assert scope.block_to_scope(mx.ones((4, 2)), merge=True).shape == (2, 1, 4)
    scope.apply_mask(mx.array([[True], [False]]))
    assert np.array(view.data).sum(axis=1).tolist() == [0, 0, 4, 4]


def test_scope_errors_come_before_writes():
    view = View(mx.ones((4, 4)))
    scope = ScopeSpec(BlockSpec(view, (1, 2)), (2,))
    calls = [
        lambda: scope.hard_threshold(1.0, nnz=2),
        lambda: scope.hard_threshold(nnz=2, sparsity=0.5),
        lambda: scope.hard_threshold(),
        lambda: scope.hard_threshold(nnz=5),
        lambda: scope.hard_threshold(nnz=-1),
        lambda: scope.hard_threshold(sparsity=1.5),
        lambda: scope.hard_threshold(nnz=mx.array([1, 2, 3])),
        lambda: scope.apply_mask(mx.array([[1], [0]])),
        lambda: scope.block_to_scope(mx.ones((2, 2))),
        lambda: scope.scope_to_block(mx.ones((4, 2))),
    ]
    for call in calls:
        with pytest.raises(MLXSparseError):
            call()
    for wrong in ((3,), (2, 2, 2), (0,), (1.5,), 2):
        with pytest.raises(ShapeError):
            ScopeSpec(BlockSpec(view, (1, 2)), wrong)
    with pytest.raises(MLXSparseError, match="SparseBlock"):
        ScopeSpec(mx.ones(3))
    assert view.data.sum().item() == 16


def test_a_scope_over_a_coupling_and_scopes_that_compete():
    *_, block = coupled()
    scope = ScopeSpec(block)
    keep = np.array(scope.block_mask(2))[:, 0]
    norms = np.array(block.norms())[:, 0]
    assert keep.sum() == 2 and norms[keep].min() >= norms[~keep].max()
    assert set(scope.get_masks(2)) == set(block.specs())

    big, small = View(mx.full((4, 2), 3.0)), View(mx.ones((6, 2)))
    both = ScopeCoupling([ScopeSpec(BlockSpec(v, (1, -1))) for v in (big, small)])
    assert both.grid_shape == (1,) and both.scope_numel == 10 and both.num_scopes == 1
    masks = both.get_masks(5)
    assert [int(m.sum().item()) for m in masks.values()] == [8, 2]
    swapped = {s: s.data for s in both.specs()}
    swapped[both.specs()[0]] = mx.zeros((4, 2))
    assert [int(m.sum().item()) for m in both.get_masks(5, values=swapped).values()] == [0, 10]
    both.hard_threshold(nnz=5)
    assert big.data.sum().item() == 24 and small.data.sum().item() == 2
    rows = ScopeCoupling([ScopeSpec(BlockSpec(View(mx.array(values(4, 6, seed=s)))), (1,)) for s in (0, 1)])
    assert rows.grid_shape == (4, 1) and rows.scope_numel == 12
    total = sum(np.array(m).sum(axis=1) for m in rows.get_masks(3).values())
    assert total.tolist() == [3] * 4
    with pytest.raises(CouplingError):
        ScopeCoupling([])
    with pytest.raises(CouplingError):
        ScopeCoupling([ScopeSpec(BlockSpec(View(mx.ones((n, 6)))), (1,)) for n in (4, 5)])
    with pytest.raises(MLXSparseError, match="one array"):
        both.get_masks(1, values=mx.ones((4, 2)))


@pytest.mark.parametrize(
    "nnz", [-1, 7, 2.7, True, np.int64(100), np.int64(-1), np.float32(2), mx.array(-3), mx.array(100),
            mx.array(2.0), np.array([1, 1, 7, 1]), mx.array([1, -1, 1, 1])]
)  # fmt: skip
def test_counts_of_any_type_are_checked(nnz):
    scope = ScopeSpec(BlockSpec(View(mx.array(values(4, 6)))), (1, -1))
    shaped = nnz if getattr(nnz, "ndim", 0) == 0 else mx.array(nnz)[:, None]
    for call in (scope.block_mask, scope.get_masks, lambda n: scope.hard_threshold(nnz=n)):
        with pytest.raises(MLXSparseError, match="nnz"):
            call(shaped)
    with pytest.raises(MLXSparseError, match="nnz"):
        keep_largest(mx.array(values(4, 6)), nnz)


def test_counts_of_any_type_are_taken():
    scope = ScopeSpec(BlockSpec(View(mx.array(values(4, 6)))), (1, -1))
    for nnz in (2, np.int64(2), mx.array(2), np.full((4, 1), 2), mx.full((4, 1), 2, mx.int32)):
        assert np.array(scope.block_mask(nnz)).sum(axis=1).tolist() == [2] * 4
    keep = mx.compile(lambda x, n: keep_largest(x, n))(mx.array(values(4, 6)), mx.array(2))
    assert np.array(keep).sum(axis=1).tolist() == [2] * 4
