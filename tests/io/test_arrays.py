"""Arrays of NumPy files: classes with NaN, and the colours and intensities that they are read as."""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.errors import PointCloudError
from mlxsparse.io.points import read_points, write_labels


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
@pytest.mark.parametrize("names", [["label"], ["labels"], ["label", "labels"]])
def test_float_classes_of_an_npz_may_hold_nan(shape, names, tmp_path):
    labels = np.array([1.0, np.nan, 2, 3, 4]).reshape(shape)
    np.savez(tmp_path / "a.npz", points=np.ones((5, 3)), **dict.fromkeys(names, labels))
    cloud = read_points(tmp_path / "a.npz")
    np.testing.assert_array_equal(cloud.fields["label"], labels.reshape(-1))
    write_labels(cloud, np.arange(5), tmp_path / "b.npz")
    assert read_points(tmp_path / "b.npz").fields["label"].tolist() == [0, 1, 2, 3, 4]


def test_classes_that_differ_in_nan_are_refused(tmp_path):
    labels = np.array([1.0, np.nan, 2])
    for other in (np.nan_to_num(labels), np.array([1, 0, 2])):
        np.savez(tmp_path / "a.npz", points=np.ones((3, 3)), label=labels, labels=other)
        with pytest.raises(PointCloudError, match="both label and labels, and they differ"):
            read_points(tmp_path / "a.npz")


@pytest.mark.parametrize("channels", [3, 4])
def test_alpha_in_an_array_of_its_own_stays_beside_colours(channels, tmp_path):
    table, alpha = np.arange(5 * channels, dtype=np.uint8).reshape(5, channels), np.linspace(0, 1, 5)
    np.savez(tmp_path / "a.npz", points=np.ones((5, 3)), colors=table, alpha=alpha)
    fields = read_points(tmp_path / "a.npz").fields
    assert fields["alpha"].tolist() == alpha.tolist()
    if channels == 4:
        np.testing.assert_array_equal(fields["colors"], table)
    else:
        assert fields["blue"].tolist() == table[:, 2].tolist() and "colors" not in fields


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_r_g_b_i_are_the_usual_names(suffix, tmp_path):
    values = np.arange(5, dtype=np.uint8)
    arrays = {"r": values, "g": values + 1, "b": values + 2, "I": values / 5}
    path = save(tmp_path / f"a{suffix}", arrays)
    cloud = read_points(path)
    for name, column in zip(("red", "green", "blue", "intensity"), arrays.values()):
        assert cloud.fields[name].dtype == column.dtype and cloud.fields[name].tolist() == column.tolist()
    assert not set(arrays) & set(cloud.fields)
    write_labels(cloud, np.arange(5), tmp_path / f"b{suffix}")
    if suffix == ".npz":
        assert set(np.load(tmp_path / "b.npz").files) == {"points", "label", *arrays}
    again = read_points(tmp_path / f"b{suffix}").fields
    assert again["red"].tolist() == values.tolist() and again["label"].tolist() == list(range(5))


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_r_g_b_i_of_other_than_numbers_or_beside_the_usual_names_stay(suffix, tmp_path):
    values, table = np.arange(5), np.ones((5, 2))
    for arrays in (
        {"r": values, "g": values, "b": table, "i": table},
        {"r": values, "g": values, "i": values, "intensity": table},
        {"r": values, "g": values, "b": values, "red": table},
    ):
        fields = read_points(save(tmp_path / f"a{suffix}", arrays)).fields
        assert set(fields) == {"x", "y", "z", *arrays}
        assert all(fields[name].shape == arrays[name].shape for name in arrays)


def save(path, arrays):
    """`path`, to which points and `arrays` (5, ...) are written."""
    points = np.arange(15.0).reshape(5, 3)
    if path.suffix == ".npz":
        np.savez(path, points=points, **arrays)
        return path
    columns = {**dict(zip("xyz", points.T)), **arrays}
    table = np.empty(5, [(name, v.dtype, v.shape[1:]) for name, v in columns.items()])
    for name, values in columns.items():
        table[name] = values
    np.save(path, table)
    return path
