"""Layers with block-sparse weights equal dense ones with zeros for absent blocks; attention its formula."""

from __future__ import annotations

import copy
import pickle

import mlx.core as mx
import mlx.nn
import mlx.optimizers
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mlxsparse import SparseTensor, blocksparse, nn, ops
from mlxsparse.backend import untrained
from mlxsparse.blocksparse import BlockLayout, BlockSparseLinear, LocalWindow, SparseMultiheadAttention
from mlxsparse.errors import CheckpointError, DTypeError, MLXSparseError, ShapeError
from mlxsparse.models.base import WEIGHTS, load_weights
from mlxsparse.testing import oracle

from ..numeric import poisoned

pytestmark = pytest.mark.usefixtures("device")
RNG = np.random.default_rng(0)
COORDS = np.unique(RNG.integers(0, 5, (60, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)


def sites(channels, dtype=mx.float32):
    return SparseTensor(
        COORDS, mx.array(RNG.standard_normal((len(COORDS), channels)).astype(np.float32)).astype(dtype)
    )


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(np.array(a.astype(mx.float32)), np.asarray(b, np.float32), atol=atol)


@pytest.mark.parametrize("sizes", [(12, 8), (11, 7)])
def test_linear(sizes):
    mask = np.array([[True, False], [False, True], [True, True]])
    layer = BlockSparseLinear(*sizes, 4, mask)
    dense = np.array(blocksparse.unpack(layer.weight[None], layer.layout))[0, 0]
    x = RNG.standard_normal((2, 3, sizes[0])).astype(np.float32)
    close(layer(mx.array(x)), x @ dense + np.array(layer.bias))
    assert set(layer.trainable_parameters()) == {"weight", "bias"} and layer.weight.shape == (4, 4, 4)
    assert np.array_equal(layer.parameters()["weight_blocks"], mask)
    assert layer(mx.array(x, mx.float16)).dtype == mx.float16
    assert layer(mx.zeros((0, sizes[0]))).shape == (0, sizes[1])
    loss = lambda layer, x: layer(x).square().sum()  # noqa: E731
    _, gradients = mlx.nn.value_and_grad(layer, lambda x: loss(layer, x))(mx.array(x))
    ct = 2 * (x @ dense + np.array(layer.bias)).reshape(-1, sizes[1])
    wanted = oracle.block_pack((x.reshape(-1, sizes[0]).T @ ct)[None, None], mask[None], (4, 4))[0]
    close(gradients["weight"], wanted, 1e-4)
    close(gradients["bias"], ct.sum(axis=0), 1e-4)


def test_linear_on_a_sparse_tensor():
    layer = BlockSparseLinear(8, 4, 4, np.array([[True], [False]]))
    x = sites(8)
    y = layer(x)
    assert y.key is x.key
    close(y.feats, layer(x.feats))
    dirty = poisoned(x)
    close(layer(dirty).feats[: x.capacity], y.feats)
    assert not np.array(layer(dirty).feats[x.capacity :]).any()
    gradient = mlx.nn.value_and_grad(layer, lambda x: layer(x).feats.square().sum())(dirty)[1]
    assert np.isfinite(np.array(gradient["weight"])).all()


def test_the_host_computes_no_padding_rows(monkeypatch):
    from mlxsparse.blocksparse import modules

    rows, product = [], modules.dds
    monkeypatch.setattr(modules, "dds", lambda x, *a: rows.append(x.shape[2]) or product(x, *a))
    with mx.stream(mx.cpu):
        layer, x = BlockSparseLinear(8, 4, 4, np.array([[True], [False]])), sites(8)
        for wide in (x.with_capacity(x.capacity + 9), poisoned(x, 9)):
            y = layer(wide)
            close(y.feats, np.pad(layer(x).feats, ((0, 9), (0, 0))))
    assert rows == [x.capacity] * 4


def test_update_layout_carries_surviving_blocks():
    mask = np.array([[True, False], [True, True]])
    layer = BlockSparseLinear(8, 8, 4, mask)
    before = np.array(blocksparse.unpack(layer.weight[None], layer.layout))[0, 0]
    new = np.array([[True, True], [False, True]])
    layer.update_layout(new)
    after = np.array(blocksparse.unpack(layer.weight[None], layer.layout))[0, 0]
    kept = np.kron(mask & new, np.ones((4, 4)))
    assert np.array_equal(after, before * kept) and layer.layout == BlockLayout(new, 4)


def test_training_moves_only_stored_blocks():
    layer = BlockSparseLinear(8, 8, 4, np.eye(2, dtype=bool))
    optimizer = mlx.optimizers.Adam(0.01)
    x = mx.array(RNG.standard_normal((16, 8)).astype(np.float32))
    target = x[:, ::-1]
    losses = []
    for _ in range(20):
        loss, gradients = mlx.nn.value_and_grad(layer, lambda: (layer(x) - target).square().mean())()
        optimizer.update(layer, gradients)
        losses.append(float(loss))
    assert losses[-1] < losses[0] and layer.weight.shape == (2, 4, 4)


@pytest.mark.parametrize("named", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}])
@pytest.mark.parametrize("channels", [(8, 12), (7, 10)])
def test_conv(named, channels):
    ci, co = channels
    mask = np.random.default_rng(1).random((3, 3, 3, 3, 2)) < 0.3
    mask[:, 1] = False  # taps without any block
    layer = nn.BlockSparseConv3d(ci, co, 3, 4, mask, **named)
    layer.bias = mx.array(RNG.standard_normal(co).astype(np.float32))
    whole = np.zeros((12, 27, 8), np.float32)
    for (o, kx, ky, kz, i), block in zip(np.argwhere(mask), np.array(layer.weight)):
        whole[o * 4 : o * 4 + 4, (kx * 3 + ky) * 3 + kz, i * 4 : i * 4 + 4] = block
    dense = mx.array(whole[:co, :, :ci].reshape(co, 3, 3, 3, ci))
    x = sites(ci)

    def reference(x, w):
        if "stride" in named:
            return ops.conv3d(x, w, layer.bias, **named)
        return ops.subm_conv3d(x, w, layer.bias, **named)

    y = layer(x)
    wanted = reference(x, dense)
    assert mx.array_equal(y.coords, wanted.coords)
    close(y.feats, wanted.feats)
    if "stride" not in named:
        assert y.key is x.key
    _, gradients = mlx.nn.value_and_grad(layer, lambda x: layer(x).feats.square().sum())(x)
    dw = np.array(mx.grad(lambda w: reference(x, w).feats.square().sum())(dense)).reshape(co, 27, ci)
    padded = np.zeros_like(whole)
    padded[:co, :, :ci] = dw
    wanted = [
        padded[o * 4 : o * 4 + 4, (kx * 3 + ky) * 3 + kz, i * 4 : i * 4 + 4]
        for o, kx, ky, kz, i in np.argwhere(mask)
    ]
    close(gradients["weight"], np.array(wanted), 1e-3)
    assert set(layer.trainable_parameters()) == {"weight", "bias"}
    assert np.array_equal(layer.parameters()["weight_blocks"], mask)


