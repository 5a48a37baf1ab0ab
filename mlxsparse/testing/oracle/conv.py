"""Convolution, its transpose, their gradients, and a dense correlation by plain loops."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mlxsparse.errors import ShapeError
from mlxsparse.testing.oracle.relation import (
    Array,
    Pair,
    Triple,
    conv_pairs,
    conv_transpose_pairs,
    generative_support,
    inside,
    output_support,
    reached,
    subm_padding,
    taps,
    triple,
)


def _tap_matrices(weight: Array, groups: int) -> Array:
    """(Co, Kx, Ky, Kz, Ci / groups) -> (taps, Co, Ci), block diagonal, float64."""
    weight = np.asarray(weight, dtype=np.float64)
    out_channels, group_in = weight.shape[0], weight.shape[4]
    if out_channels % groups:
        raise ShapeError(f"groups={groups} does not divide the {out_channels} output channels of weight")
    by_tap = weight.reshape(out_channels, -1, group_in).transpose(1, 0, 2)
    full = np.zeros((by_tap.shape[0], out_channels, group_in * groups))
    for co in range(out_channels):
        first = (co // (out_channels // groups)) * group_in
        full[:, co, first : first + group_in] = by_tap[:, co]
    return full


def _weight_gradient(by_tap: Array, weight_shape: tuple[int, ...], groups: int) -> Array:
    """(taps, Co, Ci) -> (Co, Kx, Ky, Kz, Ci / groups): the blocks that exist."""
    out_channels, group_in = weight_shape[0], weight_shape[4]
    rows = []
    for co in range(out_channels):
        first = (co // (out_channels // groups)) * group_in
        rows.append(by_tap[:, co, first : first + group_in])
    return np.stack(rows).reshape(weight_shape)


def _apply(
    pairs: Iterable[Pair], rows: int, feats: Array, weight: Array, bias: Array | None, groups: int
) -> Array:
    matrices, feats = _tap_matrices(weight, groups), np.asarray(feats, dtype=np.float64)
    if matrices.shape[2] != feats.shape[1]:
        raise ShapeError(f"weight reads {matrices.shape[2]} channels, feats has {feats.shape[1]}")
    out = np.zeros((rows, matrices.shape[1]))
    for pair in pairs:
        out[pair.out_row] += matrices[pair.tap] @ feats[pair.in_row]
    return out if bias is None else out + np.asarray(bias, dtype=np.float64)


def _gradients(
    pairs: Iterable[Pair], feats: Array, weight: Array, grad: Array, groups: int
) -> tuple[Array, Array, Array]:
    matrices, feats = _tap_matrices(weight, groups), np.asarray(feats, dtype=np.float64)
    grad = np.asarray(grad, dtype=np.float64)
    dfeats, dmatrices = np.zeros_like(feats), np.zeros_like(matrices)
    for pair in pairs:
        dfeats[pair.in_row] += matrices[pair.tap].T @ grad[pair.out_row]
        dmatrices[pair.tap] += np.outer(grad[pair.out_row], feats[pair.in_row])
    return dfeats, _weight_gradient(dmatrices, np.shape(weight), groups), grad.sum(axis=0)


def subm_conv3d(
    coords: Array,
    feats: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    dilation: Triple = 1,
    padding: Triple | None = None,
    groups: int = 1,
) -> Array:
    """Submanifold convolution: features (N, Co) on the rows of `coords`."""
    kernel = np.shape(weight)[1:4]
    p = subm_padding(kernel, dilation) if padding is None else padding
    return _apply(
        conv_pairs(coords, coords, kernel, 1, p, dilation), len(coords), feats, weight, bias, groups
    )


def conv3d(
    coords: Array,
    feats: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    groups: int = 1,
    support: str = "touched",
    out_coords: Array | None = None,
    spatial_shape: Triple | None = None,
) -> tuple[Array, Array]:
    """Convolution onto the touched sites, the parents, or `out_coords`: (out_coords, features)."""
    kernel = np.shape(weight)[1:4]
    out = output_support(coords, kernel, stride, padding, dilation, support, out_coords, spatial_shape)
    pairs = conv_pairs(coords, out, kernel, stride, padding, dilation)
    return out, _apply(pairs, len(out), feats, weight, bias, groups)


def conv_transpose3d(
    coords: Array,
    feats: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    groups: int = 1,
    out_coords: Array,
) -> Array:
    """Transposed convolution onto the rows of `out_coords`: features (M, Co)."""
    pairs = conv_transpose_pairs(coords, out_coords, np.shape(weight)[1:4], stride, padding, dilation)
    return _apply(pairs, len(out_coords), feats, weight, bias, groups)


def generative_conv_transpose3d(
    coords: Array,
    feats: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    groups: int = 1,
    spatial_shape: Triple | None = None,
) -> tuple[Array, Array]:
    """Transposed convolution onto every site it reaches: (out_coords, features)."""
    out = generative_support(coords, np.shape(weight)[1:4], stride, padding, dilation, spatial_shape)
    where = {"stride": stride, "padding": padding, "dilation": dilation, "out_coords": out}
    return out, conv_transpose3d(coords, feats, weight, bias, groups=groups, **where)  # type: ignore[arg-type]


def conv_gradients(
    coords: Array,
    feats: Array,
    weight: Array,
    grad: Array,
    *,
    out_coords: Array,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """Gradients (dfeats, dweight, dbias) of sum(grad * conv3d(...)); submanifold: out_coords = coords."""
    pairs = conv_pairs(coords, out_coords, np.shape(weight)[1:4], stride, padding, dilation)
    return _gradients(pairs, feats, weight, grad, groups)


def conv_transpose_gradients(
    coords: Array,
    feats: Array,
    weight: Array,
    grad: Array,
    *,
    out_coords: Array,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    groups: int = 1,
) -> tuple[Array, Array, Array]:
    """Gradients (dfeats, dweight, dbias) of sum(grad * conv_transpose3d(...))."""
    pairs = conv_transpose_pairs(coords, out_coords, np.shape(weight)[1:4], stride, padding, dilation)
    return _gradients(pairs, feats, weight, grad, groups)


def dense_conv3d(
    array: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    groups: int = 1,
) -> Array:
    """Dense correlation of (B, X, Y, Z, Ci) by plain loops, zero padding: (B, X', Y', Z', Co)."""
    array, matrices = np.asarray(array, dtype=np.float64), _tap_matrices(weight, groups)
    kernel, s, p, d = triple(np.shape(weight)[1:4]), triple(stride), triple(padding), triple(dilation)
    size = array.shape[1:4]
    out_size = [(size[a] + 2 * p[a] - d[a] * (kernel[a] - 1) - 1) // s[a] + 1 for a in range(3)]
    out = np.zeros((array.shape[0], *(max(n, 0) for n in out_size), matrices.shape[1]))
    for batch, x, y, z in np.ndindex(out.shape[:4]):
        for t, tap in enumerate(taps(kernel)):
            site = reached((batch, x, y, z), tap, s, p, d)
            if inside(site, size):
                out[batch, x, y, z] += matrices[t] @ array[site]
    return out if bias is None else out + np.asarray(bias, dtype=np.float64)
