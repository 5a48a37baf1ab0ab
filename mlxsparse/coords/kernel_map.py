"""KernelMap: the pairs of input and output rows that a kernel connects."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.device_map import DeviceMap
from ..engine.neighbors import TapPairs, Windows
from .geometry import Kernel


class KernelMap:
    """Pairs (input row, output row) of each tap, made once for a key pair and a kernel.

    ``kernel`` is the geometry, ``relation`` what the operators of mlxsparse.engine read: `Windows`
    where kernel and stride tile the lattice, else the pairs; on a GPU a `DeviceMap`. The row properties
    are for inspection; they are computed when asked for.
    """

    __slots__ = ("__weakref__", "_packing", "_selected", "calls", "kernel", "relation")

    def __init__(self, kernel: Kernel, relation: TapPairs | Windows | DeviceMap):
        self.kernel = kernel
        self.relation = relation
        self._selected: dict[tuple[int, ...], TapPairs | DeviceMap] = {}
        # On a GPU: convolutions over these pairs, checked and ready to run (ops/conv.py).
        self.calls: dict[tuple[Any, ...], Any] = {}
        self._packing = isinstance(relation, DeviceMap) and relation.symmetric

    def again(self) -> None:
        """Told before each convolution over these pairs: a map of a set onto itself is packed after a while.

        One of two sets is read once or twice, and then the memory of both forms would be in use. `calls` is
        another dictionary then: what others are making from the old tiles is not kept.
        """
        if self._packing and self.calls:
            assert isinstance(self.relation, DeviceMap)
            done = self.relation.output.pack()
            if done is not None:
                self._packing = False
            if done:
                self.calls = {}  # they held the tiles as they were

    @property
    def by_taps(self) -> TapPairs | DeviceMap:
        """What a convolution reads."""
        return self.relation.pairs if isinstance(self.relation, Windows) else self.relation

    def select(self, taps: tuple[int, ...]) -> TapPairs | DeviceMap:
        """The pairs of some taps, ascending; tap i of the result is taps[i]. Made once and kept."""
        if len(taps) == self.kernel.volume:
            return self.by_taps
        if taps not in self._selected:
            self._selected[taps] = self.by_taps.of_taps(taps)
        return self._selected[taps]

    @property
    def pairs(self) -> TapPairs:
        """The pairs on the host."""
        return self.relation if isinstance(self.relation, TapPairs) else self.relation.pairs

    @property
    def num_pairs(self) -> int:
        if isinstance(self.relation, Windows):
            return self.relation.num_in
        if isinstance(self.relation, DeviceMap):
            return int(np.array(self.relation.counts()).sum())
        return len(self.relation.in_rank)

    @property
    def tap_ptr(self) -> np.ndarray:
        """(T + 1,) int64: tap t owns pairs [tap_ptr[t], tap_ptr[t + 1])."""
        return self.pairs.tap_ptr

    @property
    def in_rows(self) -> np.ndarray:
        """(P,) int32 input row of each pair."""
        return self.pairs.in_rows()

    @property
    def out_rows(self) -> np.ndarray:
        """(P,) int32 output row of each pair."""
        return self.pairs.out_rows()

    @property
    def nbytes(self) -> int:
        """Bytes that the pairs hold."""
        if isinstance(self.relation, DeviceMap):
            return self.relation.nbytes
        if isinstance(self.relation, Windows) and "pairs" not in self.relation.__dict__:
            order = self.relation.order
            return self.relation.starts.nbytes + (0 if order is None else order.nbytes)
        return self.pairs.in_rank.nbytes + self.pairs.out_rank.nbytes + self.pairs.tap_ptr.nbytes

    def __repr__(self) -> str:
        sites = f"{self.relation.num_in}->{self.relation.num_out}"
        return f"KernelMap(kernel={self.kernel.size}, pairs={self.num_pairs}, sites={sites})"
