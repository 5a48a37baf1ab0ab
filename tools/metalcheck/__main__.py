"""`python -m tools.metalcheck`: every check of every kernel. Exits 1 if one fails, 2 if a tool is
missing or no case is chosen."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import time
from collections.abc import Callable

import mlx.core as mx

from mlxsparse.backend import library

from . import selftest, toolchain
from .check import text_checking_factory
from .executor import Mode, metal_kernel_factory

PARTS = "attend bits blocks coords fixed sites conv tiles norm order rows segments".split()
CASES = tuple(f"cases_{part}" for part in PARTS)
MODES = {
    "plain order": [Mode()],
    "random schedules": [Mode(seed=s) for s in (1, 2, 3)],
    "address and undefined-behaviour sanitizers": [Mode(seed=4, sanitizer="address")],
    "thread sanitizer": [Mode(seed=5, sanitizer="thread")],
}


def all_cases() -> dict[str, Callable[[], None]]:
    found = {}
    for name in CASES:
        module = importlib.import_module(f"tests.kernels.{name}")
        found.update({f"{name.removeprefix('cases_')}/{case}": f for case, f in module.CASES.items()})
    return found


def run_cases(make: Callable[..., object], cases: dict[str, Callable[[], None]]) -> list[str]:
    """Failures of the cases with kernels made by `make`."""
    failures = []
    with library.using(make):
        for name, case in cases.items():
            try:
                case()
            except Exception as error:  # whatever a case raises is its failure
                failures.append(f"{name}: {type(error).__name__}: {str(error)[:1200]}")
    return failures


def one_of_16_bits(cases: dict[str, Callable[[], None]]) -> dict[str, Callable[[], None]]:
    """Of two cases for float16 and bfloat16 one, by turns: they differ in no address and no barrier."""
    pairs = [name.removesuffix("-bf16") for name in cases if name.endswith("-bf16")]
    pairs = [name for name in pairs if f"{name}-f16" in cases]
    left_out = {f"{name}-{'f16' if i % 2 else 'bf16'}" for i, name in enumerate(pairs)}
    return {name: case for name, case in cases.items() if name not in left_out}


def run_modes(modes: list[Mode], cases: dict[str, Callable[[], None]]) -> list[str]:
    return [f"{mode}: {line}" for mode in modes for line in run_cases(metal_kernel_factory(mode), cases)]


def check_text(cases: dict[str, Callable[[], None]], every: bool) -> list[str]:
    """Lint and address spaces of each kernel and dtype that the cases run; `every`: they must run all."""
    report: dict[str, list[str]] = {}
    failures = run_cases(text_checking_factory(report, metal_kernel_factory()), cases)
    for variant, errors in report.items():
        failures += [f"{variant}: {line}" for line in errors]
    for name, kernel in library.KERNELS.items() if every else ():
        for dtype in kernel.floats if "T" in kernel.template else ("",):
            wanted = f"{library.unique_name(name)}[" + (f"T={dtype}" if dtype else "")
            if not any(variant.startswith(wanted) for variant in report):
                failures.append(f"{wanted.rstrip('[')}: no case runs it")
    print(f"  {len(report)} variants of {len(library.KERNELS)} kernels")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.metalcheck", description=__doc__)
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases whose name contains TEXT")
    parser.add_argument("--no-selftest", action="store_true", help="do not plant mistakes first")
    options = parser.parse_args()
    lacking = toolchain.missing()
    if lacking:
        print(f"check-kernels: {lacking}", file=sys.stderr)
        return 2
    mx.set_default_device(mx.cpu)
    cases = {name: case for name, case in all_cases().items() if options.k in name}
    if not cases:
        print(f"check-kernels: no case has {options.k!r} in its name", file=sys.stderr)
        return 2
    steps: dict[str, Callable[[], list[str]]] = {}
    if not options.no_selftest:
        steps["planted mistakes in text"] = lambda: list(selftest.missed_in_text())
        steps["planted bugs at run time"] = lambda: list(selftest.missed_when_run())
    steps["text"] = lambda: check_text(cases, every=not options.k)
    for title, modes in MODES.items():
        apart = any(mode.sanitizer for mode in modes)  # a process for each launch
        steps[title] = functools.partial(run_modes, modes, one_of_16_bits(cases) if apart else cases)
    bad = 0
    for title, step in steps.items():
        start = time.time()
        failures = step()
        bad += len(failures)
        print(f"{'ok  ' if not failures else 'FAIL'} {title} ({time.time() - start:.1f} s)", flush=True)
        for line in failures:
            print(f"  {line}")
    print(f"{len(cases)} cases, {bad} failures")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
