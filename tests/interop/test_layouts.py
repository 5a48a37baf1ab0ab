"""Weight layouts: round trips, and every weight's place against loops written from the definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlxsparse.errors import ShapeError
from mlxsparse.interop import layouts, spconv
from mlxsparse.interop.torch_file import load_torch_file
from tests.data_paths import data_path

KERNELS = [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4), (2, 3, 1), (3, 1, 2), (3, 5, 1)]
CO, CI = 4, 3


def canonical(sizes, out=CO, inp=CI):
    """Each weight is a number that spells its own place: co, kx, ky, kz, ci."""
    co, x, y, z, ci = np.meshgrid(*map(np.arange, (out, *sizes, inp)), indexing="ij")
    return (co * 10000 + x * 1000 + y * 100 + z * 10 + ci).astype(np.float32)


def taps_first(sizes, fastest):
    """[K, Ci, Co] with the named axis fastest, filled tap by tap."""
    weight = canonical(sizes)
    order = itertools.product(*map(range, sizes)) if fastest == "z" else (
        (x, y, z) for z, y, x in itertools.product(*map(range, sizes[::-1])))
    return np.stack([weight[:, x, y, z, :].T for x, y, z in order])


@pytest.mark.parametrize("sizes", KERNELS)
def test_minkowski_engine(sizes):
    kernel = taps_first(sizes, "x")
    np.testing.assert_array_equal(layouts.minkowski_engine_to_canonical(kernel, sizes), canonical(sizes))
    np.testing.assert_array_equal(layouts.canonical_to_minkowski_engine(canonical(sizes), 2), kernel)


@pytest.mark.parametrize("sizes", KERNELS)
def test_torchsparse(sizes):
    kernel = taps_first(sizes, "x" if np.prod(sizes) % 2 else "z")
    np.testing.assert_array_equal(layouts.torchsparse_to_canonical(kernel, sizes), canonical(sizes))
    np.testing.assert_array_equal(layouts.canonical_to_torchsparse(canonical(sizes), 2), kernel)


@pytest.mark.parametrize("sizes", KERNELS)
def test_warpconvnet(sizes):
    kernel = taps_first(sizes, "z")
    np.testing.assert_array_equal(layouts.warpconvnet_to_canonical(kernel, sizes), canonical(sizes))
    np.testing.assert_array_equal(layouts.canonical_to_warpconvnet(canonical(sizes)), kernel)


@pytest.mark.parametrize("sizes", KERNELS)
def test_fvdb(sizes):
    weight = np.zeros((CO, CI, *sizes), np.float32)
    for co, x, y, z, ci in np.ndindex(CO, *sizes, CI):
        weight[co, ci, x, y, z] = canonical(sizes)[co, x, y, z, ci]
    np.testing.assert_array_equal(layouts.fvdb_to_canonical(weight), canonical(sizes))
    back = layouts.canonical_to_fvdb(canonical(sizes))
    np.testing.assert_array_equal(back, weight[:, :, 0, 0, 0] if sizes == (1, 1, 1) else weight)
    np.testing.assert_array_equal(layouts.fvdb_to_canonical(back), canonical(sizes))


@pytest.mark.parametrize("sizes", KERNELS)
def test_flexgemm(sizes):
    np.testing.assert_array_equal(layouts.flexgemm_to_canonical(canonical(sizes)), canonical(sizes))
    np.testing.assert_array_equal(layouts.canonical_to_flexgemm(canonical(sizes)), canonical(sizes))


@pytest.mark.parametrize("to", [layouts.minkowski_engine_to_canonical, layouts.torchsparse_to_canonical])
@pytest.mark.parametrize("back", [layouts.canonical_to_minkowski_engine, layouts.canonical_to_torchsparse])
def test_one_tap_may_have_two_axes(to, back):
    flat = canonical((1, 1, 1))[:, 0, 0, 0, :].T
    np.testing.assert_array_equal(to(flat, 1), canonical((1, 1, 1)))
    assert back(canonical((1, 1, 1))).shape == (CI, CO)
    assert back(canonical((1, 1, 1)), (1, 2, 1)).shape == (1, CI, CO)


@pytest.mark.parametrize("sizes", KERNELS)
@pytest.mark.parametrize("stride", [1, 2])
def test_spconv_round_trips(sizes, stride):
    weight = canonical(sizes)
    for layout in spconv.LAYOUTS:
        stored = spconv.from_canonical(weight, layout, stride=stride)
        assert stored.shape == ((CO, *sizes, CI) if layout == "KRSC" else (*sizes, CI, CO))
        np.testing.assert_array_equal(spconv.to_canonical(stored, sizes, layout, stride=stride), weight)


def test_spconv_shapes_are_kept_apart_from_one_tap():
    np.testing.assert_array_equal(spconv.to_canonical(canonical((3, 3, 3)), 3), canonical((3, 3, 3)))
    one = canonical((1, 1, 1))
    np.testing.assert_array_equal(spconv.to_canonical(one, 1, stride=2), one)


def test_spconv_issue_450_one_tap_reading():
    """[[1,2,3],[4,5,6]] times [1,0,0] is [1,2] in spconv 2.x; the plain reading would give [1,4]."""
    stored = np.array([[1, 2, 3], [4, 5, 6]], np.float32).reshape(2, 1, 1, 1, 3)
    x = np.array([1, 0, 0], np.float32)
    weight = spconv.to_canonical(stored, 1)
    np.testing.assert_array_equal(weight.reshape(2, 3) @ x, [1, 2])
    np.testing.assert_array_equal(spconv.to_canonical(stored, 1, stride=2).reshape(2, 3) @ x, [1, 4])
    np.testing.assert_array_equal(spconv.from_canonical(weight), stored)


def test_spconv_1_one_tap_has_no_quirk():
    stored = np.arange(6, dtype=np.float32).reshape(1, 1, 1, 3, 2)
    weight = spconv.to_canonical(stored, 1, "RSCK")
    np.testing.assert_array_equal(weight.reshape(2, 3), stored.reshape(3, 2).T)


@pytest.mark.parametrize("layout", spconv.LAYOUTS)
def test_spconv_fewer_axes(layout):
    weight = canonical((3, 2, 1))
    stored = spconv.from_canonical(weight, layout, ndim=2)
    assert stored.shape == ((CO, 3, 2, CI) if layout == "KRSC" else (3, 2, CI, CO))
    np.testing.assert_array_equal(spconv.to_canonical(stored, (3, 2), layout), weight)
    flat = spconv.from_canonical(canonical((1, 1, 1)), layout, ndim=1)
    np.testing.assert_array_equal(spconv.to_canonical(flat, 1, layout), canonical((1, 1, 1)))


def test_golden_spconv_layers_have_the_layout():
    """Real spconv 2.3 parameters: shapes agree with the layer's arguments, in 2-D and 3-D."""
    seen = 0
    for case in load_torch_file(data_path("spconv_golden", "golden_proto.pt"))["cases"]:
        if case["kind"] != "init":
            continue
        arguments = case["ctor"]
        weight = next(v for v in _arrays(case["expect"]) if v.ndim > 2)
        got = spconv.to_canonical(weight, arguments["kernel_size"])
        assert got.shape[0] == arguments["out_channels"] and got.shape[-1] == arguments["in_channels"]
        np.testing.assert_array_equal(spconv.from_canonical(got, ndim=weight.ndim - 2), weight)
        seen += 1
    assert seen


