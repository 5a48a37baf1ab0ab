"""PLY: encodings, what is kept beside the label, damage."""

from __future__ import annotations

import numpy as np
import plyfile
import pytest

from mlxsparse.errors import PointCloudError
from mlxsparse.io.ply import write_ply
from mlxsparse.io.points import read_points, write_labels

KINDS = [
    ("x", "f8"),
    ("y", "f8"),
    ("z", "f4"),
    ("nx", "f4"),
    ("red", "u1"),
    ("scalar_Class", "f4"),
    ("id", "i4"),
]


def table(n=7):
    chance = np.random.default_rng(0)
    data = np.empty(n, KINDS)
    for name, kind in KINDS:
        data[name] = chance.integers(0, 200, n) if kind in ("u1", "i4") else chance.normal(0, 1e3, n)
    data["x"][2] = 512700.123456789
    return data


def ply_file(path, text, byte_order="<", extra=True):
    vertex = plyfile.PlyElement.describe(table(), "vertex", comments=["of the vertices"])
    faces = np.empty(2, [("vertex_indices", "O"), ("quality", "f4")])
    faces["vertex_indices"] = [np.array([0, 1, 2], "i4"), np.array([2, 3, 4, 5], "i4")]
    faces["quality"] = [0.5, 2]
    face = plyfile.PlyElement.describe(
        faces, "face", len_types={"vertex_indices": "u1"}, val_types={"vertex_indices": "i4"}
    )
    elements = [vertex, face] if extra else [vertex]
    plyfile.PlyData(elements, text, byte_order, ["made by hand"], ["survey 7"]).write(str(path))
    return path


def by_hand(text, order):
    """Two vertices with a list, without plyfile, which writes big endian numbers beside lists wrong."""
    kind = "ascii" if text else f"binary_{'little' if order == '<' else 'big'}_endian"
    axes = "".join(f"property double {axis}\n" for axis in "xyz")
    head = f"ply\nformat {kind} 1.0\nelement vertex 2\n{axes}property list uchar int near\nend_header\n"
    rows = [([0.5, 2, 4], [5, 6]), ([1, 3, 5], [])]
    if text:
        body = "".join(" ".join(map(str, [*xyz, len(near), *near])) + "\n" for xyz, near in rows).encode()
    else:
        body = b""
        for xyz, near in rows:
            parts = np.array(xyz, f"{order}f8"), np.uint8(len(near)), np.array(near, f"{order}i4")
            body += b"".join(part.tobytes() for part in parts)
    return head.encode() + body


@pytest.mark.parametrize(("text", "order"), [(True, "="), (False, "<"), (False, ">")])
def test_lists_of_vertices_are_kept(text, order, tmp_path):
    (tmp_path / "a.ply").write_bytes(by_hand(text, order))
    write_labels(read_points(tmp_path / "a.ply"), np.array([1, 2]), tmp_path / "b.ply")
    after = plyfile.PlyData.read(str(tmp_path / "b.ply"))["vertex"]
    assert [list(v) for v in after["near"]] == [[5, 6], []] and after["label"].tolist() == [1, 2]
    assert after["x"].tolist() == [0.5, 1] and after["z"].tolist() == [4, 5]
    kinds = {p.name: str(p) for p in after.properties}
    assert kinds["near"] == "property list uchar int near"


@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_is_kept_where_no_number_lies_beside_a_list(order, tmp_path):
    cloud = read_points(ply_file(tmp_path / "a.ply", False, order, extra=False))
    write_labels(cloud, np.arange(7), tmp_path / "b.ply")
    after = plyfile.PlyData.read(str(tmp_path / "b.ply"))
    assert after.byte_order == order and after["vertex"]["label"].tolist() == [*range(7)]


def test_fields_of_another_length_are_refused(tmp_path):
    for points, fields in ((np.zeros((3, 3)), {"a": np.zeros(2)}), (np.zeros((3, 2)), {})):
        with pytest.raises(PointCloudError, match="shape"):
            write_ply(tmp_path / "a.ply", points, fields)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "order"), [(True, "="), (False, "<"), (False, ">")])
def test_labels_round_trip_and_the_rest_is_kept(text, order, tmp_path):
    cloud = read_points(ply_file(tmp_path / "a.ply", text, order))
    data = table()
    np.testing.assert_array_equal(cloud.points, np.stack([data[a].astype(float) for a in "xyz"], axis=1))
    assert cloud.format == "ply" and cloud.fields["red"].dtype == np.uint8
    labels = np.array([0, 1, 2, 3, 4, 5, -1])
    write_labels(cloud, labels, tmp_path / "b.ply")
    write_labels(read_points(tmp_path / "b.ply"), labels, tmp_path / "c.ply")  # now the label is replaced
    for name in ("b.ply", "c.ply"):
        after = plyfile.PlyData.read(str(tmp_path / name))
        assert after["vertex"].data.dtype.names == (*data.dtype.names, "label")
        np.testing.assert_array_equal(after["vertex"]["label"], labels)
        for column in data.dtype.names:
            np.testing.assert_array_equal(after["vertex"][column], data[column])
        assert [list(f) for f in after["face"]["vertex_indices"]] == [[0, 1, 2], [2, 3, 4, 5]]
        assert (after.text, after.comments, after.obj_info) == (text, ["made by hand"], ["survey 7"])
        assert after.text or after.byte_order == "<"  # faces have numbers beside lists
        assert after["vertex"].comments == ["of the vertices"]


