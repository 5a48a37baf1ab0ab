"""`python tools/tap_tree.py`: prints the tree of taps that `mlxsparse/backend/tap_tree.py` holds.

Rows of a 3 x 3 x 3 kernel map are ordered so that rows of a tile need the same taps (`kernels/tap_key.h`).
In a fixed order the same few taps decide for all rows; a tree asks next for the tap that tells the rows left
apart best. It is grown, level by level, on made surfaces: of a tile of ROWS rows drawn from a node, tap t is
computed unless no row has it, so that a node of n rows costs n times the sum of 1 - (1 - p_t)^ROWS; each node
asks for the tap after which its two parts cost least.
"""

from __future__ import annotations

import pathlib
import sys

import mlx.core as mx
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import mlxsparse as ms  # noqa: E402
from mlxsparse.backend.tap_tree import DEPTH, LETTERS  # noqa: E402

ROWS = 128  # of a tile
SIDE = 40  # voxels


def basis(rng: np.random.Generator) -> np.ndarray:
    """A random (3, 3) rotation; half of the time some axes nearly stay."""
    a, b = rng.standard_normal((2, 3)) * rng.choice([0.05, 1.0], (2, 3), p=[0.3, 0.7])
    c = np.cross(a, b)
    made = np.stack([a, np.cross(c, a), c])
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def surface(rng: np.random.Generator, kind: int) -> np.ndarray:
    """(N, 3) int64 distinct voxels of points on a plane, a sphere, a corner, in space or lines of a scan."""
    n = int(SIDE**2 * np.exp(rng.uniform(np.log(0.1), np.log(8))))
    if kind == 0:
        points = (rng.random((n, 2)) - 0.5) * SIDE @ basis(rng)[:2]
    elif kind == 1:
        d = rng.standard_normal((n, 3))
        points = d / np.linalg.norm(d, axis=1, keepdims=True) * SIDE / rng.uniform(2, 8)
    elif kind == 2:
        points = rng.random((n, 3)) * SIDE * rng.uniform(0.2, 1)
        points[np.arange(n), rng.integers(0, 3, n)] = 0
        points = points @ basis(rng) if rng.random() < 0.5 else points
    elif kind == 3:
        points = rng.random((n, 3)) * (n / rng.uniform(0.03, 0.4)) ** (1 / 3)
    else:
        lines = max(2, n // 240)
        across = rng.integers(0, lines, n) * rng.uniform(1, 4)
        points = np.column_stack([rng.random(n) * 60, across, np.zeros(n)])
        points[:, 2] = points[:, :2] @ rng.uniform(-0.4, 0.4, 2)
        points = points @ basis(rng) if rng.random() < 0.5 else points
    noise = rng.standard_normal(points.shape) * rng.choice([0, 0.1, 0.3, 0.6])
    return np.unique(np.floor(points + noise + rng.random(3)).astype(np.int64), axis=0)


def masks(sites: np.ndarray) -> np.ndarray:
    """(N,) uint32: bit t tells whether tap t, (kx * 3 + ky) * 3 + kz, reads a site from here."""
    coords = np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)
    x = ms.SparseTensor(coords, mx.zeros((len(sites), 1)))
    pairs = x.manager.kernel_map(x.key, x.key, ms.Kernel.submanifold(3))
    found, bits = np.zeros(len(sites), np.uint32), np.uint32(1) << np.arange(27, dtype=np.uint32)
    np.bitwise_or.at(found, pairs.out_rows, np.repeat(bits, np.diff(pairs.tap_ptr)))
    return found


def cost(having: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Taps computed for the rows of a node: having (..., 27) of its rows (...) have each tap."""
    share = having / np.maximum(rows, 1)[..., None]
    return (rows[..., None] * (1 - (1 - share) ** ROWS)).sum(axis=-1)


def grown(rows: np.ndarray, depth: int) -> str:
    """The taps asked for, a letter each, level by level: after node i 2 i + 1 (without it) or 2 i + 2."""
    kinds, many = np.unique(rows, return_counts=True)
    has = (kinds[:, None] >> np.arange(27, dtype=np.uint32) & 1).astype(float)
    node, asked = np.zeros(len(kinds), np.int64), ""
    for level in range(depth):
        taps = np.zeros(1 << level, np.int64)
        for q in range(1 << level):
            here = node == q
            both = (has[here] * many[here, None]).T @ has[here]  # rows that have taps t and s
            total, each = many[here].sum(), both.diagonal()
            after = cost(both, each) + cost(each - both, total - each)
            after[total - each == 0] = after[each == 0] = np.inf  # asked before, or the same of all rows
            # A node without rows, or of one kind of them, asks for any tap not asked for on its way.
            taps[q] = np.argmin(after) if np.isfinite(after).any() else unasked(asked, level, q)
        asked += "".join(LETTERS[t] for t in taps)
        node = 2 * node + (kinds >> taps[node].astype(np.uint32) & 1)
    return asked


def unasked(asked: str, level: int, q: int) -> int:
    """The first tap that the nodes above node q of this level do not ask for."""
    node, above = (1 << level) - 1 + q, []
    while node:
        node = (node - 1) // 2
        above.append(asked[node])
    return next(t for t, letter in enumerate(LETTERS) if letter not in above)


def main() -> None:
    rng = np.random.default_rng(1)
    found = [masks(surface(rng, i % 5)) for i in range(1000)]
    tree = grown(np.concatenate(found), DEPTH)
    for start in range(0, len(tree), 100):
        print(f'    "{tree[start : start + 100]}"')


if __name__ == "__main__":
    main()
