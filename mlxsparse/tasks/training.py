"""The training loop: augmentation, class weights, mixed precision, checkpoints that resume bit for bit."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from .. import nn
from ..compiled import compile
from ..errors import CheckpointError, MLXSparseError, PointCloudError
from ..io.cloud import atomic_write
from ..models.minkunet import MinkUNet
from ..ops.voxel import Voxels
from ..transforms import staged
from .data import Part, Settings, augmented, tiles, to_voxels

PRECISIONS = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
CHECKPOINT = "checkpoint.safetensors"
_FIRST_SCALE = 2.0**12  # of the loss in float16, so that small gradients do not become 0
_GROW_AFTER = 200  # steps without overflow

Progress = Callable[[int, int, float], None]


@dataclass
class Plan:
    """What a training does; a resumed one must follow the same plan."""

    epochs: int
    learning_rate: float = 3e-3
    seed: int = 0
    precision: str = "float32"
    augment: bool = True


@dataclass
class _State:
    """Where a training stands after an epoch."""

    epoch: int
    losses: list[float]
    scale: float
    steps_without_overflow: int


def train(
    model: MinkUNet,
    settings: Settings,
    parts: Sequence[Part],
    plan: Plan,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    after_epoch: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train in place on the parts; returns the mean loss of each epoch.

    Cross-entropy at the labelled points, classes weighted by the inverse root of their frequency, AdamW with
    a warm-up and a cosine to zero. In float16 and bfloat16 the network computes in that type, while weights,
    statistics, loss and optimizer stay float32.

    checkpoint: file written after every epoch; with `resume` and the file there, training goes on from it, to
    the same weights as without the interruption (CheckpointError where it is of another plan, model or data).
    progress(step, steps, loss) is called after every step, after_epoch(epoch, loss) after every epoch.
    """
    batches = [tile for part in parts for tile in tiles(part) if tile.labelled]
    _check(batches, plan)
    dtype = PRECISIONS[plan.precision]
    importance = _importance(batches, len(settings.classes))
    steps = plan.epochs * len(batches)
    optimizer = _optimizer(plan.learning_rate, steps)
    optimizer.init(model.trainable_parameters())
    state = _State(0, [], _FIRST_SCALE if plan.precision == "float16" else 1.0, 0)
    identity = _identity(model, settings, batches, plan)
    if resume and checkpoint is not None and Path(checkpoint).exists():
        state = _load(model, optimizer, checkpoint, identity)

    def loss_of(model: MinkUNet, voxels: Voxels, labels: mx.array, scale: float) -> mx.array:
        with lowered(model, dtype):
            logits = voxels.devoxelize(feats=model(voxels.tensor.astype(dtype))).astype(mx.float32)
        known, index = labels >= 0, mx.maximum(labels, 0)
        share = labels.size / mx.maximum(known.sum(), 1)  # the mean is of the labelled points
        weights = mx.where(known, importance[index], 0) * share
        return scale * mlx.nn.losses.cross_entropy(logits, index, weights, reduction="mean")

    step = staged(mlx.nn.value_and_grad(model, loss_of))
    update = _updater(model, optimizer, state, plan.precision)
    for epoch in range(state.epoch, plan.epochs):
        # Each epoch has a generator of its own, so that a resumed training draws what it would have drawn.
        rng = np.random.default_rng([plan.seed, epoch])
        model.train()
        losses = []
        for i, b in enumerate(rng.permutation(len(batches))):
            batch = augmented(batches[b], rng) if plan.augment else batches[b]
            voxels = to_voxels(batch.points, batch.inputs, settings.voxel_size)
            loss, gradients = step(model, voxels, mx.array(batch.labels), state.scale)
            losses.append(loss.item() / state.scale)
            update(gradients)
            _check_finite("the loss", losses[-1], epoch * len(batches) + i + 1)
            if progress:
                progress(epoch * len(batches) + i + 1, steps, losses[-1])
        # The loss is of the weights before the last step: these are what is saved.
        _check_finite("a weight", _largest(model), (epoch + 1) * len(batches))
        state.epoch, state.losses = epoch + 1, [*state.losses, float(np.mean(losses))]
        if checkpoint is not None:
            _save(model, optimizer, checkpoint, identity, state)
        if after_epoch:
            after_epoch(epoch + 1, state.losses[-1])
    return state.losses


def _check(batches: Sequence[Part], plan: Plan) -> None:
    if not batches:
        raise PointCloudError("nothing to train on: no labelled points in the training part; give it points "
                              "of the settings' classes")
    if plan.epochs < 1:
        raise MLXSparseError(f"epochs must be at least 1, got {plan.epochs}")
    if not 0 <= plan.seed < 2**63:
        raise MLXSparseError(f"seed must be at least 0 and below 2**63, got {plan.seed}")
    if plan.precision not in PRECISIONS:
        raise MLXSparseError(f"precision must be one of {', '.join(PRECISIONS)}, got {plan.precision!r}")


