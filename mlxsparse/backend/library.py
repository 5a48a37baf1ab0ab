"""The kernel library: texts in kernels/, one call for Metal and CUDA, checks before every launch.

A kernel is called with arrays and whole threadgroups; `launch` pads what Metal would treat specially (inputs
under 8 elements, empty arrays), checks dtypes and grid limits, and picks mx.fast.metal_kernel or
mx.fast.cuda_kernel. The operators are in kernel_coords.py, kernel_conv.py and kernel_rows.py.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ..errors import CapacityError, DeviceError, DTypeError, MLXSparseError
from .arguments import SMALL, check_sizes, filled, padded, sizes
from .arguments import check_array as check_array
from .arguments import check_coords as check_coords
from .arguments import check_index as check_index
from .arguments import numbers as numbers
from .cuda_compile import machine_code
from .cuda_text import Bounds, launch_bounds, shared_memory
from .device import trace
from .kernel_table import KERNELS as KERNELS
from .kernel_table import Kernel as Kernel
from .kernel_text import cuda_prelude, cuda_source, header, unique_name
from .kernel_text import folder as folder
from .kernel_text import plain_name as plain_name
from .kernel_text import text as text
from .mail import begin as begin
from .mail import read_ints as read_ints
from .replay import kept

MAX_THREADS = 256  # of a threadgroup: Apple GPUs allow fewer than 1024 when a kernel needs many registers
CUDA_THREADS = MAX_THREADS + 32  # and a simdgroup that copies
ZEROS = [0] * SMALL  # sizes that a launch leaves out
MAX_GRID_X = 2**31 - 1  # threads; MLX takes the grid as 32-bit integers
MAX_GRID_YZ = 65535  # threadgroups along y or z, CUDA's limit

# ---------------------------------------------------------------- backends

Factory = Callable[..., Any]
STATIC_BYTES = 48 * 1024  # of threadgroup memory of a CUDA kernel whose arrays have a fixed size


def _metal(
    name: str, input_names: list[str], output_names: list[str], source: str, header: str, group_bytes: int = 0
) -> Any:
    return mx.fast.metal_kernel(
        name=name, input_names=input_names, output_names=output_names, source=source, header=header
    )


def _cuda(
    name: str,
    input_names: list[str],
    output_names: list[str],
    source: str,
    header: str,
    group_bytes: int = 0,
    bounds: Bounds | None = None,
) -> Any:
    dynamic = group_bytes > STATIC_BYTES
    more: dict[str, Any] = {"shared_memory": group_bytes} if dynamic else {}
    parts = [name, *([str(group_bytes)] if dynamic else []), *map(str, bounds or ())]
    return mx.fast.cuda_kernel(
        name="_".join(parts),
        input_names=input_names,
        output_names=output_names,
        source=shared_memory(source, dynamic),
        header=cuda_prelude() + header + launch_bounds(bounds),
        **more,
    )


_forced: Factory | None = None


def factory() -> Factory:
    """What makes kernels for this machine's GPU. DeviceError where MLX has no Metal and no CUDA."""
    return _native() if _forced is None else _forced


@functools.cache
def _native() -> Factory:
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


@functools.cache
def grouped() -> bool:
    """Whether four simdgroups multiply together on this GPU (kernels/group.h): compute capability 9."""
    info: dict[str, Any] = mx.device_info(mx.gpu)
    return int(info.get("compute_capability_major", 0)) == 9


def native() -> bool:
    """Whether kernels run on a GPU, by MLX: elsewhere it cannot replay launches."""
    return factory() in (_metal, _cuda)


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
def _built(make: Factory, name: str, group_bytes: int = 0, bounds: Bounds | None = None) -> Any:
    kernel = KERNELS[name]
    inputs, outputs = [*kernel.inputs, "dims"], list(kernel.outputs)
    more: dict[str, Any] = {"group_bytes": group_bytes, "bounds": bounds} if make is _cuda else {}
    return make(unique_name(name), inputs, outputs, text(f"{name}.metal"), header(kernel), **more)


@functools.lru_cache(maxsize=1024)
def _compiled(
    name: str, values: tuple[tuple[str, Any], ...], group_bytes: int, bounds: Bounds | None, known: int
) -> Any:
    """The kernel as CUDA machine code, called as _built's but without `template`; None: leave it to MLX.

    known: how many sizes each call gives as `scalars`; 0: they are an array, its last input.
    """
    made = machine_code(name, cuda_source(name, dict(values), group_bytes > 0, bounds, known))
    if made is None:
        return None
    return functools.partial(
        mx.fast.precompiled_cuda_kernel,
        name=made[0],
        compiled_source=made[1],
        scalars=[],
        shared_memory=group_bytes,
        ensure_row_contiguous=True,
    )


# ---------------------------------------------------------------- launching


