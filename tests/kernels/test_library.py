"""The kernel library without a GPU: texts, the CUDA rewrite, and what is refused before a launch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.backend import (
    cuda_compile,
    kernel_conv,
    kernel_coords,
    kernel_rows,
    kernel_text,
    library,
    tile_shapes,
)
from mlxsparse.errors import CapacityError, DeviceError, DTypeError, MLXSparseError, ShapeError, StrideError


def never(*_: Any) -> Any:
    def call(**_: Any) -> Any:
        raise AssertionError("the kernel was launched")

    return call


@pytest.fixture(autouse=True)
def no_launch() -> Iterator[None]:
    with library.using(never):
        yield


def test_every_text_is_registered_and_names_what_the_registry_names() -> None:
    files = {path.stem for path in library.folder().glob("*.metal")}
    assert files == set(library.KERNELS)
    for name, kernel in library.KERNELS.items():
        body = library.text(f"{name}.metal")
        code = re.sub(r"//[^\n]*", "", body)
        for argument in [*kernel.inputs, *kernel.outputs, *(["dims"] if "dims" in body else [])]:
            assert re.search(rf"\b{argument}\b", code), f"{name} does not use {argument}"
        for parameter in ("T", "EXACT"):
            assert parameter in kernel.template or not re.search(rf"\b{parameter}\b", code), name


def test_the_text_is_found_in_the_package_before_the_checkout(tmp_path: Any, monkeypatch: Any) -> None:
    package = tmp_path / "mlxsparse"
    for place in (package / "backend", package / "kernels", tmp_path / "kernels"):
        place.mkdir(parents=True)
    monkeypatch.setattr(kernel_text, "__file__", str(package / "backend" / "kernel_text.py"))
    find = library.folder.__wrapped__
    with pytest.raises(DeviceError, match="reinstall mlxsparse"):
        find()
    (tmp_path / "kernels" / "prelude.cuh").touch()
    assert find() == tmp_path / "kernels"
    (package / "kernels" / "prelude.cuh").touch()
    assert find() == package / "kernels"


def test_cuda_gets_shared_memory_and_the_prelude(monkeypatch: Any) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda **given: seen.update(given))
    library._cuda("n", ["x"], ["y"], library.text("conv.metal"), library.text("tile.h"))
    declared = re.findall(r"^threadgroup .*\[.*;", library.text("conv.metal"), re.M)
    assert len(declared) == 4 and seen["source"].count("__shared__") == 4
    assert seen["header"].index("#define threadgroup") < seen["header"].index("TILE_CUDA 1")


class FakeCompiler:
    """Stands for NVIDIA's compiler: counts what it compiles."""

    version = "13.0"

    def __init__(self, message: str = "") -> None:
        self.texts: list[str] = []
        self.message = message

    def compile(self, text: str, architecture: str) -> tuple[bytes, str]:
        self.texts.append(text)
        return (b"" if self.message else b"code of " + text[-40:].encode()), self.message


@pytest.fixture
def compiler(tmp_path: Any, monkeypatch: Any) -> FakeCompiler:
    made = FakeCompiler()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda_compile, "_compiler", lambda: made)
    monkeypatch.setattr(cuda_compile, "_architecture", lambda: "sm_90a")
    return made


def test_a_cuda_kernel_is_compiled_once_a_machine(
    compiler: FakeCompiler, tmp_path: Any, monkeypatch: Any
) -> None:
    text = library.cuda_source("gather_sum", {"T": mx.float16})
    name, code = cuda_compile.machine_code("gather_sum", text) or ("", b"")
    assert f"__global__ void {name}(const __half* " in compiler.texts[0]
    assert "using T = __half;" in compiler.texts[0]
    assert cuda_compile.machine_code("gather_sum", text) == (name, code) and len(compiler.texts) == 1
    assert [p.name for p in (tmp_path / "mlxsparse" / "cuda").iterdir()] == [f"{name}.cubin"]
    other = cuda_compile.machine_code("gather_sum", text + "// changed")
    monkeypatch.setattr(cuda_compile, "_architecture", lambda: "sm_80")
    names = {name, (other or ("",))[0], (cuda_compile.machine_code("gather_sum", text) or ("",))[0]}
    assert len(compiler.texts) == len(names) == 3  # by text and by architecture


def test_without_compiler_or_headers_mlx_compiles(
    compiler: FakeCompiler, tmp_path: Any, monkeypatch: Any
) -> None:
    compiler.message = 'error: could not open source file "cuda_fp16.h"'
    assert cuda_compile.machine_code("gather_sum", "text") is None
    monkeypatch.setattr(cuda_compile, "_compiler", lambda: None)
    assert cuda_compile.machine_code("gather_sum", "text") is None
    assert not (tmp_path / "mlxsparse").exists()


def test_a_text_that_is_refused_says_why(compiler: FakeCompiler) -> None:
    compiler.message = "line 7: expected a ;"
    with pytest.raises(MLXSparseError, match="gather_sum does not compile for sm_90a: line 7"):
        cuda_compile.machine_code("gather_sum", "text")


def test_a_cache_that_cannot_be_written_is_no_error(compiler: FakeCompiler, tmp_path: Any) -> None:
    (tmp_path / "mlxsparse").write_text("a file where the folder should be")
    for _ in range(2):
        assert cuda_compile.machine_code("gather_sum", "text") is not None
    assert len(compiler.texts) == 2


def test_without_a_gpu_the_library_says_so(monkeypatch: Any) -> None:
    monkeypatch.setattr(library, "_forced", None)
    library._native.cache_clear()
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="neither Metal nor CUDA"):
        library.factory()


