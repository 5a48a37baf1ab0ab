"""`python -m tools.metalcheck.mutate [FILE ...]`: breaks kernels in small ways, counts what is noticed.

A mutant lacks one barrier, has one comparison off by one or turned, or one address space dropped or swapped.
It is noticed when its text is refused or one of the cases that run its kernel fails in any mode. Some mutants
mean the same as the kernel: EQUIVALENT says why. Other survivors are listed: they lack a case. Text that only
CUDA reads has no mutants.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from mlxsparse.backend import kernel_text, library

from . import toolchain
from .__main__ import all_cases, run_cases
from .check import text_checking_factory
from .equivalent import EQUIVALENT
from .executor import KernelError, Mode, metal_kernel_factory
from .lint import without_comments

# Each in a process of its own: a mutant may write anywhere, or never end.
MODES = [*(Mode(seed=s, sanitizer="address") for s in (0, 1, 2)), Mode(seed=3, sanitizer="thread")]
_TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
FILES = dict.fromkeys(
    file for name, kernel in library.KERNELS.items() for file in (f"{name}.metal", *kernel.headers)
)
UNCHANGED = metal_kernel_factory()  # of kernels beside the broken one


class Mutant(NamedTuple):
    file: str
    line: int
    what: str
    text: str

    @property
    def modes(self) -> list[Mode]:
        """The mode that notices most of its kind first."""
        return MODES[::-1] if self.what == "barrier removed" else MODES

    @property
    def of_spaces(self) -> bool:
        """Whether it breaks an address space: the only ones that the check of texts can refuse."""
        return self.what.startswith(("device ", "threadgroup "))

    @property
    def reason(self) -> str | None:
        """Why it means the same as the kernel, where it does."""
        line, before = (
            " ".join(map(str.strip, t.splitlines()[self.line - 1 : self.line + 2]))
            for t in (self.text, library.text(self.file))
        )
        known = EQUIVALENT.get(self.file, {})
        return next((why for part, why in known.items() if part in line and part not in before), None)


def _without_cuda(code: str) -> str:
    """`code`, blank where the prelude of CUDA defines STAGE_CUDA."""

    def blank(m: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", m.group())

    code = re.sub(r"(?ms)^#ifdef STAGE_CUDA$.*?^#(?:else|endif)$", blank, code)
    return re.sub(
        r"(?ms)(?<=^#ifndef STAGE_CUDA\n)((?:(?!^#).)*)(^#else$.*?^#endif$)",
        lambda m: m.group(1) + re.sub(r"[^\n]", " ", m.group(2)),
        code,
    )


def mutants(file: str) -> Iterator[Mutant]:
    original = library.text(file)
    code = without_comments(original)

    def changed(start: int, end: int, by: str, what: str) -> Mutant:
        return Mutant(file, code.count("\n", 0, start) + 1, what, original[:start] + by + original[end:])

    code = _without_cuda(code)
    for m in re.finditer(r"threadgroup_barrier\([^;]*;", code):
        yield changed(*m.span(), "/* no barrier */;", "barrier removed")
    for m in re.finditer(r"(?<= )(<=|>=|<|>)(?= )", code):
        yield changed(*m.span(), _TURNED[m.group()], f"{m.group()} became {_TURNED[m.group()]}")
    for m in re.finditer(r"\bdevice (?=[\w<>]+\*)|\bthreadgroup (?=[\w<>]+\*)", code):
        space = m.group().strip()
        other = "threadgroup" if space == "device" else "device"
        yield changed(*m.span(), "", f"{space} removed")
        yield changed(*m.span(), other + " ", f"{space} became {other}")
    for m in re.finditer(r"== 0u|!= 0(?!u)|== -1|\? -1", code):
        yield changed(
            *m.span(),
            {"== 0u": "== 1u", "!= 0": "== 0", "== -1": "== 0", "? -1": "? 0"}[m.group()],
            m.group(),
        )


def users(cases: dict[str, Callable[[], None]]) -> dict[str, dict[str, Callable[[], None]]]:
    """Text file -> the cases that run a kernel made from it."""
    found: dict[str, dict[str, Callable[[], None]]] = {}
    for name, case in cases.items():
        seen: set[str] = set()

        def watching(kernel: str, *rest: Any, seen: set[str] = seen) -> Any:
            run = UNCHANGED(kernel, *rest)

            def call(**given: Any) -> Any:
                seen.add(library.plain_name(kernel))
                return run(**given)

            return call

        run_cases(watching, {name: case})
        for kernel in seen:
            for file in (f"{kernel}.metal", *library.KERNELS[kernel].headers):
                found.setdefault(file, {})[name] = case
    return found


def _refusing(report: dict[str, list[str]], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` (a kernel factory) whose kernels are not run once a text was refused."""

    def factory(*of: Any) -> Any:
        runner = run(*of)

        def call(**given: Any) -> Any:
            if any(report.values()):
                raise KernelError("the text is refused")
            return runner(**given)

        return call

    return factory


