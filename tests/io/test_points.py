"""Reading, sniffing and labelling point-cloud files, real and hand-made."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from mlxsparse.cli.info import describe
from mlxsparse.errors import PointCloudError
from mlxsparse.io.cloud import atomic_write
from mlxsparse.io.points import check_output, read_points, sniff_format, write_labels
from tests.data_paths import data_path

REAL = ["pcl_room_scan1.pcd", "pcl_office1_nan.pcd", "pcl_bunny_ascii.pcd", "pcl_curve_close_binary.pcd",
        "pcl_samp11_utm.pcd", "open3dml_fragment_rgb.pcd", "laspy_simple.las", "laspy_autzen_trim.laz",
        "laspy_vegetation_1_3.las", "pdal_1.2-with-color.copc.laz"]
SMALL = ["pcl_bunny_ascii.pcd", "pcl_curve_close_binary.pcd", "pcl_samp11_utm.pcd", "laspy_simple.las",
         "pdal_1.2-with-color.copc.laz", "laspy_autzen_trim.laz"]


def manifest(name):
    entries = json.loads(data_path("clouds", "MANIFEST.json").read_text())
    return next(entry for entry in entries if entry["file"] == name)


def same(a, b):
    """Equal to the bit, NaN payloads included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# --- real files -------------------------------------------------------------------------------------------


def test_every_supported_file_of_the_manifest_is_tested():
    entries = json.loads(data_path("clouds", "MANIFEST.json").read_text())
    names = [entry["file"] for entry in entries]
    assert sorted(REAL) == sorted(name for name in names if Path(name).suffix in (".pcd", ".las", ".laz"))


@pytest.mark.parametrize("name", REAL)
def test_manifest_facts(name):
    entry = manifest(name)
    facts = entry["facts"]
    cloud = read_points(data_path("clouds", name))
    assert cloud.points.dtype == np.float64 and cloud.points.shape == (entry["points"], 3)
    assert cloud.format == Path(name).suffix[1:] and Path(cloud.path).name == name
    assert all(len(values) == len(cloud) for values in cloud.fields.values())
    valid = np.isfinite(cloud.points).all(axis=1)
    assert np.count_nonzero(~valid) == facts.get("nan", 0)
    points = cloud.points[valid]
    for key, reduced in (("min", points.min(axis=0)), ("max", points.max(axis=0))):
        if key in facts:
            np.testing.assert_allclose(reduced, facts[key], rtol=0, atol=5.1e-4)
    for key, origin in (("floor_unique", 0.0), ("floor_unique_f64", 0.0),
                        ("origin_shifted_unique_f64", points.min(axis=0))):
        for size, voxels in facts.get(key, {}).items():
            assert len(np.unique(np.floor((points - origin) / float(size)), axis=0)) == voxels, (key, size)
    for size, voxels in facts.get("trunc_unique", {}).items():
        assert len(np.unique(np.trunc(points / float(size)), axis=0)) == voxels


def test_las_laz_and_copc_hold_the_same_cloud():
    plain = read_points(data_path("clouds", "laspy_simple.las"))
    copc = read_points(data_path("clouds", "pdal_1.2-with-color.copc.laz"))
    order = [np.lexsort((*c.points.T, c.fields["gps_time"])) for c in (plain, copc)]
    np.testing.assert_allclose(plain.points[order[0]], copc.points[order[1]], rtol=0, atol=0.0051)
    for name in ("intensity", "classification", "red", "green", "blue", "return_number", "number_of_returns"):
        np.testing.assert_array_equal(plain.fields[name][order[0]], copc.fields[name][order[1]])


def test_pcd_colour_and_normals():
    cloud = read_points(data_path("clouds", "open3dml_fragment_rgb.pcd"))
    assert list(cloud.fields) == ["x", "y", "z", "red", "green", "blue", "normal_x", "normal_y", "normal_z",
                                  "curvature"]
    assert cloud.fields["red"].dtype == np.uint8 and cloud.fields["red"].std() > 10
    lengths = np.linalg.norm([cloud.fields[f"normal_{axis}"] for axis in "xyz"], axis=0)
    np.testing.assert_allclose(lengths, 1, atol=1e-3)


