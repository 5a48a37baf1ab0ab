"""What the pickle of a torch file describes: its few names, and how tensors and NumPy's arrays come of them.

Every tensor is a checked view into the bytes of its storage, which the kind of file hands out. NumPy's own
arrays and numbers, which schedules and records of training hold, are made of their bytes, and only where
these are numbers: NumPy never sees a dtype that could hold objects.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError
from .restricted_pickle import plain_key, run_pickle

# Element types by torch's names. bfloat16 is read as its 16 bits and widened; NumPy has no such type.
_ELEMENTS = {"Double": "f8", "Float": "f4", "Half": "f2", "BFloat16": "bf16", "Bool": "b1",
             "Long": "i8", "Int": "i4", "Short": "i2", "Char": "i1", "Byte": "u1",
             "ComplexFloat": "c8", "ComplexDouble": "c16"}
_DTYPES = {"float64": "f8", "double": "f8", "float32": "f4", "float": "f4", "float16": "f2", "half": "f2",
           "bfloat16": "bf16", "bool": "b1", "int64": "i8", "long": "i8", "int32": "i4", "int": "i4",
           "int16": "i2", "short": "i2", "int8": "i1", "uint8": "u1", "uint16": "u2", "uint32": "u4",
           "uint64": "u8", "complex64": "c8", "complex128": "c16"}
_WIDTH = {"bf16": 2, "": 1}

# NumPy's, by their code in a pickle. No objects, records, text or times.
_NUMBERS = set("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())


@dataclass(frozen=True)
class _Symbol:
    """A name of `_SYMBOLS` met in the pickle: something to compare with, not something to call."""

    kind: str
    element: str = ""


@dataclass(frozen=True)
class Storage:
    key: str
    element: str  # "" while untyped
    count: int  # elements; bytes while untyped


class _Dtype:
    """A dtype of NumPy's in the pickle, which is made first and told its byte order afterwards."""

    kind = "numpy dtype"

    def __init__(self, code: Any) -> None:
        if not isinstance(code, str) or code not in _NUMBERS:
            shown = repr(code[:40]) if isinstance(code, str) else f"a {type(code).__name__}"
            raise CheckpointError(f"the pickle holds a NumPy array or scalar of the dtype {shown}, which is "
                                  "refused: only numbers are loaded")
        self.code: str = code
        self.order = "="

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


_SYMBOLS: dict[str, _Symbol] = {
    "collections.OrderedDict": _Symbol("ordered_dict"),
    # How protocol 2, the one that torch.save takes, writes sets and bytes.
    **{f"{module}.{name}": _Symbol(name) for module in ("__builtin__", "builtins")
       for name in ("set", "frozenset", "bytes", "bytearray")},
    "_codecs.encode": _Symbol("encode"),
    "collections.Counter": _Symbol("counter"),
    "collections.defaultdict": _Symbol("defaultdict"),
    **{f"{module}.{name}": _Symbol("factory") for module in ("__builtin__", "builtins")
       for name in ("dict", "list", "tuple", "int", "long", "float", "bool", "str", "unicode")},
    "numpy.ndarray": _Symbol("ndarray"),
    "numpy.dtype": _Symbol("numpy_dtype"),
    **{f"numpy.{core}.multiarray.{name}": _Symbol(name) for core in ("core", "_core")
       for name in ("scalar", "_reconstruct")},
    # Arrays in protocol 5.
    **{f"numpy.{core}.numeric._frombuffer": _Symbol("frombuffer") for core in ("core", "_core")},
    "torch.Size": _Symbol("size"),
    "torch._utils._rebuild_tensor_v2": _Symbol("tensor_v2"),
    "torch._utils._rebuild_tensor_v3": _Symbol("tensor_v3"),
    "torch._utils._rebuild_parameter": _Symbol("parameter"),
    "torch.storage.UntypedStorage": _Symbol("storage"),
    **{f"torch.{name}Storage": _Symbol("storage", element) for name, element in _ELEMENTS.items()},
    **{f"torch.{name}": _Symbol("dtype", element) for name, element in _DTYPES.items()},
}


