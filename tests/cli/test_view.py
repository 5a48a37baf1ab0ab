"""`mlxsparse view` from files to pages, and how it fails."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.cli.main import main
from mlxsparse.cli.view import fields_of, thin
from mlxsparse.io.cloud import LABEL_FIELDS, PointCloud
from mlxsparse.io.las import write_las
from mlxsparse.io.points import read_points, write_labels
from mlxsparse.viz.page import CLASS_FIELDS
from tests.data_paths import data_path
from tests.viz.test_page import parts


@pytest.fixture(autouse=True)
def keep_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """3,000 points of classes 2 and 6 with intensities."""
    path = tmp_path_factory.mktemp("clouds") / "cloud.laz"
    rng = np.random.default_rng(0)
    fields = {
        "classification": rng.choice([2, 6], 3000).astype(np.uint8),
        "intensity": rng.integers(0, 500, 3000).astype(np.uint16),
    }
    write_las(path, rng.uniform(0, 10, (3000, 3)), fields, scale=0.001, offset=(0.0, 0.0, 0.0))
    return path


def run(*arguments):
    return main([str(a) for a in arguments])


def page_of(path):
    return parts(path.read_text(encoding="utf-8"))


def test_points(cloud, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert run("view", cloud, "-o", out, "--names", "asprs") == 0
    assert capsys.readouterr().out.startswith(f"wrote {out}: 3,000 points, ")
    page, fields, positions = page_of(out)
    source = read_points(cloud)
    np.testing.assert_allclose(positions + np.array(page["centre"]), source.points, atol=1e-5)
    np.testing.assert_array_equal(fields["intensity"], source.fields["intensity"])
    legend = next(f for f in page["fields"] if f["kind"] == "class")["classes"]
    assert {c["name"]: c["count"] for c in legend} == {
        "ground": int((source.fields["classification"] == 2).sum()),
        "building": int((source.fields["classification"] == 6).sum()),
    }


def test_voxels(cloud, tmp_path):
    out = tmp_path / "page.html"
    assert run("view", cloud, "-o", out, "--voxel", "2.5", "--color", "intensity") == 0
    page, fields, positions = page_of(out)
    source = read_points(cloud)
    sites = np.floor((source.points - source.points.min(axis=0)) / 2.5).astype(int)
    wanted, index, counts = np.unique(sites, axis=0, return_inverse=True, return_counts=True)
    centres = (wanted + 0.5) * 2.5 + source.points.min(axis=0)
    np.testing.assert_allclose(positions + np.array(page["centre"]), centres, atol=1e-5)
    np.testing.assert_array_equal(fields["points in voxel"], counts)
    mean = np.bincount(index.ravel(), source.fields["intensity"]) / counts
    np.testing.assert_allclose(fields["intensity"], mean, rtol=1e-6)
    six = np.bincount(index.ravel(), source.fields["classification"] == 6) / counts
    np.testing.assert_array_equal(fields["classification"], six > 0.5)
    assert page["start"] == "intensity" and page["notes"][0] == "Voxels of 2.5, from 3,000 points."


def test_a_large_cloud_is_thinned_and_says_so(cloud, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert run("view", cloud, "-o", out, "--max-points", "500") == 0
    page, _, positions = page_of(out)
    assert 400 <= page["count"] == len(positions) <= 500
    assert page["notes"][0].startswith(f"Thinned: {page['count']} of 3,000 points, the first in each voxel")
    assert page["notes"][0] in capsys.readouterr().out


@pytest.mark.parametrize("limit", [1, 2, 10, 999, 1000])
def test_thinning_keeps_first_points(limit):
    points = np.random.default_rng(1).uniform(0, 5, (1000, 3))
    rows, size = thin(points, limit)
    assert 1 <= len(rows) <= limit and (np.diff(rows) > 0).all()
    sites = np.floor((points - points.min(axis=0)) / size).astype(int)
    np.testing.assert_array_equal(rows, np.sort(np.unique(sites, axis=0, return_index=True)[1]))


def test_points_in_one_place_are_thinned_to_one():
    assert thin(np.ones((50, 3)), 10)[0].tolist() == [0]


def test_colours():
    wide = {c: np.array([0, 65535], np.uint16) for c in ("red", "green", "blue")}
    assert fields_of(PointCloud(np.zeros((2, 3)), wide))["colour"].tolist() == [[0] * 3, [255] * 3]
    black = {c: np.zeros(2, np.uint16) for c in ("red", "green", "blue")}
    assert "colour" not in fields_of(PointCloud(np.zeros((2, 3)), black))
    shares = {c: np.array([0, 1.0], np.float32) for c in ("red", "green", "blue")}
    assert fields_of(PointCloud(np.zeros((2, 3)), shares))["colour"].tolist() == [[0] * 3, [255] * 3]


def test_classes_written_as_floats():
    fields = {"scalar_Classification": np.array([2.0, 6.0]), "label": np.array([0.5, np.nan])}
    found = fields_of(PointCloud(np.zeros((2, 3)), fields))
    assert found["scalar_Classification"].dtype == np.int64 and found["label"].dtype == np.float64


@pytest.mark.parametrize("name", ["pcl_office1_nan.pcd", "pcl_bunny_ascii.pcd", "open3dml_fragment_rgb.pcd"])
def test_real_clouds(name, tmp_path):
    out = tmp_path / "page.html"
    assert run("view", data_path("clouds", name), "-o", out) == 0
    page, fields, positions = page_of(out)
    lost = ~np.isfinite(read_points(data_path("clouds", name)).points).all(axis=1)
    assert np.isfinite(positions).all() and len(positions) == page["count"] == (~lost).sum()
    assert any("without a finite position" in note for note in page["notes"]) == bool(lost.any())
    assert [f["name"] for f in page["fields"]].count("x") == 1
    assert ("colour" in fields) == (name != "pcl_bunny_ascii.pcd")


def test_names(cloud, tmp_path):
    file = tmp_path / "names.json"
    file.write_text(json.dumps({"2": "soil", "6": "house"}))
    for names in (file, "2=soil, 6=house", "a,b,soil,d,e,f,house"):
        assert run("view", cloud, "-o", tmp_path / "page.html", "--names", names) == 0
        page, _, _ = page_of(tmp_path / "page.html")
        legend = next(f for f in page["fields"] if f["kind"] == "class")["classes"]
        assert [c["name"] for c in legend] == ["soil", "house"]


def test_data_errors_are_one_line_and_status_1(cloud, tmp_path, capsys):
    cut = tmp_path / "cut.laz"
    cut.write_bytes(cloud.read_bytes()[:5000])
    empty = tmp_path / "none.laz"
    write_las(empty, np.empty((0, 3)), {}, scale=0.001, offset=(0.0, 0.0, 0.0))
    out = tmp_path / "page.html"
    for arguments, word in (
        ((cut, "-o", out), "cut.laz"),
        ((empty, "-o", out), "no point with a finite position"),
        ((empty, "-o", out, "--voxel", "1"), "no point with a finite position"),
        ((tmp_path / "missing.laz", "-o", out), "missing.laz"),
        ((cloud, "-o", tmp_path), "directory"),
        ((cloud, "-o", tmp_path / "no" / "page.html"), "does not exist"),
        ((cloud, "-o", out, "--color", "speed"), "no field 'speed'; it has x, y, z, intensity"),
        ((cloud, "-o", out, "--classes", "speed"), "no field 'speed'"),
        ((cloud, "-o", out, "--classes", "intensity"), "256 values"),
        ((cloud, "-o", out, "--voxel", "0.1", "--max-points", "100"), "larger --voxel"),
        ((cloud, "-o", out, "--voxel", "1e-12"), "voxel"),
    ):
        before = sorted(p.name for p in tmp_path.rglob("*"))
        assert run("view", *arguments) == 1, arguments
        error = capsys.readouterr().err
        assert word in error and error.startswith("mlxsparse: error: ") and error.count("\n") == 1, error
        assert sorted(p.name for p in tmp_path.rglob("*")) == before, "something half-written was left"


@pytest.mark.parametrize(
    "arguments",
    [
        ("a.laz",), ("-o", "b.html"), ("a.laz", "-o", "b.html", "--voxel", "0"),
        ("a.laz", "-o", "b.html", "--voxel", "nan"), ("a.laz", "-o", "b.html", "--max-points", "0"),
        ("a.laz", "-o", "b.html", "--names", "none.json"), ("a.laz", "-o", "b.html", "--names", "x=1"),
    ],
)  # fmt: skip
def test_usage_errors_are_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        run("view", *arguments)
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_points_too_far_apart_for_float32(tmp_path, capsys):
    for far in ("1e39", "1.7e308"):
        (tmp_path / "a.xyz").write_text(f"{far} 0 0\n-{far} 0 0\n1 1 1\n")
        assert run("view", tmp_path / "a.xyz", "-o", tmp_path / "a.html") == 1
        error = capsys.readouterr().err
        assert "too far apart to draw" in error and error.count("\n") == 1
    assert not (tmp_path / "a.html").exists()


def test_values_beyond_float32_count_as_infinite(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z,big\n0,0,0,1.7e308\n1,1,1,-1.7e308\n2,2,2,5\n3,3,3,6\n")
    assert run("view", tmp_path / "a.csv", "-o", tmp_path / "a.html") == 0
    page, fields, _ = page_of(tmp_path / "a.html")
    assert fields["big"].tolist() == [np.inf, -np.inf, 5, 6]
    assert next(f for f in page["fields"] if f["name"] == "big")["high"] <= 6


def test_the_page_does_not_take_the_place_of_the_cloud(tmp_path, capsys):
    path = tmp_path / "a.xyz"
    np.savetxt(path, np.random.default_rng(0).uniform(0, 9, (20, 3)))
    (tmp_path / "link.xyz").symlink_to(path)
    before = path.read_bytes()
    for cloud, output in ((path, path), (path, tmp_path / "link.xyz"), (tmp_path / "link.xyz", path)):
        assert run("view", cloud, "-o", output) == 2
        assert "is the cloud itself" in capsys.readouterr().err and path.read_bytes() == before


def test_a_page_is_named_as_one(tmp_path, capsys):
    np.savetxt(tmp_path / "a.xyz", np.random.default_rng(0).uniform(0, 9, (20, 3)))
    (tmp_path / "names.json").write_text('{"1": "tree"}')
    for name in ("names.json", "a.txt", "page"):
        assert run("view", tmp_path / "a.xyz", "-o", tmp_path / name, "--names", tmp_path / "names.json") == 2
        assert "name it .html" in capsys.readouterr().err
    assert (tmp_path / "names.json").read_text() == '{"1": "tree"}'


def test_fields_of_booleans_are_shown_and_kept(tmp_path):
    rng = np.random.default_rng(0)
    points, ground = rng.uniform(0, 9, (20, 3)), np.arange(20) % 3 == 0
    np.savez(tmp_path / "a.npz", points=points, ground=ground)
    cloud = read_points(tmp_path / "a.npz")
    assert cloud.fields["ground"].tolist() == ground.tolist()
    write_labels(cloud, np.arange(20), tmp_path / "b.npy")
    assert np.load(tmp_path / "b.npy")["ground"].tolist() == ground.tolist()
    for source in ("a.npz", "b.npy"):
        assert run("view", tmp_path / source, "-o", tmp_path / "a.html", "--color", "ground") == 0
    write_labels(cloud, np.arange(20), tmp_path / "b.ply")
    assert read_points(tmp_path / "b.ply").fields["ground"].tolist() == ground.astype(int).tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e30, np.inf, -np.inf, 0.5, 2.0**63])
def test_classes_that_no_integer_holds_are_values(value):
    labels = np.array([1.0, value, 2.0])
    fields = fields_of(PointCloud(np.zeros((3, 3)), {"label": labels}))
    assert fields["label"].dtype == np.float64


def test_classes_of_64_bits_keep_their_numbers(tmp_path):
    labels = np.array([2**64 - 1, 3, 3], np.uint64)
    np.savez(tmp_path / "a.npz", points=np.eye(3), label=labels)
    assert run("view", tmp_path / "a.npz", "-o", tmp_path / "a.html", "--classes", "label") == 0
    (field,) = [f for f in page_of(tmp_path / "a.html")[0]["fields"] if f["name"] == "label"]
    assert [c["value"] for c in field["classes"]] == [3, 2**64 - 1]


def test_a_field_called_colour_hides_no_colours():
    fields = {"colour": np.arange(2), **{name: np.array([9, 200]) for name in ("red", "green", "blue")}}
    found = fields_of(PointCloud(np.zeros((2, 3)), fields))
    assert found["colour"].tolist() == [0, 1] and found["colour (rgb)"].tolist() == [[9] * 3, [200] * 3]


@pytest.mark.parametrize("name", ["@VIEWER@", "@DATA@", "@PAGE@", "</script>@DATA@"])
def test_names_that_look_like_marks_of_the_page(name, tmp_path):
    name = name.replace("/", "_")
    np.savez(tmp_path / f"{name}.npz", **{"points": np.eye(3), name: [3, 4.0, 5]})
    assert run("view", tmp_path / f"{name}.npz", "-o", tmp_path / "a.html") == 0
    page = page_of(tmp_path / "a.html")[0]
    assert page["title"] == f"{name}.npz" and name in [f["name"] for f in page["fields"]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [1e308, 1e20])
def test_one_point_far_off(far, tmp_path, capsys):
    points = np.vstack([np.random.default_rng(0).random((30, 3)), [[far, 0, 0], [-far, 0, 0]]])
    np.save(tmp_path / "a.npy", points)
    for more in (["--voxel", "0.1"], ["--max-points", "20"]):
        status = run("view", tmp_path / "a.npy", "-o", tmp_path / "a.html", *more)
        said = capsys.readouterr().err
        assert status == 1 and "lie far off" in said and "origin" not in said or status == 0


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--voxel", "abc", "'abc' is not a finite number above 0"),
        ("--max-points", "1.5", "'1.5' is not a whole number"),
        ("--names", "1=a,2", "number=name"),
        ("--names", "", "'' gives no class names"),
    ],
)
def test_values_of_options_are_named(option, value, wanted, cloud, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("view", cloud, "-o", "x.html", option, value)
    assert wanted in capsys.readouterr().err


def test_colours_of_16_bits_in_text(tmp_path):
    """As PDAL writes them; what is not a number is dark."""
    (tmp_path / "a.csv").write_text(
        '"X","Y","Z","Red","Green","Blue"\n0,0,0,65535,257,65280\n1,1,1,32896,0,nan\n2,2,2,1,2,inf\n'
    )
    cloud = read_points(tmp_path / "a.csv")
    assert fields_of(cloud)["colour"].tolist() == [[255, 1, 255], [128, 0, 0], [0, 0, 255]]
    shares = {c: np.array([0.5, np.inf, 200 / 255], np.float32) for c in ("red", "green", "blue")}
    assert fields_of(PointCloud(np.zeros((3, 3)), shares))["colour"][:, 0].tolist() == [128, 255, 200]


@pytest.mark.parametrize("more", [[], ["--voxel", "0.5"]])
@pytest.mark.parametrize("name", ["sem", "classification"])
def test_classes_that_are_named_may_be_floats(name, more, tmp_path):
    """As all columns of text are; one that is not a number is no label."""
    (tmp_path / "a.txt").write_text(f"x y z {name}\n0 0 0 2\n1 1 1 0\n2 2 2 nan\n3 3 3 2\n")
    assert run("view", tmp_path / "a.txt", "-o", tmp_path / "a.html", "--classes", name, *more) == 0
    page = page_of(tmp_path / "a.html")[0]
    (field,) = [f for f in page["fields"] if f["name"] == name]
    assert {c["value"]: c["count"] for c in field["classes"]} == {-1: 1, 0: 1, 2: 2}


def test_every_field_that_is_trained_on_by_its_name_is_shown_as_classes(tmp_path):
    assert {name.lower() for name in LABEL_FIELDS} <= set(CLASS_FIELDS)
    many = {"segment": np.arange(300), "label": np.arange(300) % 2}  # the first has too many values
    np.savez(tmp_path / "a.npz", points=np.random.default_rng(0).random((300, 3)), **many)
    assert run("view", tmp_path / "a.npz", "-o", tmp_path / "a.html") == 0
    assert page_of(tmp_path / "a.html")[0]["start"] == "label"
