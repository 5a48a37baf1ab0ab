"""Batch normalisation folded into convolutions: the same values in evaluation."""

from __future__ import annotations

import collections
import copy

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse.blocks import BlockSpec, Pruner, ScopeSpec, View, compress
from mlxsparse.errors import MLXSparseError, ShapeError
from mlxsparse.models import MinkUNet
from mlxsparse.models.minkunet import ModelArgs
from mlxsparse.testing.adapt import from_numpy, to_numpy

pytestmark = pytest.mark.usefixtures("device")

nn = ms.nn
Sizes = collections.namedtuple("Sizes", "kernel channels")


def cloud(channels=4):
    rng = np.random.default_rng(0)
    coords = np.unique(rng.integers(-4, 4, (120, 4)) % [2, 9, 9, 9], axis=0)
    return from_numpy(coords, rng.normal(size=(len(coords), channels)))


def trained(channels, affine=True):
    """A BatchNorm with statistics and parameters of its own."""
    norm = nn.BatchNorm(channels, eps=1e-3, affine=affine)
    rng = np.random.default_rng(1)
    norm.running_mean = mx.array(rng.normal(size=channels).astype(np.float32))
    norm.running_var = mx.array(rng.uniform(0.1, 3, channels).astype(np.float32))
    if affine:
        norm.weight = mx.array(rng.normal(size=channels).astype(np.float32))
        norm.bias = mx.array(rng.normal(size=channels).astype(np.float32))
    return norm.eval()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    "conv",
    [
        nn.SubmConv3d(4, 6),
        nn.SubmConv2d(4, 6, groups=2, bias=False),
        nn.Conv3d(4, 6, 3, 2, 1, support="parents"),
        nn.GenerativeConvTranspose3d(4, 6, 2),
        nn.Linear(4, 6),
        nn.Linear(4, 6, bias=False),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_the_fold_equals_the_pair(conv, affine):
    norm, x = trained(6, affine), cloud()
    before = to_numpy(conv.weight)
    folded = nn.fold_batch_norm(conv, norm)
    got, want = folded(x), norm(conv(x))
    assert got.coords.tolist() == want.coords.tolist()
    np.testing.assert_allclose(to_numpy(got.feats), to_numpy(want.feats), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(to_numpy(conv.weight), before)
    assert type(folded) is type(conv)


def test_the_bias_of_an_output_without_inputs_is_folded_too():
    conv, norm = nn.Conv3d(1, 2, 1, 2, support="parents"), trained(2)
    x = from_numpy([[0, 1, 1, 1]], [[3.0]])
    got = nn.fold_batch_norm(conv, norm)(x)
    np.testing.assert_allclose(to_numpy(got.feats), to_numpy(norm(conv(x)).feats), rtol=1e-5)


def test_half_weights_stay_half():
    conv = nn.SubmConv3d(4, 6, bias=False)
    conv.set_dtype(mx.float16)
    folded = nn.fold_batch_norm(conv, trained(6))
    assert folded.weight.dtype == folded.bias.dtype == mx.float16


def test_every_pair_of_a_sequential():
    shared = nn.SubmConv3d(4, 4)
    model = nn.Sequential(
        shared, trained(4), nn.ReLU(), nn.Sequential(shared, trained(4)), nn.SubmConv3d(4, 2), nn.ReLU()
    ).eval()
    folded = nn.fold_batch_norms(model)
    x = cloud()
    np.testing.assert_allclose(to_numpy(folded(x).feats), to_numpy(model(x).feats), rtol=1e-4, atol=1e-5)
    assert "BatchNorm" not in repr(folded) and repr(model).count("BatchNorm") == 2
    folded.freeze()
    assert model.trainable_parameters()["layers"][0]


def test_minkunet():
    model = MinkUNet(ModelArgs(4, 3, (4, 6, 8), 1))
    x = cloud()
    for _ in range(3):
        model(x)
    folded = nn.fold_batch_norms(model)
    assert model.training and not folded.training and "BatchNorm" not in repr(folded)
    model.eval()
    np.testing.assert_allclose(to_numpy(folded(x).feats), to_numpy(model(x).feats), rtol=1e-3, atol=1e-5)


def test_a_list_is_not_a_sequence_of_calls():
    class Parallel(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = [nn.SubmConv3d(4, 4), trained(4)]

    assert "BatchNorm" in repr(nn.fold_batch_norms(Parallel()))


def test_errors():
    with pytest.raises(ShapeError, match="6 channels, the BatchNorm takes 5"):
        nn.fold_batch_norm(nn.SubmConv3d(4, 6), nn.BatchNorm(5))
    with pytest.raises(MLXSparseError, match="running statistics"):
        nn.fold_batch_norm(nn.SubmConv3d(4, 6), nn.BatchNorm(6, track_running_stats=False))
    with pytest.raises(MLXSparseError, match="ReLU"):
        nn.fold_batch_norm(nn.ReLU(), nn.BatchNorm(6))
    with pytest.raises(MLXSparseError, match="NormalizedConv3d"):
        nn.fold_batch_norm(nn.NormalizedConv3d(4, 6), nn.BatchNorm(6))


def test_a_layer_that_does_more_than_its_class_is_not_folded():
    class Squared(ms.nn.SubmConv3d):
        def __call__(self, x):
            y = super().__call__(x)
            return y.replace(y.feats * y.feats)

    class Named(ms.nn.SubmConv3d):
        pass

    x = cloud()
    more = ms.nn.Sequential(Squared(4, 6), trained(6)).eval()
    folded = ms.nn.fold_batch_norms(more)
    assert isinstance(folded.layers[1], ms.nn.BatchNorm)
    assert mx.array_equal(folded(x).feats, more(x).feats)
    with pytest.raises(MLXSparseError, match="Squared"):
        ms.nn.fold_batch_norm(more.layers[0], more.layers[1])
    named = ms.nn.fold_batch_norms(ms.nn.Sequential(Named(4, 6), trained(6)))
    assert isinstance(named.layers[1], mlx.nn.Identity)


class BatchNormReLU(nn.BatchNorm):
    def __call__(self, x):
        y = super().__call__(x)
        return y.replace(mx.maximum(y.feats, 0))


def test_a_norm_that_does_more_is_not_folded():
    net = nn.Sequential(nn.SubmConv3d(4, 6), BatchNormReLU(6)).eval()
    x = cloud()
    folded = nn.fold_batch_norms(net)
    assert isinstance(folded.layers[1], BatchNormReLU)
    np.testing.assert_allclose(np.array(folded(x).feats), np.array(net(x).feats), atol=1e-6)
    with pytest.raises(MLXSparseError, match="BatchNormReLU"):
        nn.fold_batch_norm(*net.layers)


@pytest.mark.parametrize(
    "names", [["layers.0.bias"], ["layers.1.weight"], ["layers.1.bias", "layers.0.weight"]]
)
def test_pruned_biases_and_norms_are_folded_as_they_are_used(names):
    net = nn.Sequential(nn.SubmConv3d(4, 6), trained(6))
    net.layers[0].bias = mx.arange(1.0, 7.0)
    specs = []
    for name in names:
        value = net.layers[int(name[7])][name[9:]]
        specs.append(ScopeSpec(BlockSpec(View.of(net, name), (1, *value.shape[1:]))))
    Pruner(specs, nnz=3).attach(net)
    for layer, name in (name.split(".")[1:] for name in names):  # as momentum moves what is masked
        net.layers[int(layer)][name] = net.layers[int(layer)][name] + 1
    net.eval()
    x = cloud()
    folded = nn.fold_batch_norms(net)
    assert isinstance(folded.layers[1], mlx.nn.Identity)
    np.testing.assert_allclose(np.array(folded(x).feats), np.array(net(x).feats), rtol=1e-4, atol=1e-4)
    assert sorted(k for k, _ in tree_flatten(net.parameters())) == sorted(
        k for k, _ in tree_flatten(copy.deepcopy(net).parameters())
    )  # the model itself is as it was


class Holder(mlx.nn.Module):
    """Holds a named tuple and a sparse tensor among its layers."""

    def __init__(self, x, adds=True):
        super().__init__()
        self.sizes, self.adds = Sizes(3, 8), adds
        self.conv, self.norm, self.out = nn.SubmConv3d(4, 8), nn.BatchNorm(8), nn.SubmConv3d(8, 4)
        self.first = x

    def __call__(self, x):
        y = self.out(self.norm(self.conv(x)))
        return y + self.first if self.adds else y


def test_attributes_that_are_tuples_are_kept():
    x = cloud()
    model = Holder(x).eval()
    folded = nn.fold_batch_norms(model)
    assert folded.sizes == (3, 8) and type(folded.sizes) is Sizes and folded.first is x
    assert folded.first.key is x.key
    np.testing.assert_allclose(np.array(folded(x).feats), np.array(model(x).feats), rtol=1e-4, atol=1e-5)
    model = Holder(x, adds=False).eval()
    Pruner("channels", sparsity=0.5, sample=x).attach(model)
    small = compress(model, sample=x)
    assert type(small.sizes) is Sizes and small.first is x and small(x).key is x.key


def test_a_masked_layer_that_does_more_is_not_folded():
    class ConvRelu(nn.SubmConv3d):
        def __call__(self, x):
            y = super().__call__(x)
            return y.replace(mx.maximum(y.feats, 0))

    class Net(mlx.nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.conv, self.norm = kind(4, 4), nn.BatchNorm(4)

    for kind, folded in ((ConvRelu, False), (nn.SubmConv3d, True)):
        net = Net(kind)
        Pruner("offsets", 0.5).attach(net)
        assert isinstance(nn.fold_batch_norms(net).norm, mlx.nn.Identity) == folded
