"""The CI plugin refuses skips (tried in runs of their own); parts of a run hold each test once."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from unittest import mock

from . import plugin_part

ROOT = pathlib.Path(__file__).parents[1]


SKIPS = {
    "call": "def test_a(): pytest.skip('no data folder')",
    "mark": "@pytest.mark.skipif(True, reason='no data folder')\ndef test_a(): pass",
    "module": "pytest.skip('no data folder', allow_module_level=True)",
    "import": "pytest.importorskip('a_package_that_is_not_there')",
    "fixture": "@pytest.fixture\ndef data(): pytest.skip('no data folder')\ndef test_a(data): pass",
}
HARDWARE = ("no GPU backend present", "needs macOS 14", "needs Metal", "no CUDA device")


def run(folder: pathlib.Path, bodies: dict[str, str], ci: str) -> subprocess.CompletedProcess[str]:
    """pytest with the plugin on one planted file per body, in a process of its own."""
    for name, body in bodies.items():
        (folder / f"test_{name}.py").write_text(f"import pytest\n{body}\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.plugin_ci", "-p", "no:cacheprovider", "-q"]
    command += ["--rootdir", str(folder), "-c", os.devnull, str(folder)]
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_each_kind_of_skip_is_refused_in_ci(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, {**SKIPS, "runs": "def test_a(): pass"}, "true")
    assert done.returncode == 1
    refused = done.stdout.split("skips that CI does not allow")[1]
    for how in SKIPS:
        assert f"test_{how}.py" in refused
    assert "test_runs.py" not in refused


def test_skips_stay_skips_outside_ci(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, {**SKIPS, "runs": "def test_a(): pass"}, "")
    assert done.returncode == 0 and "1 passed, 5 skipped" in done.stdout, done.stdout


def test_missing_hardware_is_allowed_in_ci(tmp_path: pathlib.Path) -> None:
    marks = [
        f"@pytest.mark.skipif(True, reason={why!r})\ndef test_{n}(): pass" for n, why in enumerate(HARDWARE)
    ]
    done = run(tmp_path, {"hardware": "\n".join(marks)}, "true")
    assert done.returncode == 0 and "4 skipped" in done.stdout, done.stdout


def test_a_failure_stays_a_failure_in_ci(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, {"fails": "def test_a(): assert False"}, "true").returncode == 1


def test_parts_hold_each_test_once() -> None:
    found = []
    for part in range(3):
        items, config = list(range(10)), mock.Mock()
        config.getoption.return_value = f"{part}/3"
        plugin_part.pytest_collection_modifyitems(config, items)
        left_out = config.hook.pytest_deselected.call_args.kwargs["items"]
        assert sorted(items + left_out) == list(range(10))
        found += items
    assert sorted(found) == list(range(10))
