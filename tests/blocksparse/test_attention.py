"""block_sparse_attention equals dense masked attention, forward and every gradient."""

from __future__ import annotations

import math
import tracemalloc

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxsparse.blocksparse import (
    BlockLayout,
    BlockSparseTensor,
    LocalWindow,
    block_sparse_attention,
    segment_ids,
)
from mlxsparse.engine import block_attention_host
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError, TransformError
from mlxsparse.testing import oracle
from mlxsparse.testing.strategies import block_masks

from ..numeric import numeric_gradient

pytestmark = pytest.mark.usefixtures("device")
NAN = float("nan")


def array(a, dtype=mx.float32):
    return mx.array(np.asarray(a, np.float32)).astype(dtype)


class Problem:
    """Inputs of attention over one drawn layout, and the dense mask that they mean."""

    def __init__(self, drawn, batch, key_heads, group, options, seed=0, d=3, dv=4):
        rng = np.random.default_rng(seed)
        heads, (m, n) = key_heads * group, drawn.shape
        mask = drawn.mask[:1] if "shared" in options or len(drawn.mask) != heads else drawn.mask
        self.layout = BlockLayout(mask, drawn.block, shape=drawn.shape)
        self.q = rng.standard_normal((batch, heads, m, d))
        self.k = rng.standard_normal((batch, key_heads, n, d))
        self.v = rng.standard_normal((batch, key_heads, n, dv))
        allowed = np.broadcast_to(
            oracle.element_mask(mask, drawn.block, drawn.shape)[None], (batch, heads, m, n)
        )
        self.named, self.bias, self.scale = {}, None, 1 / math.sqrt(d)
        if "bias" in options:
            self.bias = rng.standard_normal((batch, heads, m, n))
            self.bias[rng.random(self.bias.shape) < 0.2] = -np.inf
        if "wide_bias" in options:
            self.bias = rng.standard_normal((1, 1, m, n))
        if self.bias is not None:
            allowed = allowed & (self.bias > -np.inf)
        if "keys" in options:
            keys = rng.random((batch, n)) < 0.6
            self.named["key_padding_mask"] = mx.array(keys)
            allowed = allowed & keys[:, None, None]
        if "segments" in options:
            q_ids, k_ids = rng.integers(0, 3, m).astype(np.int32), rng.integers(0, 3, n).astype(np.int32)
            self.named["segments"] = (mx.array(q_ids), mx.array(k_ids))
            allowed = allowed & (q_ids[:, None] == k_ids[None])
        if "causal" in options:
            self.named["causal"] = True
            allowed = allowed & (np.arange(n)[None] <= np.arange(m)[:, None] + n - m)
        self.allowed = allowed

    def inputs(self, dtype=mx.float32):
        arrays = [array(a, dtype) for a in (self.q, self.k, self.v)]
        return arrays if self.bias is None else [*arrays, array(self.bias)]

    def call(self, q, k, v, bias=None, **more):
        return block_sparse_attention(q, k, v, self.layout, bias=bias, **self.named, **more)

    def oracle(self, q, k, v, bias=None):
        bias = None if bias is None else np.where(np.isfinite(bias), bias, 0)
        return oracle.attention(q, k, v, self.allowed, self.scale, bias)


OPTIONS = [
    (),
    ("shared",),
    ("bias",),
    ("wide_bias", "keys"),
    ("keys",),
    ("segments", "shared"),
    ("causal",),
    ("bias", "keys", "segments", "causal"),
]


