"""What the tests of facts about MLX (test_mlx_*_facts.py) share."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import mlx.core as mx
import pytest

MLX_VERSION = tuple(int(part) for part in importlib.metadata.version("mlx").split(".")[:3])
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: a fact about the Linux wheels")


@pytest.fixture(autouse=True)
def cpu_device() -> Iterator[None]:
    """The facts are about the CPU device, whatever the machine's default is. Import it to use it."""
    previous = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(previous)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter; a crash is a negative return code, not the end of this one."""
    header = "import threading\nimport mlx.core as mx\nimport numpy as np\nmx.set_default_device(mx.cpu)\n"
    return subprocess.run(
        [sys.executable, "-c", header + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
