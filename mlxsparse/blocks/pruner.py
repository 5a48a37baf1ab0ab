"""Pruner: chooses blocks, masks them in the forward, and reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import mlx.core as mx
import numpy as np
from mlx.nn import Module

from ..backend.host import view as host_view
from ..errors import MLXSparseError
from .criteria import Criterion, Schedule, constant, magnitude
from .flow import Sample
from .masking import SUFFIX, effective, mask_names, note_found, remove_masks, set_mask
from .param import ParamRef
from .scope import ScopeCoupling, ScopeSpec, check_nnz, keep_largest
from .structure import STRUCTURES, Target, check_block, check_names, elements, targets

_NUMBERS = count()


@dataclass
class Row:
    """One scope of a report: blocks in it and blocks kept; elements of its parameters and those not 0."""

    name: str
    blocks: int
    kept: int
    elements: int
    nonzero: int


class Report(list[Row]):
    """Rows of a pruner's scopes; prints as a table."""

    def __str__(self) -> str:
        width = max([len(row.name) for row in self] + [5])
        lines = [f"{'scope':{width}}  {'kept':>11}  {'elements':>9}  {'not 0':>9}"]
        for row in self:
            lines.append(
                f"{row.name:{width}}  {row.kept:>5}/{row.blocks:<5}  {row.elements:>9}  {row.nonzero:>9}"
            )
        return "\n".join(lines)


