"""Reading torch.save archives: real files, hand-made ones, and hostile ones."""

from __future__ import annotations

import io
import os
import pickle
import random
import tarfile
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from mlxsparse.errors import CheckpointError
from mlxsparse.interop.torch_file import load_torch_file
from tests.data_paths import data_path

GOLDEN = ["golden_ext_misc", "golden_ext_p2v", "golden_ext_pool", "golden_misc", "golden_net", "golden_proto"]


# --- writing archives without torch: pickles are assembled from a few opcodes ---------------------------


def glob(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def const(value):
    """Opcodes for a constant, without the header and STOP that pickle.dumps adds."""
    return pickle.dumps(value, protocol=2)[2:-1]


def storage(kind, key, count, module="torch"):
    return b"(" + const("storage") + glob(module, kind) + const(key) + const("cpu") + const(count) + b"tQ"


def tensor(store, offset, size, stride, extra=b"", function="_rebuild_tensor_v2"):
    return (glob("torch._utils", function) + b"(" + store + const(offset) + const(size) + const(stride)
            + const(False) + glob("collections", "OrderedDict") + b")R" + extra + b"tR")


def archive(path, body, storages=(), byteorder=b"little", root="model"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        out.writestr(f"{root}/data.pkl", b"\x80\x02" + body + b".")
        if byteorder is not None:
            out.writestr(f"{root}/byteorder", byteorder)
        for key, raw in storages:
            out.writestr(f"{root}/data/{key}", raw)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pt"


TWELVE = [("0", np.arange(12, dtype="<f4").tobytes())]


def load_tensor(path, offset, size, stride, kind="FloatStorage", count=12, storages=TWELVE, **options):
    body = tensor(storage(kind, "0", count), offset, size, stride)
    return load_torch_file(archive(path, body, storages, **options))


# --- what is read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_load(name):
    content = load_torch_file(data_path("spconv_golden", f"{name}.pt"))
    arrays = []

    def collect(value):
        if isinstance(value, np.ndarray):
            arrays.append(value)
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)
        else:
            assert value is None or isinstance(value, (str, int, float, bool)), type(value)

    collect(content)
    assert set(content) >= {"cases"} and content["cases"]
    assert arrays and all(array.dtype.kind in "fi" for array in arrays)
    assert all(np.isfinite(array).all() for array in arrays)


def test_strides_and_offset(path):
    got = load_tensor(path, 1, (3, 2), (1, 4))
    np.testing.assert_array_equal(got, [[1, 5], [2, 6], [3, 7]])
    assert got.dtype == np.float32 and not got.flags.writeable


def test_last_element_is_readable_and_the_next_is_not(path):
    np.testing.assert_array_equal(load_tensor(path, 11, (1,), (1,)), [11])
    with pytest.raises(CheckpointError, match="reaches element 12 of storage '0', which has 12"):
        load_tensor(path, 12, (1,), (1,))


def test_scalar_and_empty_tensors(path):
    assert load_tensor(path, 7, (), ()) == 7
    assert load_tensor(path, 12, (0, 3), (3, 1)).shape == (0, 3)
    # A storage of size zero has nothing to point into; torch still stores a stride for it.
    assert load_tensor(path, 0, (0,), (1,), count=0, storages=[("0", b"")]).shape == (0,)


def test_expanded_tensor_stays_a_view(path):
    got = load_tensor(path, 3, (1_000_000_000, 1000), (0, 0))
    assert got.shape == (1_000_000_000, 1000) and got[-1, -1] == 3


@pytest.mark.parametrize(("kind", "dtype"), [
    ("DoubleStorage", "f8"), ("FloatStorage", "f4"), ("HalfStorage", "f2"), ("LongStorage", "i8"),
    ("IntStorage", "i4"), ("ShortStorage", "i2"), ("CharStorage", "i1"), ("ByteStorage", "u1"),
    ("ComplexFloatStorage", "c8"), ("ComplexDoubleStorage", "c16"),
])
@pytest.mark.parametrize("order", ["little", "big"])
def test_element_types_and_byte_order(path, kind, dtype, order):
    values = np.arange(5).astype(dtype)
    raw = values.astype(values.dtype.newbyteorder("<" if order == "little" else ">")).tobytes()
    got = load_tensor(path, 0, (5,), (1,), kind, 5, [("0", raw)], byteorder=order.encode())
    assert got.dtype == values.dtype and got.dtype.isnative
    np.testing.assert_array_equal(got, values)


def test_missing_byteorder_is_little(path):
    np.testing.assert_array_equal(load_tensor(path, 0, (2,), (1,), byteorder=None), [0, 1])


def test_bool_and_bfloat16(path):
    got = load_tensor(path, 0, (3,), (1,), "BoolStorage", 3, [("0", b"\x00\x01\x07")])
    assert got.tolist() == [False, True, True] and got.view(np.uint8).tolist() == [0, 1, 1]
    exact = np.array([1.0, -2.5, 3.140625, np.inf], np.float32)
    raw = (exact.view(np.uint32) >> 16).astype("<u2").tobytes()
    got = load_tensor(path, 0, (4,), (1,), "BFloat16Storage", 4, [("0", raw)])
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, exact)


