"""Code in the documentation runs and prints what the pages say; drawings are what the code draws now."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import mlx.core as mx
import pytest

from mlxsparse.cli.main import parser
from tools import draw_docs

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


def said(line: str) -> str | None:
    """What a line `print(...)  # -> text`, or a line `# -> text` below it, says that is printed."""
    return line.split("# -> ")[1] if "# -> " in line else None


def run(text: str, name: str) -> tuple[list[str], list[str]]:
    """(what the page says is printed, what its blocks print), run in order in one namespace."""
    printed: list[str] = []
    names = {"print": lambda *values: printed.append(" ".join(map(str, values))), "__name__": "docs"}
    for block in BLOCK.finditer(text):
        above = "\n" * text[: block.start(1)].count("\n")  # so that tracebacks name the page's own lines
        exec(compile(above + block.group(1), name, "exec"), names)
    code = "".join(block.group(1) for block in BLOCK.finditer(text))
    return [text for text in map(said, code.splitlines()) if text is not None], printed


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search((DOCS / page).read_text())])
def test_code_of_a_page(page):
    promised, printed = run((DOCS / page).read_text(), page)
    assert printed == promised


def test_enough_pages_have_code():
    assert sum(bool(BLOCK.search((DOCS / page).read_text())) for page in PAGES) >= 7


def test_a_wrong_promise_is_found():
    assert run('```python\nprint(1 + 1)  # -> 3\n```\n', "x") == (["3"], ["2"])


@pytest.mark.parametrize("name", draw_docs.DRAWINGS)
def test_drawings_are_up_to_date(name):
    """`python -m tools.draw_docs` draws them anew."""
    mx.set_default_device(mx.cpu)
    drawn = draw_docs.DRAWINGS[name]()
    assert (DOCS / "images" / f"{name}.svg").read_text() == drawn


def test_every_image_is_used_and_there():
    text = "".join(path.read_text() for path in [*DOCS.rglob("*.md"), ROOT / "README.md"])
    used = set(re.findall(r"images/([\w.-]+)", text))
    assert used == {path.name for path in (DOCS / "images").iterdir()}


SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = [
    (path.name, line)
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    for block in SHELL.findall(path.read_text())
    for line in block.splitlines()
    if re.match(r"(\.venv/bin/)?mlxsparse ", line)
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_are_understood(page, line):
    arguments = shlex.split(line, comments=True)[1:]
    assert parser().parse_args(arguments).command == arguments[0]


def test_there_are_commands():
    assert len(COMMANDS) >= 7