def _affected(kernel: str, file: str) -> bool:
    return file == f"{kernel}.metal" or file in library.KERNELS[kernel].headers


def _beside(file: str, of_broken: Any, guarded: Any, behind: set[str]) -> Callable[..., Any]:
    """A factory of the broken kernel and the others, guarded behind it: its numbers may lead anywhere."""

    def make(kernel: str, *rest: Any) -> Any:
        if not _affected(library.plain_name(kernel), file):
            usual, careful = UNCHANGED(kernel, *rest), guarded(kernel, *rest)
            return lambda **given: (careful if behind else usual)(**given)
        run = of_broken(kernel, *rest)

        def call(**given: Any) -> Any:
            behind.add(kernel)
            return run(**given)

        return call

    return make


def noticed(mutant: Mutant, cases: dict[str, Callable[[], None]], modes: list[Mode]) -> str | None:
    """How the checks notice a mutant: "text", a mode, or None. The case that did moves to the front."""
    original = library.text
    kernel_text.text = library.text = (  # type: ignore[assignment]
        lambda file: mutant.text if file == mutant.file else original(file)
    )
    try:
        for mode in modes:
            report: dict[str, list[str]] = {}
            of_broken = metal_kernel_factory(mode)
            if mutant.of_spaces:
                of_broken = text_checking_factory(report, _refusing(report, of_broken))

            behind: set[str] = set()  # whether the broken kernel has run in this case

            make = _beside(mutant.file, of_broken, metal_kernel_factory(mode), behind)

            for name, case in cases.items():  # one after another: the first failure is enough
                behind.clear()
                failed = run_cases(make, {name: case})
                if not failed:
                    continue
                rest = {n: c for n, c in cases.items() if n != name}
                cases.clear()
                cases.update({name: case, **rest})
                return "text" if any(report.values()) else f"{mode.sanitizer} sanitizer, seed {mode.seed}"
        return None
    finally:
        kernel_text.text = library.text = original
        library._built.cache_clear()
        library._kernel.cache_clear()
        library._launch.cache_clear()


def _ranges(text: str) -> set[int]:
    """The numbers of "3,7-9"."""
    ends = [part.partition("-") for part in text.split(",")]
    return {n for first, _, last in ends for n in range(int(first), int(last or first) + 1)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.metalcheck.mutate", description=__doc__)
    parser.add_argument("files", nargs="*", help="files of kernels/; default all kernels and headers")
    parser.add_argument("--lines", type=_ranges, help="only mutants of these lines, as 29,30 or 40-60")
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases whose name contains TEXT")
    parser.add_argument("--quick", action="store_true", help="only the mode that notices most")
    options = parser.parse_args()
    wanted = options.files or list(FILES)
    lacking = toolchain.missing()
    if lacking:
        print(f"mutate: {lacking}", file=sys.stderr)
        return 2
    mx.set_default_device(mx.cpu)
    # One dtype tells as much as three about barriers and bounds.
    cases = {n: c for n, c in all_cases().items() if options.k in n}
    if not cases:
        print(f"mutate: no case has {options.k!r} in its name", file=sys.stderr)
        return 2
    first: dict[str, str] = {}  # case without its dtype -> the first such case
    for name in cases:
        first.setdefault(re.sub("-(f32|f16|bf16)$", "", name), name)
    by_file = users({n: cases[n] for n in first.values()})
    total, same, survivors, start = 0, 0, [], time.time()
    for file in wanted:
        cases = by_file[file]
        wrong = noticed(Mutant(file, 0, "nothing", library.text(file)), cases, MODES)
        if wrong is not None:
            print(f"mutate: {next(iter(cases))} fails as it is ({wrong})", file=sys.stderr)
            return 1
        caught: dict[str, int] = {}
        for mutant in mutants(file):
            if options.lines and mutant.line not in options.lines:
                continue
            if mutant.reason is not None:
                same += 1
                continue
            total += 1
            how = noticed(mutant, cases, mutant.modes[:1] if options.quick else mutant.modes)
            if how is None:
                survivors.append(f"{mutant.file}:{mutant.line}: {mutant.what}")
                print(f"  {survivors[-1]} ({time.time() - start:.0f} s)", flush=True)
            else:
                caught[how] = caught.get(how, 0) + 1
        print(f"{file}: {caught or 'no mutants'}", flush=True)
    print(
        f"{total - len(survivors)} of {total} mutants noticed ({time.time() - start:.0f} s), "
        f"{same} more mean the same; survivors:"
    )
    print("\n".join(f"  {line}" for line in survivors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