def test_conv_update_layout_and_empty():
    mask = np.random.default_rng(2).random((2, 3, 1, 1, 2)) < 0.5
    layer = nn.BlockSparseConv3d(8, 8, (3, 1, 1), 4, mask, bias=False)
    old = {tuple(p): np.array(b) for p, b in zip(np.argwhere(mask), layer.weight)}
    layer.update_layout(~mask | mask)
    for place, block in zip(np.argwhere(layer.layout), layer.weight):
        assert np.array_equal(np.array(block), old.get(tuple(place), np.zeros((4, 4))))
    layer.update_layout(np.zeros_like(mask))
    assert not np.array(layer(sites(8)).feats).any()


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(key_heads, causal):
    layout = LocalWindow(1, 4)(18)
    layer = SparseMultiheadAttention(16, 4, layout, num_key_heads=key_heads, causal=causal)
    x = RNG.standard_normal((2, 18, 16)).astype(np.float32)
    keys = RNG.random((2, 18)) < 0.8

    def project(name, a):
        return a @ np.array(layer[f"{name}_weight"]).T + np.array(layer[f"{name}_bias"])

    def heads(name, count):
        return project(name, x).reshape(2, 18, count, 4).swapaxes(1, 2)

    allowed = oracle.element_mask(layout.to_dense(), (4, 4), (18, 18))[None] & keys[:, None, None]
    if causal:
        allowed = allowed & np.tri(18, dtype=bool)
    out, _ = oracle.attention(heads("q", 4), heads("k", key_heads), heads("v", key_heads), allowed, 0.5)
    wanted = project("out", out.swapaxes(1, 2).reshape(2, 18, 16))
    close(layer(mx.array(x), key_padding_mask=mx.array(keys)), wanted)
    assert len(layer.parameters()) == 8 and "num_heads=4" in repr(layer)


