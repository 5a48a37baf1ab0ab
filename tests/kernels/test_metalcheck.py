"""The checks themselves: the lint without clang, and that a planted mistake in a shipped kernel is found."""

from __future__ import annotations

import pytest

from mlxsparse.backend import kernel_text, library
from tools.metalcheck import __main__ as metalcheck
from tools.metalcheck import mutate, selftest, toolchain
from tools.metalcheck.lint import lint
from tools.metalcheck.planted_bugs import BUGS
from tools.metalcheck.planted_text import RIGHT, WRONG

LACKING = toolchain.missing()


@pytest.mark.parametrize(
    ("header", "body", "found"),
    [
        ("inline float f(const float* p) { return p[0]; }", "", "without an address space"),
        ("", "threadgroup int s = 0;", "initialiser"),
        ("", "if (i > 3u) return;\nthreadgroup_barrier(mem_flags::mem_threadgroup);", "return before"),
        ("", "// reads x_shape\n", "x_shape in a comment"),
        ("int counter = 0;", "", "constant address space"),
        ("struct S { int x; int f(int i) { return x + i; } };", "", "without `thread`"),
        ("", "int kernel = 1;", "reserves"),
        ("", "// \u00b5", "not ASCII"),
        ("", "out[0] = *(float*)t;", "without an address space"),
    ],
)
def test_lint_finds(header: str, body: str, found: str) -> None:
    assert any(found in line for line in lint(header, body))


def test_lint_accepts_right_text() -> None:
    assert [lint(header, body) for header, body in RIGHT.values()] == [[]] * len(RIGHT)


@pytest.mark.parametrize("name", library.KERNELS)
def test_shipped_kernels_pass_the_lint(name: str) -> None:
    assert lint(kernel_text.header(library.KERNELS[name]), library.text(f"{name}.metal")) == []


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_every_planted_mistake_in_text_is_found() -> None:
    assert len(WRONG) >= 60
    assert list(selftest.missed_in_text()) == []


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
@pytest.mark.parametrize(
    "name", ["missing barrier (TG write->read)", "CAS weak without loop", "TG OOB write"]
)
def test_planted_bugs_are_found(name: str) -> None:
    assert selftest.caught_by(name, BUGS[name])


def test_sanitizers_run_one_of_two_types_of_16_bits() -> None:
    from tools.metalcheck.__main__ import all_cases, one_of_16_bits

    cases = all_cases()
    some = one_of_16_bits(cases)
    left_out = set(cases) - set(some)
    assert {name.rpartition("-")[2] for name in left_out} == {"f16", "bf16"}
    for name in left_out:
        stem, _, kind = name.rpartition("-")
        assert f"{stem}-{'bf16' if kind == 'f16' else 'f16'}" in some


@pytest.mark.parametrize("main", [metalcheck.main, mutate.main])
def test_a_name_of_no_case_is_said(main, monkeypatch, capsys) -> None:
    monkeypatch.setattr(toolchain, "missing", lambda: None)
    monkeypatch.setattr("sys.argv", ["metalcheck", "-k", "nosuchcase"])
    assert main() == 2
    said = capsys.readouterr()
    assert said.out == "" and "no case has 'nosuchcase' in its name" in said.err
