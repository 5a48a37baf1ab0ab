"""pytest plugin: with CI=true, a skipped test is an error unless its reason names missing hardware.

Loaded by `make test` (-p tests.plugin_ci). A test that skips because a package, a data file or a tool is
missing would otherwise stay green in CI without ever running.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

# Reasons for which no CI machine of ours can run a test. Each is matched from the start of the skip's reason.
ALLOWED = re.compile(
    r"no (GPU|Metal|CUDA)( backend| back-end| device)?\b|needs (a GPU|Metal|CUDA|macOS|Linux|x86-64)\b",
    re.IGNORECASE,
)


class StrictSkips:
    """Collects what was skipped, prints it, and fails the run for a reason that is not allowed."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def note(self, report: Any) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not ALLOWED.match(reason):
            self.refused.append(f"{report.nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.refused:
            terminalreporter.section("skips that CI does not allow", red=True)
            for line in self.refused:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(StrictSkips(), "strict-skips")
