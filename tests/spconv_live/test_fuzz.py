"""mlxsparse against the real spconv on random small cases: kernel maps, outputs and gradients, bit for bit.

Features and weights are small integers, so float32 sums are exact in any order. 3,000 convolution and pooling
cases by default; SPCONV_FUZZ_SEEDS (as "3,4,5") and SPCONV_FUZZ_CASES (per seed and operator) choose others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse
from mlxsparse import ops
from mlxsparse.coords.geometry import Kernel
from tests.spconv_live import live
from tests.spconv_live.cases import KINDS, Case, random_case
from tests.spconv_live.test_live import spconv_map

SEEDS = [int(seed) for seed in os.environ.get("SPCONV_FUZZ_SEEDS", "0,1,2").split(",")]
CASES = int(os.environ.get("SPCONV_FUZZ_CASES", "250"))
NUMBERS = [seed * 10_000 + number for seed in SEEDS for number in range(CASES)]

Array = np.ndarray[Any, Any]
Layer = Callable[[mlxsparse.SparseTensor, mx.array], mlxsparse.SparseTensor]


def sites(coords: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for row in np.asarray(coords).tolist()]


def tensor_of(case: Case) -> mlxsparse.SparseTensor:
    return mlxsparse.SparseTensor(
        case.coords,
        mx.array(case.feats.astype(np.float32)),
        # A transposed operator divides the stride, so its input starts on the coarse lattice.
        stride=case.stride if case.transposed else 1,
        batch_size=case.batch_size,
        spatial_shape=case.spatial_shape,
    )


def layer_of(case: Case) -> Layer:
    s, p, d = case.stride, case.padding, case.dilation
    layers: dict[str, Layer] = {
        "subm": lambda x, w: ops.subm_conv3d(x, w, dilation=d),
        "conv": lambda x, w: ops.conv3d(x, w, stride=s, padding=p, dilation=d),
        "transposed": lambda x, w: ops.generative_conv_transpose3d(x, w, stride=s, padding=p, dilation=d),
        "pool": lambda x, w: ops.max_pool3d(x, case.ksize, s, p, d),
    }
    return layers[case.kind]


def map_of(case: Case, x: mlxsparse.SparseTensor, y: mlxsparse.SparseTensor) -> list[tuple[int, int, int]]:
    """(tap, input row, output row) of mlxsparse's kernel map, sorted."""
    kernel = Kernel.of(case.ksize, case.stride, case.padding, case.dilation)
    found = x.manager.kernel_map(*((y.key, x.key) if case.transposed else (x.key, y.key)), kernel)
    taps = np.repeat(np.arange(kernel.volume), np.diff(found.tap_ptr))
    ins, outs = (found.out_rows, found.in_rows) if case.transposed else (found.in_rows, found.out_rows)
    return sorted(zip(taps.tolist(), ins.tolist(), outs.tolist()))


def check_rows(case: Case, y: mlxsparse.SparseTensor, out_indices: Array) -> Array:
    """The same sites, in the promised order; the row of y for each row of spconv."""
    rows = {site: row for row, site in enumerate(sites(y.coords))}
    assert sorted(rows) == sorted(sites(out_indices)), str(case)
    assert len(rows) == y.capacity == len(out_indices)
    if case.kind == "subm":
        assert sites(y.coords) == sites(case.coords)
    else:
        assert sites(y.coords) == sorted(rows), "created supports are sorted by (batch, x, y, z)"
    return np.array([rows[site] for site in sites(out_indices)], np.int64)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pool"])
def test_convolution(kind: str, number: int) -> None:
    case = random_case(kind, number)
    out_indices, pairs = spconv_map(case)
    x, w = tensor_of(case), mx.array(case.weight.astype(np.float32))
    layer = layer_of(case)
    y = layer(x, w)
    row_of = check_rows(case, y, out_indices)
    pairs = [(tap, i, int(row_of[o])) for tap, i, o in pairs]
    assert map_of(case, x, y) == sorted(pairs), str(case)

    taps = case.weight.reshape(len(case.weight), -1, case.weight.shape[-1])  # (Co, taps, Ci)
    grad_out = np.random.default_rng(number).integers(-3, 4, (len(out_indices), len(case.weight)))
    out = np.zeros_like(grad_out)
    grad_x, grad_w = np.zeros_like(case.feats), np.zeros_like(taps)
    for tap, i, o in pairs:
        out[o] += taps[:, tap] @ case.feats[i]
        grad_x[i] += taps[:, tap].T @ grad_out[o]
        grad_w[:, tap] += np.outer(grad_out[o], case.feats[i])
    assert np.array_equal(np.asarray(y.feats), out), str(case)

    def loss(feats: mx.array, weight: mx.array) -> mx.array:
        return (layer(x.replace(feats), weight).feats * mx.array(grad_out.astype(np.float32))).sum()

    got_x, got_w = mx.grad(loss, argnums=(0, 1))(x.feats, w)
    assert np.array_equal(np.asarray(got_x), grad_x), str(case)
    assert np.array_equal(np.asarray(got_w), grad_w.reshape(case.weight.shape)), str(case)


@pytest.mark.parametrize("number", NUMBERS)
def test_max_pool(number: int) -> None:
    case = random_case("pool", number)
    found = spconv_map(case)
    x = tensor_of(case)
    y = layer_of(case)(x, mx.zeros(0))
    row_of = check_rows(case, y, found.out_indices)
    assert map_of(case, x, y) == sorted((tap, i, int(row_of[o])) for tap, i, o in found.pairs), str(case)
    assert np.array_equal(np.asarray(y.feats)[row_of], live.max_pool(case.feats, found)), str(case)


@pytest.mark.parametrize("number", range(100))
def test_voxelize(number: int) -> None:
    rng = np.random.default_rng(number)
    size = rng.choice([0.05, 0.1, 0.2, 0.25, 0.5], 3)
    cells, lower = rng.integers(1, 8, 3), rng.integers(-3, 4, 3) * size
    upper = lower + cells * size
    points = rng.uniform(lower - size, upper + size, (int(rng.integers(1, 200)), 3)).astype(np.float32)
    points[rng.random(len(points)) < 0.05, 0] = np.nan
    limits = {"max_voxels": int(rng.integers(1, 60)), "max_points": int(rng.integers(1, 5))}
    right = live.voxelize(points, size, (lower, upper), **limits)
    voxels = mlxsparse.voxelize(mx.array(points), voxel_size=size.tolist(), bounds=(lower, upper), **limits)
    mine = [site[1:] for site in sites(voxels.tensor.coords)]
    assert mine == sorted(sites(right.coords))
    assert dict(zip(mine, np.asarray(voxels.counts).tolist())) == dict(zip(sites(right.coords), right.counts))
    place = [mine.index(site) for site in sites(right.coords)] + [-1]  # index -1: a dropped point
    assert np.asarray(voxels.point_to_voxel).tolist() == [place[i] for i in right.point_to_voxel]
