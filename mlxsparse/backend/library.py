"""The kernel library: texts in kernels/, one call for Metal and CUDA, checks before every launch.

A kernel is called with arrays and whole threadgroups; `launch` pads what Metal would treat specially (inputs
under 8 elements, empty arrays), checks dtypes and grid limits, and picks mx.fast.metal_kernel or
mx.fast.cuda_kernel. The operators are in kernel_coords.py, kernel_conv.py and kernel_rows.py.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ..errors import CapacityError, DeviceError, DTypeError, MLXSparseError, ShapeError
from .cuda_text import shared_memory
from .device import trace

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
MAX_THREADS = 256  # of a threadgroup: Apple GPUs allow fewer than 1024 when a kernel needs many registers
MAX_GRID_X = 2**31 - 1  # threads; MLX takes the grid as 32-bit integers
MAX_GRID_YZ = 65535  # threadgroups along y or z, CUDA's limit
SMALL = 8  # inputs below it lie in another address space on Metal
_I, _U, _L, _F, _T = "int32", "uint32", "uint64", "float32", "T"


class Kernel(NamedTuple):
    """Inputs and outputs (name -> dtype, "T" is the template parameter), headers, template parameters."""

    inputs: dict[str, str]
    outputs: dict[str, str]
    headers: tuple[str, ...] = ()
    template: tuple[str, ...] = ()


_HASH = ("coord_hash.h",)
_ROWS = ("rows.h",)
_SITES, _BITS = ("site_bits.h",), {"bits": _U, "before": _I, "ends": _I}
KERNELS: dict[str, Kernel] = {
    "bit_counts": Kernel({"bits": _U}, {"before": _I, "totals": _I}),
    "bit_sites": Kernel(_BITS, {"sites": _I}),
    "block_attend": Kernel(
        {
            "q": _T, "k": _T, "v": _T, "marks": _F, "scale": _F, "bias": _F,
            "q_ids": _I, "k_ids": _I, "ptr": _I, "other": _I,
        },
        {"y": _T, "lse": _F},
        ("tile.h", "stage.h", "attend.h", "block_scores.h"),
        ("T", "DIM", "BM", "BN", "WM", "EXACT"),
    ),
    "block_gemm": Kernel(
        {"a": _T, "b": _T, "ptr": _I, "block": _I, "other": _I},
        {"y": _T},
        ("tile.h", "stage.h"),
        ("T", "MODE", "TA", "TB", "BM", "BN", "WM", "WN", "SUB", "STAGES", "EXACT"),
    ),
    "block_marks": Kernel({"k": _T, "v": _T, "keys": _F}, {"marks": _F}, (), ("T",)),
    "block_softmax": Kernel(
        {
            "x": _T, "scale": _F, "bias": _F, "keys": _F, "pairs": _F,
            "q_ids": _I, "k_ids": _I, "ptr": _I, "cols": _I,
        },
        {"y": _T, "lse": _F},
        ("block_scores.h",),
        ("T",),
    ),
    "block_softmax_grad": Kernel(
        {"ct": _T, "y": _T, "lse_ct": _F, "ptr": _I, "cols": _I}, {"dt": _F}, (), ("T",)
    ),
    "candidates": Kernel({"coords": _I}, {"sites": _I, "status": _U}),
    "column_parts": Kernel({"x": _T, "ct": _T, "shift": _F, "delta": _F}, {"parts": _F}, (), ("T",)),
    "column_total": Kernel({"parts": _F}, {"total": _F}),
    "compact": Kernel({"flags": _U, "places": _I}, {"rows": _I}),
    "conv": Kernel({"x": _T, "weight": _T, "bias": _F, "nbr": _I}, {"y": _T}, ("tile.h",), ("T", "EXACT")),
    "conv_weight_grad": Kernel({"ct": _T, "x": _T, "nbr": _I}, {"parts": _F}, ("tile.h",), ("T", "EXACT")),
    "conv_tiles": Kernel(
        {"x": _T, "weight": _T, "bias": _F, "nbr": _I, "rows": _I, "masks": _U},
        {"y": _T},
        ("tile.h",),
        ("T", "EXACT", "BM", "BN", "BK", "WM", "WN", "STAGES", "KEEP", "GRAD"),
    ),
    "conv_tiles_grad": Kernel(
        {"ct": _T, "x": _T, "nbr": _I, "rows": _I, "masks": _U},
        {"parts": _F},
        ("tile.h",),
        ("T", "EXACT", "BM", "BN", "BK", "WM", "WN", "STAGES"),
    ),
    "coord_hash_insert": Kernel({"coords": _I}, {"table": _U, "repeated": _U}, _HASH),
    "coord_hash_lookup": Kernel({"coords": _I, "table": _U, "queries": _I}, {"rows": _I}, _HASH),
    "gather_sum": Kernel(
        {"x": _T, "nbr": _I, "weight": _F, "before": _F, "after": _F}, {"y": _T}, _ROWS, ("T",)
    ),
    "key_flags": Kernel({"keys": _L}, {"flags": _I}),
    "key_sites": Kernel({"keys": _L, "places": _I}, {"sites": _I}),
    "max_pool": Kernel({"x": _T, "nbr": _I}, {"y": _T, "winner": _I}, _ROWS, ("T",)),
    "max_pool_grad": Kernel({"ct": _T, "winner": _I, "back": _I}, {"dx": _T}, _ROWS, ("T",)),
    "neighbour_map": Kernel({"coords": _I, "table": _U, "queries": _I}, {"nbr": _I, "back": _I}, _HASH),
    "scatter_rows": Kernel({"x": _T, "rows": _I}, {"y": _T}, _ROWS, ("T",)),
    "segment_bounds": Kernel({"sorted": _I}, {"ptr": _I}),
    "segment_reduce": Kernel(
        {"x": _T, "order": _I, "ptr": _I, "weight": _F}, {"y": _F, "winner": _I}, _ROWS, ("T",)
    ),
    "site_bits": Kernel({"coords": _I}, {"bits": _U, "status": _U}, _SITES),
    "site_map": Kernel({"coords": _I, **_BITS}, {"source": _I, "reached": _I}, _SITES),
    "site_keys": Kernel({"coords": _I}, {"keys": _L, "status": _U}),
    "submanifold_bits": Kernel({"coords": _I, **_BITS}, {"nbr": _I}, _SITES),
    "submanifold_map": Kernel({"coords": _I, "table": _U}, {"nbr": _I}, _HASH),
    "sum_parts": Kernel({"parts": _F}, {"y": _T}, (), ("T",)),
    "tap_keys": Kernel({"nbr": _I, "bit": _I}, {"keys": _U}),
    "tap_tiles": Kernel({"nbr": _I, "order": _I}, {"tiled": _I, "rows": _I, "masks": _U}),
    "window_map": Kernel({"coords": _I, "order": _I, "places": _I}, {"nbr": _I, "back": _I}),
    "winner_grad": Kernel({"ct": _T, "winner": _I, "group": _I}, {"dx": _T}, _ROWS, ("T",)),
}  # fmt: skip

# ---------------------------------------------------------------- texts


@functools.cache
def folder() -> pathlib.Path:
    """Where the kernel texts are: in the installed package, else in the checkout."""
    package = pathlib.Path(__file__).resolve().parents[1]
    for place in (package / "kernels", package.parent / "kernels"):
        if (place / "prelude.cuh").is_file():
            return place
    raise DeviceError(f"mlxsparse's kernels/ is neither in {package} nor beside it; reinstall mlxsparse")


@functools.cache
def text(file: str) -> str:
    """Text of one file of kernels/."""
    return (folder() / file).read_text(encoding="utf-8")


def header(kernel: Kernel) -> str:
    return "".join(text(name) for name in kernel.headers)


# ---------------------------------------------------------------- backends

Factory = Callable[..., Any]
STATIC_BYTES = 48 * 1024  # of threadgroup memory of a CUDA kernel whose arrays have a fixed size


def _metal(
    name: str, input_names: list[str], output_names: list[str], source: str, header: str, group_bytes: int = 0
) -> Any:
    return mx.fast.metal_kernel(
        name=name, input_names=input_names, output_names=output_names, source=source, header=header
    )


def cuda_prelude() -> str:
    return text("prelude.cuh") + text("tile.cuh") + text("stage.cuh")


def _cuda(
    name: str, input_names: list[str], output_names: list[str], source: str, header: str, group_bytes: int = 0
) -> Any:
    dynamic = group_bytes > STATIC_BYTES
    more: dict[str, Any] = {"shared_memory": group_bytes} if dynamic else {}
    return mx.fast.cuda_kernel(
        name=f"{name}_{group_bytes}" if dynamic else name,
        input_names=input_names,
        output_names=output_names,
        source=shared_memory(source, dynamic),
        header=cuda_prelude() + header,
        **more,
    )


_forced: Factory | None = None


def factory() -> Factory:
    """What makes kernels for this machine's GPU. DeviceError where MLX has no Metal and no CUDA."""
    if _forced is not None:
        return _forced
    if mx.metal.is_available():
        return _metal
    if getattr(mx, "cuda", None) and mx.cuda.is_available():
        return _cuda
    raise DeviceError(
        "no GPU kernels here: MLX has neither Metal nor CUDA; call mx.set_default_device(mx.cpu)"
    )


