"""Generated scenes: reproducible, complete, and shaped like a scan."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from mlxsparse.errors import ShapeError
from mlxsparse.io.points import read_points
from mlxsparse.tasks.baseline import features, fit_and_score
from mlxsparse.tasks.metrics import mean_iou
from mlxsparse.tasks.scenes import (
    INDOOR_CLASSES,
    STREET_CLASSES,
    Scene,
    indoor_scene,
    street_scene,
    write_scene,
)


def share(scene, name):
    return (scene.labels == STREET_CLASSES.index(name)).mean()


def points_of(scene, name):
    return scene.points[scene.labels == STREET_CLASSES.index(name)]


@pytest.mark.parametrize("seed", range(8))
def test_default_scene(seed):
    scene = street_scene(seed)
    assert 30_000 <= len(scene) <= 62_000 and scene.class_names == STREET_CLASSES
    assert scene.points.dtype == np.float32 and scene.points.shape == (len(scene), 3)
    assert scene.intensity.dtype == np.float32 and scene.intensity.shape == (len(scene),)
    assert scene.labels.dtype == np.int32 and scene.labels.shape == (len(scene),)
    assert np.isfinite(scene.points).all()
    assert scene.intensity.min() >= 0 and scene.intensity.max() <= 1 and scene.intensity.std() > 0.05
    assert set(scene.labels.tolist()) == set(range(6))
    assert share(scene, "ground") > 0.15 and share(scene, "building") > 0.15
    assert np.linalg.norm(scene.points, axis=1).max() < 61
    # Heights above the slope that the street lies on.
    ground = points_of(scene, "ground")
    flat = np.column_stack([ground[:, :2], np.ones(len(ground))])
    slope = np.linalg.lstsq(flat, ground[:, 2], rcond=None)[0]
    assert np.abs(slope[:2]).max() < 0.1
    for name, top in zip(STREET_CLASSES, (0.8, 17, 11, 4, 9, 2.6)):
        points = points_of(scene, name)
        z = points[:, 2] - np.column_stack([points[:, :2], np.ones(len(points))]) @ slope
        assert -0.8 < z.min() and z.max() < top, name


@pytest.mark.parametrize("seed", range(6))
def test_indoor_scene(seed):
    scene = indoor_scene(seed)
    assert 50_000 <= len(scene) <= 65_536 and scene.class_names == INDOOR_CLASSES
    assert np.isfinite(scene.points).all() and set(scene.labels.tolist()) == set(range(4))
    counts = np.bincount(scene.labels) / len(scene)
    assert counts[0] > 0.2 and counts[1] > 0.2 and counts[2] > 0.002 and counts[3] > 0.01
    floor = scene.points[scene.labels == 0]
    assert -0.05 < floor[:, 2].min() and floor[:, 2].max() < 0.45
    assert scene.points[:, 2].max() < 3.4
    for label, top in ((2, 1.6), (3, 1.5)):
        assert scene.points[scene.labels == label, 2].max() < top
    assert (
        np.hypot(*scene.points[scene.labels > 0, :2].T).min() > 0.5
    )  # nothing stands where the scanner does


@pytest.mark.parametrize(
    ("make", "digest"), [(street_scene, "de4a1dd54d824c2f"), (indoor_scene, "ed40c6f1dabf4da0")]
)
def test_scenes_are_the_same_on_every_machine(make, digest):
    """The recorded digest of points in millimetres, intensity in steps of 1e-4, and labels."""
    scene = make(11)
    steps = [np.round(scene.points.astype(float) * 1000), np.round(scene.intensity.astype(float) * 1e4)]
    content = b"".join(a.astype("<i4").tobytes() for a in (*steps, scene.labels))
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_height_normal_and_intensity_do_not_suffice():
    scenes = [street_scene(seed) for seed in range(4)]
    tables = [(features(s.points.astype(float), s.intensity, 0.4), s.labels) for s in scenes]
    matrix = fit_and_score(tables[:3], tables[3:], len(STREET_CLASSES), most=10_000)
    assert 0.25 < mean_iou(matrix) < 0.6


def test_same_seed_same_bits_and_other_seeds_differ():
    one, two, other = street_scene(5), street_scene(5), street_scene(6)
    for name in ("points", "intensity", "labels"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    assert len(one) != len(other) or not np.array_equal(one.points, other.points)


def test_one_return_per_ray_on_its_ring():
    """Without noise, every point lies on one of the rings' elevations, and no ray returns twice."""
    scene = street_scene(2, rings=16, columns=256, range_noise=0, dropout=0)
    assert len(scene) <= 16 * 256
    world_up = np.radians(np.linspace(14, -24, 16))
    flat = np.hypot(scene.points[:, 0], scene.points[:, 1])
    heights = np.linspace(1.7, 2.1, 801)  # of the sensor above the origin
    off = [np.abs(np.arctan2(scene.points[:, 2] - h, flat)[:, None] - world_up) for h in heights]
    worst = [angles.min(axis=1).max() for angles in off]
    assert min(worst) < 4e-4  # a millimetre from 3 m away
    ring = off[int(np.argmin(worst))].argmin(axis=1)
    assert np.bincount(ring, minlength=16).max() <= 256


