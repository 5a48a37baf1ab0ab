"""Kernel maps, max pooling and voxels of the real spconv (CPU build, no torch), as NumPy functions.

Coordinates are int32 (N, 4) rows (batch, x, y, z); all triples follow x, y, z. Taps are numbered row-major,
the last axis fastest. spconv keeps an output order of its own: compare by coordinates, not by row.

A tensorview made from a NumPy array does not keep it alive, so each array stays in a variable until the call
is over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

if os.environ.get("OMP_NUM_THREADS") != "1":
    raise RuntimeError(
        "set OMP_NUM_THREADS=1 before importing this: spconv's CPU build is racy with more threads"
    )

from cumm import tensorview as tv
from spconv.core_cc.csrc.sparse.all import SpconvOps
from spconv.core_cc.csrc.sparse.all.ops_cpu3d import Point2VoxelCPU

Triple = Sequence[int]


class Pairs(NamedTuple):
    """``out_indices`` int32 (M, 4); ``pairs`` of (tap, input row, output row), each once."""

    out_indices: np.ndarray
    pairs: list[tuple[int, int, int]]


class _Arrays(NamedTuple):
    """What spconv reads and fills, in the order of its arguments."""

    indices: np.ndarray
    pairs: np.ndarray  # int32 (2, taps, N): input row, output row, or -1
    out_indices: np.ndarray
    counts: np.ndarray

    def tensors(self) -> list[Any]:
        return [tv.from_numpy(array) for array in self]


def _arrays(indices: np.ndarray, ksize: Triple, out_indices: np.ndarray) -> _Arrays:
    if indices.dtype != np.int32 or indices.ndim != 2 or indices.shape[1] != 4 or len(indices) == 0:
        raise ValueError(f"indices: wanted int32 (N, 4) with N > 0, got {indices.dtype} {indices.shape}")
    taps = int(np.prod(ksize))
    pairs = np.full((2, taps, len(indices)), -1, np.int32)
    return _Arrays(np.ascontiguousarray(indices), pairs, out_indices, np.zeros(taps, np.int32))


def _list(pairs: np.ndarray) -> list[tuple[int, int, int]]:
    # The counts that spconv returns leave out the centre of a submanifold kernel, so the -1 marks are read.
    taps, columns = np.nonzero(pairs[0] >= 0)
    return [(int(t), int(pairs[0, t, c]), int(pairs[1, t, c])) for t, c in zip(taps, columns)]


def subm_pairs(indices: np.ndarray, spatial_shape: Triple, ksize: Triple, dilation: Triple) -> Pairs:
    """Submanifold map: in = out + (tap - ksize // 2) * dilation. Odd ksize only."""
    arrays = _arrays(indices, ksize, indices.copy())
    batch_size = int(indices[:, 0].max()) + 1
    SpconvOps.generate_subm_conv_inds_cpu(
        *arrays.tensors(), batch_size, list(spatial_shape), list(ksize), list(dilation)
    )
    return Pairs(arrays.out_indices, _list(arrays.pairs))


def output_shape(
    spatial_shape: Triple, ksize: Triple, stride: Triple, padding: Triple, dilation: Triple, transposed: bool
) -> list[int]:
    """Output size per axis. spconv's transposed size ignores dilation; this is the full one."""
    span = [d * (k - 1) for k, d in zip(ksize, dilation)]
    if transposed:
        return [(n - 1) * s - 2 * p + r + 1 for n, s, p, r in zip(spatial_shape, stride, padding, span)]
    return [(n + 2 * p - r - 1) // s + 1 for n, s, p, r in zip(spatial_shape, stride, padding, span)]


def conv_pairs(
    indices: np.ndarray,
    spatial_shape: Triple,
    ksize: Triple,
    stride: Triple,
    padding: Triple,
    dilation: Triple,
    transposed: bool = False,
) -> Pairs:
    """Strided map: in = out * stride - padding + tap * dilation; transposed: out and in change places."""
    room = np.zeros((int(np.prod(ksize)) * len(indices), 4), np.int32)
    arrays = _arrays(indices, ksize, room)
    num_out = SpconvOps.generate_conv_inds_cpu(
        *arrays.tensors(),
        int(indices[:, 0].max()) + 1,
        output_shape(spatial_shape, ksize, stride, padding, dilation, transposed),
        list(spatial_shape),
        list(ksize),
        list(stride),
        list(padding),
        list(dilation),
        transposed,
    )
    return Pairs(arrays.out_indices[:num_out], _list(arrays.pairs))


def max_pool(feats: np.ndarray, pairs: Pairs) -> np.ndarray:
    """float32 (M, C) maxima over each output's inputs: spconv's own loop, started at -inf, not at 0."""
    feats = np.ascontiguousarray(feats, np.float32)
    out = np.full((len(pairs.out_indices), feats.shape[1]), -np.inf, np.float32)
    by_tap: dict[int, list[tuple[int, int]]] = {}
    for tap, row, out_row in pairs.pairs:
        by_tap.setdefault(tap, []).append((out_row, row))
    for rows in by_tap.values():
        out_rows, in_rows = (np.array(column, np.int32) for column in zip(*rows))
        SpconvOps.maxpool_forward_cpu(*(tv.from_numpy(array) for array in (out, feats, out_rows, in_rows)))
    return out


class Voxels(NamedTuple):
    """``coords`` int32 (V, 3) xyz, ``counts`` int32 (V,), ``point_to_voxel`` int64 (N,), -1 where dropped."""

    coords: np.ndarray
    counts: np.ndarray
    point_to_voxel: np.ndarray


def voxelize(
    points: np.ndarray,
    voxel_size: Sequence[float],
    bounds: tuple[Sequence[float], Sequence[float]],
    max_voxels: int,
    max_points: int,
) -> Voxels:
    """spconv's Point2Voxel on float32 (N, 3) points; voxels in the order of their first point."""
    points = np.ascontiguousarray(points, np.float32)
    lower, upper = bounds
    size, box = [float(v) for v in voxel_size], [float(v) for v in (*lower, *upper)]
    state = Point2VoxelCPU(size, box, points.shape[1], max_voxels, max_points)
    ids = np.full(len(points), -1, np.int64)
    _, coords, counts = Point2VoxelCPU.point_to_voxel_static(
        tv.from_numpy(points),
        state.voxels,
        state.indices,
        state.num_per_voxel,
        state.densehashdata,
        tv.from_numpy(ids),
        *Point2VoxelCPU.calc_meta_data(size, box),
        True,
    )
    return Voxels(coords.numpy()[:, ::-1].copy(), counts.numpy().copy(), ids)