def on_cuda() -> bool:
    """Whether kernels run through CUDA."""
    return factory() is _cuda


@contextlib.contextmanager
def using(make: Factory) -> Iterator[None]:
    """Launch kernels through `make` (mx.fast.metal_kernel's arguments): tests on a machine without a GPU."""
    global _forced
    before, _forced = _forced, make
    try:
        yield
    finally:
        _forced = before


@functools.lru_cache(maxsize=256)
def _built(make: Factory, name: str, group_bytes: int = 0) -> Any:
    kernel = KERNELS[name]
    inputs, outputs = [*kernel.inputs, "dims"], list(kernel.outputs)
    more = {"group_bytes": group_bytes} if make is _cuda else {}
    return make(unique_name(name), inputs, outputs, text(f"{name}.metal"), header(kernel), **more)


def unique_name(name: str) -> str:
    """A name that changes with the text: MLX keeps CUDA kernels on disk by name, across upgrades of ours."""
    whole = cuda_prelude() + header(KERNELS[name]) + text(f"{name}.metal")
    return f"mlxsparse_{name}_{hashlib.sha256(whole.encode()).hexdigest()[:10]}"


def plain_name(unique: str) -> str:
    """The name in KERNELS of a `unique_name`."""
    return unique.removeprefix("mlxsparse_").rpartition("_")[0]


