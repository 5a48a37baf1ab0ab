"""Kernels behind `differentiable`, against the host engine: how an engine function runs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.backend import kernel_conv, kernel_rows, library
from mlxsparse.backend.autodiff import differentiable
from mlxsparse.backend.kernel_coords import NeighbourMap, map_of_pairs
from mlxsparse.coords.geometry import Kernel
from mlxsparse.coords.kernel_map import KernelMap
from mlxsparse.engine import gather_gemm, pooling, rows
from mlxsparse.errors import TransformError
from mlxsparse.tensor import SparseTensor
from tools.metalcheck import toolchain
from tools.metalcheck.executor import Mode, metal_kernel_factory

from .common import rng, sites

LACKING = toolchain.missing()
pytestmark = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
MAKE = metal_kernel_factory(Mode(seed=1))


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu() -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    with library.using(MAKE):
        yield
    mx.set_default_device(before)


def convolve(x: mx.array, w: mx.array, b: mx.array, pairs: NeighbourMap, count: int, groups: int) -> mx.array:
    """gather_gemm.convolve on the GPU; `count` output rows are active."""

    def forward(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return kernel_conv.conv_forward(x, w, pairs.nbr, b, groups=groups, active=count)

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return kernel_conv.conv_input_grad(ct, w, pairs.back, groups=groups)

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return kernel_conv.conv_weight_grad(ct, x, pairs.nbr, groups=groups)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return ct[:count].astype(mx.float32).sum(axis=0).astype(b.dtype)

    return differentiable("convolution", forward, (input_gradient, weight_gradient, bias_gradient), x, w, b)


def max_pool(x: mx.array, pairs: NeighbourMap) -> mx.array:
    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        return kernel_rows.max_pool_grad(ct, kernel_rows.max_pool(x, pairs.nbr)[1], pairs.back)

    return differentiable("max pooling", lambda x: kernel_rows.max_pool(x, pairs.nbr)[0], (gradient,), x)


def sum_pool(x: mx.array, pairs: NeighbourMap) -> mx.array:
    return differentiable(
        "sum pooling",
        lambda x: kernel_rows.gather_sum(x, pairs.nbr),
        (lambda ct, x: kernel_rows.gather_sum(ct, pairs.back),),
        x,
    )


def segment_reduce(x: mx.array, parts: kernel_rows.Segments, mode: str) -> mx.array:
    def forward(x: mx.array) -> mx.array:
        return kernel_rows.segment_reduce(x, parts, mode)[0].astype(x.dtype)

    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        if mode in ("sum", "mean"):
            share = 1.0 / mx.maximum(parts.counts, 1) if mode == "mean" else None
            return kernel_rows.gather_sum(ct, parts.group[None], before=share)
        return kernel_rows.winner_grad(ct, kernel_rows.segment_reduce(x, parts, mode)[1], parts.group)

    return differentiable(f"segment {mode}", forward, (gradient,), x)


def take_rows(x: mx.array, index: mx.array) -> mx.array:
    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        parts = kernel_rows.segments(index, x.shape[0], check=False)
        return kernel_rows.segment_reduce(ct, parts, "sum")[0].astype(x.dtype)

    return differentiable("row gather", lambda x: kernel_rows.take_rows(x, index), (gradient,), x)


class Problem:
    """A strided map of the coordinate manager, as pairs on the host and as tables."""

    def __init__(self) -> None:
        coords = sites(40, 60)
        self.x = mx.array(rng(41).standard_normal((len(coords), 6)).astype(np.float32))
        tensor = SparseTensor(coords, self.x)
        kernel = Kernel((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
        out = tensor.manager.stride(tensor.key, 2, kernel_size=3, padding=1)
        found: KernelMap = tensor.manager.kernel_map(tensor.key, out, kernel)
        self.pairs, self.rows = found.pairs, out.capacity
        self.tables = map_of_pairs(found.in_rows, found.out_rows, found.tap_ptr, len(coords), self.rows)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


def same(kernel: Callable[..., mx.array], host: Callable[..., mx.array], *inputs: mx.array) -> None:
    """Equal values and gradients in every input."""
    y, wanted = kernel(*inputs), host(*inputs)
    np.testing.assert_allclose(np.array(y), np.array(wanted), rtol=1e-4, atol=1e-5)
    mixed = mx.array(rng(42).standard_normal(y.shape).astype(np.float32))
    argnums = list(range(len(inputs)))
    got = mx.grad(lambda *a: (kernel(*a) * mixed).sum(), argnums)(*inputs)
    other = mx.grad(lambda *a: (host(*a) * mixed).sum(), argnums)(*inputs)
    for a, b in zip(got, other):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-4, atol=1e-4)


def test_convolution(problem: Problem) -> None:
    w = mx.array(rng(43).standard_normal((4, 27, 3)).astype(np.float32))
    b = mx.array(rng(44).standard_normal(4).astype(np.float32))
    same(
        lambda x, w, b: convolve(x, w, b, problem.tables, problem.rows, 2),
        lambda x, w, b: gather_gemm.convolve(x, w, b, problem.pairs, problem.rows, 2),
        problem.x,
        w,
        b,
    )


def test_pooling(problem: Problem) -> None:
    for ours, theirs in ((max_pool, pooling.max_pool), (sum_pool, pooling.sum_pool)):
        same(
            lambda x, f=ours: f(x, problem.tables),
            lambda x, f=theirs: f(x, problem.pairs, problem.rows),
            problem.x,
        )


@pytest.mark.parametrize("mode", kernel_rows.MODES)
def test_segments(problem: Problem, mode: str) -> None:
    group = rng(45).integers(-1, 9, len(problem.x)).astype(np.int32)
    parts, host = kernel_rows.segments(mx.array(group), 9), rows.Segments(group, 9)
    same(lambda x: segment_reduce(x, parts, mode), lambda x: rows.segment_reduce(x, host, mode), problem.x)


def test_row_gather(problem: Problem) -> None:
    index = rng(46).integers(-1, len(problem.x), 90).astype(np.int32)
    same(lambda x: take_rows(x, mx.array(index)), lambda x: rows.take_rows(x, index), problem.x)


def test_transformations_that_kernels_lack_are_refused(problem: Problem) -> None:
    def f(x: mx.array) -> mx.array:
        return sum_pool(x, problem.tables).square().sum()

    for transformed in (  # vmap traces, which the executor cannot run: a case for a GPU
        lambda: mx.jvp(f, [problem.x], [problem.x]),
        lambda: mx.grad(lambda x: mx.grad(f)(x).square().sum())(problem.x),
    ):
        with pytest.raises(TransformError):
            mx.eval(transformed())


def test_every_few_calls_the_gpu_gets_what_was_called(monkeypatch: Any) -> None:
    from types import SimpleNamespace

    from mlxsparse.backend import autodiff, pace

    begun: list[mx.array] = []
    monkeypatch.setattr(pace, "begin", lambda a: begun.append(a) or True)
    device = SimpleNamespace(type=mx.DeviceType.gpu)
    gradient = lambda ct, x: 2 * ct  # noqa: E731
    call = autodiff.prepared("double", lambda x: 2 * x, [gradient], device)  # type: ignore[arg-type]
    x = mx.ones((7, 3))
    call(x)  # the first look at a type counts as traced
    monkeypatch.setattr(pace._pace, "calls", 0)
    made = [call(x) for _ in range(2 * pace.CALLS)]
    assert [a is b for a, b in zip(begun, made[pace.CALLS - 1 :: pace.CALLS])] == [True, True]
    with autodiff.without_gradients():
        for _ in range(2 * pace.CALLS):
            call(x)
    mx.compile(lambda x: [call(x) for _ in range(2 * pace.CALLS)])(x)
    assert len(begun) == 2


def test_which_gradients_are_asked_for() -> None:
    from mlxsparse.backend import autodiff, pace

    x, frozen, seen = mx.ones((5, 3)), mx.ones((3, 3)), []

    def loss(w: mx.array) -> mx.array:
        seen.append((autodiff.asked(w), autodiff.asked(frozen), autodiff.asked(x)))
        return (x @ frozen @ w).sum()

    mx.grad(loss)(mx.ones((3, 3)))
    loss(frozen)
    with pace.stages(compiled=True):
        mx.grad(loss)(mx.ones((3, 3)))
    assert seen == [(True, False, False), (False,) * 3, (False,) * 3]


def test_in_stages_a_weight_that_is_asked_for_goes_first() -> None:
    from mlxsparse.backend import autodiff, pace

    gradients = [lambda ct, x, w: ct * w, lambda ct, x, w: ct * x]
    call = autodiff.prepared("scale", lambda x, w: x * w, gradients, mx.Device(mx.cpu))

    def loss(x: mx.array, w: mx.array) -> mx.array:
        return call(call(x, autodiff.watched(w)), autodiff.watched(w)).sum()

    def body(x: mx.array, w: mx.array) -> tuple[mx.array, ...]:
        with pace.stages(compiled=True):
            made = mx.grad(loss, argnums=asked)(x, w)
            assert pace._pace.wanted is not None
            left.append(len(pace._pace.wanted))
        return made

    x, w = mx.array([2.0, 3.0]), mx.array([5.0, 7.0])
    left: list[int] = []
    asked: tuple[int, ...] = (0, 1)
    dx, dw = mx.compile(body)(x, w)
    assert (dx == w * w).all() and (dw == 2 * x * w).all()
    asked = (0,)
    dx = mx.compile(lambda x, w: body(x, w))(x, w)
    assert (dx == w * w).all()
    assert left == [1, 0]  # the last one made has no cotangent after it; nothing is made that nobody wants


def test_a_gradient_that_goes_first() -> None:
    from mlxsparse.backend import autodiff

    device = mx.Device(mx.cpu)
    gradients = [lambda ct, x, w: ct * w, lambda ct, x, w: (ct * x).sum()]
    usual, first = (
        autodiff.prepared("scale", lambda x, w: x * w, gradients, device, ordered=ordered)
        for ordered in (False, True)
    )
    x, w = mx.arange(5.0), mx.array(3.0)
    for call in (usual, first):
        dx, dw = mx.grad(lambda x, w, call=call: call(x, w).sum(), argnums=(0, 1))(x, w)
        assert dx.tolist() == [3.0] * 5 and dw.item() == 10.0


def test_launches_are_kept(monkeypatch: Any) -> None:
    from mlxsparse.backend import replay

    launched: list[Any] = []

    def make(*_: Any, **__: Any) -> Any:
        def run(*, inputs: list[mx.array], **_: Any) -> list[mx.array]:
            launched.append(inputs)
            return [inputs[0] * 2, inputs[1] + 1]

        return run

    monkeypatch.setattr(library, "_forced", None)
    monkeypatch.setattr(library, "_cuda", make)
    monkeypatch.setattr(library, "_native", lambda: make)
    monkeypatch.setattr(library, "_compiled", lambda *_: None)
    launch = library.ready("scatter_rows", [6, 5, 6], [(6, 5)], (1, 1, 1), dtype=mx.float32)
    rows = mx.arange(6, dtype=mx.int32)

    def call(x: mx.array, rows: mx.array = rows) -> mx.array:
        return launch([x, rows])[0]

    def slope(x: mx.array) -> mx.array:
        return mx.grad(lambda x: call(x).sum())(x)

    for i in range(3 * replay.AFTER):
        x = mx.full((6, 5), float(i))
        assert mx.array_equal(call(x), 2 * x)
        assert mx.array_equal(slope(x), mx.full((6, 5), 2.0))
    assert len(launched) == replay.AFTER + 1  # and what was exported
    assert mx.array_equal(mx.compile(lambda x: call(x) + 1)(x), 2 * x + 1)
    assert len(launched) == replay.AFTER + 1
    more, kept = mx.arange(9, dtype=mx.int32), len(launched)
    for x in (mx.ones((6, 5)), mx.ones((6, 5)), mx.ones((2, 3, 5)), mx.ones((6, 5))):  # of other shapes
        assert mx.array_equal(call(x, more), 2 * x)
    assert len(launched) == kept + 4, "what comes once or twice is exported, which takes 1 ms"


def test_streams_of_clouds_that_differ_export_nothing(monkeypatch: Any) -> None:
    from mlxsparse.backend import replay

    exported: list[Any] = []
    monkeypatch.setattr(replay, "_made", lambda run, arrays: exported.append(arrays) or run)
    launch = replay.kept(lambda arrays: [arrays[0] + 1])
    for n in range(10 * replay.SHAPES):
        for _ in range(replay.AFTER):  # as often as a network asks
            assert launch([mx.zeros((n + 1,))])[0].shape == (n + 1,)
    assert not exported
    known = [cell.cell_contents for cell in launch.__closure__ or ()]
    assert all(len(c) <= replay.SHAPES for c in known if isinstance(c, dict)), "they are kept for ever"


@pytest.mark.parametrize("where", ["grad", "compile"])
def test_launches_are_kept_from_inside_of_transformations(where: str, monkeypatch: Any) -> None:
    from mlxsparse.backend import replay

    monkeypatch.setattr(replay._here, "home", None)
    seen: list[Any] = []
    launch = replay.kept(lambda arrays: seen.append(arrays) or [arrays[0] * arrays[1]])  # type: ignore[func-returns-value]
    x, y = mx.ones((3, 4)), mx.full((3, 4), 2.0)

    def total(x: mx.array) -> mx.array:
        for _ in range(2 * replay.AFTER):
            x = launch([x, y])[0]
        return x.sum()

    transform: Any = mx.grad if where == "grad" else mx.compile
    wanted = mx.full((3, 4), 256.0) if where == "grad" else mx.array(12 * 256.0)
    assert mx.array_equal(transform(total)(x), wanted)
    assert len(seen) == replay.AFTER + 1


def test_launches_are_kept_in_every_thread() -> None:
    import threading

    from mlxsparse.backend import replay

    seen: list[Any] = []
    launch = replay.kept(lambda arrays: seen.append(arrays) or [arrays[0] + 1])  # type: ignore[func-returns-value]
    found: list[int] = []

    def several() -> None:
        with mx.stream(mx.cpu):
            found.extend(launch([mx.array(i)])[0].item() for i in range(2 * replay.AFTER))

    for _ in range(2):
        several()
        thread = threading.Thread(target=several)
        thread.start()
        thread.join()
    assert found == [*range(1, 2 * replay.AFTER + 1)] * 4
    assert len(seen) <= replay.AFTER + 3  # and once for each thread


def test_launches_are_kept_where_nothing_can_be_written(monkeypatch: Any) -> None:
    import tempfile

    from mlxsparse.backend import replay

    def nowhere(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", nowhere)
    for home in (True, None):
        monkeypatch.setattr(replay._here, "home", home)
        seen: list[Any] = []
        launch = replay.kept(lambda arrays: seen.append(arrays) or [arrays[0] + 1])  # type: ignore[func-returns-value]  # noqa: B023
        assert [launch([mx.array(i)])[0].item() for i in range(8)] == [*range(1, 9)]
        assert len(seen) == replay.AFTER + 1
