"""Small results on their way from a GPU: right behind long work, from many threads, many at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import mail

HAS_GPU = mx.metal.is_available() or mx.cuda.is_available()
pytestmark = [
    pytest.mark.skipif(not HAS_GPU, reason="needs a GPU: it writes what is read"),
    pytest.mark.usefixtures("on_the_gpu"),
]


def work(times: int) -> mx.array:
    """Ones, after so many products of large matrices."""
    one = mx.eye(2048)
    made = mx.ones((2048, 2048))
    for _ in range(times):
        made = one @ made
    return made


def returns_late_enough(
    begin: Callable[[], Any], after: Callable[[Any], None], wait: Callable[[Any], Any] = ms.wait
) -> bool:
    """Whether `after` has next to nothing left to do for what `begin` gives when `wait` returns.

    Of a few tries: a busy host wakes a thread late, work that was not waited for is there in each.
    """
    left, whole = [], []
    for _ in range(3):
        start = time.perf_counter()
        made = begin()
        wait(made)
        waited = time.perf_counter()
        after(made)
        end = time.perf_counter()
        left.append(end - waited)
        whole.append(end - start)
    return min(left) < min(whole) / 2


def test_values_behind_long_work() -> None:
    for times in (1, 10, 100):
        made = work(times).astype(mx.int32)
        assert mail.send(made.sum(), made[:3, :5].sum(axis=0)).read() == [[2048 * 2048], [3] * 5]


def test_a_slice_is_sent_without_what_is_around_it() -> None:
    rows = mx.arange(40).reshape(5, 8) + 0
    assert mail.send(rows[1:4, 2:4], rows[:, 7]).read() == [[10, 11, 18, 19, 26, 27], [7, 15, 23, 31, 39]]


def test_more_at_once_than_there_are_slots() -> None:
    many = mail.SLOTS + 100
    sent = [mail.send(mx.array(n) + 1, mx.array([n, -n])) for n in range(many)]
    assert [s.read() for s in sent] == [[[n + 1], [n, -n]] for n in range(many)]


def test_from_many_threads() -> None:
    wrong: list[object] = []

    def run(first: int) -> None:
        try:
            mx.set_default_device(mx.gpu)
            for n in range(first, first + 300):
                sent = mail.send(mx.array([n]) + 1)
                ms.wait(mx.array([n]) * 2)
                if sent.read() != [[n + 1]]:
                    wrong.append(n)
        except BaseException as error:  # would be lost with the thread
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_does_not_wait_is_noticed() -> None:
    assert not returns_late_enough(lambda: work(200), mx.eval, mx.async_eval)


def test_wait_returns_when_it_is_there() -> None:
    for times in (1, 20, 200):
        made = {"a": work(times), "b": [work(1)]}
        ms.wait(made)
        assert np.array(made["a"]).min() == 1
        begin = lambda n=times: {"a": work(n), "b": [work(1)]}  # noqa: E731
        assert times == 1 or returns_late_enough(begin, lambda _: mx.synchronize())


@pytest.mark.parametrize("device, times", [(mx.cpu, 2), (mx.gpu, 200)])
def test_wait_for_other_streams(device: mx.DeviceType, times: int) -> None:
    stream = mx.new_stream(device)

    def begin() -> list[mx.array]:
        with mx.stream(stream):
            made = work(times)
        return [made, mx.array(1) + 1]

    made = begin()
    ms.wait(made)
    assert np.array(made[0]).min() == 1
    assert returns_late_enough(begin, lambda _: mx.synchronize(stream))


def test_wait_for_what_is_there_and_for_views() -> None:
    made = mx.arange(12).reshape(3, 4) + 0
    for _ in range(10):
        ms.wait(made, made.T, made[1:, ::2])
        ms.wait(made + 1, made[1:, ::2] * 2, mx.zeros((0, 3)))
    assert np.array(made).tolist() == np.arange(12).reshape(3, 4).tolist()


def test_long_waits_sleep() -> None:
    work(1)
    begin = lambda: [work(100) for _ in range(20)]  # noqa: E731  longer than a wait looks
    assert returns_late_enough(begin, lambda _: mx.synchronize())
    box = mail._box()
    assert box is None or len(box.bells) == mail.BELLS


def test_the_news_comes_last() -> None:
    box = mail._box()
    if box is None:
        assert not mx.cuda.is_available()  # where MLX has CUDA there is a box
        return
    for times in (20, 200):
        begin = lambda n=times: work(n)  # noqa: E731
        assert returns_late_enough(begin, mx.eval, lambda made: box.computed([made]))
