"""Block products that were one launch before: what a call skips, and what it must not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.backend import autodiff, device, kernel_block_tiles, library, replay
from mlxsparse.backend.kernel_block_tiles import BlockTile
from mlxsparse.blocksparse import BlockLayout, dds, dsd, sdd
from mlxsparse.engine import block_matmul
from mlxsparse.errors import DTypeError, ShapeError
from tools.metalcheck import toolchain
from tools.metalcheck.executor import Mode, metal_kernel_factory

LACKING = toolchain.missing()
pytestmark = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))

MASK = np.array([[1, 0, 1], [0, 1, 1]]) > 0
SIZES = {"sdd": ((64, 64), (64, 96)), "dsd": (None, (96, 24)), "dds": ((24, 64), None)}
PRODUCTS: dict[str, Callable[..., mx.array]] = {"sdd": sdd, "dsd": dsd, "dds": dds}


@pytest.fixture(autouse=True)
def tiles_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels run on the CPU executor, products in tiles."""
    monkeypatch.setattr(kernel_block_tiles, "block_tile", lambda *_: BlockTile(2, 1, 16, 32, 3))
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    with library.using(metal_kernel_factory(Mode(seed=1))), device.kernels_everywhere():
        yield
    mx.set_default_device(before)


def operands(mode: str, layout: BlockLayout) -> tuple[mx.array, mx.array]:
    rng = np.random.default_rng(0)
    shapes = [layout.packed_shape(1) if side is None else (1, 1, *side) for side in SIZES[mode]]
    a, b = (mx.array(rng.standard_normal(shape).astype(np.float16)) for shape in shapes)
    return a, b


@pytest.mark.parametrize("mode", PRODUCTS)
def test_second_call(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = BlockLayout.from_mask(MASK, 32)
    call, (a, b) = PRODUCTS[mode], operands(mode, layout)
    assert block_matmul.known(mode, a, b, layout.index, False, False, None) is None
    first = call(a, b, layout)
    mx.eval(first)
    gradients = mx.grad(lambda a, b: call(a, b, layout).astype(mx.float32).sum(), (0, 1))(a, b)
    mx.eval(gradients)

    def never(*_: Any) -> Any:
        raise AssertionError("a known call goes straight to its launch")

    with monkeypatch.context() as patch:
        patch.setattr(block_matmul, "differentiable", never)
        again = call(a, b, layout)
        assert mx.array_equal(first, again).item()
        other = call(a * 2, b, layout)
        assert mx.array_equal(first * 2, other).item()  # exact: a power of two
        with pytest.raises(AssertionError):
            call(a, b, layout, path="dense")
    traced = mx.grad(lambda a, b: call(a, b, layout).astype(mx.float32).sum(), (0, 1))(a, b)
    assert all(mx.array_equal(x, y).item() for x, y in zip(gradients, traced))


def test_a_known_call_still_checks() -> None:
    layout = BlockLayout.from_mask(MASK, 32)
    a, b = operands("dsd", layout)
    mx.eval(dsd(a, b, layout))
    with pytest.raises(DTypeError, match="bfloat16"):
        dsd(a, b.astype(mx.bfloat16), layout)
    with pytest.raises(ShapeError):
        dsd(a, b[:, :, :64], layout)
    with pytest.raises(ShapeError):
        dsd(a, mx.concatenate([b, b], axis=1), layout)
    with pytest.raises(DTypeError):
        dsd(a, np.array(b), layout)


def test_what_was_launched_before_is_replayed_unless_it_is_traced() -> None:
    bodies: list[mx.array] = []

    def body(a: mx.array, b: mx.array) -> mx.array:
        bodies.append(a)
        return a * b

    call, x = autodiff.again(body, True), mx.arange(4.0)
    assert [call(x, x) for _ in range(replay.AFTER + 1)] == [None] * (replay.AFTER + 1)  # and the trace
    before = len(bodies)
    for i in range(5):
        result = call(x + i, x)
        assert result is not None and mx.array_equal(result, (x + i) * x).item()
    assert len(bodies) == before
    seen: list[object] = []

    def traced(a: mx.array, b: mx.array) -> mx.array:
        seen.append(call(a, b))
        return (a * b).sum()

    mx.grad(traced)(x, x)
    mx.grad(traced, 1)(x, x)
    mx.vmap(traced)(x, x)
    mx.compile(traced)(x, x)
    mx.jvp(traced, [x, x], [x, x])
    assert seen == [None] * 5
