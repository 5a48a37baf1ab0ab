"""Running sums: right for every length, and never by a row that MLX's CUDA kernel takes in several rounds."""

from __future__ import annotations

import pathlib

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse
from mlxsparse.backend import running
from mlxsparse.blocks import keep_largest

LENGTHS = 0, 1, 2, 1023, 4095, 4096, 4097, 8192, 70_001


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the rows that MLX sums."""
    lengths: list[int] = []
    inner = mx.cumsum

    def cumsum(a: mx.array, axis: int) -> mx.array:
        lengths.append(a.shape[axis])
        return inner(a, axis=axis)

    monkeypatch.setattr(running.mx, "cumsum", cumsum)
    return lengths


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
def test_sums_along_the_last_axis(n: int, lead: tuple[int, ...], scanned: list[int]) -> None:
    values = np.random.default_rng(n).integers(-9, 9, (*lead, n)).astype(np.int32)
    wanted = np.cumsum(values, axis=-1, dtype=np.int32)
    for run in (running.running_sums, mx.compile(running.running_sums)):
        got = run(mx.array(values))
        assert got.dtype == mx.int32 and np.array_equal(np.array(got), wanted)
    assert max(scanned, default=0) <= 4096  # 4 elements of each of 1024 threads


def test_the_largest_of_a_long_row_are_counted_by_short_sums(scanned: list[int]) -> None:
    scores = mx.array(np.random.default_rng(0).integers(0, 3, (2, 9000)).astype(np.float32))
    kept, rows = np.array(keep_largest(scores, 5000)), np.array(scores)
    assert kept.sum(axis=1).tolist() == [5000, 5000] and 0 < max(scanned) <= 4096
    assert all(row[keep].min() >= row[~keep].max() for row, keep in zip(rows, kept))


def test_nothing_else_sums_by_mlx() -> None:
    folder = pathlib.Path(mlxsparse.__file__).parent
    calls = ("mx.cumsum", "mx.cumprod", "mx.cummax", "mx.cummin", "mx.logcumsumexp")
    found = [p.name for p in folder.rglob("*.py") if any(call in p.read_text("utf-8") for call in calls)]
    assert found == ["running.py"]
