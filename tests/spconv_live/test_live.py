"""The reader of spconv's maps is right: it agrees with a brute-force map. mlxsparse is not used."""

from __future__ import annotations

import numpy as np
import pytest

from tests.spconv_live import live
from tests.spconv_live.cases import KINDS, Case, brute_force_map, random_case


def spconv_map(case: Case) -> live.Pairs:
    if case.kind == "subm":
        return live.subm_pairs(case.coords, case.spatial_shape, case.ksize, case.dilation)
    return live.conv_pairs(
        case.coords, case.spatial_shape, case.ksize, case.stride, case.padding, case.dilation, case.transposed
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_maps_agree_with_brute_force(kind: str, seed: int) -> None:
    case = random_case(kind, 1_000_000 + seed)
    out, pairs = spconv_map(case)
    found = [(t, tuple(case.coords[i].tolist()), tuple(out[o].tolist())) for t, i, o in pairs]
    assert len(set(found)) == len(found)
    assert set(found) == brute_force_map(case), str(case)
    assert len(np.unique(out, axis=0)) == len(out)


def test_max_pool_does_not_start_from_zero() -> None:
    coords = np.array([[0, 0, 0, 0], [0, 0, 0, 1]], np.int32)
    pairs = live.conv_pairs(coords, (1, 1, 2), (1, 1, 2), (1, 1, 2), (0, 0, 0), (1, 1, 1))
    assert live.max_pool(np.array([[-3.0], [-1.0]], np.float32), pairs).tolist() == [[-1.0]]


def test_voxels_are_limited_in_number_and_in_points() -> None:
    points = np.zeros((9, 3), np.float32)
    points[:, 0] = [0.05, 0.06, 0.15, 0.07, 0.25, 0.16, 9, -0.01, np.nan]
    coords, counts, ids = live.voxelize(points, (0.1, 0.1, 0.1), ((0, 0, 0), (1, 1, 1)), 2, 2)
    assert coords.tolist() == [[0, 0, 0], [1, 0, 0]] and counts.tolist() == [2, 2]
    # An overfull voxel's points keep its number; a dropped voxel's points, those outside and NaN get -1.
    assert ids.tolist() == [0, 0, 1, 0, -1, 1, -1, -1, -1]
