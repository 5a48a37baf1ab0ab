"""Every operator compiled with static capacity."""

from __future__ import annotations

import pytest

from .static_cases import OPERATORS, check_operator, needs_kernels
from .static_cases import kernels as kernels


@needs_kernels
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compiled_are_the_eager_ones(kernels, name):
    check_operator(name)
