"""The training loop: checkpoints, precisions, what may not be resumed."""

from __future__ import annotations

import contextlib
import json
import os

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mlxsparse.backend.device import kernels_everywhere
from mlxsparse.errors import CheckpointError, MLXSparseError, PointCloudError
from mlxsparse.tasks import segmentation as task
from mlxsparse.tasks import training
from tests.tasks.test_segmentation import floor_and_posts

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(scope="module")
def job():
    cloud = floor_and_posts(n=700)
    settings = task.choose_settings([cloud], 0.3, use_relief=True)
    part, _ = task.split(cloud, settings, 0)
    return settings, [part.take(np.arange(0, len(part), 2)), part.take(np.arange(1, len(part), 2))]


def weights(model):
    return {name: np.array(value) for name, value in tree_flatten(model.parameters())}


def fresh(settings):
    return task.new_model(settings, (4, 8), 1, seed=1)


class Stop(Exception):
    pass


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_stopped_training_resumes_to_the_same_bits(job, precision, tmp_path):
    settings, parts = job
    plan = task.Plan(5, seed=1, precision=precision)
    whole = fresh(settings)
    losses = task.train(whole, settings, parts, plan)

    path = tmp_path / "checkpoint.safetensors"
    steps = []

    def stop(done, total, loss):
        steps.append(done)
        if done == 7:  # within the fourth epoch of two steps
            raise Stop

    with pytest.raises(Stop):
        task.train(fresh(settings), settings, parts, plan, checkpoint=path, progress=stop)
    resumed = task.new_model(settings, (4, 8), 1, seed=99)  # whatever it starts from
    seen = []
    again = task.train(resumed, settings, parts, plan, checkpoint=path, resume=True,
                       progress=lambda *a: seen.append(a[0]))  # fmt: skip
    assert again == losses and seen == [7, 8, 9, 10] and os.listdir(tmp_path) == [path.name]
    for name, value in weights(whole).items():
        assert value.tobytes() == weights(resumed)[name].tobytes(), name
    # A finished training is not repeated.
    done = fresh(settings)
    assert task.train(done, settings, parts, plan, checkpoint=path, resume=True, progress=stop) == losses
    assert len(steps) == 7


def test_checkpoints_of_another_training(job, tmp_path):
    settings, parts = job
    path = tmp_path / "c.safetensors"
    task.train(fresh(settings), settings, parts, task.Plan(1), checkpoint=path)

    def resume(match, model=None, plan=None, data=parts, settings=settings):
        with pytest.raises(CheckpointError, match=match):
            task.train(
                model or fresh(settings), settings, data, plan or task.Plan(1), checkpoint=path, resume=True
            )

    resume("plan is {'epochs': 1}, here it is {'epochs': 2}", plan=task.Plan(2))
    resume("model is {'channels'", model=task.new_model(settings, (4, 9), 1))
    resume("data", data=parts[:1])
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:5], b"", b"x" * 100):
        path.write_bytes(damaged)
        resume("no checkpoint")
    task.train(
        fresh(settings), settings, parts, task.Plan(1), checkpoint=path
    )  # without resume it is replaced
    assert path.read_bytes() == content


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_lower_precision_learns_and_keeps_float32_weights(job, precision):
    settings, parts = job
    model = fresh(settings)
    losses = task.train(model, settings, parts, task.Plan(8, precision=precision))
    assert losses[-1] < 0.6 * losses[0]
    assert {value.dtype for value in weights(model).values()} == {np.dtype(np.float32)}
    plain = task.predict(model, settings, parts[0].points, parts[0].inputs)
    low = task.predict(model, settings, parts[0].points, parts[0].inputs, precision=precision)
    assert np.mean(plain == low) > 0.97
    assert {value.dtype for value in weights(model).values()} == {np.dtype(np.float32)}


def test_an_overflow_in_float16_costs_a_step_and_lowers_the_scale(job):
    settings, _ = job
    model = fresh(settings)
    optimizer = training._optimizer(1e-3, 10)
    optimizer.init(model.trainable_parameters())
    state = training._State(0, [], 2.0**12, 5)
    before = weights(model)
    infinite = {
        name: mx.full(value.shape, float("inf")) for name, value in tree_flatten(model.trainable_parameters())
    }
    update = training._updater(model, optimizer, state, "float16")
    update(training.tree_unflatten(list(infinite.items())))
    assert state.scale == 2.0**11 and state.steps_without_overflow == 0
    assert all(np.array_equal(before[name], value) for name, value in weights(model).items())


