"""Sets that are made before they are asked for: what followed on a set the last time is marked with it.

A network asks the same of every cloud. So the sets that it derives are marked and counted while the cloud
is checked, over the bounds of the clouds before, and the host reads all that in one wait. During the wait the
GPU goes on with the set's ordered map onto itself, where the last one was asked for that. A wrong guess costs
the marks and that map; what did not follow twice is not guessed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..backend import kernel_bits, kernel_sites
from ..backend.kernel_bits import Box, Geometry, Marked
from ..backend.kernel_sites import Extent
from .geometry import Kernel, multiply

Steps: TypeAlias = "tuple[Any, ...]"  # what tells a set: what it came from, then the kernels that made it
Plan: TypeAlias = "list[tuple[Geometry, Extent, Geometry]]"  # step; bounds and kernel from the first set
Guess = TypeVar("Guess")
MOST_KNOWN = 64
MISSES = 2


class Ahead(NamedTuple):
    """A set that was marked and counted together with the one that it follows from."""

    step: Geometry
    marks: Marked
    rows: int
    then: Ahead | None  # its own


_followed: dict[Steps, tuple[Geometry, int]] = {}  # what followed, and how often since it did not
_bounds: dict[Steps, Extent] = {}  # of the sets before
_mapped: dict[Steps, tuple[Kernel, int]] = {}  # whose ordered map onto itself was asked for, and as above


def bounds(root: Steps) -> Extent | None:
    """Bounds that the next set of this kind is expected to have."""
    return _bounds.get(root)


def seen(root: Steps, extent: Extent) -> None:
    """Note the bounds of a set: they grow to what was seen, until that is mostly empty."""
    known, cells = _bounds.get(root), kernel_bits.cells(extent)
    if known is not None:
        both = known if inside(extent, known) else _union(known, extent)
        if kernel_bits.cells(both) <= 2 * cells:
            extent = both
    elif len(_bounds) >= MOST_KNOWN:
        _bounds.clear()
    _bounds[root] = extent


def inside(extent: Extent, other: Extent) -> bool:
    return extent == other or extent.batch_size <= other.batch_size and all(
        a >= b and a + n <= b + m for a, n, b, m in zip(extent.low, extent.span, other.low, other.span)
    )


def _union(one: Extent, other: Extent) -> Extent:
    low = [min(a, b) for a, b in zip(one.low, other.low)]
    x, y, z = (
        max(a + n, b + m) - c for a, n, b, m, c in zip(one.low, one.span, other.low, other.span, low)
    )
    return Extent((low[0], low[1], low[2]), (x, y, z), max(one.batch_size, other.batch_size))


def followed(steps: Steps, step: Geometry) -> None:
    """Note that a set made by `step` was asked for after `steps`."""
    if len(_followed) >= MOST_KNOWN:
        _followed.clear()
    _followed[steps] = step, 0


def _next(steps: Steps) -> Geometry | None:
    return _guess(_followed, steps)


def mapped(root: Steps, kernel: Kernel) -> None:
    """Note that the ordered map of a set onto itself was asked for."""
    if len(_mapped) >= MOST_KNOWN:
        _mapped.clear()
    _mapped[root] = kernel, 0


def next_map(root: Steps) -> Kernel | None:
    """The kernel whose map onto itself the next set of this kind will be asked for."""
    return _guess(_mapped, root)


def _guess(known: dict[Steps, tuple[Guess, int]], steps: Steps) -> Guess | None:
    guess, misses = known.get(steps, (None, 0))
    if guess is None:
        return None
    if misses >= MISSES:
        del known[steps]
        return None
    known[steps] = guess, misses + 1
    return guess


def is_parents(g: Geometry) -> bool:
    """Whether it makes the parents of a set, so that theirs follow from the set too."""
    return g == Geometry(g.stride, g.stride)


def planned(steps: Steps, extent: Extent, rows: int, first: Geometry | None = None) -> Plan:
    """Sets to mark from one with these bounds: `first`, and what followed before."""
    plan: Plan = []
    whole = (1, 1, 1)
    while len(plan) < kernel_bits.MOST_SETS:
        step = first if first is not None and not plan else _next(steps)
        if step is None or (plan and not is_parents(step)):
            break
        whole = multiply(whole, step.stride)
        shape = Geometry(whole, whole) if is_parents(step) else step
        box = kernel_sites.reached_extent(extent, *shape[:4], shape.forward)
        if not kernel_bits.worthwhile(box, rows):
            break
        plan.append((step, box, shape))
        if not is_parents(step):
            break
        steps = (*steps, step)
    return plan


def boxes(plan: Plan) -> list[Box]:
    return [(box, shape) for _, box, shape in plan]


def chained(plan: Plan, marks: Sequence[Marked], counts: Sequence[tuple[int, bool]]) -> Ahead | None:
    """What was planned, marked and counted; None from a set on of which a site lay outside."""
    made: Ahead | None = None
    for (step, _, _), marked, (rows, outside) in reversed(list(zip(plan, marks, counts))):
        made = None if outside else Ahead(step, marked, rows, made)
    return made
