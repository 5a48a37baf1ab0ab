"""`python -m tools.metalcheck.mutate [FILE ...]`: breaks kernels in small ways, counts what is noticed.

A mutant lacks one barrier, has one comparison off by one or turned, or one address space dropped or swapped.
It is noticed when its text is refused or one of the cases that run its kernel fails in any mode. Some mutants
mean the same as the kernel: EQUIVALENT says why. Other survivors are listed: they lack a case.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from mlxsparse.backend import library

from . import toolchain
from .__main__ import all_cases, run_cases
from .check import text_checking_factory
from .executor import Mode, metal_kernel_factory
from .lint import without_comments

# Each in a process of its own: a mutant may write anywhere, or never end.
MODES = [*(Mode(seed=s, sanitizer="address") for s in (0, 1, 2)), Mode(seed=3, sanitizer="thread")]
_TURNED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_HEADERS = ("attend.h", "coord_hash.h", "norm.h", "rows.h", "stage.h", "tile.h")
# (file, broken line) of mutants that mean the same as the kernel, and why.
EQUIVALENT = {
    ("block_softmax.metal", "for (int pass = 0; pass <= 2; pass++) {"): "the last pass again",
    ("block_softmax_grad.metal", "for (int pass = 0; pass <= 2; pass++) {"): "the last pass again",
    (
        "conv.metal",
        "if (tid <= BM && row0 + tid < rows_out) "
        "j = nbr[size_t(t) * size_t(rows_out) + size_t(row0 + tid)];",
    ): "only the flag of the third simdgroup changes, which nobody reads",
    ("conv.metal", "if (thread_index_in_simdgroup == 1u) live[flag + sg] = any ? 1 : 0;"): (
        "another lane writes the same value"
    ),
    (
        "conv.metal",
        "if (live[flag] + live[flag + 1] >= 0) { "
        "// the same for the whole threadgroup: only simdgroups 0 and 1 have rows",
    ): "the test only skips work",
    ("conv.metal", "for (int c0 = 0; c0 <= red; c0 += BK) {"): "one more chunk of zeros",
    ("conv_weight_grad.metal", "for (int first = run * dims[6]; first <= last; first += BK) {"): (
        "one more chunk of zeros"
    ),
    (
        "conv_weight_grad.metal",
        "if (simd_any(j >= 0 && j <= rows_in)) { // every simdgroup looks at the same 32 rows",
    ): "the test only skips work",
    (
        "coord_hash_insert.metal",
        "if (entry >= mine) atomic_fetch_min_explicit(&slots[slot], mine, memory_order_relaxed);",
    ): "the lower of two equal entries is either",
    ("norm_apply.metal", "for (int r = first + row; r <= last; r += U * R) {"): "one more pass over no row",
    ("norm_apply.metal", "z.set(i, relu && value <= 0.0f ? 0.0f : value);"): "0 either way",
    ("norm_grad.metal", "for (int r = first + row; r <= last; r += U * R) {"): "one more pass over no row",
    ("norm_moments.metal", "if (row <= R) {"): "rows of no part, which count nothing",
    ("norm_moments.metal", "mean = last >= first ? mean / float(last - first) : 0.0f;"): "not read",
    (
        "norm_moments.metal",
        "int n = row <= R ? max(last - first - row + R - 1, 0) / R : 0; // rows of this thread",
    ): "threads whose sums are dropped",
    ("norm_sums.metal", "if (row <= R) {"): "what nobody adds",
    ("norm_sums.metal", "for (int r = first + row; r <= last; r += U * R) {"): "one more pass over no row",
    ("stage.h", "if (wide && n > VEC) {"): "whole vectors are copied by elements, the same values",
    (
        "tap_tiles.metal",
        "if (thread_index_in_simdgroup == 1u) "
        "masks[size_t(place / 32u) * size_t((dims[2] + 31) / 32) + size_t(word)] = taps;",
    ): "another lane writes the same value",
}


class Mutant(NamedTuple):
    file: str
    line: int
    what: str
    text: str

    @property
    def reason(self) -> str | None:
        """Why it means the same as the kernel, where it does."""
        return EQUIVALENT.get((self.file, self.text.splitlines()[self.line - 1].strip()))


def mutants(file: str) -> Iterator[Mutant]:
    original = library.text(file)
    code = without_comments(original)

    def changed(start: int, end: int, by: str, what: str) -> Mutant:
        return Mutant(file, code.count("\n", 0, start) + 1, what, original[:start] + by + original[end:])

    for m in re.finditer(r"threadgroup_barrier\([^;]*;", code):
        yield changed(*m.span(), ";", "barrier removed")
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
    make = metal_kernel_factory()
    for name, case in cases.items():
        seen: set[str] = set()

        def watching(kernel: str, *rest: Any, seen: set[str] = seen) -> Any:
            run = make(kernel, *rest)

            def call(**given: Any) -> Any:
                seen.add(library.plain_name(kernel))
                return run(**given)

            return call

        run_cases(watching, {name: case})
        for kernel in seen:
            for file in (f"{kernel}.metal", *library.KERNELS[kernel].headers):
                found.setdefault(file, {})[name] = case
    return found


def noticed(mutant: Mutant, cases: dict[str, Callable[[], None]]) -> str | None:
    """How the checks notice a mutant: "text", a mode, or None."""
    original = library.text
    library.text = lambda file: mutant.text if file == mutant.file else original(file)  # type: ignore[assignment]
    try:
        for mode in MODES:
            report: dict[str, list[str]] = {}
            make = metal_kernel_factory(mode)
            for name, case in cases.items():  # one after another: the first failure is enough
                failed = run_cases(text_checking_factory(report, make), {name: case})
                if any(report.values()):
                    return "text"
                if failed:
                    return f"{mode.sanitizer} sanitizer, seed {mode.seed}"
        return None
    finally:
        library.text = original
        library._built.cache_clear()
        library._plan.cache_clear()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.metalcheck.mutate", description=__doc__)
    parser.add_argument("files", nargs="*", help="files of kernels/; default all kernels and headers")
    wanted = parser.parse_args().files
    lacking = toolchain.missing()
    if lacking:
        print(f"mutate: {lacking}", file=sys.stderr)
        return 2
    mx.set_default_device(mx.cpu)
    # One dtype tells as much as three about barriers and bounds.
    by_file = users({n: c for n, c in all_cases().items() if not n.endswith(("-f16", "-bf16"))})
    total, same, survivors, start = 0, 0, [], time.time()
    for file in wanted or [*(f"{name}.metal" for name in library.KERNELS), *_HEADERS]:
        caught: dict[str, int] = {}
        for mutant in mutants(file):
            if mutant.reason is not None:
                same += 1
                continue
            total += 1
            how = noticed(mutant, by_file[file])
            if how is None:
                survivors.append(f"{mutant.file}:{mutant.line}: {mutant.what}")
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
