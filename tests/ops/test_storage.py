"""Sparse tensors in files: what goes in comes out, and a malformed file is refused."""

from __future__ import annotations

import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse.errors import CheckpointError, DTypeError
from mlxsparse.testing.adapt import from_numpy, to_numpy
from mlxsparse.testing.strategies import sites
from tests.numeric import poisoned

pytestmark = pytest.mark.usefixtures("device")


def same(x, y):
    assert x.coords.tolist() == y.coords.tolist() and x.dtype == y.dtype
    np.testing.assert_array_equal(to_numpy(x.feats), to_numpy(y.feats))
    for name in ("stride", "batch_size", "spatial_shape", "num_active", "capacity"):
        assert getattr(x, name) == getattr(y, name), name
    assert x.batch_counts.tolist() == y.batch_counts.tolist()
    assert x.key.fixed_capacity == y.key.fixed_capacity and x.key is not y.key


@given(
    case=sites(),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
    size=st.integers(3, 5),
    extra=st.integers(0, 3),
    fixed=st.booleans(),
)
def test_round_trip(tmp_path_factory, case, dtype, size, extra, fixed):
    path = tmp_path_factory.mktemp("round") / "x.anything"
    coords, feats = case
    x = from_numpy(coords, feats, dtype, batch_size=size, stride=(1, 2, 4))
    x = x.with_capacity(x.capacity + extra) if fixed else x
    ms.save(path, x)
    same(ms.load(str(path)), x)
    assert [p.name for p in path.parent.iterdir()] == ["x.anything"]


def test_padding_and_bounds(tmp_path):
    x = from_numpy([[0, 1, 2, 3], [1, 0, 0, 0]], [[1.0], [2.0]], spatial_shape=(2, 3, 4))
    ms.save(tmp_path / "x", poisoned(x, 3))
    y = ms.load(tmp_path / "x", manager=ms.CoordinateManager())
    assert y.num_active == 2 and y.capacity == 5 and y.spatial_shape == (2, 3, 4)
    assert y.feats.tolist() == [[1.0], [2.0], [0.0], [0.0], [0.0]]
    assert y.coords.tolist()[2:] == [[-1, 0, 0, 0]] * 3
    assert y.manager is not x.manager
    arrays = mx.load(str(tmp_path / "x"), format="safetensors")
    assert set(arrays) == {"coords", "feats", "batch_counts"}  # any safetensors reader opens it


def test_a_failed_write_leaves_what_was_there(tmp_path):
    x = from_numpy([[0, 0, 0, 0]], [[1.0]])
    ms.save(tmp_path / "x", x)
    with pytest.raises(CheckpointError, match="cannot write"):
        ms.save(tmp_path / "missing" / "x", x)
    with pytest.raises(CheckpointError, match="cannot write"):
        ms.save(tmp_path / "x" / "below", x)
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        ms.save(tmp_path / "folder", x)
    with pytest.raises(DTypeError, match="SparseTensor"):
        ms.save(tmp_path / "x", x.feats)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe': it is a device or a pipe"):
        ms.save(tmp_path / "pipe", x)
    (tmp_path / "pipe").unlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "x"]
    same(ms.load(tmp_path / "x"), x)


# --- malformed files --------------------------------------------------------------------------------------


def parts(tmp_path):
    """(header, body) of a good file."""
    path = tmp_path / "good"
    ms.save(path, from_numpy([[0, 0, 0, 0], [1, 2, 0, 0]], [[1.0, 2.0], [3.0, 4.0]]))
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def written(tmp_path, header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "bad"
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def meta(**changes):
    return lambda h, b: ({**h, "__metadata__": {**h["__metadata__"], **changes}}, b)


def entry(name, **changes):
    return lambda h, b: ({**h, name: {**h[name], **changes}}, b)


def without(name):
    return lambda h, b: ({k: v for k, v in h.items() if k != name}, b)


MALFORMED = {
    "other format": meta(format="pt"),
    "newer version": meta(version="2"),
    "no stride": lambda h, b: (
        {**h, "__metadata__": {k: v for k, v in h["__metadata__"].items() if k != "stride"}},
        b,
    ),
    "stride zero": meta(stride="[0, 1, 1]"),
    "stride text": meta(stride="three"),
    "stride deep": meta(stride="[" * 100_000),
    "batch size": meta(batch_size="3"),
    "huge batch size": meta(batch_size="1000000000000"),
    "negative rows": meta(active_rows="-1"),
    "too many rows": meta(active_rows="3"),
    "rows not whole": meta(active_rows="1.5"),
    "sites outside": meta(spatial_shape="[1, 1, 1]"),
    "metadata not text": meta(stride=[1, 1, 1]),
    "no metadata": without("__metadata__"),
    "no feats": without("feats"),
    "one array more": lambda h, b: ({**h, "more": h["feats"]}, b),
    "type": entry("feats", dtype="F64"),
    "coords of floats": entry("coords", dtype="F32"),
    "negative shape": entry("feats", shape=[-2, -2]),
    "huge shape": entry("feats", shape=[2**40, 2]),
    "shape is text": entry("feats", shape="22"),
    "past the end": entry("feats", data_offsets=[10**6, 10**6 + 16]),
    "three offsets": entry("feats", data_offsets=[0, 8, 16]),
    "entry is a number": lambda h, b: ({**h, "feats": 3}, b),
    "a list": lambda h, b: ([h], b),
    "not json": lambda h, b: (b"{", b),
    "not text": lambda h, b: (b"\xff\xfe", b),
    "truncated": lambda h, b: (h, b[:-1]),
    "duplicate sites": lambda h, b: (h, bytes(len(b))),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case, tmp_path):
    path = written(tmp_path, *MALFORMED[case](*parts(tmp_path)))
    with pytest.raises(CheckpointError, match="bad"):
        ms.load(path)


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 64, struct.pack("<Q", 2) + b"{}"])
def test_not_a_safetensors_file(data, tmp_path):
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(CheckpointError, match="bad"):
        ms.load(tmp_path / "bad")


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "x"
    ms.save(path, from_numpy([[0, 0, 0, 0]], [[1.0]]))
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            ms.load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="cannot read"):
        ms.load(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot write"):
        ms.save(str(tmp_path / "a\0b"), from_numpy([[0, 0, 0, 0]], [[1.0]]))


def test_threads_that_save_to_one_path(tmp_path):
    x = ms.SparseTensor(np.array([[0, 0, 0, z] for z in range(300)], np.int32), mx.ones((300, 4)))
    mx.eval(list(x))  # what a thread made lazily is that thread's

    def save(_):
        mx.set_default_device(mx.cpu)
        for _ in range(30):
            ms.save(tmp_path / "a.safetensors", x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))  # raises what a thread raised
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    (tmp_path / "b.safetensors").symlink_to(tmp_path / "a.safetensors")
    ms.save(tmp_path / "b.safetensors", x)
    assert (tmp_path / "b.safetensors").is_symlink() and ms.load(tmp_path / "a.safetensors").num_active == 300
