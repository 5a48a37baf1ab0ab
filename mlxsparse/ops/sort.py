"""Sites along a curve: lexicographic, Morton (Z-order) and Hilbert order."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ..backend import executor, host
from ..coords.geometry import whole
from ..coords.keys import host_rows
from ..engine.curves import ORDERS, curve_order
from ..errors import CoordinateRangeError, MLXSparseError, ShapeError
from ..tensor import SparseTensor
from .check import check_tensor
from .select import take_sites


def serialize(x: SparseTensor, order: str = "hilbert", *, depth: int | None = None) -> mx.array:
    """Active rows of x in the order of a curve, batch item by batch item: (active rows,) int32.

    order: "lexicographic" (x, y, z); "morton", the bits of x, y and z in turn, x highest; "hilbert",
    Skilling's curve, on which consecutive cells share a face; "morton-trans" and "hilbert-trans", the
    same with x and y swapped.

    The curves run over the whole lattice, negative coordinates first, so the order of two sites does
    not depend on the others. With `depth` they run over [0, 2**depth) on each axis only, which starts
    and turns the Hilbert curve as code that takes the depth from the data does; a site outside raises
    CoordinateRangeError.
    """
    return host.to_mlx(_rows(x, order, depth).astype(np.int32))


def sort(x: SparseTensor, order: str = "lexicographic", *, depth: int | None = None) -> SparseTensor:
    """x with its rows in the order of a curve, as in `serialize`, on a new key; differentiable."""
    return take_sites(x, _rows(x, order, depth))


def _rows(x: SparseTensor, order: str, depth: int | None) -> np.ndarray:
    check_tensor(x)
    executor()
    if order not in ORDERS:
        raise MLXSparseError(f"order must be one of {ORDERS}, got {order!r}")
    depth = checked_depth(x, depth)
    return curve_order(host.view(x.key.coords)[: x.key.count], order, depth)


def checked_depth(x: SparseTensor, depth: int | None) -> int | None:
    """The depth; ShapeError or CoordinateRangeError unless it is None, or a curve of that depth holds x."""
    if depth is None:
        return None
    depth = whole(depth, "depth", 1)
    if depth > 30:
        raise ShapeError(f"depth must be at most 30, got {depth}")
    sites = host_rows(x.key.coords)[: x.key.count]
    if len(sites) and not 0 <= int(sites[:, 1:].min()) <= int(sites[:, 1:].max()) < 2**depth:
        raise CoordinateRangeError(
            f"coords must lie in [0, 2**{depth}) for depth={depth}, got [{sites[:, 1:].min()}, "
            f"{sites[:, 1:].max()}]; shift the origin, raise depth, or leave it out"
        )
    return depth