@pytest.mark.parametrize("name", REAL)
def test_labels_round_trip_and_the_rest_is_kept(name, tmp_path):
    cloud = read_points(data_path("clouds", name))
    labels = np.arange(len(cloud)) % 11
    target = tmp_path / f"out{Path(name).suffix}"
    write_labels(cloud, labels, target)
    assert os.listdir(tmp_path) == [target.name]
    again = read_points(target)
    assert same(again.points, cloud.points) and again.format == cloud.format
    label = "label" if cloud.format == "pcd" else "classification"
    np.testing.assert_array_equal(again.fields[label], labels)
    assert set(again.fields) == {*cloud.fields, label}
    for field, values in cloud.fields.items():
        assert field == label or same(again.fields[field], values), field
    before, after = cloud.source, again.source
    if cloud.format == "pcd":
        assert after.encoding == before.encoding
        keys = (b"WIDTH", b"HEIGHT", b"VIEWPOINT", b"POINTS", b"VERSION", b"#")
        lines = [[line for line in source.lines if line.startswith(keys)] for source in (before, after)]
        assert lines[0] == lines[1]
    else:
        assert same(after.header.scales, before.header.scales)
        assert same(after.header.offsets, before.header.offsets)
        assert after.header.point_format.id == before.header.point_format.id
        assert after.header.version == before.header.version
        assert after.header.creation_date == before.header.creation_date
        assert after.header.generating_software == before.header.generating_software
        kept = [v for v in before.header.vlrs if v.user_id != "copc"]
        assert [v.record_data_bytes() for v in after.header.vlrs] == [v.record_data_bytes() for v in kept]


def test_writing_twice_replaces_the_labels_and_over_the_source_is_allowed(tmp_path):
    for name in ("pcl_samp11_utm.pcd", "pcl_bunny_ascii.pcd", "laspy_simple.las"):
        path = tmp_path / name
        shutil.copyfile(data_path("clouds", name), path)
        original = read_points(path)
        for shift in (0, 1):
            cloud = read_points(path)
            write_labels(cloud, (np.arange(len(cloud)) + shift) % 5, path)
        again = read_points(path)
        assert same(again.points, original.points)
        label = "label" if again.format == "pcd" else "classification"
        np.testing.assert_array_equal(again.fields[label], (np.arange(len(again)) + 1) % 5)
        assert len(again.fields) == len({*original.fields, label})


@pytest.mark.parametrize("name", SMALL)
def test_files_that_end_early(name, tmp_path):
    content = data_path("clouds", name).read_bytes()
    size = len(content)
    record = {"laspy_simple.las": 34, "pcl_curve_close_binary.pcd": 12}.get(name, 1)
    # Two of the files go on with bytes that nothing uses.
    if name == "pcl_curve_close_binary.pcd":
        size = content.index(b"DATA binary\n") + 12 + 110 * 12
    if name == "pcl_samp11_utm.pcd":
        body = content.index(b"DATA binary_compressed\n") + 23
        size = body + 8 + int.from_bytes(content[body : body + 4], "little")
    if name == "pcl_bunny_ascii.pcd":  # without the last value of the last row
        size = content.rstrip().rindex(b" ") + 1
    path = tmp_path / name
    for length in {1, 4, 100, 226, 227, 375, 400, size // 3, size // 2, size - 1000, size - 2 * record,
                   size - record, size - 1}:
        path.write_bytes(content[:length])
        with pytest.raises(PointCloudError):
            read_points(path)


def test_las_labels_have_five_bits_in_old_formats(tmp_path):
    cloud = read_points(data_path("clouds", "laspy_simple.las"))
    labels = np.full(len(cloud), 31)
    write_labels(cloud, labels, tmp_path / "a.las")
    labels[3] = 32
    with pytest.raises(PointCloudError, match="point format 3 stores classes 0 to 31"):
        write_labels(cloud, labels, tmp_path / "b.las")
    copc = read_points(data_path("clouds", "pdal_1.2-with-color.copc.laz"))
    write_labels(copc, np.full(len(copc), 255), tmp_path / "c.laz")
    assert (read_points(tmp_path / "c.laz").fields["classification"] == 255).all()
    for wrong in (256, -1):
        with pytest.raises(PointCloudError, match="0 to 255"):
            write_labels(copc, np.full(len(copc), wrong), tmp_path / "d.laz")
    assert sorted(os.listdir(tmp_path)) == ["a.las", "c.laz"]


def test_extension_chooses_las_compression(tmp_path):
    cloud = read_points(data_path("clouds", "laspy_simple.las"))
    labels = np.zeros(len(cloud), np.uint8)
    write_labels(cloud, labels, tmp_path / "a.laz")
    write_labels(cloud, labels, tmp_path / "b.LAS")
    write_labels(cloud, labels, tmp_path / "c")
    kinds = [sniff_format((tmp_path / name).read_bytes()[:4096]) for name in ("a.laz", "b.LAS", "c")]
    assert kinds == ["laz", "las", "las"]
    assert same(read_points(tmp_path / "a.laz").points, read_points(tmp_path / "c").points)


