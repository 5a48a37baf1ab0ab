"""numba's decorators as the loops use them; imported only where numba is installed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numba

_told: list[str] = []


def _compiled(decorator: Callable[..., Any], *signature: str, cache: bool = False,
              **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`decorator` of numba's, whose `cache` is a wish: numba raises where it finds no folder to write in."""

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return decorator(*signature, cache=cache, **options)(function)
        except (RuntimeError, OSError):
            if not cache:
                raise
        if not _told:
            _told.append(function.__name__)
            warnings.warn("numba finds no folder to keep compiled loops in and compiles them at every start; "
                          "set NUMBA_CACHE_DIR to a folder that can be written to", stacklevel=2)
        return decorator(*signature, **options)(function)

    return compiled


njit = functools.partial(_compiled, numba.njit)
cfunc = functools.partial(_compiled, numba.cfunc)
