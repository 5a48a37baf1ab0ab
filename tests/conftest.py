"""What all tests share: hypothesis profiles, and tests of operators on every device that runs them.

`pytest --hypothesis-profile=thorough` runs 500 examples of each property instead of 30, `=quick` 5.
With MLXSPARSE_TEST_KERNELS=1 "every device" includes the kernels on the CPU executor of tools/metalcheck
(needs clang-19): slow, but what a GPU would run.
"""

from __future__ import annotations

import contextlib
import os

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # MLX's own float32 products are references here; read once

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, settings

from mlxsparse import backend
from mlxsparse.backend import device as backend_device
from mlxsparse.backend import library
from mlxsparse.errors import DeviceError

_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", max_examples=30, deadline=None, suppress_health_check=_slow)
settings.register_profile("thorough", max_examples=500, deadline=None, suppress_health_check=_slow)
settings.register_profile("quick", max_examples=5, deadline=None, suppress_health_check=_slow)
settings.load_profile("default")


KERNELS = "kernels"  # beside mx.cpu and mx.gpu


def _devices():
    found = []
    for device in (mx.cpu, mx.gpu):
        if mx.is_available(device):
            with mx.stream(device):
                try:
                    backend.executor()
                    found.append(device)
                except DeviceError:  # the device is there, an executor for it is not
                    pass
    if os.environ.get("MLXSPARSE_TEST_KERNELS") == "1":
        found.append(KERNELS)
    return found


@contextlib.contextmanager
def kernels_on_the_cpu(seed=0):
    """Operators run through kernels, and these on the CPU executor."""
    from tools.metalcheck.executor import Mode, metal_kernel_factory

    with library.using(metal_kernel_factory(Mode(seed=seed))), backend_device.kernels_everywhere():
        yield


@pytest.fixture(scope="module", params=_devices(), ids=lambda device: str(device).rpartition(".")[2])
def device(request):
    """The default device while the tests of a module run; modules ask for it with `usefixtures`."""
    before = mx.default_device()
    on_kernels = request.param == KERNELS
    mx.set_default_device(mx.cpu if on_kernels else request.param)
    with kernels_on_the_cpu() if on_kernels else contextlib.nullcontext():
        yield mx.cpu if on_kernels else request.param
    mx.set_default_device(before)
