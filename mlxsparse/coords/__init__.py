"""What a coordinate set is: keys, kernel geometry, kernel maps and the manager that caches them."""

from __future__ import annotations

from .geometry import Kernel
from .kernel_map import KernelMap
from .keys import CoordinateMapKey
from .manager import CoordinateManager, default_manager

__all__ = ["CoordinateManager", "CoordinateMapKey", "Kernel", "KernelMap", "default_manager"]
