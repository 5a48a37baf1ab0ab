"""Draws docs/images/*.svg from the library's own kernel maps, voxels and keys: `python -m tools.draw_docs`.

Every number and every arrow is read off the real thing, so that a drawing cannot say what the code does not
do; tests/test_docs.py draws them again and compares. All lie in the plane z = 0, x to the right, y up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import mlxsparse as ms
from mlxsparse.coords import groups
from mlxsparse.engine.segments import Segments
from tools import masks_drawing
from tools.sheet import BLUE, GREEN, GRID, INK, ORANGE, PALE, RED, SOFT, TAPS, Lattice, Sheet

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def tensor(sites: Sequence[tuple[int, int]]) -> ms.SparseTensor:
    """Sites (x, y) of the plane with feature 1."""
    coords = np.array([(0, x, y, 0) for x, y in sites], np.int32)
    return ms.SparseTensor(coords, mx.ones((len(sites), 1)))


def plane(x: ms.SparseTensor) -> list[tuple[int, int]]:
    return [(row[1], row[2]) for row in x.coords.tolist()]


# A bent line, as a wall seen from above.
WALL = [(0, 1), (1, 1), (2, 2), (3, 2), (3, 3), (4, 4), (5, 4), (7, 5)]


def taps() -> str:
    """Which input each tap reads, for an odd and two even submanifold kernels."""
    sheet = Sheet(720, 272, "Tap numbers of kernels 3x3x1, 2x2x1 and 4x4x1")
    full = tensor([(x, y) for x in range(-2, 4) for y in range(-2, 4)])
    row = plane(full).index((0, 0))
    for k, left in ((3, 40), (2, 300), (4, 500)):
        kernel = ms.Kernel.submanifold((k, k, 1))
        found = full.manager.kernel_map(full.key, full.key, kernel)
        reach = range(-kernel.padding[0], k - kernel.padding[0])
        box = Lattice(sheet, left, 50, (reach[0], reach[0]), (reach[-1] + 1, reach[-1] + 1), 40)
        for t in range(k * k):
            pairs = slice(found.tap_ptr[t], found.tap_ptr[t + 1])
            inputs = found.in_rows[pairs][found.out_rows[pairs] == row]
            site = plane(full)[int(inputs[0])]
            box.fill(
                site, PALE[ORANGE] if site == (0, 0) else PALE[BLUE], ORANGE if site == (0, 0) else "none"
            )
            box.label(site, t, size=14)
        for v in reach:
            x, y = box.middle((v, reach[0]))
            sheet.text(x, box.bottom + 18, f"{v:+d}" if v else "0", SOFT, 11)
            x, y = box.middle((reach[0], v))
            sheet.text(left - 14, y + 4, f"{v:+d}" if v else "0", SOFT, 11)
        sheet.text(left, 30, f"K = ({k}, {k}, 1), p = {kernel.padding[0]}", anchor="start", bold=True)
    sheet.text(
        40,
        258,
        "t = (kx·Ky + ky)·Kz + kz, placed at the input that it reads, in − out = k − p; "
        "the output's own site is orange",
        SOFT,
        12,
        "start",
    )
    return sheet.svg()


def submanifold() -> str:
    """A submanifold kernel on a few sites, and its whole kernel map as a table."""
    sheet = Sheet(720, 330, "A submanifold convolution and its kernel map")
    x = tensor(WALL)
    found = x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold((3, 3, 1)))
    chosen = 3
    box = Lattice(sheet, 24, 60, (-1, 0), (9, 7), 30)
    at = WALL[chosen]
    corner = box.at(at[0] - 1, at[1] + 2)
    for row, site in enumerate(WALL):
        box.fill(site, PALE[BLUE])
        box.label(site, row)
    sheet.rect(*corner, 90, 90, "none", ORANGE, 2.5, 4)
    box.fill(at, PALE[ORANGE], ORANGE)
    box.label(at, chosen)
    sheet.text(24, 34, "Sites and their rows", anchor="start", bold=True)
    read = ", ".join(str(row) for row in sorted(found.in_rows[found.out_rows == chosen].tolist()))
    sheet.text(24, 294, f"Output row {chosen} reads the rows {read}. Outputs", SOFT, 12, "start")
    sheet.text(24, 312, "lie on the input's sites; empty cells cost nothing.", SOFT, 12, "start")
    left, top, wide, high = 420, 62, 30, 24
    sheet.text(left - 30, 34, "Input row, by output row and tap", anchor="start", bold=True)
    for t in range(9):
        sheet.text(left + wide * (t + 0.5), top, t, SOFT, 12)
    for row in range(len(WALL)):
        y = top + 8 + high * row
        if row == chosen:
            sheet.rect(left - 30, y, wide * 10, high, PALE[ORANGE])
        sheet.text(left - 15, y + 17, row, SOFT, 12)
        sheet.line((left, y), (left + 9 * wide, y), GRID, 1)
    for t in range(9):
        pairs = range(found.tap_ptr[t], found.tap_ptr[t + 1])
        for p in pairs:
            y = top + 8 + high * int(found.out_rows[p])
            sheet.text(left + wide * (t + 0.5), y + 17, int(found.in_rows[p]), INK, 13)
    sheet.text(
        left - 30,
        294,
        f"{found.num_pairs} pairs, kept by tap: one gather, one matrix product",
        SOFT,
        12,
        "start",
    )
    sheet.text(left - 30, 312, "and one sum for each tap.", SOFT, 12, "start")
    return sheet.svg()


def strided() -> str:
    """Where strided convolutions put their outputs."""
    sheet = Sheet(760, 300, "Strided convolution: touched and parent supports")
    x = tensor([(0, 0), (1, 1), (3, 1), (5, 3)])
    cases = [
        ("K = 2, s = 2: touched = parents", 2, 2, 0, "touched"),
        ("K = 3, s = 3, p = 1: touched", 3, 3, 1, "touched"),
        ("K = 3, s = 3, p = 1: parents", 3, 3, 1, "parents"),
    ]
    for i, (title, k, s, p, support) in enumerate(cases):
        w = mx.ones((1, k, k, 1, 1))
        y = ms.ops.conv3d(x, w, stride=(s, s, 1), padding=(p, p, 0), support=support)
        seen = ms.ops.coverage(x, (k, k, 1), (s, s, 1), (p, p, 0), support=support).tolist()
        box = Lattice(sheet, 24 + 245 * i, 50, (0, 0), (9, 6), 25)
        for site in plane(y):
            box.fill(site, PALE[GREEN], GREEN, s)
        for site, times in zip(plane(x), seen):
            box.fill(site, BLUE if times else RED, inset=8)
            if times > 1:
                box.label(site, times, "#ffffff", 9)
        sheet.text(24 + 245 * i, 32, title, anchor="start", bold=True, size=12)
        lost = seen.count(0)
        note = f"{lost} input not read (red)" if lost else "every input is read"
        sheet.text(24 + 245 * i, 222, f"{y.num_active} outputs; {note}", SOFT, 12, "start")
    lines = (
        "Small squares: inputs. Large ones: outputs o, drawn over the fine cells s·o .. s·o + s − 1.",
        "With K = s = 3, p = 1 output o reads 3o − 1 .. 3o + 1 on each axis: parents alone miss 3o + 2.",
    )
    for i, line in enumerate(lines):
        sheet.text(24, 258 + 18 * i, line, SOFT, 12, "start")
    return sheet.svg()


def transposed() -> str:
    """Transposed convolution onto known sites, and onto all that it reaches."""
    sheet = Sheet(760, 250, "Transposed convolution: onto out=, and generative")
    x = tensor(WALL)
    w = mx.ones((1, 2, 2, 1, 1))
    down = ms.ops.conv3d(x, w, stride=(2, 2, 1))
    up = ms.ops.conv_transpose3d(down, w, stride=(2, 2, 1), out=x)
    new = ms.ops.generative_conv_transpose3d(down, w, stride=(2, 2, 1))
    for i, (title, sites, fine) in enumerate(
        (
            ("coarse input, stride 2", None, False),
            ("conv_transpose3d(out=skip)", up, True),
            ("generative_conv_transpose3d", new, True),
        )
    ):
        box = Lattice(sheet, 24 + 245 * i, 50, (0, 0), (8, 6), 27)
        for site in plane(down):
            box.fill(site, PALE[GREEN], GREEN, 2)
        if fine and sites is not None:
            for site in plane(sites):
                box.fill(site, BLUE, inset=6)
        sheet.text(24 + 245 * i, 32, title, anchor="start", bold=True, size=12)
        count = down.num_active if sites is None else sites.num_active
        note = f"{count} sites" + (
            ""
            if sites is None
            else ", the encoder's own rows"
            if sites is up
            else ", all that K = 2, s = 2 reaches"
        )
        sheet.text(24 + 245 * i, 234, note, SOFT, 12, "start")
    assert up.key is x.key
    return sheet.svg()


def dilation() -> str:
    """Values 1, 10, 100 in a row under kernels of three ones."""
    sheet = Sheet(560, 210, "Dilation 1 and 2 on three neighbouring sites")
    coords = np.array([(0, 0, 0, z) for z in range(3)], np.int32)
    values = [1.0, 10.0, 100.0]
    x = ms.SparseTensor(coords, mx.array(values)[:, None])
    for i, d in enumerate((1, 2)):
        y = ms.ops.subm_conv3d(x, mx.ones((1, 1, 1, 3, 1)), dilation=(1, 1, d))
        found = x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold((1, 1, 3), (1, 1, d)))
        left = 40 + 270 * i
        sheet.text(left, 32, f"dilation {d}", anchor="start", bold=True)
        for p in range(found.num_pairs):
            t = int(np.searchsorted(found.tap_ptr, p, side="right")) - 1
            start = left + 26 + 80 * int(found.in_rows[p]), 90
            sheet.line(start, (left + 26 + 80 * int(found.out_rows[p]), 137), TAPS[t], 1.6, True)
        for row in range(3):
            sheet.rect(left + 80 * row, 56, 52, 34, PALE[BLUE], BLUE, 1.2, 4)
            sheet.text(left + 80 * row + 26, 78, f"{values[row]:g}")
            sheet.rect(left + 80 * row, 139, 52, 34, PALE[GREEN], GREEN, 1.2, 4)
            sheet.text(left + 80 * row + 26, 161, f"{y.feats[row, 0].item():g}")
    sheet.text(40, 198, "Colours are taps 0, 1, 2 of a kernel of ones.", SOFT, 12, "start")
    return sheet.svg()


def voxels() -> str:
    """Points of a plane, their voxels, means, and what falls outside the bounds."""
    sheet = Sheet(720, 320, "Voxelization of points in a plane")
    rng = np.random.default_rng(5)
    along = np.linspace(0, 1, 60)
    points = np.stack(
        [-0.3 + 3.6 * along, 0.6 + 1.2 * np.sin(3 * along) ** 2 + rng.normal(0, 0.07, 60), 0 * along], axis=1
    )
    made = ms.voxelize(
        points, points.astype(np.float32), 0.5, bounds=((0, 0, -1), (3, 2, 1)), origin=(0, 0, 0)
    )
    rows = made.point_to_voxel.tolist()
    box = Lattice(sheet, 60, 44, (-1, 0), (7, 5), 44)
    for site, count in zip(plane(made.tensor), made.counts.tolist()):
        box.fill(site, PALE[BLUE], BLUE)
        x, y = box.at(site[0] + 1, site[1] + 1)
        sheet.text(x - 6, y + 14, count, SOFT, 10, "end")
    for point, row in zip(points, rows):
        sheet.dot(*box.at(point[0] / 0.5, point[1] / 0.5), INK if row >= 0 else RED, 2.2)
    for mean in made.tensor.feats.tolist():
        sheet.dot(*box.at(mean[0] / 0.5, mean[1] / 0.5), ORANGE, 4.5)
    a, b = box.at(0, 4), box.at(6, 0)
    sheet.rect(*a, b[0] - a[0], b[1] - a[1], "none", GREEN, 2)
    for v in range(7):
        sheet.text(box.at(v, 0)[0], box.bottom + 18, f"{0.5 * v:g}", SOFT, 11)
    notes = [
        (INK, f"{len(points) - rows.count(-1)} points in {made.tensor.num_active} voxels of 0.5"),
        (RED, f"{rows.count(-1)} outside the bounds: row −1"),
        (ORANGE, "mean of each voxel's points"),
        (GREEN, "bounds, lower end included"),
        (BLUE, "site floor((p − origin) / size), and its count"),
    ]
    for i, (colour, text) in enumerate(notes):
        sheet.dot(440, 70 + 30 * i, colour, 5)
        sheet.text(454, 75 + 30 * i, text, anchor="start", size=12)
    return sheet.svg()


def keys() -> str:
    """A small U-Net: which tensors share a key, and which kernel maps are built or read again."""
    sheet = Sheet(760, 300, "Keys and kernel maps of a small U-Net")
    rng = np.random.default_rng(0)
    manager = ms.CoordinateManager()
    cloud = rng.normal(size=(4000, 3)) * (2, 2, 0.1)
    x = ms.voxelize(cloud, np.ones((4000, 1), np.float32), 0.2, manager=manager).tensor
    one = mx.ones((1, 3, 3, 3, 1)) / 27
    two = mx.ones((1, 2, 2, 2, 1)) / 8
    steps: list[tuple[str, ms.SparseTensor, str]] = [("x", x, "")]

    def note(name: str, call: Any) -> ms.SparseTensor:
        before = manager.stats()
        y = call()
        after = manager.stats()
        built = after["maps_built"] - before["maps_built"]
        steps.append(
            (
                name,
                y,
                "builds a map"
                if built
                else "reads a map again"
                if after["map_hits"] > before["map_hits"]
                else "no map",
            )
        )
        return y

    a = note("a = subm 3³(x)", lambda: ms.ops.subm_conv3d(x, one))
    b = note("b = conv 2³ s2(a)", lambda: ms.ops.conv3d(a, two, stride=2))
    c = note("c = subm 3³(b)", lambda: ms.ops.subm_conv3d(b, one))
    d = note("d = subm 3³(c)", lambda: ms.ops.subm_conv3d(c, one))
    e = note("e = transposed 2³ s2(d, out=a)", lambda: ms.ops.conv_transpose3d(d, two, stride=2, out=a))
    f = note("f = cat([e, a])", lambda: ms.ops.cat([e, a]))
    note("g = subm 3³(f)", lambda: ms.ops.subm_conv3d(f, mx.ones((1, 3, 3, 3, 2))))
    names = {id(x.key): (BLUE, "key 1"), id(b.key): (GREEN, "key 2")}
    assert all(id(y.key) in names for _, y, _ in steps)
    for i, (name, y, what) in enumerate(steps):
        colour, key = names[id(y.key)]
        left, top = 24 + 182 * (i % 4), 56 + 112 * (i // 4)
        sheet.rect(left, top, 162, 82, PALE[colour], colour, 1.5, 6)
        sheet.text(left + 81, top + 22, name, size=11 if len(name) < 24 else 9, bold=True)
        sheet.text(left + 81, top + 42, f"{y.num_active} sites, stride {y.stride[0]}, {key}", size=11)
        sheet.text(
            left + 81, top + 63, what, {"builds a map": RED, "reads a map again": GREEN}.get(what, SOFT), 12
        )
    sheet.text(
        24, 34, "The same colour is the same key: the same rows in the same order", anchor="start", bold=True
    )
    sheet.text(24, 284, "Three kernel maps serve six convolutions, and their gradients.", SOFT, 12, "start")
    assert manager.stats()["maps_built"] == 3
    return sheet.svg()


def attention() -> str:
    """Which sites share a softmax: windows, shifted windows, patches along a Hilbert curve."""
    sheet = Sheet(760, 330, "Windows, shifted windows and patches of one set of sites")
    x = tensor([(i, j) for i in range(8) for j in range(8) if 1.8 < np.hypot(i - 3.2, j - 3.6) < 4.3])
    sites = plane(x)
    panels: list[tuple[str, Segments, int | None]] = [
        ("window=4", groups.windows(x.key, (4, 4, 4), (0, 0, 0)), 0),
        ("window=4, shift=2", groups.windows(x.key, (4, 4, 4), (2, 2, 2)), 2),
        ("patch_size=12, Hilbert order", groups.patches(x.key, 12, "hilbert", None, False)[0], None),
    ]
    for panel, (name, segments, shift) in enumerate(panels):
        box = Lattice(sheet, 24 + 248 * panel, 60, (0, 0), (8, 8), 27)
        sheet.text(24 + 248 * panel, 40, name, anchor="start", bold=True)
        starts, order = segments.q.starts, segments.q.order
        for i, (a, b) in enumerate(zip(starts, starts[1:])):
            for row in order[a:b]:
                box.fill(sites[row], PALE.get(TAPS[i % 5], GRID), TAPS[i % 5])
                box.label(sites[row], i, size=11)
        if shift is None:
            curve = [box.middle(sites[row]) for row in order]
            for p, q in zip(curve, curve[1:]):
                sheet.line(p, q, SOFT, 0.8)
        else:
            for edge in range(-shift % 4, 9, 4):
                sheet.line(box.at(edge, 0), box.at(edge, 8), INK, 2)
                sheet.line(box.at(0, edge), box.at(8, edge), INK, 2)
    lines = (
        f"{len(sites)} sites; the number is the group, inside which every site sees every other.",
        "A group has as many rows as it has sites: nothing is padded, and empty windows cost nothing.",
    )
    for i, line in enumerate(lines):
        sheet.text(24, 300 + 18 * i, line, SOFT, 12, "start")
    return sheet.svg()


DRAWN = (taps, submanifold, strided, transposed, dilation, voxels, keys, attention, masks_drawing.masks)
DRAWINGS = {f.__name__: f for f in DRAWN}


def main() -> int:
    mx.set_default_device(mx.cpu)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")
        print(IMAGES / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
