"""sdd, dsd and dds equal dense products, forward and gradients, for every transposition and layout."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse.backend import executor
from mlxsparse.blocksparse import BlockLayout, BlockSparseTensor, SparseMatMul, dds, dsd, sdd, sparse_softmax
from mlxsparse.engine import block_matmul
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError, TracedOnHostError, TransformError
from mlxsparse.testing import oracle
from mlxsparse.testing.strategies import block_masks

pytestmark = pytest.mark.usefixtures("device")
TOLERANCE = {mx.float32: 1e-5, mx.float16: 2e-2, mx.bfloat16: 2e-2}
FLAGS = list(itertools.product([False, True], repeat=2))


# On a GPU MLX itself refuses vmap, with a ValueError that names it.
REFUSED = "vmap|jvp|second gradient|traced"


def close(got, wanted, dtype=mx.float32):
    assert got.dtype == dtype
    got = np.array(got.astype(mx.float32))
    assert got.shape == wanted.shape
    assert np.isfinite(got).all()
    scale = max(1.0, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[dtype] * scale)


class Problem:
    """Operands of one product: dense ones as stored, and the sparse one packed, edges poisoned."""

    def __init__(self, mode, drawn, batch, k, trans_a, trans_b, dtype, seed=0):
        self.mode, self.flags = mode, (trans_a, trans_b)
        self.where = (drawn.mask, drawn.block, drawn.shape)
        self.layout = BlockLayout(drawn.mask, drawn.block, shape=drawn.shape)
        self.dtype = dtype
        rng = np.random.default_rng(seed)
        h, (m, n) = self.layout.num_heads, drawn.shape

        def draw(*shape):
            array = mx.array(rng.standard_normal((batch, h, *shape)).astype(np.float32)).astype(dtype)
            return array, np.array(array.astype(mx.float32)).astype(np.float64)

        if mode == "sdd":
            sides = [(k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)]
        elif mode == "dsd":
            inner = m if trans_a else n
            sides = [(m, n), (k, inner) if trans_b else (inner, k)]
        else:
            inner = n if trans_b else m
            sides = [(inner, k) if trans_a else (k, inner), (m, n)]
        (a, self.a), (b, self.b) = (draw(*s) for s in sides)
        self.operands = [a, b]
        self.sparse = {"sdd": None, "dsd": 0, "dds": 1}[mode]
        if self.sparse is not None:
            dense = (self.a, self.b)[self.sparse]
            packed = oracle.block_pack(dense, drawn.mask, drawn.block)
            inside = oracle.block_pack(np.ones_like(dense), drawn.mask, drawn.block) > 0
            self.operands[self.sparse] = mx.array(np.where(inside, packed, np.nan).astype(np.float32)).astype(
                dtype
            )

    def call(self, a, b, path=None):
        trans_a, trans_b = self.flags
        product = {"sdd": sdd, "dsd": dsd, "dds": dds}[self.mode]
        return product(a, b, self.layout, trans_a=trans_a, trans_b=trans_b, path=path)

    def packed(self, dense):
        return oracle.block_pack(dense, *self.where[:2])

    def check(self, path=None):
        wanted = oracle.block_matmul(self.mode, self.a, self.b, *self.where, *self.flags)
        y = self.call(*self.operands, path)
        close(y, self.packed(wanted) if self.mode == "sdd" else wanted, self.dtype)
        ct = np.random.default_rng(9).standard_normal(wanted.shape).astype(np.float32)
        weight = mx.array(self.packed(ct) if self.mode == "sdd" else ct).astype(self.dtype)
        if self.mode == "sdd" and weight.size:  # what lies outside the matrix is not read
            inside = self.packed(np.ones_like(ct)) > 0
            weight = mx.where(mx.array(inside), weight, mx.array(float("nan"), self.dtype))
        ct = np.array(mx.array(ct).astype(self.dtype).astype(mx.float32)).astype(np.float64)
        grads = oracle.block_matmul_gradients(self.mode, self.a, self.b, ct, *self.where, *self.flags)
        _, got = mx.vjp(lambda a, b: self.call(a, b, path), self.operands, [weight])
        for i, (g, w) in enumerate(zip(got, grads)):
            close(g, self.packed(w) if i == self.sparse else w, self.dtype)


@given(
    block_masks(),
    st.sampled_from(["sdd", "dsd", "dds"]),
    st.sampled_from(FLAGS),
    st.integers(1, 3),
    st.integers(1, 9),
    st.sampled_from([None, "blocks", "dense"]),
    st.sampled_from([mx.float32, mx.float32, mx.float16, mx.bfloat16]),
)
def test_equal_to_dense(drawn, mode, flags, batch, k, path, dtype):
    Problem(mode, drawn, batch, k, *flags, dtype).check(path)


@pytest.mark.parametrize(("mode", "flags"), list(itertools.product(["sdd", "dsd", "dds"], FLAGS)))
@pytest.mark.parametrize("block", [(32, 32), (16, 48)])
def test_larger_products(mode, flags, block):
    """Several panels, pieces of the reduced axis, gathers and runs of equal lists."""
    rng = np.random.default_rng(1)
    mask = rng.random((2, 5, 6)) < 0.5
    mask[0, 1] = mask[0, 0]
    mask[1, 2] = False
    drawn = type("Drawn", (), {"mask": mask, "block": block, "shape": (5 * block[0] - 7, 6 * block[1] - 5)})
    depth, block_host = 1040, block_matmul.block_host
    before = block_host.DEPTH, block_host.PANEL, block_host.GATHERED
    block_host.DEPTH, block_host.PANEL, block_host.GATHERED = 64, 256, 1 << 16
    try:
        Problem(mode, drawn, 2, depth, *flags, mx.float32).check("blocks")
    finally:
        block_host.DEPTH, block_host.PANEL, block_host.GATHERED = before


@pytest.mark.parametrize("mode", ["sdd", "dsd", "dds"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_operand_differentiable_alone(mode, which, monkeypatch):
    """The other's gradient is not computed."""
    mask = np.array([[[True, False], [True, True]]])
    drawn = type("Drawn", (), {"mask": mask, "block": (4, 4), "shape": (8, 8)})
    p = Problem(mode, drawn, 1, 3, False, False, mx.float32)
    calls = []
    executor = block_matmul.products()

    class Counting:
        def __getattr__(self, name):
            def call(*args):
                calls.append(name)
                return getattr(executor, name)(*args)

            return call

    monkeypatch.setattr(block_matmul, "products", lambda: Counting())
    gradient = mx.grad(lambda a, b: p.call(a, b).sum(), argnums=which)(*p.operands)
    mx.eval(gradient)
    # The graph of a GPU holds both gradients; the one that nobody asked for is not evaluated.
    assert len(calls) == (2 if executor is block_matmul.HOST else 3)
    wanted = oracle.block_matmul_gradients(mode, p.a, p.b, np.ones((1, 1, 1, 1)) * _ones(p), *p.where)
    close(gradient, p.packed(wanted[which]) if which == p.sparse else wanted[which])