@given(
    block_masks(),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from(OPTIONS),
    st.sampled_from([(mx.float32, 1e-5), (mx.float16, 2e-2), (mx.bfloat16, 2e-2)]),
    st.booleans(),
)
def test_equal_to_dense(drawn, batch, key_heads, group, options, kind, short):
    dtype, tolerance = kind
    p = Problem(drawn, batch, key_heads, group, options)
    inputs = p.inputs(dtype)
    seen = [np.array(a.astype(mx.float32)).astype(np.float64) for a in inputs]
    before = block_attention_host.KEYS
    block_attention_host.KEYS = 3 if short else before  # several pieces, which rescale what was summed
    try:
        out, lse = p.call(*inputs, return_lse=True)
        ct = np.random.default_rng(1).standard_normal(out.shape)
        _, got = mx.vjp(p.call, inputs, [array(ct, dtype)])
    finally:
        block_attention_host.KEYS = before
    wanted, wanted_lse = p.oracle(*seen)
    assert out.dtype == dtype and lse.dtype == mx.float32
    np.testing.assert_allclose(np.array(out.astype(mx.float32)), wanted, atol=tolerance * 4)
    np.testing.assert_allclose(np.array(lse), wanted_lse, atol=1e-5)
    for a, w in zip(got, dense_gradients(p, seen, ct)):
        a = np.array(a.astype(mx.float32))
        np.testing.assert_allclose(a, w, atol=tolerance * max(1, np.abs(w).max(initial=0)) * 4)


def dense_gradients(p, seen, ct, lse_ct=None):
    """Gradients of q, k, v and the bias from dense formulas."""
    q, k, v = seen[:3]
    group = q.shape[1] // k.shape[1]
    wide = [np.repeat(a, group, axis=1) for a in (k, v)]
    bias = np.where(np.isfinite(seen[3]), seen[3], 0) if len(seen) > 3 else 0
    scores = p.scale * (q @ wide[0].swapaxes(2, 3)) + bias
    prob, _ = oracle.masked_softmax(scores, np.broadcast_to(p.allowed, scores.shape))
    dp = ct @ wide[1].swapaxes(2, 3)
    ds = prob * (dp - (prob * dp).sum(axis=-1, keepdims=True))
    if lse_ct is not None:
        ds = ds + prob * lse_ct[..., None]

    def fold(a):  # over the query heads of a key head
        return a.reshape(len(a), k.shape[1], group, *a.shape[2:]).sum(axis=2)

    found = [
        p.scale * ds @ wide[0],
        fold(p.scale * ds.swapaxes(2, 3) @ q),
        fold(prob.swapaxes(2, 3) @ ct),
    ]
    if len(seen) > 3:
        joined = tuple(i for i in (0, 1) if seen[3].shape[i] == 1)
        found.append(ds.sum(axis=joined, keepdims=True).reshape(seen[3].shape))
    return found


def drawn_layout(mask, block, shape):
    return type("Drawn", (), {"mask": np.array(mask, bool), "block": block, "shape": shape})


SMALL = drawn_layout([[[1, 0, 1], [1, 0, 1], [0, 0, 0]]], (2, 2), (5, 6))


def test_dense_gradients_are_right():
    """The formulas above against central differences, and the gradient through lse."""
    p = Problem(SMALL, 1, 1, 2, ("bias", "keys"), seed=2)
    rng = np.random.default_rng(3)
    arguments = [p.q, p.k, p.v, p.bias]
    ct, lse_ct = rng.standard_normal((1, 2, 5, 4)), rng.standard_normal((1, 2, 5))
    wanted = dense_gradients(p, arguments, ct, lse_ct)

    def value(*a):
        out, lse = p.oracle(*a)
        return (out * ct).sum() + (np.where(lse > -1e30, lse, 0) * lse_ct).sum()

    for i in range(3):
        numeric = numeric_gradient(
            lambda x, i=i: value(*arguments[:i], x, *arguments[i + 1 :]), arguments[i], 1.0
        )
        np.testing.assert_allclose(wanted[i], numeric, atol=1e-7)

    def loss(*a):
        out, lse = p.call(*a, return_lse=True)
        return (out * array(ct)).sum() + (mx.where(lse > -1e30, lse, 0) * array(lse_ct)).sum()

    got = mx.grad(loss, [0, 1, 2, 3])(*p.inputs())
    for a, w in zip(got, wanted):
        np.testing.assert_allclose(np.array(a), w, atol=1e-5)