def test_untyped_storage_with_dtype(path):
    raw = np.array([1, 2, 65535], "<u2").tobytes()
    body = tensor(storage("UntypedStorage", "0", 6, "torch.storage"), 1, (2,), (1,), glob("torch", "uint16"),
                  "_rebuild_tensor_v3")
    got = load_torch_file(archive(path, body, [("0", raw)]))
    assert got.dtype == np.uint16 and got.tolist() == [2, 65535]


def test_state_dict_with_parameter_and_metadata(path):
    """OrderedDict, a parameter, torch.Size, and the `_metadata` attribute that nn.Module adds by BUILD."""
    weight = tensor(storage("FloatStorage", "0", 12), 0, (3, 4), (4, 1))
    parameter = glob("torch._utils", "_rebuild_parameter") + b"(" + weight + const(True) + const(None) + b"tR"
    size = glob("torch", "Size") + b"(" + const((3, 4)) + b"tR"
    body = (glob("collections", "OrderedDict") + b")R(" + const("w") + parameter + const("shape") + size
            + b"u" + const({"_metadata": {"": {"version": 1}}}) + b"b")
    got = load_torch_file(archive(path, body, TWELVE))
    assert type(got) is OrderedDict and list(got) == ["w", "shape"]
    np.testing.assert_array_equal(got["w"], np.arange(12, dtype=np.float32).reshape(3, 4))
    assert got["shape"] == (3, 4)


def test_shared_storage_is_shared(path):
    one = storage("FloatStorage", "0", 12)
    body = b"(" + tensor(one, 0, (12,), (1,)) + tensor(one, 4, (4,), (1,)) + b"t"
    whole, part = load_torch_file(archive(path, body, TWELVE))
    assert np.shares_memory(whole, part)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_containers_in_every_protocol(path, protocol):
    value = {"a": [1, 2.5, None, True, "text", b"bytes", (1,), (1, 2, 3, 4)], 7: {"x", "y"},
             (1, "k"): 2**70, "frozen": frozenset({1}), "list": list(range(3000))}
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("m/data.pkl", pickle.dumps(value, protocol))
    assert load_torch_file(path) == value


# --- what is refused --------------------------------------------------------------------------------------


class Call:
    def __init__(self, function, *arguments):
        self.value = (function, arguments)

    def __reduce__(self):
        return self.value


@pytest.mark.parametrize(("attack", "named"), [
    (Call(os.system, "touch {canary}"), rf"{os.system.__module__}.system"),
    (Call(eval, "open('{canary}', 'w').close()"), "builtins.eval"),
    ({"weights": [1, (2, Call(exec, "open('{canary}', 'w').close()"))]}, "builtins.exec"),
    (Call(getattr, OrderedDict(), "__class__"), "builtins.getattr"),
    (Call(OrderedDict, [("a", Call(os.system, "touch {canary}"))]), rf"{os.system.__module__}.system"),
    ({"best": Call(np.frombuffer, b"12345678")}, "frombuffer"),
    (np.array([Call(os.system, "touch {canary}")], object), "dtype 'O8'"),
])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_refused_by_name_and_not_run(tmp_path, path, attack, named, protocol):
    canary = tmp_path / "canary"

    def arm(value):
        if isinstance(value, Call):
            function, arguments = value.value
            return Call(function, *(arm(a) for a in arguments))
        if isinstance(value, str):
            return value.format(canary=canary)
        if type(value) in (list, tuple):
            return type(value)(map(arm, value))
        return {k: arm(v) for k, v in value.items()} if type(value) is dict else value

    payload = pickle.dumps(arm(attack), protocol)
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("m/data.pkl", payload)
    with pytest.raises(CheckpointError, match="refused") as caught:
        load_torch_file(path)
    assert not canary.exists()
    if protocol:  # protocol 0 needs copy_reg first, and is refused for that or for its old instructions
        message = str(caught.value).replace("__builtin__", "builtins")  # protocol 2 uses Python 2's name
        assert named in message


