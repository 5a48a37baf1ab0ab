"""Headers, separators and rows of text files, and what classes of other files become."""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.cli.main import main
from mlxsparse.errors import PointCloudError
from mlxsparse.io.points import check_output, read_points, write_labels
from mlxsparse.tasks.data import choose_settings, labels_of


def read(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    return read_points(tmp_path / "a.csv")


def labelled(tmp_path, text, label=7):
    cloud = read(tmp_path, text)
    write_labels(cloud, np.full(len(cloud), label), tmp_path / "b.csv")
    return (tmp_path / "b.csv").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "id,easting,northing,height\n1,500000.1,4649776.2,12.5\n",
        "Easting Northing Height Class\n1 2 3 4\n",
        "y,x,z\n1,2,3,4\n",
        "z y x x\n1 2 3 4\n",
        "\nu;v;w;q\n1;2;3;4\n",
    ],
)
def test_a_header_that_does_not_name_the_columns_is_refused(text, tmp_path):
    with pytest.raises(PointCloudError, match="names its columns .*# in front"):
        read(tmp_path, text)
    header = text.strip().split("\n", 1)[0]
    points = read(tmp_path, text.replace(header, f"# {header}")).points
    row = text.strip().split("\n")[-1].replace(";", " ").replace(",", " ")
    assert points[0].tolist() == [float(v) for v in row.split()[:3]]


@pytest.mark.parametrize(
    ("text", "fields", "point"),
    [
        ("x,y,z,class\n1 2 3 4\n", "x y z label", [1, 2, 3]),
        ("x y z class\n1,2,3,4\n", "x y z label", [1, 2, 3]),
        ("Z_m,Y_m,X_m\n1,2,3\n", "z y x", [3, 2, 1]),
        ("x [m];y [m];z (metres);i\n1;2;3;4\n", "x y z intensity", [1, 2, 3]),
        ("x y z class labels\n1 2 3 4 5\n", "x y z label labels", [1, 2, 3]),
        ("lon lat height\n1 2 3\n", "x y z", [1, 2, 3]),
    ],
)
def test_headers_that_name_the_columns(text, fields, point, tmp_path):
    cloud = read(tmp_path, text)
    assert list(cloud.fields) == fields.split() and cloud.points[0].tolist() == point


def test_intensity_comes_before_colours_in_a_pts(tmp_path):
    rows = "1 2 3 90 10 20 30\n1 2 4 91 11 21 31\n"
    assert list(read(tmp_path, "2\n" + rows).fields)[3:] == ["intensity", "red", "green", "blue"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ("1 2 3 90 10 20 255\n1 2 4 91 11 21 255\n", "red green blue alpha"),
        ("1 2 3 0.5 10 20 30\n1 2 4 0.25 11 21 31\n", "intensity red green blue"),
        ("1 2 3 612 10 20 30\n1 2 4 91 11 21 31\n", "intensity red green blue"),
        ("1 2 3 90 10 20 -1\n1 2 4 91 11 21 7\n", "red green blue column_7"),
        ("1 2 3 0.5 10 20 -1\n", "column_4 column_5 column_6 column_7"),
    ],
)
def test_four_nameless_columns_after_the_position(rows, names, tmp_path):
    assert list(read(tmp_path, rows).fields)[3:] == names.split()


@pytest.mark.parametrize(
    "rows",
    [
        "1 2 3 12 128 127 255\n",  # one row: 255 may be blue
        "1 2 3 12 128 127 30\n1 2 4 13 120 120 40\n",  # intensity, red, green, blue
        "1 2 3 90 10 20 7\n1 2 4 91 11 21 7\n",  # red, green, blue and a class
        "1 2 3 12 255 255 255\n1 2 4 13 255 255 255\n",
    ],
)
def test_columns_that_may_be_colours_are_asked_for(rows, tmp_path):
    with pytest.warns(UserWarning, match="a.csv' does not say.*`# x y z intensity r g b`") as told:
        cloud = read(tmp_path, rows)
    assert list(cloud.fields)[3:] == ["column_4", "column_5", "column_6", "column_7"] and len(told) == 1
    assert "\n" not in str(told[0].message) and told[0].filename == __file__
    named = read(tmp_path, "# x y z intensity r g b\n" + rows)
    assert list(named.fields)[3:] == ["intensity", "red", "green", "blue"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 2 3\n# second scan\n7 8 9\n# end\n", "# x y z label\n1 2 3 7\n# second scan\n7 8 9 7\n# end\n"),
        ("x,y,z\n1,2,3\n# c\n// d\n7,8,9\n", "x,y,z,label\n1,2,3,7\n# c\n// d\n7,8,9,7\n"),
        ("1,2,3,\n#\n7,8,9, \n", "# x,y,z,label\n1,2,3,7,\n#\n7,8,9,7,\n"),
        ("x;y;z;\n1;2;3;\n7;8;9;\n", "x;y;z;label;\n1;2;3;7;\n7;8;9;7;\n"),
        ("x,y,label,z\n1,2,5,3,\n7,8,5,9,\n", "x,y,label,z\n1,2,7,3,\n7,8,7,9,\n"),
    ],
)
def test_comments_between_rows_and_closing_delimiters_stay(text, wanted, tmp_path):
    assert read(tmp_path, text).points.tolist() == [[1, 2, 3], [7, 8, 9]]
    assert labelled(tmp_path, text) == wanted
    assert labelled(tmp_path, wanted) == wanted


