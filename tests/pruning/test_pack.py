"""Block pruning packs to BlockSparseConv3d and BlockSparseLinear: same values, state, JSON."""

from __future__ import annotations

import json

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxsparse import SparseTensor, nn
from mlxsparse.blocks import BlockSpec, Pruner, View, compress, restructure, structure_of, targets
from mlxsparse.blocks.flow import example
from mlxsparse.blocksparse import BlockLayout, BlockSparseLinear
from mlxsparse.errors import CheckpointError, CouplingError, ShapeError
from mlxsparse.models.base import load_weights, save_model
from mlxsparse.nn.block_conv import BlockSparseConv3d


class Net(mlx.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.SubmConv3d(4, 8)
        self.down = nn.Conv3d(8, 8, 2, 2)
        self.b = nn.SubmConv3d(8, 12, bias=False)
        self.up = nn.ConvTranspose3d(12, 8, 2, 2)
        self.head = nn.Linear(8, 4)

    def __call__(self, x: SparseTensor) -> SparseTensor:
        y = self.a(x)
        return self.head(self.up(self.b(self.down(y)), out=y))


def net():
    mx.random.seed(0)
    return Net()


def flat(tree):
    return dict(tree_flatten(tree))


def loss_of(model, x):
    return (model(x).feats ** 2).mean()


@pytest.mark.parametrize("block", [(4, 4), (2, 4), (4, 2)])
@pytest.mark.parametrize("sparsity", [0.3, 0.6, 1.0])
def test_packed_equals_masked(block, sparsity):
    model = net()
    x = example(model, 120)
    Pruner("blocks", sparsity, block=block).attach(model)
    small = compress(model, sample=x)
    assert isinstance(small.b, BlockSparseConv3d) and isinstance(small.down, BlockSparseConv3d)
    assert isinstance(small.up, nn.ConvTranspose3d)
    assert small.b.weight.shape[1:] == block
    expected = np.array(model(x).feats)
    np.testing.assert_allclose(np.array(small(x).feats), expected, atol=1e-5)
    size = sum(v.size for v in flat(small.parameters()).values())
    assert size < sum(v.size for k, v in flat(model.parameters()).items() if not k.endswith("_keep"))
    text = json.dumps(structure_of(small))
    fresh = restructure(Net(), json.loads(text))
    fresh.load_weights(tree_flatten(small.parameters()))
    np.testing.assert_allclose(np.array(fresh(x).feats), np.array(small(x).feats), atol=1e-6)
    broken = json.loads(text)
    broken["b"]["packed"]["mask"] = ""
    with pytest.raises(CheckpointError, match="'b'"):
        restructure(Net(), broken)


def test_chosen_targets_of_blocks_are_packed_as_all_of_them():
    """Nothing said which blocks they are: the model stayed as large as it was."""
    model = net()
    chosen = [target for target in targets(model, "blocks", block=(4, 4)) if target.name == "b"]
    Pruner(chosen, 0.5).attach(model)
    small = compress(model)
    assert isinstance(small.b, BlockSparseConv3d) and isinstance(small.down, nn.Conv3d)
    with pytest.raises(CouplingError, match=r"in blocks of \(5, 5\), which must divide its channels"):
        targets(model, "blocks", block=(5, 5))


def test_state_goes_through_the_same_gather_and_training_goes_on_alike():
    model, optimizer = net(), optim.Adam(0.01)
    x = example(model, 80)
    Pruner("blocks", 0.5, block=(4, 4)).attach(model)
    step = mlx.nn.value_and_grad(model, loss_of)
    for _ in range(3):
        optimizer.update(model, step(model, x)[1])
    other = optim.Adam(0.01)
    other.state = dict(optimizer.state)
    small = compress(model, optimizer=other, sample=x)
    assert other.state["b"]["weight"]["m"].shape == small.b.weight.shape
    for m, o in ((model, optimizer), (small, other)):
        o.update(m, mlx.nn.value_and_grad(m, loss_of)(m, x)[1])
    expected = np.array(model(x).feats)
    np.testing.assert_allclose(np.array(small(x).feats), expected, atol=2e-4 * np.abs(expected).max())


def test_channels_taps_and_blocks_together():
    model = net()
    x = example(model, 120)
    Pruner("channels", 0.25).attach(model)
    Pruner("offsets", 0.5).attach(model)
    conv = model.b
    keep = np.array(conv.weight_keep)
    keep[:4, :, :, :, :4] = False
    conv.weight_keep = mx.array(keep)
    small = compress(model, sample=x, block=(3, 2))
    assert isinstance(small.b, BlockSparseConv3d) and len(small.b._taps) < 27
    np.testing.assert_allclose(np.array(small(x).feats), np.array(model(x).feats), atol=1e-5)


def test_dense_linear_layers_pack_too_and_layouts_come_from_specs():
    mx.random.seed(0)
    layer = mlx.nn.Linear(8, 6)
    model = Wrapped(layer)
    spec = BlockSpec(View.of(model, "layer.weight"), (3, 4))
    keep = mx.array([[True, False], [False, True]])
    spec.keep_blocks(keep)
    small = compress(model, sample=example(nn.SubmConv3d(8, 2), 20), block=(3, 4))
    assert isinstance(small.layer, BlockSparseLinear) and small.layer.weight.shape == (2, 4, 3)
    assert small.layer.layout == BlockLayout(np.array(keep).T, (4, 3), shape=(8, 6))
    layout = BlockLayout.from_spec(spec, keep)
    assert layout.nnz == 2 and layout.shape == (6, 8) and layout.block == (3, 4)


class Wrapped(mlx.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def __call__(self, x):
        return self.layer(x.feats)


class Shared(mlx.nn.Module):
    """A layer under two names, and one in a list that has two."""

    def __init__(self):
        super().__init__()
        self.b, self.d = nn.SubmConv3d(4, 4), nn.Sequential(nn.SubmConv3d(4, 4))
        self.c, self.e = self.b, self.d

    def __call__(self, x):
        return self.e(self.d(self.c(self.b(x))))


def test_a_shared_layer_that_is_pruned_by_blocks_stays_shared():
    model = Shared()
    x = example(model, 60)
    Pruner("blocks", 0.5, block=(2, 2)).attach(model)
    expected = np.array(model(x).feats)
    small = compress(model)
    assert isinstance(small.b, BlockSparseConv3d) and small.c is small.b
    assert isinstance(small.d.layers[0], BlockSparseConv3d) and small.e is small.d
    np.testing.assert_allclose(np.array(small(x).feats), expected, atol=1e-5)
    optimizer = optim.Adam(0.01)
    optimizer.init(model.trainable_parameters())
    small = compress(model, optimizer=optimizer)
    assert optimizer.state["c"]["weight"]["m"].shape == small.c.weight.shape


def restored(fresh, model):
    fresh = restructure(fresh, json.loads(json.dumps(structure_of(model))))
    return fresh.load_weights(tree_flatten(model.parameters()))


def test_the_structure_has_the_layout_of_now():
    model = net()
    x = example(model, 120)
    Pruner("blocks", 0.5, block=(2, 2)).attach(model)
    small = compress(model, sample=x)
    head = small.head.layout.to_dense()[0]
    for layer, layout in ((small.b, small.b.layout), (small.down, small.down.layout), (small.head, head)):
        layer.update_layout(np.roll(layout, 1, axis=0))
        layer.weight = mx.random.normal(layer.weight.shape)
    fresh = restored(Net(), small)
    assert np.array_equal(fresh.b.layout, small.b.layout) and fresh.head.layout == small.head.layout
    np.testing.assert_array_equal(np.array(fresh(x).feats), np.array(small(x).feats))
    small.b.update_layout(~small.b.layout)  # another number of blocks
    np.testing.assert_array_equal(np.array(restored(Net(), small)(x).feats), np.array(small(x).feats))


def built():
    conv = nn.BlockSparseConv3d(4, 6, (3, 1, 1), (4, 2), np.arange(12).reshape(2, 3, 1, 1, 2) % 3 > 0)
    return nn.Sequential(conv, nn.BlockSparseLinear(6, 4, (2, 3), np.eye(3, 2, dtype=bool), bias=False))


def test_block_sparse_layers_that_a_model_was_built_with_get_the_layout_of_now():
    model, x = built(), example(nn.SubmConv3d(4, 2), 60)
    conv, linear = model.layers
    conv.update_layout(~conv.layout)
    linear.update_layout(np.array([[False, True], [True, True], [True, False]]))
    linear.weight = mx.random.normal(linear.weight.shape)
    conv.weight = mx.random.normal(conv.weight.shape)
    fresh = restored(built(), model)
    np.testing.assert_array_equal(np.array(fresh(x).feats), np.array(model(x).feats))
    older = structure_of(built())
    for entry in older.values():
        entry["packed"] = None  # as written when such layers had no entry
    restructure(built(), older)
    for key, value in {"block": [2, 2], "channels": [5, 4], "grid": [3, 3, 2]}.items():
        other = structure_of(model)
        other["layers.0"]["packed"][key] = value
        with pytest.raises(CheckpointError, match="layers.0"):
            restructure(built(), other)


class Onto(mlx.nn.Module):
    """Strided convolutions, one of them onto sites that are given."""

    def __init__(self):
        super().__init__()
        self.a = nn.SubmConv3d(4, 8)
        self.b, self.c = nn.Conv3d(8, 8, 2, stride=2), nn.Conv3d(8, 4, 3, stride=2, support="parents")

    def __call__(self, x):
        y = self.a(x)
        return self.c(y, out=self.b(y)) + self.c(y, self.b(y))


def test_packed_convolutions_go_onto_given_sites_as_dense_ones_do():
    model = Onto()
    x = example(model, 100)
    Pruner("blocks", 0.5, block=(4, 4)).attach(model)
    small = compress(model, sample=x)
    assert isinstance(small.c, BlockSparseConv3d)
    np.testing.assert_allclose(np.array(small(x).feats), np.array(model(x).feats), atol=1e-5)
    with pytest.raises(ShapeError, match="no out="):
        small.a(x, out=x)


class Cut(mlx.nn.Module):
    """A convolution with some taps, and layers with some blocks."""

    def __init__(self, taps=(0, 13)):
        super().__init__()
        self.conv, self.packed = nn.SubmConv3d(4, 4), built()
        self.conv.keep_taps(taps)


def test_weights_of_other_taps_are_not_loaded():
    model, fresh = Cut(), Cut((1, 13))
    with pytest.raises(CheckpointError, match="other taps than this SubmConv3d stores.*restructure"):
        fresh.load_weights(tree_flatten(model.parameters()))
    restructure(Cut(range(27)), structure_of(model)).load_weights(tree_flatten(model.parameters()))
    model.unfreeze()
    assert set(flat(model.trainable_parameters())) == {
        "conv.weight", "conv.bias", "packed.layers.0.weight", "packed.layers.0.bias", "packed.layers.1.weight"
    }  # fmt: skip


def test_directories_that_do_not_say_blocks_and_taps_with_the_weights_load(tmp_path):
    model, fresh = Cut(), Cut()
    save_model(model, {}, tmp_path)
    path = str(tmp_path / "model.safetensors")
    kept = {k: v for k, v in mx.load(path).items() if not k.endswith(("_blocks", "_taps"))}
    assert len(kept) == 5
    mx.eval(kept)  # before the file that they are read from is written
    mx.save_safetensors(path, kept)
    load_weights(fresh, tmp_path)
    assert mx.array_equal(fresh.conv.weight, model.conv.weight)
    save_model(model, {}, tmp_path)
    other = Cut((1, 13))
    other.packed.update(model.packed.parameters())
    before = other.packed.layers[0].weight + 1
    other.packed.layers[0].weight = before
    with pytest.raises(CheckpointError, match=r"conv\.weight_taps: .* other taps"):
        load_weights(other, tmp_path)
    assert mx.array_equal(other.packed.layers[0].weight, before)
