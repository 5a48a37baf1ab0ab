"""Attention in windows, patches, batch items and sequences is dense masked attention, with its gradients."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse import ops
from mlxsparse.backend.library import on_cuda
from mlxsparse.engine import segment_host
from mlxsparse.errors import DTypeError, MLXSparseError, ShapeError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import from_numpy, to_numpy
from mlxsparse.testing.strategies import coordinate_sets

pytestmark = pytest.mark.usefixtures("device")
NAN = float("nan")
TRIPLES = st.tuples(*[st.integers(1, 5)] * 3)
SHIFTS = st.tuples(*[st.integers(-7, 7)] * 3)


def arrays(seed: int, rows: tuple[int, int], heads: tuple[int, int], d: int, dv: int) -> list[np.ndarray]:
    """q, k, v and a cotangent."""
    r = np.random.default_rng(seed)
    shapes = [
        (rows[0], heads[0], d),
        (rows[1], heads[1], d),
        (rows[1], heads[1], dv),
        (rows[0], heads[0], dv),
    ]
    return [r.standard_normal(s).astype(np.float32) for s in shapes]


def check(f, given_arrays, allowed, tolerance=1e-5, dtype=mx.float32, padding=(0, 0), scale=None):
    """Value and gradients of f(q, k, v) against dense masked attention; padding rows hold NaN."""
    q, k, v, ct = given_arrays
    extra = [padding[0], padding[1], padding[1], padding[0]]
    held = [
        mx.array(np.pad(a, ((0, n), (0, 0), (0, 0)), constant_values=NAN)).astype(dtype)
        for a, n in zip((q, k, v, ct), extra)
    ]
    exact = [to_numpy(a)[: len(b)] for a, b in zip(held, (q, k, v, ct))]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    (wanted,) = oracle.grouped_attention(*exact[:3], allowed, scale)
    wants = oracle.grouped_attention(*exact[:3], allowed, scale, exact[3])
    y = f(*held[:3])
    assert y.dtype == dtype and y.shape == (len(q) + padding[0], q.shape[1], v.shape[2])
    _, found = mx.vjp(f, held[:3], held[3:])
    for got, want in zip([y, *found], [wanted, *wants]):
        got = to_numpy(got)
        assert np.abs(got[: len(want)] - want).max(initial=0) <= tolerance * max(
            1, np.abs(want).max(initial=0)
        )
        assert (got[len(want) :] == 0).all()


@given(
    coords=coordinate_sets(max_sites=40),
    window=TRIPLES,
    shift=SHIFTS,
    heads=st.sampled_from([(1, 1), (4, 2), (3, 3)]),
    widths=st.sampled_from([(4, 4), (8, 5)]),
    padding=st.sampled_from([0, 3]),
    seed=st.integers(0, 99),
)
def test_window_attention_equals_dense(coords, window, shift, heads, widths, padding, seed):
    given_arrays = arrays(seed, (len(coords),) * 2, heads, *widths)
    padded = np.concatenate([coords, np.full((padding, 4), 77)])
    x = from_numpy(padded, np.zeros((len(padded), 1)), active_rows=len(coords), batch_size=4)
    group = oracle.window_groups(coords, window, shift)
    allowed = group[:, None] == group[None]
    check(
        lambda *a: ops.window_attention(x, *a, window, shift), given_arrays, allowed, padding=(padding,) * 2
    )


@given(
    coords=coordinate_sets(max_sites=40),
    size=st.integers(1, 9),
    order=st.sampled_from(["hilbert", "morton-trans", "lexicographic"]),
    borrow=st.booleans(),
    seed=st.integers(0, 99),
)
def test_serialized_attention_equals_dense(coords, size, order, borrow, seed):
    x = from_numpy(coords, np.zeros((len(coords), 1)), batch_size=3)
    allowed = oracle.patch_allowed(coords, size, order, borrow)
    given_arrays = arrays(seed, (len(coords),) * 2, (2, 1), 4, 4)
    check(lambda *a: ops.serialized_attention(x, *a, size, order, borrow=borrow), given_arrays, allowed)


@given(coords=coordinate_sets(max_sites=30), other=coordinate_sets(max_sites=30), seed=st.integers(0, 99))
def test_batch_attention_equals_dense(coords, other, seed):
    x, context = (from_numpy(c, np.zeros((len(c), 1)), batch_size=3) for c in (coords, other))
    own = arrays(seed, (len(coords),) * 2, (2, 2), 4, 6)
    check(lambda *a: ops.batch_attention(x, *a), own, coords[:, :1] == coords[None, :, 0])
    cross = arrays(seed, (len(coords), len(other)), (2, 1), 4, 6)
    check(lambda *a: ops.batch_attention(x, *a, context), cross, coords[:, :1] == other[None, :, 0])
    tokens = arrays(seed, (len(coords), 3 * 5), (2, 1), 4, 6)

    def dense(q, k, v):
        return ops.batch_attention(x, q, k.reshape(3, 5, 1, 4), v.reshape(3, 5, 1, 6))

    check(dense, tokens, coords[:, :1] == np.arange(15)[None] // 5)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6),
    spare=st.integers(0, 2),
    scale=st.sampled_from([None, 0.7, 0.0, -0.5]),
    seed=st.integers(0, 99),
)
def test_varlen_attention_equals_dense(lengths, spare, scale, seed):
    lq, lk = ([n for n, _ in lengths], [n for _, n in lengths])
    q_of, k_of = (np.repeat(np.arange(len(lengths)), n) for n in (lq, lk))
    offsets = [np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (lq, lk)]
    given_arrays = arrays(seed, (len(q_of), len(k_of)), (2, 1), 4, 4)

    def f(q, k, v):
        return ops.varlen_attention(q, k, v, mx.array(offsets[0]), offsets[1].tolist(), scale=scale)

    check(f, given_arrays, q_of[:, None] == k_of[None], padding=(spare, spare), scale=scale)
    own = arrays(seed, (len(q_of),) * 2, (1, 1), 4, 4)
    check(lambda *a: ops.varlen_attention(*a, offsets[0]), own, q_of[:, None] == q_of[None])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_types(dtype):
    coords = np.argwhere(np.ones((2, 5, 4, 3)))
    x = from_numpy(coords, np.zeros((len(coords), 1)))
    group = oracle.window_groups(coords, (4, 4, 4), (1, 1, 1))
    given_arrays = arrays(3, (len(coords),) * 2, (2, 2), 8, 8)
    f = lambda *a: ops.window_attention(x, *a, 4, 1)  # noqa: E731
    check(f, given_arrays, group[:, None] == group[None], 2e-2, dtype)


def test_long_segments_and_large_scores(monkeypatch):
    """Pieces with running sums, heads in steps, and scores that need a shift."""
    monkeypatch.setattr(segment_host, "SCORES", 500)
    monkeypatch.setattr(segment_host, "QUERIES", 7)
    monkeypatch.setattr(segment_host, "KEYS", 11)
    lengths = np.array([3, 40, 1, 17, 18, 2])
    own = np.repeat(np.arange(6), lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # Scores of some hundreds are off by 3 * 2^-20 of that where near fp32 multiplies (docs/kernels.md).
    tolerance = 2e-4 if mx.default_device().type == mx.DeviceType.gpu and on_cuda() else 3e-5
    for long, heads in ((300, (4, 2)), (1 << 20, (6, 3))):
        monkeypatch.setattr(segment_host, "LONG", long)
        given_arrays = arrays(5, (len(own),) * 2, heads, 8, 8)
        for factor in (1.0, 60.0):
            given_arrays[0] = given_arrays[0] * factor
            ops.attention._sequences.cache_clear()
            check(
                lambda *a: ops.varlen_attention(*a, offsets, scale=1.0), given_arrays,
                own[:, None] == own[None], tolerance, scale=1.0,
            )  # fmt: skip
    ops.attention._sequences.cache_clear()


@settings(max_examples=10)
@given(coords=coordinate_sets(max_sites=30, far=False), window=TRIPLES, data=st.data())
def test_window_attention_is_equivariant(coords, window, data):
    """Rows may come in any order, and whole windows may move the sites: the same bits by site."""
    q, k, v, _ = arrays(1, (len(coords),) * 2, (2, 2), 4, 4)

    def run(sites, *a):
        x = from_numpy(sites, np.zeros((len(sites), 1)))
        return to_numpy(ops.window_attention(x, *map(mx.array, a), window, 1))

    want = run(coords, q, k, v)
    order = np.array(data.draw(st.permutations(range(len(coords)))), dtype=np.int64)
    assert np.array_equal(run(coords[order], q[order], k[order], v[order]), want[order])
    steps = np.array(data.draw(st.tuples(*[st.integers(-50, 50)] * 3))) * window
    assert np.array_equal(run(coords + np.array([0, *steps]), q, k, v), want)
    # One item alone gives what it gives among others.
    own = np.flatnonzero(coords[:, 0] == 0)
    assert np.allclose(run(coords[own], q[own], k[own], v[own]), want[own], atol=1e-6)


def test_what_is_not_finite_stays_in_its_window():
    coords = np.array([[0, 0, 0, i] for i in range(12)])
    x = from_numpy(coords, np.zeros((12, 1)))
    for which, bad in ((0, NAN), (1, NAN), (2, float("inf"))):
        a = arrays(2, (12, 12), (1, 1), 4, 4)
        a[which][5] = bad
        held = [mx.array(t) for t in a]
        y = to_numpy(ops.window_attention(x, *held[:3], 4))
        spoiled = ~np.isfinite(y).all(axis=(1, 2))
        assert spoiled.tolist() == [i == 5 if which == 0 else 4 <= i < 8 for i in range(12)]
        _, found = mx.vjp(lambda *t: ops.window_attention(x, *t, 4), held[:3], held[3:])
        for g in map(to_numpy, found):
            assert np.isfinite(g[:4]).all() and np.isfinite(g[8:]).all()


def test_a_single_gradient_and_constants():
    coords = np.argwhere(np.ones((1, 3, 3, 3)))
    x = from_numpy(coords, np.zeros((27, 1)))
    q, k, v, ct = (mx.array(a) for a in arrays(2, (27, 27), (1, 1), 4, 4))
    _, want = mx.vjp(lambda *a: ops.window_attention(x, *a, 2), [q, k, v], [ct])
    _, (got,) = mx.vjp(lambda b: ops.window_attention(x, q, b, v, 2), [k], [ct])
    assert np.array_equal(got, want[1])
    _, (other,) = mx.vjp(lambda b: ops.window_attention(x, q, b, v, 2), [k], [2 * ct])
    assert np.allclose(other, 2 * np.array(want[1]), atol=1e-5)


def test_windows_are_made_once_and_dropped_with_the_manager():
    coords = np.argwhere(np.ones((1, 4, 4, 4)))
    x = from_numpy(coords, np.zeros((64, 1)), manager=ms.CoordinateManager())
    q = mx.ones((64, 1, 4))
    ops.window_attention(x, q, q, q, 2, 1)
    ops.window_attention(x, q, q, q, 2, (1, 3, -1))  # the same windows
    assert len(x.key._record.groups) == 1
    ops.window_attention(x, q, q, q, 2)
    assert len(x.key._record.groups) == 2
    rebuilt = ms.SparseTensor(list(x))  # as a transformation of MLX makes it
    ops.window_attention(rebuilt, q, q, q, 2)
    assert rebuilt.key._record is x.key._record
    x.manager.clear()
    assert not x.key._record.groups


# ---------------------------------------------------------------- rotary embedding


def turned(a, coords, base, scale, traditional):
    """rope3d in float64, one row, pair and axis at a time."""
    n, h, d = a.shape
    f, half, y = d // 6, d // 2, a.astype(np.float64).copy()
    for r in range(n):
        for axis in range(3):
            for i in range(f):
                angle = scale * float(coords[r, axis + 1]) * base ** (-i / f)
                j = axis * f + i
                one, two = (2 * j, 2 * j + 1) if traditional else (j, j + half)
                u, w = a[r, :, one].astype(np.float64), a[r, :, two].astype(np.float64)
                y[r, :, one] = u * np.cos(angle) - w * np.sin(angle)
                y[r, :, two] = u * np.sin(angle) + w * np.cos(angle)
    return y


@given(
    coords=coordinate_sets(max_sites=12),
    d=st.sampled_from([6, 8, 14, 32]),
    traditional=st.booleans(),
    base=st.sampled_from([10000.0, 50.0]),
    scale=st.sampled_from([1.0, 0.25]),
)
def test_rope3d(coords, d, traditional, base, scale):
    x = from_numpy(
        np.concatenate([coords, [[9, 9, 9, 9]]]), np.zeros((len(coords) + 1, 1)), active_rows=len(coords)
    )
    a = np.random.default_rng(0).standard_normal((len(coords) + 1, 2, d)).astype(np.float32)
    a[-1] = NAN
    f = lambda b: ops.rope3d(x, b, base=base, scale=scale, traditional=traditional)  # noqa: E731
    y = to_numpy(f(mx.array(a)))
    want = turned(a[:-1], coords, base, scale, traditional)
    assert np.allclose(y[:-1], want, atol=1e-5) and (y[-1] == 0).all()
    # A turn keeps lengths, so its gradient turns back.
    _, (back,) = mx.vjp(f, [mx.array(a)], [mx.array(y)])
    assert np.allclose(to_numpy(back)[:-1], a[:-1], atol=1e-5)


def test_rope3d_depends_on_differences():
    coords = np.array([[0, 0, 0, 0], [0, 3, -2, 5]])
    r = np.random.default_rng(0).standard_normal((2, 1, 12)).astype(np.float32)
    found = []
    for shift in (0, 10_000_000):
        x = from_numpy(coords + [0, shift, shift, -shift], np.zeros((2, 1)))
        y = to_numpy(ops.rope3d(x, mx.array(r)))
        found.append((y[0] * y[1]).sum())
    assert abs(found[0] - found[1]) < 1e-5


# ---------------------------------------------------------------- bad input


def test_named_errors():
    x = from_numpy([[0, 0, 0, i] for i in range(4)], np.zeros((4, 1)))
    q = mx.ones((4, 2, 8))
    three, five = mx.ones((4, 3, 8)), mx.ones((2, 3, 2, 8))
    other = from_numpy([[1, 0, 0, 0]], np.zeros((1, 1)))
    bad = [
        (lambda: ops.window_attention(x, q[:3], q, q, 2), ShapeError, "q must have shape"),
        (lambda: ops.window_attention(x, q, q[:, :, :4], q, 2), ShapeError, "channels a head"),
        (lambda: ops.window_attention(x, q, three, three, 2), ShapeError, "divisor"),
        (lambda: ops.window_attention(x, q, q, q.astype(mx.float16), 2), DTypeError, "one type"),
        (lambda: ops.window_attention(x, q.astype(mx.int32), q, q, 2), DTypeError, "int32"),
        (lambda: ops.window_attention(x, q, q, q, 0), MLXSparseError, "window"),
        (lambda: ops.window_attention(x, q, q, q, 2, scale=NAN), MLXSparseError, "finite"),
        (lambda: ops.window_attention(q, q, q, q, 2), DTypeError, "SparseTensor"),
        (lambda: ops.serialized_attention(x, q, q, q, 0), ShapeError, "patch_size"),
        (lambda: ops.serialized_attention(x, q, q, q, 4, "peano"), MLXSparseError, "order"),
        (lambda: ops.serialized_attention(x, q, q, q, 4, depth=1), MLXSparseError, "depth=1"),
        (lambda: ops.varlen_attention(q, q, q, [0, 3, 2]), ShapeError, "rise"),
        (lambda: ops.varlen_attention(q, q, q, [0, 5]), ShapeError, "at most 4"),
        (lambda: ops.varlen_attention(q, q, q, [0, 4], [0, 2, 4]), ShapeError, "agree"),
        (lambda: ops.varlen_attention(q, q, q, [0.0, 4.0]), DTypeError, "integers"),
        (lambda: ops.batch_attention(x, q, q, q, other), ShapeError, "batch"),
        (lambda: ops.batch_attention(x, q, five, five), ShapeError, "for this"),
        (lambda: ops.rope3d(x, mx.ones((4, 1, 4))), ShapeError, "at least 6"),
        (lambda: ops.rope3d(x, q, base=-1.0), MLXSparseError, "base"),
        (lambda: ops.rope3d(x, q, base="3"), MLXSparseError, "base must be a finite number"),
        (lambda: ops.rope3d(x, q, scale=None), MLXSparseError, "scale must be a finite number"),
        (lambda: ops.window_attention(x, q, q, q, 2, scale="3"), MLXSparseError, "scale must be a finite"),
        (lambda: ops.varlen_attention(q, q, q, [0, 4], scale="a"), MLXSparseError, "scale must be a finite"),
        (lambda: ops.varlen_attention(None, q, q, [0, 4]), DTypeError, "q must be"),
        (lambda: ops.varlen_attention(q, None, q, [0, 4], [0, 4]), DTypeError, "k must be"),
        (lambda: ops.varlen_attention(q, q, q, [[0], [2, 4]]), ShapeError, "q_offsets must have shape"),
        (lambda: ops.serialized_attention(x, q, q, q, 4.0), ShapeError, "patch_size must be an integer"),
        (lambda: ops.serialized_attention(x, q, q, q, True), ShapeError, "patch_size must be an integer"),
    ]  # fmt: skip
    for call, error, text in bad:
        with pytest.raises(error, match=text):
            call()


def test_numbers_of_numpy():
    x = from_numpy([[0, 0, 0, i] for i in range(7)], np.zeros((7, 1)))
    q, k, v = (mx.array(a) for a in arrays(0, (7, 7), (1, 1), 6, 6)[:3])
    want = ops.serialized_attention(x, q, k, v, 4, depth=5, scale=0.5)
    got = ops.serialized_attention(x, q, k, v, np.int64(4), depth=np.int32(5), scale=np.float32(0.5))
    assert mx.array_equal(got, want)
    assert mx.array_equal(ops.window_attention(x, q, k, v, 3, scale=mx.array(0.5)),
                          ops.window_attention(x, q, k, v, 3, scale=0.5))  # fmt: skip
    assert mx.array_equal(ops.rope3d(x, q, base=np.int64(50)), ops.rope3d(x, q, base=50.0))


def test_second_gradients_are_refused():
    x = from_numpy([[0, 0, 0, i] for i in range(4)], np.zeros((4, 1)))
    q = mx.ones((4, 1, 4))
    with pytest.raises(MLXSparseError):
        mx.jvp(lambda a: ops.window_attention(x, a, q, q, 2), [q], [q])


@pytest.mark.parametrize("dtype, tolerance", [(mx.float32, 1e-3), (mx.float16, 3e-2), (mx.bfloat16, 2e-1)])
def test_a_learned_scale_has_a_gradient(dtype, tolerance):
    """Rows of padding may hold NaN."""
    x = from_numpy([[0, 0, 0, i] for i in range(7)], np.zeros((7, 1))).with_capacity(9)
    q, k, v = (a.astype(dtype) for a in mx.random.normal((3, 9, 2, 6), key=mx.random.key(1)))
    c = mx.random.normal(q.shape, key=mx.random.key(2))
    q[7:] = mx.array(np.nan)
    calls = [
        lambda s, a: ops.window_attention(x, *a, 4, scale=s),
        lambda s, a: ops.serialized_attention(x, *a, 4, scale=s),
        lambda s, a: ops.batch_attention(x, *a, scale=s),
        lambda s, a: ops.batch_attention(x, a[0], a[1][None], a[2][None], scale=s),
        lambda s, a: ops.batch_attention(x, *a, x, scale=s),
        lambda s, a: ops.varlen_attention(*a, [0, 7], scale=s),
    ]
    for call in calls:
        found = mx.grad(lambda s: (c * call(s, (q, k, v)).astype(mx.float32)).sum())(mx.array(0.7))  # noqa: B023
        wide = [a.astype(mx.float32) for a in (q, k, v)]
        up, down = ((c * call(s, wide)).sum().item() for s in (0.71, 0.69))
        np.testing.assert_allclose(found.item(), (up - down) / 0.02, rtol=tolerance, atol=tolerance)
    with pytest.raises(MLXSparseError, match="scale must be a finite number"):
        ops.rope3d(x, q, scale=mx.array(0.5))
