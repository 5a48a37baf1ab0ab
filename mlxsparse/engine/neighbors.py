"""Kernel maps: which input site meets which output site under each tap, on the host.

Pairs are held by rank (engine/index.py) and ascend on both sides inside a tap, because a tap shifts
lexicographic order without changing it. So an operator can walk either side in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..backend.host import parallel
from ..errors import CapacityError
from .index import BIAS, LIMIT, CoordIndex, child_keys, find

Triple = tuple[int, int, int]
MOST_TAPS = 2**21  # of a window whose pairs are held by taps: each has an end, and work of its own


@dataclass(frozen=True, eq=False)
class TapPairs:
    """Pairs sorted by (tap, rank); tap t owns ``[tap_ptr[t], tap_ptr[t + 1])``."""

    in_rank: np.ndarray  # (P,) int32
    out_rank: np.ndarray  # (P,) int32
    tap_ptr: np.ndarray  # (T + 1,) int64
    in_order: np.ndarray | None  # (num_in,) int32 row of each input rank; None: the rank itself
    out_order: np.ndarray | None
    num_in: int
    num_out: int
    # What operators read again, made at first use: tables of kernels (engine/tables.py), bounds of blocks
    # (engine/gather_gemm.py). `flipped` pairs share it with those they flip.
    tables: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)
    flipped: bool = False

    def in_rows(self) -> np.ndarray:
        """(P,) int32 input row of each pair."""
        return self.in_rank if self.in_order is None else self.in_order.take(self.in_rank)

    def out_rows(self) -> np.ndarray:
        """(P,) int32 output row of each pair."""
        return self.out_rank if self.out_order is None else self.out_order.take(self.out_rank)

    def of_taps(self, taps: Sequence[int]) -> TapPairs:
        """The pairs of some taps, which must ascend."""
        spans = [slice(self.tap_ptr[t], self.tap_ptr[t + 1]) for t in taps]
        return TapPairs(
            np.concatenate([_NONE, *(self.in_rank[s] for s in spans)]),
            np.concatenate([_NONE, *(self.out_rank[s] for s in spans)]),
            np.concatenate(([0], np.cumsum([s.stop - s.start for s in spans], dtype=np.int64))),
            self.in_order,
            self.out_order,
            self.num_in,
            self.num_out,
        )

    def transposed(self) -> TapPairs:
        """The same pairs read from output to input."""
        return TapPairs(
            self.out_rank,
            self.in_rank,
            self.tap_ptr,
            self.out_order,
            self.in_order,
            self.num_out,
            self.num_in,
            self.tables,
            not self.flipped,
        )


def tap_pairs(
    source: CoordIndex, query: CoordIndex, size: Triple, stride: Triple, padding: Triple, dilation: Triple
) -> TapPairs:
    """Pairs with ``input = output * stride - padding + k * dilation`` (input in `source`).

    One search per (kx, ky) column of taps; a map of a set onto itself that is symmetric under
    k -> K - 1 - k searches half of the taps and mirrors the rest.
    """
    kx, ky, kz = size
    taps = kx * ky * kz
    symmetric = (
        source is query
        and tuple(stride) == (1, 1, 1)
        and all(k % 2 == 1 and p == (k // 2) * d for k, p, d in zip(size, padding, dilation))
    )
    centre = (kx // 2) * ky + ky // 2
    found: list[tuple[np.ndarray, np.ndarray]] = [(_NONE, _NONE)] * taps
    # Columns of taps at and before the centre suffice for a symmetric map.
    columns = range(centre + 1 if symmetric else kx * ky)
    slabs = _slab_targets(source, query, size, stride, padding, dilation)

    def search(column: int) -> None:
        x, y = divmod(column, ky)
        last = kz // 2 if symmetric and column == centre else kz
        if symmetric and column == centre and kz == 3 and dilation[2] == 1:
            found[column * kz] = _next_below(query)
            return
        pairs = _column_pairs(source, query, slabs[x], y, last, stride, padding, dilation)
        found[column * kz : column * kz + last] = pairs

    parallel(search, columns, small=query.size < 4096)
    if symmetric:
        every = np.arange(query.size, dtype=np.int32)
        found[taps // 2] = (every, every)
        for t in range(taps // 2):
            a, b = found[t]
            found[taps - 1 - t] = (b, a)
    counts = [len(a) for a, _ in found]
    return TapPairs(
        np.concatenate([a for a, _ in found]),
        np.concatenate([b for _, b in found]),
        np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
        source.order,
        query.order,
        source.size,
        query.size,
    )


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows that tile the lattice (K = s, p = 0, d = 1): the inputs of each output, which has at least one.

    Output o has the inputs ``order[starts[o] : starts[o + 1]]``, taps ascending.
    """

    source: CoordIndex
    query: CoordIndex
    stride: Triple
    order: np.ndarray | None  # (num_in,) int64 input ranks; None: ascending
    starts: np.ndarray  # (num_out,) int64

    @property
    def num_in(self) -> int:
        return self.source.size

    @property
    def num_out(self) -> int:
        return self.query.size

    @property
    def volume(self) -> int:
        """Sites of a full window."""
        return self.stride[0] * self.stride[1] * self.stride[2]

    @cached_property
    def counts(self) -> np.ndarray:
        """(num_out,) int64 inputs of each output."""
        return np.diff(self.starts, append=self.num_in)

    @cached_property
    def rows(self) -> np.ndarray:
        """(num_in,) input row of each place of `order`."""
        order = np.arange(self.num_in) if self.order is None else self.order
        return order if self.source.order is None else self.source.order.take(order)

    @cached_property
    def pairs(self) -> TapPairs:
        """The same by taps. No search: a site's tap is what floor(c / s) leaves over."""
        if self.volume > MOST_TAPS:
            raise CapacityError(
                f"a window of {self.stride} has {self.volume} taps, gradients and upsampling take at most "
                f"{MOST_TAPS}: use several smaller ones"
            )
        kind = np.uint16 if self.volume <= 2**16 else np.int64
        tap = np.zeros(self.num_in, kind)
        for column, s in zip(self.source.columns[1:], self.stride):
            tap *= kind(s)
            # The same remainder for negative coordinates, in half the time.
            tap += (column & (s - 1) if s & (s - 1) == 0 else column % s).astype(kind)
        out = np.repeat(np.arange(self.num_out, dtype=np.int32), self.counts)
        place = (tap if self.order is None else tap.take(self.order)).argsort(kind="stable")
        # Parents ascend with their inputs within a tap, so this is the order by rank as well.
        return TapPairs(
            (place if self.order is None else self.order.take(place)).astype(np.int32),
            out.take(place),
            np.concatenate(([0], np.cumsum(np.bincount(tap, minlength=int(np.prod(self.stride)))))),
            self.source.order,
            self.query.order,
            self.num_in,
            self.num_out,
        )


