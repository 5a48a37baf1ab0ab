"""Which tile a convolution takes on CUDA, by dtype, widths and rows; what the GPU can is pretended."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlxsparse.backend import tile_shapes
from mlxsparse.backend.tile_shapes import grad_tile_for, tile_for

MANY, FEW = 1_000_192, 2048  # places


@pytest.fixture(params=[True, False], ids=["together", "alone"])
def together(request, monkeypatch):
    """Whether four simdgroups multiply together there."""
    monkeypatch.setattr(tile_shapes, "on_cuda", lambda: True)
    monkeypatch.setattr(tile_shapes, "grouped", lambda: request.param)
    return request.param


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("channels", [1, 32, 33, 64, 96, 128, 160, 256, 320, 384, 512, 640])
@pytest.mark.parametrize("places", [256, FEW, 100_096, MANY])
def test_tiles_cover_the_channels_with_the_least_padding(together, dtype, channels, places):
    tile = tile_for(dtype, channels, places)
    assert tile.FOURS == int(together and channels > 32)
    assert places % tile.BM == 0 and tile.threads <= 256
    if places == MANY:
        assert tile.BN >= min(channels, 128)
        padded = -(-channels // tile.BN) * tile.BN
        assert padded <= max(32, -(-channels // 128) * 128)
    if places <= FEW and channels > 32:
        assert (tile.BM, tile.BN) == (64, 64)


def test_float32_multiplies_each_by_itself(together):
    assert all(tile_for(mx.float32, c, p).FOURS == 0 for c in (32, 64, 256) for p in (FEW, MANY))
    assert all(grad_tile_for(mx.float32, c, c).FOURS == 0 for c in (32, 64, 256))


def test_weight_gradients_take_tiles_of_both_widths(together):
    def shape(outs, red):
        tile = grad_tile_for(mx.float16, outs, red)
        assert tile.FOURS == int(together and max(outs, red) > 32)
        return tile.BM, tile.BN

    assert shape(32, 24) == (32, 32) and shape(64, 40) == (64, 64) and shape(256, 128) == (128, 128)
    assert (shape(128, 64), shape(64, 128)) == (((128, 64), (64, 128)) if together else ((128, 128),) * 2)


def test_what_a_caller_chose_comes_first(together, monkeypatch):
    mine = tile_shapes.Tile(64, 32, 32, 2, 2, 2)
    monkeypatch.setitem(tile_shapes.chosen, (False, 64), mine)
    monkeypatch.setitem(tile_shapes.chosen, (True, 64), mine)
    assert tile_for(mx.float16, 64, MANY) is mine and grad_tile_for(mx.float16, 64, 24) is mine
    assert tile_for(mx.float16, 63, MANY) is not mine
