"""Read torch.save archives without torch, and without running anything that is in them.

A .pt file is a zip archive: `<name>/data.pkl` describes the objects, `<name>/data/<key>` hold the raw
storages. A file in the format before torch 1.6, which OpenPCDet still writes, is a row of pickles with the
storages after them. The pickle is carried out by `restricted_pickle`, which knows the few names of
`torch_values` and has nothing to call besides.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError
from .torch_values import Storage, TorchFile, width_of

_LEGACY_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def load_torch_file(path: str | os.PathLike[str]) -> Any:
    """The object that torch.save wrote to `path`, tensors as NumPy arrays.

    Containers come back as dict, OrderedDict, list, tuple, set, frozenset; numbers, text and bytes as they
    are, a bytearray as bytes; parameters as plain arrays; bfloat16 tensors as float32 (exact); torch.Size as
    tuple; Counter and defaultdict as dict; NumPy's scalars as Python's numbers, its arrays of numbers as they
    were. Arrays are read-only; those of tensors are views: tensors that shared a storage share it here,
    strides and offsets are the file's. Copy before writing.
    Raises CheckpointError for a file that is missing, not of torch.save (or of its first form, a tar),
    truncated or inconsistent, and for a pickle that names or holds anything but these (a dtype or a bare
    storage, too); the message says it.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            if _LEGACY_MAGIC in stream.read(32):
                return _Legacy(stream).load()
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
        return "is a safetensors file; read it with mlx.core.load(path, format='safetensors')"
    if head[257:262] == b"ustar":
        return "is a tar file, the first form of torch.save; load and save it again with torch"
    return "is not a torch.save archive, a zip file with data.pkl; with torch, save it: torch.save(obj, path)"


class _Archive(TorchFile):
    """A zip archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        super().__init__()
        self.archive = archive
        roots = [name[: -len("data.pkl")] for name in archive.namelist()
                 if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(roots) != 1:
            raise CheckpointError(f"a torch.save archive has one <name>/data.pkl, this one has {len(roots)}")
        self.root = roots[0]
        self.order = self._byte_order()

    def load(self) -> Any:
        return self.content(self.read("data.pkl"))

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

    def values(self, storage: Storage, element: str) -> np.ndarray:
        """The whole storage as a 1-D read-only array of `element`, read once."""
        if not element:
            raise CheckpointError(f"storage {storage.key!r} has no element type")
        found = self.storages.get((storage.key, element))
        if found is not None:
            return found
        raw = self.read(f"data/{storage.key}")
        wanted = storage.count * width_of(storage.element)
        if len(raw) < wanted:
            raise CheckpointError(f"storage {storage.key!r} should have {wanted} bytes, the archive has "
                                  f"{len(raw)}")
        values = _decoded(raw[:wanted], element, self.order)
        values.flags.writeable = False
        self.storages[storage.key, element] = values
        return values


class _Legacy(TorchFile):
    """A file before torch 1.6: pickles of a magic number, the format's version, the writer's machine, the
    object, and the keys of the storages; then these, each its number of elements and the elements."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.stream = stream
        self.left = stream.seek(0, os.SEEK_END)  # bytes that storages may still claim
        self.counts: dict[str, tuple[int, int]] = {}  # elements and their width, by key
        stream.seek(0)

    def load(self) -> Any:
        for _ in range(3):  # values are little-endian, whatever the machine
            self.content(self.stream)
        content, keys = self.content(self.stream), self.content(self.stream)
        elements = {element for _, element in self.storages}
        for key in keys if isinstance(keys, list) else ():
            count, width = self.counts.pop(key, (0, 0)) if isinstance(key, str) else (0, 0)
            head, raw = self.stream.read(8), self.stream.read(count * width)
            if not width or head != count.to_bytes(8, "little") or len(raw) != count * width:
                raise CheckpointError("a storage is not what the pickle says; the file is truncated or "
                                      "damaged")
            for element in elements:
                if (key, element) in self.storages:
                    self.storages[key, element][:] = _decoded(raw, element, "<")
                    self.storages[key, element].flags.writeable = False
        if self.counts:
            raise CheckpointError(f"the file has no storage {next(iter(self.counts))!r}; it is truncated")
        return content

    def persistent(self, record: Any) -> Storage:
        if not (isinstance(record, tuple) and len(record) == 6 and record[5] is None):
            raise CheckpointError("a storage record of the pickle is malformed")
        storage = super().persistent(record[:5])
        known = storage.count, width_of(storage.element)
        if storage.key not in self.counts:
            self.left -= math.prod(known)
        if self.counts.setdefault(storage.key, known) != known or self.left < 0:
            raise CheckpointError(f"storage {storage.key!r} has {storage.count} elements in the pickle, and "
                                  "the file another number; it is truncated or damaged")
        return storage

    def values(self, storage: Storage, element: str) -> np.ndarray:
        """An array that `load` fills: the storages come after the pickle that says what they are."""
        if not element:
            raise CheckpointError(f"storage {storage.key!r} has no element type")
        if (storage.key, element) not in self.storages:
            count = storage.count * width_of(storage.element) // width_of(element)
            self.storages[storage.key, element] = np.empty(count, "f4" if element == "bf16" else element)
        return self.storages[storage.key, element]


def _decoded(raw: bytes, element: str, order: str) -> np.ndarray:
    """The values that the bytes of a storage are, in the machine's byte order."""
    raw = raw[: len(raw) - len(raw) % width_of(element)]
    if element == "bf16":  # the upper half of a float32
        return (np.frombuffer(raw, order + "u2").astype(np.uint32) << 16).view(np.float32)
    if element == "b1":
        return np.frombuffer(raw, np.uint8) != 0
    values = np.frombuffer(raw, order + element)
    return values.astype(values.dtype.newbyteorder("="), copy=False)
