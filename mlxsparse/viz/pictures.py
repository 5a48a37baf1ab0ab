"""PNG pictures of a segmentation and of a training, drawn by matplotlib without a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from .render import BACKGROUND, Camera, render

#: Colours of the classes, red green blue from 0 to 255: as told apart by most eyes, also in grey.
PALETTE = np.array(
    [[146, 138, 128], [213, 144, 88], [86, 170, 82], [70, 130, 225], [242, 211, 65], [229, 66, 96],
     [160, 100, 200], [70, 200, 200], [240, 150, 190], [120, 90, 60], [200, 220, 160], [250, 250, 250]],
    np.uint8,
)  # fmt: skip
_INK = "#e8e8ea"


def class_colours(labels: np.ndarray) -> np.ndarray:
    """(N, 3) uint8 colour of each class index; they repeat after the palette's end, -1 is black."""
    colours = PALETTE[np.maximum(labels, 0) % len(PALETTE)]
    return np.where((labels < 0)[:, None], np.uint8(0), colours)


def value_colours(values: np.ndarray) -> np.ndarray:
    """(N, 3) uint8: dark blue to yellow, from the 2nd to the 98th percentile of the values (N,)."""
    matplotlib = _matplotlib()
    low, high = np.percentile(values, [2, 98]) if len(values) else (0.0, 1.0)
    share = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    return np.asarray(matplotlib.colormaps["cividis"](0.12 + 0.88 * share)[:, :3] * 255, np.uint8)


def draw_segmentation(
    stream: BinaryIO,
    points: np.ndarray,
    panels: Sequence[tuple[str, np.ndarray]],
    class_names: Sequence[str],
    camera: Camera,
    title: str = "",
) -> None:
    """Write a PNG of the cloud side by side in each of `panels`: (caption, colours (N, 3) uint8)."""
    plt = _pyplot()
    width = 5.0
    height = width * camera.height / camera.width
    figure, axes = plt.subplots(
        1, len(panels), figsize=(width * len(panels), height + 1.0), facecolor=BACKGROUND, squeeze=False
    )
    try:
        for axis, (caption, colours) in zip(axes[0], panels):
            axis.imshow(render(points, colours / 255, camera), interpolation="antialiased")
            axis.set_title(caption, color=_INK, fontsize=13, pad=8)
            axis.set_axis_off()
        marks = [
            plt.Line2D(
                [], [], marker="o", linestyle="", markersize=9, color=tuple(PALETTE[i % len(PALETTE)] / 255)
            )
            for i in range(len(class_names))
        ]
        figure.legend(
            marks, class_names, loc="lower center", ncol=len(class_names), frameon=False, fontsize=12,
            labelcolor=_INK, handletextpad=0.2, columnspacing=1.6,
        )  # fmt: skip
        if title:
            figure.suptitle(title, color=_INK, fontsize=14, y=0.985)
        figure.subplots_adjust(0.006, 0.085, 0.994, 0.865 if title else 0.92, 0.012)
        figure.savefig(stream, format="png", dpi=150, facecolor=BACKGROUND)
    finally:
        plt.close(figure)


def draw_training(
    stream: BinaryIO,
    losses: Sequence[float],
    scores: Sequence[tuple[int, float]] = (),
    baseline: float | None = None,
) -> None:
    """Write a PNG of the mean loss of each epoch and of held-out mean IoUs (epoch, value).

    baseline: a mean IoU to draw as a level.
    """
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 4.2))
    try:
        axis.plot(range(1, len(losses) + 1), losses, color="#d0562f", marker="o", markersize=3)
        axis.set(xlabel="epoch", ylabel="training loss", yscale="log", xlim=(0.5, len(losses) + 0.5))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.yaxis.label.set_color("#d0562f")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.grid(alpha=0.25, which="both")
        axis.spines["top"].set_visible(False)
        if scores:
            other = axis.twinx()
            other.plot(*zip(*scores), color="#2f6fd0", marker="o", markersize=3)
            other.set(ylabel="held-out mean IoU", ylim=(0, 1))
            other.yaxis.label.set_color("#2f6fd0")
            other.spines["top"].set_visible(False)
            if baseline is not None:
                other.axhline(baseline, color="#2f6fd0", linestyle="--", linewidth=1)
                other.text(len(losses) + 0.4, baseline + 0.015, "logistic baseline", color="#2f6fd0",
                           fontsize=9, ha="right")  # fmt: skip
        figure.tight_layout()
        figure.savefig(stream, format="png", dpi=130)
    finally:
        plt.close(figure)


def _matplotlib() -> Any:
    import matplotlib

    return matplotlib


def _pyplot() -> Any:
    _matplotlib().use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
