"""Chains of created sets and their maps by kernels, against the host: as bits, by sorting, counted ahead."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.backend import executor, kernel_bits
from mlxsparse.backend.kernel_sites import Extent
from mlxsparse.coords import CoordinateManager, ahead
from mlxsparse.coords.geometry import Kernel
from mlxsparse.errors import CapacityError, CoordinateRangeError, DuplicateCoordinatesError

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


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sets that each read counts; nothing is known yet."""
    found: list[int] = []
    counted = kernel_bits.counted

    def count(coords, sets, *more):
        found.append(len(sets))
        return counted(coords, sets, *more)

    monkeypatch.setattr(kernel_bits, "counted", count)
    monkeypatch.setattr(ahead, "_followed", {})
    monkeypatch.setattr(ahead, "_bounds", {})
    monkeypatch.setattr(ahead, "_mapped", {})
    return found


def test_gpu_counts_levels_ahead_in_one_read(reads: list[int]) -> None:
    x = cloud(60, 2)
    wanted = levels(x.coords, (2, 2, 2), x.num_active)
    with kernels():
        for expected in ([0, 1, 1, 1], [3], [3]):
            reads.clear()
            got = levels(x.coords, (2, 2, 2), x.num_active)
            assert reads == expected
            for a, b in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(a, b)


def test_gpu_guesses_that_are_wrong_change_nothing(reads: list[int]) -> None:
    """Other strides than the last time, other bounds, no level at all."""
    x = cloud(60, 2)
    far = x.coords + mx.array([0, 3, -200, 5], mx.int32) * (x.coords[:, :1] >= 0)
    near = x.coords
    for strides, coords in ((2, 2), near), ((2, 3), near), ((3,), near), ((2, 2), far), ((2, 2), far):
        rows = x.num_active
        wanted = levels(coords, strides, rows)
        with kernels():
            got = levels(coords, strides, rows)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert reads == [0, 1, 1] + [2, 1] + [2, 1] + [1, 2, 1] + [2]
    reads.clear()
    with kernels():
        for _ in range(3):
            CoordinateManager().insert(far, active_rows=x.num_active, batch_size=3)
    assert reads == [2, 2, 0]


def test_gpu_touched_sets_are_counted_ahead(reads: list[int]) -> None:
    x = cloud(60, 2)

    def run() -> list[np.ndarray]:
        manager = CoordinateManager()
        key = manager.insert(x.coords, active_rows=x.num_active, batch_size=3)
        first = manager.stride(key, 2, kernel_size=3, padding=1, support="touched")
        second = manager.stride(first, 2)
        return [np.array(first.coords), np.array(second.coords)]

    wanted = run()
    with kernels():
        for expected in ([0, 1, 1], [1, 1], [1, 1]):
            reads.clear()
            for a, b in zip(run(), wanted, strict=True):
                np.testing.assert_array_equal(a, b)
            assert reads == expected


def test_gpu_checks_do_not_depend_on_guesses(reads: list[int]) -> None:
    x = cloud(60, 2)
    rows = np.array(x.coords)[: x.num_active]
    twice, low, late = rows.copy(), rows.copy(), rows.copy()
    twice[5], low[3, 0], late[2, 0] = twice[1], -1, 3
    with kernels():
        for _ in range(2):
            manager = CoordinateManager()
            manager.stride(manager.insert(rows, batch_size=3), 2)
            with pytest.raises(DuplicateCoordinatesError):
                manager.insert(twice, batch_size=3)
            for wrong in (low, late):
                with pytest.raises(CoordinateRangeError):
                    manager.insert(wrong, batch_size=3)
        key = manager.insert(rows, batch_size=3)
        with pytest.raises(CapacityError):
            manager.stride(key, 2, capacity=3)


def test_gpu_own_maps_are_made_ahead(reads: list[int]) -> None:
    """Of the kernel that the last cloud was asked for; not after two that were not asked."""
    x = cloud(60, 2)
    rows = np.array(x.coords)[: x.num_active]
    three, five = Kernel.submanifold(3), Kernel.submanifold((5, 1, 1))

    def map_of(kernel: Kernel) -> tuple[np.ndarray, ...]:
        manager = CoordinateManager()
        key = manager.insert(rows, batch_size=3)
        made.append([*key._record.own])
        found = manager.kernel_map(key, key, kernel)
        if executor() == "kernel":
            found.relation.output.tiles  # noqa: B018, what a convolution asks for
            found.relation.input.tiles  # noqa: B018
        pairs = np.column_stack([np.repeat(np.arange(kernel.volume), np.diff(found.tap_ptr)), found.out_rows])
        order = np.lexsort(pairs.T[::-1])
        return pairs[order], np.array(found.in_rows)[order]

    made: list[list[Kernel]] = []
    wanted = {kernel: map_of(kernel) for kernel in (three, five)}
    made.clear()
    with kernels():
        for kernel in (three, three, five, five, three):
            for a, b in zip(map_of(kernel), wanted[kernel], strict=True):
                np.testing.assert_array_equal(a, b)
        assert made == [[], [three], [three], [five], [five]]
        twice = rows.copy()
        twice[5] = twice[1]
        with pytest.raises(DuplicateCoordinatesError):
            CoordinateManager().insert(twice, batch_size=3)
        kept = [CoordinateManager().insert(rows, batch_size=3)._record.own for _ in range(3)]
        assert [[*own] for own in kept] == [[three], [], []]
        # A path that does not read the ordered map has not asked for it.
        map_of(three)
        made.clear()
        for _ in range(3):
            key = CoordinateManager().insert(rows, batch_size=3)
            made.append([*key._record.own])
            mx.eval(key.manager.kernel_map(key, key, three).relation.output.table)
        assert made == [[three], [three], []]


def test_gpu_bounds_that_are_expected_grow_and_shrink(reads: list[int]) -> None:
    one, far = Extent((0, 0, 0), (10, 10, 10), 2), Extent((0, 4, 0), (10, 10, 10), 2)
    ahead.seen((1,), one)
    ahead.seen((1,), far)
    assert ahead.bounds((1,)) == Extent((0, 0, 0), (10, 14, 10), 2)
    ahead.seen((1,), one)
    assert ahead.bounds((1,)) == Extent((0, 0, 0), (10, 14, 10), 2)
    small = Extent((1, 1, 1), (3, 3, 3), 1)
    ahead.seen((1,), small)
    assert ahead.bounds((1,)) == small
