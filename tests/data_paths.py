"""Where the real data of the tests is: the folder MLXSPARSE_DATA, else shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_path(*parts: str) -> Path:
    """Path of a data file or folder; skips the calling test, with the reason, where it is absent."""
    path = Path(os.environ.get("MLXSPARSE_DATA") or _BESIDE).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no test data at {path}; set MLXSPARSE_DATA to the data folder", allow_module_level=True)
    return path
