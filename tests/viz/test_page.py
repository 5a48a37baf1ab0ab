"""The page's text: what it holds, decoded again, and what it refuses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from mlxsparse.errors import PointCloudError
from mlxsparse.viz.page import cloud_page

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
POINTS = RNG.uniform(0, 20, (300, 3)) + [500_000.0, 4_000_000.0, 30.0]
FIELDS = {
    "intensity": RNG.integers(100, 60_000, 300).astype(np.uint16),
    "label": RNG.integers(2, 5, 300).astype(np.int32),
    "gps_time": 3.1e8 + RNG.uniform(0, 1, 300),
    "offset": RNG.normal(0, 1, 300).astype(np.float32),
    "colour": RNG.integers(0, 256, (300, 3)).astype(np.uint8),
    "user_data": np.full(300, 7, np.uint8),
    "returns": RNG.integers(1, 4, 300).astype(np.uint8),
}
FIELDS["offset"][5] = np.nan


def parts(html):
    """(what the page says it shows, name -> numbers of each field, positions)."""
    described, packed = (
        re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', html, re.DOTALL).group(1)
        for name in ("page", "data")
    )
    page, data = json.loads(described), zlib.decompress(base64.b64decode(packed))

    def column(c):
        return np.frombuffer(data, np.dtype("<" + c["type"]), c["length"], c["at"])

    stored = page["stored"] = {f["name"]: column(f["values"]) for f in page["fields"] if "values" in f}
    fields = {f["name"]: stored[f["name"]] + f.get("base", 0.0) for f in page["fields"] if "values" in f}
    return page, fields, column(page["positions"]).reshape(-1, 3)


@pytest.fixture(scope="module")
def html():
    title = "a <b> & </script>"
    return cloud_page(POINTS, FIELDS, title=title, notes=["Thinned."], class_names={2: "ground"})


def test_positions_are_relative_to_the_middle(html):
    page, _, positions = parts(html)
    np.testing.assert_allclose(positions + np.array(page["centre"]), POINTS, atol=1e-6)
    np.testing.assert_array_equal(page["low"], POINTS.min(axis=0))
    np.testing.assert_array_equal(page["high"], POINTS.max(axis=0))
    assert page["count"] == 300 and page["kind"] == "points" and page["title"] == "a <b> & </script>"


def test_fields_come_back(html):
    page, fields, _ = parts(html)
    np.testing.assert_array_equal(fields["intensity"], FIELDS["intensity"])
    np.testing.assert_array_equal(fields["returns"], FIELDS["returns"])
    np.testing.assert_array_equal(fields["colour"].reshape(-1, 3), FIELDS["colour"])
    np.testing.assert_allclose(fields["gps_time"], FIELDS["gps_time"], atol=1e-7)
    np.testing.assert_allclose(fields["offset"], FIELDS["offset"], atol=1e-6)
    legend = next(f for f in page["fields"] if f["kind"] == "class")["classes"]
    assert [c["name"] for c in legend] == ["ground", "class 3", "class 4"]
    values = np.array([c["value"] for c in legend])[fields["label"].astype(int)]
    np.testing.assert_array_equal(values, FIELDS["label"])
    np.testing.assert_array_equal([c["count"] for c in legend], np.bincount(FIELDS["label"])[2:])
    assert "user_data" not in fields and page["constant"] == ["user_data = 7"]
    assert page["notes"] == ["Thinned."]
    assert [f["name"] for f in page["fields"]][-3:] == ["x", "y", "z"] and page["start"] == "label"


def test_small_numbers_take_few_bytes(html):
    page, _, _ = parts(html)
    types = {f["name"]: f["values"]["type"] for f in page["fields"] if "values" in f}
    assert types == {
        "intensity": "u2", "label": "u1", "gps_time": "f4", "offset": "f4", "colour": "u1", "returns": "u1",
    }  # fmt: skip


def test_large_numbers_keep_their_digits():
    numbers = np.arange(300)
    ids = 20_000_001 + 100_003 * numbers
    fields = {
        "id": ids, "as float": ids.astype(np.float64), "byte": (numbers % 3 - 128).astype(np.int8),
        "gps_time": np.linspace(245379.95, 245385.87, 300),
        "far off": np.where(numbers, numbers / 300, -9999.0), "tiny": numbers * 1.25e-12,
        "nanoseconds": 10 * numbers - 2**61, "unsigned": (10 * numbers).astype(np.uint64) + np.uint64(2**63),
    }  # fmt: skip
    constants = {
        "a": np.full(300, 123456789), "b": np.full(300, 123456789.0), "c": np.full(300, 0.1, np.float32),
        "d": np.full(300, 245379.9512345), "e": np.full(300, -128, np.int8), "f": np.ones(300, bool),
        "g": np.full(300, np.float16(0.5)), "h": np.full(300, np.inf),
        "i": np.full(300, 2**64 - 1, np.uint64),
    }  # fmt: skip
    page, read, _ = parts(cloud_page(POINTS, {**fields, **constants}, title="large", start="id"))
    shown = {f["name"]: f for f in page["fields"]}
    for name in ("id", "as float"):
        np.testing.assert_array_equal(read[name], ids)
        assert shown[name]["low"] in ids and shown[name]["high"] in ids and shown[name]["digits"] == 0
    assert [shown[n]["digits"] for n in ("byte", "gps_time", "far off")] == [0, 5, 2]
    assert shown["tiny"]["digits"] == 15
    for name in ("nanoseconds", "unsigned"):  # which float64 does not tell apart
        np.testing.assert_array_equal(page["stored"][name], 10 * numbers)
    assert page["constant"] == [
        "a, b = 123456789", "c = 0.1", "d = 245379.9512345", "e = -128", "f = 1", "g = 0.5", "h = inf",
        f"i = {2**64 - 1}",
    ]  # fmt: skip


def test_voxels_reach_half_an_edge_further():
    page, _, _ = parts(cloud_page(POINTS, {}, title="v", voxel_size=(1.0, 2.0, 4.0)))
    assert page["kind"] == "voxels" and page["voxel"] == [1.0, 2.0, 4.0] and page["start"] == "z"
    np.testing.assert_allclose(page["low"], POINTS.min(axis=0) - [0.5, 1, 2])


def test_one_point_and_no_spread():
    page, _, positions = parts(cloud_page(np.ones((1, 3)), {"a": np.ones(1)}, title="one"))
    assert positions.tolist() == [[0, 0, 0]] and page["constant"] == ["a = 1"]


def test_the_page_fetches_nothing(html):
    assert "default-src 'none'" in html
    before_script = html[: html.index("(()=>")]
    assert not re.search(r"<(link|img|iframe)|\bsrc=|url\(|@import|https?://", before_script)
    assert html.count("</script") == 3  # whatever the title


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"points": np.empty((0, 3)), "fields": {}}, "no point"),
        ({"start": "nothing"}, "no field 'nothing'; it has x, y, z, intensity"),
        ({"class_field": "x"}, "no field 'x'"),
        ({"class_field": "offset"}, "whole numbers"),
        ({"fields": {"id": np.arange(300)}, "class_field": "id"}, "256"),
    ],
)
def test_refusals(arguments, word):
    arguments = {"points": POINTS, "fields": FIELDS, "title": "t", **arguments}
    with pytest.raises(PointCloudError, match=word):
        cloud_page(arguments.pop("points"), arguments.pop("fields"), **arguments)


def test_the_script_was_built_from_the_sources():
    """`tools/viewer/build.sh` after a change in tools/viewer."""
    folder = ROOT / "tools" / "viewer"
    names = ("package.json", "viewer.js", "picture.js", "colour.js")
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:16]
    script = (ROOT / "mlxsparse" / "viz" / "viewer.min.js").read_text()
    assert script.startswith(f"// sources {digest}\n")
    wanted = json.loads((folder / "package.json").read_text())["devDependencies"]["three"]
    assert f"three.js {wanted}" in (ROOT / "mlxsparse" / "viz" / "three.LICENSE.txt").read_text()