def _arrays(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)


@pytest.mark.parametrize("call", [
    lambda: layouts.minkowski_engine_to_canonical(np.zeros((26, 3, 4)), 3),
    lambda: layouts.minkowski_engine_to_canonical(np.zeros((3, 4)), 3),
    lambda: layouts.torchsparse_to_canonical(np.zeros((27, 3)), 3),
    lambda: layouts.warpconvnet_to_canonical(np.zeros((3, 3, 3, 3, 4)), 3),
    lambda: layouts.fvdb_to_canonical(np.zeros((3, 3, 3))),
    lambda: layouts.flexgemm_to_canonical(np.zeros((27, 3, 4))),
    lambda: layouts.canonical_to_warpconvnet(np.zeros((27, 3, 4))),
    lambda: layouts.kernel_axes(0),
    lambda: layouts.kernel_axes(3.0),
    lambda: layouts.kernel_axes(None),
    lambda: layouts.kernel_axes((3, None)),
    lambda: layouts.kernel_axes((3, float("nan"))),
    lambda: layouts.kernel_axes("3x3"),
    lambda: layouts.kernel_axes((3, 3, 3, 3)),
    lambda: layouts.kernel_axes((3, 2.5)),
    lambda: spconv.to_canonical(np.zeros((4, 3, 3, 3, 2)), 5),
    lambda: spconv.to_canonical(np.zeros((3, 3, 3, 2, 4)), 3),
    lambda: spconv.to_canonical(np.zeros((4, 3, 3, 3, 2)), 3, "KCRS"),
    lambda: spconv.to_canonical(np.zeros((4, 2)), 1),
    lambda: spconv.from_canonical(np.zeros((4, 3, 3, 3, 2)), ndim=2),
    lambda: spconv.from_canonical(np.zeros((4, 3, 3, 3, 2)), "XYZ"),
])
def test_shapes_that_do_not_fit(call):
    with pytest.raises(ShapeError):
        call()