def test_packed_bias():
    p = Problem(drawn_layout(np.random.default_rng(4).random((2, 3, 3)) < 0.6, (2, 3), (5, 8)), 2, 2, 1, ())
    packed = array(np.random.default_rng(5).standard_normal(p.layout.packed_shape(2)))
    for values in (packed, packed[:1]):
        f = lambda v: p.call(*p.inputs(), bias=BlockSparseTensor(v, p.layout)).square().sum()  # noqa: E731
        g = lambda v: p.call(*p.inputs(), bias=v).square().sum()  # noqa: E731
        dense = BlockSparseTensor(values, p.layout).to_dense()
        np.testing.assert_allclose(float(f(values)), float(g(dense)), rtol=1e-5)
        got = BlockSparseTensor(mx.grad(f)(values), p.layout).to_dense()
        np.testing.assert_allclose(np.array(got), np.array(mx.grad(g)(dense)), atol=1e-5)
    shared = BlockLayout(p.layout.to_dense()[:1], (2, 3), shape=(5, 8))
    every = shared.with_heads(2)
    bias = BlockSparseTensor(array(np.ones(every.packed_shape(1))), every)
    q, k, v = p.inputs()
    assert mx.allclose(
        block_sparse_attention(q, k, v, shared, bias=bias), block_sparse_attention(q, k, v, shared), atol=1e-5
    )


def test_rows_without_keys_are_zero():
    p = Problem(SMALL, 1, 1, 1, ())
    out, lse = p.call(*p.inputs(), return_lse=True)
    assert np.array_equal(np.array(out)[0, 0, 4], np.zeros(4)) and float(lse[0, 0, 4]) == -np.inf
    none = {"key_padding_mask": mx.zeros((1, 6), mx.bool_)}
    q, k, v = p.inputs()

    def loss(q, k, v):
        out, lse = block_sparse_attention(q, k, v, p.layout, return_lse=True, **none)
        return (out + 1).square().sum() + mx.where(lse > -1e30, lse, 0).sum()

    for gradient in mx.grad(loss, [0, 1, 2])(q, k, v):
        assert np.array_equal(np.array(gradient), np.zeros(gradient.shape))
    # an empty query may hold anything
    poisoned = mx.concatenate([q[:, :, :4], mx.full((1, 1, 1, 3), NAN)], axis=2)
    gradients = mx.grad(lambda *inputs: p.call(*inputs).square().sum(), [0, 1, 2])
    for a, b in zip(gradients(q, k, v), gradients(poisoned, k, v)):
        assert mx.array_equal(a, b)


@pytest.mark.parametrize("where", ["k", "v", "both"])
@pytest.mark.parametrize("masked_by", ["key_padding_mask", "bias", "segments", "layout"])
def test_nan_in_masked_keys_does_not_leak(where, masked_by):
    rng = np.random.default_rng(7)
    n, bad = 8, np.array([1, 5])
    q, k, v = (rng.standard_normal((2, 2, n, 4)) for _ in range(3))
    keep = ~np.isin(np.arange(n), bad)
    named, mask = {}, np.ones((2, 4), bool)
    if masked_by == "key_padding_mask":
        named = {"key_padding_mask": mx.array(np.tile(keep, (2, 1)))}
    elif masked_by == "bias":
        named = {"bias": array(np.where(keep, 0, -np.inf) + np.zeros((1, 1, n, n)))}
    elif masked_by == "segments":
        named = {"segments": (mx.zeros((n,), mx.int32), mx.array((~keep).astype(np.int32)))}
    else:
        keep = np.repeat(~np.isin(np.arange(4), [0, 2]), 2)
        mask = np.array([keep[::2]] * 2)
    layout = BlockLayout(mask, (4, 2))
    clean = [array(a) for a in (q, k, v)]
    for name, a in (("k", k), ("v", v)):
        if where in (name, "both"):
            a[:, :, bad] = [NAN, np.inf, -np.inf, NAN]
    dirty = [array(a) for a in (q, k, v)]
    f = lambda *a: block_sparse_attention(*a, layout, return_lse=True, **named)  # noqa: E731
    for a, b in zip(f(*clean), f(*dirty)):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-6)
    loss = lambda *a: f(*a)[0].square().sum()  # noqa: E731
    for i, (a, b) in enumerate(zip(mx.grad(loss, [0, 1, 2])(*clean), mx.grad(loss, [0, 1, 2])(*dirty))):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-6, err_msg=str(i))
        assert i == 0 or np.array_equal(np.array(b)[:, :, bad], np.zeros((2, 2, 2, 4)))


