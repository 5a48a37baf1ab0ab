"""2-D layers are 3-D layers with one site along z."""

from __future__ import annotations

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
