"""sparse_softmax equals a dense masked softmax, forward and every gradient; fully masked rows are 0."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse.blocksparse import BlockLayout, BlockSparseTensor, SparseSoftmax, sparse_softmax
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.strategies import block_masks

from ..numeric import numeric_gradient

pytestmark = pytest.mark.usefixtures("device")
NAN = float("nan")


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def array(a, dtype=mx.float32):
    return mx.array(np.asarray(a, np.float32)).astype(dtype)


class Problem:
    def __init__(self, drawn, batch, addends, seed=0):
        self.drawn, self.layout = drawn, BlockLayout(drawn.mask, drawn.block, shape=drawn.shape)
        self.keep = oracle.element_mask(drawn.mask, drawn.block, drawn.shape)[None]
        rng = np.random.default_rng(seed)
        h, (m, n) = self.layout.num_heads, drawn.shape
        self.x = rng.standard_normal((batch, h, m, n))
        self.scale = 0.7
        shapes = {"rpe": (batch, h, m, n), "key_padding_mask": (batch, n), "attn_mask": (m, n)}
        self.addends = {name: rng.standard_normal(shapes[name]) for name in addends}
        for name in addends:
            if name != "rpe":
                self.addends[name][rng.random(shapes[name]) < 0.3] = -np.inf

    def pack(self, dense, poison=False):
        packed = oracle.block_pack(dense, *self.drawn[:2])
        if poison:
            inside = oracle.block_pack(np.ones_like(dense), *self.drawn[:2]) > 0
            packed = np.where(inside, packed, np.nan)
        return packed

    def unpack(self, packed):
        return oracle.block_unpack(np.asarray(packed, np.float64), *self.drawn)

    def oracle(self, x, scale, rpe=None, key_padding_mask=None, attn_mask=None):
        t, allowed = x * scale, np.broadcast_to(self.keep, x.shape)
        for addend in (
            rpe,
            None if key_padding_mask is None else key_padding_mask[:, None, None],
            attn_mask,
        ):
            if addend is not None:
                t = t + addend
        return oracle.masked_softmax(t, allowed & (t > -np.inf))


KINDS = [(), ("rpe",), ("key_padding_mask",), ("attn_mask",), ("rpe", "key_padding_mask", "attn_mask")]


@given(
    block_masks(),
    st.integers(1, 2),
    st.sampled_from(KINDS),
    st.sampled_from([(mx.float32, 1e-5), (mx.float16, 2e-2), (mx.bfloat16, 2e-2)]),
)
def test_equal_to_dense(drawn, batch, addends, kind):
    dtype, tolerance = kind
    p = Problem(drawn, batch, addends)
    x = array(p.pack(p.x, poison=True), dtype)
    before = np.array(x.astype(mx.float32))
    named = {name: array(a) for name, a in p.addends.items()}
    y, lse = sparse_softmax(x, p.layout, scale=p.scale, return_lse=True, **named)
    seen = p.unpack(np.array(x.astype(mx.float32)))
    wanted, wanted_lse = p.oracle(np.where(p.keep, seen, 0), p.scale, **p.addends)
    assert y.dtype == dtype and lse.dtype == mx.float32
    got = np.array(y.astype(mx.float32))
    np.testing.assert_allclose(got, p.pack(wanted), atol=tolerance)
    np.testing.assert_allclose(np.array(lse), wanted_lse, rtol=1e-5, atol=1e-5)
    assert np.array_equal(np.array(x.astype(mx.float32)), before, equal_nan=True)  # never overwritten
    alone = sparse_softmax(BlockSparseTensor(x, p.layout), scale=mx.array(p.scale), **named)
    assert mx.array_equal(alone, y)


@pytest.mark.parametrize("addends", KINDS)
@pytest.mark.parametrize("with_lse", [False, True])
def test_gradients(addends, with_lse):
    mask = np.array([[[1, 0, 1], [0, 0, 0], [1, 1, 1]], [[0, 1, 0], [1, 0, 0], [0, 0, 0]]], bool)
    drawn = type("Drawn", (tuple,), {})((mask, (2, 3), (5, 8)))
    drawn.mask, drawn.block, drawn.shape = mask, (2, 3), (5, 8)
    p = Problem(drawn, 2, addends, seed=3)
    ct, lse_ct = normal(4, *p.x.shape), normal(5, *p.x.shape[:3]) * with_lse

    def loss(x, scale, *addends_now):
        y, lse = sparse_softmax(x, p.layout, scale=scale, return_lse=True, **dict(zip(addends, addends_now)))
        value = (mx.where(y == 0, 0, y) * array(p.pack(ct))).sum()
        return value + (mx.where(lse > -1e30, lse, 0) * array(lse_ct)).sum() if with_lse else value

    inputs = [array(p.pack(p.x)), mx.array(p.scale), *(array(a) for a in p.addends.values())]
    got = mx.grad(loss, list(range(len(inputs))))(*inputs)

    def reference(values):
        names = ["x", "scale", *addends]
        y, lse = p.oracle(**{"x": p.x, "scale": p.scale, **p.addends, **dict(zip(names, values))})
        return (y * ct).sum() + (np.where(lse > -1e30, lse, 0) * lse_ct).sum()

    arguments = [p.x, np.array(p.scale), *p.addends.values()]
    for i, argument in enumerate(arguments):
        finite = np.where(np.isfinite(argument), argument, -1e3)  # exp of it is 0 to all digits

        def f(value, i=i):
            return reference([*arguments[:i], value, *arguments[i + 1 :]])

        wanted = numeric_gradient(f, finite, 1.0)
        seen = np.array(got[i])
        wanted = p.pack(wanted) if i == 0 else wanted
        np.testing.assert_allclose(seen, wanted, atol=2e-5, err_msg=str(i))


def test_one_input_differentiable_alone():
    layout = BlockLayout(np.eye(2, dtype=bool), 2)
    x, mask = array(normal(0, 1, 2, 2, 2)), array(normal(1, 4, 4))
    alone = mx.grad(lambda m: sparse_softmax(x, layout, attn_mask=m).square().sum())(mask)
    both = mx.grad(lambda x, m: sparse_softmax(x, layout, attn_mask=m).square().sum(), [0, 1])(x, mask)
    assert mx.array_equal(alone, both[1])


def test_modes_and_broadcast_rpe():
    rng = np.random.default_rng(6)
    mask = rng.random((2, 3, 3)) < 0.7
    layout = BlockLayout(mask, 4)
    x = array(rng.standard_normal(layout.packed_shape(2)))
    keep = rng.random((12, 12)) < 0.6
    added = array(np.where(keep, 0, -np.inf))
    wanted = sparse_softmax(x, layout, attn_mask=added)
    module = SparseSoftmax(mask.astype(int), 4)
    assert mx.array_equal(module(x, attn_mask=mx.array(keep), attn_mask_mode="bool"), wanted)
    for dtype in (mx.float32, mx.int32):
        kept = mx.array(keep).astype(dtype) * 3
        assert mx.array_equal(module(x, attn_mask=kept, attn_mask_mode="mul"), wanted)
    keys = rng.random((2, 12)) < 0.6
    wanted = sparse_softmax(x, layout, key_padding_mask=array(np.where(keys, 0, -np.inf)))
    got = module(x, key_padding_mask=mx.array(keys), key_padding_mask_mode="bool")
    assert mx.array_equal(got, wanted)
    for shape in ((1, 2, 12, 12), (2, 1, 12, 12), (1, 1, 12, 12)):
        rpe = array(rng.standard_normal(shape))
        whole = mx.broadcast_to(rpe, (2, 2, 12, 12))
        assert mx.array_equal(module(x, 0.5, rpe), module(x, 0.5, whole))
        one, every = (
            mx.grad(lambda r: module(x, 0.5, r).square().sum())(r) for r in (rpe, mx.contiguous(whole))
        )
        axes = [i for i in (0, 1) if shape[i] == 1]
        np.testing.assert_allclose(
            np.array(one), np.array(every).sum(axis=tuple(axes), keepdims=True), atol=1e-5
        )
    for batch in (1, 2):
        packed = array(rng.standard_normal(layout.packed_shape(batch)))
        rpe = BlockSparseTensor(packed, layout)
        dense = rpe.to_dense()
        np.testing.assert_allclose(np.array(module(x, 1, rpe)), np.array(module(x, 1, dense)), atol=1e-6)
        a = mx.grad(lambda v: module(x, 1, BlockSparseTensor(v, layout)).square().sum())(packed)
        b = mx.grad(lambda v: module(x, 1, v).square().sum())(dense)
        np.testing.assert_allclose(np.array(BlockSparseTensor(a, layout).to_dense()), np.array(b), atol=1e-5)


def test_masked_rows_and_nan():
    """Rows without keys: 0, -inf, gradient 0; NaN in masked places does not leak, elsewhere it does."""
    layout = BlockLayout(np.array([[True, True], [False, False]]), 2)
    x = array([[[[1, 2], [3, 4]], [[NAN, 5], [NAN, NAN]]]])
    keep = mx.array([[True, True, False, True], [False] * 4, [True] * 4, [True] * 4])
    y, lse = sparse_softmax(x, layout, attn_mask=keep, attn_mask_mode="bool", return_lse=True)
    wanted = np.exp([1, 2, 5]) / np.exp([1, 2, 5]).sum()
    np.testing.assert_allclose(np.array(y)[0, :, 0], [[wanted[0], wanted[1]], [0, wanted[2]]], rtol=1e-6)
    assert np.array_equal(np.array(y)[0, :, 1], np.zeros((2, 2)))
    assert np.array_equal(np.array(lse)[0, 0, 1:], [-np.inf] * 3)

    def loss(x, scale):
        return sparse_softmax(x, layout, scale=scale, attn_mask=keep, attn_mask_mode="bool").square().sum()

    dx, dscale = mx.grad(loss, [0, 1])(x, mx.array(1.0))
    assert np.isfinite(np.array(dx)).all() and np.isfinite(float(dscale))
    assert np.array_equal(np.array(dx)[0, :, 1], np.zeros((2, 2)))
    free = np.array(sparse_softmax(x, layout))
    assert np.isnan(free[0, :, 0]).all()


def test_empty_layout():
    layout = BlockLayout(np.zeros((1, 2, 2), bool), 2)
    y, lse = sparse_softmax(mx.zeros((1, 0, 2, 2)), layout, return_lse=True)
    assert y.shape == (1, 0, 2, 2) and np.array_equal(np.array(lse), np.full((1, 1, 4), -np.inf))


L = BlockLayout(np.ones((2, 2), bool), 2)
X = mx.zeros((1, 4, 2, 2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sparse_softmax(X), ShapeError, "pass their layout"),
        (lambda: sparse_softmax(X[:, :3], L), ShapeError, "x has shape"),
        (lambda: sparse_softmax(X.astype(mx.int32), L), DTypeError, "x is"),
        (lambda: sparse_softmax(X, L, scale=mx.zeros((2,))), ShapeError, "scale"),
        (lambda: sparse_softmax(X, L, rpe=mx.zeros((4, 4))), ShapeError, "rpe"),
        (lambda: sparse_softmax(X, L, rpe=BlockSparseTensor(X, L), attn_mask=X), ShapeError, "attn_mask"),
        (
            lambda: sparse_softmax(X, L, attn_mask=mx.ones((4, 4), mx.bool_)),
            DTypeError,
            'attn_mask_mode="bool"',
        ),
        (
            lambda: sparse_softmax(X, L, attn_mask=mx.ones((4, 4)), attn_mask_mode="bool"),
            DTypeError,
            "wants bool",
        ),
        (
            lambda: sparse_softmax(X, L, key_padding_mask=mx.ones((1, 4)), key_padding_mask_mode="bool"),
            DTypeError,
            "wants bool",
        ),
        (lambda: sparse_softmax(X, L, key_padding_mask=mx.ones((4,))), ShapeError, "key_padding_mask"),
        (lambda: sparse_softmax(X, L, attn_mask=np.ones((4, 4))), DTypeError, "ndarray"),
        (lambda: sparse_softmax(X, L, attn_mask_mode="max"), MLXSparseError, "attn_mask_mode"),
        (
            lambda: sparse_softmax(X, L, rpe=BlockSparseTensor(X, L.t() & ~L | L), scale=X),
            ShapeError,
            "scale",
        ),
        (lambda: sparse_softmax(BlockSparseTensor(X, L), ~L), ShapeError, "names"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_gradients_of_an_empty_batch():
    """Of addends that are one for all batch items, and of those that have its number of items."""
    x, none, one = mx.zeros((0, 4, 2, 2)), mx.zeros((0, 4)), mx.zeros((1, 4, 2, 2))

    def gradients(f, *addends):
        found = mx.vjp(f, addends, [x])[1]
        assert [a.shape for a in found] == [a.shape for a in addends]
        assert not any(np.array(a).any() for a in found if a.size)

    for rpe in (mx.zeros((1, 1, 4, 4)), mx.zeros((0, 1, 4, 4))):
        gradients(
            lambda rpe, keys, pairs: sparse_softmax(x, L, rpe=rpe, key_padding_mask=keys, attn_mask=pairs),
            rpe, none, mx.zeros((4, 4)),
        )  # fmt: skip
    gradients(lambda one: sparse_softmax(x, L, rpe=BlockSparseTensor(one, L)), one)
