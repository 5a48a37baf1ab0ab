"""mlxsparse prune as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.cli.main import main
from mlxsparse.io.las import write_las
from mlxsparse.io.points import read_points
from mlxsparse.tasks import pruning
from mlxsparse.tasks import segmentation as task


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(classified cloud, weights directory) of a short training."""
    folder = tmp_path_factory.mktemp("pruned")
    rng = np.random.default_rng(0)
    floor = np.column_stack([rng.uniform(0, 20, 2000), rng.uniform(0, 9, 2000), rng.normal(0, 0.02, 2000)])
    high = np.column_stack([rng.uniform(0, 20, 900), rng.uniform(0, 9, 900), rng.uniform(0.5, 3, 900)])
    fields = {
        "classification": np.array([2] * 2000 + [5] * 900, np.uint8),
        "intensity": rng.integers(0, 500, 2900).astype(np.uint16),
    }
    cloud = folder / "cloud.laz"
    write_las(cloud, np.concatenate([floor, high]), fields, scale=0.001, offset=(10.0, 0.0, 0.0))
    before = mx.default_device()
    arguments = ["train", str(cloud), "--epochs", "25", "--val-split", "0.3", "--channels", "8,16"]
    assert main([*arguments, "-o", str(folder / "weights"), "--voxel-size", "0.4"]) == 0
    mx.set_default_device(before)
    return str(cloud), str(folder / "weights")


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        ("channels", ["--fold"]),
        ("channels", []),
        ("offsets", ["--exclude", "stem"]),
        ("blocks", ["--block", "4"]),
    ],
)
def test_prune_writes_a_smaller_network_that_segment_reads(trained, tmp_path, capsys, structure, options):
    cloud, weights = trained
    out = tmp_path / "small"
    out.mkdir()
    (out / ".model.safetensors.0123abcd.tmp").write_bytes(b"half of the weights")
    arguments = ["--weights", weights, "--structure", structure, "--sparsity", ".5", "--epochs", "6"]
    assert main(["prune", cloud, *arguments, *options, "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "zeroed, not compressed" in said and "mIoU" in said
    assert sorted(p.name for p in out.iterdir()) == ["config.json", "model.safetensors", "report.json"]
    report = json.loads((out / "report.json").read_text())
    before, zeroed, after = report["rows"]
    assert after["parameters"] < 0.7 * before["parameters"] == 0.7 * zeroed["parameters"]
    assert after["bytes"] < before["bytes"] and min(row["ms"] for row in report["rows"]) > 0
    assert zeroed["mean_iou"] is None and after["mean_iou"] > before["mean_iou"] - 0.1
    model, _ = task.load(out)
    if structure == "offsets":
        assert model.encoder[0].layers[0].conv._taps is not None and model.stem.layers[0].conv._taps is None
    elif structure == "blocks":
        assert type(model.encoder[0].layers[0].conv).__name__ == "BlockSparseConv3d"
    else:
        assert model.stem.layers[0].conv.weight.shape[0] == 4
    assert main(["segment", cloud, "--weights", str(out), "-o", str(tmp_path / "labelled.laz")]) == 0


def test_bad_requests_are_one_line(trained, tmp_path, capsys):
    cloud, weights = trained
    out = str(tmp_path / "out")
    everything = "stem,down,encoder,up,decoder,head"
    assert main(["prune", cloud, "--weights", weights, "-o", out, "--exclude", everything]) == 1
    assert "no channels of the model can be pruned" in capsys.readouterr().err
    assert main(["prune", cloud, "--weights", str(tmp_path), "-o", out]) == 1
    assert "config.json" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit:
        main(["prune", cloud, "--weights", weights, "-o", out, "--sparsity", "1"])
    assert exit.value.code == 2
    assert not (tmp_path / "out").exists()


def test_classes_that_the_weights_do_not_know_are_told_of(trained, tmp_path, capsys):
    cloud, weights = trained
    more = read_points(cloud)
    labels = more.fields["classification"].copy()
    labels[:100], labels[100:150] = 9, 7
    write_las(tmp_path / "a.laz", more.points, {**more.fields, "classification": labels}, scale=0.001)
    short = ["--epochs", "1", "-o", str(tmp_path / "out")]
    assert main(["prune", str(tmp_path / "a.laz"), "--weights", weights, *short]) == 0
    line = "left out of tuning and scores: 150 of 2900 points, of classes 7, 9 that the weights do not know"
    assert line in capsys.readouterr().err.splitlines()
    assert main(["prune", "--weights", weights, "--scenes", "1", "--held-out", "1", *short]) == 2
    assert "the demo's scenes are used, and these weights do not know" in capsys.readouterr().err


def test_weights_are_not_written_over(trained, capsys):
    cloud, weights = trained
    before = {p.name: p.read_bytes() for p in Path(weights).iterdir()}
    assert main(["prune", cloud, "--weights", weights, "-o", f"{weights}/."]) == 2
    assert "where the weights are read from" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in Path(weights).iterdir()} == before


@pytest.fixture(scope="module")
def pruned(trained, tmp_path_factory):
    """Weights directories that prune wrote, by structure; --fold with channels."""
    folder = tmp_path_factory.mktemp("once")
    before = mx.default_device()
    for structure, more in (("channels", ["--fold"]), ("offsets", []), ("blocks", ["--block", "4"])):
        out = str(folder / structure)
        arguments = ["--weights", trained[1], "-o", out, "--structure", structure, "--epochs", "1"]
        assert main(["prune", trained[0], *arguments, *more]) == 0
    mx.set_default_device(before)
    return folder


@pytest.mark.parametrize("first", ["channels", "offsets"])
@pytest.mark.parametrize("structure", ["channels", "offsets", "blocks"])
def test_what_prune_wrote_is_pruned_again(trained, pruned, tmp_path, first, structure):
    out = tmp_path / "twice"
    arguments = ["--weights", str(pruned / first), "--structure", structure, "--block", "4", "--epochs", "1"]
    assert main(["prune", trained[0], *arguments, "-o", str(out)]) == 0
    before, _, after = json.loads((out / "report.json").read_text())["rows"]
    once = json.loads((pruned / first / "report.json").read_text())["rows"][2]
    assert after["parameters"] < before["parameters"] == once["parameters"]
    assert main(["segment", trained[0], "--weights", str(out), "-o", str(tmp_path / "labelled.laz")]) == 0


@pytest.mark.parametrize("structure", ["channels", "offsets", "blocks"])
def test_weights_pruned_in_blocks_are_refused_at_once(pruned, tmp_path, capsys, structure):
    # The cloud is not there: the refusal comes before it is read.
    arguments = ["--weights", str(pruned / "blocks"), "--structure", structure, "-o", str(tmp_path / "out")]
    assert main(["prune", str(tmp_path / "none.laz"), *arguments]) == 1
    error = capsys.readouterr().err
    assert "pruned in blocks already" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--exclude", "stem, nolayer"], 1, "['nolayer'], which the model does not have; it has decoder,"),
        (["--seed", "-5"], 2, "--seed must be at least 0"),
        (["--seed", "9" * 24], 2, "--seed must be at least 0"),
    ],
)
def test_bad_exclude_and_seed_are_refused_at_once(trained, tmp_path, capsys, options, status, words):
    arguments = ["prune", str(tmp_path / "none.laz"), "--weights", trained[1], "-o", str(tmp_path / "out")]
    assert main([*arguments, *options]) == status
    assert words in capsys.readouterr().err


