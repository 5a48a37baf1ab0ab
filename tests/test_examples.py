"""The examples run as a user runs them, on small input, and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
SMALL = {
    "block_sparse_attention.py": ["--steps", "2"],
    "voxel_transformer.py": ["--scenes", "2", "--epochs", "1", "--rings", "24"],
    "prune_minkunet.py": ["--steps", "20"],
    "classifier.py": ["--clouds", "60", "--steps", "60"],
    "segmentation.py": ["--scenes", "2", "--epochs", "3", "--rings", "24", "--page", "street.html"],
}
SAYS = {
    "block_sparse_attention.py": ["step 1: loss"],
    "first_steps.py": ["fine sites", "KernelMap(kernel=(3, 3, 3)", "at the points: (20000, 8) (20000, 8)"],
    "classifier.py": ["accuracy on new clouds"],
    "segmentation.py": ["epoch 2", "building", "wrote street.html"],
    "voxel_transformer.py": ["VoxelTransformer: 249158 parameters", "MinkUNet: 245334 parameters"],
    "prune_minkunet.py": ["decoder.0.layers.0.conv", "ms compressed"],
    "custom_layer.py": ["slope by gradient", "refused:", "outer join"],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name), *SMALL.get(name, [])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    for text in SAYS.get(name, []):
        assert text in done.stdout, done.stdout
    if name == "block_sparse_attention.py":
        assert float(done.stdout.split("sequence by sequence: ")[1].split()[0]) < 1e-5
    if name == "classifier.py":
        share = done.stdout.split("accuracy on new clouds: ")[1].rstrip("%\n")
        assert int(share) >= 50  # of five shapes; 20 is chance
    if name == "segmentation.py":
        assert (tmp_path / "street.html").stat().st_size > 500_000
