"""The command line as a user meets it: what it writes, what it says, how it fails."""

from __future__ import annotations

import json

import laspy
import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.cli.main import main
from mlxsparse.io.las import write_las
from mlxsparse.io.points import read_points
from mlxsparse.tasks import segmentation as task
from tests.data_paths import data_path


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(classified cloud, weights directory, printed text) of a short training."""
    folder = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    floor = np.column_stack([rng.uniform(0, 20, 2000), rng.uniform(0, 9, 2000), rng.normal(0, 0.02, 2000)])
    high = np.column_stack([rng.uniform(0, 20, 900), rng.uniform(0, 9, 900), rng.uniform(0.5, 3, 900)])
    labels = np.array([2] * 2000 + [5] * 900, np.uint8)
    fields = {"classification": labels, "intensity": rng.integers(0, 500, 2900).astype(np.uint16)}
    cloud = folder / "cloud.laz"
    write_las(cloud, np.concatenate([floor, high]), fields, scale=0.001, offset=(10.0, 0.0, 0.0))
    arguments = ["train", str(cloud), "--epochs", "40", "--val-split", "0.3", "--channels", "4,8"]
    before = mx.default_device()
    assert main([*arguments, "-o", str(folder / "weights"), "--voxel-size", "0.4"]) == 0
    mx.set_default_device(before)
    return cloud, folder / "weights"


def test_train_writes_weights_config_and_report(trained):
    _, weights = trained
    assert {p.name for p in weights.iterdir()} == {"model.safetensors", "config.json", "report.json"}
    report = json.loads((weights / "report.json").read_text())
    assert report["classes"] == [2, 5] and len(report["losses"]) == 40
    assert report["score"]["mean_iou"] > report["score"]["majority_mean_iou"]
    assert report["training_points"] + report["held_out_points"] == 2900


def test_segment_keeps_everything_but_the_class(trained, tmp_path, capsys):
    cloud, weights = trained
    out = tmp_path / "labelled.laz"
    assert main(["segment", str(cloud), "--weights", str(weights), "-o", str(out)]) == 0
    assert "class 2" in capsys.readouterr().out
    before, after = laspy.read(cloud), laspy.read(out)
    assert len(before) == len(after)
    np.testing.assert_array_equal(before.header.scales, after.header.scales)
    np.testing.assert_array_equal(before.header.offsets, after.header.offsets)
    for name in before.point_format.dimension_names:
        if name != "classification":
            np.testing.assert_array_equal(np.asarray(before[name]), np.asarray(after[name]), err_msg=name)
    assert set(np.unique(after.classification)) <= {2, 5}
    assert np.mean(np.asarray(before.classification) == np.asarray(after.classification)) > 0.8


@pytest.mark.parametrize("name", ["pcl_office1_nan.pcd", "pcl_bunny_ascii.pcd", "pcl_curve_close_binary.pcd"])
def test_segment_pcd(trained, tmp_path, name, capsys):
    """PCD in each encoding; points without a position are labelled 0 and counted."""
    source = read_points(data_path("clouds", name))
    weights = tmp_path / "weights"
    mx.set_default_device(mx.cpu)
    settings = task.Settings(0.1, [3, 4])
    task.save(task.new_model(settings, (4, 8), 1), settings, weights)
    out = tmp_path / name
    assert main(["segment", str(data_path("clouds", name)), "--weights", str(weights), "-o", str(out)]) == 0
    result = read_points(out)
    np.testing.assert_array_equal(result.points, source.points)
    lost = ~np.isfinite(source.points).all(axis=1)
    assert set(np.unique(result.fields["label"][~lost])) <= {3, 4}
    assert not result.fields["label"][lost].any()
    assert ("no position" in capsys.readouterr().out) == bool(lost.any())


def run(*arguments):
    return main([str(a) for a in arguments])


def test_data_errors_are_one_line_and_status_1(trained, tmp_path, capsys):
    cloud, weights = trained
    whole = cloud.read_bytes()
    cut = tmp_path / "cut.laz"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    bare = tmp_path / "bare.las"
    write_las(bare, np.random.default_rng(0).uniform(size=(50, 3)), {}, scale=0.001, offset=(0.0, 0.0, 0.0))
    wrong = tmp_path / "wrong.pcd"
    wrong.write_bytes(whole)
    out = tmp_path / "out.laz"
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    for arguments, word in (
        (("train", cut, "-o", tmp_path / "a"), "cut.laz"),
        (("train", bare, "-o", tmp_path / "a"), "nothing to tell apart"),
        (("train", tmp_path / "none.laz", "-o", tmp_path / "a"), "none.laz"),
        (("train", cloud, "-o", blocked), "blocked"),
        (("segment", cut, "--weights", weights, "-o", out), "cut.laz"),
        (("segment", wrong, "--weights", weights, "-o", out), "extension"),
        (("segment", cloud, "--weights", tmp_path, "-o", out), "config.json"),
        (("segment", cloud, "--weights", weights, "-o", tmp_path), "directory"),
        (("segment", cloud, "--weights", weights, "-o", tmp_path / "no" / "out.laz"), "does not exist"),
        (("segment", cloud, "--weights", weights, "-o", tmp_path / "out.pcd"), "keeps the format"),
        (("segment", tmp_path, "--weights", weights, "-o", out), "directory"),
    ):
        before = sorted(p.name for p in tmp_path.rglob("*"))
        assert run(*arguments) == 1, arguments
        error = capsys.readouterr().err
        assert word in error and error.startswith("mlxsparse: error: ") and error.count("\n") == 1, error
        assert sorted(p.name for p in tmp_path.rglob("*")) == before, "something half-written was left"


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("train",), ("train", "a.laz"), ("train", "a.laz", "-o", "w", "--epochs", "0"),
        ("train", "a.laz", "-o", "w", "--val-split", "1"), ("train", "a.laz", "-o", "w", "--channels", "8,x"),
        ("train", "a.laz", "-o", "w", "--voxel-size", "nan"), ("segment", "a.laz"), ("unknown",),
        ("segment", "a.laz", "--weights", "w", "-o", "b.laz", "--device", "tpu"),
    ],
)  # fmt: skip
def test_usage_errors_are_status_2(arguments):
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2


def test_demo(tmp_path, capsys):
    assert run("demo", "-o", tmp_path, "--scenes", "1", "--epochs", "1") == 0
    assert "mean IoU" in capsys.readouterr().out
    labelled = read_points(tmp_path / "labelled.laz")
    assert len(labelled) == len(read_points(tmp_path / "scene1.laz"))
    assert (tmp_path / "report.json").is_file()
