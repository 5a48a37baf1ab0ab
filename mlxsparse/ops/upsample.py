"""From a coarse lattice to known sites of a finer one: average unpooling, nearest, trilinear."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import host
from ..backend.kernel_coords import floor_divide
from ..coords import CoordinateMapKey, Kernel, static
from ..coords.geometry import TripleLike
from ..engine import interpolate, pooling, rows_kernel
from ..errors import IdentityError
from ..tensor import SparseTensor
from .check import check_tensor
from .conv import Target, transposed_key


def pool_transpose3d(
    x: SparseTensor, kernel_size: TripleLike, stride: TripleLike | None = None, *, out: Target
) -> SparseTensor:
    """Mean of the inputs that reach each output, ``out = in * s + k``; 0 where there is none.

    The result's stride is ``x.stride / stride`` (StrideError unless exact), stride defaults to the
    kernel size. `out`, a tensor, a key or (n, 4) int32 coordinates of that stride, gives the rows.
    float32 sums; the gradient of each output is shared equally by its inputs.
    """
    check_tensor(x)
    kernel = Kernel.of(kernel_size, kernel_size if stride is None else stride)
    key = transposed_key(x, kernel, out)
    pairs = x.manager.kernel_map(key, x.key, kernel).by_taps.transposed()
    return SparseTensor._of(key, pooling.sum_pool(x.feats, pairs, key.capacity, pooling.mean_scale(pairs)), x)


def upsample_nearest(x: SparseTensor, scale: TripleLike, *, out: Target | None = None) -> SparseTensor:
    """Each site o of `out` gets the value of the coarse site floor(o / scale); 0 where that is not there.

    The result's stride is ``x.stride / scale`` (StrideError unless exact). `out` is a tensor, a key
    or (n, 4) int32 coordinates of that stride; default the live key that x's key was made from, else
    IdentityError.
    """
    check_tensor(x)
    kernel = Kernel.of(scale, scale)
    key = _fine_key(x, kernel, out, "upsample_nearest")
    # One tap reaches each output, by the map that a convolution or pooling with K = s has made.
    pairs = x.manager.kernel_map(key, x.key, kernel).by_taps.transposed()
    return SparseTensor._of(key, pooling.sum_pool(x.feats, pairs, key.capacity), x)


def subdivide(x: SparseTensor, scale: TripleLike = 2, *, capacity: int | None = None) -> SparseTensor:
    """Each site becomes its prod(scale) children, all of which get its value: TRELLIS's SparseSubdivide.

    The children of site c are c * scale + k, 0 <= k < scale, sorted by (batch, x, y, z). Their stride is
    ``x.stride / scale`` (StrideError unless exact): sites that nothing coarser was made from, such as those
    of a generated latent, are given theirs by ``SparseTensor(..., stride=)``. `spatial_shape` grows by
    scale. capacity: rows of the result, as for generative_conv_transpose3d.
    """
    check_tensor(x)
    size = Kernel.of(scale, scale).stride
    key = x.manager.stride(x.key, size, kernel_size=size, support="generative", capacity=capacity)
    return upsample_nearest(x, size, out=key)


def upsample_trilinear(x: SparseTensor, scale: TripleLike, *, out: Target | None = None) -> SparseTensor:
    """Each site of `out` interpolated between the 8 coarse voxel centres around its own centre.

    The centre of fine site o lies at (o + 1/2) / scale - 1/2 in units of coarse sites. Coarse sites
    that are not there share out their weight; without any of the 8 the value is 0. `out`, strides
    and errors as in upsample_nearest.
    """
    check_tensor(x)
    kernel = Kernel.of(scale, scale)
    key = _fine_key(x, kernel, out, "upsample_trilinear")
    if x.key.static or key.static:
        return SparseTensor._of(key, _interpolated(x, key, kernel), x)
    sites = host.view(key.coords)[: key.count].astype(np.int64)
    low, part = [], []
    for axis, s in enumerate(kernel.stride):
        place = 2 * sites[:, axis + 1] + (1 - s)  # in halves of a fine site, hence exact
        low.append(np.floor_divide(place, 2 * s))
        part.append((place - 2 * s * low[-1]) / (2 * s))
    rows, weights = interpolate.corners(x.key.index, sites[:, 0], low, part)
    return SparseTensor._of(key, interpolate.interpolate(x.feats, rows, weights, key.capacity), x)


def _interpolated(x: SparseTensor, key: CoordinateMapKey, kernel: Kernel) -> mx.array:
    """upsample_trilinear on the device, reading nothing."""
    scale = mx.array(kernel.stride, mx.int32)
    site = floor_divide(key.coords[:, 1:], kernel.stride)
    past = 2 * (key.coords[:, 1:] - site * scale) + 1 - scale  # its centre, in halves of a fine site
    low = mx.where(past < 0, site - 1, site)
    part = mx.where(past < 0, past + scale + scale, past).astype(mx.float32) / (2 * scale.astype(mx.float32))
    rows, weights = [], []
    for corner in np.ndindex(2, 2, 2):
        step = mx.array(corner, mx.int32)
        there = mx.concatenate([key.coords[:, :1], low + step], axis=1)
        weight = mx.prod(mx.where(step == 1, part, 1 - part), axis=1)
        found = mx.where(weight > 0, static.rows_of(x.key, there), -1)
        rows.append(found.astype(mx.int32))
        weights.append(mx.where(found < 0, 0, weight))
    table, weight = mx.stack(rows), mx.stack(weights)
    total = weight.sum(axis=0)
    return rows_kernel.interpolate_on_device(x.feats, table, weight / mx.where(total > 0, total, 1))


def _fine_key(x: SparseTensor, kernel: Kernel, out: Target | None, name: str) -> CoordinateMapKey:
    try:
        return transposed_key(x, kernel, out)
    except IdentityError:
        raise IdentityError(
            f"{name} needs out=: no live tensor of stride {x.stride} / {kernel.stride} is known that this "
            "input's sites were made from; pass out=skip, the tensor whose sites are wanted"
        ) from None
