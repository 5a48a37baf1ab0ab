"""Writing: LAS files from arrays, refusals, and files that appear whole or not at all."""

from __future__ import annotations

import os
import struct

import laspy
import numpy as np
import pytest

from mlxsparse.errors import PointCloudError
from mlxsparse.io.cloud import PointCloud, atomic_write
from mlxsparse.io.las import write_las
from mlxsparse.io.points import check_output, read_points, write_labels


def small_las(path, **fields):
    points = np.array([[1.5, -2.25, 3.001], [1000.0, 2000.0, -0.5]])
    write_las(path, points, fields)
    return points


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_write_las_round_trip(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    fields = {"intensity": np.array([7, 65535]), "classification": np.array([0, 255], np.uint8),
              "red": np.array([1, 2], np.uint16), "height": np.array([0.5, -0.25], np.float32)}
    points = small_las(path, **fields)
    cloud = read_points(path)
    np.testing.assert_allclose(cloud.points, points, rtol=0, atol=5e-4)
    for name, values in fields.items():
        np.testing.assert_array_equal(cloud.fields[name], values)
    assert cloud.fields["height"].dtype == np.float32
    write_labels(cloud, np.array([9, 8]), path)  # extra dimensions survive too
    np.testing.assert_array_equal(read_points(path).fields["height"], fields["height"])


def test_write_las_without_points(tmp_path):
    write_las(tmp_path / "a.las", np.zeros((0, 3)), {"classification": np.zeros(0, np.uint8)})
    assert read_points(tmp_path / "a.las").points.shape == (0, 3)


@pytest.mark.parametrize(("points", "fields", "options", "message"), [
    (np.zeros((2, 2)), {}, {}, r"\(N, 3\) is needed"),
    (np.full((2, 3), np.nan), {}, {}, "NaN"),
    (np.array([[0, 0, 0], [1e7, 0, 0]]), {}, {"scale": 1e-3}, "larger scale"),
    (np.zeros((2, 3)), {"intensity": np.zeros(3)}, {}, r"\(2,\) is needed"),
    (np.zeros((2, 3)), {"intensity": np.array([0, 65536])}, {}, "does not fit"),
    (np.zeros((2, 3)), {"intensity": np.array([0.0, 0.5])}, {}, "does not fit"),
    (np.zeros((2, 3)), {"classification": np.array([0, 256])}, {}, "0 to 255"),
    (np.zeros((2, 3)), {"classification": np.array([0, 2.7])}, {}, "whole numbers 0 to 255"),
    (np.zeros((2, 3)), {"classification": np.array([0, np.nan])}, {}, "whole numbers 0 to 255"),
    (np.zeros((2, 3)), {"classification": np.array([0, np.inf])}, {}, "whole numbers|0 to 255"),
    (np.zeros((2, 3)), {"classification": np.array(["a", "b"])}, {}, "numbers are needed"),
    (np.zeros((2, 3)), {"return_number": np.full(2, 20, np.uint8)}, {}, "0 to 15"),
    (np.zeros((2, 3)), {"synthetic": np.full(2, 2, np.uint8)}, {}, "0 to 1"),
    (np.zeros((2, 3)), {}, {"scale": -0.001}, "above 0"),
    (np.zeros((2, 3)), {}, {"scale": np.nan}, "scale must be finite"),
    (np.zeros((2, 3)), {}, {"scale": (1, 1)}, "scale must be finite, one number or three"),
    (np.zeros((2, 3)), {}, {"offset": (0, 0, np.inf)}, "offset must be finite"),
    (np.zeros((2, 3)), {"note": np.array(["a", "b"])}, {}, "extra dimension"),
])
def test_write_las_refuses(points, fields, options, message, tmp_path):
    with pytest.raises(PointCloudError, match=message):
        write_las(tmp_path / "a.las", points, fields, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("labels", [np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2),
                                    np.array([True, False]), 0])
def test_labels_of_another_shape_or_type(labels, tmp_path):
    small_las(tmp_path / "a.las")
    cloud = read_points(tmp_path / "a.las")
    with pytest.raises(PointCloudError, match="labels has"):
        write_labels(cloud, labels, tmp_path / "b.las")
    assert os.listdir(tmp_path) == ["a.las"]


def test_write_labels_keeps_the_format(tmp_path):
    small_las(tmp_path / "a.las")
    cloud = read_points(tmp_path / "a.las")
    with pytest.raises(PointCloudError, match="keeps the format"):
        write_labels(cloud, np.zeros(2, int), tmp_path / "b.pcd")
    with pytest.raises(PointCloudError, match="read_points"):
        write_labels(PointCloud(np.zeros((2, 3))), np.zeros(2, int), tmp_path / "e.las")
    assert sorted(os.listdir(tmp_path)) == ["a.las"]


def test_extended_records_are_kept_and_copc_ones_dropped(tmp_path):
    import laspy

    small_las(tmp_path / "a.las")
    data = laspy.read(tmp_path / "a.las")
    data.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("survey", 7, "notes", b"kept"),
                                             laspy.VLR("copc", 1000, "octree", b"dropped")])
    data.write(tmp_path / "b.las")
    write_labels(read_points(tmp_path / "b.las"), np.array([1, 2]), tmp_path / "c.las")
    assert [v.record_data_bytes() for v in laspy.read(tmp_path / "c.las").evlrs] == [b"kept"]
    content = (tmp_path / "c.las").read_bytes()
    (tmp_path / "d.las").write_bytes(content[:-1])
    with pytest.raises(PointCloudError, match="ends early"):
        read_points(tmp_path / "d.las")