class TorchFile(ABC):
    """One open file: turns the pickle's tensor records into arrays; `values` hands out the storages."""

    def __init__(self) -> None:
        self.storages: dict[tuple[str, str], np.ndarray] = {}
        self.unfilled: dict[int, np.ndarray] = {}  # NumPy's arrays whose values are yet to come, by id

    def content(self, data: bytes | BinaryIO) -> Any:
        """The object that a pickle describes."""
        content = run_pickle(data, _SYMBOLS, self.persistent, self.call, self.build)
        if self.unfilled:
            raise CheckpointError("the pickle is damaged: a NumPy array has no values")
        return _checked(content)

    @abstractmethod
    def values(self, storage: Storage, element: str) -> np.ndarray:
        """The whole storage as a 1-D read-only array of `element`."""

    def persistent(self, record: Any) -> Storage:
        """The storage that a persistent id ('storage', type, key, location, count) names."""
        if not (isinstance(record, tuple) and len(record) == 5 and record[0] == "storage"
                and isinstance(record[1], _Symbol) and record[1].kind == "storage"
                and isinstance(record[2], str) and _is_index(record[4])):
            raise CheckpointError("a storage record of the pickle is malformed")
        return Storage(record[2], record[1].element, record[4])

    def call(self, symbol: Any, arguments: tuple[Any, ...]) -> Any:
        """What calling a name of `_SYMBOLS` gives."""
        kind = symbol.kind if isinstance(symbol, _Symbol) else type(symbol).__name__
        if kind == "ordered_dict" and not arguments:
            return OrderedDict()
        if kind == "size" and len(arguments) == 1 and _is_shape(arguments[0]):
            return arguments[0]
        if kind in ("set", "frozenset") and len(arguments) == 1 and isinstance(arguments[0], list):
            return (set if kind == "set" else frozenset)(map(plain_key, arguments[0]))
        if kind in ("bytes", "bytearray") and not arguments:
            return b""
        if kind == "bytearray" and len(arguments) == 1 and isinstance(arguments[0], bytes):
            return arguments[0]
        if kind == "bytearray" and list(map(type, arguments)) == [str, str] and arguments[1] == "latin-1":
            return arguments[0].encode("latin1")
        if kind == "encode" and list(map(type, arguments)) == [str, str] and arguments[1] == "latin1":
            return arguments[0].encode("latin1")
        if kind == "counter" and len(arguments) == 1 and isinstance(arguments[0], dict):
            return arguments[0]
        if kind == "defaultdict" and all(_is_factory(value) for value in arguments) and len(arguments) < 2:
            return {}
        if kind == "numpy_dtype" and len(arguments) == 3:
            return _Dtype(arguments[0])
        if kind == "scalar" and len(arguments) == 2 and isinstance(arguments[0], _Dtype):
            return _numbers(arguments[0], (), False, arguments[1]).item()
        if kind == "_reconstruct" and len(arguments) == 3 and _is_kind(arguments[0], "ndarray"):
            array = np.ndarray((0,), np.int8)
            self.unfilled[id(array)] = array
            return array
        if kind == "frombuffer" and len(arguments) == 4 and isinstance(arguments[1], _Dtype) \
                and isinstance(arguments[3], str) and arguments[3] in ("C", "F"):
            array = _numbers(arguments[1], arguments[2], arguments[3] == "F", arguments[0])
            array.flags.writeable = False
            return array
        if kind == "parameter" and len(arguments) == 3 and isinstance(arguments[0], np.ndarray):
            return arguments[0]
        # torch keeps conjugation and negation lazily in a last argument; the bytes alone would be wrong.
        metadata = arguments[-1] if kind.startswith("tensor") and arguments else None
        if isinstance(metadata, dict) and any(metadata.values()):
            raise CheckpointError("a tensor has a lazy conj or neg bit; save tensor.resolve_conj() instead")
        if kind == "tensor_v2" and len(arguments) in (6, 7):
            return self.tensor("", *arguments[:4])
        if kind == "tensor_v3" and len(arguments) in (7, 8):
            dtype = arguments[6]
            if isinstance(dtype, _Symbol) and dtype.kind == "dtype":
                return self.tensor(dtype.element, *arguments[:4])
        raise CheckpointError(f"the pickle calls a {kind} with {len(arguments)} arguments, not as torch.save "
                              "writes it; it is refused")

    def build(self, target: Any, state: Any) -> bool:
        """Give a dtype its byte order or a NumPy array its values, once; False for anything else."""
        if isinstance(target, _Dtype):
            if not (isinstance(state, tuple) and len(state) >= 2 and state[1] in ("<", ">", "|", "=")):
                raise CheckpointError("a NumPy dtype of the pickle is malformed")
            target.order = state[1]
            return True
        if self.unfilled.pop(id(target), None) is None:
            return False
        # The version of the layout, shape, dtype, whether columns come first, values.
        if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[2], _Dtype)):
            raise CheckpointError("a NumPy array of the pickle is malformed")
        values = _numbers(state[2], state[1], state[3], state[4])
        # In place, as the pickle may have named the array before. The dtype is one of numbers, checked above.
        target.__setstate__((1, values.shape, values.dtype, False, values.tobytes()))
        target.flags.writeable = False
        return True

    def tensor(self, element: str, storage: Any, offset: Any, size: Any, stride: Any) -> np.ndarray:
        """The view of `storage` that starts at `offset` with `size` and `stride`, all in elements."""
        if not (isinstance(storage, Storage) and _is_index(offset) and _is_shape(size) and _is_shape(stride)
                and len(size) == len(stride)):
            raise CheckpointError("a tensor record is malformed: offset, sizes and strides are "
                                  "whole numbers from 0, and there are as many strides as sizes")
        values = self.values(storage, element or storage.element)
        if 0 in size:  # no element is ever read
            offset, stride = 0, (0,) * len(size)
        else:
            last = offset + sum((n - 1) * step for n, step in zip(size, stride))
            if last >= len(values):
                raise CheckpointError(f"a tensor of size {size}, stride {stride}, offset {offset} reaches "
                                      f"element {last} of storage {storage.key!r}, which has {len(values)}")
        steps = tuple(step * values.itemsize if n > 1 else 0 for n, step in zip(size, stride))
        try:
            return np.lib.stride_tricks.as_strided(values[offset:], size, steps, writeable=False)
        except (ValueError, OverflowError) as error:
            raise CheckpointError(f"a tensor has the impossible size {size}: {error}") from error


