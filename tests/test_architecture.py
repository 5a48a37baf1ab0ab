"""Imports point one way, the core needs only mlx and numpy, and files stay short.

The rule, lowest first: backend < engine < {coords, blocksparse} < arithmetic < tensor < {masks, compiled} <
ops < nn < blocks < models < tasks < {pipeline, cli}. `errors` and then `files` lie below all. io, interop,
viz and testing see nothing above `files`, with the exceptions named below. The checks read the text of the
imports; nothing is imported.
"""

from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "mlxsparse"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("files",),
    ("backend",),
    ("engine",),
    ("coords", "blocksparse"),
    ("arithmetic",),
    ("tensor",),
    ("masks", "compiled", "transforms"),
    ("ops",),
    ("nn",),
    ("blocks",),
    ("models",),
    ("tasks",),
    ("pipeline", "cli"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Parts beside the layers, and which other parts each may import.
STANDALONE: dict[str, frozenset[str]] = {
    "io": frozenset(),
    "interop": frozenset(),
    "viz": frozenset(),
    "testing": frozenset(),
}
# Layers that may use the standalone parts.
USES_STANDALONE = {
    "tasks": {"io", "viz"},
    "models": {"interop"},
    "pipeline": set(STANDALONE),
    "cli": set(STANDALONE),
}
# Files beside the layers that carry values between them and a layer, and the layer each may name.
BRIDGES = {"mlxsparse/testing/adapt.py": {"tensor"}}
# The top-level modules that only gather names.
TOP_LEVEL = {"__init__", "__main__"}
# Parts that make up `pip install mlxsparse`: they must import without any extra.
CORE = {name for names in LAYERS for name in names} - {"tasks", "pipeline", "cli"} | {"interop"} | TOP_LEVEL
# Files of the core that need an extra, and are imported only where it is installed.
_COMPILED = ("blocks", "few", "jit", "loops", "passes", "products", "team")
WITH_EXTRA = {f"mlxsparse/backend/_numba_{name}.py": {"numba", "llvmlite"} for name in _COMPILED}
CORE_NEEDS = {"mlx", "numpy", PACKAGE} | set(sys.stdlib_module_names)

MAX_LINES = 400
LONG_FILES: dict[str, str] = {}  # path from the checkout's root -> why it is one file


class Import(NamedTuple):
    path: pathlib.Path
    line: int
    name: str  # absolute dotted name of a module, or of a name in one
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.name}"


def module_name(path: pathlib.Path) -> tuple[str, ...]:
    """Dotted parts of a file's path from the checkout's root: a/b/__init__.py is ("a", "b", "__init__")."""
    return path.with_suffix("").parts


def imports_of(path: pathlib.Path, text: str) -> Iterator[Import]:
    """Every import in `text`, relative ones made absolute, `from a import b` as a.b."""
    package = module_name(path)[:-1]

    def visit(node: ast.AST, runs: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, runs)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield Import(path, node.lineno, ".".join([*prefix, alias.name]), runs)
        for child in ast.iter_child_nodes(node):
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from visit(child, runs and not inside and not guards_types(node, child))

    yield from visit(ast.parse(text), True)


def guards_types(node: ast.AST, child: ast.AST) -> bool:
    """Whether `child` is in the body of `if TYPE_CHECKING:`; it may name a layer above, it never runs."""
    return (
        isinstance(node, ast.If) and child in node.body and ast.unparse(node.test).endswith("TYPE_CHECKING")
    )


def part_of(name: str) -> str | None:
    """The part of mlxsparse that a dotted name lies in; None for others and for mlxsparse itself."""
    parts = name.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def may_import(part: str, target: str) -> bool:
    if target in ("errors", "__version__", part) or part in TOP_LEVEL:
        return True
    if part in STANDALONE:
        return target == "files" or target in STANDALONE[part]
    if target in STANDALONE:
        return target in USES_STANDALONE.get(part, set())
    return part in LEVEL and target in LEVEL and LEVEL[target] < LEVEL[part]


def wrong_directions(path: pathlib.Path, text: str) -> list[str]:
    part = module_name(path)[1]
    found = []
    for item in imports_of(path, text):
        target = part_of(item.name)
        if part not in TOP_LEVEL and item.name == PACKAGE:
            found.append(f"{item}: name the part, the package gathers all of them")
        elif (
            target is not None
            and not may_import(part, target)
            and target not in BRIDGES.get(path.as_posix(), ())
        ):
            found.append(f"{item}: {part} may not import {target}")
    return found


def heavy_imports(path: pathlib.Path, text: str) -> list[str]:
    if module_name(path)[1] not in CORE | {"cli", "tasks"}:  # `mlxsparse --help` needs no extra
        return []
    needs = CORE_NEEDS | WITH_EXTRA.get(path.as_posix(), set())
    return [str(i) for i in imports_of(path, text) if i.at_import_time and i.name.split(".")[0] not in needs]


