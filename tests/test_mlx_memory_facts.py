"""Facts about memory and threads in MLX on the CPU device that the host path relies on, one small test each.

See test_mlx_facts.py for what a failure means.
"""

from __future__ import annotations

import ctypes
import pathlib

import mlx.core as mx
import numpy as np
import pytest

from tests.mlx_facts import LINUX_ONLY, MLX_VERSION, cpu_device, run_python  # noqa: F401


def test_an_evaluated_empty_array_can_be_written_through_numpy() -> None:
    out = mx.empty((4,))
    mx.eval(out)
    view = np.asarray(out)
    assert view.flags.writeable
    view[...] = 7
    assert out.tolist() == [7] * 4 and (out * 2).tolist() == [14] * 4


def test_empty_is_in_the_oldest_mlx_and_searchsorted_and_unique_are_not() -> None:
    assert hasattr(mx, "empty")
    assert hasattr(mx, "searchsorted") == (MLX_VERSION >= (0, 32, 1))
    assert hasattr(mx, "unique") == (MLX_VERSION >= (0, 32, 4))


def test_asarray_shares_memory_and_mx_array_copies() -> None:
    source = mx.zeros((4,)) + 1
    view = np.asarray(source)
    assert not view.flags.owndata
    values = np.ones(4, np.float32)
    copy = mx.array(values)
    values[0] = 5
    assert copy.tolist() == [1] * 4


def test_bfloat16_crosses_to_numpy_as_uint16_and_not_by_itself() -> None:
    x = mx.array([1.0, -2.0]).astype(mx.bfloat16)
    # The type of this error changed with MLX 0.32.4 (before: RuntimeError).
    with pytest.raises((ValueError, RuntimeError), match="PEP 3118"):
        np.asarray(x)
    assert np.asarray(x.view(mx.uint16)).tolist() == [0x3F80, 0xC000]


def test_stop_gradient_shares_the_buffer_and_is_isolated_from_later_edits() -> None:
    source = mx.zeros((4,), dtype=mx.int32) + 1
    kept, alias = mx.stop_gradient(source), source
    mx.eval(source, kept)
    assert np.asarray(source).ctypes.data == np.asarray(kept).ctypes.data
    source[0] = 99
    assert kept.tolist() == [1, 1, 1, 1]
    assert alias.tolist() == [99, 1, 1, 1]  # plain assignment is not isolated


# Threads --------------------------------------------------------------------------------


def test_a_lazy_array_cannot_be_evaluated_in_another_thread() -> None:
    done = run_python(
        """
        def work(array):
            try:
                print(array.tolist())
            except RuntimeError as error:
                print(error)
        def in_thread(f, *args):
            thread = threading.Thread(target=f, args=args); thread.start(); thread.join()
        in_thread(work, mx.ones(3) + 1)              # made here, evaluated there
        made = []
        in_thread(lambda: made.append(mx.ones(3) + 1))
        work(made[0])                                # made there, evaluated here
        """
    )
    assert done.stdout.count("There is no Stream(cpu") == 2, (done.stdout, done.stderr)


def test_an_evaluated_array_can_be_read_in_another_thread() -> None:
    done = run_python(
        """
        x = mx.ones(3) + 1
        mx.eval(x)
        thread = threading.Thread(target=lambda: print(np.asarray(x).tolist())); thread.start(); thread.join()
        """
    )
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]", done.stderr


def test_a_stream_context_sets_the_default_device() -> None:
    with mx.stream(mx.cpu):
        assert mx.default_device() == mx.Device(mx.cpu, 0)


@LINUX_ONLY
def test_numpys_own_openblas_has_a_thread_count_setter() -> None:
    libraries = list((pathlib.Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"))
    assert libraries
    blas = ctypes.CDLL(str(libraries[0]))
    # NumPy 2 ships scipy-openblas, NumPy 1.26 plain OpenBLAS with the 64-bit suffix.
    prefix = next(p for p in ("scipy_openblas", "openblas") if hasattr(blas, p + "_set_num_threads64_"))
    get, put = getattr(blas, prefix + "_get_num_threads64_"), getattr(blas, prefix + "_set_num_threads64_")
    before = get()
    put(1)
    try:
        assert get() == 1
    finally:
        put(before)