def launch(
    name: str,
    inputs: Sequence[mx.array],
    dims: Sequence[int | mx.array],
    shapes: Sequence[Sequence[int]],
    groups: tuple[int, int, int],
    threads: int = MAX_THREADS,
    **options: Any,
) -> Sequence[mx.array]:
    """Run kernel `name` on `inputs`, as KERNELS lists them but for dims; the rest as in `ready`."""
    return ready(name, dims, shapes, groups, threads, **options)(inputs)


def ready(
    name: str,
    dims: Sequence[int | mx.array],
    shapes: Sequence[Sequence[int]],
    groups: tuple[int, int, int],
    threads: int = MAX_THREADS,
    *,
    dtype: mx.Dtype | None = None,
    init: float | None = None,
    group_bytes: int = 0,
    fit: int = 0,
    **template: int,
) -> Launch:
    """Kernel `name` on `groups` threadgroups of `threads` threads, as a function of its inputs.

    dims: the kernel's sizes, integers or int32 arrays of one or more of them. shapes: of the outputs.
    dtype: the template parameter T. init: what every output holds before, and where nothing is launched.
    group_bytes: threadgroup memory, where it can pass STATIC_BYTES on CUDA. fit: threadgroups that one
    core shall hold, which limits registers on CUDA; 0: as the compiler finds.
    """
    ints = set(map(type, dims)) == {int}
    made = _launch(
        factory(), name, tuple(dims) if ints else None, tuple(map(tuple, shapes)), groups, threads, dtype,
        init, group_bytes, fit, tuple(template.items()),
    )  # fmt: skip
    return made if ints else made.sized(dims)


Launches = Callable[..., Sequence[mx.array]]


def sequence(run: Launches, arrays: Sequence[mx.array], *sizes: int) -> Sequence[mx.array]:
    """``run(arrays, *sizes)``, launches that follow from nothing else: from some call on as one."""
    return _sequence(factory(), run, sizes)(arrays)


@functools.lru_cache(maxsize=256)
def _sequence(make: Factory, run: Launches, sizes: tuple[int, ...]) -> Callable[[Sequence[mx.array]], Any]:
    def launched(arrays: Sequence[mx.array]) -> Sequence[mx.array]:
        return run(arrays, *sizes)

    return kept(launched) if make in (_metal, _cuda) else launched


class Launch:
    """A kernel with its sizes: call it with its inputs, without those that `holding` was given."""

    __slots__ = ("_last", "_name", "_plan", "_shapes", "_types")

    def __init__(
        self,
        name: str,
        plan: Plan,
        shapes: Sequence[Sequence[int]],
        last: list[mx.array],
        types: list[mx.Dtype] | None = None,
    ):
        self._name, self._plan, self._shapes = name, plan, shapes
        self._last = last  # inputs behind those of a call
        self._types = plan.types if types is None else types

    def sized(self, dims: Sequence[int | mx.array]) -> Launch:
        """The same launch with sizes of which some are arrays."""
        if self._plan.call is None:
            return self
        return Launch(self._name, self._plan, self._shapes, [sizes(self._name, dims)])

    def holding(self, *inputs: mx.array) -> Launch:
        """The same launch with these as the last inputs of every call: they are checked here."""
        first = len(self._types) - len(inputs)
        if [a.dtype for a in inputs] != self._types[first:]:
            _refuse(self._name, inputs, self._types, first)
        last = [a if a.size >= SMALL else padded(a) for a in inputs] + self._last
        return Launch(self._name, self._plan, self._shapes, last, self._types[:first])

    def __call__(self, inputs: Sequence[mx.array]) -> Sequence[mx.array]:
        if [a.dtype for a in inputs] != self._types:
            _refuse(self._name, inputs, self._types)
        call, _, kinds, init, empty = self._plan
        if call is None:
            return [filled(shape, init or 0, kind) for shape, kind in zip(self._shapes, kinds)]
        long = [a if a.size >= SMALL else padded(a) for a in inputs]
        made: Sequence[mx.array] = call(long + self._last)
        if not empty:
            return made
        return [
            out if math.prod(shape) else filled(shape, 0, out.dtype) for out, shape in zip(made, self._shapes)
        ]


class Plan(NamedTuple):
    """A checked launch without its inputs."""

    call: Any  # of all inputs; None: nothing to run
    types: list[mx.Dtype]  # of the inputs
    kinds: list[Any]  # dtypes of the outputs
    init: float | None
    empty: bool  # an output has no elements