_NONE = np.empty(0, np.int32)


def _next_below(index: CoordIndex) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of every site with the one at z - 1, which is its neighbour by rank."""
    rank = np.flatnonzero(np.diff(index.site_keys[:-1]) == 1).astype(np.int32)
    return rank, rank + np.int32(1)


def _slab_targets(
    source: CoordIndex, query: CoordIndex, size: Triple, stride: Triple, padding: Triple, dilation: Triple
) -> list[np.ndarray]:
    """For each kx: the source slab that every query slab (batch, x) meets, or -1."""
    keys = query.slab_keys[:-1]
    batch, x = keys >> 32, (keys & (2**32 - 1)) - BIAS
    return [
        find(source.slab_keys, child_keys(batch, x * stride[0] - padding[0] + k * dilation[0]))
        for k in range(size[0])
    ]


def _column_pairs(
    source: CoordIndex,
    query: CoordIndex,
    slab_target: np.ndarray,
    ky: int,
    last: int,
    stride: Triple,
    padding: Triple,
    dilation: Triple,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(input rank, output rank) of taps (kx, ky, 0..last-1), where kx chose `slab_target`."""
    if last == 0 or query.size == 0 or source.size == 0:
        return [(_NONE, _NONE)] * last
    y = (query.column_keys[:-1] & (2**32 - 1)) - BIAS
    y = y * stride[1] - padding[1] + ky * dilation[1]
    column = find(source.column_keys, child_keys(slab_target.take(query.column_slab), y))
    target = column.take(query.site_column)
    z = query.coords[:, 3].astype(np.int64) * stride[2] - padding[2]
    reach = (last - 1) * dilation[2]
    usable = (target >= 0) & (z + reach > -LIMIT) & (z < LIMIT)
    # Places of the True (flatnonzero) and take are several times faster than indexing by a mask.
    rank = np.flatnonzero(usable)
    if len(rank) < query.size:
        target, z = target.take(rank), z.take(rank)
    rank = rank.astype(np.int32)
    wanted = (target.astype(np.int64) << 32) + (z + BIAS)
    place = np.searchsorted(source.site_keys, wanted)
    hit = np.empty(0, bool)
    pairs = []
    for k in range(last):
        if k and dilation[2] == 1:
            place += hit  # keys are distinct: the next place is one further exactly after a hit
            wanted += 1
        elif k:
            wanted += dilation[2]
            place = np.searchsorted(source.site_keys, wanted)
        hit = source.site_keys.take(place) == wanted
        found = np.flatnonzero(hit)
        pairs.append((place.take(found).astype(np.int32), rank.take(found)))
    return pairs
