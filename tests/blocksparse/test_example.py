"""The example runs, and its packed attention equals attention sequence by sequence."""

from __future__ import annotations

import pathlib
import re
import runpy
import sys


def test_example(monkeypatch, capsys):
    path = pathlib.Path(__file__).parents[2] / "examples" / "block_sparse_attention.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--steps", "2"])
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert float(re.search(r"sequence by sequence: (\S+)", said)[1]) < 1e-5 and "step 1: loss" in said
