"""What can be pruned in a model: kernel offsets, coupled channels, or blocks of channels, as scopes.

Offsets: one scope a layer over the taps of its kernel. Channels: one scope a group of channels that sums
tie together, over convolutions, norms, biases and the layers that read them. Blocks: one scope a layer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx.nn import Module

from .. import nn
from ..errors import CouplingError, MLXSparseError
from ..nn.conv import NormalizedConv3d, _Conv, _Transposed
from .coupling import BlockCoupling, overlap
from .flow import LINEAR, STORED, Sample, example, runs_without, trace
from .labels import Flow, Use
from .layout import integers
from .pack import stored_block
from .param import ParamRef
from .scope import ScopeCoupling, ScopeSpec
from .spec import BlockSpec
from .view import View

STRUCTURES = ("offsets", "channels", "blocks")


@dataclass
class Target:
    """A scope of blocks to choose from. `followers` are masked with its one grid, but do not score. `block`:
    (output, input) channels of blocks that `compress` packs."""

    name: str
    scope: ScopeSpec | ScopeCoupling
    followers: tuple[BlockSpec, ...] = ()
    block: tuple[int, int] | None = None


@dataclass
class ChannelGroup:
    """Channels that live and die together: `size` of them, channel i of every part being one.

    parts: (use, first, step), where channel i is place first + i * step of the use's axis. `fixed` says why
    they cannot be pruned, None if they can.
    """

    name: str
    size: int
    parts: list[tuple[Use, int, int]] = field(default_factory=list)
    fixed: str | None = None


def targets(
    model: Module,
    structure: str,
    *,
    block: Sequence[int] = (32, 32),
    exclude: Sequence[str] = (),
    sample: Sample | None = None,
) -> list[Target]:
    """The scopes of `structure` ("offsets", "channels" or "blocks") in a model.

    exclude: names of layers, or prefixes of names, to leave alone. CouplingError if nothing is left,
        MLXSparseError for a name that the model does not have.
    """
    exclude, block = check_names(exclude), check_block(block)
    known = {path for path, _ in model.named_modules()}
    known |= {
        path[:i] for path in known for i, letter in enumerate(path) if letter == "."
    }  # lists have no module
    if unknown := [name for name in exclude if name not in known]:
        parts = ", ".join(sorted({name.partition(".")[0] for name in known if name}))
        raise MLXSparseError(f"exclude names {unknown}, which the model does not have; it has {parts}")
    if structure == "offsets":
        found = [offset_target(model, path) for path, _ in _kernels(model)]
    elif structure == "channels":
        tensor = example(model) if sample is None else sample
        flow = trace(model, tensor)
        groups = groups_of(flow)
        for group in groups:
            if any(_excluded(part[0].path, exclude) for part in group.parts):
                group.fixed = group.fixed or "excluded"
        free = [group for group in groups if group.fixed is None]
        require_runs(model, tensor, flow, [(group, range(group.size // 2)) for group in free])
        found = [channel_target(model, group) for group in free]
        if not found:
            reasons = {f"{g.name}: {g.fixed}": None for g in groups}
            told = {g.fixed for g in groups} | {"the model's input"}
            reasons |= {why: None for why in flow.fixed.values() if why not in told}
            raise CouplingError(f"no channels of the model can be pruned ({'; '.join(reasons)})")
    elif structure == "blocks":
        layers = [part for part in _layers(model, STORED) if not _excluded(part[0], exclude)]
        _require_block(layers, block)
        found = [t for path, m in layers if (t := block_target(model, path, m, block)) is not None]
    else:
        raise MLXSparseError(f"structure must be one of {', '.join(STRUCTURES)}, got {structure!r}")
    found = [t for t in found if structure == "channels" or not _excluded(t.name, exclude)]
    if not found:
        which = f" in blocks of {block}, which must divide its channels" if structure == "blocks" else ""
        raise CouplingError(f"the model has no layer whose {structure} can be pruned{which}")
    return found


def check_block(block: Sequence[int]) -> tuple[int, int]:
    """`block` as (output, input) channels; MLXSparseError unless two numbers of at least 1."""
    try:
        out, into = integers(block, "block")
    except ValueError:  # of others, and of another number of them
        raise MLXSparseError(
            f"block must be two whole numbers, (output, input) channels, got {block!r}"
        ) from None
    if min(out, into) < 1:
        raise MLXSparseError(f"block must have at least 1 channel on each side, got {block!r}")
    return out, into


def check_names(exclude: Sequence[str]) -> tuple[str, ...]:
    """`exclude` as a tuple; MLXSparseError for one text, which would be a sequence of letters."""
    if isinstance(exclude, str) or not all(isinstance(name, str) for name in exclude):
        raise MLXSparseError(f"exclude must be a sequence of names, as ['stem'], got {exclude!r}")
    return tuple(exclude)


def _excluded(path: str, exclude: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in exclude)


def _layers(model: Module, more: tuple[Any, ...] = ()) -> list[tuple[str, Module]]:
    """(path, module) of convolutions, linear layers and `more`, in the model's order; a shared one once."""
    seen: set[int] = set()
    found: list[tuple[str, Module]] = []
    modules: list[tuple[str, Module]] = model.named_modules()
    for path, module in modules[::-1]:
        if isinstance(module, (_Conv, *LINEAR, *more)) and id(module) not in seen:
            seen.add(id(module))
            found.append((path, module))
    return found


