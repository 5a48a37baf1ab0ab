"""Pictures: what is nearer is in front, nothing outside is drawn, PNGs are PNGs."""

from __future__ import annotations

import io

import numpy as np
import pytest

from mlxsparse.viz import pictures
from mlxsparse.viz.render import BACKGROUND, Camera, along, render

CAMERA = Camera((0, 0, 0), 10, azimuth=0, elevation=0, width=60, height=40, point=0.5)


def colour_at(image, row, column):
    return np.round(image[row, column], 2).tolist()


def test_the_nearer_point_is_in_front():
    """The camera stands on the positive x axis, y to its right, z up."""
    points = np.array([[-2.0, 0, 0], [2, 0, 0], [0, 2, 1]])
    colours = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    for order in ([0, 1, 2], [1, 0, 2]):
        image = render(points[order], colours[order], CAMERA)
        assert image.shape == (40, 60, 3) and image.min() >= 0 and image.max() <= 1
        assert colour_at(image, 20, 30) == [0, 1, 0]
        blue = np.argwhere(image[..., 2] > 0.9)
        assert (blue[:, 0] < 20).all() and (blue[:, 1] > 30).all() and len(blue)
    np.testing.assert_allclose(image[0, 0], BACKGROUND)


def test_what_cannot_be_seen_is_not_drawn():
    points = np.array([[20.0, 0, 0], [np.nan, 0, 0], [0, 1e9, 0], [10, 0, 0], [0, np.inf, 0]])
    image = render(points, np.ones((5, 3)), CAMERA)
    np.testing.assert_allclose(image, np.broadcast_to(BACKGROUND, image.shape))
    assert render(np.empty((0, 3)), np.empty((0, 3)), CAMERA).shape == (40, 60, 3)


def test_the_camera_turns_with_the_cloud():
    street = np.random.default_rng(0).normal(size=(500, 3)) * (30, 2, 1)
    angle = 0.7
    turn = np.array([[np.cos(angle), np.sin(angle), 0], [-np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    difference = along(street @ turn, CAMERA).azimuth - along(street, CAMERA).azimuth
    assert min((difference - np.degrees(angle)) % 180, (np.degrees(angle) - difference) % 180) < 1e-6
    assert along(street[:1], CAMERA) == CAMERA


def test_colours():
    labels = np.array([0, 1, len(pictures.PALETTE), -1])
    colours = pictures.class_colours(labels)
    assert colours.dtype == np.uint8 and colours[0].tolist() == colours[2].tolist() and not colours[3].any()
    values = pictures.value_colours(np.arange(100.0))
    assert values.shape == (100, 3) and values[0].sum() < values[-1].sum()
    assert pictures.value_colours(np.full(3, 7.0)).shape == pictures.value_colours(np.zeros(3)).shape
    assert pictures.value_colours(np.empty(0)).shape == (0, 3)


@pytest.mark.parametrize("scores", [(), [(1, 0.2), (2, 0.5)]])
def test_png(scores):
    stream = io.BytesIO()
    pictures.draw_training(stream, [0.5, 0.2], scores, 0.3)
    assert stream.getvalue().startswith(b"\x89PNG")
    stream = io.BytesIO()
    points = np.random.default_rng(0).normal(size=(50, 3))
    panels = [("a", pictures.class_colours(np.arange(50))), ("b", pictures.value_colours(points[:, 2]))]
    pictures.draw_segmentation(stream, points, panels, ["floor", "wall"], CAMERA, "title")
    assert stream.getvalue().startswith(b"\x89PNG")
