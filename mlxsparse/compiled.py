"""`mlxsparse.compile`: functions of sparse tensors compiled by MLX, for any frame that fits their capacity.

Inside the trace a tensor's capacity is known and its number of sites is not, so one compilation serves every
frame of the same capacity, and nothing waits for the device. What overflowed is told by a status, which is
read after the step.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import mlx.core as mx
import mlx.nn
import numpy as np

from .backend import executor, pace, trace
from .backend.autodiff import traced, without_gradients
from .backend.kernel_sites import Extent
from .backend.mail import Sent, begin, send
from .backend.status import clear, combined, is_clear, raise_for_sent, told, watching
from .backend.untrained import Stored
from .coords import CoordinateMapKey
from .coords.geometry import Triple, triple
from .errors import (
    CoordinateRangeError,
    DTypeError,
    MLXSparseError,
    ShapeError,
    TracedOnHostError,
    TransformError,
)
from .tensor import SparseTensor, sequence_like

Tree = Any
Bounds: TypeAlias = "tuple[Triple, Triple]"
tracer: Callable[..., Any] = mx.compile  # tests replace it where kernels do not run inside a trace


def bucket(n: int, steps: int = 2) -> int:
    """A capacity of at least `n` that frames of like size share: a power of 2^(1/steps), in multiples of 256.

    ``x.with_capacity(mlxsparse.bucket(x.num_active))`` makes frames of different sizes use one compilation.
    """
    if steps < 1:
        raise MLXSparseError(f"bucket: steps must be at least 1, got {steps}")
    if n <= 256:
        return 256
    exponent = math.ceil(math.log2(n) * steps - 1e-9)
    return -(-max(n, round(2 ** (exponent / steps))) // 256) * 256


def compile(
    function: Callable[..., Any],
    inputs: Tree = None,
    outputs: Tree = None,
    *,
    bounds: Bounds | None = None,
    check: Literal["step", "late"] = "step",
) -> Compiled:
    """`function` compiled by mx.compile on a GPU; arguments and results may hold sparse tensors.

    Tensors keep their identity: a result on the sites of an argument has its key. The number of sites is not
    known inside, so every set that `function` makes needs a capacity: the input's suffices for "parents" and
    for K = s, `capacity=` gives another. Frames of one capacity share a compilation (`bucket`).

    After each call the status is read, and CapacityError names the stride and the rows that were needed. With
    check="late" the status of a call is read after the next one has started, so that nothing waits, and
    ``step.check()`` reads the last.

    On the CPU device operators need values: the function runs eagerly there, and the trace
    (``MLXSPARSE_TRACE=1``) says so. So it does with a tensor of capacity 0.

    After `update_layout` or `keep_taps` of any layer the next call traces anew.

    Args:
        function: a function, or a module, whose parameters are then inputs (and outputs while it trains). It
            takes no modules as arguments (TransformError).
        inputs, outputs: as for mx.compile, state that the function reads and writes.
        bounds: ((x0, y0, z0), (x1, y1, z1)), half-open, in units of the first lattice: where the sites of all
            arguments lie. Sets are then made in less time; a set that is made of a site outside is left empty
            and raises CoordinateRangeError with the check. What makes no set does not look on a GPU.
    """
    if not callable(function):
        raise TransformError(f"compile takes a function or a module, got {type(function).__name__}")
    if check not in ("step", "late"):
        raise MLXSparseError(f'check must be "step" or "late", got {check!r}')
    if bounds is not None:
        ends = list(bounds) if isinstance(bounds, (list, tuple)) else []
        if len(ends) != 2:
            raise ShapeError(f"bounds must be ((x0, y0, z0), (x1, y1, z1)), got {bounds}")
        low, high = (triple(end, "bounds") for end in ends)
        if any(a >= b for a, b in zip(low, high)):
            raise ShapeError(f"bounds must have a lower and a higher corner, got {bounds}")
        bounds = low, high
    return Compiled(function, inputs, outputs, bounds, late=check == "late")


class Compiled:
    """What `compile` returns: call it as the function. `compilations` counts the traces."""

    def __init__(
        self, function: Callable[..., Any], inputs: Tree, outputs: Tree, bounds: Bounds | None, *, late: bool
    ):
        self.function = function
        self._traces: list[Any] = []  # their signatures
        self._state = inputs, outputs
        self._late, self._bounds = late, bounds
        self._plans: dict[Any, _Plan] = {}
        self._changes = Stored.changes
        self._pending: list[Sent] = []
        named = type(function) if isinstance(function, mlx.nn.Module) else function
        functools.update_wrapper(self, named, updated=())

    @property
    def compilations(self) -> int:
        return len(self._traces)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _refuse_modules((args, kwargs))
        if executor() == "host":
            return self._eager(args, kwargs, "coordinates are derived on the host")
        keys: list[CoordinateMapKey] = []
        signature = (str(mx.default_device()), *_signature((args, kwargs), keys))
        if not all(key.capacity for key in keys):  # MLX compiled divides by the rows on CUDA
            return self._eager(args, kwargs, "a tensor has no rows")
        if isinstance(self.function, mlx.nn.Module):
            signature += (self.function.training,)
        if self._changes != Stored.changes:  # the plans may hold blocks or taps that a layer has no more
            self._changes = Stored.changes
            self._plans.clear()
        plan = self._plans.get(signature)
        if plan is None:
            plan, (result, status, marks) = self._first(signature, args, kwargs)
            self._plans[signature] = plan
        else:
            result, status, marks = plan.run(args, kwargs)
        pace.run(marks)
        del marks
        result = _attached(result, plan.slots, keys)
        earlier = len(self._pending)
        if status is not None and not told(status):  # a function of ours around it reads it, else this one
            self._pending.append(send(status))
            begin(*_arrays(result))
        # Inside another transformation a status has no value yet: it is looked at with the next call.
        with contextlib.suppress(TracedOnHostError):
            self._look(earlier if self._late else len(self._pending))
        return result

    def _eager(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        trace(f"compile: {name} runs eagerly: {why}", once=True)
        if self._bounds is not None and executor() == "host":
            bounds = self._bounds
            _map((args, kwargs), lambda x: _check_inside(x, bounds))
        result = self.function(*args, **kwargs)
        _map(result, lambda x: x.check())
        return result

    def check(self) -> None:
        """Raise CapacityError if a call so far overflowed a capacity and no error told of it."""
        self._look(len(self._pending))

    def _look(self, number: int) -> None:
        """Read the first statuses that wait for it; each is told once."""
        for _ in range(number):
            try:
                raise_for_sent(self._pending[0])
            except TracedOnHostError:
                raise
            except RuntimeError as error:  # of an mx.compile around an earlier call, which told nobody
                if "without a primitive" not in str(error):
                    raise
            except MLXSparseError:
                del self._pending[0]
                raise
            del self._pending[0]

    def _first(
        self, signature: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Plan, tuple[Tree, mx.array | None, list[mx.array]]]:
        """A trace, and what it gives for its first arguments."""
        module = self.function
        if isinstance(module, mlx.nn.Module) and not module.training:
            # No gradient is wanted but within it, which is rare: MLX refuses to differentiate a kernel then.
            arrays = _arrays((args, kwargs, module.state))
            if not all(traced(*arrays) for _ in range(2)):  # the first look at new types always says yes
                with contextlib.suppress(ValueError, RuntimeError):
                    plan = self._plan(signature, plain=True)
                    return plan, plan.run(args, kwargs)
        plan = self._plan(signature)
        return plan, plan.run(args, kwargs)

    def _plan(self, signature: tuple[Any, ...], *, plain: bool = False) -> _Plan:
        """plain: operators of the first run of the function need no gradient."""
        slots: list[_Slot] = []
        # Of `self` body holds nothing: in a circle, it would keep parameters until Python's collector comes.
        function, (inputs, outputs), traces, bounds = self.function, self._state, self._traces, self._bounds
        if isinstance(function, mlx.nn.Module) and inputs is None:
            inputs = function.state
            outputs = function.state if function.training and outputs is None else outputs

        def body(args: Tree, kwargs: Tree) -> Tree:
            traces.append(signature)
            inner: list[CoordinateMapKey] = []
            args, kwargs = _inside((args, kwargs), signature, inner, bounds)
            given: list[mx.array] = []  # what happened to an argument before
            _map((args, kwargs), lambda x: None if is_clear(x.status) else given.append(x.status))
            nonlocal plain
            quiet = without_gradients() if plain else contextlib.nullcontext()
            plain = False  # MLX runs the body again where the compiled function is differentiated
            with watching() as seen, pace.stages(compiled=True) as marks, quiet:
                result = function(*args, **kwargs)
            slots[:] = _slots(result, inner)
            found = [*given, *seen]
            return result, combined(*found) if found else None, marks

        return _Plan(tracer(body, inputs=inputs, outputs=outputs), slots)


class _Plan(NamedTuple):
    run: Callable[..., Any]
    slots: list[_Slot]


class _Slot(NamedTuple):
    """Which key a sparse tensor of the result has: an argument's, or one made inside."""

    argument: int | None
    made: int
    parent: _Slot | None
    presorted: bool
    clear: bool  # its status cannot tell of anything