class Pruner:
    """Keeps the best blocks of each scope and masks the others in the forward.

    Args:
        structure: "offsets" (taps of submanifold kernels), "channels" (coupled through norms, sums and
            concatenations), "blocks" (of output and input channels; of block-sparse layers those that they
            store), some of `targets` (their scopes alone leave out what follows them), or scopes of your own.
        sparsity: share of the blocks of a scope that is pruned (floor); or a schedule from `cubic`, `linear`:
            a function of the step that `update` is given.
        nnz: blocks kept a scope (all of a smaller one), in place of sparsity.
        criterion: function from a SparseBlock to a score a block, by default the mean size of the elements.
        block: (output, input) channels of a block, for "blocks".
        exclude: names of layers, or prefixes, that stay as they are.
        sample: a tensor or array that the model takes, or a tuple of its arguments, for "channels"; by
            default one row.

    >>> pruner = Pruner("channels", sparsity=0.5).attach(model)
    >>> train(model)                 # pruned weights get no gradient and are not seen
    >>> small = compress(model)
    """

    def __init__(
        self,
        structure: str | Sequence[Target | ScopeSpec | ScopeCoupling] = "channels",
        sparsity: float | Schedule | None = None,
        *,
        nnz: int | None = None,
        criterion: Criterion | None = None,
        block: Sequence[int] = (32, 32),
        exclude: Sequence[str] = (),
        sample: Sample | None = None,
    ):
        if isinstance(structure, str) and structure not in STRUCTURES:
            raise MLXSparseError(f"structure must be one of {', '.join(STRUCTURES)}, got {structure!r}")
        if sparsity is not None and nnz is not None:
            raise MLXSparseError("sparsity and nnz both say how much is kept: give one")
        amount = 0.5 if sparsity is None else sparsity
        if not callable(amount) and not 0 <= amount <= 1:
            raise MLXSparseError(f"sparsity must lie in [0, 1], got {amount}")
        self.structure = structure
        self.schedule: Schedule = amount if callable(amount) else constant(amount)
        self.nnz = None if nnz is None else check_nnz(nnz)
        self.criterion = criterion or magnitude()
        self.block, self.exclude, self.sample = check_block(block), check_names(exclude), sample
        if self.exclude and not isinstance(structure, str):
            raise MLXSparseError("exclude chooses among the layers of a structure: leave out scopes instead")
        self.targets: list[Target] = []
        self._number = next(_NUMBERS)  # what the layers note this pruner's masks by
        self._model: Module | None = None

    def attach(self, model: Module, step: int = 0) -> Pruner:
        """Find the scopes of `model`, choose what to keep and mask the rest; returns itself.

        Layers become subclasses of themselves that mask in the forward. All errors come before anything is
        changed. A model that is already masked is pruned further.
        """
        if self._model is not None:
            raise MLXSparseError("this pruner has a model already: detach it, or make another pruner")
        if isinstance(self.structure, str):
            found = targets(model, self.structure, block=self.block, exclude=self.exclude, sample=self.sample)
        else:
            found = [
                s if isinstance(s, Target) else Target(s.name or f"scope {i}", s)
                for i, s in enumerate(self.structure)
            ]
            for target in found:
                for spec in (*target.scope.specs(), *target.followers):
                    if not isinstance(spec.param.module, Module):
                        raise MLXSparseError(f"{spec} is of no module: masks need a layer to lie in")
        masks = self._choose(found, step)
        self.targets, self._model = found, model
        for ref in self._refs():
            note_found(ref)
        for target in found:
            if target.block is not None:  # compress packs what was pruned by blocks
                target.scope.specs()[0].param.module._block = target.block
        self._set(masks)
        return self

    def update(self, step: int = 0) -> None:
        """Choose again, by the schedule at `step` and the weights of now; what others pruned stays pruned.

        What is pruned now counts as 0, as the forward sees it.
        """
        self._attached()
        self._set(self._choose(self.targets, step))

    def project(self) -> None:
        """Zero what is pruned in the layers' arrays; the forward does not see it anyway.

        The layers get new arrays: those of a copy of the weights that you hold stay as they are.
        """
        self._attached()
        for ref in self._refs():
            ref.module[ref.key.rpartition(".")[2]] = effective_of(ref)

    def detach(self) -> None:
        """Write zeros and make the layers what they were, without masks, those of other pruners included."""
        for ref in self._refs():
            remove_masks(ref.module)
        self.targets, self._model = [], None

    def report(self) -> Report:
        """What is kept, scope by scope."""
        self._attached()
        rows = Report()
        for target in self.targets:
            counts = [0, 0, 0, 0]
            for block in target.scope.blocks():
                masks = {spec: spec.view.read(_mask_of(spec.param)) for spec in block.specs()}
                kept = block.reduce(masks, lambda m: m.any(axis=-1))
                counts[0] += block.num_blocks
                counts[1] += int(np.count_nonzero(host_view(kept)))
            for spec in (*target.scope.specs(), *target.followers):
                values = host_view(spec.view.read(effective_of(spec.param)))
                counts[2] += values.size
                counts[3] += int(np.count_nonzero(values))
            rows.append(Row(target.name, *counts))
        return rows

    # ------------------------------------------------------------ inside

    def _attached(self) -> None:
        if self._model is None:
            raise MLXSparseError("the pruner has no model yet: call attach(model)")

    def _refs(self) -> list[ParamRef]:
        return _params(self.targets)

    def _choose(self, found: Sequence[Target], step: int) -> dict[ParamRef, mx.array]:
        """Keep masks of parameters; changes nothing."""
        sparsity = self.schedule(step)
        masks: dict[ParamRef, mx.array] = {}
        with _as_seen(_params(found)):
            scores_of = [t.scope.merge([self.criterion(b) for b in t.scope.blocks()]) for t in found]
        for target, scores in zip(found, scores_of):
            scope = target.scope
            nnz = scope.kept_of(sparsity) if self.nnz is None else min(self.nnz, scope.scope_numel)
            for block, keep in scope._to_blocks(keep_largest(scores, nnz)):
                parts = list(block._spread(keep).items()) + [(spec, keep) for spec in target.followers]
                for spec, part in parts:
                    mask = elements(spec, part)
                    masks[spec.param] = mask & masks[spec.param] if spec.param in masks else mask
        mx.eval(list(masks.values()))
        return masks

    def _set(self, masks: dict[ParamRef, mx.array]) -> None:
        for ref, keep in masks.items():
            set_mask(ref, keep, self._number)
        self.project()


def _params(found: Sequence[Target]) -> list[ParamRef]:
    specs = [spec for t in found for spec in (*t.scope.specs(), *t.followers)]
    return list({spec.param: None for spec in specs})


@contextmanager
def _as_seen(refs: Sequence[ParamRef]) -> Iterator[None]:
    """Within: masked slots hold what the forward sees. Behind a mask momentum moves an array on."""
    held = [(ref.module, ref.key.rpartition(".")[2], ref.value) for ref in refs]
    held = [(module, name, value) for module, name, value in held if name in mask_names(module)]
    try:
        for module, name, _ in held:
            module[name] = effective(module, name)
        yield
    finally:
        for module, name, value in held:
            module[name] = value


def effective_of(ref: ParamRef) -> mx.array:
    """A slot's array as the forward uses it."""
    return effective(ref.module, ref.key.rpartition(".")[2])


def _mask_of(ref: ParamRef) -> mx.array:
    module, name = ref.module, ref.key.rpartition(".")[2]
    if name not in mask_names(module):
        raise MLXSparseError(
            f"{ref.key!r} has no mask any more: another pruner was detached, or the layer was replaced; "
            "call update(), or detach this pruner"
        )
    mask: mx.array = module[name + SUFFIX]
    return mask
