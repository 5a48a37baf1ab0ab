"""compress: what masks or zeros have pruned is taken out, and the model is smaller and faster.

Channels that nothing reads are cut out of every array that has them; taps that are 0 are dropped from the
kernel and its map; an optimizer's state goes through the same gather. Nothing is written before all of it
is known to fit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from .. import nn
from ..backend.host import view as host_view
from ..errors import CouplingError, MLXSparseError
from ..nn.conv import NormalizedConv3d, _Conv
from ..tensor import SparseTensor, sequence_like
from .flow import STORED, Sample, _dtype, arguments, example, trace
from .masking import SUFFIX, drop_idle_masks, effective, mask_names, set_mask
from .pack import Packing, keep_blocks, live_blocks, packed, packing_of
from .param import ParamRef
from .rebuild import CHANNEL_ARRAYS, refit, replace
from .state import Gather, cut_state
from .structure import ChannelGroup, _layers, check_block, groups_of, require_runs


@dataclass
class Cut:
    """What stays of a layer: places on its output and input axis, taps, blocks; None for all.

    A layer with several paths has one, held by the first of them.
    """

    out: np.ndarray | None = None
    into: np.ndarray | None = None
    taps: tuple[int, ...] | None = None
    packing: Packing | None = None
    blocks: np.ndarray | None = None  # of a layer that is block-sparse already: places among those it stores

    def gather(self, module: Module, name: str) -> Gather:
        """Function from an array like the layer's `name` to what stays of it."""

        def apply(a: mx.array) -> mx.array:
            if self.taps is not None and name == "weight":
                a = a.reshape(a.shape[0], -1, a.shape[-1])[:, mx.array(self.taps, mx.int32)]
            if self.out is not None and name in CHANNEL_ARRAYS:
                a = a[mx.array(self.out, mx.int32)]
            if self.into is not None and name == "weight":
                a = a[..., mx.array(self.into, mx.int32)]
            if self.packing is not None and name == "weight":
                a = self.packing.gather(a)
            if self.blocks is not None and name == "weight":
                a = a[mx.array(self.blocks, mx.int32)]
            return a

        return apply


def compress(
    model: Module,
    *,
    optimizer: Any = None,
    sample: Sample | None = None,
    block: Sequence[int] | None = None,
    check: bool = True,
    tolerance: float = 1e-4,
) -> Module:
    """A smaller copy of `model` without the channels, taps and blocks that are masked (`Pruner`) or 0.

    A channel goes where every layer that reads it has 0 for it, from all that makes and scales it too;
    a tap goes where its weights are 0. At least one of each stays. Layers that were pruned by blocks become
    BlockSparseConv3d and BlockSparseLinear, which store the other blocks only; layers that are such already
    store fewer then. What is masked and cannot be cut out (2:4, blocks of layers that stay dense) stays
    masked. `model` is not changed.

    optimizer: its state (momentum and the like) is cut the same way, in place, after everything else
        succeeded; for the state of the whole parameters, CouplingError where it has another shape.
    sample: a tensor or array that the model takes, or a tuple of its arguments; default random sites, or an
        array (200, channels), with the channels of its first layer.
    block: (output, input) channels of blocks to look for, in layers that were not pruned by blocks too.
    check: run both on the sample in evaluation; CouplingError if the model does not take it, MLXSparseError
        if they differ by more than `tolerance` (for half precision at least 4 of its last places) of the
        largest value.

    Channels that come from operations that are not followed stay, with all else that is compressed.
    """
    masked = [m for _, m in model.named_modules() if mask_names(m)]
    tensor = example(model, 200) if sample is None else sample
    cuts = _cuts(model, tensor, None if block is None else check_block(block))
    state = None if optimizer is None else cut_state(optimizer.state, model, _gathers(model, cuts))
    small = _copied(model, {})
    by_path = dict(small.named_modules())
    for path, cut in cuts.items():
        _apply(by_path[path], cut)
    for module in by_path.values():
        drop_idle_masks(module)
    for path, cut in cuts.items():
        if cut.packing is not None:
            module = by_path[path]
            _pack(small, [name for name, other in by_path.items() if other is module], module, cut)
    mx.eval(small.parameters())
    if check:
        _compare(model, small, tensor, tolerance)
    if not cuts and not masked:
        raise CouplingError("nothing to compress: no mask, and no channel or tap of zeros; attach a Pruner")
    if optimizer is not None:
        optimizer.state = state
    return small


# ---------------------------------------------------------------- what goes