COORDS = mx.zeros((3, 4), dtype=mx.int32)
TABLE = kernel_coords.CoordTable(COORDS, mx.zeros((9, 16), dtype=mx.uint32), 64)
X, W = mx.zeros((6, 4)), mx.zeros((5, 27, 4))
NBR = mx.zeros((27, 6), dtype=mx.int32)
REFUSED = {
    "coordinates of three columns": (ShapeError, lambda: kernel_coords.hash_table(COORDS[:, :3])),
    "int64 coordinates": (DTypeError, lambda: kernel_coords.hash_table(COORDS.astype(mx.int64))),
    "a table smaller than the rows": (CapacityError, lambda: kernel_coords.hash_table(COORDS, 2)),
    "a table of no power of two": (CapacityError, lambda: kernel_coords.hash_table(COORDS, 7)),
    "70,000 taps": (CapacityError, lambda: kernel_coords.neighbour_map(TABLE, COORDS, (70, 100, 10))),
    "stride 0": (StrideError, lambda: kernel_coords.parents(COORDS, (1, 0, 1))),
    "a dtype without kernels": (DTypeError, lambda: kernel_rows.max_pool(X.astype(mx.int32), NBR)),
    "a weight of another dtype": (
        DTypeError,
        lambda: kernel_conv.conv_forward(X, W.astype(mx.float16), NBR),
    ),
    "an int64 table": (DTypeError, lambda: kernel_conv.conv_forward(X, W, NBR.astype(mx.int64))),
    "another number of taps": (ShapeError, lambda: kernel_conv.conv_forward(X, W, NBR[:3])),
    "other channels": (ShapeError, lambda: kernel_conv.conv_forward(X[:, :3], W, NBR)),
    "groups that do not divide": (ShapeError, lambda: kernel_conv.conv_forward(X, W, NBR, groups=2)),
    "a bias of another length": (ShapeError, lambda: kernel_conv.conv_forward(X, W, NBR, X[0])),
    "a row past the end": (MLXSparseError, lambda: kernel_rows.take_rows(X, mx.array([6], dtype=mx.int32))),
    "a group below -1": (MLXSparseError, lambda: kernel_rows.segments(mx.array([-2], dtype=mx.int32), 3)),
    "an unknown mode": (
        MLXSparseError,
        lambda: kernel_rows.batch_reduce(X, NBR[0], np.array([6]), "median"),
    ),
    "a threadgroup of 512": (
        MLXSparseError,
        lambda: library.launch("compact", [TABLE.table, COORDS], [1], [(1,)], (1, 1, 1), 512),
    ),
    "a grid past 32 bits": (
        CapacityError,
        lambda: library.launch("compact", [TABLE.table, COORDS], [1], [(1,)], (2**24, 1, 1)),
    ),
    "a size past 32 bits": (
        CapacityError,
        lambda: library.launch("compact", [TABLE.table, COORDS], [2**31], [(1,)], (1, 1, 1)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_a_launch(name: str) -> None:
    error, call = REFUSED[name]
    with pytest.raises(error):
        call()


def test_fp32_mode(monkeypatch: Any) -> None:
    for mode, wanted in {"": 1, "near": 1, "exact": 2, "tf32": 0}.items():
        monkeypatch.setenv("MLXSPARSE_FP32", mode)
        assert kernel_conv.fp32_mode(mx.float32) == wanted
        assert kernel_conv.fp32_mode(mx.float16) == 0
    monkeypatch.setenv("MLXSPARSE_FP32", "fast")
    with pytest.raises(MLXSparseError, match='"near", "exact" or "tf32"'):
        kernel_conv.fp32_mode(mx.float32)


def test_nothing_is_launched_for_nothing() -> None:
    assert kernel_coords.hash_table(COORDS[:0]).table.tolist() == [[0] * 16] * 5
    assert kernel_rows.take_rows(X, mx.zeros((0,), mx.int32)).shape == (0, 4)
    assert kernel_conv.conv_weight_grad(X[:0], X[:0], NBR[:, :0]).shape == (4, 27, 4)


def test_few_rows_get_small_tiles() -> None:
    with library.using(library._cuda):
        half = [tile_shapes.tile_for(mx.float16, 128, rows) for rows in (1 << 20, 1 << 16, 1 << 14, 1 << 10)]
    assert [(tile.BM, tile.BN) for tile in half] == [(128, 128), (128, 128), (64, 64), (64, 64)]
    assert tile_shapes.tile_for(mx.float16, 128, 1 << 10) == tile_shapes.tile_for(mx.float16, 128, 1 << 20)


def test_a_launch_that_holds_inputs_checks_them_once() -> None:
    seen: list[Any] = []

    def make(*_: Any, **__: Any) -> Any:
        return lambda **given: seen.append(given["inputs"]) or [mx.zeros((6, 5))]

    nbr = mx.zeros((27, 6), mx.int32)
    with library.using(make):
        call = library.ready("scatter_rows", [6, 5, 6], [(6, 5)], (1, 1, 1), dtype=mx.float32)
        rows, x = mx.zeros((6,), mx.int32), mx.zeros((6, 5))
        held = call.holding(rows)
        assert held([x])[0].shape == call([x, rows])[0].shape == (6, 5)
        (first, padded, dims), (_, _, same) = seen
        assert first is x and padded.size == library.SMALL and dims is same
        with pytest.raises(DTypeError, match="scatter_rows: rows is mlx.core.float32"):
            call.holding(x)
        with pytest.raises(DTypeError, match="scatter_rows: x is mlx.core.int32"):
            held([nbr])
        with pytest.raises(MLXSparseError, match=r"takes \['x'\], got 2"):
            held([x, rows])
