"""spconv 2.3.8's recorded U-Net: the same output, input gradient and parameter gradients."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxsparse as ms
from mlxsparse.interop.spconv import to_canonical
from mlxsparse.interop.torch_file import load_torch_file
from tests.data_paths import data_path

pytestmark = pytest.mark.usefixtures("device")


class UNet(mlx.nn.Module):
    """The layers that the recording names, under its names."""

    def __init__(self):
        super().__init__()
        self.stem = [
            ms.nn.SubmConv3d(6, 16, 3, bias=False),
            ms.nn.BatchNorm(16),
            ms.nn.ReLU(),
            ms.nn.SubmConv3d(16, 16, 3, bias=False),
        ]
        self.down = ms.nn.Conv3d(16, 32, 3, stride=2, padding=1, bias=False)
        self.mid = [ms.nn.SubmConv3d(32, 32, 3, bias=False), ms.nn.BatchNorm(32), ms.nn.ReLU()]
        self.up = ms.nn.ConvTranspose3d(32, 16, 3, stride=2, padding=1, bias=False)
        self.head = ms.nn.SubmConv3d(32, 8, 1)

    def __call__(self, x):
        stem = x
        for layer in self.stem:
            stem = layer(stem)
        mid = self.down(stem)
        for layer in self.mid:
            mid = layer(mid)
        return self.head(ms.ops.cat([self.up(mid, out=stem), stem]))


def parameters(state):
    """The recorded state dict in our names and layouts."""
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        if value.ndim == 5:
            value = to_canonical(value, value.shape[1:4])
        yield name, mx.array(value)


def recorded(dtype):
    cases = load_torch_file(data_path("spconv_golden", "golden_net.pt"))["cases"]
    return next(case for case in cases if case["dtype"] == dtype)


def run(case):
    """(output, input gradient, {name: parameter gradient}), all NumPy, rows in the input's order."""
    net = UNet()
    net.load_weights(list(parameters(case["state_dict"])))
    indices, features = case["input"]["indices"], mx.array(case["input"]["features"])
    x = ms.SparseTensor(
        mx.array(indices),
        features,
        batch_size=case["input"]["batch_size"],
        spatial_shape=case["input"]["spatial_shape"],
    )
    rows = {tuple(site): row for row, site in enumerate(indices.tolist())}
    order = mx.array([rows[tuple(site)] for site in case["expect"]["out_indices"].tolist()])
    wanted = mx.array(case["expect"]["grad_out"])

    def loss(weights, features):
        net.update(weights)
        y = net(x.replace(features)).feats
        # A loss whose cotangent is the recorded one; float32 so that the sum adds no rounding.
        return (y[order].astype(mx.float32) * wanted.astype(mx.float32)).sum(), y[order]

    net.train()
    (_, y), (by_weight, by_input) = mx.value_and_grad(loss, argnums=(0, 1))(
        net.trainable_parameters(), features
    )
    gradients = {name: np.array(value.astype(mx.float32)) for name, value in tree_flatten(by_weight)}
    return np.array(y.astype(mx.float32)), np.array(by_input.astype(mx.float32)), gradients


def relative(got, want):
    return np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()


def expected_gradient(name, value):
    return to_canonical(value, value.shape[1:4]) if value.ndim == 5 else value


def test_float32_output_and_gradients():
    case = recorded("float32")
    expect = case["expect"]
    y, by_input, gradients = run(case)
    assert relative(y, expect["out_features"]) < 1e-5
    assert relative(by_input, expect["grad_input"]) < 1e-4
    assert set(gradients) == set(expect["grad_params"])
    for name, entry in expect["grad_params"].items():
        want = expected_gradient(name, entry["grad"])
        assert gradients[name].shape == want.shape
        assert relative(gradients[name], want) < 1e-4, name


def test_float16_output_and_gradients_within_the_recorded_noise():
    case = recorded("float16")
    expect = case["expect"]
    y, by_input, gradients = run(case)
    assert np.abs(y - expect["out_features"].astype(np.float32)).max() <= expect["atol_out"]
    assert np.abs(by_input - expect["grad_input"].astype(np.float32)).max() <= expect["atol_grad_input"]
    for name, entry in expect["grad_params"].items():
        want = expected_gradient(name, entry["grad"]).astype(np.float32)
        assert np.abs(gradients[name] - want).max() <= entry["atol"], name