def test_nan_in_a_key_that_counts_reaches_its_queries_only():
    q, k, v = (array(np.random.default_rng(8).standard_normal((1, 1, 4, 2))) for _ in range(3))
    layout = BlockLayout(np.ones((1, 1), bool), 4)
    ids = mx.array(np.array([0, 0, 1, 1], np.int32))
    for i in (1, 2):
        inputs = [q, k, v]
        dirty = np.array(inputs[i])
        dirty[0, 0, 0, 0] = NAN
        inputs[i] = array(dirty)
        out = np.array(block_sparse_attention(*inputs, layout, segments=ids))[0, 0]
        assert np.isnan(out[:2]).all() and np.isfinite(out[2:]).all()
        dq, dk, dv = mx.grad(lambda *a: block_sparse_attention(*a, layout, segments=ids).sum(), [0, 1, 2])(
            *inputs
        )
        for a in (dq, dk, dv):
            assert np.isfinite(np.array(a)[0, 0, 2:]).all() and np.isnan(np.array(a)[0, 0, :2]).any()


def test_sequences_of_different_length_attend_to_themselves():
    ends = np.array([0, 5, 5, 18, 31])
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal((1, 2, 31, 4)) for _ in range(3))
    layout, ids = BlockLayout.from_cu_seqlens(ends, 8), segment_ids(ends)
    got = np.array(block_sparse_attention(*(array(a) for a in (q, k, v)), layout, segments=ids))
    for a, b in zip(ends[:-1], ends[1:]):
        part = [x[:, :, a:b] for x in (q, k, v)]
        wanted, _ = oracle.attention(*part, np.ones((b - a, b - a), bool), 0.5)
        np.testing.assert_allclose(got[:, :, a:b], wanted, atol=1e-5)


def test_layouts_of_equal_length_share_nothing():
    q, k, v = (array(np.random.default_rng(i).standard_normal((1, 1, 8, 4))) for i in range(3))
    masks = [np.eye(4, dtype=bool), np.tri(4, dtype=bool)]
    for mask in masks * 2:
        got = block_sparse_attention(q, k, v, BlockLayout(mask, 2))
        wanted, _ = oracle.attention(
            np.array(q), np.array(k), np.array(v), np.kron(mask, np.ones((2, 2))) > 0, 0.5
        )
        np.testing.assert_allclose(np.array(got), wanted, atol=1e-5)


def test_same_bits_every_time_and_transformations():
    p = Problem(
        drawn_layout(np.random.default_rng(1).random((2, 6, 6)) < 0.6, (16, 16), (90, 96)), 2, 2, 1, (), d=16
    )
    f = lambda *a: p.call(*a).square().sum()  # noqa: E731
    first = [p.call(*p.inputs()), *mx.grad(f, [0, 1, 2])(*p.inputs())]
    for _ in range(3):
        again = [p.call(*p.inputs()), *mx.grad(f, [0, 1, 2])(*p.inputs())]
        assert all(mx.array_equal(a, b) for a, b in zip(first, again))
    q, k, v = p.inputs()
    assert mx.array_equal(mx.grad(lambda q: f(q, k, v))(q), first[1])  # one input alone
    for wrong in (
        lambda: mx.grad(lambda q: mx.grad(lambda q: f(q, k, v))(q).sum())(q),
        lambda: mx.jvp(lambda q: f(q, k, v), [q], [q]),
    ):
        with pytest.raises(TransformError):
            mx.eval(wrong())


def test_empty_inputs():
    layout = BlockLayout(np.zeros((1, 0, 0), bool), 4)
    zero = mx.zeros((2, 1, 0, 4))
    assert block_sparse_attention(zero, zero, zero, layout).shape == (2, 1, 0, 4)
    none = BlockLayout(np.zeros((2, 3), bool), 2)
    q, k = mx.ones((1, 1, 4, 4)), mx.ones((1, 1, 6, 4))
    assert np.array_equal(np.array(block_sparse_attention(q, k, k, none)), np.zeros((1, 1, 4, 4)))
    for gradient in mx.grad(lambda q, k: block_sparse_attention(q, k, k, none).sum(), [0, 1])(q, k):
        assert not np.array(gradient).any()