def _ones(p):
    return np.ones(oracle.block_matmul(p.mode, p.a, p.b, *p.where).shape)


def test_layers_of_equal_length_share_nothing():
    """Two layouts of one shape, used in turn, keep their own blocks."""
    rng = np.random.default_rng(2)
    x = mx.array(rng.standard_normal((1, 1, 8, 8)).astype(np.float32))
    masks = [np.eye(4, dtype=bool), ~np.eye(4, dtype=bool)]
    layers = [SparseMatMul(m.astype(np.int64), 2, "sdd", False, True) for m in masks]
    for _ in range(2):
        for mask, layer in zip(masks, layers):
            wanted = oracle.block_pack(np.array(x) @ np.array(x).swapaxes(2, 3), mask[None], (2, 2))
            close(layer(x, x), wanted)


def test_module_forms():
    rng = np.random.default_rng(3)
    mask = rng.random((2, 3, 4)) < 0.6
    layout = BlockLayout(mask, (4, 2))
    a = mx.array(rng.standard_normal((1, 2, 12, 5)).astype(np.float32))
    b = mx.array(rng.standard_normal((1, 2, 5, 8)).astype(np.float32))
    wanted = sdd(a, b, layout)
    for given_layout in (mask, mask.astype(np.int32), mx.array(mask), layout):
        assert mx.array_equal(SparseMatMul(given_layout, (4, 2), "sdd")(a, b), wanted)
    tensor = BlockSparseTensor(wanted, layout)
    turned = SparseMatMul(layout, None, "dsd", trans_a=True)(tensor, a)
    assert turned.shape == (1, 2, 8, 5)
    assert mx.array_equal(turned, dsd(wanted, a, layout, trans_a=True))
    assert "dsd" in repr(SparseMatMul(layout, None, "dsd"))


