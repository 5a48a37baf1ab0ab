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
