"""Convolution and linear maps by kernels: gather_gemm.py and dense.py on a GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..backend import kernel_conv, kernel_fixed, kernel_tiles, tile_shapes, tuning
from ..backend.autodiff import Gradient, direct, prepared
from ..backend.library import factory
from . import conv_dense, conv_gather, finish, origin
from .device_map import DeviceMap, Side, identity
from .neighbors import TapPairs
from .tables import column_sums, device_map

Product = Callable[..., mx.array]  # of x, weight and, where there is one, bias


def convolve(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    relation: TapPairs | DeviceMap,
    rows: int,
    groups: int,
) -> mx.array:
    """As gather_gemm.convolve. The weight is used in x's dtype, as x is."""
    call = product("convolution", x, weight, bias, device_map(relation, x.shape[0], rows), groups)
    return call(x, weight) if bias is None else call(x, weight, bias)


def linear(x: mx.array, weight: mx.array, bias: mx.array | None, count: int | mx.array) -> mx.array:
    """As dense.linear: a convolution with one tap, from each active row to itself.

    MLX's own product multiplies float32 in TF32 on CUDA and an M5, which is a thousand times less exact.
    """
    call = product("linear", x, weight, bias, identity(x.shape[0], count), 1)
    return call(x, weight) if bias is None else call(x, weight, bias)


def case(x: mx.array, weight: mx.array, bias: mx.array | None) -> tuple[Any, ...]:
    """All that `product` makes its function from, but for the map and the groups: where the function is kept,
    this tells whether it fits.
    """
    dtype = x.dtype
    arrays = x.shape, dtype, weight.shape, weight.dtype, bias is None or (bias.shape, bias.dtype)
    chosen = tuple(tile_shapes.chosen.items()) if tile_shapes.chosen else None
    on_gpu = mx.default_device().type == mx.DeviceType.gpu  # the type itself is slow to hash
    return *arrays, factory(), on_gpu, tuning.state(), kernel_conv.fp32_mode(dtype), chosen


def _path(name: str, x: mx.array, weight: mx.array, pairs: DeviceMap, groups: int) -> str:
    if 0 in weight.shape[1:-1]:  # tiles without a tap have no place to write the bias to
        return "rows"
    if name != "convolution":
        return tuning.PATHS[0] if groups == 1 else "rows"
    dtype, grid = x.dtype, pairs.grid
    in_tf32 = kernel_conv.fp32_mode(dtype) == 0 or not kernel_conv.products_in_tf32()
    filled = None if grid is None else grid.filled
    return _choice(dtype, weight.shape, pairs.rows_out, groups, filled, in_tf32, tuning.state())


@functools.lru_cache(maxsize=1024)
def _choice(
    dtype: mx.Dtype,
    weight: tuple[int, ...],
    rows: int,
    groups: int,
    filled: int | None,
    in_tf32: bool,
    state: Any,
) -> str:
    """The path of a convolution. filled: of its grid, if it has one. in_tf32: MLX's own products will do,
    which may be in TF32 for float32. state: of the tuning, which changes the choice.
    """
    if groups > 1:
        possible: tuple[str, ...] = ("rows",)
    elif not in_tf32:
        possible = ("tiles", "rows")
    else:
        possible = tuple(path for path in tuning.PATHS if path != "dense" or filled is not None)
    return tuning.choose(_case(dtype, weight, rows, groups, filled), possible)


def tuning_case(dtype: mx.Dtype, weight: mx.array, pairs: DeviceMap, groups: int = 1) -> tuning.Case:
    """What the path of a convolution depends on."""
    filled = None if pairs.grid is None else pairs.grid.filled
    return _case(dtype, weight.shape, pairs.rows_out, groups, filled)


def _case(
    dtype: mx.Dtype, weight: tuple[int, ...], rows: int, groups: int, filled: int | None
) -> tuning.Case:
    name = str(dtype).removeprefix("mlx.core.")
    channels = weight[-1] * groups, weight[0]
    return tuning.Case(name, rows, math.prod(weight[1:-1]), *channels, 1 if filled is None else filled)


