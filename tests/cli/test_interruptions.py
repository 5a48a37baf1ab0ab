"""Trainings that are killed, disks that are full, directories that cannot be written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn import Linear

from mlxsparse.backend import cuda_compile
from mlxsparse.cli.common import make_directory
from mlxsparse.cli.main import main
from mlxsparse.errors import PointCloudError
from mlxsparse.io.points import read_points, write_labels
from mlxsparse.models.base import load_config, load_weights, save_model
from tests.cli.test_commands import classified_cloud

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


@pytest.fixture
def cloud(tmp_path):
    return classified_cloud(tmp_path / "cloud.laz")


def train(cloud, folder, *more):
    return [
        "train",
        str(cloud),
        "-o",
        str(folder),
        "--epochs",
        "60",
        "--channels",
        "4,8",
        "--voxel-size",
        "0.4",
        *more,
    ]


def test_a_killed_training_resumes_to_the_same_weights(cloud, tmp_path):
    """SIGKILL after a random epoch, several times; the weights at the end are those of one run."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(train(cloud, whole)) == 0
    chance = np.random.default_rng()  # another moment in every run of the test
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    kills = 0
    for _ in range(3):
        command = [sys.executable, "-m", "mlxsparse.cli.main", *train(cloud, broken, "--resume")]
        process = subprocess.Popen(
            command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        checkpoint = broken / "checkpoint.safetensors"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.poll() is None and not (
            checkpoint.exists() and checkpoint.stat().st_mtime_ns != before
        ):
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.4))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills and not (broken / "model.safetensors").exists()
    (broken / ".checkpoint.safetensors.0123abcd.tmp").write_bytes(b"half of a checkpoint")
    assert main(train(cloud, broken, "--resume")) == 0
    for name in ("model.safetensors", "config.json"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes(), name
    assert {p.name for p in whole.iterdir()} == {p.name for p in broken.iterdir()}


def test_weights_are_saved_beside_what_a_killed_process_of_this_id_left(tmp_path):
    left = {tmp_path / f".{name}.{os.getpid()}.tmp" for name in ("model.safetensors", "config.json")}
    for path in left:
        path.write_bytes(b"half of it")
    save_model(Linear(2, 3), {"a": 1}, tmp_path)
    assert load_config(tmp_path) == {"a": 1}
    load_weights(Linear(2, 3), tmp_path)
    assert {p for p in tmp_path.iterdir() if p.suffix == ".tmp"} == left  # not this call's to take away
    make_directory(str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


class FullDisk:
    """A file that takes `room` bytes, then says that no space is left."""

    def __init__(self, path, mode, room):
        self.file, self.room = open(path, mode), room

    def write(self, content):
        self.room -= memoryview(content).nbytes
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(content)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


@pytest.mark.parametrize("suffix", [".las", ".laz", ".ply", ".npy", ".label"])
def test_a_full_disk_leaves_the_old_file(cloud, suffix, tmp_path, monkeypatch):
    source = read_points(cloud)
    labels = np.ones(len(source), int)
    write_labels(source, labels, tmp_path / f"out{suffix}")
    old = (tmp_path / f"out{suffix}").read_bytes()
    files = sorted(p.name for p in tmp_path.iterdir())
    for room in (0, 100, len(old) // 2, len(old) - 1):
        full = lambda path, mode, room=room: FullDisk(path, mode, room)  # noqa: E731
        monkeypatch.setattr("mlxsparse.files.open", full, raising=False)
        with pytest.raises(PointCloudError, match="No space left"):
            write_labels(source, labels + 1, tmp_path / f"out{suffix}")
        assert (tmp_path / f"out{suffix}").read_bytes() == old
        assert sorted(p.name for p in tmp_path.iterdir()) == files


def test_a_full_disk_keeps_no_part_of_a_compiled_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("mlxsparse.files.open", lambda path, mode: FullDisk(path, mode, 0), raising=False)
    cuda_compile._keep(tmp_path / "cuda" / "a.cubin", b"code")
    assert list((tmp_path / "cuda").iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a device of Linux")
def test_a_real_device_without_room(cloud, tmp_path, monkeypatch, capsys):
    """Everything that a command writes goes to /dev/full: status 1, one line, nothing left."""

    def full(path, mode, **_):
        Path(path).touch(exist_ok=False)
        return open("/dev/full", "wb", buffering=0)

    monkeypatch.setattr("mlxsparse.files.open", full, raising=False)
    assert main(train(cloud, tmp_path / "w")) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in error and list((tmp_path / "w").iterdir()) == []


def test_directories_that_cannot_be_written(cloud, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert main(train(cloud, tmp_path / "w")) == 1
    assert main(["demo", "-o", str(tmp_path / "w")]) == 1
    assert main(["segment", str(cloud), "--weights", "w", "-o", str(tmp_path / "out.laz")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all("cannot be" in line for line in errors)
    assert [p.name for p in tmp_path.iterdir()] == ["cloud.laz"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_while_writing_leaves_nothing(name, tmp_path):
    """The process sends itself the signal in the middle of the output."""
    np.savetxt(tmp_path / "a.xyz", np.random.default_rng(0).random((50, 3)))
    code = f"""
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests may ignore them
signal.signal(signal.SIGINT, signal.default_int_handler)
from mlxsparse.cli import main, view
from mlxsparse import files
class Killed(files._Writer):
    def write(self, data):
        super().write(data[:10])
        os.kill(os.getpid(), signal.{name})
        return len(data)
files._Writer = Killed
sys.exit(main.main(["view", "a.xyz", "-o", "a.html"]))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert done.stderr.startswith("mlxsparse: ") and done.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.xyz"]


def test_handlers_of_signals_are_given_back(capsys):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
    assert main(["info", "no such file"]) == 1
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("threads", ["abc", "1.5", ""])
def test_numbers_of_threads(threads):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLXSPARSE_THREADS": threads}
    code = "import mlxsparse as ms; print(ms.backend.info()['host_threads'])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if threads:
        assert done.returncode == 1 and f"MLXSPARSE_THREADS is '{threads}'" in done.stderr
    else:
        assert done.returncode == 0 and int(done.stdout) >= 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "a.npz", "-o", ""), ("demo", "-o", ""), ("view", "a.npz", "-o", ""),
        ("segment", "a.npz", "--weights", "", "-o", "b.npz"),
        ("segment", "a.npz", "--weights", "w", "-o", ""),
        ("prune", "--weights", "", "-o", "w"), ("prune", "--weights", "w", "-o", ""),
    ],
)  # fmt: skip
def test_empty_paths_are_refused(arguments, tmp_path, monkeypatch, capsys):
    """As of an unset variable of a shell; they would be the current folder."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert "is an empty path" in capsys.readouterr().err and not list(tmp_path.iterdir())