def test_cross_attention_and_other_layouts():
    mask = np.ones((3, 2), bool)
    layer = SparseMultiheadAttention(8, 2, BlockLayout(mask, 4, shape=(10, 7)), bias=False)
    q, k = (mx.array(RNG.standard_normal((1, n, 8)).astype(np.float32)) for n in (10, 7))
    assert layer(q, k).shape == (1, 10, 8)
    assert layer(k, q, layout=BlockLayout(mask.T, 4, shape=(7, 10))).shape == (1, 7, 8)
    _, gradients = mlx.nn.value_and_grad(layer, lambda: layer(q, k).square().sum())()
    assert all(float(mx.abs(g).max()) > 0 for g in gradients.values())


@pytest.mark.parametrize("shape", [(2, 0, 4), (0, 4, 4), (0, 0, 4)])
def test_inputs_without_elements(shape):
    """MLX refuses reshape(.., -1) there, with a message about itself."""
    z, n, _ = shape
    layout = BlockLayout(np.ones((n // 2, n // 2), bool), 2)
    layer, x = SparseMultiheadAttention(4, 2, layout), mx.zeros(shape)
    assert layer(x).shape == shape
    assert mx.grad(lambda x: layer(x).sum())(x).shape == shape
    assert BlockSparseLinear(4, 6, 2, np.ones((2, 3), bool))(x).shape == (z, n, 6)
    with pytest.raises(ShapeError, match="layout has shape"):
        layer(mx.zeros((z, n + 2, 4)))


LAYOUT = np.ones((2, 2), bool)


def pointwise(**named):
    return nn.BlockSparseConv3d(8, 8, 1, 4, LAYOUT.reshape(2, 1, 1, 1, 2), **named)


POINTWISE = pointwise()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: BlockSparseLinear(9, 8, 4, LAYOUT), ShapeError, "shape"),
        (lambda: BlockSparseLinear(8, 8, 4, np.ones((2, 2, 2), bool)), ShapeError, "heads"),
        (lambda: BlockSparseLinear(8, 8, 4, LAYOUT)(mx.zeros((3, 7))), ShapeError, "x has shape"),
        (lambda: BlockSparseLinear(8, 8, 4, LAYOUT)(np.zeros((3, 8))), DTypeError, "ndarray"),
        (lambda: BlockSparseLinear(8, 8, 4, LAYOUT * 2), MLXSparseError, "other integers"),
        (lambda: nn.BlockSparseConv3d(8, 8, 3, 4, LAYOUT), ShapeError, "layout has shape"),
        (lambda: POINTWISE(sites(4)), ShapeError, "channels"),
        (lambda: POINTWISE(mx.zeros(3)), DTypeError, "SparseTensor"),
        (lambda: POINTWISE(sites(8), out=sites(8)), ShapeError, "takes no out="),
        (lambda: POINTWISE(sites(8), capacity=64), ShapeError, "takes no capacity="),
        (lambda: pointwise(support="parents"), ShapeError, "has no support; give"),
        (lambda: pointwise(stride=2, support="all"), ShapeError, 'support must be "touched"'),
        (lambda: SparseMultiheadAttention(9, 2, LAYOUT, 4), ShapeError, "num_heads=2"),
        (lambda: SparseMultiheadAttention(8, 2, np.ones((3, 2, 2), bool), 4), ShapeError, "3 heads"),
        (lambda: SparseMultiheadAttention(8, 2, LAYOUT, 4)(mx.zeros((1, 8, 9))), ShapeError, "input"),
        (lambda: SparseMultiheadAttention(8, 2, LAYOUT, 4)(mx.zeros((1, 9, 8))), ShapeError, "layout has"),
    ],
)  # fmt: skip
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("of", ["caller", "layer"])
def test_a_mask_that_is_changed_in_place_does_not_shift_the_weights(of):
    """The layer kept the caller's array: update_layout then took the new mask for the old one."""
    mask = np.ones((2, 1, 1, 1, 2), bool)
    layer = nn.BlockSparseConv3d(4, 4, 1, 2, mask)
    layer.weight = mx.arange(4).reshape(4, 1, 1) * mx.ones((4, 2, 2))
    if of == "layer":
        with pytest.raises(ValueError, match="read-only"):
            layer.layout[0] = False
        mask = layer.layout.copy()
    mask[0, 0, 0, 0, 0] = False
    assert layer.layout.all()
    layer.update_layout(mask)
    assert layer.weight[:, 0, 0].tolist() == [1, 2, 3]


