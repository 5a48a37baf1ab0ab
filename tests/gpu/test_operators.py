"""Every operator and gradient through kernels, against the host: on a GPU where there is one.

Elsewhere the same tests run on the CPU executor of tools/metalcheck, where clang-19 is installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse import ops
from mlxsparse.backend import device as backend_device
from mlxsparse.backend import library
from mlxsparse.coords import groups
from mlxsparse.coords.geometry import Kernel
from mlxsparse.engine import dense, gather_gemm, interpolate, norm, pooling, rows, segment_attention
from mlxsparse.engine.spans import Spans
from mlxsparse.errors import TransformError
from mlxsparse.models.minkunet import MinkUNet, ModelArgs
from mlxsparse.tensor import SparseTensor

HAS_GPU = mx.metal.is_available() or mx.cuda.is_available()
if not HAS_GPU:
    from tools.metalcheck import toolchain

    LACKING = toolchain.missing()
    pytestmark = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
TOLERANCE = {mx.float32: 2e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}  # of the largest magnitude
RUNS = 20 if HAS_GPU else 3
Function = Callable[..., mx.array]


@contextlib.contextmanager
def kernels() -> Iterator[None]:
    """Operators run through kernels inside."""
    before = mx.default_device()
    if HAS_GPU:
        mx.set_default_device(mx.gpu)
        try:
            yield
        finally:
            mx.set_default_device(before)
        return
    from tools.metalcheck.executor import Mode, metal_kernel_factory

    with library.using(metal_kernel_factory(Mode(seed=1))), backend_device.kernels_everywhere():
        yield


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def cloud(n: int, channels: int, dtype: mx.Dtype = mx.float32) -> SparseTensor:
    """n sites of three batch items, the second empty, with three rows of NaN as padding."""
    drawn = np.column_stack([2 * rng(1).integers(0, 2, 4 * n), rng(2).integers(-6, 7, (4 * n, 3))])
    sites = rng(3).permutation(np.unique(drawn, axis=0))[:n].astype(np.int32)
    coords = np.concatenate([sites, np.zeros((3, 4), np.int32)])
    feats = np.concatenate([rng(4).standard_normal((len(sites), channels)), np.full((3, channels), np.nan)])
    return SparseTensor(
        coords, mx.array(feats.astype(np.float32)).astype(dtype), active_rows=len(sites), batch_size=3
    )


def numbers(seed: int, *shape: int) -> mx.array:
    return mx.array(rng(seed).standard_normal(shape).astype(np.float32))


def host_copy(a: mx.array) -> np.ndarray:
    return np.zeros(a.shape, np.float32) if a.size == 0 else np.array(a.astype(mx.float32))


def outcome(function: Function, inputs: list[mx.array]) -> list[np.ndarray]:
    """Value and the gradient of every input."""
    y = function(*inputs)
    mixed = numbers(9, *y.shape)
    gradients = mx.grad(lambda *a: (function(*a).astype(mx.float32) * mixed).sum(), list(range(len(inputs))))
    return [host_copy(a) for a in (y, *gradients(*inputs))]


def operators(
    n: int, channels: int, dtype: mx.Dtype, size: int = 3
) -> dict[str, tuple[Function, list[mx.array]]]:
    """Operators as functions of arrays, with these arrays. Coordinates come from the host in both runs."""
    x = cloud(n, channels, dtype)
    capacity, count, taps = x.capacity, x.num_active, size**3
    subm = x.manager.kernel_map(x.key, x.key, Kernel((size,) * 3, (1,) * 3, (size // 2,) * 3, (1,) * 3)).pairs
    scale = (1 / np.maximum(pooling.pair_counts(subm), 1)).astype(np.float32)
    order, counts = x.key.index.order, x.key.counts
    group = np.append(rng(5).integers(-1, 7, count), [-1] * 3).astype(np.int32)
    parts, taken = rows.Segments(group, 7), rng(6).integers(-1, max(count, 1), 40).astype(np.int32)
    if count == 0:
        taken[:] = -1
    placed = rng(7).permutation(count + 5)[:count]
    corners, shares = rng(8).integers(-1, max(count, 1), (30, 8)).astype(np.int32), rng(9).random((30, 8))
    if count == 0:
        corners[:] = -1
    shares = np.where(corners < 0, 0, shares).astype(np.float32)
    f, w, b = x.feats, numbers(10, 5, taps, channels).astype(dtype), numbers(11, 5).astype(dtype)
    wide, gain, shift = numbers(12, 4, channels).astype(dtype), numbers(13, channels), numbers(14, channels)
    items = Spans(order, counts)
    blocks = Spans(order, counts, np.arange(channels) % 2)
    found: dict[str, tuple[Function, list[mx.array]]] = {
        "convolution": (lambda f, w, b: gather_gemm.convolve(f, w, b, subm, capacity, 1), [f, w, b]),
        "transposed": (lambda f, w: gather_gemm.convolve(f, w, None, subm.transposed(), capacity, 1), [f, w]),
        "linear": (lambda f, w, b: dense.linear(f, w, b, count), [f, wide, b[:4]]),
        "sum pool": (lambda f: pooling.sum_pool(f, subm, capacity, scale), [f]),
        "max pool": (lambda f: pooling.max_pool(f, subm, capacity), [f]),
        "take": (lambda f: rows.take_rows(f, taken, 1.5), [f]),
        "put": (lambda f: rows.put_rows(f, placed, count + 5, -2.0), [f]),
        "interpolate": (lambda f: interpolate.interpolate(f, corners, shares, 33), [f]),
        "batch norm": (lambda f, w, b: norm.normalize_all(f, w, b, count, 1e-5)[0], [f, gain, shift]),
        "instance norm": (lambda f, w, b: norm.normalize(f, w, b, items, 1e-3)[0], [f, gain, shift]),
        "group norm": (lambda f, w, b: norm.normalize(f, w, b, blocks, 1e-3)[0], [f, gain, shift]),
        "layer norm": (
            lambda f, w, b: norm.normalize_rows(f, w, b, count, 1e-3, centre=True),
            [f, gain, shift],
        ),
    }
    windows = groups.windows(x.key, (4, 4, 4), (1, 1, 1))
    heads = [numbers(15 + i, capacity, 2, channels).astype(dtype) for i in range(3)]
    found["attention"] = (lambda q, k, v: segment_attention.attention(q, k, v, 0.4, windows), heads)
    for mode in ("sum", "mean", "max"):
        found[f"global {mode}"] = (lambda f, m=mode: pooling.batch_reduce(f, order, counts, m), [f])
    for mode in ("sum", "mean", "max", "min", "first"):
        found[f"segment {mode}"] = (lambda f, m=mode: rows.segment_reduce(f, parts, m), [f])
    return found


NAMES = list(operators(0, 2, mx.float32))


def same(
    function: Function, inputs: list[mx.array], dtype: mx.Dtype, loosely: float = 1, least: float = 1e-6
) -> None:
    """Host and kernel results agree, relative to the largest value or to `least`."""
    wanted = outcome(function, inputs)
    with kernels():
        got = outcome(function, inputs)
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert a.shape == b.shape
        error = np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), least)
        assert error <= loosely * TOLERANCE[dtype], f"result {i}: relative error {error:.2e}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_gpu_equals_host(name: str, dtype: str) -> None:
    kind = DTYPES[dtype]
    same(*operators(60, 6, kind)[name], kind, 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1])
def test_gpu_without_sites_and_with_one(name: str, n: int) -> None:
    # Of one row a norm's gradient is 0, and what is left is rounding (2**-23 of numbers up to 5) times
    # 1 / sqrt(eps) = 316, 2e-4: an absolute bound. So are gradients of scores where there is one key.
    absolute = "norm" in name or name == "attention"
    same(*operators(n, 3, mx.float32)[name], mx.float32, 2, least=5.0 if absolute else 1e-6)


@pytest.mark.parametrize("channels", [3, 1000])
def test_gpu_channels(channels: int) -> None:
    found = operators(20, channels, mx.float32)
    for name in ("convolution", "linear", "max pool", "batch norm"):
        same(*found[name], mx.float32, 2)


@pytest.mark.parametrize("kept", [[], [13], [0, 4, 13, 26], list(range(27))], ids=len)
@pytest.mark.parametrize("stride", [1, 2])
def test_gpu_tap_subsets(kept: list[int], stride: int) -> None:
    """Taken from the device's own map: no pairs are made on the host."""
    taps = ops.Taps((3, 3, 3), tuple(kept))
    sites, feats, w, b = cloud(60, 6), numbers(4, 63, 6), numbers(10, 5, len(kept), 6), numbers(3, 5)

    def some(f: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        x = SparseTensor(sites.coords, f, active_rows=60, batch_size=3)
        if stride == 1:
            return ops.subm_conv3d(x, w, *b, taps=taps).feats
        return ops.conv3d(x, w, *b, stride=2, padding=1, taps=taps).feats

    same(some, [feats, w], mx.float32, 2)
    same(some, [feats, w, b], mx.float32, 3)


def test_gpu_125_taps() -> None:
    found = operators(60, 3, mx.float32, size=5)
    for name in ("convolution", "max pool", "sum pool"):
        same(*found[name], mx.float32, 2)


@pytest.mark.parametrize("name", NAMES)
def test_gpu_gives_the_same_bits(name: str) -> None:
    function, inputs = operators(60, 6, mx.float32)[name]
    with kernels():
        runs = {b"".join(a.tobytes() for a in outcome(function, inputs)) for _ in range(RUNS)}
    assert len(runs) == 1


@pytest.mark.parametrize("name", ["convolution", "max pool", "segment mean", "batch norm"])
def test_gpu_refuses_jvp_and_second_gradients(name: str) -> None:
    function, inputs = operators(20, 4, mx.float32)[name]

    def f(x: mx.array) -> mx.array:
        return (function(x, *inputs[1:]) ** 2).sum()

    with kernels():
        with pytest.raises(TransformError):
            mx.eval(mx.jvp(f, [inputs[0]], [mx.ones_like(inputs[0])]))
        with pytest.raises(TransformError):
            mx.eval(mx.grad(lambda x: mx.grad(f)(x).square().sum())(inputs[0]))


def sheet(n: int) -> SparseTensor:
    """n sites of a wavy surface, 128 wide, in two of three batch items; features are the position."""
    plane = np.stack(np.meshgrid(np.arange(-64, 64), np.arange(-64, 64)), -1).reshape(-1, 2)
    plane = rng(5).permutation(plane)[:n]
    height = np.round(6 * np.sin(plane[:, 0] / 9) * np.cos(plane[:, 1] / 11))
    coords = np.column_stack([2 * (plane[:, 0] > 0), plane, height]).astype(np.int32)
    feats = np.column_stack([plane / 64, height / 6]).astype(np.float32)
    return SparseTensor(coords, mx.array(feats), batch_size=3)


def training(steps: int) -> list[float]:
    mx.random.seed(0)
    x = sheet(6000 if HAS_GPU else 60)
    model = MinkUNet(ModelArgs(3, 4, (32, 64, 128, 256) if HAS_GPU else (4, 6)))
    target = numbers(20, x.capacity, 4)

    def loss(model: MinkUNet) -> mx.array:
        return ((model(x).feats - target) ** 2).sum() / x.num_active

    import mlx.optimizers
    from mlx.nn import value_and_grad

    # Steps so small that rounding does not grow: at 0.02, changing the input by 2e-7 of itself changes
    # the CPU's own losses by 1e-2 after 20 steps; at 0.0005, by 3e-5 at most.
    optimizer = mlx.optimizers.SGD(0.0005)
    losses = []
    for _ in range(steps):
        value, gradient = value_and_grad(model, loss)(model)
        optimizer.update(model, gradient)
        mx.eval(model.parameters(), value)
        losses.append(value.item())
    return losses


def test_gpu_training_losses_equal_the_cpus() -> None:
    wanted = training(20 if HAS_GPU else 4)
    with kernels():
        got = training(len(wanted))
    assert wanted[-1] < wanted[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
