"""Which channels of a model must be pruned together, found by running it once on labels.

Every channel that a layer makes gets a label, a number that the features then carry: a concatenation
puts labels side by side by itself, a residual sum makes the labels of its two sides one (union-find), a
layer that reads channels notes the labels. What no label survives is probed (probe.py), and refused by name
if a channel then comes from none or several. A function of arrays may still let the labels of one operand
through (a maximum, a gate): runs with values of several scales and both signs must then find each channel to
follow from one label alone. What is to be cut is tried first: without these labels, the run must find all
others (`runs_without`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn
import numpy as np
from mlx.nn import Module
from mlx.utils import tree_flatten

from .. import nn
from ..coords import CoordinateMapKey
from ..errors import CouplingError, DTypeError, MLXSparseError
from ..nn.conv import NormalizedConv3d, _Conv
from ..nn.masked import plainly_called
from ..tensor import SparseTensor, sequence_like
from .labels import Diverged, Flow, Lost, Narrow, Use, Wire
from .probe import at_all_scales, probed

PER_CHANNEL = (nn.BatchNorm, nn.InstanceNorm)  # parameters a channel, channels apart
MIXING = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.GLU, nn.Softmax, nn.LogSoftmax, nn.Softmin)
LINEAR = (nn.Linear, mlx.nn.Linear)
STORED = (nn.BlockSparseConv3d, nn.BlockSparseLinear)
Sample: TypeAlias = "SparseTensor | mx.array | tuple[Any, ...]"  # one argument of a model, or all of them
SOME = 4  # runs with other values that are repeated without what is cut
KNOWN = (_Conv, *LINEAR, *PER_CHANNEL, *MIXING, nn.SqueezeExcitation, nn.PReLU)


def arguments(sample: Sample) -> tuple[Any, ...]:
    """What the model is called with; DTypeError unless a tensor, an array, or a tuple that holds one."""
    args = sample if isinstance(sample, tuple) and not isinstance(sample, SparseTensor) else (sample,)
    if not any(isinstance(a, (SparseTensor, mx.array)) for a in args):
        kind = type(sample).__name__
        raise DTypeError(f"sample must be a SparseTensor, an MLX array, or a tuple of arguments, got {kind}")
    return args


def trace(model: Module, sample: Sample) -> Flow:
    """Run `model` on the sites of `sample` with labels for features; CouplingError where they are lost."""
    if any(a.num_active == 0 if isinstance(a, SparseTensor) else a.size == 0
           for a in arguments(sample) if isinstance(a, (SparseTensor, mx.array))):  # fmt: skip
        raise MLXSparseError("sample has no site or row: the model's channels are found by running it on one")
    flow, runs = Flow(), dict[Any, Any]()

    def follow(flow: Flow) -> None:
        flow._runs = runs
        _follow(model, sample, flow)

    try:
        try:
            follow(flow)
        except Lost:
            flow = probed(follow)
    except CouplingError:
        raise
    except Exception as error:  # whatever the model's own code does with what stands for its layers
        raise CouplingError(
            f"the model does not run on labels in place of features, which finds its channels: {error!r}"
        ) from error
    if flow._loose:
        flow._scaled = at_all_scales(follow, flow)[-SOME:]
    return flow


def runs_without(model: Module, sample: Sample, flow: Flow, gone: set[int]) -> str | None:
    """Why the model of `flow` cannot do without the labels `gone`; None if it can.

    Its own code may know channels by their places, as in a slice, or have arrays of a value a channel.
    """
    for first in (flow, *flow._scaled):
        narrow = Narrow(first, gone)
        narrow._runs = flow._runs
        try:
            _follow(model, sample, narrow)
        except Diverged:
            pass
        except CouplingError as error:
            return str(error)
        except Exception as error:
            return f"what comes after {narrow.last or 'the input'} fails: {error}"
    return None


def _follow(model: Module, sample: Sample, flow: Flow) -> None:
    result = _shadow(model, "", flow, {})(*[_labelled(a, flow) for a in arguments(sample)])
    outputs: list[Any] = []
    _gather(result, outputs)
    for out in outputs:
        flow.fix(flow.labels_of(out, "the model's output"), "the model's output")


def _labelled(x: Any, flow: Flow) -> Any:
    """An argument with labels for features; what has none (numbers of tokens, a mask) as it is."""
    if not isinstance(x, SparseTensor) and not (isinstance(x, mx.array) and x.ndim and _is_real(x)):
        return x
    labels = flow.new(x.num_channels if isinstance(x, SparseTensor) else x.shape[-1])
    flow.fix(labels, "the model's input")
    return _give(flow, x, labels)


def _is_real(x: mx.array) -> bool:
    return mx.issubdtype(x.dtype, mx.floating)


def _gather(value: Any, found: list[Any]) -> None:
    if isinstance(value, (SparseTensor, mx.array)):
        feats = value.feats if isinstance(value, SparseTensor) else value
        if feats.ndim and _is_real(feats):  # no losses, coordinates, classes
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
    if isinstance(module, KNOWN) and not plainly_called(module):
        return _Mixes(module, path, flow, "has a __call__ of its own, which is not followed")
    if isinstance(module, (_Conv, *LINEAR)):
        return _Reads(module, path, flow)
    if isinstance(module, PER_CHANNEL) or (isinstance(module, nn.PReLU) and module.weight.size > 1):
        return _Channelwise(module, path, flow, "both")
    if isinstance(module, MIXING) or isinstance(module, nn.SqueezeExcitation):
        return _Mixes(module, path, flow)
    known = type(module).__module__.startswith("mlxsparse.nn") or isinstance(module, mlx.nn.Identity)
    if known and not isinstance(module, (nn.Sequential, nn.SparseTransformerBlock)):  # of layers that are met
        plain = isinstance(module, nn.PReLU) or not module.parameters()
        return _Channelwise(module, path, flow, "passes") if plain else _Mixes(module, path, flow)
    if not module.leaf_modules() and module.parameters():
        return _Mixes(module, path, flow)
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
            return mx.broadcast_to(row, (*x.shape[:-1], row.shape[-1]))
        same = isinstance(module, (*LINEAR, nn.SubmConv3d))  # sites
        if same:
            return Wire.of(flow, x.key, row)
        made = _run(flow, module, lambda: _slim(module)(_ones(x), *args, **kwargs), x, *args, **kwargs)
        return Wire.of(flow, made.key, row)


class _Channelwise:
    """A layer whose channel c out is channel c in: with parameters a channel ("both") or none ("passes")."""

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
        if not isinstance(x, SparseTensor):
            return x
        if self.kind == "both":
            return Wire.of(flow, x.key, flow.codes(labels))
        return _give(flow, _zeros_of(flow, self.module, x, *args, **kwargs), labels)


class _Mixes:
    """A layer whose channels stay, in and out: it mixes them, or what it does with them is not known."""

    def __init__(self, module: Module, path: str, flow: Flow, why: str = "mixes channels"):
        self.module, self.path, self.flow = module, path, flow
        self.reason = f"{path} ({type(module).__name__}) {why}"
        # Other arguments of our layers are sites only, but for a context.
        ours = type(module).__module__.startswith("mlxsparse.nn")
        self.others = not ours or isinstance(module, nn.SparseAttention)

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        flow = self.flow
        flow.fix(flow.labels_of(x, self.path), self.reason)
        for other in [*args, *kwargs.values()] if self.others else []:
            if isinstance(other, Wire):
                flow.fix(flow.labels_of(other, self.path), self.reason)
        y = _zeros_of(flow, self.module, x, *args, **kwargs)
        if not isinstance(y, (SparseTensor, mx.array)):
            raise CouplingError(f"{self.reason}, and gives a {type(y).__name__}, which is not followed")
        labels = flow.new(y.num_channels if isinstance(y, SparseTensor) else y.shape[-1])
        flow.fix(labels, self.reason)
        return _give(flow, y, labels)


def _give(flow: Flow, y: Any, labels: list[int]) -> Any:
    row = flow.codes(labels)
    if isinstance(y, SparseTensor):
        return Wire.of(flow, y.key, row)
    return mx.broadcast_to(row, (*y.shape[:-1], row.shape[-1]))


def _zeros_of(flow: Flow, module: Module, x: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What the layer gives for zeros, in evaluation whatever mode it is in: nothing of it changes."""

    def call() -> Any:
        still = (copy.deepcopy(module) if module.children() else copy.copy(module)).eval()
        dtype = _dtype(module)
        others = [_zeros(a, dtype) if isinstance(a, Wire) else a for a in args]
        named = {k: _zeros(a, dtype) if isinstance(a, Wire) else a for k, a in kwargs.items()}
        return still(_zeros(x, dtype), *others, **named)

    return _run(flow, module, call, x, *args, **kwargs)