def test_failed_write_leaves_nothing_and_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.las"
    small_las(path)
    before = path.read_bytes()
    cloud = read_points(path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PointCloudError, match="No space left"):
            write_labels(cloud, np.array([1, 1]), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.las"]
    with pytest.raises(KeyError), atomic_write(path) as stream:
        stream.write(b"half")
        raise KeyError
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.las"]
    with pytest.raises(PointCloudError, match="cannot write"):
        write_labels(cloud, np.array([1, 1]), tmp_path / "absent" / "a.las")
    (tmp_path / "folder.las").mkdir()
    with pytest.raises(PointCloudError, match="cannot write"):
        write_labels(cloud, np.array([1, 1]), tmp_path / "folder.las")
    assert sorted(os.listdir(tmp_path)) == ["a.las", "folder.las"]


def test_write_through_a_link_and_permissions(tmp_path):
    small_las(tmp_path / "a.las")
    (tmp_path / "link.las").symlink_to(tmp_path / "a.las")
    cloud = read_points(tmp_path / "link.las")
    write_labels(cloud, np.array([4, 4]), tmp_path / "link.las")
    assert (tmp_path / "link.las").is_symlink()
    assert read_points(tmp_path / "a.las").fields["classification"].tolist() == [4, 4]
    (tmp_path / "plain").touch()
    assert (tmp_path / "a.las").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_classes_in_a_float_type_are_written_where_they_are_whole(tmp_path):
    write_las(tmp_path / "a.las", np.zeros((2, 3)), {"classification": np.array([2.0, 255.0])})
    assert read_points(tmp_path / "a.las").fields["classification"].tolist() == [2, 255]


@pytest.mark.parametrize("name", ["", "header", "xyz", "x", "points", "vlrs"])
def test_names_that_laspy_has_itself_are_refused(name, tmp_path):
    with pytest.raises(PointCloudError, match="rename"):
        write_las(tmp_path / "a.las", np.zeros((2, 3)), {name: np.ones(2, np.uint16)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("version", "kind"), [("1.3", 4), ("1.4", 9)])
def test_waveforms_in_the_file_are_not_lost(version, kind, tmp_path):
    header = laspy.LasHeader(version=version, point_format=kind)
    data = laspy.LasData(header)
    data.X = np.arange(20)
    data.write(tmp_path / "a.las")
    raw = bytearray((tmp_path / "a.las").read_bytes())
    start = len(raw)
    struct.pack_into("<Q", raw, 227, start)  # where the waveforms are, and that they are here
    struct.pack_into("<H", raw, 6, 2)
    if version == "1.4":
        struct.pack_into("<QI", raw, 235, start, 1)
    raw += struct.pack("<H16sHQ32s", 0, b"LASF_Spec", 65535, 100, b"waves") + bytes(100)
    (tmp_path / "a.las").write_bytes(raw)
    cloud = read_points(tmp_path / "a.las")
    for refuse in (check_output, write_labels):
        for name in ("b.las", "b.laz"):
            with pytest.raises(PointCloudError, match="holds waveforms, which would be lost"):
                refuse(cloud, np.zeros(20, int), tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.las"]
    write_labels(cloud, np.zeros(20, int), tmp_path / "b.npy")