CHESS = np.indices((2, 3, 1, 1, 2)).sum(axis=0) % 2 > 0
STORED = {
    "linear": lambda flip=False: nn.BlockSparseLinear(6, 4, (2, 3), np.eye(3, 2, dtype=bool) ^ flip),
    "conv": lambda flip=False: nn.BlockSparseConv3d(4, 6, (3, 1, 1), (4, 2), CHESS ^ flip),
}


def saved(layer, folder):
    path = str(folder / "w.safetensors")
    nn.Sequential(layer).save_weights(path)
    return path


def other(kind):
    """The layer with as many blocks, at other places."""
    layer = STORED[kind]()
    layer.update_layout(np.roll(np.array(layer.weight_blocks), 1, axis=0))
    layer.weight = mx.random.normal(layer.weight.shape)
    return layer


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", STORED)
def test_weights_of_other_blocks_are_not_loaded(kind, strict, tmp_path):
    layer, fresh, path = other(kind), STORED[kind](), saved(other(kind), tmp_path)
    match = r"other blocks than this BlockSparse.*update_layout.*some weights may have been put in already"
    with pytest.raises(CheckpointError, match=match):
        nn.Sequential(fresh).load_weights(path, strict=strict)
    assert mx.array_equal(fresh.weight_blocks, STORED[kind]().weight_blocks)
    flat = {**layer.parameters(), "weight_blocks": mx.ones((layer.weight_blocks.size,), mx.bool_)}
    with pytest.raises(ValueError, match="shape"):
        STORED[kind]().load_weights(list(flat.items()), strict=strict)
    fresh.update_layout(mx.load(path)["layers.0.weight_blocks"])
    nn.Sequential(fresh).load_weights(path, strict=strict)
    assert mx.array_equal(fresh.weight_blocks, layer.weight_blocks)
    assert mx.array_equal(fresh.weight, mx.load(path)["layers.0.weight"])
    fewer = STORED[kind]()
    fewer.update_layout(np.array(fewer.weight_blocks) & False)
    with pytest.raises(ValueError, match="weight"):
        fewer.load_weights(list(layer.parameters().items()), strict=strict)


@pytest.mark.parametrize("dtype", [mx.bool_, mx.float16, mx.bfloat16, mx.int32])
@pytest.mark.parametrize("kind", STORED)
def test_a_directory_of_other_blocks_changes_no_weights(kind, dtype, tmp_path):
    theirs, mine = nn.Sequential(nn.Linear(4, 4), other(kind)), nn.Sequential(nn.Linear(4, 4), STORED[kind]())
    arrays = {k: v.astype(dtype) if "_blocks" in k else v for k, v in tree_flatten(theirs.parameters())}
    mx.save_safetensors(str(tmp_path / WEIGHTS), arrays)
    before = {k: np.array(v) for k, v in tree_flatten(mine.parameters())}
    with pytest.raises(CheckpointError, match=r"^layers\.1\.weight_blocks: .* places differ\)[^;]*; [^;]*$"):
        load_weights(mine, tmp_path)
    assert all(np.array_equal(v, before[k]) for k, v in tree_flatten(mine.parameters()))
    mine.layers[1].update_layout(theirs.layers[1].weight_blocks)
    load_weights(mine, tmp_path)
    assert mx.array_equal(mine.layers[1].weight, theirs.layers[1].weight)
    assert mine.layers[1].weight_blocks.dtype == mx.bool_


