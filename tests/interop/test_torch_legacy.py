"""Files in the format before torch 1.6, which OpenPCDet writes with any torch."""

from __future__ import annotations

import pickle
import random
import struct

import numpy as np
import pytest

from mlxsparse.errors import CheckpointError
from mlxsparse.interop.torch_file import load_torch_file
from tests.interop.test_torch_file import TWELVE, archive, const, glob, storage, tensor

MACHINE = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
WIDTH = {"FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "BoolStorage": 1, "LongStorage": 8}


def stored(kind, key, count):
    """The record of a storage, which has a sixth item here, a view of another that torch no longer writes."""
    return storage(kind, key, count)[:-2] + b"NtQ"


def legacy(path, body, storages=(), width=4, protocol=2, keys=None):
    with path.open("wb") as out:
        for value in (0x1950A86A20F9469CFC6C, 1001, MACHINE):
            out.write(pickle.dumps(value, protocol))
        out.write(b"\x80\x02" + body + b".")
        out.write(pickle.dumps([key for key, _ in storages] if keys is None else keys, protocol))
        for _, raw in storages:
            out.write(struct.pack("<q", len(raw) // width) + raw)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pth"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_are_those_of_an_archive(tmp_path, path, protocol):
    """A state dict with views of one storage, strides, an empty tensor, and what a training run keeps."""
    raw = [("94", np.arange(12, dtype="<f4").tobytes()), ("7", b"\0\0\x80?" * 3), ("8", b"")]

    def body(record):
        parts = [(const("a"), tensor(record("FloatStorage", "94", 12), 0, (3, 4), (4, 1))),
                 (const("b"), tensor(record("FloatStorage", "94", 12), 1, (2, 3), (1, 4))),
                 (const("c"), tensor(record("FloatStorage", "7", 3), 0, (3,), (1,))),
                 (const("d"), tensor(record("FloatStorage", "8", 0), 0, (0, 3), (3, 1))),
                 (const("epoch"), const(80))]
        return glob("collections", "OrderedDict") + b")R(" + b"".join(k + v for k, v in parts) + b"u"

    got = load_torch_file(legacy(path, body(stored), raw, protocol=protocol))
    want = load_torch_file(archive(tmp_path / "zip.pt", body(storage), raw))
    assert list(got) == list(want) and got["epoch"] == 80
    for name in "abcd":
        assert got[name].dtype == np.float32 and not got[name].flags.writeable
        np.testing.assert_array_equal(got[name], want[name])
    assert np.shares_memory(got["a"], got["b"])


@pytest.mark.parametrize(("kind", "values"), [
    ("HalfStorage", np.array([1.5, -2, 0.1], "<f2")), ("LongStorage", np.array([1, -2, 2**40], "<i8")),
    ("BoolStorage", np.array([True, False, True]))])
def test_element_types(path, kind, values):
    body = tensor(stored(kind, "0", 3), 0, (3,), (1,))
    got = load_torch_file(legacy(path, body, [("0", values.tobytes())], WIDTH[kind]))
    assert got.dtype == values.dtype and got.tolist() == values.tolist()


def test_bfloat16(path):
    raw = np.array([0x3FC0, 0xC000, 0x7F80], "<u2").tobytes()
    body = tensor(stored("BFloat16Storage", "0", 3), 0, (3,), (1,))
    got = load_torch_file(legacy(path, body, [("0", raw)], 2))
    assert got.dtype == np.float32 and got.tolist() == [1.5, -2, np.inf]


def test_code_is_refused_by_name(path):
    with pytest.raises(CheckpointError, match="os.system, which is refused"):
        load_torch_file(legacy(path, glob("os", "system") + b"(" + const("true") + b"tR"))


@pytest.mark.parametrize(("count", "storages", "keys"), [
    (12, TWELVE, []), (12, TWELVE, ["1"]), (12, TWELVE, ["0", "0"]), (12, TWELVE, "0"), (12, TWELVE, [0]),
    (11, TWELVE, None), (13, TWELVE, None), (10**15, TWELVE, None), (12, [], ["0"]), (12, [], None)])
def test_storages_are_those_of_the_pickle(path, count, storages, keys):
    body = tensor(stored("FloatStorage", "0", count), 0, (3,), (1,))
    with pytest.raises(CheckpointError, match="truncated"):
        load_torch_file(legacy(path, body, storages, keys=keys))


def test_truncation_and_damage_are_errors(path):
    whole = legacy(path, tensor(stored("FloatStorage", "0", 12), 0, (3, 4), (4, 1)), TWELVE).read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            load_torch_file(path)
    chance = random.Random(0)
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            load_torch_file(path)
        except CheckpointError:
            pass
