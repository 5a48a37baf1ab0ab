"""How far the host runs ahead: what is begun, what is waited for, what is held."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mlxsparse.backend import autodiff, pace


def test_large_results_are_waited_for(monkeypatch: Any) -> None:
    events: list[tuple[str, int]] = []
    marks: list[mx.array] = []

    def begin(mark: mx.array, large: mx.array) -> bool:
        marks.append(mark)
        events.append(("begin", int(large[0, 0])))
        return True

    def wait(mark: mx.array) -> None:
        events.append(("wait", next(i for i, a in enumerate(marks) if a is mark)))

    monkeypatch.setattr(pace, "begin", begin)
    monkeypatch.setattr(pace, "AHEAD", 3 * 84)
    for name, value in (("before", None), ("calls", 0), ("nbytes", 0)):
        monkeypatch.setattr(pace._pace, name, value)
    results = [mx.full((7, 3), number) for number in range(9)]
    mx.eval(results)
    monkeypatch.setattr(pace.mx, "eval", wait)
    for result in results:
        pace.called(result)
    assert events == [("begin", 2), ("begin", 5), ("wait", 0), ("begin", 8), ("wait", 1)]


def test_what_a_large_result_is_waited_by_does_not_hold_it(monkeypatch: Any) -> None:
    for name, value in (("before", None), ("calls", 0), ("nbytes", pace.AHEAD)):
        monkeypatch.setattr(pace._pace, name, value)
    made = mx.ones((1 << 20,)) + 1
    used = mx.get_active_memory()
    pace.called(made)
    mx.eval(pace._pace.before)  # begun together, both are there
    assert mx.get_active_memory() > used + made.nbytes - (1 << 16)
    del made
    until = time.perf_counter() + 5
    while mx.get_active_memory() > used + (1 << 16):  # a thread of MLX lets it go
        assert time.perf_counter() < until, "held"


@pytest.mark.parametrize("shape", [(1 << 20,), (1 << 10, 1 << 10), (1 << 10, 32, 32), (1 << 10, 2, 16, 32)])
def test_what_a_stage_of_a_trace_is_waited_by_does_not_hold_its_result(shape: tuple[int, ...]) -> None:
    used = mx.get_active_memory()
    with pace.stages(compiled=False) as marks:
        for _ in range(1 + pace.TRACED // (4 << 20)):
            pace.noted(mx.ones(shape) + 1)
    assert len(marks) == 1
    mx.eval(marks)
    until = time.perf_counter() + 5
    while mx.get_active_memory() > used + (1 << 16):
        assert time.perf_counter() < until, "held"


def test_stages_of_a_trace(monkeypatch: Any) -> None:
    monkeypatch.setattr(pace, "TRACED", 3 * 84)
    monkeypatch.setattr(pace._pace, "before", None)
    device = SimpleNamespace(type=mx.DeviceType.gpu)
    gradient = lambda ct, x: 2 * ct  # noqa: E731
    call = autodiff.prepared("double", lambda x: 2 * x, [gradient], device)  # type: ignore[arg-type]

    def body(x: mx.array) -> tuple[mx.array, list[mx.array]]:
        with pace.stages(compiled=True) as marks:
            for _ in range(10):
                x = call(x)
        return x, marks

    y, marks = mx.compile(body)(mx.ones((7, 3)))
    assert len(marks) == 3
    pace.run(marks)
    assert pace._pace.before is marks[-1]  # no other is made of it
    assert [mark.item() for mark in marks] == [-(2.0**3), -(2.0**6), -(2.0**9)] and y[0, 0].item() == 2.0**10
    assert pace._pace.stages is None


def test_stages_of_a_trace_with_gradients_are_larger(monkeypatch: Any) -> None:
    """Finer ones only cost time there: what the forward pass makes is kept for the backward pass."""
    monkeypatch.setattr(pace, "TRACED", 3 * 84)
    call = autodiff.prepared("double", lambda x: 2 * x, [lambda ct, x: 2 * ct], mx.default_device())

    def ten(x: mx.array) -> mx.array:
        for _ in range(10):
            x = call(x)
        return x.sum()

    with pace.stages(compiled=False) as marks:
        mx.grad(ten)(mx.ones((7, 3)))
    assert len(marks) == 3  # of 10 results and 10 cotangents
