"""The README's example runs as printed, and what it says of commands and files is true."""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_example_learns():
    before = mx.default_device()
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL).group(1)
    printed = []
    try:
        exec(compile(code, "README.md", "exec"), {"print": lambda *values: printed.append(values)})
    finally:
        mx.set_default_device(before)
    losses = [value for _, value in printed]
    assert len(losses) == 20 and losses[-1] < 0.2 * losses[0]


def test_relative_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    local = [link for link in links if "://" not in link]
    assert local and all((ROOT / link).exists() for link in local)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_has_the_commands(target):
    assert f"make {target}" in TEXT
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
