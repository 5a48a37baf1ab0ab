"""Facts about mx.fast.metal_kernel and mx.fast.cuda_kernel that mlxsparse relies on, one small test each.

Most hold on a machine without a GPU: exporting a function that calls a Metal kernel with `verbose=True`
prints the generated text without compiling it. See test_mlx_facts.py for what a failure means.
"""

from __future__ import annotations

import pathlib
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

METAL = mx.metal.is_available()
CUDA = mx.cuda.is_available()
NO_GPU = pytest.mark.skipif(not (METAL or CUDA), reason="no GPU backend present")
COPY = "o[thread_position_in_grid.x] = a[thread_position_in_grid.x];"


def call(kernel: Any, *inputs: mx.array, n: int = 8, **options: Any) -> mx.array:
    out: mx.array = kernel(
        inputs=list(inputs),
        grid=(n, 1, 1),
        threadgroup=(8, 1, 1),
        output_shapes=[(n,)],
        output_dtypes=[mx.float32],
        **options,
    )[0]
    return out


def metal_text(
    capfd: Any, tmp_path: pathlib.Path, source: str, *inputs: mx.array, header: str = "", **options: Any
) -> str:
    """The Metal text that MLX generates around `source`."""
    kernel = mx.fast.metal_kernel(
        name="fact", input_names=["a", "b"][: len(inputs)], output_names=["o"], source=source, header=header
    )
    mx.export_function(
        str(tmp_path / "f.mlxfn"), lambda *a: call(kernel, *a, verbose=True, **options), *inputs
    )
    return str(capfd.readouterr().out)


def test_exporting_a_verbose_kernel_prints_its_text_without_metal(capfd: Any, tmp_path: pathlib.Path) -> None:
    text = metal_text(capfd, tmp_path, COPY, mx.ones(8))
    assert "Generated source code for `fact`" in text
    assert "const device float* a [[buffer(0)]]" in text and "device float* o [[buffer(1)]]" in text
    assert "uint3 thread_position_in_grid [[thread_position_in_grid]]" in text


def test_inputs_under_8_elements_are_constant_and_scalars_a_reference(
    capfd: Any, tmp_path: pathlib.Path
) -> None:
    text = metal_text(capfd, tmp_path, "o[0] = a[0] + b;", mx.ones(7), mx.array(3.0))
    assert "const constant float* a [[" in text and "const constant float& b [[" in text


def test_shape_names_are_found_by_substring_in_comments_too(capfd: Any, tmp_path: pathlib.Path) -> None:
    text = metal_text(capfd, tmp_path, "o[0] = a[0]; // a_shape a_strides a_ndim", mx.ones((8, 2)))
    for argument in (
        "const constant int* a_shape",
        "const constant int64_t* a_strides",
        "const constant int& a_ndim",
    ):
        assert argument in text


def test_shape_names_are_never_found_in_the_header(capfd: Any, tmp_path: pathlib.Path) -> None:
    text = metal_text(capfd, tmp_path, "o[0] = a[0];", mx.ones((8, 2)), header="// a_shape\n")
    assert "// a_shape" in text and "constant int* a_shape" not in text


def test_each_template_value_is_a_kernel_of_its_own(capfd: Any, tmp_path: pathlib.Path) -> None:
    for n in (7, 9):
        text = metal_text(
            capfd, tmp_path, "o[0] = T(a[0]) + N;", mx.ones(8), template=[("T", mx.float16), ("N", n)]
        )
        assert "template <typename T, int N>" in text
        assert f"custom_kernel_fact__float16_t_{n}_float_float<float16_t, {n}>" in text


@pytest.mark.parametrize("transform", ["vjp", "jvp", "vmap"])
def test_kernels_have_no_vjp_jvp_or_vmap(tmp_path: pathlib.Path, transform: str) -> None:
    kernel = mx.fast.metal_kernel(name="fact", input_names=["a"], output_names=["o"], source=COPY)

    def f(a: mx.array) -> mx.array:
        return call(kernel, a).sum()

    transformed = {"vjp": mx.grad(f), "jvp": lambda a: mx.jvp(f, [a], [a])[1][0], "vmap": mx.vmap(f)}[
        transform
    ]
    with pytest.raises(ValueError, match=f"Primitive::{transform}. Not implemented for CustomKernel"):
        mx.export_function(str(tmp_path / "f.mlxfn"), transformed, mx.ones((8, 8)))


def test_init_value_is_one_number_for_all_outputs() -> None:
    kernel = mx.fast.metal_kernel(name="fact", input_names=["a"], output_names=["o"], source=COPY)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        call(kernel, mx.ones(8), init_value=[0.0])


def test_metal_kernel_is_made_anywhere_and_refuses_the_call_without_metal() -> None:
    kernel = mx.fast.metal_kernel(name="fact", input_names=["a"], output_names=["o"], source=COPY)
    if METAL:
        assert call(kernel, mx.arange(8, dtype=mx.float32)).tolist() == list(range(8))
    else:
        with pytest.raises(RuntimeError, match="No Metal back-end"):
            call(kernel, mx.ones(8))


def test_cuda_kernel_refuses_already_when_made_without_cuda() -> None:
    def make() -> Any:
        return mx.fast.cuda_kernel(name="fact", input_names=["a"], output_names=["o"], source="o[0] = a[0];")

    if CUDA:
        assert callable(make())
    else:
        with pytest.raises(RuntimeError, match="No CUDA back-end"):
            make()


def test_there_is_no_gpu_device_without_a_backend() -> None:
    if METAL or CUDA:
        assert (mx.ones(3, stream=mx.gpu) + 1).tolist() == [2, 2, 2]
    else:
        before = mx.default_device()
        with pytest.raises(ValueError, match="without gpu backend"):
            mx.set_default_device(mx.gpu)
        assert mx.default_device() == before


def test_gather_mm_multiplies_each_row_by_the_matrix_of_its_index() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-3, 4, (10, 1, 4)).astype(np.float32)
    weights = rng.integers(-3, 4, (3, 4, 5)).astype(np.float32)
    index = np.sort(rng.integers(0, 3, 10)).astype(np.uint32)
    out = mx.gather_mm(mx.array(rows), mx.array(weights), rhs_indices=mx.array(index), sorted_indices=True)
    assert np.array_equal(np.asarray(out), rows @ weights[index])


@NO_GPU
def test_grid_counts_threads() -> None:
    """Every element up to grid is written: were it threadgroups, the kernel would write past the end."""
    n = 104
    if METAL:
        kernel = mx.fast.metal_kernel(name="fact", input_names=["a"], output_names=["o"], source=COPY)
    else:
        source = "auto i = blockIdx.x * blockDim.x + threadIdx.x; o[i] = a[i];"
        kernel = mx.fast.cuda_kernel(name="fact", input_names=["a"], output_names=["o"], source=source)
    with mx.stream(mx.gpu):
        assert call(kernel, mx.arange(n, dtype=mx.float32), n=n).tolist() == list(range(n))
