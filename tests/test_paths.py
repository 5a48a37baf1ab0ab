"""Paths of a convolution: equal results, forced and measured choice, and the command that measures."""

from __future__ import annotations

import json
import math
import os

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.backend import kernel_conv, tuning
from mlxsparse.cli import tune
from mlxsparse.cli.main import main
from mlxsparse.engine import block_kernel
from mlxsparse.errors import CheckpointError, MLXSparseError
from tests.static_cases import kernels as kernels
from tests.static_cases import needs_kernels, tensor, weight

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def no_table(monkeypatch, tmp_path):
    monkeypatch.setenv("MLXSPARSE_TUNING", str(tmp_path / "tuning.json"))
    monkeypatch.delenv("MLXSPARSE_PATH", raising=False)
    monkeypatch.setenv("MLXSPARSE_FP32", "tf32")  # so that every path may run on every GPU
    tuning.forget()
    yield
    tuning.forget()


def outcome(x, w, b, **how):
    def loss(f, w, b):
        return ms.ops.conv3d(x.replace(f), w, b, **how).feats

    y = loss(x.feats, w, b)
    mixed = mx.array(np.random.default_rng(1).standard_normal(y.shape).astype(np.float32))
    gradients = mx.grad(lambda *a: (loss(*a).astype(mx.float32) * mixed).sum(), (0, 1, 2))(x.feats, w, b)
    return [np.array(a.astype(mx.float32)) for a in (y, *gradients)]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("capacity", [None, 624])
def test_paths_agree(kernels, dtype, capacity, monkeypatch):
    monkeypatch.setattr("mlxsparse.engine.conv_gather.PIECE_BYTES", 8192)  # several pieces
    x = tensor(600).astype(dtype)  # of which there is a grid
    x = x if capacity is None else x.with_capacity(capacity)
    w, b = weight(5, 3, 4).astype(dtype), mx.ones((5,)).astype(dtype)
    results = {}
    for path in tuning.PATHS:
        with tuning.forced(path):
            results[path] = outcome(x, w, b, stride=2, support="parents")
    for path in tuning.PATHS[1:]:
        for got, wanted in zip(results[path], results["tiles"]):
            close = 2e-2 if dtype != mx.float32 or kernel_conv.products_in_tf32() else 1e-5
            np.testing.assert_allclose(got, wanted, rtol=close, atol=close * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(
    ("architecture", "switch", "wanted"),
    [("applegpu_g13g", "", False), ("applegpu_g16d", "", False), ("applegpu_g17s", "", True),
     ("applegpu_g17s", "0", False), ("", "", False)],
)  # fmt: skip
def test_apple_gpus_whose_matrix_units_round_float32(architecture, switch, wanted, monkeypatch):
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda *_: {"architecture": architecture})
    monkeypatch.setenv("MLX_ENABLE_TF32", switch)
    kernel_conv._neural_accelerators.cache_clear()
    try:
        assert kernel_conv._neural_accelerators() is wanted
    finally:
        kernel_conv._neural_accelerators.cache_clear()


def test_products_in_tf32_stand_for_float32_only_where_that_is_asked_for(kernels, monkeypatch):
    x, w = tensor(40), weight(5, 3, 4)
    monkeypatch.setattr(kernel_conv, "products_in_tf32", lambda: True)
    with tuning.forced("gather"):
        ms.ops.subm_conv3d(x, w)
        monkeypatch.setenv("MLXSPARSE_FP32", "near")
        with pytest.raises(MLXSparseError, match="MLXSPARSE_FP32=tf32 alone"):
            ms.ops.subm_conv3d(x, w)
        ms.ops.subm_conv3d(x.astype(mx.float16), w.astype(mx.float16))
        monkeypatch.setattr(kernel_conv, "products_in_tf32", lambda: False)
        ms.ops.subm_conv3d(x, w)


