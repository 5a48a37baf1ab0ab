"""Generated street scenes: reproducible, complete, and shaped like a scan."""

from __future__ import annotations

import numpy as np
import pytest

from mlxsparse.errors import ShapeError
from mlxsparse.io.points import read_points
from mlxsparse.tasks.scenes import STREET_CLASSES, Scene, street_scene, write_scene


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
    ground = points_of(scene, "ground")
    assert -0.6 < ground[:, 2].min() and ground[:, 2].max() < 0.8  # undulation, kerb and noise
    for name, top in (("person", 2.6), ("vehicle", 3.2), ("pole", 9), ("vegetation", 11), ("building", 17)):
        z = points_of(scene, name)[:, 2]
        assert -0.6 < z.min() and z.max() < top, name


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
    # The sensor is 1.9 m above the ground below it, which undulates by a few centimetres.
    heights = np.linspace(1.5, 2.3, 801)
    off = [np.abs(np.arctan2(scene.points[:, 2] - h, flat)[:, None] - world_up) for h in heights]
    worst = [angles.min(axis=1).max() for angles in off]
    assert min(worst) < 2e-4
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
        angles = np.stack([np.arctan2(offset[:, 1], offset[:, 0]),
                           np.arctan2(offset[:, 2], np.hypot(offset[:, 0], offset[:, 1]))], axis=1)
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
    write_scene(Scene(np.zeros((0, 3), np.float32), nothing, nothing.astype(np.int32), STREET_CLASSES),
                tmp_path / "empty.las")
    assert len(read_points(tmp_path / "empty.las")) == 0


@pytest.mark.parametrize("options", [{"rings": 0}, {"columns": 0}, {"max_range": 0}, {"range_noise": -1},
                                     {"dropout": 1.5}, {"dropout": -0.1}])
def test_arguments_that_make_no_scan(options):
    with pytest.raises(ShapeError):
        street_scene(0, **options)
