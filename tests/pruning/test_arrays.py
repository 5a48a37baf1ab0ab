"""Pruning of models of MLX's own layers, on arrays."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxsparse import SparseTensor, nn, ops
from mlxsparse.blocks import Pruner, channel_groups, compress
from mlxsparse.blocks.flow import example
from mlxsparse.errors import CouplingError, DTypeError, MLXSparseError

pytestmark = pytest.mark.usefixtures("device")


def mlp():
    mx.random.seed(0)
    return mlx.nn.Sequential(mlx.nn.Linear(8, 16), mlx.nn.ReLU(), mlx.nn.Linear(16, 4))


class Pictures(mlx.nn.Module):
    """Images (N, H, W, C) and a number for each."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = mlx.nn.Conv2d(3, 8, 3), mlx.nn.Linear(8, 4)

    def __call__(self, x, scale):
        return self.head(self.conv(x).mean(axis=(1, 2))) * scale


class Tokens(mlx.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = mlx.nn.Embedding(10, 8), mlx.nn.Linear(8, 4)

    def __call__(self, tokens):
        return self.head(self.embedding(tokens))


class Features(mlx.nn.Module):
    """A layer of MLX on the features of a sparse tensor."""

    def __init__(self):
        super().__init__()
        self.head = mlx.nn.Linear(8, 4)

    def __call__(self, x):
        return self.head(x.feats)


class Timed(mlx.nn.Module):
    """Convolutions, and a layer of MLX before them for an array that may be left out."""

    def __init__(self):
        super().__init__()
        self.time, self.conv, self.act = mlx.nn.Linear(8, 8), nn.SubmConv3d(8, 8, 3), nn.ReLU()
        self.conv2 = nn.SubmConv3d(8, 8, 3)

    def __call__(self, x, t=None):
        y = self.act(self.conv(x))
        return self.conv2(y if t is None else ops.broadcast_mul(y, self.time(t)))


class Head(mlx.nn.Module):
    """One layer that takes sparse tensors alone, after one of MLX that is called with none."""

    def __init__(self, layer):
        super().__init__()
        self.time, self.layer = mlx.nn.Linear(8, 8), layer

    def __call__(self, x):
        return self.layer(x)


class MyNorm(nn.BatchNorm):
    pass


SAMPLES = {
    "none": (mlp, None),
    "rows": (mlp, mx.ones((3, 8))),
    "rows of batches": (mlp, mx.ones((2, 3, 8))),
    "one argument": (mlp, (mx.ones((3, 8)),)),
    "half": (lambda: (m := mlp()).set_dtype(mx.float16) or m, None),
    "two arguments": (Pictures, (mx.ones((2, 5, 5, 3)), mx.ones((2, 1)))),
    "whole numbers": (Tokens, mx.array([[1, 2], [3, 4]])),
    "none for a sparse tensor": (Features, None),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_models_of_mlx_are_pruned_by_blocks_and_compressed(name):
    build, sample = SAMPLES[name]
    model = build()
    Pruner("blocks", 0.5, block=(4, 4)).attach(model)
    small = compress(model, sample=sample)
    assert any(isinstance(layer, nn.BlockSparseLinear) for layer in small.modules())
    x = example(model, 20) if sample is None else sample
    args = x if type(x) is tuple else (x,)
    np.testing.assert_allclose(np.array(small(*args)), np.array(model(*args)), atol=2e-3)


@pytest.mark.parametrize("structure", ["offsets", "channels", "blocks"])
def test_models_with_a_layer_of_mlx_before_their_convolutions_run_on_sparse_tensors(structure):
    model = Timed()
    Pruner(structure, 0.5, block=(4, 4)).attach(model)
    small, x = compress(model), example(model, 40)
    assert sum(a.size for _, a in tree_flatten(small.trainable_parameters())) < 3500
    np.testing.assert_allclose(np.array(small(x).feats), np.array(model(x).feats), atol=1e-5)


LAYERS = {
    "linear": lambda: nn.Linear(8, 4),
    "norm": lambda: MyNorm(8),
    "packed": lambda: nn.BlockSparseConv3d(8, 8, 1, 4, np.ones((2, 1, 1, 1, 2), bool)),
    "attention": lambda: nn.SparseAttention(8, 1),
    "activation": nn.ReLU,
    "pooling": nn.GlobalAvgPool,
    "gate": lambda: nn.SqueezeExcitation(8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_sparse_tensors_choose_the_sample(name):
    assert isinstance(example(Head(nn.Sequential(LAYERS[name]()))), SparseTensor)
    assert isinstance(example(nn.Sequential(mlx.nn.Linear(8, 4), nn.Identity())), mx.array)


@pytest.mark.parametrize("sample", [None, mx.ones((3, 8)), (mx.ones((2, 3, 8)),)])
def test_channels_of_models_of_mlx_are_cut(sample):
    model = mlp()
    assert [group.fixed for group in channel_groups(model, sample)] == [None, "the model's output"]
    Pruner("channels", 0.5, sample=sample).attach(model)
    small = compress(model, sample=sample)
    assert [small.layers[i].weight.shape for i in (0, 2)] == [(8, 8), (4, 8)]
    x = mx.random.normal((5, 8))
    np.testing.assert_allclose(np.array(small(x)), np.array(model(x)), atol=1e-5)


def test_what_the_model_does_not_take_is_told():
    model = Pictures()
    Pruner("blocks", 0.5, block=(4, 4)).attach(model)
    for sample in (None, mx.ones((2, 5, 5, 3))):
        with pytest.raises(CouplingError, match="does not run on the sample.*sample=.*check=False"):
            compress(model, sample=sample)
    assert isinstance(compress(model, check=False).head, nn.BlockSparseLinear)
    for sample in ([mx.ones((3, 8))], (), np.ones((3, 8), np.float32)):
        with pytest.raises(DTypeError, match="sample must be a SparseTensor, an MLX array"):
            compress(model, sample=sample)
    with pytest.raises(MLXSparseError, match="no site or row"):
        compress(model, sample=(mx.ones((0, 5, 5, 3)), 1.0))
