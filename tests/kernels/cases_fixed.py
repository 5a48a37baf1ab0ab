"""Cases of the norm by given statistics, every dtype: ReLU, an added array, padding, odd widths, views."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend.kernel_fixed import fixed_norm

from .common import DTYPES, Case, as_float, close, equal, sized, values

EPS = 1e-3


def parameters(channels: int, kind: mx.Dtype) -> tuple[list[mx.array], list[np.ndarray]]:
    """Mean, variance, weight, bias."""
    made = [values(seed, (channels,), kind)[0] for seed in (1, 2, 3, 4)]
    made[1] = mx.abs(made[1]) + mx.array(0.5, kind)
    return made, [as_float(a) for a in made]


def norm(dtype: mx.Dtype, kind: mx.Dtype | None = None) -> None:
    kind = dtype if kind is None else kind
    sizes = (1, 3, 1), (70, 32, 70), (300, 20, 290), (9, 300, 9), (5, 8, 0), (sized(900, 90_000), 64, 77)
    for n, c, active in sizes:
        given, (mean, var, w, b) = parameters(c, kind)
        x, _ = values(5, (n, c), dtype)
        x = mx.concatenate([x[:active], mx.full((n - active, c), float("nan"), dtype)])
        more, more64 = values(6, (n, c), dtype)
        whole = (as_float(x)[:active] - mean) / np.sqrt(var + EPS) * w + b
        for added, relu in ((False, False), (False, True), (True, True), (True, False)):
            call = fixed_norm((n, c), dtype, kind, EPS, active, added=added, relu=relu)
            y = call(x, *given, *([more] if added else []))
            wanted = whole + more64[:active] if added else whole
            close(y[:active], np.maximum(wanted, 0) if relu else wanted, dtype, "rows", least=4.0)
            equal(as_float(y[active:]), np.zeros((n - active, c)), "padding")


def counted(dtype: mx.Dtype) -> None:
    """The number of active rows in an array; rows that begin anywhere in their buffer."""
    given, (mean, var, w, b) = parameters(24, mx.float32)
    whole, _ = values(5, (50, 25), dtype)
    x = whole.reshape(-1)[1 : 1 + 40 * 24].reshape(40, 24)
    call = fixed_norm((40, 24), dtype, mx.float32, EPS, mx.array(33, mx.int32), added=False, relu=True)
    y = call(x, *given)
    wanted = np.maximum((as_float(x)[:33] - mean) / np.sqrt(var + EPS) * w + b, 0)
    close(y[:33], wanted, dtype, "rows", least=4.0)
    equal(as_float(y[33:]), np.zeros((7, 24)), "padding")


CASES: dict[str, Case] = {}
for _name, _dtype in DTYPES.items():
    CASES[f"norm-{_name}"] = partial(norm, _dtype)
    CASES[f"counted-{_name}"] = partial(counted, _dtype)
    if _dtype != mx.float32:
        CASES[f"norm_of_float32-{_name}"] = partial(norm, _dtype, mx.float32)
