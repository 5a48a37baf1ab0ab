"""Host threads: results and errors do not depend on how many there are."""

from __future__ import annotations

import os
import threading
import time

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import host
from mlxsparse.models.minkunet import MinkUNet, ModelArgs


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_every_task_runs_once_and_errors_come_back(threads, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_THREADS", threads)
    seen = []
    host.parallel(seen.append, 100)
    assert sorted(seen) == list(range(100))

    def fail(task):
        if task == 7:
            raise KeyError(task)

    with pytest.raises(KeyError):
        host.parallel(fail, 50, blas=True)


def test_blas_threads_are_put_back():
    blas = host._get_blas()
    if blas.get is None:
        pytest.skip("NumPy's BLAS has no thread setting here")
    before = blas.get()
    inside = []
    host.parallel(lambda _: inside.append(blas.get()), [0, 1, 2], blas=True)
    assert set(inside) == {1} and blas.get() == before


def test_results_are_bit_equal_for_any_number_of_threads(monkeypatch):
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(0)
    sites = np.unique(rng.integers(0, 30, (9000, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    x = ms.SparseTensor(
        mx.array(rng.permutation(sites)), mx.array(rng.normal(size=(len(sites), 24)), mx.float32)
    )
    w = mx.array(rng.normal(size=(40, 3, 3, 3, 24)), mx.float32)
    v = mx.array(rng.normal(size=(30, 40)), mx.float32)

    def values():
        out, grads = mx.value_and_grad(
            lambda f, w, v: ms.ops.linear(ms.ops.subm_conv3d(x.replace(f), w), v).feats.square().sum(),
            argnums=(0, 1, 2),
        )(x.feats, w, v)
        pooled = ms.ops.max_pool3d(x, 3, 2).feats
        return [np.array(a).tobytes() for a in (out, *grads, pooled)]

    monkeypatch.setenv("MLXSPARSE_THREADS", "1")
    one = values()
    monkeypatch.setenv("MLXSPARSE_THREADS", "4")
    for _ in range(20):
        assert values() == one


def test_a_network_has_the_same_bits_for_any_number_of_threads(monkeypatch):
    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(0)
    sites = np.unique(rng.integers(0, 40, (20_000, 4)) * [0, 1, 1, 1], axis=0).astype(np.int32)
    mx.random.seed(0)
    net = MinkUNet(ModelArgs(3, 5, (6, 16, 24))).eval()
    for coords in (sites, rng.permutation(sites)):
        x = ms.SparseTensor(mx.array(coords), mx.array(rng.normal(size=(len(sites), 3)), mx.float32))
        found = set()
        for threads in ("1", "2", "5") * 4:
            monkeypatch.setenv("MLXSPARSE_THREADS", threads)
            found.add(np.array(net(x).feats).tobytes())
        assert len(found) == 1


@pytest.fixture
def counting():
    """Address of a job that adds 1 to the word of each part, after some work."""
    numba = pytest.importorskip("numba", reason="needs numba: the fast extra is not installed")
    from mlxsparse.backend._numba_team import words

    @numba.cfunc("void(int64, int64)")
    def count(arguments, part):
        place = words(arguments, 1000)
        for _ in range(50 * (part % 7)):
            place[part] += 2
            place[part] -= 2
        place[part] += 1

    yield count.address


def take(job, calls, parts=200, wake=True):
    """`calls` jobs of a team."""
    from mlxsparse.backend import team
    from mlxsparse.backend._numba_team import share

    done = np.zeros(1000, np.int64)
    for _ in range(calls):
        board, helpers, awake = team.crew(wake)
        share(board, job, done.ctypes.data, parts, helpers, awake)
    assert done[:parts].tolist() == [calls] * parts and not done[parts:].any()


@pytest.mark.parametrize("threads", ["1", "2", "6"])
def test_a_team_does_every_part_once(counting, threads, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_THREADS", threads)
    for wake in (True, False):
        take(counting, 300, wake=wake)
        time.sleep(0.01)  # workers sleep
        for parts in (0, 1, 2, 3):
            take(counting, 50, parts, wake)


def test_teams_of_several_threads_do_not_meet(counting, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_THREADS", "3")
    failed = []

    def work():
        try:
            take(counting, 300)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_a_team_of_its_own(counting, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_THREADS", "2")
    take(counting, 10)
    child = os.fork()
    if child == 0:
        try:
            take(counting, 100)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_operators_work_in_another_thread():
    results = []

    def work():
        with mx.stream(mx.new_stream(mx.cpu)):
            x = ms.SparseTensor(mx.array([[0, 0, 0, 0], [0, 0, 0, 1]]), mx.ones((2, 1)))
            results.append(ms.ops.subm_conv3d(x, mx.ones((1, 3, 3, 3, 1))).feats.tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [[[2.0], [2.0]]]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no placement of threads on this system")
def test_threads_may_run_everywhere_again_after_a_region(monkeypatch):
    monkeypatch.setenv("MLXSPARSE_THREADS", "3")
    before = os.sched_getaffinity(0)

    def fail(_):
        raise KeyError

    host.parallel(lambda _: None, 10)
    with pytest.raises(KeyError):
        host.parallel(fail, 10)
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no placement of threads on this system")
def test_the_pool_has_a_thread_for_each_core(monkeypatch):
    """Made in the first region, whose thread is kept on one core, it had one for good."""
    placed = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: placed.get(of, set(range(4))))
    monkeypatch.setattr(os, "sched_setaffinity", lambda of, cores: placed.update({of: set(cores)}))
    monkeypatch.delenv("MLXSPARSE_THREADS", raising=False)
    monkeypatch.setattr(host, "_pool", None)
    monkeypatch.setattr(host, "_worker_ids", [])
    meet = threading.Barrier(4)
    host.parallel(lambda _: meet.wait(60), 4)  # all four at once
    assert len(host._worker_ids) == 3 and placed[0] == set(range(4))
    assert all(placed[worker] < set(range(4)) for worker in host._worker_ids)
    host._get_pool().shutdown()


@pytest.mark.parametrize("given", [0, 2])
def test_fewer_threads_than_asked_for_do_the_work(given, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_THREADS", "8")
    monkeypatch.setattr(host, "_pool", None)
    monkeypatch.setattr(host, "_worker_ids", [])
    start, started = threading.Thread.start, []

    def few(thread):
        if len(started) == given:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    for _ in range(2):
        done = []
        host.parallel(lambda i, done=done: (time.sleep(0.002), done.append(i)), 20)
        assert sorted(done) == list(range(20)) and len(started) == given
    host._get_pool().shutdown()


def test_scratch_is_not_lent_twice():
    host.clear_scratch()
    a = host.scratch(1 << 20, np.int32)
    a[:] = 7
    part = a[5:9]
    place = part.__array_interface__["data"][0] - 20
    del a  # a slice keeps the memory
    b = host.scratch(1 << 20, np.int32)
    b[:] = 8
    assert part.tolist() == [7] * 4
    del part
    c = host.scratch((1 << 19, 2), np.int32)
    assert c.__array_interface__["data"][0] == place and c.shape == (1 << 19, 2)
    d = host.scratch(1 << 20, np.float32)
    assert len({x.__array_interface__["data"][0] for x in (b, c, d)}) == 3


def test_scratch_keeps_a_bounded_amount(monkeypatch):
    host.clear_scratch()
    monkeypatch.setattr(host, "KEPT", 1 << 22)
    arrays = [host.scratch(1 << 20, np.uint8) for _ in range(10)]
    huge = host.scratch(1 << 23, np.uint8)
    del arrays, huge
    assert sum(map(len, host._idle)) <= 1 << 22
    host.clear_scratch()
    assert not host._idle


def test_a_setting_is_what_the_environment_says_now(monkeypatch):
    for kept in (host._environment, None):  # None: where the environment is not kept as bytes
        monkeypatch.setattr(host, "_environment", kept)
        monkeypatch.setenv("MLXSPARSE_THREADS", "3")
        assert host.setting(b"MLXSPARSE_THREADS") == b"3" and host.num_threads() == 3
        monkeypatch.delenv("MLXSPARSE_THREADS")
        assert host.setting(b"MLXSPARSE_THREADS") is None
