"""Which channels of a model must be pruned together, found by running it once on labels.

Every channel that a layer makes gets a label, a number that the features then carry: a concatenation
puts labels side by side by itself, a residual sum makes the labels of its two sides one (union-find), a
layer that reads channels notes the labels. What no label survives is refused by name. A function of arrays
may still let the labels of one operand through (a maximum, a gate): runs with half of the labels negative
must then find the others where they were.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np
from mlx.nn import Module

from .. import nn
from ..backend.host import view as host_view
from ..coords import CoordinateMapKey
from ..errors import CouplingError, MLXSparseError
from ..nn.conv import NormalizedConv3d, _Conv
from ..tensor import SparseTensor, require_same_key, sequence_like

PER_CHANNEL = (nn.BatchNorm, nn.InstanceNorm)  # parameters a channel, channels apart
MIXING = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.GLU, nn.Softmax, nn.LogSoftmax, nn.Softmin)
LINEAR = (nn.Linear, mlx.nn.Linear)


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
    _read: list[tuple[str, list[int]]] = field(default_factory=list)  # what labels_of found, and where
    _loose: bool = False  # some of it came through functions of arrays

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
        return mx.array([float(self._code_of[label]) for label in labels], mx.float32)

    def labels_of(self, x: Any, where: str) -> list[int]:
        """Labels that the rows of a tensor or array hold; CouplingError if they hold anything else."""
        rows = _rows(x)
        values = rows[0].tolist() if len(rows) else []
        found = [self._codes.get(int(v)) if v == int(v) else None for v in values if np.isfinite(v)]
        if len(found) != rows.shape[1] or None in found or not (rows == rows[:1]).all():
            raise _lost(where)
        labels = [label for label in found if label is not None]
        self._read.append((where, labels))
        self._loose = self._loose or not (isinstance(x, _Wire) and x._exact)
        return labels


class _Signed(Flow):
    """A second run, in which some labels have negative codes: each place must hold what it held in `first`.

    At a place of a positive label nothing may change. A negative one may become anything, as in a ReLU, but
    for another label.
    """

    def __init__(self, first: Flow, negative: np.ndarray):
        super().__init__()
        self._first, self._negative = iter(first._read), negative

    def codes(self, labels: list[int]) -> mx.array:
        return mx.where(mx.array(self._negative[labels]), -1, 1) * super().codes(labels)

    def labels_of(self, x: Any, where: str) -> list[int]:
        place, labels = next(self._first, ("", []))
        rows = _rows(x)
        if place != where or rows.shape[1] != len(labels):
            raise _Diverged
        codes = np.array([self._code_of[label] for label in labels], np.float32)
        other = np.isin(np.abs(rows), list(self._codes)) & (np.abs(rows) != codes)
        if not np.where(self._negative[labels], ~other, rows == codes).all():
            raise _lost(where)
        return labels


class _Diverged(Exception):
    """The model went another way than in the first run."""


def _rows(x: Any) -> np.ndarray:
    rows: np.ndarray = host_view((x.feats if isinstance(x, SparseTensor) else x).astype(mx.float32))
    return rows[: x.num_active] if isinstance(x, SparseTensor) else rows.reshape(-1, rows.shape[-1])


def _lost(where: str) -> CouplingError:
    return CouplingError(
        f"the channels that reach {where} come from an operation that channel pruning does not "
        "follow; it follows layers of mlxsparse.nn, sums of tensors, ops.cat and pointwise functions"
    )


class _Wire(SparseTensor):
    """A tensor whose features are labels; sums unite them."""

    _flow: Flow
    _exact: bool  # its features are what a layer gave, through no function of arrays

    @classmethod
    def of(cls, flow: Flow, key: CoordinateMapKey, row: mx.array, exact: bool = True) -> _Wire:
        feats = mx.broadcast_to(row, (key.capacity, row.shape[-1]))
        made: Any = cls._make(tuple.__iter__(SparseTensor._of(key, feats)), key, key.manager)
        made._flow, made._exact = flow, exact
        wire: _Wire = made
        return wire

    def replace(self, feats: mx.array, *, clean: bool = False) -> SparseTensor:
        return _Wire.of(self._flow, self.key, feats, exact=False)

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


def trace(model: Module, sample: SparseTensor) -> Flow:
    """Run `model` on the sites of `sample` with labels for features; CouplingError where they are lost."""
    if sample.num_active == 0:
        raise MLXSparseError("sample has no site: the model's channels are found by running it on one")
    flow = Flow()
    _follow(model, sample, flow)
    if flow._loose:
        # Bit b of the labels' numbers, and its complement: any two labels have unlike signs both ways round.
        numbers = np.arange(len(flow._parent))
        for bit in range(len(numbers).bit_length()):
            for negative in (0, 1):
                try:
                    _follow(model, sample, _Signed(flow, (numbers >> bit & 1) == negative))
                except CouplingError:
                    raise
                except (_Diverged, ValueError, IndexError):
                    pass  # features choose its sites or its way: this run says nothing
    return flow


def _follow(model: Module, sample: SparseTensor, flow: Flow) -> None:
    inputs = flow.new(sample.num_channels)
    flow.fix(inputs, "the model's input")
    result = _shadow(model, "", flow, {})(_Wire.of(flow, sample.key, flow.codes(inputs)))
    outputs: list[Any] = []
    _gather(result, outputs)
    for out in outputs:
        flow.fix(flow.labels_of(out, "the model's output"), "the model's output")


def _gather(value: Any, found: list[Any]) -> None:
    if isinstance(value, (SparseTensor, mx.array)):
        found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather(item, found)


def _shadow(value: Any, path: str, flow: Flow, memo: dict[int, Any]) -> Any:
    """A copy of the tree of modules in which every layer notes labels instead of computing."""
    if isinstance(value, Module):
        if id(value) not in memo:
            record = _recorder(value, path, flow)
            if record is None:
                record = copied = copy.copy(value)
                copied._training = False
                for name, child in value.items():
                    copied[name] = _shadow(child, f"{path}.{name}" if path else name, flow, memo)
            memo[id(value)] = record
        return memo[id(value)]
    if isinstance(value, dict):
        return {name: _shadow(child, f"{path}.{name}", flow, memo) for name, child in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, SparseTensor):
        made = [_shadow(child, f"{path}.{i}", flow, memo) for i, child in enumerate(value)]
        return sequence_like(value, made)
    return value


def _recorder(module: Module, path: str, flow: Flow) -> Callable[..., Any] | None:
    """What stands for a layer in the run; None for a module that is run as it is."""
    if isinstance(module, (_Conv, *LINEAR)):
        return _Reads(module, path, flow)
    if isinstance(module, PER_CHANNEL) or (isinstance(module, nn.PReLU) and module.weight.size > 1):
        return _Channelwise(module, path, flow, "both")
    if isinstance(module, MIXING) or isinstance(module, nn.SqueezeExcitation):
        return _Channelwise(module, path, flow, "mixes")
    known = type(module).__module__.startswith("mlxsparse.nn") or isinstance(module, mlx.nn.Identity)
    if known and not isinstance(module, nn.Sequential):
        plain = isinstance(module, nn.PReLU) or not module.parameters()
        return _Channelwise(module, path, flow, "passes" if plain else "mixes")
    if not module.leaf_modules() and module.parameters():
        return _Channelwise(module, path, flow, "mixes")
    return None


class _Reads:
    """A convolution or linear layer: notes the labels of its input, makes those of its output."""

    def __init__(self, module: Module, path: str, flow: Flow):
        self.module, self.path, self.flow = module, path, flow
        self.read: list[int] = []
        self.made: list[int] = []

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        flow, module = self.flow, self.module
        labels = flow.labels_of(x, self.path)
        weight, groups = module["weight"], getattr(module, "groups", 1)
        if len(labels) != weight.shape[-1] * groups:
            raise CouplingError(
                f"{self.path} takes {weight.shape[-1] * groups} channels, {len(labels)} reach it: "
                "pass a sample= that fits"
            )
        depthwise = groups > 1 and groups == len(labels) == weight.shape[0]
        if not self.made:
            self.made = flow.new(weight.shape[0])
            flow.uses.append(Use(self.path, module, "both" if depthwise else "out", self.made))
        if depthwise:
            flow.unite(labels, self.made)
        elif groups > 1:
            flow.fix(labels + self.made, f"{self.path} has groups={groups}")
        elif self.read:  # called again: its inputs share what reads them
            flow.unite(self.read, labels)
        else:
            self.read = labels
            flow.uses.append(Use(self.path, module, "in", labels))
        if isinstance(module, NormalizedConv3d):
            flow.fix(labels + self.made, f"{self.path} divides by the sizes of its weights")
        row = flow.codes(self.made)
        if not isinstance(x, SparseTensor):
            return mx.broadcast_to(row, (*x.shape[:-1], len(self.made)))
        key = x.key if isinstance(module, LINEAR) else _slim(module)(_ones(x), *args, **kwargs).key
        return _Wire.of(flow, key, row)


class _Channelwise:
    """A layer whose channel c out is channel c in: with parameters a channel, mixing, or neither."""

    def __init__(self, module: Module, path: str, flow: Flow, kind: str):
        self.module, self.path, self.flow, self.kind = module, path, flow, kind
        self.noted: list[int] = []

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        flow = self.flow
        labels = flow.labels_of(x, self.path)
        if self.kind == "both":
            if self.noted:  # called again: the same parameters serve both inputs
                flow.unite(self.noted, labels)
            else:
                self.noted = labels
                flow.uses.append(Use(self.path, self.module, "both", labels))
        elif self.kind == "mixes":
            flow.fix(labels, f"{self.path} ({type(self.module).__name__}) mixes channels")
            y = _run(self.module, _zeros(x), *args, **kwargs)
            width = y.num_channels if isinstance(y, SparseTensor) else y.shape[-1]
            labels = flow.new(width)
            flow.fix(labels, f"{self.path} ({type(self.module).__name__}) mixes channels")
            return self._give(y, labels)
        if not isinstance(x, SparseTensor):
            return x
        if self.kind == "both":
            return _Wire.of(flow, x.key, flow.codes(labels))
        return self._give(_run(self.module, _zeros(x), *args, **kwargs), labels)

    def _give(self, y: Any, labels: list[int]) -> Any:
        row = self.flow.codes(labels)
        if isinstance(y, SparseTensor):
            return _Wire.of(self.flow, y.key, row)
        return mx.broadcast_to(row, (*y.shape[:-1], len(labels)))


def _run(module: Module, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The layer in evaluation, whatever mode it is in: nothing of it changes."""
    still = copy.copy(module)
    still._training = False
    return still(x, *args, **kwargs)


