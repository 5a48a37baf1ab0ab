"""Networks, one file each."""

from __future__ import annotations

from .minkunet import MinkUNet

__all__ = ["MinkUNet"]
