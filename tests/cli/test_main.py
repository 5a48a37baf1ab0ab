"""The parser of the command line."""

from __future__ import annotations

from mlxsparse.cli.main import COMMANDS, parser


def test_python_may_have_dropped_docstrings(monkeypatch):
    """As `python -OO` does, and freezers of programs."""
    for module in COMMANDS:
        monkeypatch.setattr(module, "__doc__", None)
    assert parser().parse_args(["info", "cloud.las"]).command == "info"
