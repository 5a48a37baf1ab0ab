"""Pictures of pages for the documentation: `make demo`, then `python -m tools.picture_docs out`.

Shows the labelled scene of a demo with `mlxsparse view`, as points and as voxels, in Chromium without a
screen, and writes docs/images/labelled.png and docs/images/voxel-page.png.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from mlxsparse.cli.main import main as mlxsparse
from mlxsparse.tasks.scenes import STREET_CLASSES

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def picture(page: Path, path: Path, anchor: str, size: tuple[int, int] = (1280, 640)) -> None:
    """A screenshot of a page, in 256 colours."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("chromium is needed: apt install chromium")
    raw = page.with_suffix(".png")
    command = [
        browser, "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
        "--hide-scrollbars", f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=20000",
        f"--screenshot={raw}", page.as_uri() + anchor,
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, path.stat().st_size // 1000, "kB")


def main(folder: str) -> int:
    cloud = str(Path(folder) / "prediction.ply")
    names = ["--names", ",".join(STREET_CLASSES)]
    with tempfile.TemporaryDirectory() as made:
        points, voxels = Path(made) / "points.html", Path(made) / "voxels.html"
        mlxsparse(["view", cloud, "-o", str(points), *names])
        mlxsparse(["view", cloud, "-o", str(voxels), "--voxel", "0.25", *names])
        picture(points, IMAGES / "labelled.png", "#zoom=1.5")
        picture(voxels, IMAGES / "voxel-page.png", "#zoom=2.6")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "out"))
