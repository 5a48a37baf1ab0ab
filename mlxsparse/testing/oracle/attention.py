"""Attention inside groups of rows, as dense masked attention in float64, and which rows share a group."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlxsparse.testing.oracle.blocks import masked_softmax
from mlxsparse.testing.oracle.curves import curve_rows

Array = np.ndarray[Any, Any]


def window_groups(coords: Array, window: tuple[int, ...], shift: tuple[int, ...]) -> Array:
    """(n,) a number for each window of (batch, x, y, z) rows: batch and floor((c + shift) / window)."""
    names = [
        (int(b), *((c + shift[a]) // window[a] for a, c in enumerate(xyz))) for b, *xyz in coords.tolist()
    ]
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], np.int64)


def patch_allowed(coords: Array, size: int, order: str, borrow: bool) -> Array:
    """(n, n) bool: which row sees which, in patches of `size` rows along a curve, item by item.

    borrow: the last, incomplete patch of an item also sees the rows before it, `size` rows in all.
    """
    allowed = np.zeros((len(coords), len(coords)), bool)
    rows = curve_rows(coords, order)
    for b in np.unique(coords[:, 0]):
        own = [r for r in rows if coords[r, 0] == b]
        for start in range(0, len(own), size):
            patch = own[start : start + size]
            seen = own[max(0, len(own) - size) :] if borrow and len(patch) < size else patch
            for r in patch:
                allowed[r, seen] = True
    return allowed


def grouped_attention(
    q: Array, k: Array, v: Array, allowed: Array, scale: float, ct: Array | None = None
) -> tuple[Array, ...]:
    """q (N, H, D), k (M, Hk, D), v (M, Hk, Dv), allowed (N, M) -> out (N, H, Dv), or with `ct`, the
    gradients (dq, dk, dv). A row that sees nothing gives 0."""
    repeat = q.shape[1] // k.shape[1]
    q, k, v = (a.astype(np.float64).swapaxes(0, 1) for a in (q, k, v))
    wide_k, wide_v = np.repeat(k, repeat, axis=0), np.repeat(v, repeat, axis=0)
    p, _ = masked_softmax(
        scale * (q @ wide_k.swapaxes(1, 2)), np.broadcast_to(allowed, (len(q), *allowed.shape))
    )
    if ct is None:
        return ((p @ wide_v).swapaxes(0, 1),)
    g = ct.astype(np.float64).swapaxes(0, 1)
    dp = g @ wide_v.swapaxes(1, 2)
    ds = scale * p * (dp - (p * dp).sum(axis=2, keepdims=True))

    def folded(a: Array) -> Array:
        return a.reshape(len(k), repeat, *a.shape[1:]).sum(axis=1).swapaxes(0, 1)

    return (ds @ wide_k).swapaxes(0, 1), folded(ds.swapaxes(1, 2) @ q), folded(p.swapaxes(1, 2) @ g)