L = BlockLayout(np.ones((2, 2), bool), 4)
Q = mx.zeros((2, 4, 8, 3))


def attend(q=Q, k=Q, v=Q, layout=L, **named):
    return block_sparse_attention(q, k, v, layout, **named)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: attend(q=Q[:, :, :7]), ShapeError, "layout has shape"),
        (lambda: attend(q=Q[0]), ShapeError, "q has shape"),
        (lambda: attend(k=Q[:, :3], v=Q[:, :3]), ShapeError, "4 heads, k has 3"),
        (lambda: attend(k=Q[:, :2]), ShapeError, "v has shape"),
        (lambda: attend(k=Q[..., :2]), ShapeError, "k has shape"),
        (lambda: attend(v=Q.astype(mx.float16)), DTypeError, "v is"),
        (lambda: attend(q=np.zeros(Q.shape)), DTypeError, "ndarray"),
        (lambda: attend(layout=BlockLayout(np.ones((3, 2, 2), bool), 4)), ShapeError, "3 heads"),
        (lambda: attend(layout=np.ones((2, 2), bool)), DTypeError, "BlockLayout"),
        (lambda: attend(key_padding_mask=mx.ones((2, 8))), DTypeError, "wanted a bool"),
        (lambda: attend(key_padding_mask=np.ones((2, 8), bool)), DTypeError, r"mx.array\(...\)"),
        (lambda: attend(key_padding_mask=mx.ones((2, 9), mx.bool_)), ShapeError, "key_padding_mask"),
        (lambda: attend(bias=mx.zeros((8, 8))), ShapeError, "bias"),
        (lambda: attend(bias=mx.zeros((2, 2, 8, 8))), ShapeError, "bias"),
        (lambda: attend(bias=mx.ones((1, 1, 8, 8), mx.bool_)), DTypeError, "bias is"),
        (lambda: attend(segments=mx.zeros((8,))), DTypeError, "segments"),
        (lambda: attend(segments=np.zeros(8, np.int32)), DTypeError, r"mx.array\(..., mx.int32\)"),
        (lambda: attend(segments=mx.zeros((7,), mx.int32)), ShapeError, "segments"),
        (lambda: attend(scale=NAN), MLXSparseError, "scale"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_memory_does_not_grow_with_tokens():
    """Beyond inputs, outputs and the layout: what the threads hold for one run of block rows."""
    peaks = {}
    for tokens in (4096, 16384):
        layout = LocalWindow(1, 64, num_sliding_window_blocks=5)(tokens)
        q = mx.random.normal((1, 1, tokens, 32))
        mx.eval(q, block_sparse_attention(q, q, q, layout))  # lists of the layout, buffers of the threads
        tracemalloc.start()
        mx.eval(block_sparse_attention(q, q, q, layout))
        peaks[tokens] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    linear = 16384 / 4096
    assert peaks[16384] < linear * 1.2 * peaks[4096] + 1e6 and peaks[16384] < 16384 * 1024


def test_a_learned_scale_has_a_gradient():
    layout = BlockLayout(np.tri(2, dtype=bool), 3)
    q, k, v, c = mx.random.normal((4, 1, 2, 6, 5), key=mx.random.key(0))
    keys = mx.array([[True] * 5 + [False]])
    q[:, :, 0] = mx.array(np.nan)  # sees no key of its segment
    segments = mx.array([1, 0, 0, 0, 0, 0], mx.int32), mx.zeros((6,), mx.int32)

    def loss(scale):
        y = block_sparse_attention(q, k, v, layout, scale=scale, key_padding_mask=keys, segments=segments)
        return (c * y).sum()

    for shape in ((), (1,), (1, 1, 1)):
        found = mx.grad(loss)(mx.full(shape, 0.7))
        assert found.shape == shape
        np.testing.assert_allclose(found.item(), (loss(0.71) - loss(0.69)).item() / 0.02, rtol=1e-3)
    np.testing.assert_allclose(loss(mx.array(0.7)).item(), loss(0.7).item(), rtol=1e-5)
    for wrong in (mx.ones((2,)), "1", float("inf")):
        with pytest.raises(MLXSparseError, match="scale must be a finite number"):
            loss(wrong)