def test_write_ply_and_types_that_ply_lacks(tmp_path):
    points = np.arange(12.0).reshape(4, 3)
    fields = {
        "red": np.arange(4, dtype=np.uint8),
        "big": np.array([0, 1, 2, 2**40]),
        "label": np.arange(4),
        "half": np.ones(4, np.float16),
        "two words": np.ones(4, bool),
    }
    write_ply(tmp_path / "a.ply", points, fields)
    cloud = read_points(tmp_path / "a.ply")
    np.testing.assert_array_equal(cloud.points, points)
    assert cloud.fields["big"][3] == 2.0**40 and cloud.fields["label"].dtype == np.int32
    assert cloud.fields["half"].dtype == np.float32 and cloud.fields["two_words"].tolist() == [1] * 4


@pytest.mark.parametrize("text", [True, False])
def test_files_that_end_early(text, tmp_path):
    content = ply_file(tmp_path / "a.ply", text, extra=False).read_bytes()
    header = content.index(b"end_header") + 11
    for size in (3, 4, 30, header - 1, header, header + 9, len(content) - 3):
        (tmp_path / "b.ply").write_bytes(content[:size])
        with pytest.raises(PointCloudError, match="b.ply"):
            read_points(tmp_path / "b.ply")


def test_without_vertices_or_positions(tmp_path):
    head = "ply\nformat ascii 1.0\nelement {} 1\nproperty float x\nproperty float y\nend_header\n1 2\n"
    (tmp_path / "a.ply").write_text(head.format("vertex"))
    with pytest.raises(PointCloudError, match="no property 'z'"):
        read_points(tmp_path / "a.ply")
    (tmp_path / "a.ply").write_text(head.format("camera"))
    with pytest.raises(PointCloudError, match="no element 'vertex'; it has camera"):
        read_points(tmp_path / "a.ply")


def test_damaged_bytes_raise_point_cloud_errors(tmp_path):
    chance = np.random.default_rng(1)
    for text in (True, False):
        content = np.frombuffer(ply_file(tmp_path / "a.ply", text).read_bytes(), np.uint8)
        for _ in range(80):
            damaged = content.copy()
            damaged[chance.integers(0, len(content), 3)] = chance.integers(0, 256, 3)
            (tmp_path / "b.data").write_bytes(damaged.tobytes())
            try:
                cloud = read_points(tmp_path / "b.data")
            except PointCloudError:
                continue
            assert cloud.points.shape == (len(cloud), 3)


def test_integers_that_ply_cannot_hold_are_refused(tmp_path):
    points = np.zeros((2, 3))
    for high, kind in ((2**31 - 1, "i4"), (2**31, "f8"), (2**53, "f8")):
        write_ply(tmp_path / "a.ply", points, {"t": np.array([0, high])})
        t = plyfile.PlyData.read(str(tmp_path / "a.ply"))["vertex"]["t"]
        assert t.dtype == kind and t.tolist() == [0, high]
    for far in (2**53 + 1, -(2**53) - 1):
        with pytest.raises(PointCloudError, match="'t'"):
            write_ply(tmp_path / "b.ply", points, {"t": np.array([0, far])})
    np.savez(tmp_path / "a.npz", points=points, t=np.array([0, 2**60]))
    with pytest.raises(PointCloudError, match="'t'"):
        write_labels(read_points(tmp_path / "a.npz"), np.array([1, 2]), tmp_path / "b.ply")
    assert not (tmp_path / "b.ply").exists()


@pytest.mark.parametrize("value", ["300", "-1"])
def test_ascii_values_outside_their_type(value, tmp_path):
    head = "ply\nformat ascii 1.0\nelement vertex 1\n"
    properties = "".join(f"property float {axis}\n" for axis in "xyz") + "property uchar red\n"
    (tmp_path / "a.ply").write_text(f"{head}{properties}end_header\n1 2 3 {value}\n")
    with pytest.raises(PointCloudError, match="a.ply' is damaged"):
        read_points(tmp_path / "a.ply")


def test_a_position_that_is_a_list(tmp_path):
    head = "ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar float x\n"
    properties = "property float y\nproperty float z\nend_header\n"
    (tmp_path / "a.ply").write_text(f"{head}{properties}2 1 1 2 3\n")
    with pytest.raises(PointCloudError, match="a.ply': the property 'x' is a list"):
        read_points(tmp_path / "a.ply")


