"""What both sides of the GPU comparison share: timing of a call, and names of the cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

CLOUDS = ("surf_1m", "surf_100k")
CHANNELS = (32, 64, 128)
ALONE, REST = 5, 0.02  # calls by themselves, seconds before each: what let go of memory late has done so
LEVELS, BLOCKS, IN_CHANNELS, CLASSES = (32, 64, 128, 256), 2, 4, 20  # of the MinkUNet


def wanted(name: str, texts: Sequence[str]) -> bool:
    """Whether a case's name contains one of these."""
    return any(text in name for text in texts)


def measure(
    run: Callable[[], Any],
    wait: Callable[[Any], None],
    calls: int = 20,
    chain: Callable[[int], Any] | None = None,
    peak: Callable[[], int] | None = None,
    reset: Callable[[], None] = lambda: None,
    asleep: Callable[[Any], None] | None = None,
) -> dict[str, float]:
    """Milliseconds: median of synchronised calls, and mean of a chain of them inside one wait.

    wait(result) returns when the device has it. chain(n) makes n calls of which each needs the one before;
    default: n independent ones. peak(): the device's largest use of memory in bytes since reset(), with all
    that the case holds: of calls that have the device to themselves ("peak MiB"), and of the synchronised
    ones, each begun as soon as the one before it is done ("close MiB"). asleep: another wait, whose median
    is "eval", and whose calls the peaks are of.
    """
    for _ in range(3):
        wait(run())
    found: dict[str, float] = {}
    if asleep is not None:
        found["sync"] = _median(run, wait, calls)
    reset()
    found["sync" if asleep is None else "eval"] = _median(run, asleep or wait, calls)
    if peak is not None:
        found["close MiB"] = peak() // 2**20
        reset()
        for _ in range(ALONE):
            time.sleep(REST)
            (asleep or wait)(run())
        found["peak MiB"] = peak() // 2**20
    linked = chain or (lambda n: [run() for _ in range(n)])
    wait(linked(calls))
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        wait(linked(calls))
        best = min(best, (time.perf_counter() - start) / calls)
    return {**found, "chain": round(1e3 * best, 4)}


def _median(run: Callable[[], Any], wait: Callable[[Any], None], calls: int) -> float:
    """Milliseconds of a call that is waited for."""
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        wait(run())
        taken.append(time.perf_counter() - start)
    return round(1e3 * sorted(taken)[calls // 2], 4)