def width_of(element: str) -> int:
    """Bytes of an element; 1 while untyped."""
    return _WIDTH.get(element) or np.dtype(element).itemsize


_PRIVATE = (_Symbol, Storage, _Dtype)


def _checked(content: Any) -> Any:
    """`content`; CheckpointError where it holds what only the pickle's instructions use."""
    waiting, seen = [content], {id(content)}  # parts may be shared, and hold themselves
    while waiting:
        value = waiting.pop()
        if isinstance(value, _PRIVATE):
            kind = "storage" if isinstance(value, Storage) else value.kind
            raise CheckpointError(f"the pickle holds a bare {kind}, which is refused: only tensors and plain "
                                  "containers are loaded")
        parts: Any = value.values() if isinstance(value, dict) else value
        # Keys and members of sets are scalars and flat tuples of them.
        for part in parts if isinstance(value, (dict, list, tuple)) else ():
            if isinstance(part, (list, tuple, dict, *_PRIVATE)) and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return content


def _numbers(dtype: _Dtype, shape: Any, columns_first: Any, raw: Any) -> np.ndarray:
    """The array that the bytes `raw` are, in the machine's byte order."""
    kind = dtype.numpy()
    if not (_is_shape(shape) and isinstance(raw, bytes) and math.prod(shape) * kind.itemsize == len(raw)):
        raise CheckpointError("a NumPy array or scalar of the pickle is malformed: its bytes are not those "
                              f"of {kind} of its shape")
    values = np.frombuffer(raw, kind).astype(kind.newbyteorder("="))
    return values.reshape(shape, order="F" if columns_first else "C")


def _is_factory(value: Any) -> bool:
    """Whether a defaultdict may make what is missing with `value`, which is not kept."""
    return value is None or _is_kind(value, "factory", "set", "frozenset", "bytes", "ordered_dict", "counter",
                                     "defaultdict")


def _is_kind(value: Any, *kinds: str) -> bool:
    return isinstance(value, _Symbol) and value.kind in kinds


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= 64 and all(map(_is_index, value))