def _kernels(model: Module) -> list[tuple[str, Module]]:
    """Submanifold convolutions with several taps. The taps of a strided kernel share no input: dropping
    one would drop its sites."""
    return [
        (path, module)
        for path, module in _layers(model)
        if isinstance(module, nn.SubmConv3d)
        and not isinstance(module, NormalizedConv3d)
        and math.prod(module["weight"].shape[1:-1]) > 1
    ]


# ---------------------------------------------------------------- offsets and blocks


def offset_target(model: Module, path: str) -> Target:
    """One scope over the taps of a convolution: grid (T, 1, 1)."""
    ref = _ref(model, path, "weight")
    co, *size, ci = ref.shape
    taps = math.prod(size)
    view = View(ref, (taps, co, ci), (ci, taps * ci, 1))
    return Target(path, ScopeSpec(BlockSpec(view, (1, -1, -1), path)))


def block_target(model: Module, path: str, module: Module, block: Sequence[int]) -> Target | None:
    """One scope over blocks of (output, input) channels of each tap, of a block-sparse layer over those that
    it stores; None where the blocks do not divide, or none is stored."""
    ref = _ref(model, path, "weight")
    if isinstance(module, STORED):
        return Target(path, ScopeSpec(BlockSpec(View(ref), (1, -1, -1), path))) if ref.size else None
    co, *size, ci = ref.shape
    bo, bi = check_block(block)
    whole = getattr(module, "groups", 1) == 1 and not isinstance(module, (NormalizedConv3d, _Transposed))
    if co % bo or ci % bi or not whole:
        return None
    view = View(ref, (co, math.prod(size), ci))
    return Target(path, ScopeSpec(BlockSpec(view, (bo, 1, bi), path)), block=(bo, bi))


def _require_block(layers: Sequence[tuple[str, Module]], block: tuple[int, int]) -> None:
    """CouplingError where a layer stores blocks of another size: they are pruned whole."""
    stored = {path: stored_block(m) for path, m in layers if isinstance(m, STORED)}
    if other := [path for path, size in stored.items() if size != block]:
        told = ", ".join(f"{path} of {stored[path]}" for path in other)
        raise CouplingError(
            f"layers store blocks of another size than block={block}: {told}; prune them with a Pruner of "
            f"that block=, and leave them alone here with exclude={other}"
        )


# ---------------------------------------------------------------- channels


def channel_groups(model: Module, sample: Sample | None = None) -> list[ChannelGroup]:
    """All groups of channels of a model, those that cannot be pruned with the reason.

    sample: a tensor or array that the model takes, or a tuple of its arguments; default one row with the
        channels of its first layer.
    """
    return groups_of(trace(model, example(model) if sample is None else sample))


