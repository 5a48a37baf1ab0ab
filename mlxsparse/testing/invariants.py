"""Laws that a sparse operator obeys, checked on any callable `f(coords, feats) -> (out_coords, out_feats)`.

Coordinates are (N, 4) integers (batch, x, y, z), features (N, C), both NumPy. A check compares outputs by
site, so that a declared row order does not matter to it, and raises AssertionError with the first differing
site; so it does for a site that an output has twice, for NaN or infinity from finite numbers, and for an
operator or gradient that changes its input (it is given copies). Tolerances are those of NumPy:
|got - want| <= atol + rtol * |want|. `mlxsparse.testing.adapt` turns an operator on SparseTensors into such a
callable.
"""

from __future__ import annotations

import math
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
FLOAT32 = 2.0**-23  # its relative spacing


def _sorted(coords: Array, feats: Array) -> tuple[Array, Array]:
    coords, feats = np.asarray(coords).reshape(-1, 4), np.asarray(feats, dtype=np.float64)
    if feats.ndim == 0 or len(feats) != len(coords):
        raise AssertionError(f"{len(coords)} sites have features of shape {feats.shape}")
    order = np.lexsort(coords.T[::-1])
    return coords[order], feats[order]


def assert_same_sites(
    got: tuple[Array, Array], want: tuple[Array, Array], what: str, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Both sides have the same sites, each once, and, site by site, the same features."""
    (got_coords, got_feats), (want_coords, want_feats) = _sorted(*got), _sorted(*want)
    got_set, want_set = ({tuple(site) for site in side.tolist()} for side in (got_coords, want_coords))
    missing, extra = sorted(want_set - got_set)[:3], sorted(got_set - want_set)[:3]
    if missing or extra or len(got_coords) != len(want_coords):
        counts = f"{len(got_coords)} sites instead of {len(want_coords)}"
        raise AssertionError(f"{what}: {counts}; missing {missing}, unexpected {extra}")
    _check_once(got_coords, what)
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


def _check_once(coords: Array, what: str) -> None:
    sites = np.asarray(coords).reshape(-1, 4)
    sites = sites[np.lexsort(sites.T)]
    twice = np.flatnonzero((sites[1:] == sites[:-1]).all(axis=1))
    if len(twice):
        raise AssertionError(f"{what}: the site {tuple(sites[twice[0]].tolist())} is there more than once")


def _kept(what: str, f: Callable[..., Any], *arrays: Array) -> Any:
    """f of copies of (coords, feats, cotangent), which it leaves as they are."""
    given = [np.array(a) for a in arrays]
    found = f(*given)
    for name, before, after in zip(("coords", "feats", "cotangent"), arrays, given):
        if not np.array_equal(before, after, equal_nan=True):
            raise AssertionError(f"the {what} changes its input {name}; let it write to an array of its own")
    return found


def _called(f: Operator, coords: Array, feats: Array) -> tuple[Array, Array]:
    """f(coords, feats), whose sites are there once, and whose values are finite if feats are."""
    out_coords, out = _kept("operator", f, coords, feats)
    _check_once(out_coords, "output")
    lost = ~np.isfinite(np.asarray(out, dtype=np.float64))
    if lost.any() and np.isfinite(np.asarray(feats, dtype=np.float64)).all():
        site = tuple(np.asarray(out_coords)[np.argwhere(lost)[0][0]].tolist())
        values = f"{int(lost.sum())} of {lost.size} values are NaN or infinite"
        raise AssertionError(f"output: {values}; first at site {site}")
    return out_coords, out


def _pairing(a: Array, b: Array, what: str) -> tuple[float, float, float]:
    """sum(a * b), and the sum and the norm of the sizes of its terms, against which an error is small or not;
    all are finite."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape:
        raise AssertionError(f"{what} have shapes {a.shape} and {b.shape}, which must be equal")
    with np.errstate(all="ignore"):
        terms = a * b
        total, size = float(terms.sum()), float(np.abs(terms).sum())
    if not math.isfinite(size):  # no error would be large beside it
        lost = int((~np.isfinite(terms)).sum())
        raise AssertionError(f"{what} have no finite sum of products: {lost} of {terms.size} are not finite")
    return total, size, size and float(np.linalg.norm(terms / size)) * size  # squares may pass float64


def check_permutation_equivariance(
    f: Operator, coords: Array, feats: Array, permutation: Array, *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """f(P x) has the sites and values of f(x)."""
    got = _called(f, coords[permutation], feats[permutation])
    assert_same_sites(got, _called(f, coords, feats), "rows permuted", rtol, atol)


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
    want_coords, want_feats = _called(f, coords, feats)
    want_coords = np.array(want_coords)
    want_coords[:, 1:] += np.asarray(shift if out_shift is None else out_shift, dtype=want_coords.dtype)
    what = f"coordinates moved by {tuple(shift)}"
    assert_same_sites(_called(f, moved, feats), (want_coords, want_feats), what, rtol, atol)


def check_batch_independence(
    f: Operator, coords: Array, feats: Array, *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Each batch item alone gives its part of f on the whole batch."""
    whole_coords, whole_feats = _called(f, coords, feats)
    for batch in np.unique(coords[:, 0]):
        rows, out_rows = coords[:, 0] == batch, whole_coords[:, 0] == batch
        alone = _called(f, coords[rows], feats[rows])
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
    """f(a x + b y) = a f(x) + b f(y). An operator with a bias is not linear.

    a x + b y has the type of feats, but of integers is float64.
    """
    out_coords, fx = _sorted(*_called(f, coords, feats))
    other_coords, fy = _sorted(*_called(f, coords, other))
    if not np.array_equal(out_coords, other_coords):
        raise AssertionError("linearity: the output sites depend on the features")
    combined = a * np.asarray(feats, dtype=np.float64) + b * np.asarray(other, dtype=np.float64)
    if np.issubdtype(feats.dtype, np.floating):
        combined = combined.astype(feats.dtype)
    want = a * fx + b * fy
    assert_same_sites(_called(f, coords, combined), (out_coords, want), f"f({a} x + {b} y)", rtol, atol)


def _precision(f: Operator, feats: Array, eps: float) -> float:
    """The coarsest of `eps`, what f says (`adapt.numpy_function` does) and what the type of feats means."""
    own = np.finfo(feats.dtype).eps if np.issubdtype(feats.dtype, np.floating) else 0
    return max(eps, float(getattr(f, "eps", 0)), float(own))


def _rounded(a: Array, eps: float) -> Array:
    """Numbers of float32 or coarser as a type of spacing eps holds them, float64."""
    share, power = np.frexp(np.asarray(a, dtype=np.float64))
    return np.ldexp(np.round(share * (2 / eps)) * (eps / 2), power)


def check_adjointness(
    f: Operator,
    gradient: Gradient,
    coords: Array,
    feats: Array,
    cotangent: Array,
    *,
    rtol: float = 1e-5,
    eps: float = FLOAT32,
) -> None:
    """<f(x), g> = <x, gradient(x, g)> for a linear f: the feature gradient is its transpose.

    Both sides may differ by `rtol` of the sum of the sizes of their terms, and in half types by what rounding
    does to these; eps as in `check_finite_differences`.
    """
    eps = _precision(f, feats, eps)
    if eps > FLOAT32:
        feats, cotangent = (_rounded(a, eps).astype(np.float32) for a in (feats, cotangent))
    out = _called(f, coords, feats)[1]
    left, scale_left, spread_left = _pairing(out, cotangent, "output and cotangent")
    dfeats = _kept("gradient", gradient, coords, feats, cotangent)
    right, scale_right, spread_right = _pairing(feats, dfeats, "features and gradient")
    rounding = 2 * eps * max(spread_left, spread_right) if eps > FLOAT32 else 0.0
    if not abs(left - right) <= rtol * max(scale_left, scale_right) + rounding:
        raise AssertionError(f"adjointness: <f(x), g> = {left!r} but <x, f'(g)> = {right!r}")


def check_finite_differences(
    f: Operator,
    gradient: Gradient,
    coords: Array,
    feats: Array,
    cotangent: Array,
    *,
    step: float | None = None,
    directions: int = 3,
    rtol: float = 1e-2,
    seed: int = 0,
    eps: float = FLOAT32,
) -> None:
    """Along random v, d/dt <f(x + t v), g> at t = 0 is <v, gradient(x, g)>, by central differences.

    v is 1 or -1 everywhere, so that errors of many entries do not add up as the gradient of a row that is
    missing does: both sides may differ by `rtol` of the root of the sum of squares of the terms. Integer
    features are moved as float32.

    eps: relative spacing of the numbers that f computes in; what `adapt.numpy_function` made says its own,
    and float16 features have theirs. The step is by default 1e-2, for float16 0.1 and for bfloat16 0.2; rtol
    is at least 4 eps; and what rounding of the outputs explains is allowed. Where f is curved, a difference
    of two steps corrects that of one. So in half types signs and missing rows are noticed, but not a tenth
    of one entry. Kinks, as of a ReLU at 0, are no slopes: keep features away from them.
    """
    rng = np.random.default_rng(seed)
    eps = _precision(f, feats, eps)
    step = max(1e-2, round(eps ** (1 / 3), 1)) if step is None else step
    kind = feats.dtype if np.issubdtype(feats.dtype, np.floating) else np.dtype(np.float32)
    if eps > FLOAT32:
        feats, cotangent = (_rounded(a, eps).astype(np.float32) for a in (feats, cotangent))
    analytic = np.asarray(_kept("gradient", gradient, coords, feats, cotangent), dtype=np.float64)
    g = np.asarray(cotangent, dtype=np.float64)

    def compared(v: Array, step: float) -> tuple[float, float, float]:
        """(slope of the difference, that of the gradient, what may lie between them)."""
        more, less = (feats + sign * step * v for sign in (1, -1))
        if eps > FLOAT32:
            more, less = _rounded(more, eps), _rounded(less, eps)
        more, less = more.astype(kind), less.astype(kind)
        ahead, behind = (np.asarray(_called(f, coords, x)[1], dtype=np.float64) for x in (more, less))
        _pairing(ahead, g, "output and cotangent")
        _pairing(v, analytic, "features and gradient")
        slope = float(((ahead - behind) * g).sum() / (2 * step))
        terms = (more.astype(np.float64) - less) / (2 * step) * analytic  # the step as it was rounded
        with np.errstate(over="ignore"):
            size, out_size = float(np.linalg.norm(terms)), float(np.linalg.norm(ahead * g))
        # float32 rounds f by some 1e-7 of itself, half types by eps, which the difference divides by the step
        allowed = max(rtol, 4 * eps) * max(abs(slope), size) + max(1e-6, eps) * out_size / step
        return slope, float(terms.sum()), allowed

    for number in range(directions):
        v = rng.choice([-1.0, 1.0], size=feats.shape)
        slope, want, allowed = compared(v, step)
        if math.isfinite(allowed) and abs(slope - want) > allowed:
            # An error of curvature is four times as large at two steps, that of a wrong gradient the same.
            wide, wanted, _ = compared(v, 2 * step)
            bend = ((wide - wanted) - (slope - want)) / 3
            slope, allowed = slope - bend, allowed + abs(bend)
        if not (math.isfinite(allowed) and abs(slope - want) <= allowed):
            raise AssertionError(f"direction {number}: finite difference {slope!r}, gradient {want!r}")
