"""BlockLayout: content, order, makers, algebra, updates; pack and unpack."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse.blocks import BlockCoupling, BlockSpec, ScopeCoupling, ScopeSpec, View
from mlxsparse.blocksparse import (
    BlockLayout,
    BlockSparseTensor,
    block_sparse_attention,
    carry,
    pack,
    segment_ids,
    unpack,
)
from mlxsparse.errors import (
    CoordinateRangeError,
    DTypeError,
    IdentityError,
    MLXSparseError,
    ShapeError,
    TransformError,
)
from mlxsparse.testing import oracle
from mlxsparse.testing.strategies import block_masks

pytestmark = pytest.mark.usefixtures("device")


def values_of(layout, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    return mx.array(rng.standard_normal(layout.packed_shape(batch)).astype(np.float32))


@given(block_masks())
def test_content_and_order(drawn):
    layout = BlockLayout(drawn.mask, drawn.block, shape=drawn.shape)
    places = np.argwhere(drawn.mask)
    assert np.array_equal(np.column_stack([layout.heads, layout.rows, layout.cols]), places)
    assert layout.nnz == len(places) and layout.density == drawn.mask.mean()
    assert layout.packed_shape(3) == (3, len(places), *drawn.block)
    h, r, c = layout.grid
    counts = drawn.mask.sum(axis=2).reshape(-1)
    assert np.array_equal(layout.row_ptr, np.concatenate([[0], np.cumsum(counts)]))
    assert np.array_equal(np.diff(layout.col_ptr), drawn.mask.sum(axis=1).reshape(-1))
    by_column = np.argwhere(drawn.mask.swapaxes(1, 2))[:, [0, 2, 1]]
    assert np.array_equal(places[layout.col_order], by_column)
    assert np.array_equal(layout.to_dense(), drawn.mask)
    same = BlockLayout.from_pairs(places[::-1], drawn.block, shape=drawn.shape, heads=h)
    assert same == layout and hash(same) == hash(layout)
    assert np.array_equal(layout.t().to_dense(), drawn.mask.swapaxes(1, 2)) and layout.t().t() == layout
    for clone in (copy.deepcopy(layout), pickle.loads(pickle.dumps(layout))):
        assert clone == layout
    with pytest.raises(ValueError):
        layout.rows[:] = 0


@given(block_masks(), st.integers(0, 999))
def test_algebra_and_update(drawn, seed):
    other = np.random.default_rng(seed).random(drawn.mask.shape) < 0.5
    a, b = (BlockLayout(m, drawn.block, shape=drawn.shape) for m in (drawn.mask, other))
    for got, wanted in (
        (a | b, drawn.mask | other),
        (a & b, drawn.mask & other),
        (a - b, drawn.mask & ~other),
        (~a, ~drawn.mask),
    ):
        assert got == BlockLayout(wanted, drawn.block, shape=drawn.shape)
    new, gather_idx = a.update(other)
    assert new == b
    values = values_of(a)
    moved = np.array(carry(values, gather_idx, fill=7.0))
    where = {place: n for n, place in enumerate(map(tuple, np.argwhere(drawn.mask)))}
    for n, place in enumerate(map(tuple, np.argwhere(other))):
        wanted = np.array(values)[:, where[place]] if place in where else np.float32(7)
        assert np.array_equal(moved[:, n], np.broadcast_to(wanted, moved[:, n].shape))


def test_a_union_sorts(monkeypatch):
    """np.union1d hashes from NumPy 2.3 on, ten times as long."""
    monkeypatch.delattr(np, "union1d")
    a, b = BlockLayout(MASK, 2), BlockLayout(~MASK, 2)
    assert a | b == BlockLayout(np.ones_like(MASK), 2)


@given(block_masks(), st.sampled_from([mx.float32, mx.float16, mx.bfloat16]))
def test_pack_and_unpack(drawn, dtype):
    layout = BlockLayout(drawn.mask, drawn.block, shape=drawn.shape)
    x = np.random.default_rng(0).integers(-9, 9, (2, layout.num_heads, *drawn.shape)).astype(np.float32)
    packed = pack(mx.array(x, dtype), layout)
    wanted = oracle.block_pack(x, drawn.mask, drawn.block)
    assert packed.dtype == dtype and np.array_equal(np.array(packed.astype(mx.float32)), wanted)
    y = unpack(packed, layout, fill=5.0)
    wanted = oracle.block_unpack(wanted, drawn.mask, drawn.block, drawn.shape, 5.0)
    assert y.dtype == dtype and np.array_equal(np.array(y.astype(mx.float32)), wanted)
    tensor = BlockSparseTensor(packed, layout)
    assert tensor.shape == (2, layout.num_heads, *drawn.shape)
    turned = np.array(tensor.t().to_dense().astype(mx.float32))
    assert np.array_equal(turned, np.array(tensor.to_dense().astype(mx.float32)).swapaxes(2, 3))


def test_gradients_of_pack_and_unpack():
    layout = BlockLayout(np.array([[True, False], [False, True]]), (2, 3), shape=(3, 5))
    weight = mx.arange(15, dtype=mx.float32).reshape(1, 1, 3, 5)
    inside = oracle.element_mask(layout.to_dense(), (2, 3), (3, 5))[None]
    x = mx.zeros((1, 1, 3, 5))
    got = mx.grad(lambda x: (unpack(pack(x, layout), layout) * weight).sum())(x)
    assert np.array_equal(np.array(got), np.where(inside, np.array(weight), 0))
    with pytest.raises(TransformError):
        mx.eval(mx.grad(lambda x: mx.grad(lambda x: pack(x, layout).square().sum())(x).sum())(x))


@given(
    st.lists(st.integers(0, 9), min_size=0, max_size=6), st.integers(1, 5), st.integers(1, 2), st.booleans()
)
def test_from_cu_seqlens(lengths, block, heads, rectangular):
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    lengths_k = [(n * 7 + 3) % 8 for n in lengths] if rectangular else lengths
    ends_k = np.concatenate([[0], np.cumsum(lengths_k)]).astype(np.int64)
    layout = BlockLayout.from_cu_seqlens(
        ends, (block, 3), cu_seqlens_k=ends_k if rectangular else None, heads=heads
    )
    q, k = np.array(segment_ids(ends)), np.array(segment_ids(ends_k))
    m, n = len(q), len(k)
    allowed = q[:, None] == k[None]
    grid = (-(-m // block), -(-n // 3))
    wanted = np.zeros((heads, *grid), bool)
    for i, j in np.argwhere(allowed):
        wanted[:, i // block, j // 3] = True
    assert layout.shape == (m, n) and np.array_equal(layout.to_dense(), wanted)


def test_from_cu_seqlens_of_a_million_tokens_makes_no_square():
    ends = np.arange(0, (1 << 20) + 1, 500)
    ends[-1] = 1 << 20
    start = time.perf_counter()
    layout = BlockLayout.from_cu_seqlens(ends, 64)
    assert time.perf_counter() - start < 0.5
    assert 8 * (1 << 14) < layout.nnz < 10 * (1 << 14)


def test_from_spec_reads_a_two_dimensional_spec():
    spec = SimpleNamespace(grid_shape=(2, 3), block_shape=(4, 2), view=SimpleNamespace(shape=(8, 6)))
    keep = np.array([[True, False, True], [False, False, True]])
    assert BlockLayout.from_spec(spec, keep) == BlockLayout(keep, (4, 2), shape=(8, 6))
    with pytest.raises(ShapeError, match="keep"):
        BlockLayout.from_spec(spec, keep.T)


def test_from_spec_of_a_coupling_turns_what_is_kept():
    one, other = nn.Linear(6, 4), nn.Linear(8, 9)
    specs = [BlockSpec(View((one, "weight")), (2, 2)), BlockSpec(View((other, "weight")), (3, 4))]
    keep = mx.array([[True, False, False], [False, True, True]])
    layouts = BlockLayout.from_spec(BlockCoupling(specs, [(), (1, 0)]), keep)
    assert list(layouts) == specs
    assert layouts[specs[0]] == BlockLayout(keep, 2, shape=(4, 6))
    assert layouts[specs[1]] == BlockLayout(keep.T, (3, 4), shape=(9, 8))
    turned = BlockLayout.from_spec(BlockCoupling(specs, [(1, 0), ()]), keep.T)
    assert turned == layouts


SPEC = BlockSpec(View(mx.zeros((4, 6))), (2, 2))


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        (SPEC.view, DTypeError, "spec is a View, wanted a BlockSpec or a BlockCoupling"),
        (ScopeSpec(SPEC), DTypeError, "spec is a ScopeSpec"),
        (ScopeCoupling([ScopeSpec(SPEC)]), DTypeError, "spec is a ScopeCoupling"),
        (None, DTypeError, "spec is a NoneType"),
        (BlockCoupling([SPEC], [(1, 0)]), ShapeError, r"wanted the grid \(3, 2\)"),
        (BlockCoupling([BlockSpec(View(mx.zeros(6)))]), ShapeError, "two axes"),
    ],
)
def test_from_spec_of_what_is_no_spec(spec, error, words):
    with pytest.raises(error, match=words):
        BlockLayout.from_spec(spec, np.ones((2, 3), bool))


def test_layout_widened_to_heads():
    one = BlockLayout(np.array([[True, False], [True, True]]), 2)
    assert one.with_heads(3) == BlockLayout(np.repeat(one.to_dense(), 3, axis=0), 2)
    assert one.with_heads(3) is one.with_heads(3) and one.with_heads(1) is one
    with pytest.raises(ShapeError, match="3 heads"):
        one.with_heads(3).with_heads(2)


def test_content_tells_layouts_apart():
    mask = np.ones((2, 3), bool)
    layouts = {
        BlockLayout(mask, 2),
        BlockLayout(mask, 3),
        BlockLayout(mask, 2, shape=(4, 5)),
        BlockLayout(mask[None].repeat(2, 0), 2),
        BlockLayout(mask ^ np.eye(2, 3, dtype=bool), 2),
    }
    assert len(layouts) == 5 and BlockLayout(mask, 2) in layouts
    assert "nnz=6" in repr(BlockLayout(mask, 2))


def test_empty_layouts():
    for mask, shape in ((np.zeros((1, 2, 2), bool), (4, 4)), (np.zeros((1, 0, 0), bool), (0, 0))):
        layout = BlockLayout(mask, 2, shape=shape)
        assert layout.nnz == 0 and layout.density == 0
        x = mx.zeros((1, 1, *shape))
        assert pack(x, layout).shape == (1, 0, 2, 2)
        assert np.array_equal(np.array(unpack(pack(x, layout), layout, fill=1.0)), np.ones(x.shape))


def test_tensor_goes_through_mlx():
    layout = BlockLayout(np.array([[True, False], [True, True]]), 2)
    x = BlockSparseTensor(values_of(layout, 1), layout)
    loss = lambda w, t: (t.values * w).sum()  # noqa: E731
    assert mx.array_equal(mx.grad(loss)(mx.ones(x.values.shape), x), x.values)
    doubled = mx.compile(lambda t: BlockSparseTensor(2 * t.values, t.layout))(x)
    assert isinstance(doubled, BlockSparseTensor) and doubled.layout is layout
    assert mx.array_equal(doubled.values, 2 * x.values)
    assert mx.array_equal(mx.grad(lambda v: loss(v, x))(x.values), x.values)
    clone = pickle.loads(pickle.dumps(x.layout))
    assert BlockSparseTensor(x.values, clone).layout is layout  # one object for equal content
    new = x.update(~layout.to_dense()[0])
    assert new.layout.nnz == 1 and float(mx.abs(new.values).sum()) == 0
    assert x.astype(mx.float16).dtype == mx.float16 and "shape=(1, 1, 4, 4)" in repr(x)
    for wrong in (lambda: x[0], lambda: x + x, lambda: x * 2):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(IdentityError):
        BlockSparseTensor([x.values, "unknown"])
    assert ms.blocksparse.BlockLayout is BlockLayout


MASK = np.ones((2, 2), bool)


def test_arrays_of_a_layout_are_read_only():
    layout = BlockLayout(MASK, 2)
    for name in ("heads", "rows", "cols", "row_ptr", "col_ptr", "col_order"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(layout, name)[:] = 0


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: BlockLayout(MASK.astype(int), 2), DTypeError, "mask is int64"),
        (lambda: BlockLayout(np.ones(4, bool), 2), ShapeError, "wanted"),
        (lambda: BlockLayout(MASK, 0), ShapeError, "at least 1"),
        (lambda: BlockLayout(MASK, 2.5), DTypeError, "integers"),
        (lambda: BlockLayout(MASK, True), DTypeError, "block must be integers, got True"),
        (lambda: BlockLayout(MASK, (2, 2, 2)), ShapeError, "block"),
        (lambda: BlockLayout(MASK, 2, shape=(4, 5)), ShapeError, "shape"),
        (lambda: BlockLayout(MASK, 2, shape=(2, 4)), ShapeError, "shape"),
        (lambda: BlockLayout.from_pairs([[0, 2]], 2, shape=(4, 4)), CoordinateRangeError, "outside"),
        (lambda: BlockLayout.from_pairs([[-1, 0]], 2, shape=(4, 4)), CoordinateRangeError, "outside"),
        (lambda: BlockLayout.from_pairs([[1, 0, 0]], 2, shape=(4, 4)), CoordinateRangeError, "outside"),
        (lambda: BlockLayout.from_pairs([[0.0, 1.0]], 2, shape=(4, 4)), DTypeError, "pairs"),
        (lambda: BlockLayout.from_pairs([[0, 1, 0, 0]], 2, shape=(4, 4)), ShapeError, "pairs"),
        (lambda: BlockLayout.from_pairs([[0, 1]], 2, shape=4), DTypeError, "shape"),
        (lambda: BlockLayout.from_pairs([[0, 1]], 2, shape=(4, 4, 4)), ShapeError, r"\(M, N\)"),
        (lambda: BlockLayout(MASK, 2, shape=4), DTypeError, "shape"),
        (lambda: BlockLayout.from_cu_seqlens([1, 2], 2), MLXSparseError, "start at 0"),
        (lambda: BlockLayout.from_cu_seqlens([0, 3, 2], 2), MLXSparseError, "descend"),
        (lambda: BlockLayout.from_cu_seqlens([0.0, 3.0], 2), DTypeError, "cu_seqlens"),
        (lambda: BlockLayout.from_cu_seqlens([0, 3], 2, cu_seqlens_k=[0, 1, 2]), ShapeError, "sequences"),
        (lambda: BlockLayout(MASK, 2) | BlockLayout(MASK, 3), ShapeError, "grid"),
        (lambda: BlockLayout(MASK, 2).update(np.ones((3, 2), bool)), ShapeError, "the mask has"),
        (lambda: BlockLayout(MASK, 2) & MASK, DTypeError, "BlockLayout"),
        (lambda: carry(mx.zeros((2, 4, 2, 2)), [0.7]), DTypeError, "gather_idx is float64"),
        (lambda: carry(mx.zeros((2, 4, 2, 2)), [[0]]), ShapeError, "gather_idx has shape"),
        (lambda: carry(mx.zeros((2, 4, 2, 2)), [4]), MLXSparseError, "wanted .-1, 4."),
        (lambda: pack(mx.zeros((1, 1, 4, 5)), BlockLayout(MASK, 2)), ShapeError, "x has shape"),
        (lambda: pack(mx.zeros((1, 1, 4, 4), mx.int32), BlockLayout(MASK, 2)), DTypeError, "x is"),
        (lambda: pack(mx.zeros((1, 1, 4, 4)), MASK), DTypeError, "wanted a BlockLayout"),
        (lambda: unpack(mx.zeros((1, 4, 2, 2)), MASK), DTypeError, "wanted a BlockLayout"),
        (lambda: BlockSparseTensor(mx.zeros((1, 4, 2, 2)), MASK), DTypeError, "wanted a BlockLayout"),
        (lambda: unpack(mx.zeros((1, 3, 2, 2)), BlockLayout(MASK, 2)), ShapeError, "values"),
        (lambda: BlockSparseTensor(mx.zeros((1, 4, 3, 2)), BlockLayout(MASK, 2)), ShapeError, "values"),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("fill", [mx.array(0.5), "1", None])
def test_a_fill_that_is_no_number_is_refused(fill):
    """An array would get no gradient."""
    tensor = BlockSparseTensor(mx.ones((1, 2, 2, 2)), BlockLayout(np.eye(2, dtype=bool), 2))
    calls = [tensor.to_dense, lambda fill: tensor.update(np.ones((2, 2), bool), fill)]
    for call in calls:
        with pytest.raises(DTypeError, match="fill must be a number"):
            call(fill)
        call(np.float32(2))


@pytest.mark.parametrize(("shape", "block"), [((150, 150), 64), ((150, 200), (64, 30)), ((200, 70), (90, 8))])
def test_causal_attention_leaves_out_blocks_past_the_diagonal(shape, block):
    m, n = shape
    layout = BlockLayout.from_cu_seqlens([0, m], block, cu_seqlens_k=[0, n], heads=2)
    br, bc = layout.block
    allowed = np.arange(n) <= np.arange(m)[:, None] + n - m
    wanted = [[allowed[r : r + br, c : c + bc].any() for c in range(0, n, bc)] for r in range(0, m, br)]
    assert np.array_equal(layout._causal.to_dense(), [wanted] * 2) and layout._causal.nnz < layout.nnz
    rng = np.random.default_rng(0)
    q, k, v = (mx.array(rng.standard_normal((1, 2, size, 4)).astype(np.float32)) for size in (m, n, n))
    bias = mx.array(rng.standard_normal((1, 1, m, n)).astype(np.float32))

    def found(bias):
        return block_sparse_attention(q, k, v, layout, bias=bias, causal=True)

    kept = BlockSparseTensor.from_dense(mx.broadcast_to(bias, (1, 2, m, n)), layout)  # its blocks all stay
    wanted, _ = oracle.attention(*map(np.array, (q, k, v)), allowed, 0.5, np.array(bias))
    np.testing.assert_allclose(found(bias), wanted, atol=1e-5)
    np.testing.assert_allclose(found(kept), wanted, atol=1e-5)
    whole = mx.grad(lambda values: found(BlockSparseTensor(values, layout))[..., 0].sum())(kept.values)
    of_bias = mx.grad(lambda bias: found(bias)[..., 0].sum())(bias)
    np.testing.assert_allclose(of_bias, unpack(whole, layout).sum(axis=1, keepdims=True), atol=1e-5)


def test_a_layout_goes_with_its_last_name_after_causal_attention():
    """Layouts are made anew step by step; this one loses no block."""
    layout = BlockLayout(np.tri(2, dtype=bool), 64)
    q = mx.ones((1, 1, 128, 4))
    gc.disable()
    try:
        mx.eval(block_sparse_attention(q, q, q, layout, causal=True))
        gone = weakref.ref(layout)
        del layout
        assert gone() is None
    finally:
        gc.enable()