def test_dropout_and_noise():
    full = street_scene(3, dropout=0, range_noise=0)
    assert len(street_scene(3, dropout=0.3)) < 0.75 * len(full)
    assert len(street_scene(3, dropout=1)) == 0
    assert len(street_scene(3, max_range=10)) < len(full)
    noisy = street_scene(3, dropout=0, range_noise=0.05)
    assert len(noisy) == len(full)
    apart = np.linalg.norm(noisy.points - full.points, axis=1)
    assert 0.03 < np.sqrt((apart**2).mean()) < 0.07


def test_ground_is_seen_under_tree_crowns():
    """Crowns let rays through: some ground and wall points lie straight behind vegetation."""
    scene = street_scene(0, dropout=0)
    crowns = points_of(scene, "vegetation")
    crowns = crowns[crowns[:, 2] > 2.2]
    other = scene.points[scene.labels != STREET_CLASSES.index("vegetation")]

    def sky(points):
        """Direction cells of 0.6 degrees, seen from the sensor."""
        offset = points - (0, 0, 1.9)
        angles = np.stack(
            [
                np.arctan2(offset[:, 1], offset[:, 0]),
                np.arctan2(offset[:, 2], np.hypot(offset[:, 0], offset[:, 1])),
            ],
            axis=1,
        )
        return set(map(tuple, np.floor(angles / 0.0105).astype(int).tolist()))

    crowded = sky(crowns)
    assert len(crowded & sky(other)) > 0.05 * len(crowded) > 0


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_write_scene_round_trip(suffix, tmp_path):
    scene = street_scene(1, rings=16, columns=256)
    path = tmp_path / f"scene{suffix}"
    write_scene(scene, path)
    cloud = read_points(path)
    np.testing.assert_allclose(cloud.points, scene.points, rtol=0, atol=0.000501)
    np.testing.assert_array_equal(cloud.fields["classification"], scene.labels)
    np.testing.assert_allclose(cloud.fields["intensity"] / 65535, scene.intensity, atol=1e-5)


def test_write_empty_scene(tmp_path):
    nothing = np.zeros(0, np.float32)
    write_scene(
        Scene(np.zeros((0, 3), np.float32), nothing, nothing.astype(np.int32), STREET_CLASSES),
        tmp_path / "empty.las",
    )
    assert len(read_points(tmp_path / "empty.las")) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"rings": 0},
        {"columns": 0},
        {"max_range": 0},
        {"range_noise": -1},
        {"dropout": 1.5},
        {"dropout": -0.1},
    ],
)
def test_arguments_that_make_no_scan(options):
    with pytest.raises(ShapeError):
        street_scene(0, **options)
