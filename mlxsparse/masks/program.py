"""Connections between regions: which region's queries see which region's keys, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import DTypeError, MLXSparseError
from .spec import MaskSpec

WRITE_MODES = ("add", "replace")


@dataclass(frozen=True)
class ConnectionProgram:
    """How a connection works.

    Args:
        operator: "attend".
        trigger: a name; the connection counts only where it is among the `fired` ones. None: always.
        write_mode: "add" joins the connection's keys with those of others for the same queries, "replace"
            takes the place of what earlier connections gave them.
        mask_spec: which pairs of positions are connected.

    MLXSparseError for another operator or write mode, DTypeError for what is no MaskSpec.
    """

    operator: str = "attend"
    trigger: str | None = None
    write_mode: str = "add"
    mask_spec: MaskSpec = field(default_factory=MaskSpec)

    def __post_init__(self) -> None:
        if self.operator != "attend":
            raise MLXSparseError(f'operator must be "attend", got {self.operator!r}')
        if self.write_mode not in WRITE_MODES:
            raise MLXSparseError(f"write_mode must be one of {WRITE_MODES}, got {self.write_mode!r}")
        if not isinstance(self.mask_spec, MaskSpec):
            raise DTypeError(f"mask_spec is a {type(self.mask_spec).__name__}, wanted a MaskSpec")


@dataclass(frozen=True)
class Connection:
    """Queries of region `src` see keys of region `dst`, as `program` says (a MaskSpec stands for one)."""

    src: str
    dst: str
    program: Any = field(default_factory=ConnectionProgram)

    def __post_init__(self) -> None:
        program = self.program
        if isinstance(program, MaskSpec):
            program = ConnectionProgram(mask_spec=program)
        if not isinstance(program, ConnectionProgram):
            raise DTypeError(f"program is a {type(program).__name__}, wanted a ConnectionProgram or MaskSpec")
        object.__setattr__(self, "program", program)


def connections(program: Any, regions: Iterable[str], fired: Collection[str] = ()) -> tuple[Connection, ...]:
    """The connections that count; MLXSparseError for a region that there is not.

    program: a Connection, a sequence of them, or a mapping (src, dst) -> ConnectionProgram or MaskSpec.
    fired: names; DTypeError for one text, in which parts of it would count as fired.
    """
    if isinstance(fired, str):
        raise DTypeError(f"fired must be a collection of triggers, as {{{fired!r}}}, got {fired!r}")
    if isinstance(program, Connection):
        program = [program]
    if isinstance(program, Mapping):
        for pair in program:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DTypeError(f"program has the key {pair!r}, wanted (src, dst)")
        program = [Connection(src, dst, made) for (src, dst), made in program.items()]
    if not isinstance(program, Iterable):
        raise DTypeError(f"program is a {type(program).__name__}, wanted Connections")
    found, known = tuple(program), set(regions)
    for item in found:
        if not isinstance(item, Connection):
            raise DTypeError(f"program holds a {type(item).__name__}, wanted Connections")
        for name in (item.src, item.dst):
            if name not in known:
                raise MLXSparseError(
                    f"connection {item.src!r} -> {item.dst!r}: there is no region {name!r}; "
                    f"there are {sorted(known)}"
                )
    return tuple(c for c in found if c.program.trigger is None or c.program.trigger in fired)


def replace_earlier(queries: list[np.ndarray], items: Iterable[Connection], owner: list[int]) -> None:
    """Where a later connection of mode "replace" has a query, earlier ones lose it (label -1), in place.

    queries: (n,) labels of each relation; owner: number of the connection of each.
    """
    for number, item in enumerate(items):
        if item.program.write_mode != "replace":
            continue
        mine = [labels >= 0 for labels, at in zip(queries, owner) if at == number]
        for labels, at in zip(queries, owner):
            if at < number and mine:
                labels[np.logical_or.reduce(mine)] = -1
