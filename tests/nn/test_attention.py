"""Attention modules: the operators with projections, and what padding, batches and contexts do to them."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse import nn, ops
from mlxsparse.engine.activation import gelu
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError

from .test_layers import cloud, poisoned

pytestmark = pytest.mark.usefixtures("device")


def numbers(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32))


@pytest.mark.parametrize("mode", ["window", "serialized", "full"])
def test_self_attention_is_its_operator(mode):
    x = cloud(channels=24)
    layer = nn.SparseAttention(
        24, 2, mode=mode, window=(4, 3, 5), shift=1, patch_size=16, order="morton", qk_norm=True
    )
    layer.q_scale = 1 + mx.random.normal((2, 12))
    q, k, v = (
        numbers(a)
        for a in mx.split((x.feats @ layer.qkv.weight.T + layer.qkv.bias).reshape(-1, 6, 12), 3, axis=1)
    )
    q, k = (a / np.sqrt((a**2).mean(axis=2, keepdims=True) + 1e-6) for a in (q, k))
    q = q * np.array(layer.q_scale)
    q, k = (ops.rope3d(x, mx.array(a.astype(np.float32))) for a in (q, k))
    v = mx.array(v)
    y = {
        "window": lambda: ops.window_attention(x, q, k, v, (4, 3, 5), 1),
        "serialized": lambda: ops.serialized_attention(x, q, k, v, 16, "morton"),
        "full": lambda: ops.batch_attention(x, q, k, v),
    }[mode]()
    want = y.reshape(x.capacity, 24) @ layer.out.weight.T + layer.out.bias
    got = layer(x)
    assert got.key is x.key and np.allclose(numbers(got.feats), numbers(want), atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_block_with_padding_and_gradients(dtype):
    x = cloud(channels=12, dtype=dtype)
    block = nn.SparseTransformerBlock(
        12, 2, window=4, shift=2, context_dims=5, positional_conv=True, qk_norm=True
    )
    block.set_dtype(dtype)
    context = mx.random.normal((2, 7, 5)).astype(dtype)
    want = block(x, context)
    wide = poisoned(x)
    got = block(wide, context)
    n = x.capacity
    assert got.dtype == dtype and (numbers(got.feats)[n:] == 0).all()
    assert np.allclose(
        numbers(got.feats)[:n], numbers(want.feats), atol=1e-5 if dtype == mx.float32 else 2e-2
    )

    def loss(block, x):
        return block(x, context).feats.astype(mx.float32).square().sum()

    _, narrow = mlx.nn.value_and_grad(block, loss)(block, x)
    _, broad = mlx.nn.value_and_grad(block, loss)(block, wide)
    for (name, a), (_, b) in zip(tree_flatten(narrow), tree_flatten(broad)):
        a, b = numbers(a), numbers(b)
        assert np.isfinite(b).all(), name
        assert np.allclose(a, b, atol=(1e-4 if dtype == mx.float32 else 5e-2) * max(1, np.abs(a).max())), name


def test_a_sparse_context_is_the_dense_one():
    x = cloud(channels=12)
    layer = nn.SparseAttention(12, 2, context_dims=5)
    tokens = mx.random.normal((2, 3, 5))
    rows = np.array([[b, 0, 0, i] for b in range(2) for i in range(3)], np.int32)
    sparse = ms.SparseTensor(mx.array(rows), tokens.reshape(6, 5), batch_size=2)
    assert np.allclose(numbers(layer(x, tokens).feats), numbers(layer(x, sparse).feats), atol=1e-6)
    assert layer(x, sparse).key is x.key


def test_a_window_is_seen_whole_and_nothing_else():
    """A change at one site reaches its window, and through the shifted second block its neighbours."""
    coords = np.array([[0, 0, 0, z] for z in range(16)], np.int32)
    feats = np.random.default_rng(0).standard_normal((16, 12)).astype(np.float32)
    first = nn.SparseTransformerBlock(12, 2, window=4)
    second = nn.SparseTransformerBlock(12, 2, window=4, shift=2)
    changed = feats.copy()
    changed[5, 0] += 2  # not all channels, which the norm would take away

    def moved(*blocks):
        found = []
        for f in (feats, changed):
            x = ms.SparseTensor(mx.array(coords), mx.array(f))
            for block in blocks:
                x = block(x)
            found.append(numbers(x.feats))
        return np.flatnonzero(np.abs(found[0] - found[1]).max(axis=1) > 1e-7).tolist()

    assert moved(first) == [4, 5, 6, 7]
    assert moved(first, second) == list(range(2, 10))


def test_no_rows():
    x = ms.SparseTensor(mx.zeros((0, 4), mx.int32), mx.zeros((0, 12)), batch_size=2)
    assert nn.SparseTransformerBlock(12, 2)(x).feats.shape == (0, 12)


def test_bad_arguments():
    x = cloud(channels=12)
    for call, error in (
        (lambda: nn.SparseAttention(12, 5), ShapeError),
        (lambda: nn.SparseAttention(12, 2, mode="global"), MLXSparseError),
        (lambda: nn.SparseAttention(8, 2), ShapeError),  # 4 channels a head hold no three axes
        (lambda: nn.SparseAttention(12, 2)(x, x), ShapeError),
        (lambda: nn.SparseAttention(12, 2, context_dims=12)(x), ShapeError),
        (lambda: nn.SparseAttention(12, 2, context_dims=5)(x, mx.ones((3, 2, 5))), ShapeError),
        (lambda: nn.SparseAttention(12, 2, context_dims=5)(x, mx.ones((2, 2, 4))), ShapeError),
        (lambda: nn.SparseTransformerBlock(12, 2)(x, x), ShapeError),
        (lambda: nn.SparseAttention(12, 2.0), ShapeError),
        (lambda: nn.SparseAttention("a", 2), ShapeError),
        (lambda: nn.SparseAttention(12, 2, window="a"), ShapeError),
        (lambda: nn.SparseAttention(12, 2, shift=0.5), ShapeError),
        (lambda: nn.SparseAttention(12, 2, patch_size=0), ShapeError),
        (lambda: nn.SparseAttention(12, 2, order="peano"), MLXSparseError),
        (lambda: nn.SparseTransformerBlock(12, 2, mlp_ratio="a"), MLXSparseError),
        (lambda: nn.RoPE3d("6"), ShapeError),
        (lambda: nn.RoPE3d(6, base="3"), MLXSparseError),
        (lambda: nn.RoPE3d(6, scale=None), MLXSparseError),
        (lambda: nn.RoPE3d(6)(x, np.ones((x.capacity, 1, 6), np.float32)), DTypeError),
        (lambda: nn.RoPE3d(5), ShapeError),
        (lambda: nn.RoPE3d(6)(x, mx.ones((x.capacity, 1, 12))), ShapeError),
    ):
        with pytest.raises(error):
            call()


@pytest.mark.parametrize("context", [np.ones((2, 3, 5), np.float32), mx.ones((2, 3, 5), mx.int32), [1.0]])
def test_a_context_that_is_none_is_named(context):
    x = cloud(channels=12)
    for layer in (nn.SparseAttention, nn.SparseTransformerBlock):
        with pytest.raises(DTypeError, match="context must be a SparseTensor or a floating MLX array"):
            layer(12, 2, context_dims=5)(x, context)


def test_numbers_of_numpy():
    x = cloud(channels=12)
    for mode in ("window", "serialized", "full"):
        sizes = {"mode": mode, "window": np.int64(4), "patch_size": np.int64(16)}
        layer = nn.SparseAttention(np.int64(12), np.int64(2), **sizes)
        wanted = nn.SparseAttention(12, 2, mode=mode, window=4, patch_size=16)
        wanted.update(layer.parameters())
        assert mx.array_equal(layer(x).feats, wanted(x).feats)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mode", "serialized"), ("window", (8, 8, 4)), ("shift", 4), ("patch_size", 16), ("order", "morton")],
)
def test_cross_attention_refuses_what_it_would_ignore(name, value):
    with pytest.raises(MLXSparseError, match=f"no use for {name}: a site sees the whole context"):
        nn.SparseAttention(12, 2, context_dims=5, **{name: value})
    assert "context_dims=5" in repr(nn.SparseAttention(12, 2, context_dims=5, mode="full", window=[8, 8, 8]))
    nn.SparseTransformerBlock(12, 2, context_dims=5, **{name: value})  # for its self attention


def test_names_and_representation():
    block = nn.SparseTransformerBlock(12, 2, mode="serialized", patch_size=64)
    names = {name for name, _ in tree_flatten(block.parameters())}
    assert {"attention.qkv.weight", "attention.out.bias", "mlp_in.weight", "mlp_norm.weight"} <= names
    assert "patch_size=64, order='hilbert'" in repr(block)


def test_gelu_is_mlx_s():
    x = mx.array(np.concatenate([np.linspace(-12, 12, 4001), [0, 1e-30, -1e-30, np.inf]]).astype(np.float32))[
        :, None
    ]
    got, want = gelu(x, len(x)), mlx.nn.gelu(x)
    assert np.allclose(numbers(got), numbers(want), atol=2e-6)
    a = x[:-1]
    _, (found,) = mx.vjp(lambda a: gelu(a, len(a)), [a], [mx.ones_like(a)])
    _, (wanted,) = mx.vjp(mlx.nn.gelu, [a], [mx.ones_like(a)])
    assert np.allclose(numbers(found), numbers(wanted), atol=3e-6)
    part = gelu(mx.full((4, 3), float("nan")), 0)
    assert (numbers(part) == 0).all()