# ---------------------------------------------------------------- launching


def launch(
    name: str,
    inputs: Sequence[mx.array],
    dims: Sequence[int | mx.array],
    shapes: Sequence[Sequence[int]],
    groups: tuple[int, int, int],
    threads: int = MAX_THREADS,
    *,
    dtype: mx.Dtype | None = None,
    init: float | None = None,
    group_bytes: int = 0,
    **template: int,
) -> list[mx.array]:
    """Run kernel `name` on `groups` threadgroups of `threads` threads; arrays of `shapes`.

    inputs: as KERNELS lists them, without dims. dims: the kernel's sizes, integers or 0-d int32 arrays.
    dtype: the template parameter T. init: what every output holds before, and where nothing is launched.
    group_bytes: threadgroup memory, where it can pass STATIC_BYTES on CUDA.
    """
    kernel = KERNELS[name]
    _check_inputs(name, kernel, inputs, dtype)
    types: list[Any] = [dtype if kind == _T else getattr(mx, kind) for kind in kernel.outputs.values()]
    if 0 in groups:
        return [filled(shape, init or 0, kind) for shape, kind in zip(shapes, types)]
    if not 0 < threads <= MAX_THREADS:
        raise MLXSparseError(
            f"{name}: threadgroups of {threads} threads; at most {MAX_THREADS} run everywhere"
        )
    if groups[0] * threads > MAX_GRID_X or max(groups[1:]) > MAX_GRID_YZ:
        limits = f"x {MAX_GRID_X // threads}, y and z {MAX_GRID_YZ}"
        raise CapacityError(
            f"{name}: a grid of {groups} threadgroups is too large ({limits}); split the input"
        )
    values = {"T": dtype, **template}
    make = factory()
    trace(f"kernel {name} {_described(values)}", once=True)
    # Metal has no buffer of no elements: an empty output is one element that nobody reads.
    outputs: list[mx.array] = _built(make, name, group_bytes if group_bytes > STATIC_BYTES else 0)(
        inputs=[*(_padded(a) for a in inputs), _dims(name, dims)],
        output_shapes=[tuple(shape) if math.prod(shape) else (1,) for shape in shapes],
        output_dtypes=types,
        grid=(groups[0] * threads, groups[1], groups[2]),
        threadgroup=(threads, 1, 1),
        template=[(parameter, values[parameter]) for parameter in kernel.template] or None,
        init_value=init,
    )
    return [out if math.prod(shape) else filled(shape, 0, out.dtype) for out, shape in zip(outputs, shapes)]


def filled(shape: Sequence[int], value: float, dtype: mx.Dtype) -> mx.array:
    """An array full of `value`. Without elements it is made on the host: some GPU operations on no
    elements leave an array without memory, and reading it ends the process.
    """
    if math.prod(shape) == 0:
        return mx.array(np.empty(tuple(shape), np.float32), dtype)
    return mx.full(tuple(shape), value, dtype)


def begin(*arrays: mx.array) -> None:
    """Start computing arrays that will be read soon.

    What follows from the arguments of a transformation of MLX may not be started inside it: it stays lazy,
    and is computed once, with the first result that needs it.
    """
    with contextlib.suppress(ValueError):
        mx.async_eval(*arrays)


