"""mlx.nn's activations, Dropout and Identity on sparse tensors."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import executor
from mlxsparse.errors import DTypeError, ShapeError
from mlxsparse.testing.adapt import from_numpy, to_numpy
from tests.numeric import poisoned

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(autouse=True, scope="module")
def eager():
    """MLX compiles its activations with the C++ compiler on Linux, half a second for each and type."""
    mx.disable_compile()
    yield
    mx.enable_compile()


# name -> arguments that differ from the defaults
ACTIVATIONS = {
    "CELU": {"alpha": 0.5},
    "ELU": {"alpha": 0.5},
    "GELU": {"approx": "precise"},
    "GLU": {},
    "HardShrink": {},
    "HardTanh": {},
    "Hardswish": {},
    "LeakyReLU": {"negative_slope": 0.2},
    "LogSigmoid": {},
    "LogSoftmax": {},
    "Mish": {},
    "PReLU": {"num_parameters": 6, "init": 0.1},
    "ReLU": {},
    "ReLU2": {},
    "ReLU6": {},
    "SELU": {},
    "SiLU": {},
    "Sigmoid": {},
    "Softmax": {},
    "Softmin": {},
    "Softplus": {},
    "Softshrink": {"lambd": 0.3},
    "Softsign": {},
    "Step": {"threshold": 0.2},
    "Tanh": {},
}


ROUNDING = {mx.float32: 2e-6, mx.float16: 1.01 * 2**-11, mx.bfloat16: 1.01 * 2**-8}


def cloud(dtype=mx.float32):
    rng = np.random.default_rng(0)
    coords = rng.permutation(np.argwhere(np.ones((2, 3, 3, 2))))
    return from_numpy(coords, 4 * rng.normal(size=(len(coords), 6)), dtype)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_that_of_mlx(name, dtype):
    x = cloud(dtype)
    ours, theirs = getattr(ms.nn, name)(**ACTIVATIONS[name]), getattr(mlx.nn, name)(**ACTIVATIONS[name])
    own = name in ("ELU", "GELU", "SiLU") and executor() == "host"  # in float32, rounded once
    want = theirs(x.feats.astype(mx.float32)) if own else theirs(x.feats).astype(dtype)
    for tensor in (x, poisoned(x)):
        y = ours(tensor)
        assert y.dtype == dtype and y.capacity == tensor.capacity
        got = to_numpy(y.feats)[: x.num_active]
        if own:
            np.testing.assert_allclose(got, to_numpy(want), rtol=ROUNDING[dtype], atol=1e-6)
        else:
            np.testing.assert_array_equal(got, to_numpy(want))
        assert not to_numpy(y.feats)[x.num_active :].any()
    assert repr(ours).startswith(f"{name}(") and ours.parameters().keys() == theirs.parameters().keys()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_padding_reaches_no_gradient(name):
    x = cloud()
    layer = getattr(ms.nn, name)(**ACTIVATIONS[name])
    for tensor in (x, poisoned(x)):
        gradient = mx.grad(lambda f, t=tensor: layer(t.replace(f)).feats.square().sum())(tensor.feats)
        assert np.isfinite(to_numpy(gradient)).all()
        assert not to_numpy(gradient)[x.num_active :].any()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_large_features_are_finite(name, dtype):
    """That of mlx.nn.elu is NaN where exp(x) is infinite."""
    x = from_numpy([[0, 0, 0, 0], [0, 0, 0, 1]], [[100.0, 30, 12, -12, -30, -100], [0.0] * 6], dtype)
    layer = getattr(ms.nn, name)(**ACTIVATIONS[name])
    gradient = mx.grad(lambda f: layer(x.replace(f)).feats.astype(mx.float32).sum())(x.feats)
    assert np.isfinite(to_numpy(gradient)).all()


@pytest.mark.parametrize(
    "name, arguments",
    [("GELU", ()), ("GELU", ("precise",)), ("SiLU", ()), ("ELU", (0.5,)), ("SELU", ())],
)
def test_gradient_is_that_of_mlx(name, arguments):
    x = cloud()
    ours, theirs = getattr(ms.nn, name)(*arguments), getattr(mlx.nn, name)(*arguments)
    got = mx.grad(lambda f: (ours(x.replace(f)).feats * x.feats).sum())(x.feats)
    want = mx.grad(lambda f: (theirs(f) * x.feats).sum())(x.feats)
    np.testing.assert_allclose(to_numpy(got), to_numpy(want), rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_rows_are_no_rows(name):
    x = from_numpy(np.zeros((0, 4)), np.zeros((0, 6)), mx.float16)
    layer = getattr(ms.nn, name)(**ACTIVATIONS[name])
    y = layer(x)
    assert np.array(y.feats).shape == (0, 3 if name == "GLU" else 6) and y.dtype == mx.float16
    gradient = mx.grad(lambda f: layer(x.replace(f)).feats.sum())(x.feats)
    assert np.array(gradient).shape == (0, 6)


def test_log_softmax_of_one_channel():
    """mlx.nn.log_softmax, compiled, ends the process on the CPU."""
    mx.enable_compile()
    x = from_numpy([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2]], [[5.0], [-3.0], [np.inf]])
    for _ in range(20):
        got = to_numpy(ms.nn.LogSoftmax()(x).feats)[:, 0]
    mx.disable_compile()
    np.testing.assert_array_equal(got, [0, 0, np.nan])


def test_the_slope_of_prelu_is_learned():
    layer = ms.nn.PReLU(2)
    x = from_numpy([[0, 0, 0, 0], [0, 0, 0, 1]], [[-1.0, 2.0], [-3.0, -5.0]])
    gradient = mlx.nn.value_and_grad(layer, lambda m: m(x).feats.sum())(layer)[1]
    assert gradient["weight"].tolist() == [-4.0, -5.0]


@pytest.mark.parametrize("channels", [1, 4])
def test_prelu_has_one_slope_or_one_a_channel(channels):
    """MLX broadcasts one channel over three slopes."""
    for rows in (2, 0):
        x = from_numpy(np.argwhere(np.ones((1, 1, 1, rows))), np.ones((rows, channels)))
        with pytest.raises(ShapeError, match=rf"PReLU\(3\) got {channels} channels"):
            ms.nn.PReLU(3)(x)
        assert ms.nn.PReLU()(x).num_channels == ms.nn.PReLU(channels)(x).num_channels == channels


@pytest.mark.parametrize("name", ["ELU", "GELU", "SiLU"])
def test_arrays_without_values_are_left_to_mlx(name):
    """As in mx.compile, which is turned off here."""
    x, layer = cloud(), getattr(ms.nn, name)()
    found = mx.vmap(lambda feats: layer(x.replace(feats)).feats)(mx.stack([x.feats, -x.feats]))
    for got, feats in zip(found, (x.feats, -x.feats)):
        np.testing.assert_allclose(to_numpy(got), to_numpy(layer(x.replace(feats)).feats), atol=2e-6)


def test_dropout_masks_elements_in_training_only():
    x = from_numpy(np.argwhere(np.ones((1, 20, 20, 10))), np.ones((4000, 2)))
    layer = ms.nn.Dropout(0.25)
    y = to_numpy(layer(x).feats)
    np.testing.assert_allclose(np.unique(y), [0.0, 4 / 3], rtol=1e-6)
    assert 0.23 < (y == 0).mean() < 0.27 and 0.3 < (y[:, 0] == y[:, 1]).mean() < 0.9
    assert not to_numpy(layer(poisoned(x)).feats)[4000:].any()
    layer.eval()
    np.testing.assert_array_equal(to_numpy(layer(x).feats), to_numpy(x.feats))
    assert layer(x).key is x.key


def test_identity():
    x = cloud()
    assert ms.nn.Identity()(x) is x


def test_an_array_is_not_a_sparse_tensor():
    with pytest.raises(DTypeError, match="SparseTensor"):
        ms.nn.GELU()(mx.zeros((2, 2)))
