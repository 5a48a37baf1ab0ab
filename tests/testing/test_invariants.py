"""Invariants pass for a right operator and name the site for a wrong one; strategies draw valid inputs."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from mlxsparse import nn, ops
from mlxsparse.errors import ShapeError
from mlxsparse.testing import adapt, invariants, oracle, strategies

WEIGHT = np.random.default_rng(0).integers(-3, 4, size=(2, 3, 2, 3, 2)).astype(np.float64)


def right(coords, feats):
    return oracle.conv3d(coords, feats, WEIGHT, stride=2, padding=1)


def gradient(coords, feats, cotangent):
    out = oracle.touched_support(coords, (3, 2, 3), 2, 1)
    return oracle.conv_gradients(coords, feats, WEIGHT, cotangent, out_coords=out, stride=2, padding=1)[0]


def order_dependent(coords, feats):
    return coords, feats * np.arange(1, len(feats) + 1)[:, None]


def place_dependent(coords, feats):
    return coords, feats * (coords[:, 1:2] + 1)


def mixes_batches(coords, feats):
    return coords, feats + feats.sum(axis=0)


def affine(coords, feats):
    return coords, feats + 1


@given(strategies.sites(channels=2))
def test_the_oracle_obeys_every_law(drawn):
    coords, feats = drawn
    feats = feats.astype(np.float64)
    cotangent = np.cos(np.arange(2 * len(right(coords, feats)[0]))).reshape(-1, 2)
    invariants.check_permutation_equivariance(right, coords, feats, np.arange(len(coords))[::-1])
    invariants.check_translation_equivariance(right, coords, feats, (-4, 2, 6), (-2, 1, 3))
    invariants.check_batch_independence(right, coords, feats)
    invariants.check_linearity(right, coords, feats, feats[:, ::-1])
    invariants.check_adjointness(right, gradient, coords, feats, cotangent)
    invariants.check_finite_differences(right, gradient, coords, feats, cotangent)


SITES = np.array([[0, 0, 0, 0], [1, 2, 0, 0]])
FEATS = np.array([[1.0], [2.0]])


def test_each_law_finds_its_violation():
    with pytest.raises(
        AssertionError, match=r"rows permuted: 2 of 2 values differ; first at site \(0, 0, 0, 0\)"
    ):
        invariants.check_permutation_equivariance(order_dependent, SITES, FEATS, np.array([1, 0]))
    with pytest.raises(AssertionError, match="coordinates moved by"):
        invariants.check_translation_equivariance(place_dependent, SITES, FEATS, (1, 0, 0))
    with pytest.raises(AssertionError, match="batch item 0 alone"):
        invariants.check_batch_independence(mixes_batches, SITES, FEATS)
    with pytest.raises(AssertionError, match=r"f\(2.0 x"):
        invariants.check_linearity(affine, SITES, FEATS, FEATS)
    with pytest.raises(AssertionError, match="adjointness"):
        invariants.check_adjointness(place_dependent, lambda c, x, g: g, SITES, FEATS, np.ones((2, 1)))
    with pytest.raises(AssertionError, match="finite difference"):
        invariants.check_finite_differences(place_dependent, lambda c, x, g: g, SITES, FEATS, np.ones((2, 1)))


def test_missing_and_unexpected_sites_are_named():
    with pytest.raises(AssertionError, match=r"missing \[\(1, 2, 0, 0\)\], unexpected \[\(0, 9, 9, 9\)\]"):
        invariants.assert_same_sites((np.array([SITES[0], [0, 9, 9, 9]]), FEATS), (SITES, FEATS), "sites")


@given(strategies.coordinate_sets())
def test_coordinate_sets_are_valid(coords):
    assert coords.dtype == np.int32 and coords.ndim == 2 and coords.shape[1] == 4
    assert len({tuple(site) for site in coords.tolist()}) == len(coords)
    assert (np.abs(coords[:, 1:].astype(np.int64)) < 2**30).all() and (coords[:, 0] >= 0).all()


@given(st.data())
def test_coordinate_sets_keep_to_span_and_max_sites(data):
    span, most = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    coords = data.draw(strategies.coordinate_sets(max_sites=most, span=span, far=False))
    assert len(coords) <= most and (np.abs(coords[:, 1:]) <= span).all()


@given(strategies.conv_geometries())
def test_geometries_fit_themselves(geometry):
    assert geometry.in_channels % geometry.groups == 0 and geometry.out_channels % geometry.groups == 0
    assert geometry.weight(0).shape == geometry.weight_shape
    assert geometry.weight_shape[1:4] == geometry.kernel_size


def test_padding():
    coords, feats = strategies.padded(SITES.astype(np.int32), FEATS, 4, fill=np.nan)
    assert coords[2:].tolist() == [[-1, 0, 0, 0]] * 2 and np.isnan(feats[2:]).all()
    with pytest.raises(ShapeError, match="capacity=1"):
        strategies.padded(SITES, FEATS, 1)


def test_surplus_and_lacking_rows_of_features_are_found():
    site = np.zeros((1, 4), int)
    for rows in (0, 2):
        with pytest.raises(AssertionError, match="1 sites have features"):
            invariants.assert_same_sites((site, np.ones((rows, 1))), (site, np.ones((1, 1))), "padding left")


@given(st.integers(0, 60), st.data())
def test_the_smallest_number_of_sites_is_kept(least, drawn):
    most = drawn.draw(st.integers(least, 64))
    coords = drawn.draw(strategies.coordinate_sets(most, min_sites=least))
    assert least <= len(coords) <= most


@pytest.mark.parametrize("bits", [16, 19, 20, 21])
def test_sites_that_a_narrow_hash_would_merge_are_drawn(bits):
    """An operator that keeps so many bits of a coordinate is found wrong."""

    @settings(max_examples=300, database=None, derandomize=True)
    @given(strategies.coordinate_sets())
    def packed(coords):
        narrow = coords.copy()
        narrow[:, 1:] &= (1 << bits) - 1
        assert len(np.unique(narrow, axis=0)) == len(coords)

    with pytest.raises(AssertionError):
        packed()


def smallest(strategy, wanted):
    return find(strategy, wanted, settings=settings(max_examples=1000, database=None, derandomize=True))


def test_what_is_found_shrinks():
    coords, feats = smallest(strategies.sites(max_sites=3), lambda drawn: (drawn.feats < 0).any())
    assert coords.tolist() == [[0, 0, 0, 0]] and feats.tolist() == [[-1]]
    mask, block, shape = smallest(strategies.block_masks(2, 3, 2), lambda drawn: drawn.mask.any())
    assert mask.tolist() == [[[True]]] and block == shape == (1, 1)


def test_far_corners_shrink_to_near_ones():
    far = strategies._far(4, st.just(0), 5, 0)
    assert np.abs(smallest(far, lambda coords: len(coords) == 4)).max() < 32


def line(n, channels=4):
    rng = np.random.default_rng(n)
    coords = np.column_stack([np.zeros(n, int), np.arange(n), np.zeros((n, 2), int)])
    return coords, *rng.standard_normal((2, n, channels)).astype(np.float32)


def squashed(coords, feats):
    return coords, np.tanh(feats)


def slope_of(coords, feats, cotangent):
    return cotangent * (1 - np.tanh(feats) ** 2)


@pytest.mark.parametrize("n", [1, 25, 300, 1000])
def test_a_row_without_a_gradient_is_noticed_at_any_size(n):
    coords, feats, cotangent = line(n)
    invariants.check_finite_differences(squashed, slope_of, coords, feats, cotangent, directions=8)

    def missing(coords, feats, cotangent):
        made = slope_of(coords, feats, cotangent)
        made[n // 2] = 0
        return made

    with pytest.raises(AssertionError, match="finite difference"):
        invariants.check_finite_differences(squashed, missing, coords, feats, cotangent, directions=8)


def test_a_missing_gradient_is_noticed_beside_large_values():
    coords, feats, cotangent = line(20)
    far = lambda c, x: (c, np.tanh(x) + np.float32(1000))  # noqa: E731
    invariants.check_finite_differences(far, slope_of, coords, feats, cotangent)
    with pytest.raises(AssertionError, match="finite difference"):
        invariants.check_finite_differences(far, lambda c, x, g: 0 * g, coords, feats, cotangent)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("law", ["adjointness", "finite_differences"])
def test_gradient_laws_hold_in_half_precision(law, dtype):
    coords, feats, cotangent = line(30)
    weight = mx.array(np.random.default_rng(0).standard_normal((4, 3, 3, 3, 4)), dtype)
    op = lambda x: ops.subm_conv3d(x, weight)  # noqa: E731
    function, gradient = adapt.numpy_function(op, dtype=dtype), adapt.numpy_gradient(op, dtype=dtype)
    check = getattr(invariants, f"check_{law}")
    check(function, gradient, coords, feats, cotangent)

    def turned(entries, factor):
        def wrong(coords, feats, cotangent):
            made = gradient(coords, feats, cotangent)
            made[entries] *= factor
            return made

        with pytest.raises(AssertionError, match="finite difference|adjointness"):
            check(function, wrong, coords, feats, cotangent)

    turned(slice(None), -1)
    turned(14, 0)
    if dtype == mx.float32:
        turned((14, 2), 1.1)


def test_features_of_float16_are_moved_by_more():
    coords, feats, cotangent = line(30)
    half = feats.astype(np.float16)
    invariants.check_finite_differences(squashed, slope_of, coords, half, cotangent)
    with pytest.raises(AssertionError, match="finite difference"):
        invariants.check_finite_differences(squashed, lambda *a: -slope_of(*a), coords, half, cotangent)


def test_integer_features_are_moved_too():
    coords, feats, cotangent = line(5)
    whole = np.arange(20).reshape(5, 4) - 9
    halved = lambda c, x: (c, np.tanh(x / 9))  # noqa: E731
    slope = lambda c, x, g: g * (1 - np.tanh(x / 9) ** 2) / 9  # noqa: E731
    invariants.check_finite_differences(halved, slope, coords, whole, cotangent)


LAWS = {
    "permutation": lambda f, c, x: invariants.check_permutation_equivariance(f, c, x, np.argsort(-c[:, 1])),
    "translation": lambda f, c, x: invariants.check_translation_equivariance(f, c, x, (1, 2, 3)),
    "batch": invariants.check_batch_independence,
    "linearity": lambda f, c, x: invariants.check_linearity(f, c, x, x),
}


GRADIENT_LAWS = [invariants.check_adjointness, invariants.check_finite_differences]


@pytest.mark.parametrize("which", [0, 1])
def test_no_law_passes_what_changes_its_input(which):
    coords, feats, cotangent = line(5)
    before = [a.copy() for a in (coords, feats, cotangent)]

    def changes(*arrays):
        found = tuple(a.copy() for a in arrays)
        arrays[which][:] *= 2
        return found if len(arrays) == 2 else found[2]

    same = lambda c, x: (c, x)  # noqa: E731
    laws = [lambda f=law: f(changes, coords, feats) for law in LAWS.values()]
    laws += [lambda f=law: f(changes, lambda c, x, g: g, coords, feats, cotangent) for law in GRADIENT_LAWS]
    laws += [lambda f=law: f(same, changes, coords, feats, cotangent) for law in GRADIENT_LAWS]
    for law in laws:
        with pytest.raises(AssertionError, match=f"changes its input {('coords', 'feats')[which]}"):
            law()
    for a, kept in zip((coords, feats, cotangent), before):
        np.testing.assert_array_equal(a, kept)


@pytest.mark.parametrize("law", LAWS)
def test_no_law_passes_nan_infinity_or_repeated_sites(law):
    coords, feats, _ = line(5)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(AssertionError, match="20 of 20 values are NaN or infinite; first at site"):
            LAWS[law](lambda c, x, bad=bad: (c, np.full_like(x, bad)), coords, feats)
    with pytest.raises(AssertionError, match="more than once"):
        LAWS[law](lambda c, x: (np.concatenate([c, c]), np.concatenate([x, x])), coords, feats)


def test_sites_are_compared_as_often_as_they_are_there():
    feats = np.ones((3, 1))
    with pytest.raises(AssertionError, match=r"\(0, 0, 0, 0\) is there more than once"):
        invariants.assert_same_sites((SITES[[0, 0, 1]], feats), (SITES[[0, 1, 1]], feats), "x")


def test_shapes_do_not_broadcast_in_gradient_laws():
    coords, feats, cotangent = line(5)
    total = lambda c, x: (c, x.sum(axis=1, keepdims=True))  # noqa: E731
    spread = lambda c, x, g: np.repeat(g.sum(axis=1, keepdims=True), 4, axis=1)  # noqa: E731
    for law in GRADIENT_LAWS:
        with pytest.raises(AssertionError, match="shapes"):
            law(total, lambda c, x, g: g, coords, feats, cotangent[:, :1])
        with pytest.raises(AssertionError, match="shapes"):
            law(total, spread, coords, feats, cotangent)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e200, 1e307])
def test_gradient_laws_pass_no_gradient_without_a_finite_size(bad):
    coords, feats, cotangent = line(2)
    same = lambda c, x: (c, x)  # noqa: E731
    wrong = np.arange(8).reshape(2, 4) < 6
    slope = lambda c, x, g: np.where(wrong, bad, g.astype(float))  # noqa: E731
    for law in GRADIENT_LAWS:
        law(same, lambda c, x, g: g, coords, feats, cotangent)
        with pytest.raises(AssertionError, match="no finite sum|adjointness: |finite difference "):
            law(same, slope, coords, 100 * np.abs(feats), cotangent)


def test_gradient_laws_pass_no_infinite_output():
    coords, feats, cotangent = line(2)
    far = lambda c, x: (c, np.full_like(x, np.inf))  # noqa: E731
    for law in GRADIENT_LAWS:
        with pytest.raises(AssertionError, match="NaN or infinite"):
            law(far, lambda c, x, g: g, coords, feats, cotangent)


def test_gradients_of_operators_that_pad_their_output():
    coords = np.array([[0, 0, 0, 0], [0, 1, 0, 0]], np.int32)
    feats, g = np.array([[1.0, 2], [3, 4]], np.float32), np.array([[1.0, -1], [2, 5]], np.float32)
    function, gradient = (made(lambda x: x.with_capacity(8)) for made in (adapt.numpy_function,
                                                                          adapt.numpy_gradient))  # fmt: skip
    assert function(coords, feats)[1].shape == gradient(coords, feats, g).shape == (2, 2)
    invariants.check_adjointness(function, gradient, coords, feats, g)
    invariants.check_finite_differences(function, gradient, coords, feats, g)
    with pytest.raises(ValueError, match="shape"):
        gradient(coords, feats, g[:1])


def by_first_channel(coords, feats):
    order = np.argsort(feats[:, 0])
    return coords[order], feats[order]


def test_linearity_compares_by_site():
    a, b = np.array([[1.0, 1], [2, 2]]), np.array([[2.0, 2], [1, 1]])
    invariants.check_linearity(by_first_channel, SITES, a, b)
    with pytest.raises(AssertionError, match="the output sites depend on the features"):
        invariants.check_linearity(lambda c, x: (c + (x[:1, :1] > 1).astype(int), x), SITES, a, b)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_linearity_of_integer_features_takes_any_factors(dtype):
    a, b = np.array([[1], [2]], dtype), np.array([[3], [4]], dtype)
    invariants.check_linearity(lambda c, x: (c, 3.0 * x), SITES, a, b, 0.5, -0.25)


def test_coordinates_that_do_not_fit_are_refused():
    for site in ([0, 2**32 + 5, 0, 0], [0, 1.7, 0, 0]):
        with pytest.raises(ValueError, match="whole numbers of 32 bits"):
            adapt.from_numpy(np.array([site]), np.ones((1, 1)))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("seed", range(3))
def test_curved_operators_pass_in_half_precision(dtype, seed):
    coords, feats, cotangent = line(8 + seed)
    feats = 2 * feats

    def attention(x):
        q = x.feats[:, None]
        return x.replace(ops.window_attention(x, q, q, q, 3)[:, 0])

    for op in (attention, nn.LayerNorm(4, affine=False)):
        function, gradient = adapt.numpy_function(op, dtype=dtype), adapt.numpy_gradient(op, dtype=dtype)
        invariants.check_finite_differences(function, gradient, coords, feats, cotangent, seed=seed)
        with pytest.raises(AssertionError, match="finite difference"):
            wrong = lambda *a, of=gradient: -of(*a)  # noqa: E731
            invariants.check_finite_differences(function, wrong, coords, feats, cotangent, seed=seed)
