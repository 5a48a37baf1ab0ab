"""Modules: same values as the operators, names and parameters as users of MLX expect."""

from __future__ import annotations

import json
import warnings

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse.errors import CheckpointError, DTypeError, MLXSparseError, ShapeError
from mlxsparse.models import MinkUNet, VoxelTransformer, voxel_transformer
from mlxsparse.models.minkunet import ModelArgs
from mlxsparse.testing.adapt import from_numpy

pytestmark = pytest.mark.usefixtures("device")


def cloud(n=200, channels=6, batch=2, dtype=mx.float32, seed=0):
    rng = np.random.default_rng(seed)
    sites = np.column_stack([rng.integers(0, batch, n), rng.integers(-6, 6, (n, 3))])
    sites = rng.permutation(np.unique(sites, axis=0)).astype(np.int32)
    feats = mx.array(rng.normal(size=(len(sites), channels)).astype(np.float32)).astype(dtype)
    return ms.SparseTensor(mx.array(sites), feats, batch_size=batch)


def poisoned(x, extra=5):
    """The same sites in a larger capacity whose padding rows hold NaN."""
    wide = x.with_capacity(x.capacity + extra)
    leaves = list(wide)
    leaves[1] = mx.concatenate(
        [wide.feats[: x.capacity], mx.full((extra, x.num_channels), float("nan"), x.dtype)]
    )
    return ms.SparseTensor(leaves)


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        (ms.nn.SubmConv3d(6, 4, (3, 1, 5), dilation=2, groups=2), lambda x, m: ms.ops.subm_conv3d(
            x, m.weight, m.bias, dilation=2, groups=2)),
        (ms.nn.Conv3d(6, 4, 3, 2, 1, support="parents"), lambda x, m: ms.ops.conv3d(
            x, m.weight, m.bias, stride=2, padding=1, support="parents")),
        (ms.nn.Linear(6, 4), lambda x, m: ms.ops.linear(x, m.weight, m.bias)),
        (ms.nn.MaxPool3d(3, 2, 1), lambda x, m: ms.ops.max_pool3d(x, 3, 2, 1)),
        (ms.nn.AvgPool3d(2), lambda x, m: ms.ops.avg_pool3d(x, 2)),
        (
            ms.nn.AvgPool3d(2, count_include_empty=True),
            lambda x, m: ms.ops.avg_pool3d(x, 2, count_include_empty=True),
        ),
        (ms.nn.SumPool3d((2, 1, 2)), lambda x, m: ms.ops.sum_pool3d(x, (2, 1, 2))),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_layer_is_its_operator(layer, operator):
    x = cloud()
    got, want = layer(x), operator(x, layer)
    assert got.coords.tolist() == want.coords.tolist() and got.stride == want.stride
    np.testing.assert_array_equal(np.array(got.feats), np.array(want.feats))


