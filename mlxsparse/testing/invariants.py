"""Laws that a sparse operator obeys, checked on any callable `f(coords, feats) -> (out_coords, out_feats)`.

Coordinates are (N, 4) integers (batch, x, y, z), features (N, C), both NumPy. A check compares outputs by
site, so that a declared row order does not matter to it, and raises AssertionError with the first differing
site. Tolerances are those of NumPy: |got - want| <= atol + rtol * |want|. `mlxsparse.testing.adapt` turns an
operator on SparseTensors into such a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "assert_same_sites",
    "check_adjointness",
    "check_batch_independence",
    "check_finite_differences",
    "check_linearity",
    "check_permutation_equivariance",
    "check_translation_equivariance",
]

Array = np.ndarray[Any, Any]
Operator = Callable[[Array, Array], tuple[Array, Array]]
Gradient = Callable[[Array, Array, Array], Array]


def _sorted(coords: Array, feats: Array) -> tuple[Array, Array]:
    coords, feats = np.asarray(coords).reshape(-1, 4), np.asarray(feats, dtype=np.float64)
    if feats.ndim == 0 or len(feats) != len(coords):
        raise AssertionError(f"{len(coords)} sites have features of shape {feats.shape}")
    order = np.lexsort(coords.T[::-1])
    return coords[order], feats[order]


def assert_same_sites(
    got: tuple[Array, Array], want: tuple[Array, Array], what: str, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Both sides have the same sites and, site by site, the same features."""
    (got_coords, got_feats), (want_coords, want_feats) = _sorted(*got), _sorted(*want)
    got_set, want_set = ({tuple(site) for site in side.tolist()} for side in (got_coords, want_coords))
    missing, extra = sorted(want_set - got_set)[:3], sorted(got_set - want_set)[:3]
    if missing or extra or len(got_coords) != len(want_coords):
        counts = f"{len(got_coords)} sites instead of {len(want_coords)}"
        raise AssertionError(f"{what}: {counts}; missing {missing}, unexpected {extra}")
    if got_feats.shape != want_feats.shape:
        raise AssertionError(f"{what}: features of shape {got_feats.shape} instead of {want_feats.shape}")
    wrong = ~np.isclose(got_feats, want_feats, rtol=rtol, atol=atol, equal_nan=True)
    if wrong.any():
        row, channel = np.argwhere(wrong)[0]
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.size} values differ; first at site "
            f"{tuple(got_coords[row].tolist())} channel {channel}: {got_feats[row, channel]!r} instead of "
            f"{want_feats[row, channel]!r}"
        )


def _pairing(a: Array, b: Array) -> tuple[float, float]:
    """sum(a * b), and the size of its terms, against which an error is small or not."""
    terms = np.asarray(a, dtype=np.float64) * np.asarray(b, dtype=np.float64)
    return float(terms.sum()), float(np.abs(terms).sum())


def check_permutation_equivariance(
    f: Operator, coords: Array, feats: Array, permutation: Array, *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """f(P x) has the sites and values of f(x)."""
    got = f(coords[permutation], feats[permutation])
    assert_same_sites(got, f(coords, feats), "rows permuted", rtol, atol)


def check_translation_equivariance(
    f: Operator,
    coords: Array,
    feats: Array,
    shift: Sequence[int],
    out_shift: Sequence[int] | None = None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """f(x moved by `shift`) is f(x) moved by `out_shift`, which is `shift` unless given (shift / stride)."""
    moved = np.array(coords)
    moved[:, 1:] += np.asarray(shift, dtype=moved.dtype)
    want_coords, want_feats = f(coords, feats)
    want_coords = np.array(want_coords)
    want_coords[:, 1:] += np.asarray(shift if out_shift is None else out_shift, dtype=want_coords.dtype)
    what = f"coordinates moved by {tuple(shift)}"
    assert_same_sites(f(moved, feats), (want_coords, want_feats), what, rtol, atol)


def check_batch_independence(
    f: Operator, coords: Array, feats: Array, *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Each batch item alone gives its part of f on the whole batch."""
    whole_coords, whole_feats = f(coords, feats)
    for batch in np.unique(coords[:, 0]):
        rows, out_rows = coords[:, 0] == batch, whole_coords[:, 0] == batch
        alone = f(coords[rows], feats[rows])
        assert_same_sites(
            (whole_coords[out_rows], whole_feats[out_rows]), alone, f"batch item {batch} alone", rtol, atol
        )
    strange = np.setdiff1d(whole_coords[:, 0], coords[:, 0])
    if strange.size:
        raise AssertionError(f"batch items {strange.tolist()} in the output, none of them in the input")


def check_linearity(
    f: Operator,
    coords: Array,
    feats: Array,
    other: Array,
    a: float = 2.0,
    b: float = -3.0,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """f(a x + b y) = a f(x) + b f(y). An operator with a bias is not linear."""
    out_coords, fx = f(coords, feats)
    other_coords, fy = f(coords, other)
    if not np.array_equal(out_coords, other_coords):
        raise AssertionError("linearity: the output sites depend on the features")
    combined = (a * np.asarray(feats) + b * np.asarray(other)).astype(feats.dtype)
    want = a * np.asarray(fx, dtype=np.float64) + b * np.asarray(fy, dtype=np.float64)
    assert_same_sites(f(coords, combined), (out_coords, want), f"f({a} x + {b} y)", rtol, atol)


def check_adjointness(
    f: Operator, gradient: Gradient, coords: Array, feats: Array, cotangent: Array, *, rtol: float = 1e-5
) -> None:
    """<f(x), g> = <x, gradient(x, g)> for a linear f: the feature gradient is its transpose."""
    left, scale_left = _pairing(f(coords, feats)[1], cotangent)
    right, scale_right = _pairing(feats, gradient(coords, feats, cotangent))
    if not abs(left - right) <= rtol * max(scale_left, scale_right):
        raise AssertionError(f"adjointness: <f(x), g> = {left!r} but <x, f'(g)> = {right!r}")


def check_finite_differences(
    f: Operator,
    gradient: Gradient,
    coords: Array,
    feats: Array,
    cotangent: Array,
    *,
    step: float = 1e-2,
    directions: int = 3,
    rtol: float = 1e-2,
    seed: int = 0,
) -> None:
    """Along random v, d/dt <f(x + t v), g> at t = 0 is <v, gradient(x, g)>, by central differences."""
    rng = np.random.default_rng(seed)
    analytic = gradient(coords, feats, cotangent)
    for number in range(directions):
        v = rng.choice([-1.0, 1.0], size=feats.shape)
        ahead, scale = _pairing(f(coords, (feats + step * v).astype(feats.dtype))[1], cotangent)
        behind, _ = _pairing(f(coords, (feats - step * v).astype(feats.dtype))[1], cotangent)
        slope = (ahead - behind) / (2 * step)
        want, want_scale = _pairing(v, analytic)
        # float32 features round f by some 1e-7 of its terms, which the difference divides by the step
        if not abs(slope - want) <= rtol * max(abs(slope), want_scale) + 1e-6 * scale / step:
            raise AssertionError(f"direction {number}: finite difference {slope!r}, gradient {want!r}")