@pytest.mark.parametrize(("tf32", "products"), [(True, 3), (False, 1)])
def test_whole_block_matrices_are_multiplied_in_parts_where_float32_is_rounded(tf32, products, monkeypatch):
    monkeypatch.setenv("MLXSPARSE_FP32", "near")
    monkeypatch.setattr(block_kernel, "products_in_tf32", lambda: tf32)
    a, b = mx.random.normal((1, 1, 24, 40)), mx.random.normal((1, 1, 40, 8))
    calls = []
    monkeypatch.setattr(mx.array, "__matmul__", lambda a, b: calls.append(1) or mx.matmul(a, b))
    np.testing.assert_allclose(block_kernel._product(a, b), mx.matmul(a, b), rtol=1e-5, atol=1e-5)
    assert len(calls) == products


def test_choice_by_variable_and_table_is_traced(kernels, monkeypatch, capfd):
    monkeypatch.setenv("MLXSPARSE_TRACE", "1")
    x, w = tensor(40), weight(5, 3, 4)
    case = tuning.Case("float32", 40, 27, 4, 5)
    assert tuning.choose(case, tuning.PATHS) == "tiles"
    far = tuning.Case("float32", 10**6, 27, 256, 256)
    times = {"tiles": 3.0, "rows": 2.0, "gather": 1.0}
    tuning.write(
        [(case, times), (far, {"tiles": 1.0}), (case._replace(dtype="float16"), {"rows": 1.0})],
        tuning.table_path(),
    )
    ms.ops.subm_conv3d(x, w)
    assert "convolution path gather (measured): float32 4 -> 5 channels" in capfd.readouterr().err
    assert tuning.choose(far, tuning.PATHS) == "tiles"
    assert tuning.choose(case, ("tiles", "rows")) == "rows"
    assert ms.backend.info()["tuning_table"] == str(tuning.table_path())
    monkeypatch.setenv("MLXSPARSE_PATH", "rows")
    ms.ops.subm_conv3d(x, w)
    assert "convolution path rows (forced)" in capfd.readouterr().err
    with tuning.forced("tiles"):
        assert tuning.choose(case, tuning.PATHS) == "tiles"
    with pytest.raises(MLXSparseError, match="was forced"):
        tuning.choose(case, ("tiles",))
    monkeypatch.setenv("MLXSPARSE_PATH", "fast")
    with pytest.raises(MLXSparseError, match="must be one of"):
        ms.ops.subm_conv3d(x, w)


def test_tables_of_another_gpu_and_broken_ones(monkeypatch):
    case, path = tuning.Case("float16", 100, 27, 8, 8), tuning.table_path()
    tuning.write([(case, {"rows": 1.0})], path)
    assert tuning.choose(case, tuning.PATHS) == "rows"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "device": "another"}))
    tuning.forget()
    assert tuning.choose(case, tuning.PATHS) == "tiles"
    good = content["entries"][0]
    cases = [[1], *(["float16", n, 27, 4, 5, 1] for n in ("x", 1.5, 10**400)), [["float16"], 1, 27, 4, 5]]
    times = ["abc", 1, *({"tiles": ms, "rows": 1.0} for ms in (None, "1", math.nan))]
    broken = [*({"case": one} for one in cases), *({"ms": one} for one in times)]
    entries = [json.dumps({**content, "entries": [{**good, **entry}]}) for entry in broken]
    for text in ("{", "[]", "[" * 100_000, *entries, json.dumps({**content, "entries": 3})):
        path.write_text(text)
        tuning.forget()
        with pytest.raises(CheckpointError, match="tuning.json.*delete it or run `mlxsparse tune`"):
            tuning.choose(case, tuning.PATHS)


def test_another_table_is_read_where_the_environment_names_it(monkeypatch, tmp_path):
    case = tuning.Case("float16", 100, 27, 8, 8)
    assert tuning.choose(case, tuning.PATHS) == "tiles"
    other = tmp_path / "other.json"
    tuning.write([(case, {"rows": 1.0})], other)
    assert tuning.choose(case, tuning.PATHS) == "tiles"
    monkeypatch.setenv("MLXSPARSE_TUNING", str(other))
    assert tuning.choose(case._replace(rows=101), tuning.PATHS) == "rows"


def test_groups_take_their_path_and_say_so(kernels):
    x, w = tensor(30), weight(4, 3, 2)
    ms.ops.subm_conv3d(x, w, groups=2)
    with tuning.forced("gather"), pytest.raises(MLXSparseError, match="groups"):
        ms.ops.subm_conv3d(x, w, groups=2)


