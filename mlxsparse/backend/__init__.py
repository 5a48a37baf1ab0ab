"""How an operator runs: device choice, host execution, automatic differentiation, tracing."""

from __future__ import annotations

from .device import executor, info, trace

__all__ = ["executor", "info", "trace"]
