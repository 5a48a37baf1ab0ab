"""Which path a convolution takes on a GPU: forced, measured on this machine, or the default.

Paths: "tiles", the kernel over rows ordered by taps; "rows", the kernel that needs no order; "gather", MLX's
own gather and matrix product; "dense", MLX's own convolution on a grid, for sets that fill enough of their
bounds. ``MLXSPARSE_PATH`` forces one, `forced` does so in code, and ``mlxsparse tune --device gpu`` measures
them and writes a table that is read from then on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx

from ..errors import CheckpointError, MLXSparseError
from ..files import atomic_write
from .device import cache_folder, trace, tracing
from .host import setting

PATHS = ("tiles", "rows", "gather", "dense")
VERSION = 2
_forced: str | None = None
_forgotten = 0  # times


class Case(NamedTuple):
    """What the choice depends on."""

    dtype: str  # "float32", "float16" or "bfloat16"
    rows: int  # of the output
    taps: int
    channels_in: int
    channels_out: int
    filled: int = 1  # percent of the cells of their bounds that are rows, 1 where that is not known

    def distance(self, other: Case) -> float:
        """Between two cases of one dtype, in octaves."""
        return sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in zip(self[1:], other[1:]))


@contextlib.contextmanager
def forced(path: str) -> Iterator[None]:
    """Convolutions inside take this path; MLXSparseError if a call cannot."""
    global _forced
    before, _forced = _forced, _checked(path, "forced")
    try:
        yield
    finally:
        _forced = before


def _checked(path: str, source: str) -> str:
    if path not in PATHS:
        raise MLXSparseError(f"{source}: the path of a convolution must be one of {PATHS}, got {path!r}")
    return path


def choose(case: Case, possible: tuple[str, ...]) -> str:
    """Path for a call; `possible` names those that can run it, the default first."""
    wanted, device = state()[0], device_name()
    if not wanted and not _entries(device, *_place()) and not tracing():  # rows differ from cloud to cloud
        return possible[0]
    return _choice(case, possible, wanted, device)


def state() -> tuple[str, int]:
    """What a choice depends on besides its case, as it is now."""
    return _forced or (setting(b"MLXSPARSE_PATH") or b"").decode(), _forgotten


@functools.lru_cache(maxsize=512)
def _choice(case: Case, possible: tuple[str, ...], wanted: str, device: str) -> str:
    if wanted:
        if _checked(wanted, "MLXSPARSE_PATH") not in possible:
            raise MLXSparseError(
                f"the path {wanted!r} was forced, and this convolution ({case}) can only take {possible}: "
                "groups take 'rows' alone, float32 on CUDA or an M5 takes 'gather' and 'dense' "
                "with MLXSPARSE_FP32=tf32 alone, and 'dense' takes sets that fill a sixteenth of known "
                "bounds, forwards"
            )
        found, why = wanted, "forced"
    else:
        times = {path: ms for path, ms in _nearest(case, device).items() if path in possible}
        found, why = possible[0], "default"
        if times:
            found, why = min(times, key=lambda path: times[path]), "measured"
    trace(
        f"convolution path {found} ({why}): {case.dtype} {case.channels_in} -> {case.channels_out} channels, "
        f"{case.taps} taps, {case.rows} rows",
        once=True,
    )
    return found


# ---------------------------------------------------------------- the table


def table_path() -> pathlib.Path:
    """Where the table is: MLXSPARSE_TUNING, else tuning.json in the user's cache folder of mlxsparse."""
    named = os.environ.get("MLXSPARSE_TUNING", "")
    return pathlib.Path(named) if named else cache_folder() / "tuning.json"


@functools.cache
def device_name() -> str:
    """Name of the GPU, which a table is for."""
    info = getattr(mx, "device_info", None)
    return str(info().get("device_name", "")) if info else str(mx.default_device())


def write(results: list[tuple[Case, dict[str, float]]], path: pathlib.Path) -> None:
    """Write milliseconds of each path by case, for this machine's GPU; CheckpointError if it cannot."""
    entries = [{"case": list(case), "ms": times} for case, times in results]
    content = {"version": VERSION, "device": device_name(), "entries": entries}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CheckpointError(f"cannot write {str(path)!r}: {error}") from error
    with atomic_write(path, CheckpointError) as stream:
        stream.write((json.dumps(content, indent=1) + "\n").encode())
    forget()


def _place() -> tuple[bytes | None, bytes | None]:
    """What `table_path` follows from, which takes as long as a launch."""
    return setting(b"MLXSPARSE_TUNING"), setting(b"XDG_CACHE_HOME")


@functools.lru_cache(maxsize=4)
def _entries(device: str, *_: bytes | None) -> tuple[tuple[Case, dict[str, float]], ...]:
    """Entries of the table, none where there is no table or it is for another GPU or version."""
    path = table_path()
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"cannot read the tuning table {str(path)!r}: {error}; delete it or run `mlxsparse tune` again"
        ) from error
    try:
        if (content["version"], content["device"]) != (VERSION, device):
            trace(f"tuning table {path} is for {content['device']}, not for {device}: not used", once=True)
            return ()
        return tuple(_entry(entry) for entry in content["entries"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the tuning table {str(path)!r} is malformed ({error!r}): delete it or run `mlxsparse tune`"
        ) from error


def _entry(entry: Any) -> tuple[Case, dict[str, float]]:
    case, times = Case(*entry["case"]), dict(entry["ms"])
    if not isinstance(case.dtype, str) or any(type(n) is not int or not 0 <= n < 2**63 for n in case[1:]):
        raise ValueError(f"{list(case)} is no case: a type and whole numbers are needed")
    # No Python error and no NaN in a comparison later.
    if any(type(ms) not in (int, float) or not 0 <= ms < math.inf for ms in times.values()):
        raise ValueError(f"{times} are no milliseconds")
    return case, times


def _nearest(case: Case, device: str) -> dict[str, float]:
    """Times of the case of the table that is nearest, if there is one."""
    entries = [e for e in _entries(device, *_place()) if e[0].dtype == case.dtype]
    return min(entries, key=lambda entry: entry[0].distance(case))[1] if entries else {}


def forget() -> None:
    """Read the table again at the next call."""
    global _forgotten
    _forgotten += 1
    _entries.cache_clear()
    _choice.cache_clear()
