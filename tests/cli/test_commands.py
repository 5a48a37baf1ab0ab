"""The command line as a user meets it: what it writes, what it says, how it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import laspy
import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.cli import demo, info
from mlxsparse.cli.main import main
from mlxsparse.errors import PointCloudError
from mlxsparse.io.las import write_las
from mlxsparse.io.points import read_points
from mlxsparse.tasks import segmentation as task
from tests.data_paths import data_path


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


def classified_cloud(path):
    """A floor (class 2) below scattered points (class 5)."""
    rng = np.random.default_rng(0)
    floor = np.column_stack([rng.uniform(0, 20, 2000), rng.uniform(0, 9, 2000), rng.normal(0, 0.02, 2000)])
    high = np.column_stack([rng.uniform(0, 20, 900), rng.uniform(0, 9, 900), rng.uniform(0.5, 3, 900)])
    labels = np.array([2] * 2000 + [5] * 900, np.uint8)
    fields = {"classification": labels, "intensity": rng.integers(0, 500, 2900).astype(np.uint16)}
    write_las(path, np.concatenate([floor, high]), fields, scale=0.001, offset=(10.0, 0.0, 0.0))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(classified cloud, weights directory) of a short training."""
    folder = tmp_path_factory.mktemp("trained")
    cloud = classified_cloud(folder / "cloud.laz")
    arguments = ["train", str(cloud), "--epochs", "25", "--val-split", "0.3", "--channels", "4,8"]
    before = mx.default_device()
    assert main([*arguments, "-o", str(folder / "weights"), "--voxel-size", "0.4"]) == 0
    mx.set_default_device(before)
    return cloud, folder / "weights"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Untrained weights that need no field but the positions: classes 3 and 4."""
    folder = tmp_path_factory.mktemp("bare")
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    settings = task.Settings(0.1, [3, 4], relief=[1.0] * 9)
    task.save(task.new_model(settings, (4, 8), 1), settings, folder)
    mx.set_default_device(before)
    return folder


def run(*arguments):
    return main([str(a) for a in arguments])


# --- what the commands write ------------------------------------------------------------------------------


def test_train_writes_weights_config_and_report(trained):
    _, weights = trained
    files = {"model.safetensors", "config.json", "report.json", "checkpoint.safetensors"}
    assert {p.name for p in weights.iterdir()} == files
    report = json.loads((weights / "report.json").read_text())
    assert report["classes"] == [2, 5] and len(report["losses"]) == 25
    assert report["score"]["mean_iou"] > report["score"]["majority_mean_iou"] + 0.3
    assert report["training_points"] + report["held_out_points"] == 2900
    assert (
        report["device"] == "cpu" and report["inputs"][0] == "intensity" and report["inputs"][-1] == "relief"
    )


def test_segment_keeps_everything_but_the_class(trained, tmp_path, capsys):
    cloud, weights = trained
    out = tmp_path / "labelled.laz"
    assert run("segment", cloud, "--weights", weights, "-o", out) == 0
    assert "class 2" in capsys.readouterr().out
    before, after = laspy.read(cloud), laspy.read(out)
    assert len(before) == len(after)
    np.testing.assert_array_equal(before.header.scales, after.header.scales)
    np.testing.assert_array_equal(before.header.offsets, after.header.offsets)
    for name in before.point_format.dimension_names:
        if name != "classification":
            np.testing.assert_array_equal(np.asarray(before[name]), np.asarray(after[name]), err_msg=name)
    assert set(np.unique(after.classification)) <= {2, 5}
    assert np.mean(np.asarray(before.classification) == np.asarray(after.classification)) > 0.9


def test_segment_in_crops_with_votes(trained, tmp_path):
    cloud, weights = trained
    out = tmp_path / "labelled.laz"
    assert run("segment", cloud, "--weights", weights, "-o", out, "--crop-points", 700, "--votes", 3) == 0
    before, after = read_points(cloud), read_points(out)
    np.testing.assert_array_equal(before.points, after.points)
    assert np.mean(before.fields["classification"] == after.fields["classification"]) > 0.9


REAL = {
    "pcl_office1_nan.pcd": ".pcd", "pcl_bunny_ascii.pcd": ".pcd", "pcl_curve_close_binary.pcd": ".pcd",
    "laspy_simple.las": ".laz", "pdal_1.2-with-color.copc.laz": ".laz", "pdal_data.xyz": ".xyz",
    "trimesh_points_cloudcompare.xyz": ".ply",
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_segment_real_files(bare, tmp_path, name, capsys):
    """Every point once, in its order; points without a position are labelled 0 and counted."""
    source = read_points(data_path("clouds", name))
    out = tmp_path / f"out{REAL[name]}"
    assert run("segment", data_path("clouds", name), "--weights", bare, "-o", out) == 0
    result = read_points(out)
    np.testing.assert_array_equal(result.points, source.points)
    lost = ~np.isfinite(source.points).all(axis=1)
    labels = result.fields["classification" if result.format == "laz" else "label"]
    assert set(np.unique(labels[~lost])) <= {3, 4} and not labels[lost].any()
    assert ("no position" in capsys.readouterr().out) == bool(lost.any())


def test_segment_says_what_a_ply_cannot_hold(bare, tmp_path, capsys):
    kinds = [("x", "f8"), ("y", "f8"), ("z", "f8"), ("name", "U4"), ("normal", "f4", (3,)), ("age", "f4")]
    cloud = np.zeros(9, kinds)
    cloud["x"], cloud["name"], cloud["normal"], cloud["age"] = np.arange(9), "tree", [0, 0, 1], np.arange(9)
    np.save(tmp_path / "a.npy", cloud)
    for name, said in (("b.ply", "PLY holds one number a point: name, normal"), ("b.npy", "")):
        assert run("segment", tmp_path / "a.npy", "--weights", bare, "-o", tmp_path / name) == 0
        told = capsys.readouterr().err
        assert said in told and bool(said) == ("left out" in told)
    assert set(read_points(tmp_path / "b.ply").fields) == {"x", "y", "z", "age", "label"}
    kept = np.load(tmp_path / "b.npy")
    assert all(np.array_equal(kept[name], cloud[name]) for name in cloud.dtype.names)
    assert kept.dtype.names == (*cloud.dtype.names, "label")


def test_the_class_is_no_input(trained, tmp_path, capsys):
    cloud, _ = trained
    for name in ("classification", "label"):
        assert run("train", cloud, "-o", tmp_path / "w", "--fields", f"intensity,{name}") == 1
        assert f"'{name}' is what is to be found out" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_segment_does_not_write_over_its_cloud(bare, tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.zeros((5, 3)))
    (tmp_path / "b.npy").symlink_to(tmp_path / "a.npy")
    before = (tmp_path / "a.npy").read_bytes()
    for name in ("a.npy", "b.npy"):
        assert run("segment", tmp_path / "a.npy", "--weights", bare, "-o", tmp_path / name) == 2
        assert "is the cloud itself" in capsys.readouterr().err
    assert (tmp_path / "a.npy").read_bytes() == before


def test_train_and_segment_semantic_kitti(tmp_path):
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.uniform(-9, 9, (3000, 2)), rng.normal(0, 0.02, 3000), rng.random(3000)])
    table[:1000, 2] += rng.uniform(1, 3, 1000)
    table.astype("<f4").tofile(tmp_path / "a.bin")
    (np.arange(3000) < 1000).astype("<u4").tofile(tmp_path / "a.label")
    arguments = "--epochs", 25, "--channels", "4,8", "--voxel-size", 0.5, "--fields", "none", "--no-augment"
    assert run("train", tmp_path / "a.bin", "-o", tmp_path / "w", *arguments) == 0
    out = tmp_path / "out.label"
    assert run("segment", tmp_path / "a.bin", "--weights", tmp_path / "w", "-o", out) == 0
    assert np.mean(np.fromfile(out, "<u4") == np.fromfile(tmp_path / "a.label", "<u4")) > 0.95


def test_info(trained, tmp_path, capsys):
    cloud, _ = trained
    (tmp_path / "no.laz").write_bytes(b"")
    np.savetxt(tmp_path / "b.xyz", np.random.default_rng(0).random((20, 3)))
    assert run("info", cloud, tmp_path / "no.laz", tmp_path / "b.xyz") == 1
    said = capsys.readouterr()
    for words in ("LAZ", "2900", "scale      0.001", "offset     10 0 0", "class 2", "69.0%", "no classes"):
        assert words in said.out, words
    assert said.err.startswith("mlxsparse: error: ") and said.err.count("\n") == 1 and "0 bytes" in said.err
    assert run("info", data_path("clouds", "pcl_office1_nan.pcd")) == 0
    assert "52744 of them without a finite position" in capsys.readouterr().out
    np.save(tmp_path / "wide.npy", np.array([[1e308, 0, 0], [-1e308, 0, 0], [1, 2, 3]]))
    assert run("info", tmp_path / "wide.npy") == 0
    assert "voxels     none: the cloud spans more" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["street", "indoor"])
def test_demo(tmp_path, capsys, kind, monkeypatch):
    make, *others = demo.KINDS[kind]
    monkeypatch.setitem(demo.KINDS, kind, (lambda seed: make(seed, rings=24, columns=300), *others))
    assert run("demo", "-o", tmp_path, "--kind", kind, "--scenes", 1, "--held-out", 1, "--epochs", 1) == 0
    assert "logistic regression" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    classes = {"street": 6, "indoor": 4}[kind]
    for key in ("iou", "baseline_iou"):
        assert len(report[key]) == classes
    assert {"mean_iou", "baseline_mean_iou", "majority_mean_iou", "seconds", "device"} <= set(report)
    for name in ("scene.png", "training.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    scene = read_points(tmp_path / "scene.laz")
    for name in ("truth", "prediction"):
        cloud = read_points(tmp_path / f"{name}.ply")
        assert len(cloud) == len(scene) and {"red", "green", "blue", "label"} <= set(cloud.fields)
    np.testing.assert_array_equal(
        read_points(tmp_path / "truth.ply").fields["label"], scene.fields["classification"]
    )
    # The scene is labelled by the weights as in the demo, from its file.
    out = tmp_path / "again.laz"
    assert run("segment", tmp_path / "scene.laz", "--weights", tmp_path, "-o", out) == 0
    same = (
        read_points(out).fields["classification"] == read_points(tmp_path / "prediction.ply").fields["label"]
    )
    assert same.mean() > 0.999


# --- how they fail ----------------------------------------------------------------------------------------


def test_data_errors_are_one_line_and_status_1(trained, tmp_path, capsys):
    cloud, weights = trained
    whole = cloud.read_bytes()
    cut = tmp_path / "cut.laz"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    bare = tmp_path / "bare.las"
    write_las(bare, np.random.default_rng(0).uniform(size=(50, 3)), {}, scale=0.001, offset=(0.0, 0.0, 0.0))
    wrong = tmp_path / "wrong.pcd"
    wrong.write_bytes(whole)
    (tmp_path / "empty.ply").touch()
    (tmp_path / "plain.xyz").write_text("1 2 3\n4 5 6\n")
    out = tmp_path / "out.laz"
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    other = tmp_path / "other"  # weights of another model
    shutil.copytree(weights, other)
    config = json.loads((other / "config.json").read_text())
    config["model"]["channels"] = [4, 9]
    (other / "config.json").write_text(json.dumps(config))
    for arguments, word in (
        (("train", cut, "-o", tmp_path / "a"), "cut.laz"),
        (("train", bare, "-o", tmp_path / "a"), "nothing to tell apart"),
        (("train", tmp_path / "plain.xyz", "-o", tmp_path / "a"), "no class of each point"),
        (("train", tmp_path / "none.laz", "-o", tmp_path / "a"), "none.laz"),
        (("train", cloud, "-o", blocked), "blocked"),
        (("train", cloud, "-o", blocked / "deeper"), "not a directory"),
        (("train", cloud, "-o", tmp_path / "a", "--fields", "infrared"), "infrared"),
        (("segment", cut, "--weights", weights, "-o", out), "cut.laz"),
        (("segment", wrong, "--weights", weights, "-o", out), "extension"),
        (("segment", tmp_path / "empty.ply", "--weights", weights, "-o", out), "0 bytes"),
        (("segment", tmp_path / "plain.xyz", "--weights", weights, "-o", tmp_path / "out.xyz"), "intensity"),
        (("segment", cloud, "--weights", tmp_path, "-o", out), "config.json"),
        (("segment", cloud, "--weights", other, "-o", out), "does not fit"),
        (("segment", cloud, "--weights", weights, "-o", tmp_path), "directory"),
        (("segment", cloud, "--weights", weights, "-o", tmp_path / "no" / "out.laz"), "does not exist"),
        (("segment", cloud, "--weights", weights, "-o", tmp_path / "out.pcd"), "keeps the format"),
        (("segment", tmp_path, "--weights", weights, "-o", out), "directory"),
        (("info", cut), "cut.laz"),
    ):
        before = sorted(p.name for p in tmp_path.rglob("*"))
        assert run(*arguments) == 1, arguments
        error = capsys.readouterr().err
        assert word in error and error.startswith("mlxsparse: error: ") and error.count("\n") == 1, error
        assert sorted(p.name for p in tmp_path.rglob("*")) == before, "something half-written was left"


def test_resume_with_other_options(trained, tmp_path, capsys):
    cloud, weights = trained
    shutil.copytree(weights, tmp_path / "w")
    before = {p.name: p.read_bytes() for p in (tmp_path / "w").iterdir()}
    assert run("train", cloud, "-o", tmp_path / "w", "--resume", "--epochs", 3, "--channels", "4,8") == 1
    assert "is of another training" in capsys.readouterr().err.splitlines()[-1]
    assert {p.name: p.read_bytes() for p in (tmp_path / "w").iterdir()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("train",), ("train", "a.laz"), ("train", "a.laz", "-o", "w", "--epochs", "0"),
        ("train", "a.laz", "-o", "w", "--val-split", "1"), ("train", "a.laz", "-o", "w", "--channels", "8,x"),
        ("train", "a.laz", "-o", "w", "--voxel-size", "nan"), ("segment", "a.laz"), ("unknown",),
        ("segment", "a.laz", "--weights", "w", "-o", "b.laz", "--device", "tpu"),
        ("segment", "a.laz", "--weights", "w", "-o", "b.laz", "--votes", "0"),
        ("train", "a.laz", "-o", "w", "--precision", "int8"), ("demo", "--kind", "underwater"), ("info",),
    ],
)  # fmt: skip
def test_usage_errors_are_one_line_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("mlxsparse: error: ") and error.count("\n") == 1


def test_usage_errors_found_later(trained, tmp_path, capsys, monkeypatch):
    cloud, weights = trained
    assert run("segment", cloud, "--weights", weights, "-o", tmp_path / "out.foo") == 2
    assert "extension that says no format" in capsys.readouterr().err
    assert run("train", cloud, "-o", tmp_path / "w", "--seed", "-1") == 2
    assert "--seed" in capsys.readouterr().err

    def no_gpu(device):
        raise ValueError("[set_default_device] Cannot set gpu device\nwithout gpu backend.")

    with monkeypatch.context() as patch:
        patch.setattr(mx, "set_default_device", lambda d: no_gpu(d) if d == mx.gpu else None)
        assert run("info", cloud, "--device", "gpu") == 2
    error = capsys.readouterr().err
    assert "--device gpu" in error and error.count("\n") == 1 and not any(tmp_path.iterdir())


# --- defects that were found ------------------------------------------------------------------------------


def test_segment_checks_what_the_output_holds_before_the_work(trained, tmp_path, capsys, monkeypatch):
    def no_work(*arguments, **options):
        raise AssertionError("predicted before the check")

    monkeypatch.setattr(task, "predict", no_work)
    settings = task.Settings(0.4, [0, 2**40], relief=[1.0] * 9)
    task.save(task.new_model(settings, (4, 8), 1), settings, tmp_path / "w")
    np.savez(tmp_path / "a.npz", points=np.random.default_rng(0).uniform(0, 9, (50, 3)))
    (tmp_path / "u.csv").write_text("x,y,z,höhe\n1,2,3,4\n5,6,7,8\n", encoding="utf-8")
    for source, out, word in (("a.npz", "s.npz", "32 bits"), ("u.csv", "u.ply", "32 bits")):
        assert run("segment", tmp_path / source, "--weights", tmp_path / "w", "-o", tmp_path / out) == 1
        assert word in capsys.readouterr().err
    settings.classes = [0, 1]
    task.save(task.new_model(settings, (4, 8), 1), settings, tmp_path / "w")
    assert run("segment", tmp_path / "u.csv", "--weights", tmp_path / "w", "-o", tmp_path / "u.ply") == 1
    error = capsys.readouterr().err
    assert "'höhe'" in error and error.count("\n") == 1


def test_seeds_that_no_generator_takes(tmp_path, capsys):
    assert run("train", tmp_path / "none.laz", "-o", tmp_path / "w", "--seed", "9" * 23) == 2
    assert "--seed must be at least 0 and below 2**63" in capsys.readouterr().err


def test_a_far_outlier_is_refused_before_the_training(tmp_path, capsys):
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 9, (300, 3))
    points[7, 0] = 1e12
    np.savez(tmp_path / "a.npz", points=points, label=rng.integers(0, 2, 300))
    arguments = ["train", tmp_path / "a.npz", "-o", tmp_path / "w", "--voxel-size", "0.4", "--epochs", "1"]
    for more in ([], ["--no-relief"]):
        assert run(*arguments, *more) == 1
        error = capsys.readouterr().err
        assert "spans 1e+12, which is more than 2**29 voxels" in error and error.count("\n") == 1
    assert not (tmp_path / "w").exists()


def test_weights_are_saved_before_the_score(trained, tmp_path, monkeypatch):
    def no_score(*arguments):
        raise PointCloudError("no score")

    monkeypatch.setattr(task, "score", no_score)
    out = tmp_path / "w"
    arguments = ["--epochs", "1", "--val-split", "0.3", "--channels", "4,8", "--voxel-size", "0.4"]
    assert run("train", trained[0], "-o", out, *arguments) == 1
    assert {p.name for p in out.iterdir()} >= {"model.safetensors", "config.json"}
    task.load(out)


def test_names_of_files_that_are_no_text(tmp_path):
    name = os.fsencode(tmp_path) + b"/a\xff.xyz"
    with open(name, "wb") as file:
        file.write(b"0 0 0\n1 2 3\n")
    program = "import sys; from mlxsparse.cli.main import main; sys.exit(main())"
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-c", program, "info", name]
    done = subprocess.run(command, capture_output=True, env=strict, check=False)
    assert (done.returncode, done.stderr) == (0, b"") and b"a\\udcff.xyz" in done.stdout


def test_info_goes_on_after_files_that_cannot_be_described(tmp_path, capsys, monkeypatch):
    np.zeros((3, 4), np.float32).tofile(tmp_path / "a.bin")
    (tmp_path / "a.label").write_bytes(b"short")
    np.save(tmp_path / "b.npy", np.zeros((2, 3)))
    for name in ("c", "d"):
        (tmp_path / f"{name}.xyz").write_text("1 2 3\n")

    def read(path):
        if path.endswith("c.xyz"):
            raise MemoryError("Unable\nto allocate")
        if path.endswith("d.xyz"):
            raise OSError(5, "Input/output error")
        return read_points(path)

    monkeypatch.setattr(info, "read_points", read)
    assert run("info", *(tmp_path / name for name in ("a.bin", "c.xyz", "d.xyz", "b.npy"))) == 1
    done = capsys.readouterr()
    errors = done.err.splitlines()
    assert len(errors) == 3 and "3 points need 12" in errors[0] and "b.npy" in done.out
    assert "c.xyz': out of memory: Unable to allocate" in errors[1] and "d.xyz': [Errno 5]" in errors[2]