@pytest.mark.parametrize("kind", STORED)
def test_weights_that_say_no_blocks_load_where_asked_for(kind):
    layer, fresh = STORED[kind](), STORED[kind]()
    older = [(k, v) for k, v in layer.parameters().items() if k != "weight_blocks"]
    with pytest.raises(ValueError, match="weight_blocks"):
        fresh.load_weights(older)
    fresh.load_weights(older, strict=False)
    assert mx.array_equal(fresh.weight, layer.weight)


def averaged(model):
    """A step of an average of weights."""
    mean = tree_map(lambda a, b: 0.99 * a + 0.01 * b, model.parameters(), copy.deepcopy(model).parameters())
    model.update(mean)


def traced(model):
    """A function of the parameters, compiled: they have no values there."""
    held = model.layers[0]
    before = dict(held.parameters())
    mx.compile(lambda p: model.update(p).layers[0].bias * 2)(model.parameters())
    mx.vmap(lambda b: held.update({"weight_blocks": b}).bias)(before["weight_blocks"][None])
    held.update({k: v for k, v in before.items() if k != "weight_blocks"})


OF_ALL = {
    "half": lambda model: model.set_dtype(mx.float16),
    "cast": lambda model: model.apply(lambda a: a.astype(mx.bfloat16)),
    "uniform": lambda model: model.apply(mlx.nn.init.uniform(0.1, 0.2)),
    "constant": lambda model: model.apply(mlx.nn.init.constant(0.0)),
    "ones": lambda model: model.apply(mlx.nn.init.constant(1.0)),
    "zeros": lambda model: model.apply(mx.zeros_like),
    "ones like": lambda model: model.apply(mx.ones_like),
    "product": lambda model: model.apply(lambda a: a * 0),
    "stacked": lambda model: model.update(tree_map(lambda *a: mx.stack(a), *[model.parameters()] * 2)),
    "average": averaged,
    "copied": lambda model: model.apply(lambda a: mx.array(a)),
    "traced": traced,
}


@pytest.mark.parametrize("name", OF_ALL)
@pytest.mark.parametrize("kind", STORED)
def test_which_blocks_are_stored_is_nothing_that_functions_of_all_parameters_change(kind, name):
    layer = other(kind)
    model, blocks = nn.Sequential(layer), np.array(layer.weight_blocks)
    OF_ALL[name](model)
    for made in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert made.weight_blocks.dtype == mx.bool_ and np.array_equal(np.array(made.weight_blocks), blocks)
        assert set(made.trainable_parameters()) == {"weight", "bias"}
        with pytest.raises(CheckpointError, match="places differ"):
            made.update({"weight_blocks": ~layer.weight_blocks})


@pytest.mark.parametrize("kind", STORED)
def test_an_average_of_weights_reads_no_blocks(kind, monkeypatch):
    model, read = nn.Sequential(other(kind)), []
    monkeypatch.setattr(untrained, "view", lambda a: read.append(a) or np.array(a))
    averaged(model)
    model.update(model.parameters())
    assert not read
    model.update(copy.deepcopy(model).parameters())
    assert len(read) == 1  # of the other model alone


@pytest.mark.parametrize("value", [None, [1, 0], np.ones((3, 2), bool), 1.0])
@pytest.mark.parametrize("kind", STORED)
def test_which_blocks_are_stored_is_an_array(kind, value):
    layer = STORED[kind]()
    with pytest.raises(DTypeError, match=r"weight_blocks .* MLX array.*layer\.update_layout\(mask\)"):
        layer.weight_blocks = value
    with pytest.raises(DTypeError, match="weight_blocks"):
        layer.update({"weight_blocks": value}, strict=False)
    assert mx.array_equal(layer.parameters()["weight_blocks"], STORED[kind]().weight_blocks)


@pytest.mark.parametrize("kind", STORED)
def test_which_blocks_are_stored_is_nothing_that_is_trained(kind):
    layer = other(kind)
    model = nn.Sequential(layer)
    model.freeze()
    model.unfreeze()
    model.train()
    optimizer = mlx.optimizers.Adam(0.01)
    optimizer.init(model.trainable_parameters())
    assert optimizer.state["layers"][0].keys() == {"weight", "bias"}
