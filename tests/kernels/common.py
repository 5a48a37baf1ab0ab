"""What the kernel cases share: inputs, comparisons, and how large they are.

A case is a function without arguments that calls the kernel library and raises where a result is wrong. They
run on the CPU executor (tests/kernels, `make check-kernels`) and on a GPU (tests/gpu/run_kernels.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import mlx.core as mx
import numpy as np

Case = Callable[[], None]
# On a GPU the cases are larger; the CPU executor runs a few thousand threads a second under a sanitizer.
LARGE = os.environ.get("MLXSPARSE_KERNEL_CASES") == "large"
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
TOLERANCE = {mx.float32: 2e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}  # of the largest magnitude


def sized(small: int, large: int) -> int:
    return large if LARGE else small


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def sites(seed: int, n: int, side: int = 6, batches: int = 2) -> np.ndarray:
    """At most n distinct (batch, x, y, z) rows in random order, batches interleaved, some negative."""
    r = rng(seed)
    drawn = np.column_stack([r.integers(0, batches, n), r.integers(-side // 2, side // 2 + 1, (n, 3))])
    distinct = np.unique(drawn, axis=0)
    return r.permutation(distinct).astype(np.int32)


def values(seed: int, shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Random values of `dtype`, and exactly those in float64."""
    a = mx.array(rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)
    return a, as_float(a)


def shifted(a: mx.array) -> mx.array:
    """`a` as a view that starts one element into its buffer: not aligned to 16 bytes."""
    flat = a.reshape(-1)
    return mx.concatenate([flat[:1], flat])[1:].reshape(a.shape)


def as_float(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32)).astype(np.float64)


def integers(a: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(a, dtype=np.int32))


def equal(got: mx.array | np.ndarray, wanted: np.ndarray, what: str = "result") -> None:
    if isinstance(got, mx.array) and got.dtype == mx.bfloat16:
        got = got.astype(mx.float32)
    g = np.array(got)
    assert g.shape == np.shape(wanted), f"{what}: shape {g.shape}, wanted {np.shape(wanted)}"
    wrong = np.argwhere(g != wanted)
    assert not len(wrong), f"{what}: {len(wrong)} of {g.size} differ, first at {wrong[0].tolist()}"


def close(
    got: mx.array, wanted: np.ndarray, dtype: mx.Dtype, what: str = "result", *, least: float = 1e-30
) -> None:
    assert got.dtype == dtype, f"{what}: {got.dtype}, wanted {dtype}"
    g = as_float(got)
    assert g.shape == wanted.shape, f"{what}: shape {g.shape}, wanted {wanted.shape}"
    if not g.size:
        return
    assert np.isfinite(g).all(), f"{what}: {(~np.isfinite(g)).sum()} elements are not finite"
    error = np.abs(g - wanted).max() / max(np.abs(wanted).max(), least)
    assert error < TOLERANCE[dtype], f"{what}: relative error {error:.2e}"


def repeats(make: Callable[[], list[mx.array]], times: int | None = None) -> None:
    """The same bits every time."""
    first = [np.array(a.astype(mx.float32)) for a in make()]
    for _ in range((times or sized(2, 20)) - 1):
        for a, b in zip(first, make()):
            assert np.array_equal(a, np.array(b.astype(mx.float32)), equal_nan=True), (
                "results differ between runs"
            )
