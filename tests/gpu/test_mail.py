"""Small results on their way from a GPU: right behind long work, from many threads, many at once."""

from __future__ import annotations

import threading
import time

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


def test_wait_returns_when_it_is_there() -> None:
    for times in (1, 20, 200):
        made = {"a": work(times), "b": [work(1)]}
        ms.wait(made)
        start = time.perf_counter()
        mx.synchronize()
        left = time.perf_counter() - start
        start = time.perf_counter()
        ms.wait(work(times))
        whole = time.perf_counter() - start
        assert times == 1 or left < max(whole / 2, 2e-3)
        assert np.array(made["a"]).min() == 1


def test_wait_for_other_streams() -> None:
    for device in (mx.cpu, mx.gpu):
        stream = mx.new_stream(device)
        with mx.stream(stream):
            one, made = mx.eye(1024), mx.ones((1024, 1024))
            for _ in range(20):
                made = one @ made
        ms.wait(made, mx.array(1) + 1)
        start = time.perf_counter()
        mx.synchronize(stream)
        assert time.perf_counter() - start < 2e-3
        assert np.array(made).min() == 1


def test_wait_for_what_is_there_and_for_views() -> None:
    made = mx.arange(12).reshape(3, 4) + 0
    for _ in range(10):
        ms.wait(made, made.T, made[1:, ::2])
        ms.wait(made + 1, made[1:, ::2] * 2, mx.zeros((0, 3)))
    assert np.array(made).tolist() == np.arange(12).reshape(3, 4).tolist()


def test_long_waits_sleep() -> None:
    work(1)
    for _ in range(3):
        made = [work(100) for _ in range(20)]  # longer than a wait looks
        start = time.perf_counter()
        ms.wait(made)
        whole = time.perf_counter() - start
        start = time.perf_counter()
        mx.synchronize()
        assert time.perf_counter() - start < max(whole / 2, 2e-3)
    box = mail._box()
    assert box is None or len(box.bells) == mail.BELLS


def test_the_news_comes_last() -> None:
    box = mail._box()
    if box is None:
        assert not mx.cuda.is_available()  # where MLX has CUDA there is a box
        return
    for times in (20, 200):
        mx.eval(work(times))
        made = work(times)
        start = time.perf_counter()
        assert box.computed([made])
        whole = time.perf_counter() - start
        start = time.perf_counter()
        mx.eval(made)
        assert time.perf_counter() - start < max(whole / 2, 1e-3)