def test_tune_writes_what_the_choice_reads(kernels, capsys):
    results = tune.measure([40], [4], ["float32", "float16"], 1)
    assert [set(times) for _, times in results] == [set(tuning.PATHS)] * 4  # of surfaces and cubes
    assert results[1][0].filled > 3 * results[0][0].filled
    tuning.write(results, tuning.table_path())
    best = min(results[0][1], key=results[0][1].get)
    assert tuning.choose(results[0][0], tuning.PATHS) == best
    assert 20 < len(tune.surface(40)) < 160 and 2000 < len(tune.surface(3000)) < 6000
    assert [len(tune.box(n)) for n in (1, 8, 9)] == [1, 8, 27]


def test_tune_needs_a_gpu(capsys):
    before = mx.default_device()
    assert main(["tune", "--device", "cpu"]) == 2
    assert "--device gpu" in capsys.readouterr().err
    mx.set_default_device(before)


@pytest.mark.parametrize("target", ["", "pipe", "folder", "file/below"])
def test_tune_refuses_what_it_cannot_write_before_it_measures(target, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tune, "executor", lambda: "kernel")
    monkeypatch.setattr(tune, "measure", lambda *_: pytest.fail("measured"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert main(["tune", "--out", target and str(tmp_path / target)]) == (1 if target else 2)
    error = capsys.readouterr().err
    assert error.startswith("mlxsparse: error: ") and error.count("\n") == 1
    assert target.partition("/")[0] in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_tune_prints_what_it_cannot_write(tmp_path, capsys, monkeypatch):
    case = tuning.Case("float32", 40, 27, 4, 5)

    def measure(*_):
        os.mkfifo(tmp_path / "table")
        return [(case, {"tiles": 1.5})]

    monkeypatch.setattr(tune, "executor", lambda: "kernel")
    monkeypatch.setattr(tune, "measure", measure)
    assert main(["tune", "-o", str(tmp_path / "table")]) == 1
    said = capsys.readouterr()
    assert "1.500*" in said.out and "wrote" not in said.out and "a device or a pipe" in said.err
    assert [p.name for p in tmp_path.iterdir()] == ["table"] and (tmp_path / "table").is_fifo()
    (tmp_path / "table").unlink()
    monkeypatch.setattr(tune, "measure", lambda *_: [(case, {"rows": 1.5})])
    assert main(["tune", "-o", str(tmp_path / "new" / "table")]) == 0
    monkeypatch.setenv("MLXSPARSE_TUNING", str(tmp_path / "new" / "table"))
    assert tuning.choose(case, tuning.PATHS) == "rows"


@pytest.mark.parametrize("path", ["tiles", "rows", "gather"])
def test_no_rows_of_input_and_some_of_output(kernels, path):
    x, out = tensor(0), np.array([[0, 0, 0, 0]], np.int32)
    w = weight(5, 3, 4)
    with tuning.forced(path):
        y, *gradients = outcome(x, w, mx.ones((5,)), out=out)
    assert y.tolist() == [[1] * 5] and gradients[0].shape == (0, 4)
    assert gradients[1].shape == w.shape and not gradients[1].any() and gradients[2].any()


@pytest.mark.parametrize("norm", [False, True])
def test_a_layer_without_taps_is_its_bias(kernels, norm):
    x = tensor(20)
    conv, bn = ms.nn.SubmConv3d(4, 4, 3), ms.nn.BatchNorm(4)
    conv.keep_taps(())
    conv.bias, bn.bias, wanted = mx.array([1.0, 2, 3, 4]), mx.array([10.0, 20, 30, 40]), [1.0, 2, 3, 4]
    if norm:
        y = ms.nn.conv_norm_act(conv, bn.eval(), ms.nn.ReLU(), x, x.replace(mx.ones_like(x.feats)))
        wanted = [12.0, 23, 34, 45]
    else:
        y = conv(x)
    np.testing.assert_allclose(np.array(y.feats), np.tile(wanted, (20, 1)), rtol=1e-4)