def groups_of(flow: Flow) -> list[ChannelGroup]:
    """Channels with the same uses and the same reason to stay, in the order in which layers make them."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for u, use in enumerate(flow.uses):
        for place, label in enumerate(use.labels):
            places[flow.root(label)].append((u, place))
    members: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for root, found in places.items():
        members[tuple(u for u, _ in found), flow.fixed.get(root)].append(root)
    groups = []
    for (uses, fixed), roots in members.items():
        roots.sort(key=lambda root: places[root][0])
        makers = [flow.uses[u].path for u in uses if flow.uses[u].side != "in"]
        if not makers:
            continue  # the model's input
        group = ChannelGroup(makers[0], len(roots), fixed=fixed)
        for k, u in enumerate(uses):
            spots = [places[root][k][1] for root in roots]
            step = spots[1] - spots[0] if len(spots) > 1 else 1
            if step < 1 or spots != [spots[0] + i * step for i in range(len(spots))]:
                group.fixed = group.fixed or f"its channels reach {flow.uses[u].path} in another order"
            group.parts.append((flow.uses[u], spots[0], step))
        if group.fixed is None and not any(use.side == "in" for use, *_ in group.parts):
            group.fixed = "no layer reads its channels"
        groups.append(group)
    return groups


def require_runs(
    model: Module, sample: Sample, flow: Flow, dead: Sequence[tuple[ChannelGroup, Iterable[int]]]
) -> None:
    """CouplingError, which names a layer, unless the model runs without the channels `dead` of groups."""

    def problem(parts: Sequence[tuple[ChannelGroup, Iterable[int]]]) -> str | None:
        roots = set()
        for group, places in parts:
            use, first, step = group.parts[0]
            roots |= {flow.root(use.labels[first + step * int(i)]) for i in places}
        return runs_without(model, sample, flow, flow.all_of(roots)) if roots else None

    if (reason := problem(dead)) is None:
        return
    alone = [(part[0].name, why) for part in dead if (why := problem([part])) is not None]
    names = [name for name, _ in alone] or [group.name for group, _ in dead]
    raise CouplingError(
        f"the channels of {', '.join(names)} cannot be pruned: {alone[0][1] if alone else reason}; "
        f"leave them alone with exclude={names}"
    )


def channel_target(model: Module, group: ChannelGroup) -> Target:
    """One scope over the channels of a group, coupled over all that makes, scales and reads them."""
    specs: list[BlockSpec] = []
    followers: list[BlockSpec] = []
    for use, first, step in group.parts:
        for spec in channel_specs(model, use, first, step, group.size):
            shared = any(overlap(spec, other) for other in specs)
            if shared and spec not in specs:
                followers.append(spec)  # a layer from the group onto itself: scored by its outputs
            elif not shared:
                specs.append(spec)
    return Target(group.name, ScopeSpec(BlockCoupling(specs, name=group.name)), tuple(followers))


def channel_specs(model: Module, use: Use, first: int, step: int, size: int) -> list[BlockSpec]:
    """Specs of grid (size, 1) over the arrays of one use."""

    def rows(name: str, width: int, stride: tuple[int, int], offset: int) -> BlockSpec:
        view = View(_ref(model, use.path, name), (size, width), stride, offset=offset)
        return BlockSpec(view, (1, -1), f"{use.path}.{name}")

    shape: tuple[int, ...] = tuple(use.module["weight"].shape) if "weight" in use.module else ()
    rest = math.prod(shape[1:])
    if use.side == "in":
        width = shape[-1]
        return [rows("weight", math.prod(shape[:-1]), (step, width), first)]
    found = [rows("weight", rest, (step * rest, 1), first * rest)] if shape else []
    if "bias" in use.module:
        found.append(rows("bias", 1, (step, 1), first))
    return found


def _ref(model: Module, path: str, name: str) -> ParamRef:
    return ParamRef(model, f"{path}.{name}" if path else name)


def elements(spec: BlockSpec, keep: mx.array) -> mx.array:
    """Boolean mask of the parameter's shape: False on the elements of the blocks that `keep` has not."""
    wide = spec.broadcast_block_to_element(keep)
    return spec.view.write(mx.ones(spec.view.param.shape, mx.bool_), wide)
