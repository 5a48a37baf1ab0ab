"""Archives whose pickle describes other things than tensors: what comes out is plain, or nothing does."""

from __future__ import annotations

import pickle
import zipfile

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
    "value", [set(), {1, "a", (2, 3)}, frozenset(), frozenset({1.5, None}), b"", b"\x00\xff bytes"], ids=repr
)
def test_sets_and_bytes_at_the_protocol_of_torch_save(load, value, protocol):
    found = load(pickle.dumps([value, value], protocol))
    assert found == [value, value] and type(found[0]) is type(value)


@pytest.mark.parametrize(
    "body",
    [
        b"c__builtin__\nset\n(K\x01K\x02t\x85R",  # a tuple, where pickle writes a list
        b"c__builtin__\nset\n)R",
        b"c__builtin__\nset\n]]a\x85R",  # a list as a member
        b"c__builtin__\nfrozenset\n]c__builtin__\nset\na\x85R",
        b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R",  # 2 GB of zeros
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R",
        b"c_codecs\nencode\nX\x01\x00\x00\x00a\x85R",
        b"c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R",  # no latin1
    ],
)
def test_other_calls_of_the_same_names_are_refused(load, body):
    with pytest.raises(CheckpointError, match=r"refused|damaged|as a key"):
        load(b"\x80\x02" + body + b".")
