"""Facts about MLX arithmetic on the CPU device that mlxsparse works around, one small test each.

See test_mlx_facts.py for what a failure means.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform

import mlx.core as mx
import numpy as np
import pytest

from tests.mlx_facts import LINUX_ONLY, cpu_device, run_python  # noqa: F401


def test_a_scatter_out_of_range_is_not_checked() -> None:
    """It writes outside the buffer: the process dies or goes on with a broken heap, but nothing is raised."""
    done = run_python(
        """
        target = mx.zeros((1000,))
        try:
            mx.eval(target.at[mx.array([0, 1005, 50_000_000])].add(mx.ones((3,))))
        except Exception as error:
            print("raised", error)
        """
    )
    assert "raised" not in done.stdout


def test_scatter_add_in_half_precision_accumulates_in_half_precision() -> None:
    index = mx.zeros((4096,), mx.int32)
    for dtype, total in ((mx.float16, 256.0), (mx.bfloat16, 32.0), (mx.float32, 409.6)):
        out = mx.zeros((1,), dtype).at[index].add(mx.full((4096,), 0.1, dtype))
        assert out.item() == pytest.approx(total, rel=1e-3)


def test_scatter_maximum_drops_nan_that_comes_first_and_max_keeps_it() -> None:
    index = mx.array([0, 0])
    out = mx.full((1,), -5.0).at[index].maximum(mx.array([math.nan, -1.0]))
    assert out.item() == -1
    assert math.isnan(mx.max(mx.array([math.nan, -1.0])).item())


def test_float64_silently_becomes_float32_and_int64_stays() -> None:
    assert mx.array(np.ones(2)).dtype == mx.float32
    assert mx.array(np.ones(2, np.int64)).dtype == mx.int64


def test_int64_to_int32_wraps_silently() -> None:
    assert mx.array(np.array([2**31])).astype(mx.int32).item() == -(2**31)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs x86-64")
def test_nan_becomes_the_smallest_int32() -> None:
    assert mx.array([math.nan]).astype(mx.int32).item() == -(2**31)


def test_reductions_over_an_empty_axis() -> None:
    empty = mx.zeros((0, 3))
    with pytest.raises(ValueError, match="Cannot max reduce"):
        mx.max(empty, axis=0)
    assert all(math.isnan(v) for v in mx.mean(empty, axis=0).tolist())
    assert mx.sum(empty, axis=0).tolist() == [0, 0, 0]


def test_float32_misplaces_points_at_map_scale() -> None:
    """Why NumPy points are quantised in float64: at UTM northings float32 steps by half a metre."""
    points = 5_402_876.0 + np.arange(1000) * 0.01
    right = np.floor(points / 0.05).astype(np.int64)
    single = np.floor(np.asarray(mx.array(points) / 0.05)).astype(np.int64)
    assert (right != single).mean() > 0.8


@LINUX_ONLY
def test_the_linux_cpu_wheel_multiplies_with_reference_blas() -> None:
    """Why the host path multiplies with NumPy, whose OpenBLAS is many times faster on the same cores. If this
    fails, measure the host path with mx.matmul again."""
    try:
        files = importlib.metadata.files("mlx-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs Linux with the mlx-cpu wheel: this is a CUDA installation")
    libraries = [file.name for file in files if file.parts[0] == "mlx_cpu.libs"]
    assert any(name.startswith("libblas") for name in libraries)
    assert not any(word in name for name in libraries for word in ("openblas", "mkl", "blis"))


def test_the_state_of_random_numbers_is_put_back_by_writing_into_it():
    state = mx.array(mx.random.state[0])
    first = mx.random.uniform(shape=(3,)).tolist()
    mx.random.state[0][:] = state
    assert mx.random.uniform(shape=(3,)).tolist() == first != mx.random.uniform(shape=(3,)).tolist()
