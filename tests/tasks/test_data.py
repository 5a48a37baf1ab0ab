"""Inputs of points, crops, augmentation; labelling a cloud crop by crop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxsparse.errors import MLXSparseError, PointCloudError
from mlxsparse.io.cloud import PointCloud
from mlxsparse.tasks import data
from mlxsparse.tasks import segmentation as task
from tests.tasks.test_segmentation import floor_and_posts

pytestmark = pytest.mark.usefixtures("device")


def points_strategy(draw):
    n = draw(st.integers(0, 60))
    seed = draw(st.integers(0, 10_000))
    grid = draw(st.sampled_from([0.5, 1.0, 8.0]))  # coarse grids make many equal coordinates
    return np.round(np.random.default_rng(seed).normal(0, 5, (n, 3)) / grid) * grid


@given(st.data(), st.integers(1, 20), st.sampled_from([0.0, 0.7, 3.0, 100.0]))
@settings(max_examples=60, deadline=None)
def test_pieces_and_crops_hold_every_point(drawn, limit, margin):
    points = points_strategy(drawn.draw)
    pieces = data.halved(points, limit)
    assert sorted(np.concatenate([np.empty(0, int), *pieces]).tolist()) == list(range(len(points)))
    assert all(0 < len(piece) <= limit for piece in pieces)
    crops = data.overlapping(points, limit, margin)
    assert len(crops) == len(pieces)
    for piece, crop in zip(pieces, crops):
        low, high = points[piece, :2].min(axis=0) - margin, points[piece, :2].max(axis=0) + margin
        inside = ((points[:, :2] >= low) & (points[:, :2] <= high)).all(axis=1)
        assert crop.tolist() == np.flatnonzero(inside).tolist() and set(piece) <= set(crop)


def test_labelling_in_crops_is_labelling_the_whole():
    cloud = floor_and_posts(n=2000)
    known = task.choose_settings([cloud], 0.3, use_relief=True)
    part, _ = task.split(cloud, known, 0)
    model = task.new_model(known, (4, 8), 1)
    task.train(model, known, [part], task.Plan(4))
    whole = task.predict(model, known, part.points, part.inputs)
    calls = []
    cropped = task.predict(model, known, part.points, part.inputs, crop_points=900,
                           progress=lambda *a: calls.append(a))  # fmt: skip
    assert calls[-1][0] == calls[-1][1] > 3
    assert np.mean(whole == cropped) > 0.97
    voted = task.predict(model, known, part.points, part.inputs, votes=3)
    assert np.mean(whole == voted) > 0.95
    for options in ({"votes": 0}, {"crop_points": 0}, {"precision": "int8"}):
        with pytest.raises(MLXSparseError, match="at least 1"):
            task.predict(model, known, part.points, part.inputs, **options)
    none = np.full((3, 3), np.nan)
    assert task.predict(model, known, none, np.ones((3, known.num_inputs), np.float32)).tolist() == [-1] * 3
    assert task.predict(model, known, none[:0], np.ones((0, known.num_inputs), np.float32)).shape == (0,)


def test_inputs():
    cloud = floor_and_posts(n=400)
    n = len(cloud)
    numbers = np.arange(n) % 3 + 1
    cloud.fields |= {"return_number": np.minimum(numbers, 2), "number_of_returns": numbers}
    known = task.choose_settings([cloud], 0.3, use_relief=True)
    assert known.fields == ["intensity", "return_number", "number_of_returns"] and known.last_return
    inputs = task.inputs_of(cloud, known)
    assert inputs.shape == (n, known.num_inputs) == (n, 1 + 3 + 1 + 9) and inputs.dtype == np.float32
    assert (
        (inputs[:, 0] == 1).all() and np.array_equal(inputs[:, 4], numbers < 3) and np.abs(inputs).max() < 10
    )
    assert task.choose_settings([cloud], 0.3, fields=[]).fields == []
    assert task.choose_settings([cloud], 0.3, fields=["intensity"]).num_inputs == 2
    with pytest.raises(PointCloudError, match="infrared"):
        task.choose_settings([cloud], fields=["infrared"])
    named = task.choose_settings([cloud], 0.3, names=[f"name {i}" for i in range(8)])
    assert named.names == ["name 2", "name 7"] and named.name(1) == "name 7" and known.name(1) == "class 7"
    assert task.choose_settings([cloud], 0.3, names=["too", "few"]).names == []


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_classes_of_any_number_type(dtype):
    cloud = PointCloud(np.zeros((3, 3)), {"scalar_Label": np.array([1, 5, 2], dtype)}, path="a.ply")
    assert task.labels_of(cloud).tolist() == [1, 5, 2]
    cloud.fields["scalar_Label"] = np.array([1, 5.5, 2])
    with pytest.raises(PointCloudError, match="whole numbers"):
        task.labels_of(cloud)


def test_augmentation_turns_and_thins_out():
    part, _ = task.split(floor_and_posts(n=500), task.choose_settings([floor_and_posts(n=500)], 0.3), 0)
    rng = np.random.default_rng(0)
    sizes = set()
    for _ in range(10):
        new = data.augmented(part, rng)
        sizes.add(len(new))
        assert 0.75 * len(part) < len(new) <= len(part) == len(part.labels)
        assert len(new.points) == len(new.inputs) == len(new.labels)
        # Heights keep their order and only scale.
        assert 0.9 < np.ptp(new.points[:, 2]) / np.ptp(part.points[:, 2]) < 1.06
    assert len(sizes) > 3
    turned = data.turned(part.points, 0.3, mirror=True, scale=2.0)
    apart = [np.linalg.norm(p[1:] - p[:-1], axis=1) for p in (turned, part.points)]
    np.testing.assert_allclose(apart[0], 2 * apart[1])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e30])
def test_classes_that_are_no_whole_numbers_of_64_bits(bad):
    cloud = PointCloud(np.zeros((3, 3)), {"label": np.array([1, bad, 2])}, path="a.ply")
    with pytest.raises(PointCloudError, match="whole numbers"):
        task.labels_of(cloud)
    cloud.fields["label"] = np.array([1, 2**63, 2], np.uint64)
    with pytest.raises(PointCloudError, match="whole numbers"):
        task.labels_of(cloud)


def test_a_class_that_is_not_a_number_is_no_label():
    """And does not have another field of classes taken."""
    fields = {"scalar_Classification": np.array([np.nan, 1, 2], np.float32), "segment": np.array([7, 7, 8])}
    cloud = PointCloud(np.zeros((3, 3)), fields, path="a.ply")
    assert task.labels_of(cloud).tolist() == [-1, 1, 2]
    fields["scalar_Classification"][:] = np.nan
    assert task.labels_of(cloud).tolist() == [7, 7, 8]


def test_the_field_of_the_classes_is_named():
    cloud = floor_and_posts(n=600)
    cloud.fields["kind"] = np.arange(len(cloud)) % 3 / 1.0
    cloud.fields["red"] = np.arange(len(cloud)) % 2
    known = task.choose_settings([cloud], 0.3, class_field="kind")
    assert known.classes == [0, 1, 2]
    assert task.labels_of(cloud, "kind").tolist() == cloud.fields["kind"].tolist()
    assert [p.labelled for p in task.split(cloud, known, 0, "kind")] == [len(cloud), 0]
    assert data.other_classes([cloud], known, "kind") == "" != data.other_classes([cloud], known)
    assert task.choose_settings([cloud], 0.3, class_field="red").fields == ["intensity"]
    with pytest.raises(PointCloudError, match="'kind' is what is to be found out"):
        task.choose_settings([cloud], 0.3, fields=["kind"], class_field="kind")
    cloud.fields["kind"][5] = 0.5
    for name in ("kind", "none"):
        with pytest.raises(PointCloudError, match=f"no field '{name}' of one whole number a point.* it has "):
            task.choose_settings([cloud], 0.3, class_field=name)


@pytest.mark.parametrize("values", [np.zeros((600, 2), np.float32), np.full(600, "a")])
def test_inputs_of_other_than_one_number_a_point(values):
    cloud = floor_and_posts(n=600)
    good = task.choose_settings([cloud], 0.3)
    cloud.fields["intensity"] = values[: len(cloud)]
    assert task.choose_settings([cloud], 0.3).fields == []
    with pytest.raises(PointCloudError, match="'intensity' of one number a point"):
        task.choose_settings([cloud], 0.3, fields=["intensity"])
    with pytest.raises(PointCloudError, match="'intensity' .* is not one number a point"):
        task.inputs_of(cloud, good)


def test_a_far_outlier_is_refused():
    cloud = floor_and_posts(n=600)
    known = task.choose_settings([cloud], 0.3)
    cloud.points[5, 1] = 1e12
    for call in (lambda: task.choose_settings([cloud], 0.3), lambda: task.split(cloud, known, 0.2)):
        with pytest.raises(PointCloudError, match="far off the others"):
            call()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("span", [1e-320, 2e-160, 1.0, 1e160, 1e308])
def test_half_size_of_any_span(span):
    points = span * np.random.default_rng(0).random((500, 3))
    size = data.half_size(points)
    assert 0 < size <= max(span, 3e-308)
    if span > 1e-300:
        cells = np.unique(np.floor((points - points.min(axis=0)) / size), axis=0)
        assert 0.4 < len(cells) / 500 < 0.6
    with pytest.raises(PointCloudError, match="float64"):
        data.half_size(np.array([[1e308, 0, 0], [-1e308, 0, 0]]))


def test_half_size_counts_different_points_and_bears_one_far_off():
    points = np.random.default_rng(0).random((2000, 3)) * (20, 20, 1)
    size = data.half_size(points)
    assert 0.5 < size < 2
    assert data.half_size(np.repeat(points, 3, axis=0)) == size
    for far in (1e6, 1e12, 1e17):
        assert data.half_size(np.concatenate([points, [[far, 0, 0]]])) == pytest.approx(size, rel=0.05)
    for same in (points[:1], np.repeat(points[:1], 9, axis=0)):
        with pytest.raises(PointCloudError, match="a.pcd' has all its points at one place"):
            data.half_size(same, "'a.pcd'")


@pytest.mark.parametrize("scale", [1.0, 2.0**40, 2.0**70])
def test_cells_of_any_size_are_counted(scale):
    cells = np.random.default_rng(0).integers(0, 6, (300, 3)) * scale
    assert data._count_cells(cells) == len(np.unique(cells, axis=0))


def test_the_label_that_segment_wrote_comes_first():
    fields = {"classification": np.array([1, 1]), "label": np.array([3, 4])}
    for kind, wanted in (("ply", [3, 4]), ("npz", [3, 4]), ("las", [1, 1]), ("laz", [1, 1])):
        cloud = PointCloud(np.zeros((2, 3)), fields, path="a", format=kind)
        assert task.labels_of(cloud).tolist() == wanted


@pytest.mark.parametrize("n", [2, 3, 10, 101])
@pytest.mark.parametrize("val_split", [1e-18, 0.2, 0.5, 0.99])
def test_points_at_one_place_are_split_by_rank(n, val_split):
    points = np.column_stack([np.ones((n, 2)), np.arange(n)])
    cloud = PointCloud(points, {"label": np.arange(n) % 2})
    train, held = task.split(cloud, task.Settings(1.0, [0, 1]), val_split)
    assert len(train) and len(held) and len(train) + len(held) == n
    assert abs(len(held) - val_split * n) <= 1
    np.testing.assert_array_equal(np.concatenate([train.points, held.points]), points)
    one = PointCloud(points[:1], {"label": np.zeros(1, int)})
    assert [len(p) for p in task.split(one, task.Settings(1.0, [0, 1]), val_split)] == [1, 0]


def test_empty_clouds_and_clouds_without_position_are_refused_by_name():
    cloud = floor_and_posts(n=600)
    empty = PointCloud(np.empty((0, 3)), {}, path="empty.npz")
    for clouds in ([cloud, empty], [empty]):
        with pytest.raises(PointCloudError, match="'empty.npz' has no points"):
            task.choose_settings(clouds)
    with pytest.raises(PointCloudError, match="'empty.npz' has no field 'intensity'"):
        task.inputs_of(empty, task.choose_settings([cloud], 0.3))
    lost = PointCloud(np.full((len(cloud), 3), np.nan), cloud.fields, path="lost.pcd")
    with pytest.raises(PointCloudError, match="'lost.pcd' has no finite point"):
        task.choose_settings([lost])


def test_points_without_a_class_stay_on_their_side_of_the_cut():
    cloud = floor_and_posts(n=600)
    known = task.choose_settings([cloud], 0.3)
    rows = np.arange(len(cloud)) % 3 > 0
    few = PointCloud(cloud.points[rows], {name: v[rows] for name, v in cloud.fields.items()})
    cloud.fields["label"] = np.where(rows, cloud.fields["classification"].astype(int), -1)
    assert task.choose_settings([cloud], 0.3) == known
    parts, wanted = task.split(cloud, known, 0.25), task.split(few, known, 0.25)
    assert sum(map(len, parts)) == len(cloud) and [p.labelled for p in parts] == list(map(len, wanted))
    for part, labelled in zip(parts, wanted):
        np.testing.assert_array_equal(part.points[part.labels >= 0], labelled.points)
        np.testing.assert_array_equal(part.labels[part.labels >= 0], labelled.labels)
    assert parts[0].points[:, 0].max() <= parts[1].points[:, 0].min()
    cloud.fields["label"] = np.where(np.arange(len(cloud)) == 9, 2, -1)
    assert [p.labelled for p in task.split(cloud, known, 0.25)] == [1, 0]
    cloud.fields["label"][:] = 1
    whole, none = task.split(cloud, known, 0.25)
    assert (len(whole), whole.labelled, len(none)) == (len(cloud), 0, 0)


def test_negative_and_ignored_numbers_are_no_class():
    cloud = floor_and_posts(n=600)
    cloud.fields["label"] = np.arange(len(cloud)) % 5 - 2
    assert task.choose_settings([cloud], 0.3).classes == [0, 1, 2]
    known = task.choose_settings([cloud], 0.3, ignore=[1, 6], names=["ground", "rest", "post"])
    assert known.classes == [0, 2] and known.names == ["ground", "post"]
    said = data.other_classes([cloud, cloud], known)
    assert said == f"{2 * int(np.sum(data.labels_of(cloud) % 2 | (data.labels_of(cloud) < 0)))} of " \
        f"{2 * len(cloud)} points, of classes -2, -1, 1"
    with pytest.raises(PointCloudError, match=r"has class \[2\] or none \(-2, -1, 0, 1\): nothing to tell"):
        task.choose_settings([cloud], 0.3, ignore=[0, 1])


COLOURS = ("red", "green", "blue")


def coloured(unit, dtype, seed=0):
    """Points of two classes with colours of 8 bits, written as `dtype` with `unit` for full brightness."""
    cloud = floor_and_posts(n=600, seed=seed)
    shades = np.random.default_rng(seed).integers(0, 250, (3, len(cloud)))
    shades[:, 0] = 255
    cloud.fields = {"classification": cloud.fields["classification"]}
    cloud.fields |= {name: (shade * (unit / 255)).astype(dtype) for name, shade in zip(COLOURS, shades)}
    return cloud


UNITS = [(65535, np.uint16), (255, np.uint8), (255, np.float64), (1, np.float64), (65535, np.float64)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("unit", "dtype"), UNITS)
def test_colours_of_any_unit_are_the_same_inputs(unit, dtype):
    cloud, other = coloured(unit, dtype), coloured(*UNITS[0])
    known = task.choose_settings([cloud], 0.3)
    assert known.fields == list(COLOURS) and max(known.scales) <= 1
    assert known.scales == pytest.approx(task.choose_settings([cloud, other], 0.3).scales)
    np.testing.assert_allclose(task.inputs_of(cloud, known), task.inputs_of(other, known), rtol=1e-6)
    assert task.inputs_of(cloud, known)[:, 1:].max() > 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("unit", "dtype"), UNITS)
def test_weights_of_before_keep_their_colours(unit, dtype):
    """Their scales are in the unit of the training: the same numbers of the same file, to the last bit."""
    cloud, same, other = coloured(unit, dtype), coloured(unit, dtype, seed=1), coloured(*UNITS[1], seed=1)
    scales = [float(np.percentile(cloud.fields[name].astype(np.float64), 99)) for name in COLOURS]
    old = task.Settings(0.3, [2, 7], list(COLOURS), scales)
    inputs = task.inputs_of(same, old)
    for i, name in enumerate(COLOURS):
        wanted = np.clip(same.fields[name].astype(np.float64) / scales[i], -2, 2).astype(np.float32)
        np.testing.assert_array_equal(inputs[:, 1 + i], wanted)
    np.testing.assert_allclose(task.inputs_of(other, old), inputs, rtol=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("unit", "dtype"), UNITS)
def test_weights_trained_with_r_g_b_i_find_the_usual_names(unit, dtype):
    """Which readers of PLY and PCD gave these fields later; the same numbers, to the last bit."""
    cloud, other = coloured(unit, dtype), coloured(*UNITS[1])
    for each in (cloud, other):
        each.fields["intensity"] = np.linspace(0, 40, len(each))
    now = dict(zip("rgbi", (*COLOURS, "intensity")))
    then = replace(cloud, fields={old: cloud.fields[name] for old, name in now.items()})
    old = task.choose_settings([replace(then, fields=then.fields | cloud.fields)], 0.3, fields=list(now))
    assert old.fields == list("rgbi")
    inputs = task.inputs_of(then, old)
    np.testing.assert_array_equal(task.inputs_of(cloud, old), inputs)
    np.testing.assert_allclose(task.inputs_of(other, old), inputs, rtol=1e-6)
    del cloud.fields["green"]
    with pytest.raises(PointCloudError, match="no field 'g'"):
        task.inputs_of(cloud, old)


def test_values_far_from_those_of_the_training_are_warned_of(recwarn):
    cloud, other = floor_and_posts(n=600), floor_and_posts(n=600, seed=1)
    known = task.choose_settings([cloud, other], 0.3)
    other.path, values = "other.ply", other.fields["intensity"].astype(np.float64)
    for factor, said in ((1, 0), (5, 0), (0.2, 0), (257, 1), (1 / 257, 1), (0, 1)):
        other.fields["intensity"] = factor * values
        recwarn.clear()
        task.inputs_of(other, known)
        assert len(recwarn) == said, factor
        if said:
            told = str(recwarn[0].message)
            assert told.startswith("'other.ply': ") and "\n" not in told
            tops = np.percentile(factor * values, 99), known.scales[0]
            assert "intensity ({:.3g}, in training {:.3g})".format(*tops) in told
    both = task.choose_settings([cloud, other], 0.3)  # a training on both says so as well
    other.fields["intensity"] = 257 * values
    recwarn.clear()
    for each in (cloud, other):
        task.split(each, both, 0.2)
    assert [str(w.message)[:13] for w in recwarn] == ["'other.ply': "]
