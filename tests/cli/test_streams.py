"""Commands whose output streams fail or are closed: what was computed is there all the same."""

from __future__ import annotations

import errno
import io
import sys

import mlx.core as mx
import pytest

from mlxsparse.cli import tune
from mlxsparse.cli.main import main
from mlxsparse.tasks import segmentation as task
from tests.cli.test_unlabelled import cloud_of

TRAIN = ["--epochs", "1", "--channels", "4,8", "--voxel-size", "0.8"]


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


class Full(io.StringIO):
    """A stream to a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_stdout_that_fails_loses_no_network(tmp_path, monkeypatch, capsys):
    cloud = cloud_of(tmp_path / "a.npz", 3, 5)
    for command in (["train", cloud, "-o", "w", *TRAIN], ["prune", cloud, "--weights", "w", "-o", "p"]):
        command += ["--epochs", "1"]
        monkeypatch.chdir(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Full())
            assert main(command) == 1
        assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]
        folder = tmp_path / command[command.index("-o") + 1]
        assert {p.name for p in folder.iterdir()} >= {"model.safetensors", "config.json", "report.json"}
        task.load(folder)


def test_a_stdout_that_fails_loses_no_measurement(tmp_path, monkeypatch, capsys):
    written = []
    monkeypatch.setattr(tune, "executor", lambda: "kernel")
    monkeypatch.setattr(tune, "measure", lambda *_: [])
    monkeypatch.setattr(tune.tuning, "write", lambda *arguments: written.append(arguments))
    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["tune", "-o", str(tmp_path / "t.json")]) == 1
    assert len(written) == 1 and "No space left" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.parametrize("closed", [["stdout"], ["stderr"], ["stdout", "stderr"]])
def test_closed_streams_are_as_dev_null(closed, tmp_path, monkeypatch, capsys):
    cloud = cloud_of(tmp_path / "a.npz", 3)
    settings = task.Settings(0.5, [3, 4])
    task.save(task.new_model(settings, (4, 8), 1), settings, tmp_path / "w")
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    out = tmp_path / "out.npz"
    assert main(["segment", cloud, "--weights", str(tmp_path / "w"), "-o", str(out)]) == 0 and out.exists()
    assert main(["info", cloud]) == 0 and main(["info", str(tmp_path / "none")]) == 1
    said = capsys.readouterr()
    assert bool(said.out) == ("stdout" not in closed) and bool(said.err) == ("stderr" not in closed)
