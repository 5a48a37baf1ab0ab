"""Every operator compiled with static capacity, and on the host to what a GPU made with it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlxsparse as ms
from mlxsparse import ops

from .conftest import kernels_on_the_cpu
from .static_cases import HAS_GPU, OPERATORS, check_operator, needs_kernels, rows, same, tensor, weight
from .static_cases import kernels as kernels


@needs_kernels
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compiled_are_the_eager_ones(kernels, name):
    check_operator(name)


def made_on_kernels():
    """A set of stride 2 whose number of sites the device alone knows."""
    with mx.stream(mx.gpu) if HAS_GPU else kernels_on_the_cpu():
        x = tensor(60).with_capacity(64)
        return ops.conv3d(x, weight(4, 2, 4), stride=2, capacity=60)


@needs_kernels
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_on_the_host_take_what_kernels_made(name):
    operator = OPERATORS[name]
    with mx.stream(mx.cpu):
        coords, feats = rows(made_on_kernels())
        x = ms.SparseTensor(coords, feats, stride=2, batch_size=2)
        same(operator(made_on_kernels()), operator(x))

        def gradient(x):
            return np.array(mx.grad(lambda f: (operator(x.replace(f)).feats ** 2).sum())(x.feats))

        wanted = gradient(x.with_capacity(60))
        np.testing.assert_allclose(gradient(made_on_kernels()), wanted, rtol=1e-4, atol=1e-4)