def test_long_floats_are_written_as_doubles(tmp_path):
    values = np.arange(6, dtype=np.longdouble).reshape(2, 3)
    np.save(tmp_path / "a.npy", values)
    write_labels(read_points(tmp_path / "a.npy"), np.array([1, 2]), tmp_path / "b.ply")
    assert plyfile.PlyData.read(str(tmp_path / "b.ply"))["vertex"]["x"].dtype == "f8"
    np.testing.assert_array_equal(read_points(tmp_path / "b.ply").points, values.astype(float))


def test_lists_of_an_input_or_class_are_told_of(tmp_path):
    head = "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
    lists = "property list uchar int label\nproperty list uchar int near\nend_header\n"
    (tmp_path / "a.ply").write_text(head + lists + "1 2 3 1 4 1 5\n")
    with pytest.warns(UserWarning, match=r"a.ply': left out, .* each of its 1 points: label \(a list\)$"):
        assert read_points(tmp_path / "a.ply").details["left out"] == "label (a list)"


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_comments_that_are_not_ascii_stay(coding, text, tmp_path):
    made = ply_file(tmp_path / "a.ply", text, extra=False).read_bytes()
    comment = "comment Auteur: Ren\u00e9 \x7fe9 \x7f".encode(coding)
    other = "obj_info \u00fcber".encode(coding)
    made = made.replace(b"comment of the vertices", comment + b"\ncomment of the vertices")
    made = made.replace(b"comment made by hand", b"comment \x7f41").replace(b"obj_info survey 7", other)
    (tmp_path / "a.ply").write_bytes(made)
    cloud = read_points(tmp_path / "a.ply")
    np.testing.assert_array_equal(cloud.points[:, 0], table()["x"])
    write_labels(cloud, np.arange(7), tmp_path / "b.ply")
    written = (tmp_path / "b.ply").read_bytes()
    header = written[: written.index(b"end_header")]
    for line in (comment, b"comment \x7f41", other):
        assert line + b"\n" in header
    again = read_points(tmp_path / "b.ply")
    np.testing.assert_array_equal(again.points, cloud.points)
    assert again.fields["label"].tolist() == [*range(7)]


@pytest.mark.parametrize("text", [True, False])
def test_a_header_of_any_length_with_comments_that_are_not_ascii(text, tmp_path):
    made = ply_file(tmp_path / "a.ply", text, extra=False).read_bytes()
    comments = "comment Ren\u00e9\n".encode() * 20_000 + b"comment of the vertices"
    (tmp_path / "a.ply").write_bytes(made.replace(b"comment of the vertices", comments))
    cloud = read_points(tmp_path / "a.ply")
    np.testing.assert_array_equal(cloud.points[:, 0], table()["x"])
    write_labels(cloud, np.arange(7), tmp_path / "b.ply")
    assert comments in (tmp_path / "b.ply").read_bytes()


def test_points_in_an_element_of_another_name(tmp_path):
    vertex = plyfile.PlyElement.describe(table(), "testing", comments=["of the tile"])
    camera = plyfile.PlyElement.describe(np.zeros(2, [("x", "f4"), ("y", "f4")]), "camera")
    plyfile.PlyData([camera, vertex]).write(str(tmp_path / "a.ply"))
    cloud = read_points(tmp_path / "a.ply")
    np.testing.assert_array_equal(cloud.points[:, 0], table()["x"])
    assert cloud.details["also holds"] == "camera (2)"
    write_labels(cloud, np.arange(7), tmp_path / "b.ply")
    after = plyfile.PlyData.read(str(tmp_path / "b.ply"))
    assert [e.name for e in after.elements] == ["camera", "testing"]
    assert after["testing"]["label"].tolist() == [*range(7)] and after["testing"].comments == ["of the tile"]
    again = plyfile.PlyElement.describe(table(), "training")
    plyfile.PlyData([vertex, again]).write(str(tmp_path / "a.ply"))
    with pytest.raises(PointCloudError, match="no element 'vertex'; it has testing, training"):
        read_points(tmp_path / "a.ply")


def test_short_names_of_colours_are_the_usual_ones(tmp_path):
    kinds = [(name, "f4" if name in "xyzi" else "u1") for name in "xyzrgbi"]
    data = np.array([(1, 2, 3, 10, 20, 30, 0.5), (4, 5, 6, 11, 21, 31, 0.25)], kinds)
    vertex = plyfile.PlyElement.describe(data, "vertex")
    plyfile.PlyData([vertex]).write(str(tmp_path / "a.ply"))
    cloud = read_points(tmp_path / "a.ply")
    assert list(cloud.fields) == ["x", "y", "z", "red", "green", "blue", "intensity"]
    assert cloud.fields["blue"].tolist() == [30, 31]
    write_labels(cloud, np.array([5, 6]), tmp_path / "b.ply")
    after = plyfile.PlyData.read(str(tmp_path / "b.ply"))["vertex"].data
    assert after.dtype.names == (*"xyzrgbi", "label")
