"""Random small cases for the comparison with spconv, and a brute-force kernel map."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tests.spconv_live.live import output_shape

KINDS = ("subm", "conv", "transposed", "pool")


@dataclass
class Case:
    """One layer and one input. Features and weights are small integers, so that float32 results are exact."""

    kind: str
    spatial_shape: tuple[int, int, int]
    batch_size: int
    ksize: tuple[int, int, int]
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    coords: np.ndarray  # int32 (N, 4), unique, in random order
    feats: np.ndarray  # int64 (N, Ci)
    weight: np.ndarray  # int64 (Co, Kx, Ky, Kz, Ci)

    @property
    def transposed(self) -> bool:
        return self.kind == "transposed"

    @property
    def output_shape(self) -> list[int]:
        return output_shape(
            self.spatial_shape, self.ksize, self.stride, self.padding, self.dilation, self.transposed
        )

    def __str__(self) -> str:
        geometry = f"k={self.ksize} s={self.stride} p={self.padding} d={self.dilation}"
        return f"{self.kind} shape={self.spatial_shape} {geometry} coords={self.coords.tolist()}"


def random_case(kind: str, seed: int) -> Case:
    """A case whose output shape is at least 1 on each axis."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    while True:
        case = _draw(kind, rng)
        if min(case.output_shape) >= 1:
            return case


def _triple(rng: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    x, y, z = (int(v) for v in rng.integers(low, high + 1, 3))
    return x, y, z


def _draw(kind: str, rng: np.random.Generator) -> Case:
    shape, batch_size = _triple(rng, 1, 9), int(rng.integers(1, 4))
    kx, ky, kz = _triple(rng, 1, 4)
    stride, padding, dilation = _triple(rng, 1, 3), _triple(rng, 0, 2), _triple(rng, 1, 2)
    if kind == "subm":  # spconv takes odd sizes only; the padding is the centred one
        kx, ky, kz = (2 * (k // 2) + 1 for k in (kx, ky, kz))
        stride, padding = (1, 1, 1), tuple(k // 2 * d for k, d in zip((kx, ky, kz), dilation))  # type: ignore
    sites = np.array(list(itertools.product(range(batch_size), *map(range, shape))), np.int32)
    count = int(rng.integers(1, min(len(sites), 60) + 1))
    coords = sites[rng.permutation(len(sites))[:count]]
    ci, co = (int(v) for v in rng.integers(1, 6, 2))
    return Case(
        kind,
        shape,
        batch_size,
        (kx, ky, kz),
        stride,
        padding,
        dilation,
        coords,
        rng.integers(-4, 5, (count, ci)),
        rng.integers(-3, 4, (co, kx, ky, kz, ci)),
    )


Site = tuple[int, ...]


def brute_force_map(case: Case) -> set[tuple[int, Site, Site]]:
    """(tap, input site, output site) of every pair, straight from the relation, by look-up."""
    rows = {tuple(int(v) for v in site) for site in case.coords}
    taps = list(itertools.product(*map(range, case.ksize)))
    outputs = itertools.product(range(case.batch_size), *map(range, case.output_shape))
    found = set()
    if case.transposed:  # out = in * s - p + k * d
        inside = set(outputs)
        for site, (tap, k) in itertools.product(rows, enumerate(taps)):
            moved = (
                i * s - p + t * d
                for i, s, p, t, d in zip(site[1:], case.stride, case.padding, k, case.dilation)
            )
            out = (site[0], *moved)
            if out in inside:
                found.add((tap, site, out))
        return found
    for out, (tap, k) in itertools.product(outputs, enumerate(taps)):  # in = out * s - p + k * d
        moved = (
            o * s - p + t * d for o, s, p, t, d in zip(out[1:], case.stride, case.padding, k, case.dilation)
        )
        site = (out[0], *moved)
        if site in rows and (case.kind != "subm" or out in rows):
            found.add((tap, site, out))
    return found