def unknown_part(path: pathlib.Path) -> bool:
    part = module_name(path)[1]
    return part not in LEVEL and part not in STANDALONE and part not in TOP_LEVEL


def sources(*folders: str) -> list[tuple[pathlib.Path, str]]:
    """Python files under `folders`: path from the checkout's root, and text."""
    return [
        (path.relative_to(ROOT), path.read_text(encoding="utf-8"))
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def test_imports_point_one_way() -> None:
    files = sources(PACKAGE)
    assert len(files) > 10
    assert [line for path, text in files for line in wrong_directions(path, text)] == []


def test_every_file_belongs_to_a_known_part() -> None:
    assert [str(path) for path, _ in sources(PACKAGE) if unknown_part(path)] == []


def test_the_core_imports_only_mlx_numpy_and_the_standard_library() -> None:
    assert [line for path, text in sources(PACKAGE) for line in heavy_imports(path, text)] == []


def test_files_are_at_most_400_lines() -> None:
    files = sources(PACKAGE, "tests", "examples", "benchmarks")
    lengths = {path.as_posix(): len(text.splitlines()) for path, text in files}
    assert {path: n for path, n in lengths.items() if n > MAX_LINES and path not in LONG_FILES} == {}
    assert [path for path in LONG_FILES if lengths.get(path, 0) <= MAX_LINES] == [], "no longer long: drop it"


PLANTED_DIRECTIONS = {
    "relative, up": ("engine/a.py", "from ..coords.manager import CoordinateManager"),
    "relative package, up": ("engine/a.py", "from .. import ops"),
    "absolute, up": ("tensor.py", "import mlxsparse.nn.conv"),
    "absolute from, up": ("ops/conv.py", "from mlxsparse import nn"),
    "sideways": ("blocksparse/a.py", "from ..coords import manager"),
    "inside a function": ("coords/a.py", "def f():\n    from ..tensor import SparseTensor"),
    "in a nested package": ("engine/deep/a.py", "from ...ops import conv"),
    "for types only": (
        "engine/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..tensor import SparseTensor",
    ),
    "the whole package": ("nn/a.py", "import mlxsparse"),
    "its names": ("nn/a.py", "from .. import SparseTensor"),
    "io sees a layer": ("io/pcd.py", "from ..ops import voxel"),
    "a bridge sees more than its layer": ("testing/adapt.py", "from ..engine import reduce"),
    "the oracle sees production code": ("testing/oracle/conv.py", "from ...engine import reduce"),
    "a layer uses testing": ("ops/a.py", "from ..testing.oracle import conv"),
    "files sees a layer": ("files.py", "from .backend import device"),
    "errors sees a layer": ("errors.py", "from .backend import device"),
}


@pytest.mark.parametrize("case", PLANTED_DIRECTIONS)
def test_planted_wrong_direction_is_found(case: str) -> None:
    path, text = PLANTED_DIRECTIONS[case]
    assert wrong_directions(pathlib.Path(PACKAGE, path), text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "ops/conv.py",
            "from ..engine.reduce import add\nfrom ..errors import ShapeError\nfrom . import algebra",
        ),
        ("coords/a.py", "from mlxsparse.backend import host"),
        ("__init__.py", "from . import cli, nn, testing"),
        ("cli/demo.py", "from ..tasks import segmentation\nfrom ..io.pcd import read"),
        ("testing/adapt.py", "from mlxsparse.tensor import SparseTensor"),
        ("io/a.py", "from ..errors import PointCloudError\nimport numpy"),
        ("io/a.py", "from .. import files"),
        ("backend/a.py", "from ..files import atomic_write"),
    ],
)
def test_right_directions_pass(path: str, text: str) -> None:
    assert wrong_directions(pathlib.Path(PACKAGE, path), text) == []


def test_planted_heavy_imports_are_found() -> None:
    core = pathlib.Path(PACKAGE, "engine", "a.py")
    assert heavy_imports(core, "import torch")
    assert heavy_imports(core, "try:\n    from numba import njit\nexcept ImportError:\n    njit = None")
    assert heavy_imports(core, "class A:\n    import tqdm")
    assert not heavy_imports(
        core, "import mlx.core as mx\nimport numpy as np\nimport os.path\ndef f():\n    import numba"
    )
    assert not heavy_imports(pathlib.Path(PACKAGE, "io", "las.py"), "import laspy")


def test_planted_unknown_part_is_found() -> None:
    assert unknown_part(pathlib.Path(PACKAGE, "helpers", "a.py"))
    assert not unknown_part(pathlib.Path(PACKAGE, "ops", "conv.py"))
