"""MLX's function transformations, with the identity of sparse tensors kept.

MLX takes a SparseTensor apart into arrays and builds a new one from them, so its key is lost under
plain `mx.compile` and `mx.checkpoint`. These put it back; `compile` is in compiled.py. `staged` bounds what
a gradient holds.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import mlx.nn
from mlx.utils import tree_flatten

from .backend import pace
from .backend.autodiff import traced
from .backend.status import is_clear
from .coords import CoordinateMapKey
from .errors import TransformError
from .tensor import SparseTensor, sequence_like


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its intermediate values recomputed in the backward pass; keys are kept.

    `function` takes arrays and sparse tensors, in lists, tuples or dicts. Gradients reach these and the
    trainable parameters of modules: of `function` itself, of the module whose method it is, and of those that
    it names, by themselves or in a list, as globals, from the function around it or in a partial. They do not
    reach arrays that it names: pass these as arguments. It runs a second time for the gradient, with the
    random numbers of the first (`mx.random`'s global state) and without moving the running statistics of a
    BatchNorm again; what else it changes it changes twice.
    Raises TransformError for what is no function, and where it returns neither array nor tensor.
    """
    if not callable(function):
        raise TransformError(f"checkpoint takes a function or a module, got {type(function).__name__}")
    named = type(function).__call__ if isinstance(function, mlx.nn.Module) else function

    @wraps(named)
    def run(*args: Any, **kwargs: Any) -> Any:
        keys: list[_Identity] = []
        _visit((args, kwargs), lambda x: keys.append((x.key, is_clear(x.status))))
        results: list[_Identity] = []
        drawn: list[mx.array] = []  # mx.random's state when `function` ran first
        weights = _differentiated(function)

        def body(parameters: Sequence[mx.array], args: Any, kwargs: Any) -> Any:
            args, kwargs = _restore((args, kwargs), iter(keys))
            with _put_in(weights, parameters), _again(drawn):
                result = function(*args, **kwargs)
            leaves: list[tuple[str, Any]] = tree_flatten([result])  # type: ignore[assignment]
            if not any(isinstance(a, mx.array) for _, a in leaves):  # MLX crashes
                name = getattr(function, "__name__", type(function).__name__)
                raise TransformError(f"checkpoint: {name} returned {result!r}, no array and no SparseTensor")
            results.clear()
            _visit(result, lambda x: results.append((x._key, is_clear(x.status))))
            return result

        arrays = [w.array for w in weights]
        return _restore(mx.checkpoint(body)(arrays, args, kwargs), iter(results))

    return run


class _Weight(NamedTuple):
    place: Any  # a module, or a list or dict in it
    key: Any
    array: mx.array


def _differentiated(function: Callable[..., Any]) -> list[_Weight]:
    """Of the modules that a function is or names, the parameters that a gradient may be asked of."""
    modules = {id(part): part for named in _named(function) for m in _modules(named) for part in m.modules()}
    found = [
        weight
        for module in modules.values()
        for name in module
        if mlx.nn.Module.trainable_parameter_filter(module, name, module[name])
        for weight in _weights(module, name)
    ]
    arrays = [w.array for w in found]
    # The first look at new types always says yes.
    return found if arrays and traced(*arrays) and traced(*arrays) else []


def _weights(place: Any, key: Any) -> Iterator[_Weight]:
    value = place[key]
    if isinstance(value, mx.array):
        if mx.issubdtype(value.dtype, mx.inexact):
            yield _Weight(place, key, value)
    elif not isinstance(value, mlx.nn.Module) and isinstance(value, (list, dict)):
        for within in range(len(value)) if isinstance(value, list) else value:
            yield from _weights(value, within)


def _named(function: Any) -> Iterator[Any]:
    yield function
    if isinstance(function, partial):
        yield from (*function.args, *function.keywords.values())
        yield from _named(function.func)
    yield getattr(function, "__self__", None)
    plain = getattr(function, "__func__", function)
    for cell in getattr(plain, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    if isinstance(plain, types.FunctionType):
        yield from (*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values())
        known = plain.__globals__
        yield from (known[name] for name in _names(plain.__code__) if name in known)


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that are no local variables, also those of functions and comprehensions inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _modules(named: Any) -> list[mlx.nn.Module]:
    listed = type(named) in (list, tuple) and len(named) > 0 and isinstance(named[0], mlx.nn.Module)
    return [m for m in (named if listed else [named]) if isinstance(m, mlx.nn.Module)]


@contextlib.contextmanager
def _put_in(weights: Sequence[_Weight], arrays: Sequence[mx.array]) -> Iterator[None]:
    """Modules with other arrays for a while; what is assigned meanwhile stays."""
    for (place, key, _), array in zip(weights, arrays):
        place[key] = array
    try:
        yield
    finally:
        for (place, key, array), put in zip(weights, arrays):
            if place[key] is put:
                place[key] = array


class _Recomputing(threading.local):
    now = False


_recomputing = _Recomputing()


def recomputing() -> bool:
    """Whether this is the second run of what `checkpoint` was given: state has moved in the first."""
    return _recomputing.now


@contextlib.contextmanager
def _again(drawn: list[mx.array]) -> Iterator[None]:
    """The first time notes mx.random's state in `drawn`; later draws from there, and puts back what was."""
    place: Any = mx.random.state  # of which stubs say nothing
    state = mx.array(place[0])
    if not drawn:
        drawn.append(state)
        yield
        return
    before, _recomputing.now = _recomputing.now, True
    place[0][:] = drawn[0]
    try:
        yield
    finally:
        place[0][:] = state
        _recomputing.now = before


def staged(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, which is a gradient of MLX, with what it gives begun in stages on a GPU.

    ``mlxsparse.staged(mlx.nn.value_and_grad(model, loss))``, or of `mx.grad`, `mx.value_and_grad` or a
    function that calls `mx.vjp`. MLX hands all of a step's passes over at once, some hundred operations
    ahead of the GPU, and holds what those read and make. Staged, each 32 MiB of results of mlxsparse's
    operators are begun by themselves, and two such stages are in flight. Values are the same in every bit.

    Put it around the gradient alone: a step that evaluates something itself (a loop over parts of a batch)
    holds a result for each stage until it returns. What operators of mlxsparse give is computed even if the
    loss does not read it. On the CPU device, inside `mlxsparse.compile`, which has stages of its own, and
    inside of other transformations it changes nothing. TransformError for what is no function.
    """
    if not callable(step):
        raise TransformError(f"staged takes a function that gives gradients, got {type(step).__name__}")

    @wraps(step)
    def run(*args: Any, **kwargs: Any) -> Any:
        if pace.staging():
            return step(*args, **kwargs)
        with pace.stages(compiled=False) as marks:
            made = step(*args, **kwargs)
        pace.run(marks)
        return made

    return run


def _visit(tree: Any, act: Callable[[SparseTensor], Any]) -> None:
    if isinstance(tree, SparseTensor):
        act(tree)
    elif isinstance(tree, dict):
        for value in tree.values():
            _visit(value, act)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            _visit(value, act)


_Identity: TypeAlias = "tuple[CoordinateMapKey | None, bool]"  # the key, and whether no error is known of


def _restore(tree: Any, keys: Iterator[_Identity]) -> Any:
    """`tree` with the next key put on each sparse tensor that it holds."""
    if isinstance(tree, SparseTensor):
        key, clear = next(keys)
        return tree if key is None else SparseTensor._of(key, tree.feats, *(() if clear else (tree,)))
    if isinstance(tree, dict):
        return {name: _restore(value, keys) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return sequence_like(tree, [_restore(value, keys) for value in tree])
    return tree
