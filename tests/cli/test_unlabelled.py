"""Points without a label on the command line: seen by the network, neither trained nor scored."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.cli.main import main, parser
from mlxsparse.tasks import segmentation as task


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


def cloud_of(path, *no_label):
    """600 points of classes 3 and 5, of which each third has, by turns, one of the numbers `no_label`."""
    points = np.random.default_rng(0).random((600, 3)) * (10, 5, 2)
    labels = np.where(points[:, 2] > 1, 5, 3)
    labels[::3] = np.resize(no_label, 200)
    np.savez(path, points=points, label=labels)
    return str(path)


TRAIN = ["--epochs", "2", "--channels", "4,8", "--voxel-size", "0.8"]


@pytest.mark.parametrize(
    ("no_label", "options", "told"),
    [((-1,), [], "-1"), ((0, 7), ["--ignore", "0,7,9"], "0, 7"), ((-1, 0), ["--ignore", "-1,0"], "-1, 0")],
)
def test_they_are_no_class(no_label, options, told, tmp_path, capsys):
    cloud, weights = cloud_of(tmp_path / "a.npz", *no_label), str(tmp_path / "w")
    assert main(["train", cloud, "-o", weights, *TRAIN, *options]) == 0
    said = capsys.readouterr()
    line = f"left out of training and scores: 200 of 600 points, of classes {told}"
    assert line in said.err.splitlines()
    assert "class 3" in said.out and not any(f"class {n} " in said.out for n in no_label)
    report = json.loads((tmp_path / "w" / "report.json").read_text())
    assert report["classes"] == json.loads((tmp_path / "w/config.json").read_text())["settings"]["classes"]
    assert report["classes"] == [3, 5] and len(report["score"]["iou"]) == 2
    counts = [report[f"{name}_points"] for name in ("training", "held_out", "unlabelled")]
    assert counts[0] + counts[1] == 400 and counts[1] == pytest.approx(80, abs=2) and counts[2] == 200

    out = str(tmp_path / "out.npz")
    assert main(["segment", cloud, "--weights", weights, "-o", out]) == 0
    assert set(np.unique(np.load(out)["label"])) <= {3, 5}


def test_clouds_without_two_classes_are_refused(tmp_path, capsys):
    cloud = cloud_of(tmp_path / "a.npz", -1)
    assert main(["train", cloud, "-o", str(tmp_path / "w"), "--ignore", "3"]) == 1
    assert "has class [5] or none (-1, 3): nothing to tell apart" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["train", cloud, "-o", str(tmp_path / "w"), "--ignore", "3,ground"])
    assert stop.value.code == 2 and "'ground' is not a class number" in capsys.readouterr().err


def test_values_may_begin_with_a_negative_number():
    options = parser().parse_args(["train", "a.npz", "--ignore", "-1,0", "-o", "w"])
    assert options.ignore == (-1, 0) and options.clouds == ["a.npz"] and options.output == "w"
    options = parser().parse_args(["view", "a.npz", "--names", "-1=noise,2=ground", "-o", "a.html"])
    assert options.names == {-1: "noise", 2: "ground"}


def test_a_cloud_without_labels_goes_beside_one_with_them(tmp_path, capsys):
    """In training, in one that is resumed, and in pruning; the labelled cloud may come second."""
    points = np.random.default_rng(1).random((300, 3)) * (10, 5, 2)
    np.savez(tmp_path / "bare.npz", points=points, label=np.zeros(300, int))
    bare, weights = str(tmp_path / "bare.npz"), str(tmp_path / "w")
    told = f"neither trained on nor scored: no labelled point with finite coordinates in {bare!r}"
    clouds = [bare, cloud_of(tmp_path / "a.npz", 0)]
    reports = []
    for resume in ([], ["--resume"]):
        assert main(["train", *clouds, "-o", weights, *TRAIN, "--ignore", "0", *resume]) == 0
        assert told in capsys.readouterr().err.splitlines()
        reports.append(json.loads((tmp_path / "w" / "report.json").read_text()))
    assert reports[0]["losses"] == reports[1]["losses"]
    assert [reports[0][f"{n}_points"] for n in ("training", "held_out", "unlabelled")] == [320, 80, 500]
    pruned = ["--weights", weights, "-o", str(tmp_path / "p"), "--epochs", "1"]
    assert main(["prune", *clouds, *pruned]) == 0
    said = capsys.readouterr()
    assert told in said.err.splitlines() and "before" in said.out and "no score" not in said.out
    assert main(["prune", bare, *pruned]) == 1
    told = f"no labelled point with finite coordinates in {bare!r}; the classes are 3, 5"
    assert told in capsys.readouterr().err


def test_points_without_a_place_are_no_labels(tmp_path, capsys):
    points, paths = np.random.default_rng(0).random((40, 3)), []
    for name in "ab":
        paths.append(str(tmp_path / f"{name}.npz"))
        np.savez(paths[-1], points=np.where(np.arange(40)[:, None] < 20, points, np.nan),
                 label=np.where(np.arange(40) < 20, -1, np.arange(40) % 2))  # fmt: skip
    assert main(["train", *paths, "-o", str(tmp_path / "w"), *TRAIN]) == 1
    told = f"finite coordinates in {paths[0]!r}, {paths[1]!r}; the classes are 0, 1"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_the_majority_is_of_labelled_points(tmp_path):
    points = np.random.default_rng(0).random((600, 3)) * (10, 5, 2)
    labels = np.where(points[:, 2] > 1.4, 5, 3)
    labels[points[:, 2] < 1.2] = -1  # more than all others
    np.savez(tmp_path / "a.npz", points=points, label=labels)
    assert main(["train", str(tmp_path / "a.npz"), "-o", str(tmp_path / "w"), *TRAIN]) == 0
    report = json.loads((tmp_path / "w" / "report.json").read_text())
    model, settings = task.load(tmp_path / "w")
    assert settings.classes == [3, 5] and report["score"]["majority_iou"][0] == 0
    assert 0.5 < report["score"]["majority_accuracy"] == report["score"]["majority_iou"][1] < 1


def test_info_says_which(tmp_path, capsys):
    assert main(["info", cloud_of(tmp_path / "a.npz", -1)]) == 0
    said = capsys.readouterr().out
    assert "class -1      200 points (33.3%), which is no label\n" in said and said.count("no label") == 1


def test_a_warning_is_one_line(tmp_path, capsys):
    points, path = np.random.default_rng(0).random((50, 3)), str(tmp_path / "a.npz")
    np.savez(path, points=points, label=np.zeros(10, int))
    assert main(["train", path, "-o", str(tmp_path / "w")]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    words = "left out, not one value for each of its 50 points: label (int64, shape (10,))"
    assert warning == f"mlxsparse: {path!r}: {words}" and error.endswith(f"; {words}")
    assert main(["info", path]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [warning] and "  left out   label (int64, shape (10,))" in said.out


def test_info_writes_large_numbers_whole(tmp_path, capsys):
    """And others with the digits that their span needs."""
    time = np.array([245379.95, 245385.87, 245380.5])
    fields = {"id": np.array([3, 123456789012, 7]), "as float": np.array([20000001.0, 5, 6]), "time": time}
    far = np.array([[12345678901.25, 0, 0.1], [12345678903.5, 0, 0.1], [12345678902.0, 0, 0.1]])
    np.savez(tmp_path / "a.npz", points=far, **fields, same=np.full(3, 0.1, np.float32))
    assert main(["info", str(tmp_path / "a.npz")]) == 0
    said = capsys.readouterr().out
    for words in (
        "id int64 3 to 123456789012", "as float float64 5 to 20000001", "time float64 245379.95 to 245385.87",
        "same float32 0.1 to 0.1", "x 12345678901.25 to 12345678903.5", "y 0 to 0", "z 0.1 to 0.1",
    ):  # fmt: skip
        assert words in " ".join(said.split()), said


def test_training_says_its_inputs(tmp_path, capsys):
    points = np.random.default_rng(0).random((200, 3)) * (10, 5, 2)
    colours = np.random.default_rng(1).integers(0, 255, (200, 3)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", coord=points, color=colours, label=np.arange(200) % 2)
    arguments = ["train", str(tmp_path / "a.npz"), "-o", str(tmp_path / "w"), *TRAIN]
    for more, said in (
        ([], "red, green, blue, relief"), (["--no-relief", "--fields", "none"], "positions alone"),
    ):  # fmt: skip
        assert main([*arguments, *more]) == 0
        assert f"inputs: {said}" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("name", "option"), [("kind", ["--classes", "kind"]), ("semantic", []), ("segment", [])]
)
def test_the_field_of_the_classes(name, option, tmp_path, capsys):
    points = np.random.default_rng(0).random((300, 3)) * (10, 5, 2)
    cloud, weights = str(tmp_path / "a.npz"), str(tmp_path / "w")
    np.savez(cloud, points=points, **{name: np.where(points[:, 2] > 1, 5, 3)})
    assert main(["train", cloud, "-o", weights, *TRAIN, *option]) == 0
    assert json.loads((tmp_path / "w" / "report.json").read_text())["classes"] == [3, 5]
    if option:
        pruned = ["--weights", weights, "-o", str(tmp_path / "p"), "--epochs", "1"]
        assert main(["prune", cloud, *pruned, *option]) == 0
        capsys.readouterr()
        assert main(["prune", *pruned, *option]) == 2
        assert main(["prune", cloud, *pruned]) == main(["train", cloud, "-o", weights]) == 1
        told = capsys.readouterr().err.splitlines()
        assert "--classes names a field of clouds, and none are given" in told[0]
        assert all("the name of another (--classes FIELD); it has ['kind'" in line for line in told[1:])


@pytest.mark.parametrize("command", [["train"], ["prune", "--weights", "none"]])
def test_a_cloud_given_twice_is_refused(command, tmp_path, monkeypatch, capsys):
    """Its points would count twice."""
    cloud_of(tmp_path / "a.npz", 0)
    (tmp_path / "b.npz").symlink_to("a.npz")
    monkeypatch.chdir(tmp_path)
    for again, told in (("a.npz", "'a.npz' is given twice: name"), ("b.npz", ", as 'a.npz' before: name")):
        assert main([*command, "-o", "w", "a.npz", again]) == 2
        assert told in capsys.readouterr().err