@pytest.mark.parametrize(("source", "name", "words"), [
    ("laspy_simple.las", "a.pcd", ("LAS", "PCD")), ("laspy_simple.las", "a.laz", ("LAS", "LAZ")),
    ("laspy_autzen_trim.laz", "a.las", ("LAZ", "LAS")), ("pcl_bunny_ascii.pcd", "a.las", ("PCD", "LAS")),
])
def test_extension_that_contradicts_the_content(source, name, words, tmp_path):
    path = tmp_path / name
    shutil.copyfile(data_path("clouds", source), path)
    with pytest.raises(PointCloudError, match="extension") as caught:
        read_points(path)
    assert all(word in str(caught.value) for word in words)
    path.rename(tmp_path / "unnamed.data")
    assert len(read_points(tmp_path / "unnamed.data"))


def test_damaged_real_files_raise_point_cloud_errors(tmp_path):
    chance = np.random.default_rng(0)
    for name in ("laspy_simple.las", "pdal_1.2-with-color.copc.laz", "pcl_bunny_ascii.pcd",
                 "pcl_samp11_utm.pcd"):
        content = np.frombuffer(data_path("clouds", name).read_bytes(), np.uint8)
        path = tmp_path / "file"
        for _ in range(60):
            damaged = content.copy()
            places = chance.integers(0, 375 if chance.random() < 0.7 else len(content), 3)
            damaged[places] = chance.integers(0, 256, 3)
            path.write_bytes(damaged.tobytes())
            try:
                cloud = read_points(path)
            except PointCloudError:
                continue
            assert cloud.points.shape == (len(cloud), 3)


# --- files that are no point clouds -----------------------------------------------------------------------


def test_missing_directory_empty_unknown(tmp_path):
    with pytest.raises(PointCloudError, match="no such file"):
        read_points(tmp_path / "absent.las")
    with pytest.raises(PointCloudError, match="directory"):
        read_points(tmp_path)
    (tmp_path / "empty.las").touch()
    with pytest.raises(PointCloudError, match="empty"):
        read_points(tmp_path / "empty.las")
    (tmp_path / "text.las").write_text("hello\n")
    with pytest.raises(PointCloudError, match="none of LAS, LAZ, PCD"):
        read_points(tmp_path / "text.las")