def _check_finite(name: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise MLXSparseError(f"{name} became {value} at step {step}; lower the learning rate")


def _largest(model: MinkUNet) -> float:
    """The largest magnitude among weights and statistics; NaN if one is NaN."""
    sizes = mx.stack([mx.abs(value).max().astype(mx.float32) for _, value in flat(model.parameters())])
    return float(np.array(sizes).max())


def _importance(batches: Sequence[Part], classes: int) -> mx.array:
    labels = np.concatenate([b.labels for b in batches])
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    weights = 1 / np.sqrt(np.maximum(counts, 1) / counts.sum())
    return mx.array((weights / weights.mean()).astype(np.float32))


def _optimizer(learning_rate: float, steps: int) -> optim.AdamW:
    warm = max(1, min(20, steps // 10))
    rise = optim.linear_schedule(learning_rate / 10, learning_rate, warm)
    fall = optim.cosine_decay(learning_rate, max(steps - warm, 1))
    return optim.AdamW(learning_rate=optim.join_schedules([rise, fall], [warm]), weight_decay=1e-2)


def _updater(
    model: MinkUNet, optimizer: optim.AdamW, state: _State, precision: str
) -> Callable[[Any], None]:
    """One optimizer step; in float16, gradients that overflowed are dropped and the loss scaled less.

    Compiled on a GPU: one kernel for each parameter in place of more than ten.
    """
    whole = [model.state, optimizer.state]
    step = compile(lambda gradients: optimizer.update(model, gradients), inputs=whole, outputs=whole)

    @compile
    def clipped(gradients: Any, scale: mx.array) -> tuple[Any, mx.array]:
        return optim.clip_grad_norm(tree_map(lambda g: g / scale, gradients), 5.0)

    def update(gradients: Any) -> None:
        gradients, norm = clipped(gradients, mx.array(state.scale))
        if precision != "float16":
            step(gradients)
        elif math.isfinite(norm.item()):
            step(gradients)
            state.steps_without_overflow += 1
            if state.steps_without_overflow >= _GROW_AFTER:
                state.scale, state.steps_without_overflow = state.scale * 2, 0
        else:
            state.scale, state.steps_without_overflow = max(state.scale / 2, 1.0), 0
        mx.eval(model.parameters(), optimizer.state)

    return update


@contextlib.contextmanager
def lowered(model: mlx.nn.Module, dtype: mx.Dtype) -> Iterator[None]:
    """The model's weights in `dtype` inside the block, but for those of batch norms; differentiable."""
    if dtype == mx.float32:
        yield
        return
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm)}
    kept = [(k, v) for k, v in flat(model.parameters()) if k.rpartition(".")[0] not in norms]
    master = [(k, v) for k, v in kept if mx.issubdtype(v.dtype, mx.floating)]
    model.update(tree_unflatten([(name, value.astype(dtype)) for name, value in master]))
    try:
        yield
    finally:
        model.update(tree_unflatten(master))


def flat(tree: Any) -> list[tuple[str, mx.array]]:
    """(dotted name, array) of every leaf."""
    leaves: Any = tree_flatten(tree)
    return list(leaves)


# ---------------------------------------------------------------- checkpoints


def _identity(model: MinkUNet, settings: Settings, batches: Sequence[Part], plan: Plan) -> dict[str, Any]:
    """What must be equal for a checkpoint to be of this training, as JSON gives it back."""
    total = 0
    for b in batches:
        for array in (b.points, b.inputs, b.labels):
            total = zlib.crc32(np.ascontiguousarray(array).data, total)
    identity = {
        "plan": asdict(plan),
        "settings": asdict(settings),
        "model": model.args.to_dict(),
        "data": total,
    }
    result: dict[str, Any] = json.loads(json.dumps(identity))
    return result


def _save(
    model: MinkUNet,
    optimizer: optim.AdamW,
    path: str | os.PathLike[str],
    identity: dict[str, Any],
    state: _State,
) -> None:
    arrays = {f"model.{k}": v for k, v in flat(model.parameters())}
    arrays |= {f"optimizer.{k}": v for k, v in flat(optimizer.state)}
    # MLX does not notice a full disk, so it writes to memory.
    memory = io.BytesIO()
    mx.save_safetensors(
        memory, arrays, {"state": json.dumps(asdict(state)), "identity": json.dumps(identity)}
    )
    with atomic_write(path) as stream:
        stream.write(memory.getbuffer())


def _load(
    model: MinkUNet, optimizer: optim.AdamW, path: str | os.PathLike[str], identity: dict[str, Any]
) -> _State:
    try:
        loaded: Any = mx.load(os.fspath(path), format="safetensors", return_metadata=True)
        arrays, metadata = loaded
        found, state = json.loads(metadata["identity"]), _State(**json.loads(metadata["state"]))
        if not (type(state.epoch) is int and len(state.losses) == state.epoch):
            raise ValueError(f"epoch {state.epoch!r} with losses {state.losses!r}")
        mx.eval(arrays)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{os.fspath(path)!r} is no checkpoint of a training: {error}") from None
    for part, wanted in identity.items():
        if found.get(part) != wanted:
            said, here = found.get(part), wanted
            if isinstance(wanted, dict) and isinstance(said, dict):
                keys = [key for key in wanted if said.get(key) != wanted[key]]
                said, here = ({key: d.get(key) for key in keys} for d in (said, wanted))
            raise CheckpointError(
                f"{os.fspath(path)!r} is of another training: its {part} is {said}, here it is {here}; "
                "repeat the first command's options, or train without --resume"
            )
    split: dict[str, list[tuple[str, mx.array]]] = {"model": [], "optimizer": []}
    for key, value in arrays.items():
        part, _, name = key.partition(".")
        split.setdefault(part, []).append((name, value))
    wanted = {name: value.shape for name, value in flat(optimizer.state)}
    if set(split) != {"model", "optimizer"} or {n: v.shape for n, v in split["optimizer"]} != wanted:
        raise CheckpointError(f"{os.fspath(path)!r} does not fit the optimizer, or holds other arrays")
    try:
        model.load_weights(split["model"], strict=True)
    except ValueError as error:
        raise CheckpointError(f"{os.fspath(path)!r} does not fit the model: {error}") from None
    optimizer.state = tree_unflatten(split["optimizer"])
    return state
