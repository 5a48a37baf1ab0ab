"""Read torch.save archives without torch, and without running anything that is in them.

A .pt file is a zip archive: `<name>/data.pkl` describes the objects, `<name>/data/<key>` hold the raw
storages. The pickle is carried out by `restricted_pickle`, which knows the few names in `_SYMBOLS` and has
nothing to call besides. Every tensor is a checked view into the bytes of its storage. NumPy's own arrays and
numbers, which schedules and records of training hold, are made of their bytes, and only where these are
numbers: NumPy never sees a dtype that could hold objects.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

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
_WIDTH = {"bf16": 2}

# NumPy's, by their code in a pickle. No objects, records, text or times.
_NUMBERS = set("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())

_LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


@dataclass(frozen=True)
class _Symbol:
    """A name of `_SYMBOLS` met in the pickle: something to compare with, not something to call."""

    kind: str
    element: str = ""


@dataclass(frozen=True)
class _Storage:
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


def load_torch_file(path: str | os.PathLike[str]) -> Any:
    """The object that torch.save wrote to `path`, tensors as NumPy arrays.

    Containers come back as dict, OrderedDict, list, tuple, set, frozenset; numbers, text and bytes as they
    are, a bytearray as bytes; parameters as plain arrays; bfloat16 tensors as float32 (exact); torch.Size as
    tuple; Counter and defaultdict as dict; NumPy's scalars as Python's numbers, its arrays of numbers as they
    were. Arrays are read-only; those of tensors are views: tensors that shared a storage share it here,
    strides and offsets are the file's. Copy before writing.
    Raises CheckpointError for a file that is missing, no zip archive (torch before 1.6, tar), truncated or
    inconsistent, and for a pickle that names or holds anything but these (a dtype or a bare storage, too);
    the message says it.
    """
    path = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _Archive(archive).load()
    except CheckpointError as error:
        raise CheckpointError(f"{path!r}: {error}") from error
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path!r} {_not_a_zip(path)} ({error})") from error
    except FileNotFoundError:
        raise CheckpointError(f"no such file: {path!r}") from None
    except (OSError, EOFError, RuntimeError, ValueError, struct.error) as error:
        raise CheckpointError(f"cannot read {path!r}: {error}") from error


def _not_a_zip(path: str) -> str:
    with open(path, "rb") as stream:
        head = stream.read(512)
    if head.startswith(b"PK"):
        return "is a zip archive that is truncated or damaged; copy or download it again"
    # A safetensors file is the length of a JSON text, the text, and the values.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "is a safetensors file; read it with mlx.core.load(path)"
    if head.startswith(_LEGACY_MAGIC) or head[257:262] == b"ustar":
        return "is in the format before torch 1.6; load and save it again with torch: torch.save(obj, path)"
    return "is not a torch.save archive, a zip file with data.pkl; with torch, save it: torch.save(obj, path)"


class _Archive:
    """One open archive: hands out storages and turns the pickle's tensor records into arrays."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        roots = [name[: -len("data.pkl")] for name in archive.namelist()
                 if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(roots) != 1:
            raise CheckpointError(f"a torch.save archive has one <name>/data.pkl, this one has {len(roots)}")
        self.root = roots[0]
        self.order = self._byte_order()
        self.storages: dict[tuple[str, str], np.ndarray] = {}
        self.unfilled: dict[int, np.ndarray] = {}  # NumPy's arrays whose values are yet to come, by id

    def load(self) -> Any:
        content = run_pickle(self.read("data.pkl"), _SYMBOLS, self.persistent, self.call, self.build)
        if self.unfilled:
            raise CheckpointError("the pickle is damaged: a NumPy array has no values")
        return _checked(content)

    def read(self, name: str) -> bytes:
        try:
            info = self.archive.getinfo(self.root + name)
        except KeyError:
            raise CheckpointError(f"the archive has no record {name!r}; the file is incomplete") from None
        # torch stores records as they are; refusing compression keeps a small file from becoming a huge one.
        if info.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"record {name!r} is compressed, which torch.save never does")
        return self.archive.read(info)

    def _byte_order(self) -> str:
        if self.root + "byteorder" not in self.archive.namelist():
            return "<"
        word = self.read("byteorder")
        if word not in (b"little", b"big"):
            raise CheckpointError(f"byteorder is {word[:20]!r}; b'little' or b'big' is needed")
        return "<" if word == b"little" else ">"

    def persistent(self, record: Any) -> _Storage:
        """The storage that a persistent id ('storage', type, key, location, count) names."""
        if not (isinstance(record, tuple) and len(record) == 5 and record[0] == "storage"
                and isinstance(record[1], _Symbol) and record[1].kind == "storage"
                and isinstance(record[2], str) and _is_index(record[4])):
            raise CheckpointError("a storage record of the pickle is malformed")
        return _Storage(record[2], record[1].element, record[4])

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
        if not (isinstance(storage, _Storage) and _is_index(offset) and _is_shape(size) and _is_shape(stride)
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

    def values(self, storage: _Storage, element: str) -> np.ndarray:
        """The whole storage as a 1-D read-only array of `element`, read once."""
        if not element:
            raise CheckpointError(f"storage {storage.key!r} has no element type")
        found = self.storages.get((storage.key, element))
        if found is not None:
            return found
        raw = self.read(f"data/{storage.key}")
        width = _WIDTH.get(element) or np.dtype(element).itemsize
        wanted = storage.count * (width if storage.element else 1)
        if len(raw) < wanted:
            raise CheckpointError(f"storage {storage.key!r} should have {wanted} bytes, the archive has "
                                  f"{len(raw)}")
        raw = raw[: wanted - wanted % width]
        if element == "bf16":  # the upper half of a float32
            values = (np.frombuffer(raw, self.order + "u2").astype(np.uint32) << 16).view(np.float32)
        elif element == "b1":
            values = np.frombuffer(raw, np.uint8) != 0
        else:
            values = np.frombuffer(raw, self.order + element)
            values = values.astype(values.dtype.newbyteorder("="), copy=False)
        values.flags.writeable = False
        self.storages[storage.key, element] = values
        return values


_PRIVATE = (_Symbol, _Storage, _Dtype)


def _checked(content: Any) -> Any:
    """`content`; CheckpointError where it holds what only the pickle's instructions use."""
    waiting, seen = [content], {id(content)}  # parts may be shared, and hold themselves
    while waiting:
        value = waiting.pop()
        if isinstance(value, _PRIVATE):
            kind = "storage" if isinstance(value, _Storage) else value.kind
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