def test_nan_stays_with_its_block():
    """NaN in rows that no stored block reads does not leak, whatever the path."""
    mask = np.array([[True, False], [True, False]])
    layout = BlockLayout(mask, 2)
    values = mx.ones(layout.packed_shape())
    b = mx.concatenate([mx.ones((1, 1, 2, 3)), mx.full((1, 1, 2, 3), float("nan"))], axis=2)
    for path in (None, "blocks", "dense") if executor() == "host" else (None, "blocks"):
        assert np.array_equal(np.array(dsd(values, b, layout, path=path)), np.full((1, 1, 4, 3), 2.0))
        turned = dds(b.swapaxes(2, 3), values, layout, trans_b=True, path=path)
        assert np.array_equal(np.array(turned), np.full((1, 1, 3, 4), 2.0))


def test_same_bits_every_time():
    rng = np.random.default_rng(4)
    layout = BlockLayout(rng.random((3, 8, 8)) < 0.4, 16)
    values = mx.array(rng.standard_normal(layout.packed_shape(2)).astype(np.float32))
    b = mx.array(rng.standard_normal((2, 3, 128, 200)).astype(np.float32))
    first = dsd(values, b, layout)
    for _ in range(5):
        assert mx.array_equal(first, dsd(values, b, layout))


def test_second_gradients_and_jvp_are_refused():
    layout = BlockLayout(np.eye(2, dtype=bool), 2)
    x = mx.ones((1, 1, 4, 4))
    f = lambda x: sdd(x, x, layout).square().sum()  # noqa: E731
    for wrong in (
        lambda: mx.grad(lambda x: mx.grad(f)(x).sum())(x),
        lambda: mx.jvp(f, [x], [x]),
        lambda: mx.vmap(lambda x: sdd(x, x, layout))(x[None]),
    ):
        with pytest.raises((TransformError, TracedOnHostError, ValueError), match=REFUSED):
            mx.eval(wrong())


MASK = np.array([[True, False, True], [False, True, True]])
L = BlockLayout(MASK, 16)  # (32, 48)


