"""Drawing of docs/masks.md: a program over voxels, and the block layout that it becomes."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

import mlxsparse as ms
from mlxsparse.masks import Connection, MaskSpec, VoxelLayout
from tools.sheet import BLUE, GREEN, INK, ORANGE, PALE, SOFT, VIOLET, Lattice, Sheet

COLOURS = (BLUE, GREEN, VIOLET)
# A bent line over three windows, rows in no order.
SITES = [(5, 2), (0, 1), (9, 3), (3, 3), (1, 1), (6, 2), (2, 2), (10, 2), (4, 3), (7, 1), (11, 1)]
BLOCK = 2


def masks() -> str:
    """Windows of 4 and a hub that all see: who sees whom, in rows as they are stored for attention."""
    sheet = Sheet(760, 420, "A program over voxels and its block layout")
    coords = np.array([(0, x, y, 0) for x, y in SITES], np.int32)
    x = ms.SparseTensor(coords, mx.ones((len(SITES), 1)))
    layout = VoxelLayout(x, {"all": ((0, 12), (0, 4), (0, 1)), "hub": ((8, 12), (2, 4), (0, 1))})
    windows = Connection("all", "all", MaskSpec("tile", tile_shape=4))
    blocks, rows = layout.compile([windows, Connection("all", "hub")], block=BLOCK)
    box = Lattice(sheet, 24, 60, (0, 0), (12, 4), 26)
    hub = set(layout.region_rows("hub").tolist())
    for row, site in enumerate(SITES):
        colour = COLOURS[site[0] // 4]
        box.fill(site, PALE[colour], colour)
        box.label(site, row)
    for window in range(3):
        corner = box.at(4 * window, 4)
        sheet.rect(*corner, 104, 104, "none", COLOURS[window], 1.6)
    low, high = box.at(8, 4), box.at(12, 2)
    sheet.rect(low[0] + 3, low[1] + 3, high[0] - low[0] - 6, high[1] - low[1] - 6, "none", ORANGE, 2.4, 4)
    sheet.text(24, 34, "Voxels by row, windows of 4, a hub (orange)", anchor="start", bold=True)
    notes = [
        'Connection("all", "all", MaskSpec("tile", tile_shape=4))',
        'Connection("all", "hub")',
        "",
        "Rows that see and are seen alike become",
        f"neighbours, padded to whole blocks of {BLOCK}.",
        "A stored block (outlined) is then exact:",
        "all of its real rows see each other.",
        "A query in two connections has one softmax",
        "over all of its keys; none is counted twice.",
    ]
    for i, text in enumerate(notes):
        sheet.text(24, 204 + 20 * i, text, INK if i < 2 else SOFT, 11 if i < 2 else 12, "start")
    left, top, cell = 428, 84, 300 // len(rows)
    sheet.text(left - 26, 34, "Query rows (down) and key rows (across)", anchor="start", bold=True)
    for i, row in enumerate(rows.tolist()):
        name = "" if row < 0 else row
        sheet.text(left + cell * (i + 0.5), top - 8, name, ORANGE if row in hub else SOFT, 11)
        sheet.text(left - 14, top + cell * (i + 0.5) + 4, name, SOFT, 11)
    for r, c in zip(blocks.rows.tolist(), blocks.cols.tolist()):
        for i in range(r * BLOCK, (r + 1) * BLOCK):
            for j in range(c * BLOCK, (c + 1) * BLOCK):
                query, key = int(rows[i]), int(rows[j])
                if query >= 0 and key >= 0:
                    tile = SITES[query][0] // 4
                    same = tile == SITES[key][0] // 4
                    fill = COLOURS[tile] if same else ORANGE
                    at = left + cell * j + 1, top + cell * i + 1
                    sheet.rect(*at, cell - 2, cell - 2, fill, "none", 1, 2)
        side = BLOCK * cell
        sheet.rect(left + side * c, top + side * r, side, side, "none", INK, 1)
    sheet.rect(left, top, cell * len(rows), cell * len(rows), "none", SOFT, 1)
    sheet.text(
        left - 26,
        top + cell * len(rows) + 22,
        f"{blocks.nnz} of {blocks.grid[1] * blocks.grid[2]} blocks are stored",
        SOFT,
        12,
        "start",
    )
    return sheet.svg()
