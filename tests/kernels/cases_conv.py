"""Cases of the convolution kernels, every dtype: forward, input gradient, weight gradient."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np

from mlxsparse.backend import kernel_conv as conv
from mlxsparse.testing import oracle

from .cases_coords import tables
from .common import DTYPES, LARGE, Case, close, equal, integers, repeats, sites, sized, values


def check(
    dtype: mx.Dtype,
    ci: int,
    co: int,
    kernel: tuple[int, int, int] = (3, 3, 3),
    stride: int = 1,
    groups: int = 1,
    n: int = 90,
    bias: bool = True,
    again: bool = False,
) -> None:
    """Forward and both gradients against the oracle, on x and ct with padding rows of NaN at the end."""
    coords = sites(ci, n, sized(5, 16))
    p = tuple((k - 1) // 2 for k in kernel)
    out = coords if stride == 1 else oracle.touched_support(coords, kernel, stride, p)
    pairs = oracle.conv_pairs(coords, out, kernel, stride, p)
    taps = int(np.prod(kernel))
    padding = 3  # rows at the end of both sides that no pair names
    nbr, back = tables(pairs, taps, len(coords) + padding, len(out) + padding)
    x, x64 = padded_values(1, (len(coords), ci), padding, dtype)
    w, w64 = values(2, (co, taps, ci // groups), dtype)
    b, b64 = values(3, (co,), mx.float32)
    ct, ct64 = padded_values(4, (len(out), co), padding, dtype)
    shaped = w64.reshape(co, *kernel, ci // groups)
    _, wanted = oracle.conv3d(
        coords, x64, shaped, b64 if bias else None, stride=stride, padding=p, groups=groups, out_coords=out
    )
    nbr_mx, back_mx = integers(nbr), integers(back)
    y = conv.conv_forward(x, w, nbr_mx, b if bias else None, groups=groups, active=len(out))
    close(y[: len(out)], wanted, dtype, "y")
    equal(y[len(out) :].astype(mx.float32), np.zeros((padding, co)), "padding of y")
    where = {"out_coords": out, "stride": stride, "padding": p, "groups": groups}
    dx64, dw64, _ = oracle.conv_gradients(coords, x64, shaped, ct64, **where)
    dx = conv.conv_input_grad(ct, w, back_mx, groups=groups)
    close(dx[: len(coords)], dx64, dtype, "dx")
    equal(dx[len(coords) :].astype(mx.float32), np.zeros((padding, ci)), "padding of dx")
    close(conv.conv_weight_grad(ct, x, nbr_mx, groups=groups), dw64.reshape(w64.shape), dtype, "dw")
    if again:
        repeats(
            lambda: [
                conv.conv_forward(x, w, nbr_mx, b, groups=groups, active=len(out)),
                conv.conv_input_grad(ct, w, back_mx, groups=groups),
                conv.conv_weight_grad(ct, x, nbr_mx, groups=groups),
            ]
        )


def padded_values(
    seed: int, shape: tuple[int, int], padding: int, dtype: mx.Dtype
) -> tuple[mx.array, np.ndarray]:
    """Values with `padding` more rows of NaN, and the values alone in float64."""
    a, v = values(seed, shape, dtype)
    return mx.concatenate([a, mx.full((padding, shape[1]), float("nan"), dtype)]), v


def empty(dtype: mx.Dtype) -> None:
    """No outputs, no inputs, no pairs."""
    w, _ = values(2, (5, 27, 4), dtype)
    for n, m in ((0, 0), (0, 3), (3, 0), (3, 3)):
        nbr, back = mx.full((27, m), -1, mx.int32), mx.full((27, n), -1, mx.int32)
        x, ct = mx.ones((n, 4), dtype), mx.ones((m, 5), dtype)
        equal(conv.conv_forward(x, w, nbr).astype(mx.float32), np.zeros((m, 5)))
        equal(conv.conv_input_grad(ct, w, back).astype(mx.float32), np.zeros((n, 4)))
        equal(conv.conv_weight_grad(ct, x, nbr).astype(mx.float32), np.zeros((5, 27, 4)))


def out_of_range(dtype: mx.Dtype) -> None:
    """A table that names rows which do not exist reads nothing outside x: such pairs are none."""
    x, x64 = values(1, (20, 4), dtype)
    w, w64 = values(2, (5, 1, 4), dtype)
    rows = np.array([[0, 19, 20, 2**31 - 1, -2, -(2**31), 5]])
    inside = (rows[0] >= 0) & (rows[0] < 20)
    wanted = np.where(inside[:, None], x64[np.where(inside, rows[0], 0)] @ w64[:, 0].T, 0)
    close(conv.conv_forward(x, w, integers(rows)), wanted, dtype)
    ct, ct64 = values(3, (7, 5), dtype)
    dw = ct64[inside].T @ x64[rows[0][inside]]
    close(conv.conv_weight_grad(ct, x, integers(rows)), dw[:, None], dtype)


def long_run(dtype: mx.Dtype) -> None:
    """Several partial weight gradients."""
    n = sized(4096 + 40, 300_000)
    x, x64 = values(1, (n, 3), dtype)
    ct, ct64 = values(2, (n, 2), dtype)
    nbr = np.where(np.arange(n) % 5 == 0, -1, np.arange(n)[::-1])[None]
    hit = nbr[0] >= 0
    close(conv.conv_weight_grad(ct, x, integers(nbr)), (ct64[hit].T @ x64[nbr[0][hit]])[:, None], dtype, "dw")


def parts_in_order(dtype: mx.Dtype) -> None:
    for number in (1, 7, 8, 9, 21):
        parts, parts64 = values(1, (number, 5, 60), mx.float32)
        close(conv.sum_parts(parts, dtype), parts64.sum(axis=0), dtype, f"sum of {number}")


SHAPES = {
    "3_to_5_channels": {"ci": 3, "co": 5},
    "one_site": {"ci": 4, "co": 4, "n": 1},
    "40_to_72_channels": {"ci": 40, "co": 72, "kernel": (3, 1, 3), "n": sized(70, 2000)},
    "strided": {"ci": 16, "co": 24, "stride": 2, "bias": False, "n": sized(90, 1500), "again": True},
    "groups": {"ci": 12, "co": 8, "groups": 4, "n": sized(70, 800)},
    "depthwise": {"ci": 6, "co": 6, "groups": 6, "n": sized(50, 800)},
    "125_taps": {"ci": 3, "co": 4, "kernel": (5, 5, 5), "n": sized(30, 800)},
    "1000_channels": {"ci": 1000, "co": 3, "kernel": (1, 1, 2), "n": sized(30, 500)},
    "to_1000_channels": {"ci": 3, "co": 1000, "kernel": (1, 2, 1), "n": sized(20, 300)},
}

CASES: dict[str, Case] = {}
for _name, _dtype in DTYPES.items():
    for _shape, _options in SHAPES.items():
        if _name != "f32" and not LARGE and _shape in ("depthwise", "125_taps", "to_1000_channels"):
            continue  # what differs there does not depend on the dtype
        CASES[f"{_shape}-{_name}"] = partial(check, _dtype, **_options)
    CASES[f"empty-{_name}"] = partial(empty, _dtype)
    CASES[f"parts_in_order-{_name}"] = partial(parts_in_order, _dtype)
    CASES[f"out_of_range-{_name}"] = partial(out_of_range, _dtype)
CASES["long_run-f32"] = partial(long_run, mx.float32)
