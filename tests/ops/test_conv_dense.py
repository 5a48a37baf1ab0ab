"""Convolution on a dense grid (engine/conv_dense.py): against the oracle, and where it is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import mlxsparse as ms
from mlxsparse.backend import tuning
from mlxsparse.errors import MLXSparseError
from mlxsparse.testing import oracle
from mlxsparse.testing.adapt import active_part, from_numpy
from mlxsparse.testing.strategies import conv_geometries, features, padded, sites
from tests.conftest import kernels_on_the_cpu
from tests.static_cases import HAS_GPU, needs_kernels

pytestmark = needs_kernels
SUPPORTS = st.sampled_from(["submanifold", "touched", "parents"])


@pytest.fixture(autouse=True, scope="module")
def kernels() -> Iterator[None]:
    before, fp32 = mx.default_device(), os.environ.get("MLXSPARSE_FP32")
    os.environ["MLXSPARSE_FP32"] = "tf32"  # as MLX multiplies on CUDA
    mx.set_default_device(mx.gpu if HAS_GPU else mx.cpu)
    if HAS_GPU:
        yield
    else:
        with kernels_on_the_cpu():
            yield
    mx.set_default_device(before)
    del os.environ["MLXSPARSE_FP32"]
    if fp32 is not None:
        os.environ["MLXSPARSE_FP32"] = fp32


def by_grid(run: Callable[[], Any]) -> Any:
    """What `run` gives by the dense path; sets for which there is no grid are not looked at."""
    try:
        with tuning.forced("dense"):
            return run()
    except MLXSparseError as error:
        assume("was forced" not in str(error))
        raise


@st.composite
def cases(draw):
    geometry = draw(conv_geometries().filter(lambda g: g.groups == 1))
    coords, feats = draw(sites(channels=geometry.in_channels, far=False))
    seed = draw(st.integers(0, 99))
    bias = geometry.bias(seed) if draw(st.booleans()) else None
    return geometry, coords, feats, geometry.weight(seed), bias


@given(cases(), SUPPORTS, st.integers(0, 5), st.data())
def test_values_and_gradients_equal_the_oracle(case, support, more, data):
    geometry, coords, feats, weight, bias = case
    rows = padded(coords, feats, len(coords) + more, fill=np.nan)
    x = ms.SparseTensor(mx.array(rows.coords), mx.array(rows.feats), active_rows=len(coords), batch_size=4)
    where = geometry.where if support == "submanifold" else {**geometry.where, "support": support}
    known = None if bias is None else mx.array(bias)
    if support == "submanifold":
        where.pop("stride")
        out_coords, want = coords, oracle.subm_conv3d(coords, feats, weight, bias, **where)
    else:
        out_coords, want = oracle.conv3d(coords, feats, weight, bias, **where)

    def conv(f: mx.array, w: mx.array, b: mx.array | None) -> ms.SparseTensor:
        op = ms.ops.subm_conv3d if support == "submanifold" else ms.ops.conv3d
        return op(x.replace(f), w, b, **where)

    y = by_grid(lambda: conv(x.feats, mx.array(weight), known))
    got_coords, got = active_part(y)
    assert got_coords.tolist() == np.asarray(out_coords).tolist()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
    assert not np.array(y.feats)[len(got) :].any()

    ct = np.zeros(y.feats.shape, np.float32)
    ct[: len(got)] = data.draw(features(*got.shape))
    primals = [x.feats, mx.array(weight), *([] if known is None else [known])]
    pair = by_grid(lambda: mx.vjp(lambda f, w, b=None: conv(f, w, b).feats, primals, [mx.array(ct)]))
    where.pop("support", None)
    where |= {"stride": 1} if support == "submanifold" else {}
    one = {**where, "out_coords": out_coords}
    wanted = oracle.conv_gradients(coords, feats, weight, ct[: len(got)], **one)
    for found, other in zip(pair[1], wanted):
        np.testing.assert_allclose(np.array(found)[: len(other)], other, rtol=1e-4, atol=1e-3)
    assert not np.array(pair[1][0])[len(coords) :].any()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_agrees_with_tiles(dtype: mx.Dtype) -> None:
    coords = box(5, gaps=30)
    feats = mx.random.normal((len(coords), 12)).astype(dtype)[:, ::2]  # not contiguous
    x = ms.SparseTensor(coords, feats, batch_size=3)
    w = (mx.random.normal((8, 3, 3, 3, 6)) / 12).astype(dtype)
    found = []
    for path in ("dense", "tiles"):
        with tuning.forced(path):
            y = ms.ops.subm_conv3d(x, w).feats
        assert y.dtype == dtype
        found.append(np.array(y.astype(mx.float32)))
    close = 2e-3 if dtype == mx.float16 else 1.6e-2
    np.testing.assert_allclose(*found, atol=close * np.abs(found[1]).max())


def box(side: int, gaps: int = 0) -> np.ndarray:
    """Sites of two cubes, items 0 and 2 of a batch, in random order, some left out; some are negative."""
    rng = np.random.default_rng(side)
    cube = np.indices((side,) * 3).reshape(3, -1).T - 2
    both = np.concatenate([np.column_stack([np.full(len(cube), b), cube]) for b in (0, 2)])
    return rng.permutation(both)[gaps:].astype(np.int32)


def test_no_kernel_map_is_made() -> None:
    # Of a stride of its own: a set like one before it may get that one's map ahead.
    x = ms.SparseTensor(box(4), mx.ones((128, 2)), batch_size=3, stride=(5, 5, 5))
    with tuning.forced("dense"):
        mx.eval(ms.ops.subm_conv3d(x, mx.ones((3, 3, 3, 3, 2))).feats)
    found = x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold(3)).relation
    assert found.grid.filled == 19 and found.nbytes == 0  # 3 items of 6 x 6 x 6 cells, which taps reach


def test_what_has_no_grid_is_refused_and_says_so() -> None:
    far = np.array([[0, 0, 0, 0], [0, 200, 3, 3], [0, 9, 90, 9]], np.int32)
    w = mx.ones((2, 3, 3, 3, 2))
    full = ms.SparseTensor(box(3), mx.ones((54, 2)), batch_size=3)
    with tuning.forced("dense"):
        with pytest.raises(MLXSparseError, match="sixteenth of known bounds"):
            ms.ops.subm_conv3d(ms.SparseTensor(far, mx.ones((3, 2))), w)
        with pytest.raises(MLXSparseError, match="groups take 'rows' alone"):
            ms.ops.subm_conv3d(full, w[..., :1], groups=2)
        with pytest.raises(MLXSparseError, match="forwards"):
            ms.ops.conv_transpose3d(ms.ops.max_pool3d(full, 2), w, stride=2, out=full)


def test_an_empty_set() -> None:
    x = ms.SparseTensor(mx.zeros((0, 4), mx.int32), mx.zeros((0, 2)), batch_size=1)
    assert ms.ops.subm_conv3d(x, mx.ones((3, 3, 3, 3, 2))).feats.shape == (0, 3)


def test_a_measured_table_chooses_it(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("MLXSPARSE_TUNING", str(tmp_path / "tuning.json"))
    monkeypatch.setenv("MLXSPARSE_TRACE", "1")
    full, thin = tuning.Case("float32", 250, 27, 2, 3, 24), tuning.Case("float32", 250, 27, 2, 3, 1)
    tuning.write([(full, {"tiles": 2.0, "dense": 1.0}), (thin, {"tiles": 1.0})], tuning.table_path())
    x = ms.SparseTensor(box(5), mx.ones((250, 2)), batch_size=3)
    ms.ops.subm_conv3d(x, mx.ones((3, 3, 3, 3, 2)))
    assert "convolution path dense (measured)" in capfd.readouterr().err
    tuning.forget()


def test_from_numpy_tensors_with_a_stride() -> None:
    """The grid is one of the tensor's own lattice."""
    coords, feats = box(4), np.ones((128, 2), np.float32)
    x, w = from_numpy(coords, feats, stride=(2, 2, 2), batch_size=3), mx.ones((1, 2, 2, 2, 2))
    with tuning.forced("dense"):
        y = ms.ops.conv3d(x, w, stride=2)
    assert y.stride == (4, 4, 4) and np.array(y.feats).tolist() == [[16.0]] * 16
