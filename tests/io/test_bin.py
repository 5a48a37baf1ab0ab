"""KITTI's and nuScenes' .bin: what surely is of another layout, and instance numbers beside labels."""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.cli.info import describe
from mlxsparse.errors import PointCloudError
from mlxsparse.io.points import check_output, read_points, write_labels
from mlxsparse.io.raw import read_bin


def scan(columns, n=100):
    """x, y, z around a sensor, intensity, seconds since the start, and more of the kind."""
    chance = np.random.default_rng(columns)
    table = chance.normal(0, 20, (n, columns)).astype("<f4")
    table[:, 3:] = chance.random((n, columns - 3))
    return table


@pytest.mark.parametrize(("columns", "n"), [(3, 100), (5, 100), (5, 101), (6, 100), (3, 105), (7, 100)])
def test_rows_of_other_widths_are_refused_without_their_names(columns, n, tmp_path):
    table = scan(columns, n)
    table.tofile(tmp_path / "a.bin")
    words = "no KITTI or nuScenes.*(intensities are not within|is no ring).*read_bin.path, .*numpy.save"
    with pytest.raises(PointCloudError, match=words):
        read_points(tmp_path / "a.bin")
    names = ["x", "y", "z", "intensity", "time", "a", "b"][:columns]
    cloud = read_bin(tmp_path / "a.bin", names)
    np.testing.assert_array_equal(cloud.points, table[:, :3].astype(float))
    assert list(cloud.fields) == names[3:] and "guessed" not in cloud.details and cloud.format == "bin"
    write_labels(cloud, np.arange(n), tmp_path / "b.npy")
    again = read_points(tmp_path / "b.npy")
    for i, name in enumerate(names):
        np.testing.assert_array_equal(again.fields[name], table[:, i])


def test_names_of_columns_in_another_order(tmp_path):
    table = scan(4, 5)
    table.tofile(tmp_path / "a.bin")
    cloud = read_bin(tmp_path / "a.bin", ("time", "z", "y", "x"))
    np.testing.assert_array_equal(cloud.points, table[:, :0:-1].astype(float))
    np.testing.assert_array_equal(cloud.fields["time"], table[:, 0])
    for wrong in (("x", "y", "z", "x"), ("x", "y", "i"), ()):
        with pytest.raises(PointCloudError, match="different names with x, y and z"):
            read_bin(tmp_path / "a.bin", wrong)
    with pytest.raises(PointCloudError, match="80 bytes are no whole number of points of 12 bytes"):
        read_bin(tmp_path / "a.bin", "xyz")


def test_a_layout_that_nothing_but_the_size_tells_is_said_to_be_guessed(tmp_path):
    scan(4).tofile(tmp_path / "a.bin")
    cloud = read_points(tmp_path / "a.bin")
    assert cloud.format == "kitti" and "guessed    the columns, by the size" in "\n".join(describe(cloud))
    np.zeros(100, "<u4").tofile(tmp_path / "a.label")
    assert "guessed" not in read_points(tmp_path / "a.bin").details
    rings = scan(5)
    rings[:, 4] = np.arange(100) % 32
    rings.tofile(tmp_path / "b.bin")
    assert "guessed" not in read_points(tmp_path / "b.bin").details


def test_an_odd_intensity_or_large_ones_are_no_other_layout(tmp_path):
    table = scan(4, 300)
    table[:, 3] *= 65535
    table[5, 3], table[6, 3] = -0.5, np.nan
    table.tofile(tmp_path / "a.bin")
    np.testing.assert_array_equal(read_points(tmp_path / "a.bin").fields["intensity"], table[:, 3])


@pytest.mark.filterwarnings("error")
def test_instances_stay_in_the_upper_bits(tmp_path):
    scan(4).tofile(tmp_path / "a.bin")
    instance = np.arange(100) * 600  # beyond 15 bits
    (instance.astype("<u4") << 16 | 5).tofile(tmp_path / "a.label")
    cloud = read_points(tmp_path / "a.bin")
    labels = np.arange(100) % 7
    write_labels(cloud, labels, tmp_path / "b.label")
    codes = np.fromfile(tmp_path / "b.label", "<u4")
    assert (codes & 0xFFFF).tolist() == labels.tolist() and (codes >> 16).tolist() == instance.tolist()
    cloud.fields["instance"] = instance.astype(np.float32)  # as a text file has it
    write_labels(cloud, labels, tmp_path / "c.label")
    assert (tmp_path / "c.label").read_bytes() == (tmp_path / "b.label").read_bytes()


@pytest.mark.parametrize("value", [-1, 65536, 0.5, np.nan])
def test_instances_that_do_not_fit_are_told_of(value, tmp_path):
    scan(4).tofile(tmp_path / "a.bin")
    cloud = read_points(tmp_path / "a.bin")
    cloud.fields["instance"] = np.full(100, value)
    check_output(cloud, [0, 1], tmp_path / "b.label")
    with pytest.warns(UserWarning, match="instance is left out of .*b.label.*0 to 65535") as told:
        write_labels(cloud, np.ones(100, int), tmp_path / "b.label")
    assert set(np.fromfile(tmp_path / "b.label", "<u4")) == {1}
    assert len(told) == 1 and told[0].filename == __file__


@pytest.mark.parametrize("columns", [4, 5])
@pytest.mark.parametrize("shift", [-40, -0.5, 0])  # decibels, -0.5 to 0.5, as usual
def test_labels_beside_say_the_width(columns, shift, tmp_path):
    table = scan(columns)
    table[:, 3:] += shift
    table.tofile(tmp_path / "a.bin")
    np.arange(100, dtype="<u4").tofile(tmp_path / "a.label")
    cloud = read_points(tmp_path / "a.bin")
    assert cloud.fields["label"].tolist() == list(range(100)) and "guessed" not in cloud.details
    np.testing.assert_array_equal(cloud.points, table[:, :3].astype(float))
    np.testing.assert_array_equal(cloud.fields["intensity"], table[:, 3])
    assert ("ring" in cloud.fields) == (columns == 5)
    if columns == 4:  # whose fifth numbers would all be rings
        table.reshape(-1)[4::5] = 1
        table.tofile(tmp_path / "a.bin")
        np.testing.assert_array_equal(read_points(tmp_path / "a.bin").fields["intensity"], table[:, 3])


def test_labels_beside_do_not_make_a_scan_of_other_bytes(tmp_path):
    (scan(4) * 1e9).tofile(tmp_path / "a.bin")
    np.zeros(100, "<u4").tofile(tmp_path / "a.label")
    with pytest.raises(PointCloudError, match="of 100 positions are beyond"):
        read_points(tmp_path / "a.bin")
    scan(4).tofile(tmp_path / "a.bin")
    np.zeros(99, "<u4").tofile(tmp_path / "a.label")
    with pytest.raises(PointCloudError, match="has 396 bytes; 100 points need 400"):
        read_points(tmp_path / "a.bin")
