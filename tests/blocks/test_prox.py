"""The group lasso's proximal step: what is not a number is not taken for 0."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxsparse.blocks import BlockSpec, View


@pytest.mark.parametrize("conditioners", [None, mx.ones((3, 2))])
def test_soft_threshold_leaves_nan_to_be_seen(conditioners):
    view = View(mx.array([[np.nan, 1], [3, 4], [0.1, 0]]))
    BlockSpec(view, (1, -1)).soft_threshold(1, conditioners)
    got = np.array(view.data)
    assert np.isnan(got[0]).all() and got[2].tolist() == [0, 0]
    np.testing.assert_allclose(got[1], [2.4, 3.2], atol=1e-4)
