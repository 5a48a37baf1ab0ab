"""pytest plugin (-p tests.plugin_part): `--part K/N` runs every N-th test from the K-th on.

For files whose tests spend their time in compilers: the parts run side by side.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="0/1", help="K/N: every N-th test from the K-th on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, parts = map(int, config.getoption("--part").split("/"))
    config.hook.pytest_deselected(items=[item for at, item in enumerate(items) if at % parts != first])
    items[:] = items[first::parts]
