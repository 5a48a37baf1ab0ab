"""2-D layers are 3-D layers with one site along z."""

from __future__ import annotations

import copy
import pickle

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.errors import ShapeError
from mlxsparse.testing.adapt import active_part, from_numpy

pytestmark = pytest.mark.usefixtures("device")

nn = ms.nn
PAIRS = [
    (nn.SubmConv2d(4, 6), nn.SubmConv3d(4, 6, (3, 3, 1))),
    (
        nn.SubmConv2d(4, 6, (3, 5), dilation=2, padding=(1, 0), groups=2, bias=False),
        nn.SubmConv3d(4, 6, (3, 5, 1), (2, 2, 1), (1, 0, 0), 2, False),
    ),
    (nn.Conv2d(4, 6, 3, 2, 1), nn.Conv3d(4, 6, (3, 3, 1), (2, 2, 1), (1, 1, 0))),
    (
        nn.Conv2d(4, 6, (2, 3), (2, 1), dilation=(1, 2), support="parents"),
        nn.Conv3d(4, 6, (2, 3, 1), (2, 1, 1), dilation=(1, 2, 1), support="parents"),
    ),
    (nn.GenerativeConvTranspose2d(4, 6, 2), nn.GenerativeConvTranspose3d(4, 6, (2, 2, 1))),
    (nn.MaxPool2d(3, 2, 1), nn.MaxPool3d((3, 3, 1), (2, 2, 1), (1, 1, 0))),
    (nn.AvgPool2d((2, 3)), nn.AvgPool3d((2, 3, 1))),
    (nn.AvgPool2d(2, count_include_empty=True), nn.AvgPool3d((2, 2, 1), count_include_empty=True)),
    (nn.SumPool2d(2, support="parents"), nn.SumPool3d((2, 2, 1), support="parents")),
]


def cloud():
    rng = np.random.default_rng(0)
    coords = rng.permutation(np.unique(rng.integers(-4, 4, (80, 4)) % [2, 8, 8, 3], axis=0))
    return from_numpy(coords, rng.normal(size=(len(coords), 4)))


@pytest.mark.parametrize(("flat", "solid"), PAIRS, ids=lambda layer: type(layer).__name__)
def test_alias(flat, solid):
    if "weight" in flat:
        assert flat.weight.shape == solid.weight.shape and flat.weight.shape[3] == 1
        assert ("bias" in flat) == ("bias" in solid)
        solid.update(flat.parameters())
    got, want = flat(cloud()), solid(cloud())
    assert got.stride == want.stride
    for a, b in zip(active_part(got), active_part(want)):
        np.testing.assert_array_equal(a, b)


def test_a_slice_does_not_see_its_neighbours():
    x = from_numpy([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 1]], [[1.0], [10.0], [100.0]])
    layer = nn.SubmConv2d(1, 1, bias=False)
    layer.weight = mx.ones((1, 3, 3, 1, 1))
    assert layer(x).feats.tolist() == [[1.0], [110.0], [110.0]]


def test_transposed():
    x = cloud()
    down = nn.Conv2d(4, 6, 2, 2)(x)
    assert down.stride == (2, 2, 1)
    up = nn.ConvTranspose2d(6, 5, 2, 2)
    solid = nn.ConvTranspose3d(6, 5, (2, 2, 1), (2, 2, 1))
    solid.update(up.parameters())
    assert up(down).key is x.key and up(down, out=x).key is x.key
    assert up(down).feats.tolist() == solid(down).feats.tolist()


@pytest.mark.parametrize("wrong", [(3, 3, 1), "3", 2.5])
def test_three_sizes_are_refused(wrong):
    with pytest.raises(ShapeError, match=r"kernel_size must be an int or two ints \(x, y\)"):
        nn.SubmConv2d(4, 6, wrong)


@pytest.mark.parametrize("value", [2, np.int64(2), (2, 2), [2, 2]], ids=str)
def test_geometry_set_later_is_as_at_construction(value):
    for kind in (nn.SubmConv2d, nn.Conv2d, nn.ConvTranspose2d, nn.GenerativeConvTranspose2d):
        names = [name for name in ("stride", "padding", "dilation") if name in kind(4, 6, 3)]
        layer, wanted = kind(4, 6, 3), kind(4, 6, 3, **dict.fromkeys(names, value))
        for name in names:
            setattr(layer, name, value)
            assert layer[name] == wanted[name] == (2, 2, 0 if name == "padding" else 1)
    for kind in (nn.MaxPool2d, nn.AvgPool2d, nn.SumPool2d):
        layer, wanted = kind(3), kind(*[value] * 4)
        layer.kernel_size = layer.stride = layer.padding = layer.dilation = value
        assert layer._geometry == wanted._geometry and layer(cloud()).stride == (2, 2, 1)


def test_a_padding_set_later_is_used_and_taken_back():
    layer, wanted = nn.SubmConv2d(4, 6, 2), nn.SubmConv2d(4, 6, 2, padding=1)
    wanted.update(layer.parameters())
    before = layer(cloud()).feats.tolist()
    layer.padding = 1
    assert layer(cloud()).feats.tolist() == wanted(cloud()).feats.tolist() != before
    layer.padding = None
    assert layer(cloud()).feats.tolist() == before


def test_geometry_as_a_layer_keeps_it():
    a, b = nn.Conv2d(4, 6, 3, (2, 1), 1, 2), nn.Conv2d(4, 6, 3)
    for name in ("stride", "padding", "dilation"):
        setattr(b, name, a[name])
        assert b[name] == a[name]
    for other in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert other.stride == (2, 1, 1) and other(cloud()).feats.tolist() == a(cloud()).feats.tolist()
    folded = ms.nn.fold_batch_norm(a, nn.BatchNorm(6).eval())
    assert (folded.stride, folded.padding, folded.dilation) == (a.stride, a.padding, a.dilation)


@pytest.mark.parametrize("wrong", [(2, 2, 2), (1,), "2", 2.5, True, 0])
def test_geometry_that_is_not_flat_is_refused(wrong):
    layers = nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3), nn.MaxPool2d(3)
    for layer in layers if wrong != 0 else layers[:2]:
        with pytest.raises(ShapeError, match="stride must be"):
            layer.stride = wrong
    with pytest.raises(ShapeError, match="stride must be"):
        nn.Conv2d(4, 6, 3, stride=wrong)
