"""Sorting on the GPU: places of keys in order, by digits where there are many."""

from __future__ import annotations

import mlx.core as mx

from .library import blocks, check_array, launch

KEYS = 4096  # of a threadgroup of kernels/digit_places.metal
BY_DIGITS = 1 << 18  # keys from which on this is faster than MLX's sort, which merges


def places(keys: mx.array) -> mx.array:
    """Places of (n,) uint32 keys in ascending order of these: (n,) int32."""
    if keys.size < BY_DIGITS:
        return mx.argsort(keys).view(mx.int32)
    return places_by_digits(keys)


def places_by_digits(keys: mx.array) -> mx.array:
    """As `places`, of at least one key, equal ones as they lie."""
    check_array("keys", keys, 1, mx.uint32)
    n, groups = keys.size, blocks(keys.size, KEYS)
    order = keys.view(mx.int32)  # not read in the first pass
    for shift in (0, 8, 16, 24):
        counts = launch("digit_counts", [keys], [n, shift], [(groups, 128)], (groups, 1, 1))[0]
        dims = [n, shift, groups, int(shift > 0)]
        keys, order = launch("digit_places", [keys, order, counts], dims, [(n,), (n,)], (groups, 1, 1))
    return order
