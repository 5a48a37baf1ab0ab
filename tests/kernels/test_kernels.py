"""Every kernel case on the CPU executor, in the plain order and under random schedules.

`make check-kernels` runs the same cases under sanitizers, checks the texts, and plants mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

from mlxsparse.backend import library
from tools.metalcheck import toolchain
from tools.metalcheck.executor import Mode, metal_kernel_factory

from . import (
    cases_attend,
    cases_bits,
    cases_blocks,
    cases_conv,
    cases_coords,
    cases_fixed,
    cases_norm,
    cases_order,
    cases_rows,
    cases_segments,
    cases_sites,
    cases_tiles,
)

LACKING = toolchain.missing()
pytestmark = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
PARTS = {
    "attend": cases_attend,
    "bits": cases_bits,
    "blocks": cases_blocks,
    "coords": cases_coords,
    "fixed": cases_fixed,
    "sites": cases_sites,
    "conv": cases_conv,
    "tiles": cases_tiles,
    "norm": cases_norm,
    "order": cases_order,
    "rows": cases_rows,
    "segments": cases_segments,
}
CASES = {f"{part}-{name}": case for part, module in PARTS.items() for name, case in module.CASES.items()}
FACTORIES = [metal_kernel_factory(Mode(seed=seed)) for seed in (0, 1)]


@pytest.fixture(autouse=True, scope="module")
def cpu() -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    for make in FACTORIES:
        with library.using(make):
            CASES[name]()
