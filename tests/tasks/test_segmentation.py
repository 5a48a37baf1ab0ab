"""The segmentation task: settings, split, training that learns, weights that come back."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxsparse.errors import CheckpointError, MLXSparseError, PointCloudError
from mlxsparse.io.cloud import PointCloud
from mlxsparse.tasks import segmentation as task

pytestmark = pytest.mark.usefixtures("device")


def floor_and_posts(seed=0, n=3000):
    """A noisy floor (class 2) with posts of random places (class 7), in a field of 20 x 10."""
    rng = np.random.default_rng(seed)
    floor = np.column_stack([rng.uniform(0, 20, n), rng.uniform(0, 10, n), rng.normal(0, 0.02, n)])
    feet = np.column_stack([rng.uniform(0, 20, 40), rng.uniform(0, 10, 40)])
    posts = np.column_stack([np.repeat(feet, n // 40, axis=0), rng.uniform(0.3, 2, n // 40 * 40)])
    points = np.concatenate([floor, posts + rng.normal(0, 0.01, posts.shape)])
    labels = np.array([2] * len(floor) + [7] * len(posts), np.uint8)
    order = rng.permutation(len(points))
    fields = {
        "classification": labels[order],
        "intensity": rng.integers(0, 900, len(points)).astype(np.uint16),
    }
    return PointCloud(points[order], fields, path="made.las")


def test_settings():
    cloud = floor_and_posts()
    settings = task.choose_settings([cloud])
    assert settings.classes == [2, 7] and settings.fields == ["intensity"]
    assert settings.scales[0] == pytest.approx(np.percentile(cloud.fields["intensity"], 99))
    voxels = task.to_voxels(cloud.points, task.inputs_of(cloud, settings), settings.voxel_size)
    assert 0.35 < voxels.tensor.num_active / len(cloud) < 0.6
    assert task.choose_settings([cloud], 0.5).voxel_size == 0.5
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(MLXSparseError, match="voxel_size"):
            task.choose_settings([cloud], bad)


def test_clouds_that_cannot_be_trained_on():
    cloud = floor_and_posts()
    bare = PointCloud(cloud.points, {"intensity": cloud.fields["intensity"]}, path="bare.las")
    with pytest.raises(PointCloudError, match="bare.las.*label or classification"):
        task.choose_settings([bare])
    one = PointCloud(cloud.points, {"classification": np.zeros(len(cloud), np.uint8)}, path="one.las")
    with pytest.raises(PointCloudError, match="nothing to tell apart"):
        task.choose_settings([one])
    with pytest.raises(PointCloudError, match="intensity"):
        task.inputs_of(one, task.choose_settings([cloud]))


def test_split_is_by_a_plane_and_loses_nothing():
    cloud = floor_and_posts()
    cloud.points[5] = np.nan
    train, held = task.split(cloud, task.choose_settings([cloud]), 0.25)
    assert len(train.points) + len(held.points) == len(cloud) - 1
    assert train.points[:, 0].max() <= held.points[:, 0].min()
    assert len(held.points) / len(cloud) == pytest.approx(0.25, abs=0.01)
    assert len(task.split(cloud, task.choose_settings([cloud]), 0)[1].points) == 0
    pieces = task.tiles(train, 500)
    assert (
        sum(len(p.points) for p in pieces) == len(train.points) and max(len(p.points) for p in pieces) <= 500
    )


def test_it_learns_and_the_weights_come_back(tmp_path):
    cloud = floor_and_posts()
    settings = task.choose_settings([cloud], 0.2)
    train, held = task.split(cloud, settings, 0.25)
    model = task.new_model(settings, (8, 16), 1)
    seen = []
    losses = task.train(model, settings, [train], task.Plan(12), progress=lambda *a: seen.append(a))
    assert losses[-1] < 0.5 * losses[0] and [a[0] for a in seen] == list(range(1, 13))
    report = task.score(model, settings, [held], 0).report()
    assert report["mean_iou"] > report["majority_mean_iou"] + 0.3 and min(report["iou"]) > 0.8

    task.save(model, settings, tmp_path / "weights")
    loaded, same = task.load(tmp_path / "weights")
    assert same == settings
    inputs = task.inputs_of(cloud, settings)
    np.testing.assert_array_equal(
        task.predict(model, settings, cloud.points, inputs), task.predict(loaded, same, cloud.points, inputs)
    )
    cloud.points[3] = np.inf
    assert task.predict(model, settings, cloud.points, inputs)[3] == -1


def test_training_is_deterministic():
    cloud = floor_and_posts(n=600)
    settings = task.choose_settings([cloud], 0.3)
    train, _ = task.split(cloud, settings, 0)

    def run():
        return task.train(
            task.new_model(settings, (4, 8), 1, seed=3), settings, [train], task.Plan(3, seed=3)
        )

    assert run() == run()


def test_weights_that_do_not_fit(tmp_path):
    cloud = floor_and_posts(n=600)
    settings = task.choose_settings([cloud], 0.3)
    folder = tmp_path / "weights"
    with pytest.raises(CheckpointError, match="has no config.json"):
        task.load(folder)
    task.save(task.new_model(settings, (4, 8), 1), settings, folder)
    good = json.loads((folder / "config.json").read_text())

    def broken(change, match):
        config = json.loads(json.dumps(good))
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=match):
            task.load(folder)

    broken(lambda c: c["model"].update(channels=[4, 9]), "does not fit")
    broken(lambda c: c["model"].update(name="pointnet"), "MinkUNet")
    broken(lambda c: c["model"].update(depth=3), "MinkUNet")
    broken(lambda c: c["model"].update(blocks=0), "MinkUNet")
    broken(lambda c: c["settings"].pop("classes"), "settings")
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot read"):
        task.load(folder)
    (folder / "config.json").write_text(json.dumps(good))
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError):
        task.load(folder)


def test_nothing_to_train_on():
    cloud = floor_and_posts(n=600)
    settings = task.choose_settings([cloud], 0.3)
    empty = task.Part(np.empty((0, 3)), np.empty((0, 2), np.float32), np.empty(0, np.int32))
    with pytest.raises(PointCloudError, match="nothing to train on"):
        task.train(task.new_model(settings, (4,), 1), settings, [empty], task.Plan(1))
    with pytest.raises(PointCloudError, match="held out"):
        task.score(task.new_model(settings, (4,), 1), settings, [empty], 0)
    mx.synchronize()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model",), [1]), (("model",), "abc"), (("model",), None), (("model", "channels"), "abc"),
        (("model", "stem_kernel"), 2**40), (("layers",), [1]), (("layers",), "abc"),
        (("layers",), {"stem": 1}),
        (("layers",), {"stem.layers.0.conv": {"identity": False, "taps": None, "shapes": {"weight": [-1]}}}),
        (("settings",), [1]), (("settings", "voxel_size"), "a"), (("settings", "voxel_size"), float("nan")),
        (("settings", "voxel_size"), 0), (("settings", "classes"), ["a", "b"]), (("settings", "classes"), 2),
        (("settings", "classes"), [7, 2]), (("settings", "classes"), [2, 2**70]),
        (("settings", "names"), ["a"]), (("settings", "names"), [1, 2]), (("settings", "names"), "ab"),
        (("settings", "fields"), "a"), (("settings", "fields"), [1]), (("settings", "scales"), ["a"]),
        (("settings", "scales"), [0]), (("settings", "relief"), [1.0]), (("settings", "relief"), 3),
    ],
)  # fmt: skip
def test_a_malformed_config_is_a_checkpoint_error(place, value, tmp_path):
    settings = task.choose_settings([floor_and_posts(n=600)], 0.3)
    task.save(task.new_model(settings, (4, 8), 1), settings, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    entry = config
    for name in place[:-1]:
        entry = entry[name]
    entry[place[-1]] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        task.load(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("channels", [10**13, 8]), ("channels", [2**16 + 1]), ("channels", [10**30]), ("blocks", 10**13),
        ("stem_kernel", 2**21), ("in_channels", 10**13), ("num_classes", 10**30),
    ],
)  # fmt: skip
def test_sizes_in_a_config_beyond_any_network(place, value, tmp_path):
    settings = task.choose_settings([floor_and_posts(n=600)], 0.3)
    task.save(task.new_model(settings, (4, 8), 1), settings, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"][place] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="1 to 65536 channels, 1 to 1024 blocks"):
        task.load(tmp_path)


def test_weights_that_cannot_be_read(tmp_path):
    settings = task.choose_settings([floor_and_posts(n=600)], 0.3)
    task.save(task.new_model(settings, (4, 8), 1), settings, tmp_path)
    path = tmp_path / "model.safetensors"
    weights = path.read_bytes()
    for content in (b"", b"no weights at all", weights[: len(weights) // 2]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="cannot read .*model.safetensors': .") as caught:
            task.load(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_give_no_number_label_nothing(bad):
    cloud = floor_and_posts(n=600)
    settings = task.choose_settings([cloud], 0.3)
    model = task.new_model(settings, (4, 8), 1)
    model.head.bias = mx.full(model.head.bias.shape, bad)
    with pytest.raises(MLXSparseError, match="no finite values; train again with a lower learning rate"):
        task.predict(model, settings, cloud.points, task.inputs_of(cloud, settings))


def test_a_network_larger_than_memory_is_refused():
    settings = task.choose_settings([floor_and_posts(n=600)], 0.3)
    with pytest.raises(MLXSparseError, match="does not fit in this machine's .* fewer channels"):
        task.new_model(settings, (2**16, 2**16), 1024)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.int32])
def test_weights_cast_to_another_type(dtype, tmp_path):
    """Floats of half the size are used, as float32; others are refused by name."""
    cloud = floor_and_posts(n=600)
    settings = task.choose_settings([cloud], 0.3)
    model = task.new_model(settings, (4, 8), 1)
    task.save(model, settings, tmp_path)
    flat = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {k: v.astype(dtype) for k, v in flat.items()})
    if dtype == mx.int32:
        told = r"model.safetensors': \S+ is int32, where the model has float32: save it in a type"
        with pytest.raises(CheckpointError, match=told):
            task.load(tmp_path)
        return
    loaded, _ = task.load(tmp_path)
    for name, value in tree_flatten(loaded.parameters()):
        assert value.dtype == mx.float32 and mx.array_equal(value, flat[name].astype(dtype)), name
    task.predict(loaded, settings, cloud.points, task.inputs_of(cloud, settings))
