"""PCD files made by hand: encodings, padding, colour, damage."""

from __future__ import annotations

import os
import struct
import sys

import numpy as np
import pytest

from mlxsparse.errors import PointCloudError
from mlxsparse.io.points import read_points, write_labels


def same(a, b):
    """Equal to the bit, NaN payloads included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


HEADER = """# .PCD v0.7
VERSION 0.7
FIELDS x y z _ intensity moments _
SIZE 4 4 8 1 2 4 2
TYPE F F F U U F I
COUNT 1 1 1 3 1 2 1
WIDTH 2
HEIGHT 2
VIEWPOINT 0 0 0 1 0 0 0
POINTS 4
DATA """
DTYPE = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f8"), ("_3", "u1", 3), ("intensity", "<u2"),
                  ("moments", "<f4", 2), ("_6", "<i2")])


def table():
    chance = np.random.default_rng(3)
    data = np.frombuffer(chance.bytes(4 * DTYPE.itemsize), DTYPE).copy()
    data["x"], data["y"], data["z"] = [1, 2, np.nan, 4], [-1e-30, 3, np.nan, 7], [0.1, 1e300, np.nan, -5]
    data["moments"] = chance.standard_normal((4, 2))
    return data


def pcd_file(path, encoding):
    data = table()
    if encoding == "ascii":
        rows = [" ".join(str(v) for name in DTYPE.names for v in np.atleast_1d(row[name])) for row in data]
        path.write_bytes((HEADER + "ascii\n" + "\n".join(rows)).encode())
    elif encoding == "binary":
        path.write_bytes((HEADER + "binary\n").encode() + data.tobytes())
    else:
        plain = b"".join(np.ascontiguousarray(data[name]).tobytes() for name in DTYPE.names)
        # One literal run per 32 bytes: a valid LZF stream that does not compress.
        runs = [plain[i : i + 32] for i in range(0, len(plain), 32)]
        packed = b"".join(bytes([len(run) - 1]) + run for run in runs)
        sizes = struct.pack("<II", len(packed), len(plain))
        path.write_bytes((HEADER + "binary_compressed\n").encode() + sizes + packed)
    return path


@pytest.mark.parametrize("encoding", ["ascii", "binary", "binary_compressed"])
def test_pcd_padding_counts_and_nan(encoding, tmp_path):
    """Padding fields, fields of several values, NaN rows, float64: read, labelled, and read again."""
    cloud = read_points(pcd_file(tmp_path / "a.pcd", encoding))
    data = table()
    np.testing.assert_array_equal(cloud.points, np.stack([data["x"], data["y"], data["z"]], axis=1))
    assert list(cloud.fields) == ["x", "y", "z", "intensity", "moments"]
    for name in ("intensity", "moments"):
        assert same(cloud.fields[name], np.ascontiguousarray(data[name]))
    write_labels(cloud, np.array([3, -1, 2, 7]), tmp_path / "b.pcd")
    again = read_points(tmp_path / "b.pcd")
    assert again.source.encoding == encoding
    assert again.fields["label"].dtype == np.int32 and again.fields["label"].tolist() == [3, -1, 2, 7]
    assert same(again.points, cloud.points) and same(again.fields["moments"], cloud.fields["moments"])
    header = b"\n".join(again.source.lines).decode()
    assert "FIELDS x y z _ intensity moments _ label\n" in header
    assert "COUNT 1 1 1 3 1 2 1 1\n" in header and "HEIGHT 2\n" in header and "# .PCD v0.7\n" in header


def test_pcd_ascii_digits_are_kept(tmp_path):
    path = tmp_path / "a.pcd"
    path.write_bytes(b"VERSION .5\r\nCOLUMNS x y z label\r\nWIDTH 2\r\nHEIGHT 1\r\nDATA ascii\r\n"
                     b"1.00000001e-20\t2.5  nan 9\r\n\r\n0.1 -0 7 8\r\nleftover\r\n")
    cloud = read_points(path)
    np.testing.assert_array_equal(cloud.points, np.float32([[1.00000001e-20, 2.5, np.nan], [0.1, 0, 7]]))
    write_labels(cloud, np.array([4, 5], np.uint8), path)
    text = path.read_text().splitlines()
    assert text[-2:] == ["1.00000001e-20 2.5 nan 4", "0.1 -0 7 5"]
    assert text[1] == "COLUMNS x y z label"
    assert read_points(path).fields["label"].tolist() == [4, 5]


def test_pcd_one_row_and_no_rows(tmp_path):
    path = tmp_path / "a.pcd"
    floats = struct.pack("<3f", 1, 2, 3)
    for encoding, one in (("ascii", b"1 2 3\n"), ("binary", floats),
                          ("binary_compressed", struct.pack("<II", 13, 12) + b"\x0b" + floats)):
        for count, body in ((1, one), (0, b"\0" * 8 if "compressed" in encoding else b"")):
            path.write_bytes(b"FIELDS x y z\nWIDTH %d\nDATA %s\n" % (count, encoding.encode()) + body)
            cloud = read_points(path)
            assert cloud.points.tolist() == [[1, 2, 3]] * count
            write_labels(cloud, np.full(count, 6), path)
            again = read_points(path)
            assert again.points.tolist() == [[1, 2, 3]] * count
            assert again.fields["label"].tolist() == [6] * count


def test_pcd_packed_colour(tmp_path):
    """0xAARRGGBB as an unsigned number, as float bits, and as the whole number that ascii writers print."""
    path = tmp_path / "a.pcd"
    bits = 0xFF102030
    packed = float(np.uint32(0x00102030).view(np.float32))
    for kind, token in (("U", str(bits)), ("F", str(bits)), ("F", repr(packed))):
        path.write_text(f"FIELDS x y z rgb\nTYPE F F F {kind}\nWIDTH 1\nDATA ascii\n0 0 0 {token}\n")
        fields = read_points(path).fields
        assert [fields[c].item() for c in ("red", "green", "blue")] == [0x10, 0x20, 0x30]
        assert "rgb" not in fields
    header = b"FIELDS x y z rgba\nTYPE F F F U\nWIDTH 1\nDATA binary\n"
    path.write_bytes(header + struct.pack("<3fI", 0, 0, 0, bits))
    assert read_points(path).fields["alpha"].item() == 255


@pytest.mark.parametrize(("text", "message"), [
    ("FIELDS x y\nWIDTH 1\nDATA ascii\n1 2\n", "no field 'z'"),
    ("FIELDS x y z\nWIDTH 1\n", "before its DATA line"),
    ("VERSION 0.7\nWIDTH 1\nDATA ascii\n1 2 3\n", "no FIELDS"),
    ("FIELDS x y z\nDATA ascii\n1 2 3\n", "neither POINTS nor WIDTH"),
    ("FIELDS x y z\nWIDTH 2\nHEIGHT 2\nPOINTS 3\nDATA ascii\n1 2 3\n", "WIDTH x HEIGHT is 4"),
    ("FIELDS x y z\nWIDTH -1\nDATA ascii\n", "whole number"),
    ("FIELDS x y z\nSIZE 4 4\nWIDTH 1\nDATA ascii\n1 2 3\n", "2 SIZE"),
    ("FIELDS x y z\nSIZE 4 4 3\nWIDTH 1\nDATA ascii\n1 2 3\n", "types"),
    ("FIELDS x y z\nTYPE F F Q\nWIDTH 1\nDATA ascii\n1 2 3\n", "types"),
    ("FIELDS x y z\nCOUNT 1 1 0\nWIDTH 1\nDATA ascii\n1 2\n", "counts"),
    ("FIELDS x y z z\nWIDTH 1\nDATA ascii\n1 2 3 4\n", "twice"),
    ("FIELDS x y z\nWIDTH 1\nDATA zip\n", "DATA zip"),
    ("FIELDS x y z\nWIDTH 1\nDATA\n", "DATA"),
    ("FIELDS x y z\nCOLOUR red\nWIDTH 1\nDATA ascii\n1 2 3\n", "unknown entry"),
    ("FIELDS x y z\nWIDTH 2\nDATA ascii\n1 2 3\n", "2 points, 1 rows"),
    ("FIELDS x y z\nWIDTH 1\nDATA ascii\n1 2\n", "ascii rows"),
    ("FIELDS x y z\nWIDTH 1\nDATA ascii\n1 2 three\n", "ascii rows"),
    ("FIELDS x y z l\nTYPE F F F U\nSIZE 4 4 4 1\nWIDTH 1\nDATA ascii\n1 2 3 300\n", "ascii rows"),
    ("FIELDS x y z\nWIDTH 999999999999\nDATA binary\n1234", "ends early"),
    ("FIELDS x y z\nCOUNT 1 1 999999999999\nWIDTH 1\nDATA binary\n1234", "too large"),
    ("FIELDS x y z\nWIDTH 1\nDATA binary_compressed\n1234", "sizes of the compressed body"),
    ("FIELDS x y z\nWIDTH 1\nDATA binary_compressed\n\x04\0\0\0\x0d\0\0\0abcd", "says 13 bytes"),
    ("FIELDS x y z\nWIDTH 1\nDATA binary_compressed\n\x05\0\0\0\x0c\0\0\0abcd", "ends early"),
    ("FIELDS x y z\nWIDTH 1\nDATA binary_compressed\n\x04\0\0\0\x0c\0\0\0\x7fbcd", "damaged"),
])
def test_pcd_headers_and_bodies_that_do_not_fit(text, message, tmp_path):
    path = tmp_path / "a.pcd"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PointCloudError, match=message):
        read_points(path)


def test_pcd_labels_that_do_not_fit(tmp_path):
    cloud = read_points(pcd_file(tmp_path / "c.pcd", "binary"))
    with pytest.raises(PointCloudError, match="keeps the format"):
        write_labels(cloud, np.zeros(4, int), tmp_path / "d.laz")
    for wrong in (2**32, -(2**31) - 1):
        with pytest.raises(PointCloudError, match="32 bits"):
            write_labels(cloud, np.full(4, wrong), tmp_path / "d.pcd")
    assert os.listdir(tmp_path) == ["c.pcd"]


def test_a_missing_library_is_no_damage(tmp_path, monkeypatch):
    path = pcd_file(tmp_path / "c.pcd", "binary_compressed")
    monkeypatch.setitem(sys.modules, "lzf", None)
    with pytest.raises(PointCloudError, match="needs the library 'lzf'") as caught:
        read_points(path)
    assert "damaged" not in str(caught.value)


def test_a_position_of_several_values(tmp_path):
    (tmp_path / "a.pcd").write_text("FIELDS x y z\nCOUNT 2 1 1\nWIDTH 1\nDATA ascii\n1 2 3 4\n")
    with pytest.raises(PointCloudError, match="a.pcd': the field 'x' has 2 values a point"):
        read_points(tmp_path / "a.pcd")


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        ("r g b i", "red green blue intensity"),
        ("R G B I", "red green blue intensity"),
        ("r g q", "r g q"),  # r may be a range
        ("r g b blue", "r g b blue"),
        ("i I intensity", "i I intensity"),
        ("r R g b", "r R g b"),
        ("r g b rgb", "r g b red green blue"),
    ],
)
def test_short_names_of_colours_are_the_usual_ones(names, fields, tmp_path):
    count = len(names.split())
    values = " ".join(str(10 + i) for i in range(count))
    header = f"FIELDS x y z {names}\nWIDTH 1\nDATA ascii\n1 2 3 {values}\n"
    (tmp_path / "a.pcd").write_text(header)
    cloud = read_points(tmp_path / "a.pcd")
    assert list(cloud.fields)[3:] == fields.split()
    write_labels(cloud, np.array([5]), tmp_path / "b.pcd")
    written = (tmp_path / "b.pcd").read_text()
    assert f"FIELDS x y z {names} label" in written and f"1 2 3 {values} 5" in written