@functools.lru_cache(maxsize=512)
def _launch(
    make: Factory,
    name: str,
    dims: tuple[int, ...] | None,
    shapes: tuple[tuple[int, ...], ...],
    groups: tuple[int, int, int],
    threads: int,
    dtype: mx.Dtype | None,
    init: float | None,
    group_bytes: int,
    fit: int,
    template: tuple[tuple[str, int], ...],
) -> Launch:
    """What follows from all but arrays, made once: it costs as much as a small kernel. No dims: `sized`."""
    # By value on CUDA: an array that is new to the GPU takes it 0.1 ms to read.
    known = (*dims, *ZEROS[len(dims) :]) if dims is not None and make is _cuda else ()
    inputs, outputs = _dtypes(name, dtype)
    if 0 in groups:
        return Launch(name, Plan(None, inputs, outputs, init, empty=True), shapes, [])
    if not 0 < threads <= (CUDA_THREADS if make is _cuda else MAX_THREADS):
        raise MLXSparseError(
            f"{name}: threadgroups of {threads} threads; at most {MAX_THREADS} run everywhere"
        )
    if groups[0] * threads > MAX_GRID_X or max(groups[1:]) > MAX_GRID_YZ:
        limits = f"x {MAX_GRID_X // threads}, y and z {MAX_GRID_YZ}"
        raise CapacityError(
            f"{name}: a grid of {groups} threadgroups is too large ({limits}); split the input"
        )
    call, by_value = _kernel(make, name, threads, dtype, group_bytes, fit, template, len(known))
    full = all(map(math.prod, shapes))
    options: dict[str, Any] = {
        # Metal has no buffer of no elements: an empty output is one element that nobody reads.
        "output_shapes": shapes if full else [shape if math.prod(shape) else (1,) for shape in shapes],
        "output_dtypes": outputs,
        "grid": (groups[0] * threads, groups[1], groups[2]),
        "threadgroup": (threads, 1, 1),
        "init_value": init,
    }
    if by_value:
        check_sizes(name, known)
        options["scalars"] = known

    def run(arrays: Sequence[mx.array]) -> list[mx.array]:
        made: list[mx.array] = call(inputs=arrays, **options)
        return made

    plan = Plan(kept(run) if make in (_metal, _cuda) else run, inputs, outputs, init, not full)
    return Launch(name, plan, shapes, [] if dims is None or by_value else [sizes(name, dims)])


@functools.lru_cache(maxsize=1024)
def _dtypes(name: str, dtype: mx.Dtype | None) -> tuple[list[Any], list[Any]]:
    """Of the inputs and outputs of kernel `name` where T is `dtype`."""
    kernel = KERNELS[name]
    if "T" in kernel.template and dtype not in [getattr(mx, kind) for kind in kernel.floats]:
        raise DTypeError(f"{name} takes {', '.join(kernel.floats)}, got {dtype}; cast with x.astype(...)")
    inputs, outputs = (
        [dtype if kind == "T" else getattr(mx, kind) for kind in side.values()]
        for side in (kernel.inputs, kernel.outputs)
    )
    return inputs, outputs


@functools.lru_cache(maxsize=1024)
def _kernel(
    make: Factory,
    name: str,
    threads: int,
    dtype: mx.Dtype | None,
    group_bytes: int,
    fit: int,
    template: tuple[tuple[str, int], ...],
    known: int,
) -> tuple[Callable[..., Any], bool]:
    """The kernel without sizes, and whether it takes `known` of them by value."""
    values = {"T": dtype, **dict(template)}
    trace(f"kernel {name} {_described(values)}", once=True)
    cluster = dict(template).get("CLUSTER", 1)
    bounds = Bounds(threads, max(1, fit), cluster) if fit or cluster > 1 else None
    dynamic = group_bytes if group_bytes > STATIC_BYTES else 0
    call = _compiled(name, tuple(values.items()), dynamic, bounds, known) if make is _cuda else None
    if call is not None:
        return call, known > 0
    constants = [(parameter, values[parameter]) for parameter in KERNELS[name].template] or None
    return functools.partial(_built(make, name, dynamic, bounds), template=constants), False


def _described(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _refuse(name: str, inputs: Sequence[mx.array], types: list[mx.Dtype], first: int = 0) -> None:
    names, types = list(KERNELS[name].inputs)[first : len(types)], types[first:]
    if len(inputs) != len(names):
        raise MLXSparseError(f"{name} takes {names}, got {len(inputs)} arrays")
    for argument, a, wanted in zip(names, inputs, types):
        if a.dtype != wanted:
            raise DTypeError(f"{name}: {argument} is {a.dtype}, wanted {wanted}; cast with .astype({wanted})")


@functools.cache
def unread() -> mx.array:
    """What stands for a float32 input that a call leaves out: the kernel does not read it."""
    return mx.array([0.0] * SMALL, dtype=mx.float32)


@functools.cache
def unread_rows() -> mx.array:
    """The same of an int32 input."""
    return mx.array([0] * SMALL, dtype=mx.int32)


def blocks(n: int, size: int) -> int:
    """Pieces of `size` that cover n."""
    return -(-n // size)


def row_groups(rows: int, channels: int) -> tuple[int, int, int]:
    """Threadgroups of a kernel over (rows, channels): rows.h."""
    return blocks(rows, MAX_THREADS // 32), blocks(channels, 32), 1