def _cuts(model: Module, sample: Sample, block: tuple[int, int] | None) -> dict[str, Cut]:
    layers = _layers(model)
    nonzero = {path: _nonzero(effective(m, "weight")) for path, m in layers}
    names = _first_paths(model)
    cuts: dict[str, Cut] = {}
    for group, dead in _dead_channels(model, sample, nonzero, names):
        for use, first, step in group.parts:
            cut = cuts.setdefault(names[id(use.module)], Cut())
            if use.side == "in":
                cut.into = _without(cut.into, nonzero[names[id(use.module)]].shape[-1], first + step * dead)
            else:
                cut.out = _without(cut.out, len(use.labels), first + step * dead)
    for path, module in layers:
        weight = nonzero[path]
        if not isinstance(module, _Conv) or isinstance(module, NormalizedConv3d):
            continue
        co, ci = weight.shape[0], weight.shape[-1]
        live: Any = weight.reshape(co, -1, ci).any(axis=(0, 2))
        if live.all() or len(live) == 1:
            continue
        kept = np.flatnonzero(live) if live.any() else np.array([len(live) // 2])
        cuts.setdefault(path, Cut()).taps = tuple(kept.tolist())
    # Layers whose weight says a layer around them how many channels it takes.
    around = (nn.SqueezeExcitation, nn.SparseAttention)
    closed = {id(m[name]) for _, m in model.named_modules() if isinstance(m, around)
              for name in ("squeeze", "kv") if name in m}  # fmt: skip
    for path, module in layers:
        found = getattr(module, "_block", None) if block is None else block
        # A model that is one layer has no place to put another in.
        if found is not None and path and id(module) not in closed:
            _find_blocks(module, cuts.get(path, Cut()), nonzero[path], found, cuts, path)
    for path, module in _layers(model, STORED):
        if isinstance(module, STORED):
            alive = live_blocks(module, _nonzero(effective(module, "weight")))
            if len(alive) > 1 and not alive.all():
                cuts[path] = Cut(blocks=np.flatnonzero(alive) if alive.any() else np.zeros(1, int))
    return cuts


def _dead_channels(
    model: Module, sample: Sample, nonzero: dict[str, np.ndarray], names: dict[int, str]
) -> list[tuple[ChannelGroup, np.ndarray]]:
    """Groups with the channels of them that go; none where channels cannot be followed or left out."""
    dead: list[tuple[ChannelGroup, np.ndarray]] = []
    try:
        flow = trace(model, sample)
    except CouplingError:
        if _channels_masked(model):
            raise
        return []
    for group in groups_of(flow):
        if group.fixed is not None:
            continue
        alive = np.zeros(group.size, bool)
        for use, first, step in group.parts:
            if use.side == "in":
                weight = nonzero[names[id(use.module)]]
                read: Any = weight.reshape(-1, weight.shape[-1]).any(axis=0)
                alive |= read[first : first + step * group.size : step][: group.size]
        if not alive.any():
            alive[0] = True
        if not alive.all():
            dead.append((group, np.flatnonzero(~alive)))
    try:
        require_runs(model, sample, flow, dead)
    except CouplingError:  # zeros that nobody masked are no reason to stop
        dead = [(group, places) for group, places in dead if _masked(group, places)]
        require_runs(model, sample, flow, dead)
    return dead


def _masked(group: ChannelGroup, places: np.ndarray) -> bool:
    """Whether masks say that these channels go: a layer that makes them has none of them left."""
    makers = [part for part in group.parts if part[0].side != "in" and "weight" in mask_names(part[0].module)]
    return any(
        not host_view(use.module["weight" + SUFFIX])[first + step * places].any()
        for use, first, step in makers
    )


def _first_paths(model: Module) -> dict[int, str]:
    """The path of each module by its id; of a shared one the first, as in `_layers`."""
    return {id(module): path for path, module in model.named_modules()}


def _gathers(model: Module, cuts: dict[str, Cut]) -> dict[str, Callable[[str], Gather]]:
    """By each path of a layer that is cut: from the name of an array to what takes what stays of it."""
    first = _first_paths(model)
    return {
        path: partial(cuts[first[id(module)]].gather, module)
        for path, module in model.named_modules()
        if first[id(module)] in cuts
    }


def _find_blocks(
    module: Module, cut: Cut, weight: np.ndarray, block: tuple[int, int], cuts: dict[str, Cut], path: str
) -> None:
    """Note the blocks that are left of a layer after `cut`, if some are 0."""
    left = weight.reshape(weight.shape[0], -1, weight.shape[-1])
    for axis, places in ((0, cut.out), (1, cut.taps), (2, cut.into)):
        left = left if places is None else left.take(np.asarray(places), axis=axis)
    had = getattr(module, "_taps", None)
    index = list(range(left.shape[1] if cut.taps is None else cut.taps[-1] + 1)) if had is None else had.index
    taps = tuple(index) if cut.taps is None else tuple(index[t] for t in cut.taps)
    packing = packing_of(module, left, block, taps)
    if packing is not None:
        cut.packing = packing
        cuts[path] = cut


def _nonzero(weight: mx.array) -> np.ndarray:
    values: np.ndarray = host_view(weight.astype(mx.float32))
    result: np.ndarray = np.asarray(values != 0)
    return result


def _channels_masked(model: Module) -> bool:
    """Whether some norm or bias is masked, which only pruned channels do."""
    return any(m[name].ndim == 1 for _, m in model.named_modules() for name in mask_names(m))


def _without(places: np.ndarray | None, size: int, dead: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(size) if places is None else places, dead)


# ---------------------------------------------------------------- the smaller model


def _apply(module: Module, cut: Cut) -> None:
    if cut.blocks is not None:
        module["weight"] = effective(module, "weight")
        keep_blocks(module, cut.blocks)
        return
    values = {name: effective(module, name) for name in CHANNEL_ARRAYS if name in module}
    for name in mask_names(module):
        pruned = mx.logical_not(module[name + SUFFIX])  # what blocks have past the last channel is not
        module[name + SUFFIX] = mx.logical_not(cut.gather(module, name)(pruned))
    if cut.taps is not None:
        place = range(math.prod(module["weight"].shape[1:-1]))
        old = list(place) if module._taps is None else list(module._taps.index)
        module.keep_taps([old[t] for t in cut.taps])
    for name, value in values.items():
        module[name] = cut.gather(module, name)(value)
    if cut.packing is None:
        refit(module, None if cut.out is None else len(cut.out))


def _pack(model: Module, paths: Sequence[str], module: Module, cut: Cut) -> None:
    """Put the packed layer in all places of `module`, whose arrays are cut and packed already."""
    assert cut.packing is not None
    layer = packed(module, cut.packing)
    for name in CHANNEL_ARRAYS:
        if name in module:
            layer[name] = module[name]
    layer._no_grad.update(name for name in module._no_grad if name in layer)
    for name in mask_names(module):
        set_mask(ParamRef(layer, name), module[name + SUFFIX])
    for path in paths:
        replace(model, path, layer)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """The tree of modules copied with arrays of its own, a shared module once."""
    if isinstance(value, Module):
        if id(value) not in memo:
            copied = memo[id(value)] = copy.copy(value)
            copied._no_grad = copy.copy(value._no_grad)
            for name, child in value.items():
                copied[name] = _copied(child, memo)
        return memo[id(value)]
    if isinstance(value, dict):
        return {name: _copied(child, memo) for name, child in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, SparseTensor):
        return sequence_like(value, [_copied(child, memo) for child in value])
    return mx.array(value) if isinstance(value, mx.array) else value


def _compare(model: Module, small: Module, sample: Sample, tolerance: float) -> None:
    args = arguments(sample)
    training = [(module, module.training) for _, module in [*model.named_modules(), *small.named_modules()]]
    try:
        model.eval(), small.eval()
        try:
            theirs = _arrays(model(*args))
        except Exception as failure:  # it takes something else
            kinds = ", ".join(type(a).__name__ for a in args)
            raise CouplingError(
                f"the model does not run on the sample ({kinds}) on which it is compared: {failure}; pass a "
                "sample= that it takes, or check=False"
            ) from failure
        try:
            ours = _arrays(small(*args))
        except Exception as failure:  # of the model's own code, that knows channels by their places or number
            raise CouplingError(
                f"the compressed model does not run: {failure}; nothing was changed. Leave the layers whose "
                "channels the model itself counts alone: Pruner(..., exclude=[...])"
            ) from failure
    finally:
        for module, mode in training:
            module._training = mode
    # Half precision rounds sums that are taken in another order.
    dtypes = [a.dtype for a in args if isinstance(a, (SparseTensor, mx.array))]
    real = [d for d in dtypes if mx.issubdtype(d, mx.floating)] or [_dtype(model)]
    tolerance = max(tolerance, *(4 * float(mx.finfo(d).eps) for d in real))
    for a, b in zip(ours, theirs):
        if np.isnan(b).any():
            raise MLXSparseError(
                "the model gives NaN on the sample on which the compressed one is compared: look at its "
                "weights and at the sample, or pass check=False; nothing was changed"
            )
        largest = np.abs(b[np.isfinite(b)]).max(initial=0)
        error = math.inf
        if a.shape == b.shape:
            error = np.abs(np.subtract(a, b, out=np.zeros_like(a), where=a != b)).max(initial=0)
        if not error <= tolerance * max(largest, 1e-6):
            raise MLXSparseError(
                f"the compressed model differs from the masked one by {error:.3g} where the largest value is "
                f"{largest:.3g}; nothing was changed. If that is rounding, pass a tolerance= above "
                f"{tolerance:.2g}"
            )


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, SparseTensor):
        value = value.feats
    if isinstance(value, mx.array):
        real = value.ndim and mx.issubdtype(value.dtype, mx.floating)  # no losses, coordinates, classes
        return [np.asarray(host_view(value.astype(mx.float32)))] if real else []
    items = value.values() if isinstance(value, dict) else value
    held = items if isinstance(value, (dict, list, tuple)) else ()  # of None, numbers and texts nothing
    return [array for item in held for array in _arrays(item)]
