"""Archives whose pickle describes other things than tensors: what comes out is plain, or nothing does."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections import Counter, OrderedDict, defaultdict

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.errors import CheckpointError
from mlxsparse.interop.torch_file import load_torch_file

STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"


@pytest.fixture
def load(tmp_path):
    def load(pickled):
        with zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_STORED) as out:
            out.writestr("archive/data.pkl", pickled)
        return load_torch_file(tmp_path / "model.pt")

    return load


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"}X\x05\x00\x00\x00dtypectorch\nfloat32\ns", "dtype"),
        (b"ctorch\nfloat32\n", "dtype"),
        (b"]ctorch\nSize\na", "size"),
        (b"ccollections\nOrderedDict\n\x85", "ordered_dict"),
        (b"c_codecs\nencode\n", "encode"),
        (STORAGE, "storage"),
        (b"]]" + STORAGE + b"aa", "storage"),
    ],
)
def test_private_objects_of_the_loader_do_not_come_out(load, body, kind):
    with pytest.raises(CheckpointError, match=f"holds a bare {kind}"):
        load(b"\x80\x02" + body + b".")


@pytest.mark.parametrize(
    "body", [b"(", b"K\x01(", b"}X\x01\x00\x00\x00a(s", b"](a", b"((\x86", b"(q\x00h\x00", b"(2"]
)
def test_a_mark_is_not_a_value(load, body):
    with pytest.raises(CheckpointError, match="damaged"):
        load(b"\x80\x02" + body + b".")


def test_a_list_that_holds_itself_and_shared_parts_load(load):
    itself = [1]
    itself.append(itself)
    found = load(pickle.dumps(itself, 2))
    assert found[1] is found
    body = b")" + b"".join(b"q%c2\x86" % i for i in range(60))  # 2^60 leaves if each were visited
    assert isinstance(load(b"\x80\x02" + body + b"."), tuple)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        *(set(), {1, "a", (2, 3)}, frozenset(), frozenset({1.5, None}), b"", b"\x00\xff bytes"),
        *(bytearray(), bytearray(b"\x00\xff bytes")),
    ],
    ids=repr,
)
def test_sets_and_bytes_at_the_protocol_of_torch_save(load, value, protocol):
    found = load(pickle.dumps([value, value], protocol))
    wanted = bytes(value) if isinstance(value, bytearray) else value
    assert found == [wanted, wanted] and type(found[0]) is type(wanted)


@pytest.mark.parametrize(
    "body",
    [
        b"c__builtin__\nset\n(K\x01K\x02t\x85R",  # a tuple, where pickle writes a list
        b"c__builtin__\nset\n)R",
        b"c__builtin__\nset\n]]a\x85R",  # a list as a member
        b"c__builtin__\nfrozenset\n]c__builtin__\nset\na\x85R",
        b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R",  # 2 GB of zeros
        b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R",
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R",
        b"c_codecs\nencode\nX\x01\x00\x00\x00a\x85R",
        b"c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R",  # no latin1
    ],
)
def test_other_calls_of_the_same_names_are_refused(load, body):
    with pytest.raises(CheckpointError, match=r"refused|damaged|as a key"):
        load(b"\x80\x02" + body + b".")


def trained():
    """What records and schedules of training hold beside tensors."""
    nested = defaultdict(dict, {"a": {"b": 1}})
    grid = np.arange(6, dtype=">f4").reshape(2, 3)
    return {
        "best": np.float64(0.5),
        "step": np.int64(-7),
        "on": np.bool_(True),
        "half": np.float16(0.25),
        "wave": np.complex128(1 - 2j),
        "milestones": Counter([3, 4, 3]),
        "records": [nested, defaultdict(int, x=1), defaultdict(list), defaultdict(None, y=2)],
        "more": [defaultdict(kind) for kind in (float, str, tuple, set, bool, OrderedDict, Counter)],
        "grids": [grid, np.asfortranarray(grid), np.float32(3), np.zeros((0, 3)), np.array(8, "u2"), grid],
        "seen": {np.int64(4): "four"},
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("core", ["core", "_core"])
def test_numbers_of_numpy_and_counters_of_a_training_run(load, protocol, core):
    pickled, wanted = pickle.dumps(trained(), protocol), trained()
    if protocol < 4:  # NumPy's module before and since version 2; later protocols have lengths
        pickled = re.sub(rb"numpy\._?core\.", b"numpy." + core.encode() + b".", pickled)
    found = load(pickled)
    grids, arrays = found.pop("grids"), wanted.pop("grids")
    assert found == wanted and grids[5] is grids[0]
    assert [type(found[name]) for name in ("best", "step", "on", "half", "wave", "milestones")] == [
        float, int, bool, float, complex, dict,
    ]  # fmt: skip
    assert all(type(value) is dict for value in found["records"])
    for grid, array in zip(grids, arrays):
        np.testing.assert_array_equal(grid, array)
        if isinstance(grid, np.ndarray):
            assert grid.dtype == array.dtype.newbyteorder("=") and not grid.flags.writeable


DTYPE = b"cnumpy\ndtype\n(X\x02\x00\x00\x00%bK\x00K\x01tR"
FLOAT = DTYPE % b"f8"
ORDER = b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
BUFFER = b"cnumpy._core.numeric\n_frombuffer\n("
SCALAR = b"cnumpy._core.multiarray\nscalar\n("


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (DTYPE % b"O8", "dtype 'O8'.*refused"),
        (DTYPE % b"V4", "dtype 'V4'.*refused"),
        (DTYPE % b"M8", "dtype 'M8'.*refused"),
        (b"cnumpy\ndtype\n(]K\x00K\x01tR", "dtype a list.*refused"),
        (b"cnumpy\ndtype\n()" + b"".join(b"q%c2\x86" % i for i in range(60)) + b"K\x00K\x01tR", "a tuple"),
        (b"cnumpy\ndtype\n(cnumpy\ndtype\nK\x00K\x01tR", "refused"),
        (FLOAT + ORDER, "holds a bare numpy dtype"),
        (FLOAT + b"(K\x03X\x01\x00\x00\x00Otb", "dtype of the pickle is malformed"),
        (FLOAT + b"Nb", "dtype of the pickle is malformed"),
        (SCALAR + FLOAT + b"C\x04abcdtR", "bytes are not those"),
        (SCALAR + FLOAT + b"K\x08tR", "bytes are not those"),
        (SCALAR + b"X\x02\x00\x00\x00f8C\x08abcdefghtR", "calls a scalar"),
        (EMPTY, "has no values"),
        (EMPTY + b"0N", "has no values"),
        (EMPTY + b"(K\x01K\x02\x85" + FLOAT + b"\x89C\x08abcdefghtb", "bytes are not those"),
        (EMPTY + b"(K\x01K\x01\x85" + FLOAT + b"\x89]tb", "bytes are not those"),
        (EMPTY + b"(K\x01J\xff\xff\xff\xff\x85" + DTYPE % b"i1" + b"\x89C\x00tb", "bytes are not those"),
        (EMPTY + b"(K\x01K\x00\x8a\x08" + b"\0" * 7 + b"\x20\x86" + FLOAT + b"\x89C\x00tb", "damaged"),
        (EMPTY + b"(K\x01K\x01\x85X\x01\x00\x00\x00O\x89]tb", "array of the pickle is malformed"),
        (EMPTY + (b"(K\x01K\x01\x85" + DTYPE % b"i1" + b"\x89C\x01atb") * 2, "changes a ndarray"),
        (EMPTY.replace(b"cnumpy\nndarray\n", b"ccollections\nCounter\n"), "calls a _reconstruct"),
        (b"cnumpy.core.multiarray\nfromstring\n)R", "fromstring, which is refused"),
        (b"cnumpy.core.numeric\n_frombuffer\n)R", "calls a frombuffer.*refused"),
        (BUFFER + b"C\x01a" + DTYPE % b"O8" + b"K\x01\x85U\x01CtR", "dtype 'O8'.*refused"),
        (BUFFER + b"C\x01aX\x02\x00\x00\x00i1K\x01\x85U\x01CtR", "calls a frombuffer.*refused"),
        (BUFFER + b"C\x01a" + DTYPE % b"i1" + b"K\x01\x85U\x01KtR", "calls a frombuffer.*refused"),
        (BUFFER + b"C\x01a" + FLOAT + b"K\x01\x85U\x01CtR", "bytes are not those"),
        (BUFFER + b"]" + FLOAT + b"K\x01\x85U\x01CtR", "bytes are not those"),
        (b"cnumpy\nload\n)R", "numpy.load, which is refused"),
        (b"ccollections\nCounter\n(]tR", "calls a counter"),
        (b"ccollections\ndefaultdict\n(cnumpy\ndtype\ntR", "calls a defaultdict"),
        (b"ccollections\ndefaultdict\n(cos\nsystem\ntR", "os.system, which is refused"),
        (b"ccollections\ndefaultdict\n(N}tR", "calls a defaultdict"),
        (b"c__builtin__\nint\n(K\x07tR", "calls a factory"),
        (b"c__builtin__\ndict\n", "holds a bare factory"),
    ],
)
def test_other_uses_of_the_names_of_numpy_are_refused(load, body, message):
    with pytest.raises(CheckpointError, match=message):
        load(b"\x80\x03" + body + b".")


def test_a_safetensors_file_is_told(tmp_path):
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"w": mx.ones((2, 2))})
    with pytest.raises(CheckpointError, match="is a safetensors file; read it with mlx.core.load"):
        load_torch_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "model.pth")  # MLX goes by the name unless it is told
    with pytest.raises(CheckpointError, match=r"mlx.core.load\(path, format='safetensors'\)"):
        load_torch_file(tmp_path / "model.pth")
    assert mx.load(str(tmp_path / "model.pth"), format="safetensors")["w"].shape == (2, 2)
