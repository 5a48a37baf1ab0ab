"""Labels that stand for channels in a run of a model: numbers that its features carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from ..backend.host import view as host_view
from ..coords import CoordinateMapKey
from ..errors import CouplingError
from ..tensor import SparseTensor, require_same_key


@dataclass
class Use:
    """One side of a layer that carries channels: `labels` of its outputs ("out"), inputs ("in") or "both"."""

    path: str
    module: Module
    side: str
    labels: list[int]


@dataclass
class Flow:
    """What a run on labels found; `fixed` says of a label's root why it must stay."""

    uses: list[Use] = field(default_factory=list)
    fixed: dict[int, str] = field(default_factory=dict)
    _parent: list[int] = field(default_factory=list)
    _codes: dict[int, int] = field(default_factory=dict)  # code -> label
    _code_of: list[int] = field(default_factory=list)
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    # What labels_of found, where, and in which values.
    _read: list[tuple[str, list[int], np.ndarray]] = field(default_factory=list)
    _loose: bool = False  # some of it came through functions of arrays
    _near: tuple[float, float] = 0.0, 0.0  # how far, of it and in itself, fewer channels may be from it
    _scale: float = 1.0  # of the codes
    _scaled: list[Flow] = field(default_factory=list)  # runs with values of several scales (probe.py)
    _runs: dict[Any, Any] = field(default_factory=dict)  # what layers gave in runs of one trace (flow.py)

    def root(self, label: int) -> int:
        while self._parent[label] != label:
            self._parent[label] = self._parent[self._parent[label]]
            label = self._parent[label]
        return label

    def new(self, count: int) -> list[int]:
        """Fresh labels. Their codes are scattered, so that a sum of two is hardly ever a third."""
        labels: list[int] = []
        while len(labels) < count:
            code = int(self._random.integers(1 << 16, 1 << 23))
            if code not in self._codes:
                labels.append(len(self._parent))
                self._codes[code] = labels[-1]
                self._code_of.append(code)
                self._parent.append(labels[-1])
        return labels

    def all_of(self, roots: set[int]) -> set[int]:
        """The labels that have these roots."""
        return {label for label in range(len(self._parent)) if self.root(label) in roots}

    def unite(self, a: list[int], b: list[int]) -> None:
        for i, j in zip(a, b):
            one, other = self.root(i), self.root(j)
            self._parent[other] = one
            if other in self.fixed:
                self.fixed.setdefault(one, self.fixed[other])

    def fix(self, labels: list[int], reason: str) -> None:
        for label in labels:
            self.fixed.setdefault(self.root(label), reason)

    def codes(self, labels: list[int]) -> mx.array:
        return mx.array([self._scale * self._code_of[label] for label in labels], mx.float32)

    def labels_of(self, x: Any, where: str) -> list[int]:
        """Labels that the rows of a tensor or array hold; CouplingError if they hold anything else."""
        rows = rows_of(x)
        values = rows[0].tolist() if len(rows) else []
        found = [self._codes.get(int(v)) if v == int(v) else None for v in values if np.isfinite(v)]
        if len(found) != rows.shape[1] or None in found or not alike(rows):
            raise lost(where)
        labels = [label for label in found if label is not None]
        self._read.append((where, labels, rows[0].copy()))
        self._loose = self._loose or not (isinstance(x, Wire) and x._exact)
        return labels


class Known(Flow):
    """A run in which each place is known to hold some labels, whatever the values are (probe.py)."""

    def __init__(self, reads: list[tuple[str, list[int]]]):
        super().__init__()
        self._reads, self._near, self._loose = iter(reads), (1e-5, 0.0), True
        self._scale = 2.0**-23  # so that no function makes all of them one value

    def labels_of(self, x: Any, where: str) -> list[int]:
        place, labels = next(self._reads, ("", []))
        rows = rows_of(x)
        if place != where or rows.shape[1] != len(labels):
            raise lost(where)
        self._read.append((where, labels, rows[0].copy()))
        return labels


class Narrow(Flow):
    """A run without the labels `gone`: each place must hold what it held in `first`, but for those."""

    def __init__(self, first: Flow, gone: set[int]):
        super().__init__()
        self._flow, self._first, self._gone = first, iter(first._read), gone
        self._near = first._near  # a function may round by a channel's place
        self.last = ""  # the place that was come to last

    def codes(self, labels: list[int]) -> mx.array:
        return self._flow.codes([label for label in labels if label not in self._gone])

    def labels_of(self, x: Any, where: str) -> list[int]:
        place, labels, values = next(self._first, ("", [], np.zeros(0)))
        if place != where:
            raise Diverged
        wanted = values[[label not in self._gone for label in labels]]
        rows = rows_of(x)
        if rows.shape[1] != len(wanted) or not np.allclose(rows, wanted, *self._near, equal_nan=True):
            raise CouplingError(f"{where} then gets other channels than those that stay")
        self.last = where
        return labels


class Diverged(Exception):
    """The model went another way than in the first run."""


def rows_of(x: Any) -> np.ndarray:
    rows: np.ndarray = host_view((x.feats if isinstance(x, SparseTensor) else x).astype(mx.float32))
    return rows[: x.num_active] if isinstance(x, SparseTensor) else rows.reshape(-1, rows.shape[-1])


def alike(rows: np.ndarray) -> bool:
    """Whether all rows are the same; those that a layer gave lie at one place."""
    if rows.strides[0] == 0:
        return True
    return bool(np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape), equal_nan=True))


class Lost(CouplingError):
    """Features are of no label that is known."""


def lost(where: str) -> Lost:
    return Lost(
        f"the channels that reach {where} come from an operation that channel pruning does not "
        "follow; it follows layers of mlxsparse.nn, sums of tensors (+, ops.add), ops.cat and functions "
        "that make a channel of one channel. A part of the model can be pruned and compressed by itself"
    )


class Wire(SparseTensor):
    """A tensor whose features are labels; sums unite them."""

    _flow: Flow
    _exact: bool  # its features are what a layer gave, through no function of arrays

    @classmethod
    def of(cls, flow: Flow, key: CoordinateMapKey, row: mx.array, exact: bool = True) -> Wire:
        feats = mx.broadcast_to(row, (key.capacity, row.shape[-1]))
        made: Any = cls._make(tuple.__iter__(SparseTensor._of(key, feats)), key, key.manager)
        made._flow, made._exact = flow, exact
        wire: Wire = made
        return wire

    def replace(self, feats: mx.array, *, clean: bool = False) -> SparseTensor:
        return Wire.of(self._flow, self.key, feats, exact=False)

    def astype(self, dtype: mx.Dtype) -> SparseTensor:
        return self

    def _join(self, other: Any) -> SparseTensor:
        if isinstance(other, SparseTensor):
            require_same_key(self, other, "+")
            mine, its = (self._flow.labels_of(t, "a sum of tensors") for t in (self, other))
            if len(mine) != len(its):
                self._flow.fix(mine + its, "a sum broadcasts one channel over others")
                return self if len(mine) >= len(its) else other
            self._flow.unite(mine, its)
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _join

    def __neg__(self) -> SparseTensor:
        return self