def test_rows_that_close_in_different_delimiters_are_refused(tmp_path):
    with pytest.raises(PointCloudError):
        read(tmp_path, "1,2,3,\n7,8,9;\n")


def test_comments_before_the_rows_alone_cost_no_look_at_each_row(tmp_path, monkeypatch):
    monkeypatch.setattr("mlxsparse.io.text._apart", None)
    text = "# x y z // made by hand\n1 2 3\n\n7 8 9\n"
    assert read(tmp_path, text).points.tolist() == [[1, 2, 3], [7, 8, 9]]
    for later in ("#", "// 1"):
        with pytest.raises(TypeError):
            read(tmp_path, text + later)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x,y,z,class\n1,2,3,car\n4,5,6,tree\n", "line 2, '1,2,3,car': column 4, 'car', is no number; leave"),
        ("1 2 3 # note\n", "line 1, '1 2 3 # note': column 4, '#', is no number"),
        ("1 2 3\n# c\n\n4 five 6\n", "line 4, '4 five 6': column 2, 'five', is no number"),
        ("1 2 3\n# c\n4 5\n", "line 3, '4 5', has 2 columns, the rows before it have 3"),
        ("1,2,3,\n4,5,\n", "line 2, '4,5,', has 2 columns"),
        ("x,y,z,i\n1,2,3,\n4,5,6,\n", "names its columns 'x, y, z, i': a row has 3"),
    ],
)
def test_the_column_that_is_no_number_is_named(text, words, tmp_path):
    with pytest.raises(PointCloudError, match=words):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ncols 4\nnrows 2\nxllcorner 0.5\nNODATA_value -9999\n1 2 3 4\n5 6 7 8\n", "an ESRI grid, a raster"),
        ("NROWS 2\nNCOLS 4\n1 2 3 4\n5 6 7 8\n", "an ESRI grid, a raster"),
        ("OFF\n2 0 0\n1 2 3\n4 5 6\n", "an OFF mesh"),
        ("# by hand\nCOFF\n2 0 0\n1 2 3 4 5 6 7\n", "an OFF mesh"),
        ("NOFF 2 0 0\n1 2 3 0 0 1\n", "an OFF mesh"),
        ("# vtk DataFile\nscan\nASCII\nDATASET POLYDATA\nPOINTS 2 float\n1 2 3 4 5 6\n", "a VTK file"),
        ("# o\no Cube\nv 1 2 3\nv -4 .5 6\nf 1 2 2\n", "a Wavefront OBJ mesh: save its vertices as"),
        ("solid a\n facet normal 0 0 1\n  outer loop\n   vertex 0 0 0\n", "an STL mesh: save its vertices"),
        ("solid a\nendsolid a\n", "an STL mesh"),
    ],
)
def test_other_texts_with_numbers_are_refused(text, words, tmp_path):
    with pytest.raises(PointCloudError, match=f"a.csv' is {words}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x\ty\tz\n1.0\t2.0\t3.0\n", "x\ty\tz\tlabel\n1.0\t2.0\t3.0\t7\n"),
        ("x\ty\tz\tlabel\n1.0\t2.0\t3.0\t9\n", "x\ty\tz\tlabel\n1.0\t2.0\t3.0\t7\n"),
        ("x y z  label i\n1  2 3   5  6\n", "x y z  label i\n1  2 3   7  6\n"),
        ("x,y,z\n1 2 3\n", "x,y,z,label\n1 2 3 7\n"),
        ("x; y; label; z\n1; 2; 5; 3\n", "x; y; label; z\n1; 2;7; 3\n"),
    ],
)
def test_separators_stay(text, wanted, tmp_path):
    assert labelled(tmp_path, text) == wanted


def test_arrays_of_an_npz_that_are_no_classes_stay(tmp_path):
    points, names = np.zeros((6, 3)), np.array(["ground", "car"])
    normals, when = np.ones((6, 3)), np.zeros(6, "M8[s]")
    np.savez(tmp_path / "a.npz", points=points, labels=names, normals=normals, when=when)
    cloud = read_points(tmp_path / "a.npz")
    assert set(cloud.fields) == {"x", "y", "z", "normals", "when"}
    write_labels(cloud, np.arange(6), tmp_path / "b.npz")
    kept = np.load(tmp_path / "b.npz")
    assert set(kept.files) == {"points", "labels", "normals", "when", "label"}
    assert kept["labels"].tolist() == names.tolist() and np.array_equal(kept["normals"], normals)
    with pytest.warns(UserWarning, match="left out of .*b.npy.*: labels"):
        write_labels(cloud, np.arange(6), tmp_path / "b.npy")
    assert np.array_equal(np.load(tmp_path / "b.npy")["normals"], normals)
    with pytest.warns(UserWarning) as told:
        write_labels(cloud, np.arange(6), tmp_path / "b.ply")
    assert "PLY holds one number a point: normals, when" in str(told[0].message) and len(told) == 2


