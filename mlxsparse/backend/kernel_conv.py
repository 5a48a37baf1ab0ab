"""Convolution on the GPU over neighbour tables: forward, input gradient, weight gradient.

Weights are (Co, T, Ci / groups). Sums run in fp32 in a fixed order and are rounded once; the same input gives
the same bits.
"""

from __future__ import annotations

import functools
import math
import os
import re

import mlx.core as mx

from ..errors import MLXSparseError, ShapeError
from .library import blocks, check_array, filled, launch, on_cuda, unread

THREADS = 128
BM, BN = 64, 32  # rows and channels of a tile in conv.metal
GRAD_TILE = 32  # output and input channels of a tile in conv_weight_grad.metal
RUN = 4096  # output rows of one partial weight gradient, at least
MAX_RUNS = 64
FP32_MODES = {"tf32": 0, "": 1, "near": 1, "exact": 2}


def fp32_mode(dtype: mx.Dtype) -> int:
    """How CUDA multiplies float32 (kernels/tile.h): MLXSPARSE_FP32 = near (default), exact or tf32."""
    if dtype != mx.float32:
        return 0
    mode = os.environ.get("MLXSPARSE_FP32", "")
    if mode not in FP32_MODES:
        raise MLXSparseError(f'MLXSPARSE_FP32 must be "near", "exact" or "tf32", got {mode!r}')
    return FP32_MODES[mode]


def products_in_tf32() -> bool:
    """Whether MLX's own products of float32 are in TF32: on CUDA, and on Apple's GPUs from the M5 on."""
    return on_cuda() or _neural_accelerators()


@functools.cache
def _neural_accelerators() -> bool:
    if not mx.metal.is_available() or os.environ.get("MLX_ENABLE_TF32") == "0":
        return False
    generation = re.fullmatch(r"\D*(\d+)\D", str(mx.device_info(mx.gpu).get("architecture", "")))
    return generation is not None and int(generation[1]) >= 17


def _check_weight(w: mx.array, taps: int, groups: int) -> None:
    check_array("weight", w, 3)
    if w.shape[1] != taps:
        raise ShapeError(f"weight {tuple(w.shape)} has {w.shape[1]} taps, the kernel map has {taps}")
    if groups < 1 or w.shape[0] % groups:
        raise ShapeError(f"groups={groups} does not divide the {w.shape[0]} output channels of weight")


def conv_forward(
    x: mx.array,
    w: mx.array,
    nbr: mx.array,
    bias: mx.array | None = None,
    *,
    groups: int = 1,
    active: int | mx.array | None = None,
) -> mx.array:
    """y[o] = bias + sum over taps t of W[t] x[nbr[t, o]].

    x (N, Ci); w (Co, T, Ci / groups) of x's dtype; nbr (T, M) int32, -1 where there is no pair; bias (Co,).
    -> (M, Co) of x's dtype; rows at and past `active` (default M) are 0. Rows of x that nbr does not name are
    not read.
    """
    check_array("x", x, 2)
    check_array("nbr", nbr, 2, mx.int32)
    _check_weight(w, nbr.shape[0], groups)
    co, taps, red = w.shape
    if x.shape[1] != red * groups:
        raise ShapeError(
            f"x has {x.shape[1]} channels, weight {tuple(w.shape)} with groups={groups} takes {red * groups}"
        )
    strides = (co // groups * taps * red, taps * red, red, 1)
    return _gemm(x, w, nbr, bias, red, co // groups, groups, strides, active)


def conv_input_grad(ct: mx.array, w: mx.array, back: mx.array, *, groups: int = 1) -> mx.array:
    """Gradient of x: ct (M, Co) of w's dtype, w (Co, T, Ci / groups), back (T, N) int32 -> (N, Ci)."""
    check_array("ct", ct, 2)
    check_array("back", back, 2, mx.int32)
    _check_weight(w, back.shape[0], groups)
    co, taps, ci = w.shape
    if ct.shape[1] != co:
        raise ShapeError(f"ct has {ct.shape[1]} channels, weight {tuple(w.shape)} gives {co}")
    strides = (co // groups * taps * ci, 1, ci, taps * ci)
    return _gemm(ct, w, back, None, co // groups, ci, groups, strides, None)


def _gemm(
    x: mx.array,
    w: mx.array,
    nbr: mx.array,
    bias: mx.array | None,
    red: int,
    outs: int,
    groups: int,
    strides: tuple[int, int, int, int],
    active: int | mx.array | None,
) -> mx.array:
    """strides: of weight, for a group, an output channel, a tap, a reduced channel."""
    taps, m = nbr.shape
    if bias is None:
        start = unread()
    elif bias.shape != (groups * outs,):
        raise ShapeError(f"bias has shape {tuple(bias.shape)}, wanted {(groups * outs,)}")
    else:
        start = bias.astype(mx.float32)
    rows = m if active is None else active
    dims = [x.shape[0], m, taps, red, outs, groups, *strides, int(bias is not None), rows]
    grid = (blocks(m, BM), blocks(outs, BN), groups)
    shape = (m, groups * outs)
    inputs = [x, w, start, nbr]
    exact = fp32_mode(x.dtype)
    return launch("conv", inputs, dims, [shape], grid, THREADS, dtype=x.dtype, EXACT=exact)[0]


def conv_weight_grad(ct: mx.array, x: mx.array, nbr: mx.array, *, groups: int = 1) -> mx.array:
    """Gradient of w: (Co, T, Ci / groups), from ct (M, Co), x (N, Ci) of one dtype and nbr (T, M) int32.

    Rows of ct whose taps all have no pair are not read.
    """
    check_array("ct", ct, 2)
    check_array("x", x, 2)
    check_array("nbr", nbr, 2, mx.int32)
    taps, m = nbr.shape
    co, ci = ct.shape[1], x.shape[1]
    if ct.shape[0] != m:
        raise ShapeError(f"ct has {ct.shape[0]} rows, the kernel map has {m} outputs")
    if groups < 1 or co % groups or ci % groups:
        raise ShapeError(f"groups={groups} must divide the {ci} input and {co} output channels")
    red, outs = ci // groups, co // groups
    rows = max(RUN, blocks(blocks(m, MAX_RUNS), 32) * 32)  # a run; few runs bound the partial sums' memory
    runs = blocks(m, rows)
    along_red = blocks(red, GRAD_TILE)
    tiles = along_red * blocks(outs, GRAD_TILE)
    dims = [x.shape[0], m, taps, red, outs, groups, rows, along_red, tiles]
    grid = (runs, taps, groups * tiles)
    shape = (runs, co, taps, red)
    exact = fp32_mode(x.dtype)
    parts = launch(
        "conv_weight_grad", [ct, x, nbr], dims, [shape], grid, THREADS, dtype=x.dtype, EXACT=exact
    )[0]
    return sum_parts(parts, x.dtype)


def sum_parts(parts: mx.array, dtype: mx.Dtype) -> mx.array:
    """Sum over the first axis of float32 partial results, in order, rounded once to `dtype`."""
    shape = parts.shape[1:]
    n = math.prod(shape)
    if n == 0 or parts.shape[0] == 0:
        return filled(shape, 0, dtype)
    return launch("sum_parts", [parts], [parts.shape[0], n], [shape], (blocks(n, 256), 1, 1), dtype=dtype)[0]
