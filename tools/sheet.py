"""Drawings in SVG: a sheet, and a lattice of cells on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

INK, SOFT, GRID = "#22272e", "#6b7683", "#d5dae0"
BLUE, ORANGE, GREEN, RED, VIOLET = "#3b78e7", "#f08c00", "#2f9e57", "#e03131", "#7b4fd6"
PALE = {BLUE: "#dbe7fd", ORANGE: "#ffe8cc", GREEN: "#d8f3e1", RED: "#ffe0e0", VIOLET: "#e8dffb"}
TAPS = (BLUE, ORANGE, GREEN, RED, VIOLET, "#0c8599", "#c2255c", "#5c940d", "#6b7683")


class Sheet:
    """An SVG drawing on white."""

    def __init__(self, width: float, height: float, title: str):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>',
        ]

    def rect(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str = "none",
        edge: str = "none",
        width: float = 1,
        round_: float = 0,
    ) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round_:g}" '
            f'fill="{fill}" stroke="{edge}" stroke-width="{width:g}"/>'
        )

    def line(
        self, a: Sequence[float], b: Sequence[float], edge: str = INK, width: float = 1.4, arrow: bool = False
    ) -> None:
        self.parts.append(
            f'<line x1="{a[0]:g}" y1="{a[1]:g}" x2="{b[0]:g}" y2="{b[1]:g}" stroke="{edge}" '
            f'stroke-width="{width:g}"/>'
        )
        if arrow:
            along = np.subtract(b, a) / np.hypot(*np.subtract(b, a))
            side = np.array([-along[1], along[0]])
            corners = [np.array(b), b - 8 * along + 4 * side, b - 8 * along - 4 * side]
            text = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            self.parts.append(f'<polygon points="{text}" fill="{edge}"/>')

    def dot(self, x: float, y: float, fill: str, radius: float = 2.6) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}"/>')

    def text(
        self,
        x: float,
        y: float,
        text: Any,
        fill: str = INK,
        size: float = 13,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size:g}" '
            f'text-anchor="{anchor}"{weight}>{escape(str(text))}</text>'
        )

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Lattice:
    """Cells of a plane on a sheet: cell (x, y) as a square, y upwards."""

    def __init__(
        self,
        sheet: Sheet,
        left: float,
        top: float,
        low: Sequence[int],
        high: Sequence[int],
        cell: float = 30,
        lines: bool = True,
    ):
        self.sheet, self.left, self.low, self.high, self.cell = sheet, left, low, high, cell
        self.bottom = top + (high[1] - low[1]) * cell
        if lines:
            for x in range(low[0], high[0] + 1):
                sheet.line(self.at(x, low[1]), self.at(x, high[1]), GRID, 1)
            for y in range(low[1], high[1] + 1):
                sheet.line(self.at(low[0], y), self.at(high[0], y), GRID, 1)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.left + (x - self.low[0]) * self.cell, self.bottom - (y - self.low[1]) * self.cell

    def middle(self, site: Sequence[float], size: float = 1) -> tuple[float, float]:
        return self.at(site[0] * size + size / 2, site[1] * size + size / 2)

    def fill(
        self,
        site: Sequence[int],
        fill: str,
        edge: str = "none",
        size: float = 1,
        width: float = 1.5,
        inset: float = 2,
    ) -> None:
        x, y = self.at(site[0] * size, site[1] * size + size)
        side = self.cell * size - 2 * inset
        self.sheet.rect(x + inset, y + inset, side, side, fill, edge, width, 3)

    def label(self, site: Sequence[int], text: Any, fill: str = INK, size: float = 12) -> None:
        x, y = self.middle(site)
        self.sheet.text(x, y + 0.36 * size, text, fill, size)
