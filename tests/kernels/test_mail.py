"""Small results on their way to the host: values, tickets, patience; kernels/mail.cu compiled for the CPU."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import threading
import time

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import mail
from mlxsparse.backend.kernel_text import text
from mlxsparse.errors import TracedOnHostError
from tools.metalcheck import toolchain

AS_CPU = """
#define __global__
static struct { int x; } threadIdx;
static void __threadfence_system() {}
static void __syncthreads() {}
"""
LAST_FIRST = """
extern "C" void run(const unsigned* a, const unsigned* b, int low, int high, int ticket, int A, int B) {
  int none = 0;
  for (threadIdx.x = 63; threadIdx.x >= 0; threadIdx.x--) KERNEL_NAME(a, b, &none, low, high, ticket, A, B);
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """kernels/mail.cu, whose thread 0 comes last, as it does past the barrier."""
    folder = tmp_path_factory.mktemp("mail")
    file = folder / "mail.cpp"
    file.write_text(AS_CPU + text("mail.cu") + LAST_FIRST)
    subprocess.run(
        [toolchain.compiler(), "-shared", "-fPIC", str(file), "-o", str(folder / "mail.so")], check=True
    )
    return ctypes.CDLL(str(folder / "mail.so")).run


class Post:
    """Stands for the GPU: `late` holds what was launched until `deliver`."""

    def __init__(self, kernel):
        self.kernel, self.waiting, self.late = kernel, [], False

    def launch(self, *, inputs, scalars, output_shapes, output_dtypes, grid, threadgroup, **_):
        assert len(inputs) == 2 and grid == threadgroup == (64, 1, 1)
        made = mx.depends([mx.zeros(output_shapes[0], output_dtypes[0])], inputs)
        values = [np.array(a).reshape(-1) for a in inputs]
        self.waiting.append((values, scalars))
        if not self.late:
            self.deliver()
        return made

    def deliver(self):
        for values, scalars in self.waiting:
            self.kernel(*[ctypes.c_void_p(a.ctypes.data) for a in values], *scalars)
        self.waiting.clear()


@pytest.fixture
def post(kernel, monkeypatch):
    stand_in = Post(kernel)
    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", stand_in.launch)
    monkeypatch.setattr(mail, "kept", lambda run: run)  # what is kept would not come to the stand-in
    memory = (ctypes.c_uint32 * (mail.PLACES * mail.WORDS))()
    stand_in.box = mail.Box(memory, ctypes.addressof(memory), "mail", b"")
    monkeypatch.setattr(mail, "_box", lambda: stand_in.box)
    monkeypatch.setattr(mail.mx, "default_device", lambda: mx.Device(mx.DeviceType.gpu))
    return stand_in


ARRAYS = [
    mx.array([-1, 7, 2**31 - 1]),
    mx.array(2**32 - 2, mx.uint32),
    mx.array([[-(2**40), 3], [5, 2**62]], dtype=mx.int64),
    mx.array(np.array([2**64 - 1], np.uint64)),
    mx.array(np.arange(24, dtype=np.int32))[::2],
    mx.array(np.arange(12, dtype=np.int32).reshape(3, 4)).T,
]


def values(a):
    return np.array(a).reshape(-1).tolist()


@pytest.mark.parametrize("first", range(len(ARRAYS)))
def test_values_of_every_kind(post, first):
    for second in ARRAYS:
        assert mail.send(ARRAYS[first], second).read() == [values(ARRAYS[first]), values(second)]
    assert mail.send(ARRAYS[first]).read() == [values(ARRAYS[first])]


@pytest.mark.parametrize("many", [0, 31, 62, 63, 64, 200])
def test_as_many_as_fit_and_more(post, many):
    wanted = list(range(many))
    assert mail.send(mx.array(wanted, dtype=mx.int32)).read() == [wanted]
    assert mail.send(mx.array([1, 2]), mx.array(wanted, dtype=mx.int64)).read() == [[1, 2], wanted]


@pytest.mark.parametrize("first", range(len(ARRAYS)))
def test_the_same_without_a_box(first):
    for second in ARRAYS:
        assert mail.send(ARRAYS[first], second).read() == [values(ARRAYS[first]), values(second)]


def test_read_twice_and_in_any_order(post):
    sent = [mail.send(mx.array(n)) for n in range(mail.SLOTS // 2)]
    assert [s.read() for s in reversed(sent)] == [[[n]] for n in reversed(range(mail.SLOTS // 2))]
    assert sent[5].read() == [[5]]


@pytest.mark.parametrize("many", [mail.SLOTS // 2, mail.SLOTS, mail.SLOTS + 1])
def test_where_others_may_write_it_is_read_from_its_array(post, many):
    first = mail.send(mx.array([3, 4]))
    others = [mail.send(mx.array(n)) for n in range(many)]
    assert post.box.words(first._ticket, 2) is None
    assert first.read() == [[3, 4]] and others[-1].read() == [[many - 1]]


def test_numbers_that_threads_note_out_of_order(post, monkeypatch):
    monkeypatch.setattr(mail, "view", None)
    older, newer = mail.send(mx.array(1)), mail.send(mx.array(2))
    post.box.newest = older._ticket.number
    assert [older.read(), newer.read()] == [[[1]], [[2]]]


def test_what_does_not_arrive_is_waited_for_asleep(post, monkeypatch):
    post.late, evaluate, slept = True, mx.eval, []

    def asleep(*arrays):
        slept.append(arrays)
        post.deliver()
        evaluate(*arrays)

    sent = mail.send(mx.array([1, 2]))
    monkeypatch.setattr(mail.mx, "eval", asleep)
    start = time.perf_counter()
    assert not post.box.has(sent._ticket)
    assert mail.PATIENCE <= time.perf_counter() - start < 1
    monkeypatch.setattr(mail, "view", None)  # reading would move them to the host
    assert sent.read() == [[1, 2]]
    assert len(slept) == 1 and slept[0][0] is sent._ticket.mark
    assert sent.read() == [[1, 2]] and len(slept) == 1


def test_other_threads_run_while_one_waits(post, monkeypatch):
    monkeypatch.setattr(mail, "PATIENCE", 10)
    post.late = True
    sent = mail.send(mx.array([1, 2]))
    other = threading.Timer(0.05, post.deliver)
    other.start()
    assert sent.read() == [[1, 2]]
    other.join()


def test_tickets_begin_again(post, monkeypatch):
    first = mail.TICKETS - 2
    monkeypatch.setattr(mail, "_numbers", itertools.count(first))
    sent = [mail.send(mx.array(n)) for n in range(4)]
    assert [s._ticket.number for s in sent] == [first + 1, first + 2, 1, 2]  # never 0
    assert len({s._ticket.number % mail.SLOTS for s in sent}) == 4
    assert [s.read() for s in sent] == [[[0]], [[1]], [[2]], [[3]]]


@pytest.mark.parametrize("kind", [mx.int32, mx.uint32, mx.int64, mx.bool_, mx.uint8, mx.int16])
def test_read_ints(kind):
    assert mail.read_ints(mx.array(1).astype(kind), mx.array(-7)) == [1, -7]


def test_other_kinds_go_without_the_box(post):
    assert mail.send(mx.array([True, False]), mx.array([3], dtype=mx.uint8)).read() == [[1, 0], [3]]
    assert mail.read_ints(mx.array(1), mx.array(2), mx.array(3)) == [1, 2, 3]


def test_wait_evaluates_a_tree(post):
    made = {"a": [mx.ones((3,)) * 2, (mx.arange(4),)], "b": None, "c": 3}
    ms.wait(made, mx.array(1))
    ms.wait()
    assert made["a"][0].tolist() == [2, 2, 2]


def test_wait_needs_no_evaluation_by_mlx_and_one_bell(post, monkeypatch):
    monkeypatch.setattr(mail.mx, "eval", None)
    for n in range(1, 4):
        ms.wait(mx.arange(n) + 1, [mx.array(n)])
        assert len(post.box.bells) == mail.BELLS
        rung = np.array(post.box.memory).reshape(mail.PLACES, mail.WORDS)[mail.SLOTS :, 0]
        assert rung.tolist() == [0] * (mail.BELLS - 1) + [1]


def test_a_long_wait_sleeps_and_its_bell_is_used_again(post, monkeypatch):
    post.late, evaluate = True, mx.eval

    def asleep(*arrays):
        post.deliver()
        evaluate(*arrays)

    monkeypatch.setattr(mail.mx, "eval", asleep)
    for _ in range(mail.BELLS + 3):
        start = time.perf_counter()
        ms.wait(mx.arange(3) + 1)
        assert mail.PATIENCE <= time.perf_counter() - start < 1
        assert len(post.box.bells) == mail.BELLS


def test_the_bell_of_a_wait_that_was_broken_off_is_not_used_again(post, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    post.late = True
    monkeypatch.setattr(mail, "_let_others_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ms.wait(mx.array(1) + 1)
    assert len(post.box.bells) == mail.BELLS - 1
    post.late = False
    ms.wait(mx.array(2) + 1)
    assert len(post.box.bells) == mail.BELLS - 1


def test_more_waits_than_bells_are_mlx_s(post, monkeypatch):
    post.box.bells.clear()
    made = mx.arange(3) + 1
    ms.wait(made)
    assert not post.waiting and made.tolist() == [1, 2, 3]


def test_wait_as_evaluation_elsewhere():
    a = mx.ones((3,)) * 2
    ms.wait(a, [], {"x": a})
    assert a.tolist() == [2, 2, 2]


def test_traced_values_raise():
    def read(x):
        return mx.array(mail.read_ints(x.sum())[0])

    with pytest.raises(TracedOnHostError):
        mx.compile(read)(mx.array([1, 2]))
    with pytest.raises(TracedOnHostError):
        mx.vmap(read)(mx.array([[1, 2]]))
    # A gradient's arguments have values.
    slope = mx.grad(lambda x: x.sum() * mail.read_ints(x.sum().astype(mx.int32))[0])
    assert slope(mx.array([1.0, 2.0])).tolist() == [3, 3]


def test_wait_refuses_traced_arrays():
    with pytest.raises(ValueError, match="transformations"):
        mx.compile(lambda x: ms.wait(x) or x)(mx.array([1.0]))


def test_a_refused_wait_gives_its_bell_back(post, monkeypatch):
    monkeypatch.setattr(mail, "begin", lambda *_: False)
    post.late = True
    made = mx.arange(3) + 1
    ms.wait(made)
    assert made.tolist() == [1, 2, 3] and len(post.box.bells) == mail.BELLS