def product(
    name: str,
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    pairs: DeviceMap,
    groups: int,
    again: origin.Kind = None,
    ordered: bool = False,
    free: bool = False,
) -> Product:
    """The product over `pairs` of arrays of these shapes and dtypes, by a path of backend/tuning.py.

    weight: (Co, Ci / groups) with any axes of taps between. again: the kind of x's Origin; the function takes
    its arrays too, from which the gradient of the weight makes x again. ordered: that is computed first.
    free: the function is called where nobody asks for gradients (`traced`).
    """
    dtype, count = x.dtype, pairs.num_out
    shape = weight.shape[0], math.prod(weight.shape[1:-1]), weight.shape[-1]
    same, biased = weight.dtype == dtype, int(bias is not None)
    path = _path(name, x, weight, pairs, groups)
    if path == "gather":
        return lambda x, w, *b: conv_gather.convolve(x, w.reshape(shape), b[0] if biased else None, pairs)
    if path == "dense":
        grid = pairs.grid
        assert grid is not None  # what `_path` looks at
        return lambda x, w, *b: conv_dense.convolve(x, w, b[0] if biased else None, grid, count)
    tiled = path == "tiles"
    active = None if bias is None else count  # without a bias, rows without a pair are 0 as they are
    if tiled:
        tiles = pairs.output.tiles
        launch = kernel_tiles.product(x.shape, shape, dtype, tiles, bias is not None, active=active)

    launches: dict[str, Product] = {}  # of gradients, made when one is asked for

    def three(w: mx.array) -> mx.array:
        return w.reshape(shape).astype(dtype)

    def forward(x: mx.array, w: mx.array, *rest: mx.array) -> mx.array:
        b = rest[:biased]
        if tiled:  # which reads the weight as it lies
            return launch(x, w if same else w.astype(dtype), *b)
        start = b[0] if b else None
        return kernel_conv.conv_forward(x, three(w), pairs.output.table, start, groups=groups, active=active)

    if free:
        return direct(forward, mx.default_device())

    def input_gradient(ct: mx.array, x: mx.array, w: mx.array, *b: mx.array) -> mx.array:
        if not tiled:
            return kernel_conv.conv_input_grad(ct, three(w), pairs.input.table, groups=groups)
        call = launches.get("x")
        if call is None:
            side: Side = pairs.output if pairs.symmetric else pairs.input
            call = kernel_tiles.input_product(ct.shape, shape, dtype, side.tiles, flip=pairs.symmetric)
            launches["x"] = call
        return call(ct, w if same else w.astype(dtype))

    def weight_gradient(ct: mx.array, x: mx.array, w: mx.array, *rest: mx.array) -> mx.array:
        if again is not None:
            from_these = mx.depends(list(rest[biased:]), [ct])  # not before the pass back comes here
            x = origin.again(again, from_these, pairs.num_in)
        if not tiled:
            dw = kernel_conv.conv_weight_grad(ct, x, pairs.output.table, groups=groups)
            return dw.astype(w.dtype).reshape(w.shape)
        call = launches.get("w")
        if call is None:
            call = kernel_tiles.weight_product(ct.shape, x.shape, dtype, pairs.output.tiles, w.shape)
            launches["w"] = call
        dw = call(ct, x)
        return dw if same else dw.astype(w.dtype)

    def bias_gradient(ct: mx.array, x: mx.array, w: mx.array, b: mx.array, *_: mx.array) -> mx.array:
        return column_sums(ct, count).astype(b.dtype)

    gradients: tuple[Gradient, ...] = (input_gradient, weight_gradient)
    if bias is not None:
        gradients = (*gradients, bias_gradient)
    unread = [0] if again is not None else []
    return prepared(name, forward, gradients, mx.default_device(), unread=unread, ordered=ordered)


def finished(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    pairs: DeviceMap,
    groups: int,
    norm: finish.Norm,
) -> Product | None:
    """As `product`, with a norm in the same pass, where nobody differentiates; None: not possible.

    The function takes x, weight, bias or None, what is added or None, its weight or None, and the norm's
    parameters.
    """
    channels, add, mix, mixed = weight.shape[:1], norm.add, norm.mix, 0
    if any(a.shape != channels for a in norm.parameters) or pairs.rows_out == 0:
        return None
    width = channels
    if mix is not None:
        if mix.dtype != x.dtype or mix.ndim != 2 or mix.shape[:1] != channels:
            return None
        width, mixed = mix.shape[1:], mix.shape[1]
    if add is not None and (add.shape, add.dtype) != ((pairs.rows_out, *width), x.dtype):
        return None
    if _path("convolution", x, weight, pairs, groups) != "tiles":
        return None
    dtype, same = x.dtype, weight.dtype == x.dtype
    shape = weight.shape[0], math.prod(weight.shape[1:-1]), weight.shape[-1]
    kinds = {a.dtype for a in norm.parameters}
    own = kinds == {dtype}
    following = kernel_tiles.Finish(norm.relu, add is not None, mixed, norm.eps if own else None)
    launch = kernel_tiles.product(
        x.shape, shape, dtype, pairs.output.tiles, bias is not None, active=pairs.num_out, finish=following
    )
    kind, eps = kinds.pop() if len(kinds) == 1 else mx.float32, norm.eps  # not the norm, which holds arrays

    def forward(
        x: mx.array,
        w: mx.array,
        b: mx.array | None,
        add: mx.array | None,
        mix: mx.array | None,
        *parameters: mx.array,
    ) -> mx.array:
        if not own:
            line = kernel_fixed.line(channels[0], kind, eps)
            parameters = (line([a.astype(kind) for a in parameters])[0],)
        return launch(x, w if same else w.astype(dtype), b, parameters, add, mix)

    return direct(forward, mx.default_device())
