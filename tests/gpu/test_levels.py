"""Chains of created sets and their maps by kernels, against the host: as bits, by sorting, counted ahead."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.backend import kernel_bits
from mlxsparse.coords import CoordinateManager
from mlxsparse.coords.geometry import Kernel

from . import test_operators
from .test_operators import cloud, kernels, on_the_cpu  # noqa: F401

pytestmark = getattr(test_operators, "pytestmark", [])

CHAINS = [(2, 2, 2), (2, 3), (2, 2, 2), (2, 2), (3, 2, 2)]


def levels(coords: mx.array, strides: tuple[int, ...], rows: int) -> list[np.ndarray]:
    """Coordinates of each level, and maps onto itself and from the level above as pairs in order."""
    manager = CoordinateManager()
    key = manager.insert(coords, active_rows=rows, batch_size=3)
    found = []
    for s in strides:
        below = manager.stride(key, s)
        onto, down, wide = Kernel.submanifold(3), Kernel.of(s, s), Kernel.of(3, s, 1)
        for a, b, kernel in ((below, below, onto), (key, below, down), (key, below, wide)):
            pairs = manager.kernel_map(a, b, kernel)
            tap = np.repeat(np.arange(kernel.volume), np.diff(np.array(pairs.tap_ptr)))
            rows_of = np.column_stack([tap, np.array(pairs.out_rows), np.array(pairs.in_rows)])
            found.append(rows_of[np.lexsort(rows_of.T[::-1])])
        found.append(np.array(below.coords))
        key = below
    return found


@pytest.mark.parametrize("bits", [True, False])
def test_gpu_levels_equal_the_hosts(bits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bits:
        monkeypatch.setattr(kernel_bits, "worthwhile", lambda *_: False)
    x = cloud(60, 2)
    for strides in CHAINS:
        wanted = levels(x.coords, strides, x.num_active)
        with kernels():
            got = levels(x.coords, strides, x.num_active)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_gpu_counts_levels_ahead_in_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxsparse.coords import device

    x = cloud(60, 2)
    reads: list[int] = []
    read = kernel_bits.counted
    monkeypatch.setattr(kernel_bits, "counted", lambda sets: reads.append(len(sets)) or read(sets))
    monkeypatch.setattr(device, "_followed", {})
    with kernels():
        for wanted in ([1, 1, 1], [3]):
            reads.clear()
            levels(x.coords, (2, 2, 2), x.num_active)
            assert reads == wanted
