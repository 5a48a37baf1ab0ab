"""MLX's function transformations, with the identity of sparse tensors kept.

MLX takes a SparseTensor apart into arrays and builds a new one from them, so its key is lost under
plain `mx.compile` and `mx.checkpoint`. These put it back; `compile` is in compiled.py. `staged` bounds what
a gradient holds.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
import threading
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import mlx.nn
import numpy as np
from mlx.utils import tree_flatten

from .backend import pace
from .backend.autodiff import traced
from .backend.status import is_clear
from .coords import CoordinateManager, CoordinateMapKey
from .errors import TransformError
from .tensor import SparseTensor, sequence_like


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its intermediate values recomputed in the backward pass; keys are kept.

    `function` takes arrays, sparse tensors and modules, in lists, tuples or dicts. Gradients reach these and
    the trainable parameters of modules that `function` is, holds or names, also by way of other functions,
    containers, attributes and operators. They are lost for arrays that it names, and for modules that it gets
    in other ways (`getattr` of a computed name, a weak reference, a `threading.local`) or in objects of other
    classes, as an array in a dataclass that is an argument: pass these themselves. It runs a second time for
    the gradient, with the random numbers of the first (`mx.random`'s global state) and without moving the
    running statistics of a BatchNorm again; what else it changes it changes twice.
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
        weights = _differentiated(_modules((function, args, kwargs)).values())
        args, kwargs = _covered((args, kwargs))

        def body(parameters: Sequence[mx.array], args: Any, kwargs: Any) -> Any:
            args, kwargs = _restore((args, kwargs), iter(keys))
            with _put_in(weights, parameters), _again(drawn):
                result = function(*args, **kwargs)
            leaves: list[tuple[str, Any]] = tree_flatten([result])  # type: ignore[assignment]
            if not any(isinstance(a, mx.array) for _, a in leaves):  # MLX crashes
                raise TransformError(
                    f"checkpoint: {_name(function)} returned {result!r}, no array and no SparseTensor"
                )
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


def _differentiated(modules: Iterable[mlx.nn.Module]) -> list[_Weight]:
    """Of these modules' own parameters, those that a gradient may be asked of."""
    found = [
        weight
        for module in modules
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


_LEAVES = (mx.array, np.ndarray, SparseTensor, CoordinateMapKey, CoordinateManager, str, bytes, int, float)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_HOLDERS: tuple[Any, ...] = (  # of other objects, under no name
    types.MethodType, types.CellType, staticmethod, classmethod, property, partial, functools.cached_property,
    functools.partialmethod, functools.singledispatchmethod, type(functools.lru_cache(len)),
    types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()), deque, UserDict, UserList,
    ChainMap,
)  # fmt: skip
_SYNTAX = "call get getattr getattribute getitem missing iter next reversed enter exit neg pos invert".split()
_OPERATORS = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
_SPECIAL = {  # methods of objects that code calls under no name
    *(f"__{name}__" for name in _SYNTAX),
    *(f"__{side}{name}__" for name in _OPERATORS for side in ("", "r", "i")),
}
_LIBRARIES = {"mlx", "mlxsparse", "numpy", *sys.stdlib_module_names}


def _modules(roots: Iterable[Any]) -> dict[int, mlx.nn.Module]:
    """By id, the modules that functions and arguments hold or name, at any depth.

    Followed are containers, closures, defaults, bound arguments, what is wrapped, and what code names:
    globals, Python modules, and of other objects attributes. Code is that of functions of no library.
    """
    found: dict[int, mlx.nn.Module] = {}
    seen: dict[int, Any] = {}
    objects: list[Any] = []  # that may have attributes that code names
    names, known, waiting = {"__call__", "__wrapped__"}, 0, list(roots)
    while len(names) > known:
        known = len(names)
        for value in objects:
            waiting += _attributes(value, names)
        while waiting:
            value = waiting.pop()
            kind = type(value)  # of a proxy too, which may say another class
            if issubclass(kind, _LEAVES) or id(value) in seen:
                continue
            seen[id(value)] = value
            if issubclass(kind, mlx.nn.Module):
                found[id(value)] = value
            if issubclass(kind, _CONTAINERS):
                parts = dict.values(value) if issubclass(kind, dict) else value
                waiting += itertools.islice(parts, 1000)  # longer ones are data
            if kind is types.FunctionType:
                waiting += (value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__)
                if not _of_a_library(value.__globals__.get("__name__")):  # __module__ may be a wrapped one's
                    own = _names(value.__code__)
                    names |= own
                    for space in (value.__globals__, sys.modules):
                        waiting += [space[name] for name in own & space.keys()]
            elif issubclass(kind, _HOLDERS) or kind.__module__.partition(".")[0] in ("mlx", "mlxsparse"):
                parts = gc.get_referents(value)
                waiting += parts[:1000] if issubclass(kind, deque) else parts  # caches end with functions
            elif kind not in _CONTAINERS:
                waiting += _attributes(value, names)
                objects.append(value)
    return found


def _attributes(value: Any, names: set[str]) -> Iterator[Any]:
    """What an object and its class have under these names; nothing of the object's own runs."""
    spaces: list[tuple[Any, set[str]]]
    if issubclass(type(value), types.ModuleType):
        spaces = [] if _of_a_library(value.__name__) else [(vars(value), set())]
    else:
        classes = value.__mro__ if issubclass(type(value), type) else type(value).__mro__
        spaces = [
            (vars(c), set() if _installed(c.__module__) else _SPECIAL)
            for c in classes
            if not _of_a_library(c.__module__)
        ]
        with contextlib.suppress(AttributeError):
            spaces.append((object.__getattribute__(value, "__dict__"), set()))
    for space, special in spaces:
        for name in (names & space.keys()) | (special & space.keys()):
            part = space[name]
            if isinstance(part, types.MemberDescriptorType):  # of a slot
                with contextlib.suppress(AttributeError, TypeError):  # not set; of a class
                    yield part.__get__(value)
            else:
                yield part


def _of_a_library(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in _LIBRARIES


@functools.lru_cache(maxsize=4096)
def _installed(name: Any) -> bool:
    """Whether a Python module is of an installed package, where much is under a special name."""
    path = str(getattr(sys.modules.get(name), "__file__", None))
    return "site-packages" in path or "dist-packages" in path


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that are no local variables, also those of functions and comprehensions inside."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _name(function: Any) -> str:
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


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
    elif isinstance(tree, dict) and not isinstance(tree, mlx.nn.Module):
        for value in tree.values():
            _visit(value, act)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            _visit(value, act)


class _Covered:
    """A module as an argument: MLX would take it for a dict."""

    def __init__(self, module: mlx.nn.Module):
        self.module = module


def _covered(tree: Any) -> Any:
    if isinstance(tree, mlx.nn.Module):
        return _Covered(tree)
    if isinstance(tree, dict):
        return {name: _covered(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)) and not isinstance(tree, SparseTensor):
        return sequence_like(tree, [_covered(value) for value in tree])
    return tree


_Identity: TypeAlias = "tuple[CoordinateMapKey | None, bool]"  # the key, and whether no error is known of


def _restore(tree: Any, keys: Iterator[_Identity]) -> Any:
    """`tree` with the next key put on each sparse tensor that it holds."""
    if isinstance(tree, SparseTensor):
        key, clear = next(keys)
        return tree if key is None else SparseTensor._of(key, tree.feats, *(() if clear else (tree,)))
    if isinstance(tree, _Covered):
        return tree.module
    if isinstance(tree, dict):
        return {name: _restore(value, keys) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return sequence_like(tree, [_restore(value, keys) for value in tree])
    return tree