def _zeros(x: Any) -> Any:
    if isinstance(x, SparseTensor):
        return SparseTensor._of(x.key, mx.zeros(x.feats.shape))
    return mx.zeros(x.shape)


def _ones(x: SparseTensor) -> SparseTensor:
    return SparseTensor._of(x.key, mx.ones((x.capacity, 1)))


def _slim(module: Module) -> Module:
    """The convolution with one channel in and out, which finds the output's sites."""
    slim = copy.copy(module)
    for name in [n for n in slim if n == "bias" or n.endswith("_keep")]:
        del slim[name]
    slim["weight"] = mx.zeros((1, *module["weight"].shape[1:-1], 1))
    slim.groups = 1
    return slim


def example(model: Module, sites: int = 1) -> SparseTensor:
    """A tensor for `model` with the channels that its first layer takes: random features on random sites."""
    for _, module in model.named_modules()[::-1]:
        if isinstance(module, (_Conv, *LINEAR)):
            channels = module["weight"].shape[-1] * getattr(module, "groups", 1)
            break
    else:
        raise MLXSparseError("the model has no convolution or linear layer: pass a sample= that it takes")
    rng = np.random.default_rng(0)
    side = 2 if sites == 1 else 12
    xyz = rng.permutation(side**3)[:sites]
    coords = np.stack([np.zeros_like(xyz), xyz // side**2, xyz // side % side, xyz % side], axis=1)
    feats = rng.standard_normal((sites, channels)).astype(np.float32)
    return SparseTensor(coords.astype(np.int32), mx.array(feats))
