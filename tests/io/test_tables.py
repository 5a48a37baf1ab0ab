"""KITTI and nuScenes .bin, .npy, .npz and text: columns, labels, damage."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from mlxsparse.cli.info import describe
from mlxsparse.errors import PointCloudError
from mlxsparse.io.cloud import PointCloud
from mlxsparse.io.points import check_output, output_format, read_points, write_labels
from tests.data_paths import data_path


def scan(columns, n=40):
    """A scan of n points whose fifth column, if any, is a ring number."""
    chance = np.random.default_rng(columns)
    table = chance.normal(0, 20, (n, columns)).astype(np.float32)
    if columns > 3:
        table[:, 3] = chance.random(n)
    if columns == 5:
        table[:, 4] = chance.integers(0, 32, n)
    return table


# --- .bin -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "n", "name", "kind"),
    [
        (4, 41, "a.bin", "kitti"),
        (4, 40, "a.bin", "kitti"),
        (5, 41, "a.bin", "nuscenes"),
        (5, 40, "a.bin", "nuscenes"),
        (5, 40, "a.pcd.bin", "nuscenes"),
    ],
)
def test_kitti_and_nuscenes_are_told_apart(columns, n, name, kind, tmp_path):
    table = scan(columns, n)
    table.tofile(tmp_path / name)
    cloud = read_points(tmp_path / name)
    assert cloud.format == kind and len(cloud) == n
    np.testing.assert_array_equal(cloud.points, table[:, :3].astype(np.float64))
    np.testing.assert_array_equal(cloud.fields["intensity"], table[:, 3])
    assert ("ring" in cloud.fields) == (columns == 5)


@pytest.mark.parametrize("beside", [True, False])
def test_semantic_kitti_labels(beside, tmp_path):
    (tmp_path / "velodyne").mkdir()
    (tmp_path / "labels").mkdir()
    scan(4).tofile(tmp_path / "velodyne" / "000007.bin")
    place = (tmp_path / "velodyne" if beside else tmp_path / "labels") / "000007.label"
    (np.arange(40, dtype=np.uint32) | 3 << 16).tofile(place)
    cloud = read_points(tmp_path / "velodyne" / "000007.bin")
    assert cloud.fields["label"].tolist() == list(range(40)) and set(cloud.fields["instance"]) == {3}
    write_labels(cloud, np.arange(40)[::-1], tmp_path / "out.label")
    assert np.fromfile(tmp_path / "out.label", "<u4").tolist() == [3 << 16 | i for i in range(40)][::-1]
    with pytest.raises(PointCloudError, match="no room for a class"):
        write_labels(cloud, np.arange(40), tmp_path / "out.bin")
    with pytest.raises(PointCloudError, match="0 to 65535"):
        write_labels(cloud, np.full(40, -1), tmp_path / "out2.label")
    place.write_bytes(b"12345678")
    with pytest.raises(PointCloudError, match="40 points need 160"):
        read_points(tmp_path / "velodyne" / "000007.bin")


def test_bytes_that_are_no_scan(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(scan(4).tobytes()[:-1])
    with pytest.raises(PointCloudError, match="ends early"):
        read_points(path)
    for rows, value, told in ((1, 1e9, "1 of 40 .* beyond 1000000"), (21, np.nan, "21 of 40 .* not finite")):
        table = scan(4)
        table[:rows, 1] = value
        table[-1] = np.inf if rows == 1 else 0  # one without a position is not what is wrong
        table.tofile(path)
        with pytest.raises(PointCloudError, match=f"no KITTI or nuScenes.*{told}"):
            read_points(path)
    path.write_bytes(b"x" * 160)  # read as float32, far away
    with pytest.raises(PointCloudError, match="no KITTI or nuScenes"):
        read_points(path)


# --- .npy and .npz ----------------------------------------------------------------------------------------


def test_npy(tmp_path):
    table = scan(5)
    np.save(tmp_path / "a.npy", table)
    cloud = read_points(tmp_path / "a.npy")
    assert list(cloud.fields) == ["x", "y", "z", "column_4", "column_5"]
    write_labels(cloud, np.arange(40), tmp_path / "b.npy")
    again = read_points(tmp_path / "b.npy")
    np.testing.assert_array_equal(again.points, cloud.points)
    assert again.fields["column_4"].tobytes() == cloud.fields["column_4"].tobytes()
    assert again.fields["label"].tolist() == list(range(40))
    write_labels(again, np.zeros(40, int), tmp_path / "b.npy")
    assert not read_points(tmp_path / "b.npy").fields["label"].any()
    for bad in (np.zeros(5), np.zeros((4, 2)), np.zeros((4, 3), "U2"), np.zeros(3, [("x", "f4")])):
        np.save(tmp_path / "c.npy", bad)
        with pytest.raises(PointCloudError, match="c.npy"):
            read_points(tmp_path / "c.npy")
    np.save(tmp_path / "c.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(PointCloudError, match="Python objects"):
        read_points(tmp_path / "c.npy")


def test_npz(tmp_path):
    points, other = scan(3), np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "a.npz", xyz=points, pose=other, labels=np.arange(40), name=np.array("a scan"))
    cloud = read_points(tmp_path / "a.npz")
    np.testing.assert_array_equal(cloud.points, points)
    assert cloud.fields["label"].tolist() == list(range(40))
    write_labels(cloud, np.ones(40, int), tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as after:
        assert set(after.files) == {"xyz", "pose", "label", "name"} and str(after["name"]) == "a scan"
        assert after["xyz"].tobytes() == points.tobytes() and after["pose"].tobytes() == other.tobytes()
        assert after["label"].tolist() == [1] * 40
    np.savez(tmp_path / "c.npz", a=points, b=points)
    with pytest.raises(PointCloudError, match="surely the points"):
        read_points(tmp_path / "c.npz")


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays_that_end_early_or_are_damaged(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    (np.save if suffix == ".npy" else np.savez_compressed)(path, scan(3))
    content = np.frombuffer(path.read_bytes(), np.uint8)
    chance = np.random.default_rng(2)
    for size in chance.integers(8, len(content) - 1, 20):
        path.write_bytes(content[:size].tobytes())
        with pytest.raises(PointCloudError):
            read_points(path)
    for _ in range(60):
        damaged = content.copy()
        damaged[chance.integers(0, len(content), 2)] = chance.integers(0, 256, 2)
        path.write_bytes(damaged.tobytes())
        try:
            cloud = read_points(path)
        except PointCloudError:
            continue
        assert cloud.points.shape == (len(cloud), 3)


# --- text -------------------------------------------------------------------------------------------------

TEXTS = {
    "blanks.xyz": ("1 2.50 3\n4 5 -6e0\n", ["x", "y", "z"]),
    "header.csv": ("X,Y,Z,Intensity\n1,2.50,3,7\n4,5,-6e0,9\n", ["x", "y", "z", "intensity"]),
    "comment.txt": ("# made by hand\n//x y z class\n1 2.50 3 7\n4 5 -6e0 9\n", ["x", "y", "z", "label"]),
    "count.pts": ("2\n1 2.50 3 -100 7 8 9\n4 5 -6e0 -3 7 8 9\n", "x y z intensity red green blue".split()),
    "colour.asc": ("1;2.50;3;7;8;9\n\n4;5;-6e0;0;0;255\n", "x y z red green blue".split()),
    "many.xyz": ("1 2.50 3 4 5\n4 5 -6e0 4 5", ["x", "y", "z", "column_4", "column_5"]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name, tmp_path):
    text, names = TEXTS[name]
    path = tmp_path / name
    path.write_text(text)
    cloud = read_points(path)
    assert cloud.format == "text" and list(cloud.fields) == names
    np.testing.assert_array_equal(cloud.points, [[1, 2.5, 3], [4, 5, -6]])
    write_labels(cloud, np.array([5, 6]), path)
    again = read_points(path)
    assert (
        again.fields["label"].tolist() == [5, 6] and "2.50" in path.read_text() and "-6e0" in path.read_text()
    )
    for field in set(names) - {"label"}:
        np.testing.assert_array_equal(again.fields[field], cloud.fields[field])
    write_labels(again, np.array([1, 0]), path)
    assert read_points(path).fields["label"].tolist() == [1, 0]
    assert len(read_points(path).fields) == len({*names, "label"})


def test_text_that_is_damaged(tmp_path):
    path = tmp_path / "a.xyz"
    for text, words in (
        ("1 2 3\n4 5\n", "damaged or ends early"),
        ("1 2 3\n4 five 6\n", "damaged or ends early"),
        ("3\n1 2 3\n4 5 6\n", "says it has 3 points"),
        ("hello\n", "none of"),
        ("1 2\n3 4\n", "none of"),
        ("# x y z\n", "none of"),
    ):
        path.write_text(text)
        with pytest.raises(PointCloudError, match=words):
            read_points(path)


# --- any format -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["pdal_data.xyz", "trimesh_points_cloudcompare.xyz", "spconv_benchmark-pc.npz"]
)
def test_real_files_keep_every_point(name, tmp_path):
    cloud = read_points(data_path("clouds", name))
    labels = np.arange(len(cloud)) % 5
    for suffix in (cloud.path[cloud.path.rindex(".") :], ".ply", ".npy"):
        write_labels(cloud, labels, tmp_path / f"out{suffix}")
        again = read_points(tmp_path / f"out{suffix}")
        np.testing.assert_array_equal(again.points, cloud.points)
        np.testing.assert_array_equal(again.fields["label"], labels)


def test_output_formats():
    assert output_format("laz", "a.las") == "las" and output_format("laz", "a") == "laz"
    assert output_format("kitti", "a.label") == "label" and output_format("pcd", "a.ply") == "ply"
    for source, path, words in (
        ("laz", "a.pcd", "keeps the format"),
        ("laz", "a.foo", "says no format"),
        ("kitti", "a.bin", "no room"),
        ("kitti", "a", "no room"),
        ("", "a.las", "read_points"),
    ):
        with pytest.raises(PointCloudError, match=words):
            output_format(source, path)
    with pytest.raises(PointCloudError, match="read_points"):
        write_labels(PointCloud(np.zeros((2, 3))), np.zeros(2, int), "a.ply")


def test_mislabelled(tmp_path):
    np.save(tmp_path / "a.npy", scan(3))
    for suffix in (".las", ".pcd", ".ply", ".bin", ".npz", ".xyz"):
        path = (tmp_path / "a.npy").rename(tmp_path / f"a{suffix}")
        with pytest.raises(PointCloudError, match=f"extension {suffix} says"):
            read_points(path)
        path.rename(tmp_path / "a.npy")


# --- defects that were found ------------------------------------------------------------------------------


def cloud_file(path, n=6):
    """A cloud without labels in the format that the name says."""
    points = np.arange(3.0 * n).reshape(n, 3)
    if path.suffix == ".npz":
        np.savez(path, points=points)
    else:
        np.save(path, points)
    return read_points(path)


@pytest.mark.parametrize("source", ["a.npy", "a.npz"])
@pytest.mark.parametrize("extension", [".npy", ".npz", ".ply"])
@pytest.mark.parametrize(
    "labels", [np.full(6, 2**32 + 5), np.full(6, 3_000_000_000, np.uint32), np.full(6, -(2**31) - 1)]
)
def test_labels_that_32_bits_do_not_hold_are_refused_not_wrapped(source, extension, labels, tmp_path):
    cloud = cloud_file(tmp_path / source)
    if extension == ".npz" and cloud.format != "npz":
        return
    out = tmp_path / f"out{extension}"
    for write in (write_labels, lambda c, v, p: check_output(c, v.tolist(), p)):
        with pytest.raises(PointCloudError, match="labels reach from"):
            write(cloud, labels, out)
    assert not out.exists()
    edges = np.array([-(2**31), 2**31 - 1] * 3)
    write_labels(cloud, edges, out)
    assert read_points(out).fields["label"].tolist() == edges.tolist()


@pytest.mark.parametrize("header", [b"", b"x,y,z,label\n", b"// x,y,z,label\n"])
def test_a_byte_order_mark_hides_neither_a_row_nor_the_header(header, tmp_path):
    text = b"\xef\xbb\xbf" + header + b"1,2,3,4\n5,6,7,8\n9,10,11,12\n"
    (tmp_path / "a.csv").write_bytes(text)
    cloud = read_points(tmp_path / "a.csv")
    assert cloud.points[:, 0].tolist() == [1, 5, 9]
    assert list(cloud.fields) == ["x", "y", "z", "label" if header else "intensity"]
    write_labels(cloud, np.array([7, 8, 9]), tmp_path / "b.csv")
    written = (tmp_path / "b.csv").read_bytes()
    assert written.startswith(b"\xef\xbb\xbf") and written.count(b"\xef\xbb\xbf") == 1
    assert read_points(tmp_path / "b.csv").fields["label"].tolist() == [7, 8, 9]


def test_two_names_of_one_field_do_not_hide_the_header(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z,class,label\n1,2,3,4,5\n")
    fields = read_points(tmp_path / "a.csv").fields
    assert fields["class"].tolist() == [4] and fields["label"].tolist() == [5]


@pytest.mark.parametrize("extension", [".npy", ".ply", ".npz"])
def test_an_array_named_x_does_not_replace_the_positions(extension, tmp_path):
    points = np.arange(18.0).reshape(6, 3)
    np.savez(tmp_path / "n.npz", points=points, x=np.full(6, 99.0), label=np.zeros(6, int))
    cloud = read_points(tmp_path / "n.npz")
    assert cloud.fields["x"].tolist() == points[:, 0].tolist()
    write_labels(cloud, np.arange(6), tmp_path / f"out{extension}")
    np.testing.assert_array_equal(read_points(tmp_path / f"out{extension}").points, points)


def test_moved_points_are_written_where_they_are_now(tmp_path):
    cloud = cloud_file(tmp_path / "a.npy")
    cloud.points = cloud.points + 1
    write_labels(cloud, np.arange(6), tmp_path / "b.npy")
    np.testing.assert_array_equal(read_points(tmp_path / "b.npy").points, cloud.points)


@pytest.mark.parametrize("extension", [".npy", ".ply"])
def test_fields_named_by_parts_of_xyz_stay(extension, tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z,xy,yz,xyz\n1,2,3,4,5,6\n7,8,9,10,11,12\n")
    cloud = read_points(tmp_path / "a.csv")
    assert {"xy", "yz", "xyz"} <= {line.split()[0] for line in describe(cloud)[1:]}
    write_labels(cloud, np.arange(2), tmp_path / f"b{extension}")
    fields = read_points(tmp_path / f"b{extension}").fields
    assert [fields[name].tolist() for name in ("xy", "yz", "xyz")] == [[4, 10], [5, 11], [6, 12]]


@pytest.mark.parametrize(
    ("header", "words"), [("höhe,b", "'höhe'.*ASCII"), ("gps time,gps_time", "'gps time' and 'gps_time'")]
)
def test_names_that_ply_cannot_have_are_refused_before_the_work(header, words, tmp_path):
    (tmp_path / "a.csv").write_text(f"x,y,z,{header}\n1,2,3,4,5\n", encoding="utf-8")
    cloud = read_points(tmp_path / "a.csv")
    with pytest.raises(PointCloudError, match=words):
        check_output(cloud, [0, 1], tmp_path / "b.ply")
    with pytest.raises(PointCloudError, match=words):
        write_labels(cloud, np.zeros(1, int), tmp_path / "b.ply")
    check_output(cloud, [0, 1], tmp_path / "b.csv")


def test_structured_arrays_with_other_than_numbers(tmp_path):
    kinds = [("x", "f8"), ("y", "f8"), ("z", "f8"), ("name", "U4"), ("box", "f4", (2, 3)), ("when", "M8[s]")]
    np.save(tmp_path / "a.npy", np.zeros(5, kinds))
    said = "\n".join(describe(read_points(tmp_path / "a.npy")))
    assert "<U4" in said and "float32 x 2 x 3" in said and "datetime64[s]" in said
    for kind in (("x", "U4"), ("x", "f8", (2,)), ("x", "c16"), ("x", [("a", "f8")])):
        np.save(tmp_path / "b.npy", np.zeros(5, [kind, *kinds[1:]]))
        with pytest.raises(PointCloudError, match="field 'x' is .*one number a point"):
            read_points(tmp_path / "b.npy")


def test_label_beside_other_labels_is_refused(tmp_path):
    points, label = np.zeros((4, 3)), np.arange(4)
    np.savez(tmp_path / "a.npz", points=points, label=label, labels=label[::-1])
    with pytest.raises(PointCloudError, match="both label and labels"):
        read_points(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", points=points, label=label, labels=label)
    assert read_points(tmp_path / "a.npz").fields["label"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("row", ["1,2,3,", "1 2 3 # note", "1 2 3 a", "1 2", "l.0 2 3", "1.5", "2 points"])
def test_leading_rows_that_are_not_clean_are_refused_not_dropped(row, tmp_path):
    apart = "," if "," in row else " "
    rows = "".join(apart.join(numbers) + "\n" for numbers in ("456", "789"))
    for before, line in (("", 1), ("# by hand\n\n", 3)):
        (tmp_path / "a.xyz").write_text(f"{before}{row}\n{rows}")
        with pytest.raises(PointCloudError, match=rf"a.xyz', line {line}, '{row}'.*put # before it"):
            read_points(tmp_path / "a.xyz")


@pytest.mark.parametrize("row", ["", "2", "# 1 2 3", "// 1 2", "lon lat height", "Scan 3 of street", "z y x"])
def test_leading_lines_that_are_no_rows_stay_allowed(row, tmp_path):
    (tmp_path / "a.xyz").write_text(f"{row}\n4 5 6\n7 8 9\n")
    assert len(read_points(tmp_path / "a.xyz")) == 2


def test_arrays_named_as_arguments_of_savez(tmp_path):
    extra = {name: np.arange(6.0) for name in ("file", "args", "allow_pickle", "stream")}
    points = np.arange(18.0).reshape(6, 3)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, values in {"points": points, **extra}.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values)
    write_labels(read_points(tmp_path / "a.npz"), np.arange(6), tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as after:
        assert set(after.files) == {"points", "label", *extra} and after["label"].dtype == np.int32
        assert all(after[name].tobytes() == values.tobytes() for name, values in extra.items())


def test_a_label_file_that_cannot_be_read(tmp_path, monkeypatch):
    scan(4).tofile(tmp_path / "a.bin")
    (tmp_path / "a.label").write_bytes(bytes(160))

    def fail(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(PointCloudError, match="a.label'.*Input/output error.*move it away"):
        read_points(tmp_path / "a.bin")


def test_a_member_of_an_npz_that_is_no_array(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.eye(3), height=np.arange(3.0))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "not an array")
    cloud = read_points(tmp_path / "a.npz")
    assert len(cloud) == 3 and "height" in cloud.fields and "readme.txt" not in cloud.fields