def _run(flow: Flow, module: Module, call: Callable[[], Any], x: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Of what `call` gives, the sites or the shape, which are those of an earlier run where it had such
    arguments: a trace is some hundred runs."""
    told: list[Any] = [id(module), x.shape if isinstance(x, mx.array) else None]
    for a in (*([] if isinstance(x, mx.array) else [x]), *args, *kwargs, *kwargs.values()):
        if isinstance(a, SparseTensor):
            told += [a.key, a.num_channels]
        elif a is None or isinstance(a, (str, int, float, CoordinateMapKey)):
            told.append(a)
        else:
            return call()
    known = (len(args), *told)
    if known not in flow._runs:
        y = call()
        if isinstance(y, SparseTensor):
            y = SparseTensor._of(y.key, mx.broadcast_to(mx.zeros((), y.dtype), y.feats.shape))
        elif isinstance(y, mx.array):
            y = mx.broadcast_to(mx.zeros((), y.dtype), y.shape)
        flow._runs[known] = y
    return flow._runs[known]


def _zeros(x: Any, dtype: mx.Dtype) -> Any:
    if isinstance(x, SparseTensor):
        return SparseTensor._of(x.key, mx.zeros(x.feats.shape, dtype))
    return mx.zeros(x.shape, dtype)


def _dtype(module: Module) -> mx.Dtype:
    """Type of the first array of real numbers in a module, for features that it takes."""
    arrays: Any = tree_flatten(module.parameters())
    return next((a.dtype for _, a in arrays if _is_real(a)), mx.float32)


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


def example(model: Module, sites: int = 1) -> Any:
    """A tensor for `model` with the channels that its first layer takes: random features on random sites.

    An array (sites, channels) for a model of MLX's own layers, unless its own code takes no array.
    """
    for _, module in model.named_modules()[::-1]:
        if isinstance(module, (_Conv, *LINEAR, *STORED)):
            channels = _width(module)
            dtype = _dtype(module)
            break
    else:
        raise MLXSparseError("the model has no convolution or linear layer: pass a sample= that it takes")
    rng = np.random.default_rng(0)
    side = 2 if sites == 1 else 12
    xyz = rng.permutation(side**3)[:sites]
    coords = np.stack([np.zeros_like(xyz), xyz // side**2, xyz // side % side, xyz % side], axis=1)
    feats = rng.standard_normal((sites, channels)).astype(np.float32)
    rows = mx.array(feats).astype(dtype)
    if not any(_is_sparse(layer) for layer in model.modules()) and _takes(model, rows):
        return rows
    return SparseTensor(coords.astype(np.int32), rows)


def _width(layer: Module) -> int:
    """Input channels."""
    if isinstance(layer, nn.BlockSparseLinear):
        return layer.layout.shape[0]
    if isinstance(layer, nn.BlockSparseConv3d):
        return layer._channels[1]
    width: int = layer["weight"].shape[-1] * getattr(layer, "groups", 1)
    return width


def _is_sparse(layer: Module) -> bool:
    """Whether it takes sparse tensors alone, as all of mlxsparse.nn but for Sequential does."""
    ours = any(kind.__module__.startswith("mlxsparse.nn.") for kind in type(layer).__mro__)
    return ours and not isinstance(layer, nn.Sequential)


def _takes(model: Module, rows: mx.array) -> bool:
    """Whether a model without sparse layers takes an array: it may read the features of a tensor itself."""
    try:
        _follow(model, rows, Flow())
    except CouplingError:
        pass  # it runs, to where its channels cannot be followed
    except Exception:  # of the model's own code
        return False
    return True