def test_times_are_of_a_held_out_part_with_points_or_left_empty(trained):
    model, settings = task.load(trained[1])
    part, held = task.split(read_points(trained[0]), settings, 0.3)
    empty = part.take(np.zeros(0, int))
    for parts, timed in (([empty, held], True), ([empty], False), ([], False)):
        result = pruning.prune(pruning.copy_of(model), settings, [part], parts, epochs=1)
        assert all((row.ms > 0) == timed for row in result.rows)
        told = pruning.table(result.rows)
        assert "nan" not in told and told.count("x\n") + told.endswith("x") == (3 if timed else 0)


def test_training_says_that_nothing_could_be_held_out(tmp_path, capsys):
    clouds = []
    for label in (0, 1):
        clouds.append(str(tmp_path / f"{label}.txt"))
        (tmp_path / f"{label}.txt").write_text(f"x y z label\n{label} 0 0 {label}\n")
    arguments = ["--voxel-size", "1", "--epochs", "1", "--channels", "4,8", "-o", str(tmp_path / "out")]
    assert main(["train", *clouds, *arguments]) == 0
    assert "no score: a cloud of one labelled point" in capsys.readouterr().out
    assert main(["train", *clouds, *arguments, "--val-split", "0"]) == 0
    assert "no score" not in capsys.readouterr().out
    assert main(["train", *clouds, *arguments, "--val-split", "0.3"]) == 1
    assert "--val-split 0.3: a cloud of one labelled point has no part to hold" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", ",", " "])
def test_an_unset_variable_of_a_shell_names_nothing(text, capsys):
    for line in ("train a.laz -o w --fields", "prune --weights w -o v --exclude"):
        with pytest.raises(SystemExit) as stop:
            main([*line.split(), text])
        assert stop.value.code == 2 and "write none for none" in capsys.readouterr().err
