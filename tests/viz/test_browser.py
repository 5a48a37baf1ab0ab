"""Pages in a real browser without a screen: they draw, and their controls change what is drawn."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from mlxsparse.viz.page import cloud_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
if CHROMIUM is None and MAC.exists():
    CHROMIUM = str(MAC)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt install chromium)")
NAMES = {0: "ground", 1: "tree"}
BROWN, GREEN = (0xA5, 0x8A, 0x6A), (0x46, 0xB9, 0x6B)  # their colours


def browse(page, *arguments, anchor=""):
    """What the browser prints for a page file, opened without a network."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader", "--hide-scrollbars", "--window-size=1000,700",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000",
        f"--user-data-dir={page.parent / 'profile'}", *arguments, page.as_uri() + anchor,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def picture(page, anchor=""):
    """(height, width, 3) uint8 of the window, without the panel."""
    path = page.with_suffix(".png")
    browse(page, f"--screenshot={path}", anchor=anchor)
    image = (255 * matplotlib.image.imread(path)[:, :, :3]).round().astype(np.uint8)
    return image[:, 300:]


def count(image, colour, off=12):
    """Pixels of a colour, or of one that the shading darkened a little."""
    return int((np.abs(image.astype(int) - colour).max(axis=2) <= off).sum())


def drawn(image):
    """Share of pixels that are not the background."""
    return 1 - count(image, (0x15, 0x18, 0x1D)) / image[:, :, 0].size


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A square floor of one class with a block of another on it, as points and as voxels."""
    folder = tmp_path_factory.mktemp("pages")
    x, y = (a.ravel() for a in np.meshgrid(np.arange(60.0), np.arange(60.0)))
    floor = np.stack([x, y, 0 * x], axis=1)
    block = np.stack(np.meshgrid(*(np.arange(9.0),) * 3), axis=-1).reshape(-1, 3) + [25, 25, 1]
    points = np.concatenate([floor, block])
    fields = {"label": np.repeat([0, 1], [len(floor), len(block)]), "height": points[:, 2]}
    fields |= {"id": 20_000_001 * fields["label"], "time": 245379.95 + 5.92 * fields["label"]}
    made = {}
    for name, size in (("points", None), ("voxels", (1.0, 1.0, 1.0))):
        made[name] = folder / f"{name}.html"
        html = cloud_page(points, fields, title=name, voxel_size=size, class_names=NAMES)
        made[name].write_text(html, encoding="utf-8")
    return made


def test_the_panel_says_what_is_shown(pages):
    text = browse(pages["points"], "--dump-dom", anchor="#hide=1&field=time")
    assert 'data-ready="true"' in text and 'data-shown="3600"' in text
    assert "3,600 of 4,329 points shown" in text
    assert re.search(r"<span>ground</span><b>3,600</b>.*<span>tree</span><b>729</b>", text)
    assert re.search(r"<td>z</td><td>0\.0000</td><td>9\.0000</td>", text)
    assert re.search(r'id="low">245379\.95<.*id="high">245385\.87<', text, re.DOTALL)


@pytest.mark.parametrize("kind", ["points", "voxels"])
def test_it_is_drawn(pages, kind):
    image = picture(pages[kind], "#size=8" if kind == "points" else "")
    assert drawn(image) > 0.15
    assert count(image, BROWN) > 20_000 and count(image, GREEN) > 1000
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 50  # shaded, not flat areas


@pytest.mark.parametrize(
    ("points", "size"),
    [([[5e5, 4e6, 200.0]], None), ([[3.0, 3, 3]] * 5, (1.0,) * 3), ([[0.0, 0, 0], [0, 0, 1]], (1.0,) * 3)],
)
def test_few_points_and_points_at_one_place_are_drawn_whole(tmp_path, points, size):
    html = cloud_page(np.array(points), {"a": np.arange(len(points))}, title="few", voxel_size=size)
    (tmp_path / "few.html").write_text(html, encoding="utf-8")
    image = picture(tmp_path / "few.html", "#size=8" if size is None else "")
    there = (image != image[2, 2]).any(axis=2)
    least = 30 if size is None else 10_000
    assert there[:560].sum() > least  # above the axes and the line of hints
    assert not there[[0, -1]].any() and not there[:, [0, -1]].any()


def test_a_hidden_class_is_not_drawn(pages):
    image = picture(pages["points"], "#hide=1&size=8")
    assert count(image, GREEN) == 0 and count(image, BROWN) > 20_000


def test_field_colours_size_and_view_change_the_picture(pages):
    seen = [
        picture(pages["points"], anchor)
        for anchor in ("#field=y&size=8", "#field=y&map=magma&size=8", "#field=y&size=2", "#view=top&light=1")
    ]
    assert all((a != b).any(axis=2).mean() > 0.02 for i, a in enumerate(seen) for b in seen[:i])
    assert drawn(seen[2]) < 0.5 * drawn(seen[0])
    assert count(seen[3], (0xF4, 0xF5, 0xF7)) > 10_000


# Does what a user does, once the page is drawn, and notes what it then says.
ACTIONS = """<script>
const seen = [], $ = (id) => document.getElementById(id);
const mouse = (kind, x, y) => $("canvas").dispatchEvent(
  new PointerEvent(kind, {clientX: x, clientY: y, bubbles: true, pointerId: 1, button: 0}));
const note = (name) => seen.push(name + ": " + $("shown").textContent);
const waiting = setInterval(() => {
  if (document.documentElement.dataset.ready !== "true") return;
  clearInterval(waiting);
  $("rows").querySelectorAll("input")[0].click(); note("one class");
  $("all").click(); note("all");
  $("all").click(); note("none");
  $("all").click();
  $("field").value = "height"; $("field").dispatchEvent(new Event("change")); note($("low").textContent);
  document.querySelector("[data-view=top]").click();
  setTimeout(() => {  // by then it is drawn, on a busy machine too
    const x = innerWidth / 2 + 138, y = innerHeight / 2;  // the middle, beside the panel
    mouse("pointerdown", x, y); mouse("pointerup", x, y);
    seen.push("values: " + $("tip").innerText.replace(/\\s+/g, " "));
    mouse("pointerdown", innerWidth - 5, 5); mouse("pointerup", innerWidth - 5, 5);
    seen.push("beside: " + $("tip").hidden);
    document.body.dataset.seen = seen.join("; ");
  }, 2000);
}, 50);
</script></body>"""


def test_controls(pages):
    acted = pages["points"].with_name("acted.html")
    text = pages["points"].read_text(encoding="utf-8")
    acted.write_text(text.replace("</body>", ACTIONS), encoding="utf-8")
    seen = re.search(r'data-seen="([^"]*)"', browse(acted, "--dump-dom")).group(1).split("; ")
    assert seen[:4] == [
        "one class: 729 of 4,329 points shown", "all: 4,329 points shown",
        "none: 0 of 4,329 points shown", "0: 4,329 points shown",
    ]  # fmt: skip
    # From above, the middle is the top of the block: class tree, height 9.
    values = r"values: label tree height 9 id 20,000,001 time 245385\.87"
    assert re.fullmatch(values + r" x (29|30)\.0+ y (29|30)\.0+ z 9\.0+ ?", seen[4]), seen
    assert seen[5] == "beside: true"


def test_a_broken_page_says_so(pages):
    broken = pages["points"].with_name("broken.html")
    text = pages["points"].read_text(encoding="utf-8")
    broken.write_text(re.sub(r'(id="data">)[^<]{400}', r"\1", text), encoding="utf-8")
    assert "The page could not be drawn" in browse(broken, "--dump-dom")
