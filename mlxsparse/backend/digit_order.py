"""A stable order of rows by small keys, digit by digit: a sort by comparisons takes many more kernels."""

from __future__ import annotations

import mlx.core as mx

from .library import MAX_THREADS, blocks, check_array, launch, unread_rows

DIGIT_BITS = 7
DIGITS = 1 << DIGIT_BITS
FEW = 1 << 17  # rows up to which there are more threadgroups, of a quarter of the rows
STEPS = (4, 16)  # of 256 rows, how many a threadgroup takes
CHUNK = max(STEPS) * MAX_THREADS  # rows; windows are a multiple


def places_by_key(keys: mx.array, last: int, window: int, steps: int | None = None) -> mx.array:
    """(n,) int32: the row of each place. Windows of rows stay, in each rows are in the order of their keys.

    keys: (n,) uint32, n at least 1, at most `last`; equal ones stay as they are. window: rows, a multiple of
    CHUNK. steps: one of STEPS, by default as the number of rows asks. For each 7 bits keys and rows are read
    twice and rows written once: at least 20 bytes a row.
    """
    check_array("keys", keys, 1, mx.uint32)
    n = keys.size
    if steps is None:
        steps = STEPS[n > FEW or STEPS[0] * MAX_THREADS < n <= CHUNK]
    chunks, each = blocks(n, steps * MAX_THREADS), window // (steps * MAX_THREADS)
    width = max(1, last.bit_length())
    order, passes = None, blocks(width, DIGIT_BITS)
    bits = blocks(width, passes)
    for shift in range(0, bits * passes, bits):
        dims = [n, shift, bits, int(order is None)]
        inputs = [keys, unread_rows() if order is None else order]
        totals, groups = unread_rows(), (chunks, 1, 1)
        if chunks > 1:
            totals = launch("digit_counts", inputs, dims, [(chunks * DIGITS,)], groups, STEPS=steps)[0]
        inputs.append(totals)
        order = launch("digit_places", inputs, [*dims, each, chunks], [(n,)], groups, STEPS=steps)[0]
    assert order is not None
    return order
