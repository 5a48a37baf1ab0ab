"""Spans of ranks: pieces, and operators by batch item where there are many items, or most are empty."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse.engine import norm, pooling
from mlxsparse.engine.spans import CHUNK, SHORT, Spans, short_maxima, short_sums

FAR = np.zeros(1_000_000, np.int64)  # rows of each item
FAR[[0, 500_000, 999_999]] = 2, 1, 3
MANY = np.full(20_000, 3)


def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def on_the_host():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.mark.parametrize(
    "counts", [[], [0, 0], [5], [SHORT, 0, SHORT + 1, 3, 0, 9000, 1], rng().integers(0, 40, 3000), MANY, FAR]
)
def test_chunks_cover_every_rank_once(counts):
    spans, which = Spans(None, np.array(counts, np.int64)).filled()
    chunks = spans.chunks(32)
    edges = [0, *(chunk.last for chunk in chunks)]
    assert [chunk.first for chunk in chunks] == edges[:-1] and edges[-1] == sum(counts)
    number = np.repeat(which, spans.counts)
    for chunk in chunks:
        assert (which[spans.number(chunk)] == number[chunk.first : chunk.last]).all()
        assert spans.rows(chunk).sum() == chunk.last - chunk.first <= CHUNK // 32 + SHORT
    long = int((spans.counts > SHORT).sum())
    assert len(chunks) <= 2 * sum(counts) // (CHUNK // 32) + 2 * long + 1


@pytest.mark.parametrize("spans, channels", [(200, 5), (2, 5), (40, 5), (20, 1), (20, 0)])
def test_sums_and_maxima_of_short_spans_are_those_of_each_alone(spans, channels):
    counts = rng().integers(1, SHORT + 1, spans)
    values = rng().integers(-3, 3, (int(counts.sum()), channels)).astype(np.float32) / 3
    values[rng().random(values.shape) < 0.02] = np.nan
    sums, rows = short_sums(values, counts), short_maxima(values, counts)
    ends = np.cumsum(counts)
    for i, (a, b) in enumerate(zip(ends - counts, ends)):
        assert np.array_equal(sums[i], short_sums(values[a:b], counts[i : i + 1])[0], equal_nan=True)
        assert np.allclose(sums[i], values[a:b].sum(axis=0), atol=1e-5, equal_nan=True)
        assert (rows[i] == a + np.argmax(values[a:b], axis=0)).all()


def test_a_few_short_spans_take_no_step_a_row(monkeypatch):
    """Items of 64 rows between long ones took four times as long as before."""
    monkeypatch.setattr("mlxsparse.engine.spans._by_length", None)
    values, counts = rng().random((3 * SHORT, 4)), np.full(3, SHORT)
    assert np.allclose(short_sums(values, counts), values.reshape(3, SHORT, 4).sum(axis=1))
    assert short_maxima(values, counts).shape == (3, 4)


@pytest.mark.parametrize("counts", [MANY, FAR], ids=["many", "far"])
@pytest.mark.parametrize("name", ["max", "mean", "instance norm", "group norm", "sums of gradients"])
def test_no_item_is_a_task_of_its_own(monkeypatch, name, counts):
    total, tasks = int(counts.sum()), []
    c = np.zeros((total, 4), np.int32)
    c[:, 0], c[:, 1] = np.repeat(np.arange(len(counts)), counts), np.arange(total)
    x = ms.SparseTensor(c, mx.array(rng().random((total, 2), np.float32)))
    run = {
        "max": lambda f: ms.ops.global_max_pool(x.replace(f), empty=0),
        "mean": lambda f: ms.ops.global_avg_pool(x.replace(f)),
        "instance norm": lambda f: ms.nn.InstanceNorm(2)(x.replace(f)).feats,
        "group norm": lambda f: ms.nn.GroupNorm(1, 2)(x.replace(f)).feats,
        "sums of gradients": lambda f: ms.ops.broadcast_add(x, mx.zeros((len(counts), 2)) + f.sum()).feats,
    }[name]
    for module in (pooling, norm):

        def counted(work, number, plain=module.parallel, **more):
            tasks.append(number)
            plain(work, number, **more)

        monkeypatch.setattr(module, "parallel", counted)
    mx.eval(mx.grad(lambda f: (run(f) ** 2).sum())(x.feats))
    assert 0 < max(tasks) <= 1 + total // 1000
