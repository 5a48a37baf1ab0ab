"""Carry out a pickle without calling anything that it names.

Python's `pickle` imports and calls whatever a file asks for. This interpreter knows constants and containers;
a name must be in the caller's table of symbols, and a call is handed to the caller as data. It covers the
instructions that torch.save needs (protocols 2 to 5) and refuses the others.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

from ..errors import CheckpointError

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
                                        "EMPTY_SET": set}
_LITERALS = set("INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
                "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8".split())
_SCALARS = (str, bytes, int, float, type(None))


def run_pickle(data: bytes | BinaryIO, symbols: Mapping[str, Any], persistent: Callable[[Any], Any],
               call: Callable[[Any, tuple[Any, ...]], Any], build: Callable[[Any, Any], bool]) -> Any:
    """The object that the pickle `data` describes, the next one where it is an open file.

    symbols: "module.name" -> the value that stands for it; any other name is refused by name.
    persistent: turns a persistent id into an object. call: gives the result of calling a symbol.
    build: puts a state into an object that `call` gave; False where it knows no such object.
    Dict keys and set members must be scalars or flat tuples of them. Raises CheckpointError.
    """
    stacks: list[list[Any]] = [[]]  # a mark starts another: so it is no value that could be taken for one
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                if len(stacks) > 1:
                    raise CheckpointError("the pickle is damaged: it stops within a container")
                return stacks[0].pop()
            _step(opcode.name, argument, stacks, memo, symbols, persistent, call, build)
    except CheckpointError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError,
            Warning) as error:  # no memory: a text of more bytes than any file has
        raise CheckpointError(f"the pickle is damaged: {type(error).__name__}: {error}") from error
    raise CheckpointError("the pickle ends without STOP")


def _step(name: str, argument: Any, stacks: list[list[Any]], memo: dict[int, Any], symbols: Mapping[str, Any],
          persistent: Callable[[Any], Any], call: Callable[[Any, tuple[Any, ...]], Any],
          build: Callable[[Any, Any], bool]) -> None:
    """Carry out one instruction."""
    stack = stacks[-1]
    if name in _LITERALS:
        stack.append(argument)
    elif name == "BYTEARRAY8":  # the values of a NumPy array that may be written to
        stack.append(bytes(argument))
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET", "GET"):
        stack.append(memo[argument])
    elif name == "MARK":
        stacks.append([])
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        items = [stack.pop() for _ in range(int(name[-1]))]
        stack.append(tuple(reversed(items)))
    elif name == "TUPLE":
        items = _since_mark(stacks)
        stacks[-1].append(tuple(items))
    elif name == "LIST":
        items = _since_mark(stacks)
        stacks[-1].append(items)
    elif name == "DICT":
        made = _fill({}, _pairs(_since_mark(stacks)))
        stacks[-1].append(made)
    elif name == "FROZENSET":
        members = frozenset(map(plain_key, _since_mark(stacks)))
        stacks[-1].append(members)
    elif name == "APPEND":
        value = stack.pop()
        _top(stack, list).append(value)
    elif name == "APPENDS":
        values = _since_mark(stacks)
        _top(stacks[-1], list).extend(values)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _fill(_top(stack, dict), [(key, value)])
    elif name == "SETITEMS":
        values = _since_mark(stacks)
        _fill(_top(stacks[-1], dict), _pairs(values))
    elif name == "ADDITEMS":
        values = _since_mark(stacks)
        _top(stacks[-1], set).update(map(plain_key, values))
    elif name == "POP":
        stack.pop()
    elif name == "POP_MARK":
        _since_mark(stacks)
    elif name == "DUP":
        stack.append(stack[-1])
    elif name == "GLOBAL":
        stack.append(_symbol(symbols, *argument.split(" ", 1)))
    elif name == "STACK_GLOBAL":
        attribute, module = stack.pop(), stack.pop()
        stack.append(_symbol(symbols, module, attribute))
    elif name == "BINPERSID":
        stack.append(persistent(stack.pop()))
    elif name == "REDUCE":
        arguments, symbol = stack.pop(), stack.pop()
        if not isinstance(arguments, tuple):
            raise CheckpointError("the pickle is damaged: a call without a tuple of arguments")
        stack.append(call(symbol, arguments))
    elif name == "BUILD":
        state = stack.pop()
        if not build(stack[-1], state):
            _top(stack, OrderedDict)  # a state dict carries `_metadata` as an attribute, not weights
    elif name not in ("PROTO", "FRAME"):
        raise CheckpointError(f"the pickle uses the instruction {name}, which tensors and containers do not "
                              "need; it is refused")


def _symbol(symbols: Mapping[str, Any], module: Any, name: Any) -> Any:
    if not (isinstance(module, str) and isinstance(name, str)):
        raise CheckpointError("the pickle is damaged: a name that is not text")
    if f"{module}.{name}" not in symbols:
        raise CheckpointError(f"the pickle asks for {module}.{name}, which is refused: only tensors and "
                              "plain containers are loaded, no code is run. Save the weights alone: "
                              "torch.save(model.state_dict(), path)")
    return symbols[f"{module}.{name}"]


def _since_mark(stacks: list[list[Any]]) -> list[Any]:
    """Take everything above the last mark, and the mark, off the stack."""
    if len(stacks) == 1:
        raise CheckpointError("the pickle is damaged: a mark is missing")
    return stacks.pop()


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    if len(items) % 2:
        raise CheckpointError("the pickle is damaged: a key without a value")
    return list(zip(items[::2], items[1::2]))


def _top(stack: list[Any], kind: type) -> Any:
    if not isinstance(stack[-1], kind):
        raise CheckpointError(f"the pickle changes a {type(stack[-1]).__name__} as if it were a "
                              f"{kind.__name__}; it is refused")
    return stack[-1]


def _fill(target: dict[Any, Any], pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    for key, value in pairs:
        target[plain_key(key)] = value
    return target


def plain_key(value: Any) -> Any:
    """`value`, which is to be hashed; CheckpointError for others than scalars and flat tuples of them."""
    # Hashing nested tuples that share parts takes time exponential in their depth, so nesting is refused.
    if all(isinstance(part, _SCALARS) for part in (value if isinstance(value, tuple) else (value,))):
        return value
    raise CheckpointError(f"the pickle uses a {type(value).__name__} as a key, where numbers, text and flat "
                          "tuples are known")