def dense(*shape, dtype=mx.float32):
    return mx.zeros((1, 1, *shape), dtype)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sdd(dense(32, 8), dense(8, 32), L), ShapeError, "trans_b=True or b.swapaxes"),
        (lambda: sdd(dense(48, 8), dense(8, 48), L), ShapeError, "32 rows"),
        (lambda: sdd(dense(32, 8), dense(9, 48), L), ShapeError, "do not multiply"),
        (lambda: sdd(mx.zeros((2, 1, 32, 8)), dense(8, 48), L), ShapeError, "do not multiply"),
        (lambda: sdd(mx.zeros((1, 2, 32, 8)), dense(8, 48), L), ShapeError, "H = 1"),
        (lambda: sdd(mx.zeros((32, 8)), dense(8, 48), L), ShapeError, "H = 1"),
        (lambda: sdd(dense(32, 8), dense(8, 48, dtype=mx.float16), L), DTypeError, "b is"),
        (lambda: sdd(dense(32, 8, dtype=mx.int32), dense(8, 48), L), DTypeError, "a is"),
        (lambda: sdd(np.zeros((1, 1, 32, 8)), dense(8, 48), L), DTypeError, "ndarray"),
        (lambda: dsd(mx.zeros((1, 3, 16, 16)), dense(48, 8), L), ShapeError, "a has shape"),
        (lambda: dsd(mx.zeros((1, 4, 16, 8)), dense(48, 8), L), ShapeError, "a has shape"),
        (lambda: dsd(mx.zeros((2, 4, 16, 16)), dense(48, 8), L), ShapeError, "a has shape"),
        (lambda: dsd(mx.zeros((1, 4, 16, 16)), dense(32, 8), L), ShapeError, "48 rows"),
        (lambda: dsd(mx.zeros((1, 4, 16, 16)), dense(32, 8)), ShapeError, "pass their layout"),
        (lambda: dds(dense(8, 48), mx.zeros((1, 4, 16, 16)), L), ShapeError, "trans_a=True"),
        (
            lambda: dsd(BlockSparseTensor(mx.zeros((1, 4, 16, 16)), L), dense(48, 8), L.t()),
            ShapeError,
            "names",
        ),
        (lambda: sdd(dense(32, 8), dense(8, 48), L, path="fast"), MLXSparseError, "path"),
        (lambda: sdd(dense(32, 8), dense(8, 48), MASK), DTypeError, "ndarray, wanted a BlockLayout"),
        (lambda: dsd(mx.zeros((1, 4, 16, 16)), dense(48, 8), MASK), DTypeError, "wanted a BlockLayout"),
        (lambda: dds(dense(8, 32), mx.zeros((1, 4, 16, 16)), MASK), DTypeError, "wanted a BlockLayout"),
        (lambda: sparse_softmax(mx.zeros((1, 4, 16, 16)), MASK), DTypeError, "wanted a BlockLayout"),
        (lambda: SparseMatMul(L, 16, "sdd", shape=4), DTypeError, "shape"),
        (lambda: SparseMatMul(L, 32, "sdd"), ShapeError, "block=32"),
        (lambda: SparseMatMul(L, 16, "ssd"), MLXSparseError, "mode"),
        (lambda: SparseMatMul(np.eye(2), 16, "sdd"), DTypeError, "float64"),
        (lambda: SparseMatMul(2 * np.eye(2, dtype=int), 16, "sdd"), MLXSparseError, "other integers"),
        (lambda: SparseMatMul(np.eye(2, dtype=bool), None, "sdd"), ShapeError, "block="),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_transposed_example_of_torch_blocksparse_is_refused():
    """Its README multiplies with trans_a an `a` that is stored plain: a shape error, not a wrong result."""
    z, h, m, n, k = 4, 2, 64, 32, 48
    layout = np.random.default_rng(5).integers(0, 2, (h, m // 16, n // 16))
    layout[0, 0, 0] = 1
    product = SparseMatMul(layout, 16, "sdd", trans_a=True, trans_b=False)
    with pytest.raises(ShapeError, match="trans_a=False"):
        product(mx.zeros((z, h, m, k)), mx.zeros((z, h, k, n)))
    assert product(mx.zeros((z, h, k, m)), mx.zeros((z, h, k, n))).shape == (z, layout.sum(), 16, 16)


@pytest.mark.parametrize("path", [None, "blocks", "dense"])
@pytest.mark.parametrize(("ta", "tb"), FLAGS)
def test_operands_without_columns(ta, tb, path):
    """The docs say "any K"; K = 0 was a reshape of size 0 by blocks that are not neighbours."""
    layout = BlockLayout(np.array([[1, 0, 1]] * 2, bool), 2)  # (4, 6)
    a, b = mx.zeros((1, 1, *((0, 4) if ta else (4, 0)))), mx.zeros((1, 1, *((6, 0) if tb else (0, 6))))
    flags = {"trans_a": ta, "trans_b": tb, "path": path}
    found, gradients = mx.vjp(lambda a, b: sdd(a, b, layout, **flags), [a, b], [mx.ones((1, 4, 2, 2))])
    assert np.array_equal(np.array(found[0]), np.zeros((1, 4, 2, 2)))
    assert [g.shape for g in gradients] == [a.shape, b.shape]
    values = mx.ones(layout.packed_shape())
    for product, dense_side in ((dsd, 4 if ta else 6), (dds, 6 if tb else 4)):
        turned = tb if product is dsd else not ta
        x = mx.zeros((1, 1, *((0, dense_side) if turned else (dense_side, 0))))

        def both(s, x, product=product):
            return product(s, x, layout, **flags) if product is dsd else product(x, s, layout, **flags)

        out = both(values, x)
        assert out.size == 0
        _, gradients = mx.vjp(both, [values, x], [out])
        assert not np.array(gradients[0]).any() and gradients[1].shape == x.shape


def test_the_whole_matrix_is_multiplied_above_a_density_unless_a_path_is_forced():
    def chosen(density, path=None, block=32):
        mask = np.zeros((1, 10, 10), bool)
        mask.reshape(-1)[: round(100 * density)] = True
        return block_matmul.takes_dense(BlockLayout(mask, block).index, path)

    assert chosen(1.0) and not chosen(0.1) and chosen(0.1, "dense") and not chosen(1.0, "blocks")
    if executor() == "host":
        assert chosen(block_matmul.DENSE_DENSITY["host"] + 0.01)
        assert chosen(block_matmul.DENSE_DENSITY_SMALL["host"] + 0.01, block=8)