def test_an_odd_submanifold_kernel_off_its_centre_is_told_of():
    """PTv3 has SubMConv3d(kernel_size=5, padding=1) of spconv, which centres it all the same."""
    with pytest.warns(UserWarning, match=r"padding=\(1, 1, 1\) .* off its centre, which is \(2, 2, 2\)"):
        ms.nn.SubmConv3d(3, 4, 5, padding=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ms.nn.SubmConv3d(3, 4, 3, padding=1)
        ms.nn.SubmConv3d(3, 4, (5, 1, 3), dilation=2, padding=(4, 0, 2))
        ms.nn.SubmConv3d(3, 4, 2, padding=1)  # either anchoring of an even kernel


def test_transposed_layers():
    x = cloud()
    down = ms.nn.Conv3d(6, 8, 2, 2)(x)
    up = ms.nn.ConvTranspose3d(8, 3, 2, 2)
    assert up(down, out=x).key is x.key and up(down).key is x.key
    made = ms.nn.GenerativeConvTranspose3d(8, 3, 2, 2)(down)
    assert made.num_active == 8 * down.num_active and made.stride == (1, 1, 1)


@pytest.mark.parametrize("kind", ["MaxPool3d", "AvgPool3d", "SumPool3d", "MaxPool2d"])
def test_pools_onto_known_sites(kind):
    """On its own sites: spconv's SparseMaxPool2d(subm=True), by which VoxelNeXt finds peaks."""
    x = cloud()
    y = getattr(ms.nn, kind)(3, stride=1, padding=1)(x, out=x)
    operator, flat = getattr(ms.ops, f"{kind[:3].lower()}_pool3d"), kind.endswith("2d")
    want = operator(x, (3, 3, 1), 1, (1, 1, 0), out=x) if flat else operator(x, 3, 1, 1, out=x)
    assert y.key is x.key and mx.array_equal(y.feats, want.feats)


def test_global_pools():
    x = cloud()
    rows = [np.array(f) for f in x.decomposed_features]
    np.testing.assert_allclose(
        np.array(ms.nn.GlobalSumPool()(x)), [r.sum(0) for r in rows], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        np.array(ms.nn.GlobalAvgPool()(x)), [r.mean(0) for r in rows], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(np.array(ms.nn.GlobalMaxPool()(x)), [r.max(0) for r in rows])


def test_parameters_and_text():
    layer = ms.nn.SubmConv3d(4, 8, 3, bias=False)
    assert [name for name, _ in tree_flatten(layer.parameters())] == ["weight"]
    assert layer.weight.shape == (8, 3, 3, 3, 4) and "kernel_size=(3, 3, 3)" in repr(layer)
    assert set(ms.nn.BatchNorm(4).parameters()) == {"weight", "bias", "running_mean", "running_var"}
    assert set(ms.nn.BatchNorm(4).trainable_parameters()) == {"weight", "bias"}
    assert "stride=(2, 2, 2)" in repr(ms.nn.Conv3d(4, 8, 2, 2))


def test_wrong_channels_and_types():
    x = cloud()
    with pytest.raises(ShapeError, match="6"):
        ms.nn.SubmConv3d(5, 4)(x)
    with pytest.raises(ShapeError, match="6"):
        ms.nn.Linear(5, 4)(x)
    with pytest.raises(ShapeError, match="6"):
        ms.nn.BatchNorm(5)(x)
    with pytest.raises(ShapeError, match="groups"):
        ms.nn.Conv3d(6, 4, 3, groups=4)
    with pytest.raises(DTypeError, match="set_dtype"):
        ms.nn.SubmConv3d(6, 4)(x.astype(mx.float16))


@pytest.mark.parametrize("pad", [False, True])
def test_batch_norm_is_over_the_active_rows(pad):
    x = cloud()
    ours, theirs = ms.nn.BatchNorm(6), mlx.nn.BatchNorm(6)
    for _ in range(3):
        y = ours(poisoned(x) if pad else x)
        want = theirs(x.feats)
    n = x.num_active
    np.testing.assert_allclose(np.array(y.feats)[:n], np.array(want), rtol=1e-4, atol=1e-5)
    assert not np.array(y.feats)[n:].any()
    np.testing.assert_allclose(
        np.array(ours.running_mean), np.array(theirs.running_mean), rtol=1e-4, atol=1e-6
    )
    # Unbiased, as PyTorch's and mlx's since 0.32.4; 1 in the beginning, three steps of momentum 0.1.
    unbiased = np.var(np.array(x.feats), axis=0, ddof=1)
    np.testing.assert_allclose(np.array(ours.running_var), 0.729 + 0.271 * unbiased, rtol=1e-4)
    ours.eval(), theirs.eval()
    theirs.running_var = ours.running_var
    np.testing.assert_allclose(np.array(ours(x).feats), np.array(theirs(x.feats)), rtol=1e-4, atol=1e-5)


def test_batch_norm_of_half_types_has_float32_statistics():
    # 4096 values of 0.1 sum to 256 in float16 and to 32 in bfloat16.
    sites = np.zeros((4096, 4), np.int32)
    sites[:, 1] = np.arange(4096)
    for dtype in (mx.float16, mx.bfloat16):
        x = ms.SparseTensor(mx.array(sites), mx.full((4096, 1), 0.1, dtype))
        norm = ms.nn.BatchNorm(1, momentum=1.0)
        assert norm(x).dtype == dtype
        assert norm.running_mean.item() == pytest.approx(x.feats[0, 0].item(), rel=1e-5)


def test_batch_norm_of_no_rows_leaves_the_running_statistics():
    x = ms.SparseTensor(mx.zeros((0, 4), mx.int32), mx.zeros((0, 3)), batch_size=2)
    norm = ms.nn.BatchNorm(3)
    assert norm(x).feats.shape == (0, 3)
    assert norm.running_mean.tolist() == [0, 0, 0] and norm.running_var.tolist() == [1, 1, 1]


def test_nan_padding_reaches_no_value_and_no_gradient():
    x = cloud(channels=4)
    net = MinkUNet(ModelArgs(4, 3, (4, 6), 1))

    def loss(net, x):
        return net(x).feats.square().mean() * (x.capacity * 3)

    step = mlx.nn.value_and_grad(net, loss)
    value, gradients = step(net, x)
    other, padded = step(net, poisoned(x))
    assert other.item() == pytest.approx(value.item(), rel=1e-4)
    for (name, a), (_, b) in zip(tree_flatten(gradients), tree_flatten(padded)):
        a, b = np.array(a), np.array(b)
        assert np.abs(a - b).max() <= 1e-3 * np.abs(a).max() + 1e-5, name


@pytest.mark.parametrize("channels", [(), 5, (4, 0), (4, 2.5), "ab"])
def test_minkunet_of_impossible_sizes(channels):
    with pytest.raises(ShapeError, match="MinkUNet"):
        MinkUNet(ModelArgs(4, 3, channels))
    args = voxel_transformer.ModelArgs(4, 3, (16, 20) if channels == "ab" else channels)
    with pytest.raises(ShapeError, match="VoxelTransformer"):
        VoxelTransformer(args)


@pytest.mark.parametrize(
    "sizes",
    [{"channels": (10**13,)}, {"channels": (2**16 + 16,)}, {"blocks": 1025}, {"num_classes": 2**20 + 1}],
)
def test_networks_have_bounded_sizes(sizes):
    for net, kind in ((MinkUNet, ModelArgs), (VoxelTransformer, voxel_transformer.ModelArgs)):
        given = {"in_channels": 4, "num_classes": 3, "channels": (16, 32), **sizes}
        with pytest.raises(ShapeError, match="1 to 65536 channels, 1 to 1024 blocks"):
            net(kind(**given))
        with pytest.raises(CheckpointError, match="1 to 65536 channels"):
            kind.from_dict(given)


def test_sizes_of_networks_may_be_numbers_of_numpy():
    args = ModelArgs(4, np.int64(3), np.array([8, 16]))
    assert MinkUNet(args).head.weight.shape[0] == 3
    again = ModelArgs.from_dict(json.loads(json.dumps(args.to_dict())))
    assert again == ModelArgs(4, 3, [8, 16])
    args = voxel_transformer.ModelArgs(4, np.int64(3), range(16, 33, 16), mlp_ratio=np.float32(2))
    VoxelTransformer(args)
    again = voxel_transformer.ModelArgs.from_dict(json.loads(json.dumps(args.to_dict())))
    assert again == voxel_transformer.ModelArgs(4, 3, [16, 32])
    for ratio in (float("inf"), float("nan"), 0, "2"):
        with pytest.raises(ShapeError, match="VoxelTransformer"):
            VoxelTransformer(voxel_transformer.ModelArgs(4, 3, mlp_ratio=ratio))
    x = cloud(channels=4)
    y = MinkUNet(ModelArgs(4, 3, (4, 6), 1))(x, capacity=np.array([x.capacity]))
    assert y.feats.shape == (x.capacity, 3)


@pytest.mark.parametrize("capacity", [5, "a", (5, 6)])
def test_minkunet_takes_a_capacity_a_level(capacity):
    with pytest.raises(ShapeError, match="one a level"):
        MinkUNet(ModelArgs(4, 3, (4, 6), 1))(cloud(channels=4), capacity=capacity)


def test_minkunet_on_empty_and_interleaved_batches():
    net = MinkUNet(ModelArgs(4, 3, (4, 6, 8), 1))
    net.eval()
    empty = ms.SparseTensor(mx.zeros((0, 4), mx.int32), mx.zeros((0, 4)), batch_size=3)
    assert net(empty).feats.shape == (0, 3)
    x = cloud(channels=4, batch=3)
    y = net(x)
    assert y.key is x.key
    for b in range(3):
        rows = x.batch_rows(b)
        sites = mx.array(np.array(x.coords[rows]) * [0, 1, 1, 1], mx.int32)
        alone = net(ms.SparseTensor(sites, x.feats[rows]))
        np.testing.assert_allclose(np.array(alone.feats), np.array(y.feats[rows]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_minkunet_in_half_types(dtype):
    net = MinkUNet(ModelArgs(4, 3, (4, 6), 1))
    net.eval()
    x = cloud(channels=4)
    want = np.array(net(x).feats)
    net.set_dtype(dtype)
    got = net(x.astype(dtype))
    assert got.dtype == dtype
    off = np.abs(np.array(got.feats.astype(mx.float32)) - want).max()
    assert off <= (0.02 if dtype == mx.float16 else 0.1) * np.abs(want).max()


@pytest.mark.parametrize("name", ["SubmConv3d", "NormalizedConv3d"])
def test_geometry_set_after_construction_is_used(name):
    x = from_numpy(np.array([[0, 0, 0, z] for z in range(6)], np.int32), np.arange(6.0)[:, None] + 1)
    kind = getattr(ms.nn, name)
    layer, wanted = kind(1, 1, 2), kind(1, 1, 2, padding=1, dilation=2)
    layer.update(wanted.parameters())
    layer.padding, layer.dilation = 1, 2
    assert layer.padding == (1, 1, 1) and mx.array_equal(layer(x).feats, wanted(x).feats)
    layer.padding = None
    plain = kind(1, 1, 2, dilation=2)
    plain.update(wanted.parameters())
    assert mx.array_equal(layer(x).feats, plain(x).feats)
    with pytest.raises(ShapeError, match="dilation"):
        layer.dilation = 0


def test_stride_set_after_construction_is_used():
    x = from_numpy(np.array([[0, 0, 0, z] for z in range(6)], np.int32), np.arange(6.0)[:, None] + 1)
    layer = ms.nn.Conv3d(1, 1, 2)
    layer.stride, layer.padding, layer.dilation = 2, 0, 1
    y = layer(x)
    assert y.stride == (2, 2, 2) and y.num_active == 3
    back = ms.nn.ConvTranspose3d(1, 1, 2)
    back.stride = 2
    assert back(y, out=x).stride == (1, 1, 1)


def test_normalized_convolution_with_some_taps():
    x = from_numpy(np.array([[0, 0, 0, z] for z in (0, 1, 2, 5)], np.int32), np.arange(4.0)[:, None] + 1)
    layer = ms.nn.NormalizedConv3d(1, 1, 3)
    kept = [4, 13, 14]
    wanted = ms.nn.NormalizedConv3d(1, 1, 3)
    mask = np.zeros((1, 27, 1), np.float32)
    mask[:, kept] = 1
    wanted.weight = layer.weight * mx.array(mask.reshape(layer.weight.shape))
    wanted.bias = layer.bias
    layer.keep_taps(kept)
    assert np.allclose(np.array(layer(x).feats), np.array(wanted(x).feats), rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: ms.nn.SubmConv3d(n, 8),
        lambda n: ms.nn.Conv3d(4, n, 3),
        lambda n: ms.nn.SubmConv3d(8, 8, groups=n),
        lambda n: ms.nn.Linear(n, 8),
        lambda n: ms.nn.Linear(8, n),
        lambda n: ms.nn.BatchNorm(n),
        lambda n: ms.nn.GroupNorm(n, 8),
        lambda n: ms.nn.GroupNorm(1, n),
        lambda n: ms.nn.InstanceNorm(n),
        lambda n: ms.nn.LayerNorm(n),
        lambda n: ms.nn.RMSNorm(n),
        lambda n: ms.nn.SqueezeExcitation(n),
        lambda n: ms.nn.SqueezeExcitation(8, n),
    ],
)
def test_numbers_of_channels(make):
    for wrong in (0, -1, 4.0, "4", None, True):
        with pytest.raises(ShapeError):
            make(wrong)
    assert str(make(np.int64(4))) == str(make(4))


def test_groups_of_numpy_are_as_ints():
    x, w = cloud(), mx.random.normal((8, 3, 3, 3, 3))
    wanted = ms.ops.subm_conv3d(x, w, groups=2).feats
    for two in (np.int64(2), np.int32(2)):
        assert mx.array_equal(ms.ops.subm_conv3d(x, w, groups=two).feats, wanted)
        assert type(ms.nn.SubmConv3d(4, 8, groups=two).groups) is int


def test_channels_that_a_gate_does_not_take():
    for layer, channels in ((ms.nn.SqueezeExcitation(5, 2), 4), (ms.nn.GLU(), 3)):
        with pytest.raises(ShapeError, match=str(channels)):
            layer(cloud().replace(mx.ones((cloud().capacity, channels))))


@pytest.mark.parametrize(
    "kind", ["MaxPool3d", "AvgPool3d", "SumPool3d", "MaxPool2d", "AvgPool2d", "SumPool2d", "Conv3d", "Conv2d"]
)
def test_a_support_that_is_none_is_told_at_construction(kind):
    sizes = (4, 4, 2) if "Conv" in kind else (2,)
    with pytest.raises(ShapeError, match="support must be"):
        getattr(ms.nn, kind)(*sizes, support="parent")


def test_a_value_of_empty_items_is_told_at_construction():
    with pytest.raises(MLXSparseError, match="empty must be a number"):
        ms.nn.GlobalMaxPool("a")


@pytest.mark.parametrize("norm", [ms.nn.BatchNorm(6), ms.nn.BatchNorm(6).eval(), mlx.nn.Identity()])
def test_what_a_convolution_adds_is_a_sparse_tensor(norm):
    x, conv = cloud(), ms.nn.SubmConv3d(6, 6)
    for through in (None, ms.nn.Linear(6, 6, bias=False)):
        with pytest.raises(DTypeError, match="add must be a SparseTensor"):
            ms.nn.conv_norm_act(conv, norm, ms.nn.ReLU(), x, x.feats, through=through)
    with pytest.raises(DTypeError, match="add must be a SparseTensor"):
        ms.nn.norm_act(norm, ms.nn.ReLU(), x, x.feats)


def test_a_sequential_takes_layers_one_by_one():
    with pytest.raises(DTypeError, match="one an argument, got list"):
        ms.nn.Sequential([ms.nn.ReLU()])


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("ReLU", ()), ("GELU", ()), ("PReLU", ()), ("Softmax", ()), ("Linear", (6, 6)), ("BatchNorm", (6,))],
)
def test_sequential_names_the_layer_for_sparse_tensors(name, sizes):
    x = cloud(20)
    with pytest.raises(DTypeError, match=f"mlx.nn.{name} takes no SparseTensor.*mlxsparse.nn"):
        ms.nn.Sequential(ms.nn.Linear(6, 6), getattr(mlx.nn, name)(*sizes))(x)
    both = ms.nn.Sequential(mlx.nn.Sequential(mlx.nn.Identity()), mlx.nn.Dropout(0.5), ms.nn.ReLU())
    with pytest.raises(DTypeError, match="Dropout"):
        both(x)
    assert both.eval()(x).key is x.key