@pytest.mark.parametrize(("body", "message"), [
    (glob("torch", "load") + b")R", "torch.load, which is refused"),
    (glob("torch.storage", "_load_from_bytes") + b"(" + const("x") + b"tR", "_load_from_bytes"),
    (glob("torch", "QInt8Storage"), "torch.QInt8Storage"),
    (glob("torch.nn.modules.linear", "Linear") + b")\x81", "torch.nn.modules.linear.Linear"),
    (glob("collections", "OrderedDict") + b")\x81", "instruction NEWOBJ"),
    (b"(" + glob("collections", "OrderedDict") + b"o", "instruction OBJ"),
    (b"(ios\nsystem\n", "instruction INST"),
    (b"\x82\x01", "instruction EXT1"),
    (const("x") + b")R", "calls a str"),
    (glob("torch", "FloatStorage") + b")R", "calls a storage"),
    (glob("collections", "OrderedDict") + const({}) + b"b", "as if it were a OrderedDict"),
    (b"]" + const({"append": 1}) + b"b", "changes a list"),
    (glob("collections", "OrderedDict") + const([]) + b"R", "without a tuple"),
    (b"}" + b"]" + const(1) + b"s", "uses a list as a key"),
    (b"}" + const(((1,),)) + const(1) + b"s", "uses a tuple as a key"),
    (b"\x85", "damaged"),
    (b"u", "mark is missing"),
    (b"(" + const(1) + b"d", "key without a value"),
    (b"h\x05", "damaged"),
    (b"", "damaged"),
])
def test_other_instructions_are_refused(path, body, message):
    with pytest.raises(CheckpointError, match=message):
        load_torch_file(archive(path, body))


def test_functions_of_the_loader_cannot_be_changed(path):
    """BUILD may set attributes through a (state, slots) pair in pickle; here it does nothing of the kind."""
    body = glob("torch._utils", "_rebuild_tensor_v2") + const((None, {"__defaults__": (1,)})) + b"b"
    with pytest.raises(CheckpointError, match="refused"):
        load_torch_file(archive(path, body))


def test_shared_nesting_does_not_take_exponential_time(path):
    """Sixty tuples that each hold the one below twice: 2^60 leaves if anything walks or hashes them."""
    body = const(()) + b"".join(b"q%c2\x86" % i for i in range(60))
    assert isinstance(load_torch_file(archive(path, body)), tuple)
    with pytest.raises(CheckpointError):
        load_torch_file(archive(path, b"}" + body + const(1) + b"s"))
    with pytest.raises(CheckpointError):
        load_torch_file(archive(path, body + b"Q"))
    with pytest.raises(CheckpointError):
        load_torch_file(archive(path, glob("torch", "Size") + b"(" + body + b"tR"))


@pytest.mark.parametrize(("offset", "size", "stride"), [
    (0, (13,), (1,)), (1, (12,), (1,)), (0, (3, 5), (4, 1)), (0, (2,), (12,)), (13, (1,), (1,)),
    (0, (2, 2), (11, 1)), (0, (2**40,), (1,)), (2**61, (1,), (1,)), (0, (2,), (2**61,)),
    (-1, (2,), (1,)), (0, (-1,), (1,)), (11, (2,), (-1,)), (0, (2,), (1, 1)), (0, [2], [1]),
    (0, ("2",), (1,)), (0, (True,), (1,)), (2**70, (1,), (1,)), (0, (0, 2**61, 2**61), (1, 1, 1)),
    (0, (2**61, 2**61), (0, 0)), (0, (1,) * 65, (1,) * 65), (1.0, (1,), (1,)),
])
def test_no_view_leaves_its_storage(path, offset, size, stride):
    with pytest.raises(CheckpointError):
        load_tensor(path, offset, size, stride)


