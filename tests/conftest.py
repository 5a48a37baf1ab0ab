"""What all tests share: hypothesis profiles, and tests of operators on every device that runs them.

`pytest --hypothesis-profile=thorough` runs 500 examples of each property instead of 30.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, settings

from mlxsparse import backend
from mlxsparse.errors import DeviceError

_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", max_examples=30, deadline=None, suppress_health_check=_slow)
settings.register_profile("thorough", max_examples=500, deadline=None, suppress_health_check=_slow)
settings.load_profile("default")


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
    return found


@pytest.fixture(scope="module", params=_devices(), ids=lambda device: str(device).rpartition(".")[2])
def device(request):
    """The default device while the tests of a module run; modules ask for it with `usefixtures`."""
    before = mx.default_device()
    mx.set_default_device(request.param)
    yield request.param
    mx.set_default_device(before)