# ---------------------------------------------------------------- trees of tensors


def _map(tree: Tree, act: Callable[[SparseTensor], Any]) -> Tree:
    """`tree` with each sparse tensor replaced by what `act` makes of it."""
    if isinstance(tree, SparseTensor):
        return act(tree)
    if isinstance(tree, dict):
        return {name: _map(value, act) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return sequence_like(tree, [_map(value, act) for value in tree])
    return tree


def _refuse_modules(tree: Tree) -> None:
    if isinstance(tree, mlx.nn.Module):  # MLX would hand the function a dict
        raise TransformError(
            f"compile takes no module as an argument, got a {type(tree).__name__}; name it in the function, "
            "with inputs=module.state, or compile the module"
        )
    if isinstance(tree, (dict, list, tuple)) and not isinstance(tree, SparseTensor):
        for value in tree.values() if isinstance(tree, dict) else tree:
            _refuse_modules(value)


def _arrays(tree: Tree) -> list[mx.array]:
    if isinstance(tree, SparseTensor):
        return [tree.feats]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [a for value in tree for a in _arrays(value)]
    return [tree] if isinstance(tree, mx.array) else []


def _signature(tree: Tree, keys: list[CoordinateMapKey]) -> tuple[Any, ...]:
    """What a trace depends on besides values; `keys` becomes the distinct keys of the arguments."""
    if isinstance(tree, SparseTensor):
        place = _place(tree.key, keys)
        parent = tree.key.parent
        known = keys.index(parent) if parent in keys else None
        flags = place, known, tree.key._record.presorted, is_clear(tree.status)
        static = tree.stride, tree.batch_size, tree.spatial_shape
        return ((SparseTensor, *flags, tree.capacity, tree.num_channels, tree.dtype, *static),)
    if isinstance(tree, mx.array):
        return ((tuple(tree.shape), tree.dtype),)
    if isinstance(tree, dict):
        return tuple(p for name, value in tree.items() for p in ((name,), *_signature(value, keys)))
    if isinstance(tree, (list, tuple)):
        return (len(tree), *(p for value in tree for p in _signature(value, keys)))
    if isinstance(tree, np.ndarray):
        raise DTypeError("mlxsparse.compile takes MLX arrays, got a NumPy array; use mx.array(...)")
    return (tree,)


def _place(key: CoordinateMapKey, keys: list[CoordinateMapKey]) -> int:
    if key not in keys:
        keys.append(key)
    return keys.index(key)


def _inside(
    tree: Tree, signature: tuple[Any, ...], keys: list[CoordinateMapKey], bounds: Bounds | None
) -> Tree:
    """Traced arguments with keys as their signature tells; `keys` becomes the distinct ones."""
    parts = iter([p for p in signature if isinstance(p, tuple) and p and p[0] is SparseTensor])

    def attach(x: SparseTensor) -> SparseTensor:
        _, place, parent, presorted, unread, *_ = next(parts)
        status = clear() if unread else x.status
        if place == len(keys):
            above = None if parent is None or parent >= place else keys[parent]
            key = x.manager.adopt_traced(
                x.coords, x.active_rows, status, x.stride, x.batch_size, x.spatial_shape, parent=above
            )
            key.rebuilt = False
            key._record.presorted = presorted
            key._record.batch_counts = x.batch_counts
            if bounds is not None:
                key._record._extent = _extent(bounds, x.stride, x.batch_size)
            keys.append(key)
        key = keys[place]
        leaves = [key.coords, x.feats, key.active_rows, key.batch_counts, status]
        return SparseTensor._make((*leaves, x.stride, x.batch_size, x.spatial_shape), key, x.manager)

    return _map(tree, attach)


def _extent(bounds: Bounds, stride: Triple, batch_size: int) -> Extent:
    low = [a // s for a, s in zip(bounds[0], stride)]
    x, y, z = (-(-b // s) - a for a, b, s in zip(low, bounds[1], stride))
    return Extent((low[0], low[1], low[2]), (x, y, z), batch_size)


def _check_inside(x: SparseTensor, bounds: Bounds) -> None:
    """CoordinateRangeError where a site lies outside; on the host."""
    extent, sites = _extent(bounds, x.stride, x.batch_size), x.key._record.rows()[:, 1:]
    low, high = np.array(extent.low), np.add(extent.low, extent.span)
    if ((sites < low) | (sites >= high)).any():
        raise CoordinateRangeError(
            f"an argument of stride {x.stride} has sites from {tuple(sites.min(axis=0).tolist())} to "
            f"{tuple(sites.max(axis=0).tolist())}, outside of bounds={bounds} of the first lattice"
        )


def _slots(tree: Tree, arguments: list[CoordinateMapKey]) -> list[_Slot]:
    made: list[CoordinateMapKey] = []
    slots: list[_Slot] = []
    _map(tree, lambda x: slots.append(_slot(x.key, is_clear(x.status), arguments, made)))
    return slots


def _slot(
    key: CoordinateMapKey, unread: bool, arguments: list[CoordinateMapKey], made: list[CoordinateMapKey]
) -> _Slot:
    if key in arguments:
        return _Slot(arguments.index(key), -1, None, False, unread)
    number = _place(key, made)
    parent = key.parent
    above = None if parent is None else _slot(parent, True, arguments, made)
    return _Slot(None, number, above, key._record.presorted, unread)


def _attached(tree: Tree, slots: list[_Slot], arguments: list[CoordinateMapKey]) -> Tree:
    """The results of a compiled call with the keys that `slots` tell."""
    made: dict[int, CoordinateMapKey] = {}
    rest = iter(slots)

    def attach(x: SparseTensor) -> SparseTensor:
        slot = next(rest)
        status = clear() if slot.clear else x.status
        if slot.argument is not None:
            key = arguments[slot.argument]
        elif slot.made in made:
            key = made[slot.made]
        else:
            above = slot.parent
            parent = None
            if above is not None:
                parent = made.get(above.made) if above.argument is None else arguments[above.argument]
            key = x.manager.adopt_traced(
                x.coords, x.active_rows, status, x.stride, x.batch_size, x.spatial_shape, parent=parent
            )
            key.rebuilt = False
            key._record.presorted = slot.presorted
            key._record.batch_counts = x.batch_counts
            made[slot.made] = key
        leaves = [key.coords, x.feats, key.active_rows, key.batch_counts, status]
        return SparseTensor._make((*leaves, x.stride, x.batch_size, x.spatial_shape), key, key.manager)

    return _map(tree, attach)
