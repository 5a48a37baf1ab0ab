"""Sparse tensors joined by site: elementwise arithmetic, and channels side by side.

join says which sites the result has:

- "strict": those of both operands, which must have the same key (IdentityError).
- "left": the first operand's, on its key and in its row order.
- "inner": those of all operands; "outer": those of any; a new key, sorted by (batch, x, y, z).

An operand counts as 0 at a site that it does not have: so does `mul`, whose outer result is 0 there,
and `maximum`, whose outer result is max(a, 0). Operands with the same key keep it under every join.
Operands of another stride raise StrideError, of another batch_size or spatial_shape ShapeError. An
outer join with a fixed capacity needs `capacity` (CapacityError).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import mlx.core as mx

from ..arithmetic import operand
from ..backend import executor, host, pace
from ..backend.autodiff import launched
from ..coords import CoordinateMapKey, static
from ..engine import origin, pointwise, rows_kernel
from ..engine.index import lookup
from ..engine.rows import take_rows
from ..errors import MLXSparseError, ShapeError
from ..tensor import SparseTensor, require_same_key
from .check import check_tensor
from .select import check_lattices, intersection_key, padded, union_key

JOINS = ("strict", "inner", "left", "outer")
OPERATORS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def add(
    a: SparseTensor, b: SparseTensor, join: str = "strict", *, capacity: int | None = None
) -> SparseTensor:
    """a + b by site."""
    return _combine(a, b, join, capacity, "add", mx.add)


def sub(
    a: SparseTensor, b: SparseTensor, join: str = "strict", *, capacity: int | None = None
) -> SparseTensor:
    """a - b by site."""
    return _combine(a, b, join, capacity, "sub", mx.subtract)


def mul(
    a: SparseTensor, b: SparseTensor, join: str = "strict", *, capacity: int | None = None
) -> SparseTensor:
    """a * b by site."""
    return _combine(a, b, join, capacity, "mul", mx.multiply)


def maximum(
    a: SparseTensor, b: SparseTensor, join: str = "strict", *, capacity: int | None = None
) -> SparseTensor:
    """Elementwise maximum by site; NaN wins."""
    return _combine(a, b, join, capacity, "maximum", mx.maximum)


def cat(
    tensors: Sequence[SparseTensor], join: str = "strict", *, capacity: int | None = None
) -> SparseTensor:
    """Channels of the tensors side by side, by site: (capacity, C1 + C2 + ...)."""
    tensors = list(tensors)
    if not tensors:
        raise ShapeError("cat needs at least one tensor")
    key, feats = _join(tensors, join, capacity, "cat")
    if executor() == "kernel":
        made = launched(_beside, *feats)
        if made is None:
            made = _beside(*feats)
            origin.note_cat(made, feats, [x._made for x in tensors])
            pace.noted(made)
    else:
        made = pointwise.beside(feats) if pointwise.direct(*feats) else _beside(*feats)
    y = _joined(key, made, tensors)
    y._made = True
    return y


def _beside(*feats: mx.array) -> mx.array:
    return mx.concatenate(list(feats), axis=1)


def _joined(key: CoordinateMapKey | None, feats: mx.array, tensors: Sequence[SparseTensor]) -> SparseTensor:
    # Padding rows are 0 in every operand, and so in the result.
    if key is None:
        return tensors[0].replace(feats, clean=True).noting(*tensors[1:])
    return SparseTensor._of(key, feats, *tensors, clean=True)


def _combine(
    a: SparseTensor,
    b: SparseTensor,
    join: str,
    capacity: int | None,
    name: str,
    function: Callable[[mx.array, mx.array], mx.array],
) -> SparseTensor:
    for label, x in (("a", a), ("b", b)):
        check_tensor(x, label)
    widths = (a.num_channels, b.num_channels)
    if widths[0] != widths[1] and 1 not in widths:
        raise ShapeError(f"{name}: operands have {widths[0]} and {widths[1]} channels; equal ones, or 1, fit")
    own = any(type(x).__add__ is not SparseTensor.__add__ for x in (a, b))
    if own and join == "strict" and capacity is None and name in OPERATORS:
        return OPERATORS[name](a, b)  # of a derived class (blocks/labels.py)
    key, (left, right) = _join([a, b], join, capacity, name)
    return _joined(key, function(left, right), (a, b))


def _join(
    tensors: list[SparseTensor], join: str, capacity: int | None, name: str
) -> tuple[CoordinateMapKey | None, list[mx.array]]:
    """(key of the result, None for the first operand's own; every operand's features on its rows)."""
    if join not in JOINS:
        raise MLXSparseError(f"{name}: join must be one of {JOINS}, got {join!r}")
    for i, x in enumerate(tensors):
        check_tensor(x, f"tensors[{i}]")
    if capacity is not None and join in ("strict", "left"):
        raise MLXSparseError(f"{name}: a {join} join keeps the rows of the first operand: leave capacity out")
    first = tensors[0]
    if join == "strict":
        for other in tensors[1:]:
            require_same_key(first, other, name)
        return None, [operand(x) for x in tensors]
    keys = tuple(x.key for x in tensors)
    # A transformation of MLX gives each operand a key of its own on the record that they share.
    if capacity is None and all(key._record is keys[0]._record for key in keys):
        return None, [operand(x) for x in tensors]
    if join == "left":
        check_lattices(keys, name)
        target = keys[0]
    elif join == "inner":
        target = intersection_key(keys, name, capacity)
    else:
        target = union_key(keys, name, capacity)
    if any(key.static for key in (*keys, target)):
        found = [static.rows_of(key, target.coords) for key in keys]
        return (None if join == "left" else target), [
            operand(x) if key is target else rows_kernel.take_distinct(x.feats, rows)
            for x, key, rows in zip(tensors, keys, found)
        ]
    sites = host.view(target.coords)[: target.count]
    feats = [
        operand(x) if key is target else take_rows(x.feats, padded(lookup(key.index, sites), target.capacity))
        for x, key in zip(tensors, keys)
    ]
    return (None if join == "left" else target), feats