def test_compiled_optimizer_steps_are_the_eager_ones(job):
    settings, _ = job
    found = []
    for context in (contextlib.nullcontext(), kernels_everywhere()):  # without kernels nothing is compiled
        model, state = fresh(settings), training._State(0, [], 4.0, 0)
        optimizer = training._optimizer(1e-2, 40)
        optimizer.init(model.trainable_parameters())
        with context:
            update = training._updater(model, optimizer, state, "bfloat16")
            for seed in range(3):
                mx.random.seed(seed)
                update(tree_map(lambda p: mx.random.normal(p.shape), model.trainable_parameters()))
        found.append([*weights(model).values(), *(np.array(v) for _, v in tree_flatten(optimizer.state))])
    for eager, compiled in zip(*found, strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-5, atol=1e-7)


def test_a_plan_that_cannot_be(job):
    settings, parts = job
    for plan, match in ((task.Plan(0), "epochs"), (task.Plan(1, precision="int8"), "precision")):
        with pytest.raises(MLXSparseError, match=match):
            task.train(fresh(settings), settings, parts, plan)


def test_a_full_disk_ends_the_training_with_an_error(job, tmp_path, monkeypatch):
    settings, parts = job

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PointCloudError, match="No space left"):
        task.train(fresh(settings), settings, parts, task.Plan(1), checkpoint=tmp_path / "c.safetensors")
    with pytest.raises(CheckpointError, match="No space left"):
        task.save(fresh(settings), settings, tmp_path / "weights")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_checkpoints_that_hold_something_else(job, tmp_path):
    settings, parts = job
    path = tmp_path / "c.safetensors"
    task.train(fresh(settings), settings, parts, task.Plan(1), checkpoint=path)
    arrays, metadata = mx.load(str(path), return_metadata=True)
    state = json.loads(metadata["state"])

    def resume(arrays, **changed):
        told = {**metadata, "state": json.dumps({**state, **changed})}
        other = tmp_path / "d.safetensors"
        mx.save_safetensors(str(other), arrays, told)
        with pytest.raises(CheckpointError):
            task.train(fresh(settings), settings, parts, task.Plan(1), checkpoint=other, resume=True)

    resume({name: a for name, a in arrays.items() if name.startswith("model.")})
    resume({**arrays, "other.x": mx.zeros(1)})
    resume({name: a for name, a in arrays.items() if name != "optimizer.step"})
    for epoch in ("x", 1.0, 2, None):
        resume(arrays, epoch=epoch)


def test_weights_that_are_nan_after_the_last_step_are_not_kept(job, tmp_path, monkeypatch):
    settings, parts = job

    def broken(model, *_):
        def update(gradients):
            model.head.bias = mx.full(model.head.bias.shape, float("nan"))

        return update

    monkeypatch.setattr(training, "_updater", broken)
    path = tmp_path / "c.safetensors"
    with pytest.raises(MLXSparseError, match="a weight became nan at step 1; lower the learning rate"):
        task.train(fresh(settings), settings, parts[:1], task.Plan(1), checkpoint=path)
    assert not path.exists()


def test_points_without_a_class_are_geometry_alone(job):
    """They are seen, but neither loss, class weights nor scores count them."""
    settings, (part, other) = job
    labels = np.where(np.arange(len(part)) % 4 == 0, part.labels, -1)
    part = task.Part(part.points, part.inputs, labels.astype(np.int32))
    none = task.Part(other.points, other.inputs, np.full(len(other), -1, np.int32))
    model, steps = fresh(settings), []
    loss = task.train(model, settings, [part, none], task.Plan(1, augment=False),
                      progress=lambda *a: steps.append(a[:2]))[0]  # fmt: skip
    assert steps == [(1, 1)]

    model = fresh(settings)
    model.train()
    voxels = task.to_voxels(part.points, part.inputs, settings.voxel_size)
    logits = np.array(voxels.devoxelize(feats=model(voxels.tensor))).astype(np.float64)
    known = labels >= 0
    entropy = np.log(np.exp(logits).sum(axis=1))[known] - logits[known, labels[known]]
    weight = 1 / np.sqrt(np.bincount(labels[known]) / known.sum())
    assert loss == pytest.approx(np.mean(entropy * (weight / weight.mean())[labels[known]]), rel=1e-4)

    score = task.score(model, settings, [part, none], 1)
    assert score.matrix.sum() == score.majority_matrix[:, 1].sum() == known.sum()
    np.testing.assert_array_equal(score.matrix.sum(axis=1), np.bincount(labels[known]))
    with pytest.raises(PointCloudError, match="nothing is held out"):
        task.score(model, settings, [none], 1)
    with pytest.raises(PointCloudError, match="no labelled points"):
        task.train(model, settings, [none], task.Plan(1))


def test_lower_precision_is_of_weights_and_not_of_masks():
    model = mlx.nn.Sequential(mlx.nn.Linear(2, 2))
    model.layers[0].weight_keep = mx.ones((2, 2), mx.bool_)
    with training.lowered(model, mx.float16):
        assert model.layers[0].weight.dtype == mx.float16 and model.layers[0].weight_keep.dtype == mx.bool_
    assert model.layers[0].weight.dtype == mx.float32