@pytest.mark.parametrize("library", ["laspy", "lazrs", "lzf"])
def test_missing_library_says_what_to_install(library, tmp_path, monkeypatch):
    name = "pcl_room_scan1.pcd" if library == "lzf" else "laspy_simple.las"
    path = data_path("clouds", name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PointCloudError, match=r"pip install 'mlxsparse\[io\]'"):
        read_points(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_refused(tmp_path):
    pipe = tmp_path / "a.xyz"
    os.mkfifo(pipe)
    (tmp_path / "link.xyz").symlink_to(pipe)
    cloud = read_points(data_path("clouds", "laspy_simple.las"))
    for path in (pipe, tmp_path / "link.xyz", Path(os.devnull)):
        with pytest.raises(PointCloudError, match="copy it to a file first"):
            read_points(path)
        with pytest.raises(PointCloudError, match="a device or a pipe"), atomic_write(path):
            pass
    pipe.rename(tmp_path / "a.ply")
    for write in (write_labels, lambda c, v, p: check_output(c, v.tolist(), p)):
        with pytest.raises(PointCloudError, match="a.ply': it is a device or a pipe"):
            write(cloud, np.zeros(len(cloud), int), tmp_path / "a.ply")
    assert (tmp_path / "a.ply").is_fifo() and len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("stem", ["a" * 251, "a" + "\u00e4" * 125])
def test_names_as_long_as_the_system_allows(stem, tmp_path):
    cloud = read_points(data_path("clouds", "laspy_simple.las"))
    labels = np.arange(len(cloud)) % 3
    write_labels(cloud, labels, tmp_path / f"{stem}.npy")
    assert os.listdir(tmp_path) == [f"{stem}.npy"]
    for write in (write_labels, lambda c, v, p: check_output(c, [0, 1], p)):
        with pytest.raises(PointCloudError, match="cannot write"):
            write(cloud, labels, tmp_path / f"{stem}aa.npy")


def test_temporary_files_are_told_by_the_name_of_their_target(tmp_path):
    with atomic_write(tmp_path / "checkpoint.safetensors") as stream:
        stream.write(b"1")
        assert len(list(tmp_path.glob(".checkpoint.safetensors.*.tmp"))) == 1


@pytest.mark.parametrize("mark", ["# ", "// "])
def test_more_comment_than_is_looked_at_first(mark, tmp_path):
    for lines, length in ((3000, 3), (60, 200), (1, 9000)):
        comments = f"{mark}{'-' * length}\n" * lines
        (tmp_path / "a.xyz").write_text(f"{comments}1 2 3\n{comments if lines == 1 else ''}")
        if lines > 1:
            assert len(read_points(tmp_path / "a.xyz")) == 1
        (tmp_path / "b.data").write_text(f"{comments}x y z\n{comments}1 2 3\n4 5 6\n")
        cloud = read_points(tmp_path / "b.data")
        assert cloud.format == "text" and len(cloud) == 2
        if mark == "# ":
            header = "FIELDS x y z\nWIDTH 1\nDATA ascii\n"
            (tmp_path / "c.pcd").write_text(f"{comments}{header}1 2 3\n")
            assert read_points(tmp_path / "c.pcd").points.tolist() == [[1, 2, 3]]
    (tmp_path / "d.xyz").write_text(comments)
    with pytest.raises(PointCloudError, match="none of"):
        read_points(tmp_path / "d.xyz")


@pytest.mark.parametrize("chunks", [0xFFFFFFFF, 0x7FFFFFFF, 110_001, 60_000])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_chunk_table_that_cannot_be_is_refused(chunks, streamed, tmp_path):
    content = bytearray(data_path("clouds", "laspy_autzen_trim.laz").read_bytes())
    start = int.from_bytes(content[96:100], "little")
    table = int.from_bytes(content[start : start + 8], "little")
    if streamed:  # the position of the table follows at the end
        content[start : start + 8] = b"\xff" * 8
        content += table.to_bytes(8, "little")
        (tmp_path / "whole.laz").write_bytes(content)
        assert len(read_points(tmp_path / "whole.laz")) == 110_000
    content[table + 4 : table + 8] = chunks.to_bytes(4, "little")
    (tmp_path / "a.laz").write_bytes(content)
    with pytest.raises(PointCloudError, match=f"a.laz': the file is damaged: its table says {chunks} chunks"):
        read_points(tmp_path / "a.laz")


@pytest.mark.parametrize("columns", [4, 5])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_points_of_a_scan_without_a_position_are_kept(columns, bad, tmp_path):
    table = np.random.default_rng(0).integers(0, 30, (40, columns)).astype("<f4")
    table[:, 3] += 0.5
    table[3, 1] = bad
    table[7] = bad
    table.tofile(tmp_path / "a.bin")
    cloud = read_points(tmp_path / "a.bin")
    assert cloud.format == {4: "kitti", 5: "nuscenes"}[columns]
    np.testing.assert_array_equal(cloud.points, table[:, :3].astype(float))
    assert "  points     40, 2 of them without a finite position" in describe(cloud)


@pytest.mark.parametrize("name", ["color", "colour", "Colors", "colours", "rgb"])
@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 3), (np.float32, 3), (np.uint8, 4)])
def test_a_table_of_colours_is_red_green_blue(name, dtype, channels, tmp_path):
    """As ScanNet's preprocessed scenes have it; written again as the table it was."""
    points, table = np.random.default_rng(0).random((9, 3)), np.arange(9 * channels).reshape(9, channels)
    arrays = {"coord": points, name: table.astype(dtype), "normal": points, "label": np.arange(9)}
    np.savez(tmp_path / "a.npz", **arrays)
    cloud = read_points(tmp_path / "a.npz")
    colours = ["red", "green", "blue", "alpha"][:channels]
    assert set(cloud.fields) == {"x", "y", "z", *colours, "normal", "label"}
    for i, channel in enumerate(colours):
        assert cloud.fields[channel].dtype == dtype and cloud.fields[channel].tolist() == table[:, i].tolist()
    write_labels(cloud, np.ones(9, int), tmp_path / "b.npz")
    written = np.load(tmp_path / "b.npz")
    assert set(written.files) == set(arrays) and written[name].dtype == dtype
    np.testing.assert_array_equal(written[name], table)
    write_labels(cloud, np.ones(9, int), tmp_path / "b.ply")
    assert set(colours) <= set(read_points(tmp_path / "b.ply").fields)
    np.savez(tmp_path / "c.npz", red=np.zeros(9), **arrays)  # whose colours are ambiguous
    assert name in read_points(tmp_path / "c.npz").fields


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_leaves_its_permissions(mode, tmp_path):
    path, seen = tmp_path / "a.ply", []
    for content in (b"one", b"two"):
        with atomic_write(path) as stream:
            stream.write(content)
            seen += [p.stat().st_mode & 0o777 for p in tmp_path.glob(".*.tmp")]
        if content == b"one":
            plain = path.stat().st_mode & 0o777
            path.chmod(mode)
    assert path.read_bytes() == b"two" and path.stat().st_mode & 0o777 == mode
    assert seen == [plain, mode]  # while it is written, too