def test_size_one_axes_may_have_any_stride(path):
    np.testing.assert_array_equal(load_tensor(path, 0, (1, 3), (2**61, 1)), [[0, 1, 2]])


@pytest.mark.parametrize(("count", "storages", "message"), [
    (13, TWELVE, "should have 52 bytes, the archive has 48"),
    (12, [], "no record 'data/0'"),
    (-1, TWELVE, "malformed"),
    ("12", TWELVE, "malformed"),
])
def test_storage_must_be_there(path, count, storages, message):
    with pytest.raises(CheckpointError, match=message):
        load_tensor(path, 0, (3,), (1,), count=count, storages=storages)


def test_key_cannot_leave_the_archive(path):
    with pytest.raises(CheckpointError, match="no record"):
        load_torch_file(archive(path, tensor(storage("FloatStorage", "../../etc/passwd", 1), 0, (1,), (1,))))


def test_lazy_conjugation_is_not_ignored(path):
    body = tensor(storage("ComplexFloatStorage", "0", 6), 0, (6,), (1,), const({"conj": True}))
    with pytest.raises(CheckpointError, match="resolve_conj"):
        load_torch_file(archive(path, body, TWELVE))


def test_compressed_records_are_refused(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("m/data.pkl", pickle.dumps("a" * 1000, 2))
    with pytest.raises(CheckpointError, match="compressed"):
        load_torch_file(path)


def test_bad_byteorder(path):
    with pytest.raises(CheckpointError, match="byteorder"):
        load_tensor(path, 0, (3,), (1,), byteorder=b"middle")


@pytest.mark.parametrize("names", [["data.pkl"], ["a/data.pkl", "b/data.pkl"], ["a/b/data.pkl"], ["a/other"]])
def test_zip_files_of_another_kind(path, names):
    with zipfile.ZipFile(path, "w") as out:
        for name in names:
            out.writestr(name, pickle.dumps(1, 2))
    with pytest.raises(CheckpointError, match="one <name>/data.pkl"):
        load_torch_file(path)


def test_files_that_are_no_archives(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load_torch_file(tmp_path / "absent.pt")
    with pytest.raises(CheckpointError, match="cannot read"):
        load_torch_file(tmp_path)
    plain = tmp_path / "plain.pt"
    for content, message in [(b"", "not a torch.save archive"), (pickle.dumps({"a": 1}), "not a torch.save"),
                             (pickle.dumps(0x1950A86A20F9469CFC6C, 2), "the pickle is damaged"),
                             (b"PK\x03\x04", "truncated")]:
        plain.write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            load_torch_file(plain)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("pickle"), io.BytesIO())
    plain.write_bytes(buffer.getvalue())
    with pytest.raises(CheckpointError, match="is a tar file"):
        load_torch_file(plain)


def test_every_truncation_is_an_error(tmp_path, path):
    load_tensor(path, 0, (12,), (1,))
    whole = path.read_bytes()
    cut = tmp_path / "cut.pt"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            load_torch_file(cut)


def test_damaged_bytes_load_or_raise_checkpoint_error(tmp_path, path):
    """Random damage to a valid archive: a result or a CheckpointError, never another exception."""
    load_tensor(path, 0, (3, 4), (4, 1))
    whole = path.read_bytes()
    damaged = tmp_path / "damaged.pt"
    chance = random.Random(0)
    for _ in range(1500):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        damaged.write_bytes(content)
        try:
            load_torch_file(damaged)
        except CheckpointError:
            pass


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_damaged_pickles_load_or_raise_checkpoint_error(tmp_path):
    """The same for the pickle alone, whose checksum would otherwise hide it."""
    from mlxsparse.interop import torch_file

    weight = tensor(storage("FloatStorage", "0", 12), 0, (3, 4), (4, 1))
    body = b"\x80\x02(" + weight + const({"a": [1]}) + b"t."
    with zipfile.ZipFile(archive(tmp_path / "m.pt", b"N", TWELVE)) as opened:
        reader = torch_file._Archive(opened)
        chance = random.Random(1)
        for _ in range(4000):
            content = bytearray(body)
            for _ in range(chance.randint(1, 3)):
                content[chance.randrange(len(content))] = chance.randrange(256)
            try:
                reader.content(bytes(content))
            except CheckpointError:
                pass
