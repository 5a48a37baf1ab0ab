"""What tests that need a GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture
def on_the_gpu() -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.gpu)
    yield
    mx.set_default_device(before)
