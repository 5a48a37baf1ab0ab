"""The shapes of a compressed model as JSON, and a fresh model given them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn import Module

from .. import nn
from ..backend.untrained import PARTS
from ..errors import CheckpointError
from ..nn.conv import _Conv
from .flow import LINEAR, PER_CHANNEL
from .masking import SUFFIX, mask_names, set_mask
from .pack import from_json, to_json
from .param import ParamRef

CHANNEL_ARRAYS = ("weight", "bias", "running_mean", "running_var")


def structure_of(model: Module) -> dict[str, Any]:
    """JSON-like shapes and taps of the layers, for `restructure` of a fresh model."""
    return {
        path: {
            "shapes": {k: list(v.shape) for k, v in _arrays(module).items()},
            "taps": list(module._taps.index) if isinstance(module, _Conv) and module._taps else None,
            "identity": isinstance(module, nn.Identity),
            "packed": to_json(module),
            "width": _width(module),
        }
        for path, module in model.named_modules()
        if not module.children() or isinstance(module, (_Conv, *LINEAR)) or mask_names(module)
    }


def restructure(model: Module, structure: dict[str, Any]) -> Module:
    """Give a fresh `model` the shapes and taps of structure_of; its weights are then to be loaded.

    Layers that were masked are masked again, by masks that keep all until theirs are loaded.
    CheckpointError where a layer is missing or does not fit.
    """
    modules = dict(model.named_modules())
    made: dict[int, Module] = {}  # what stands for a layer: a shared one is made once
    for path, entry in structure.items():
        module = modules.get(path)
        try:
            if module is None:
                raise KeyError(path)
            if id(module) not in made:
                made[id(module)] = _restructured(module, entry)
            if made[id(module)] is not module:
                replace(model, path, made[id(module)])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the structure of {path!r} does not fit the model: {error!r}") from None
    return model


def _restructured(module: Module, entry: dict[str, Any]) -> Module:
    """`module` with the shapes and taps of its entry, or the layer that takes its place."""
    if entry["identity"]:
        return module if isinstance(module, nn.Identity) else nn.Identity()
    if entry.get("packed") is not None:
        module = from_json(module, entry["packed"])
    if entry["taps"] is not None:
        module.keep_taps(entry["taps"])
    shapes = {name: tuple(int(n) for n in shape) for name, shape in entry["shapes"].items()}
    masks = [name for name in shapes if name.endswith(SUFFIX)]
    plain = {name: shape for name, shape in shapes.items() if name not in masks}
    _check_shapes(module, plain)
    if any(shapes[name] != plain.get(name[: -len(SUFFIX)]) for name in masks):
        raise CheckpointError(f"the masks {masks} are not of the shapes of what they mask")
    for name, shape in plain.items():
        module[name] = mx.zeros(shape, module[name].dtype if name in module else mx.float32)
    for name in masks:
        set_mask(ParamRef(module, name[: -len(SUFFIX)]), mx.ones(shapes[name], mx.bool_))
    refit(module, None if entry.get("width") is None else _checked(module, entry["width"]))
    return module


def _arrays(module: Module) -> dict[str, mx.array]:
    """A layer's arrays, but for what says which taps or blocks it stores: these have entries of their own."""
    return {name: v for name, v in module.items() if isinstance(v, mx.array) and name not in PARTS}


def _width(module: Module) -> int | None:
    """Channels of a norm that has no array to say them; None of other layers, whose arrays do."""
    if not isinstance(module, PER_CHANNEL) or any(name in module for name in CHANNEL_ARRAYS):
        return None
    return int(module.dims if isinstance(module, nn.InstanceNorm) else module.num_features)


def _checked(module: Module, width: Any) -> int:
    here = _width(module)
    if here is None or not 0 < int(width) <= here:
        raise CheckpointError(f"{type(module).__name__} of {here} channels cannot become one of {width!r}")
    return int(width)


def _check_shapes(module: Module, shapes: dict[str, tuple[int, ...]]) -> None:
    """CheckpointError unless a layer like `module`, with channels left out, has arrays of these shapes."""
    here = {name: tuple(v.shape) for name, v in _arrays(module).items()}
    kernel = isinstance(module, (_Conv, *LINEAR))
    packed = to_json(module)
    if "bias" in shapes and (kernel or packed is not None):  # a norm that was folded leaves one
        here.setdefault("bias", here["weight"][:1] if packed is None else (int(packed["channels"][0]),))
    if here.keys() != shapes.keys():
        raise CheckpointError(f"{type(module).__name__} has arrays {sorted(here)}, not {sorted(shapes)}")
    for name, shape in shapes.items():
        whole = here[name]
        fits = len(shape) == len(whole) and all(0 < n <= m or n == m for n, m in zip(shape, whole))
        if fits and kernel and name == "weight":
            fits = shape[1:-1] == whole[1:-1]
        if not fits:
            raise CheckpointError(f"{name} of {whole} cannot become {shape}")
    widths = {shapes[name][0] for name in CHANNEL_ARRAYS if shapes.get(name)}
    if len(widths) > 1 and packed is None:  # of a packed layer the weight counts blocks
        raise CheckpointError(f"the arrays differ in channels: {shapes}")


def refit(module: Module, width: int | None = None) -> None:
    """Numbers that a layer keeps about its arrays; `width`, its channels, says them where it has none."""
    if isinstance(module, _Conv) and module.groups > 1:
        module.groups = module["weight"].shape[0]  # depthwise: the only groups that are cut
    width = next((module[name].shape[0] for name in CHANNEL_ARRAYS if name in module), width)
    for name in ("num_features", "dims"):
        if width is not None and hasattr(module, name):
            setattr(module, name, width)


def replace(model: Module, path: str, module: Module) -> None:
    """Put `module` in the place that `path` names in `model`; CheckpointError for the model itself."""
    if not path:
        raise CheckpointError(f"a model that is one layer cannot become {type(module).__name__}")
    *parents, leaf = path.split(".")
    owner: Any = model
    for name in parents:
        owner = owner[int(name)] if isinstance(owner, list) else owner[name]
    owner[int(leaf) if isinstance(owner, list) else leaf] = module