def test_classes_of_an_npz_as_a_column_and_as_scores(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.zeros((4, 3)), labels=np.arange(4)[:, None])
    cloud = read_points(tmp_path / "a.npz")
    assert cloud.fields["label"].tolist() == [0, 1, 2, 3]
    write_labels(cloud, np.arange(4), tmp_path / "b.npz")
    assert set(np.load(tmp_path / "b.npz").files) == {"points", "label"}
    np.savez(tmp_path / "a.npz", points=np.zeros((4, 3)), label=np.eye(4), labels=np.arange(4))
    cloud = read_points(tmp_path / "a.npz")
    assert cloud.fields["label"].tolist() == [0, 1, 2, 3]
    with pytest.warns(UserWarning, match="left out of .*b.npy.*: label;"):
        write_labels(cloud, np.arange(4), tmp_path / "b.npy")
    np.savez(tmp_path / "a.npz", points=np.zeros((4, 3)), label=np.eye(4))
    cloud = read_points(tmp_path / "a.npz")
    assert "label" not in cloud.fields
    for refuse in (check_output, write_labels):
        with pytest.raises(PointCloudError, match=r"'label' of shape \(4, 4\)"):
            refuse(cloud, np.arange(4), tmp_path / "b.npz")


def test_the_classes_that_are_read_beside_a_bin_are_not_written_over(tmp_path, capsys):
    np.arange(28, dtype=np.float32).reshape(7, 4).tofile(tmp_path / "a.bin")
    (7 << 16 | np.arange(7, dtype=np.uint32) % 2).tofile(tmp_path / "a.label")
    before = (tmp_path / "a.label").read_bytes()
    assert read_points(tmp_path / "a.bin").details["labels"] == str(tmp_path / "a.label")
    weights = tmp_path / "w"
    options = "--epochs 1 --channels 4,8 --voxel-size 1 --no-relief"
    assert main(["train", str(tmp_path / "a.bin"), *options.split(), "-o", str(weights)]) == 0
    segment = ["segment", str(tmp_path / "a.bin"), "--weights", str(weights), "-o", str(tmp_path / "a.label")]
    assert main(segment) == 2 and "classes are read from" in capsys.readouterr().err
    assert (tmp_path / "a.label").read_bytes() == before


def test_names_of_a_pcd_that_begin_as_padding_does(tmp_path):
    header = "VERSION 0.7\nFIELDS x y z _ _1 _w _\nSIZE 4 4 4 1 4 4 1\nTYPE F F F U F F U\n"
    header += "COUNT 1 1 1 4 1 1 2\n"
    header += "WIDTH 1\nHEIGHT 1\nPOINTS 1\nDATA ascii\n1 2 3 0 0 0 0 8 9 0 0\n"
    (tmp_path / "a.pcd").write_text(header)
    cloud = read_points(tmp_path / "a.pcd")
    assert set(cloud.fields) == {"x", "y", "z", "_1", "_w"} and cloud.fields["_1"].tolist() == [8]
    write_labels(cloud, np.array([5]), tmp_path / "b.pcd")
    written = (tmp_path / "b.pcd").read_text()
    assert "FIELDS x y z _ _1 _w _ label" in written and written.endswith("1 2 3 0 0 0 0 8 9 0 0 5\n")


def test_arrays_of_an_input_or_class_that_have_another_length_are_told_of(tmp_path):
    points, path = np.zeros((6, 3)), str(tmp_path / "a.npz")
    odd = {"label": np.zeros(2, int), "intensity": np.ones(5, "f4"), "poses": np.eye(4)}
    np.savez(path, points=points, **odd, red=np.ones(6))
    said = "label (int64, shape (2,)), intensity (float32, shape (5,))"
    with pytest.warns(UserWarning) as told:
        cloud = read_points(path)
    assert len(told) == 1 and told[0].filename == __file__
    assert str(told[0].message) == f"{path!r}: left out, not one value for each of its 6 points: {said}"
    assert cloud.details["left out"] == said and set(cloud.fields) == {"x", "y", "z", "red"}
    with pytest.raises(PointCloudError, match=r"left out, not one value .* of its 6 points: label \(int64"):
        labels_of(cloud)
    cloud.fields["class"] = np.arange(6) % 2
    with pytest.raises(PointCloudError, match=r"no field 'intensity' .* intensity \(float32, shape \(5,\)\)"):
        choose_settings([cloud], fields=["intensity"])


@pytest.mark.filterwarnings("error")
def test_other_arrays_and_names_of_classes_are_not_told_of(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.zeros((6, 3)), labels=np.array(["car", "tree"]), poses=np.eye(4))
    assert "left out" not in read_points(tmp_path / "a.npz").details