def numbers(n: int) -> mx.array:
    """0, 1, .. n - 1 int32."""
    return mx.arange(n, dtype=mx.int32) if n else filled((0,), 0, mx.int32)


def _described(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _check_inputs(name: str, kernel: Kernel, inputs: Sequence[mx.array], dtype: mx.Dtype | None) -> None:
    if len(inputs) != len(kernel.inputs):
        raise MLXSparseError(f"{name} takes {list(kernel.inputs)}, got {len(inputs)} arrays")
    if "T" in kernel.template and dtype not in FLOATS:
        raise DTypeError(f"{name} takes float32, float16 or bfloat16, got {dtype}; cast with x.astype(...)")
    for (argument, kind), a in zip(kernel.inputs.items(), inputs):
        wanted = dtype if kind == _T else getattr(mx, kind)
        if a.dtype != wanted:
            raise DTypeError(f"{name}: {argument} is {a.dtype}, wanted {wanted}; cast with .astype({wanted})")


def _padded(a: mx.array) -> mx.array:
    if a.size >= SMALL:
        return a
    if a.size == 0:
        return mx.zeros((SMALL,), a.dtype)
    return mx.concatenate([a.reshape(-1), mx.zeros((SMALL - a.size,), a.dtype)])


def _dims(name: str, values: Sequence[int | mx.array]) -> mx.array:
    for v in values:
        if isinstance(v, int) and not -(2**31) <= v < 2**31:
            raise CapacityError(f"{name}: the size {v} does not fit 32 bits; split the input")
    if all(isinstance(v, int) for v in values):
        return _constant(tuple(int(v) for v in values))
    parts = [v.astype(mx.int32) if isinstance(v, mx.array) else mx.array(v, dtype=mx.int32) for v in values]
    return mx.stack([*parts, *(mx.array(0, dtype=mx.int32) for _ in range(SMALL - len(values)))])


@functools.lru_cache(maxsize=4096)
def _constant(values: tuple[int, ...]) -> mx.array:
    return mx.array([*values, *[0] * (SMALL - len(values))], dtype=mx.int32)


@functools.cache
def unread() -> mx.array:
    """What stands for a float32 input that a call leaves out: the kernel does not read it."""
    return mx.array([0.0] * SMALL, dtype=mx.float32)


def blocks(n: int, size: int) -> int:
    """Pieces of `size` that cover n."""
    return -(-n // size)


def fused(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """`function` of elementwise operations as one kernel of a GPU device; on the CPU device as it is."""
    compiled = mx.compile(function, shapeless=True)

    @functools.wraps(function)
    def run(*arrays: mx.array) -> mx.array:
        result: mx.array = (function if mx.default_device().type == mx.DeviceType.cpu else compiled)(*arrays)
        return result

    return run


def row_groups(rows: int, channels: int) -> tuple[int, int, int]:
    """Threadgroups of a kernel over (rows, channels): rows.h."""
    return blocks(rows, MAX_THREADS // 32), blocks(channels, 32), 1


# ---------------------------------------------------------------- checks of arguments


def read_ints(*values: mx.array) -> list[int]:
    """0-d integer arrays as Python integers, in one wait for the device."""
    return [int(v) for v in np.array(mx.stack([v.astype(mx.int64) for v in values]))]


def check_array(name: str, a: mx.array, ndim: int, dtype: mx.Dtype | None = None) -> None:
    """ShapeError or DTypeError unless `a` has `ndim` axes and `dtype`."""
    if a.ndim != ndim:
        raise ShapeError(f"{name} has shape {tuple(a.shape)}, wanted {ndim} axes")
    if dtype is not None and a.dtype != dtype:
        raise DTypeError(f"{name} is {a.dtype}, wanted {dtype}; cast with .astype({dtype})")


def check_coords(name: str, coords: mx.array) -> None:
    check_array(name, coords, 2, mx.int32)
    if coords.shape[1] != 4:
        raise ShapeError(f"{name} has shape {tuple(coords.shape)}, wanted (N, 4): batch, x, y, z")


def check_index(name: str, index: mx.array, limit: int) -> None:
    """MLXSparseError unless each element of an int32 array is -1 or a row below `limit`. Waits for it."""
    if index.dtype != mx.int32:
        raise DTypeError(f"{name} is {index.dtype}, wanted int32; cast with .astype(mx.int32)")
    if index.size:
        low, high = read_ints(index.min(), index.max())
        if low < -1 or high >= limit:
            raise MLXSparseError(f"{name}: row index out of range: [{low}, {high}] for {limit} rows")
