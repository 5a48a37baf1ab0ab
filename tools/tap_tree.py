"""`python tools/tap_tree.py`: prints the tree of taps that `mlxsparse/backend/tap_tree.py` holds.

Rows of a 3 x 3 x 3 kernel map are ordered so that rows of a tile need the same taps (`kernels/tap_key.h`).
A tree asks next for the tap that tells the rows left apart best. It is grown on made surfaces, seen by
submanifold and a few by strided kernels: of a tile of ROWS rows drawn from a node, tap t is computed unless
no row has it, so that a node of n rows costs n times the sum of 1 - (1 - p_t)^ROWS. Again and again the leaf
that gains most by its best tap asks for it, until there are LEAVES.
"""

from __future__ import annotations

import heapq
import pathlib
import sys

import mlx.core as mx
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import mlxsparse as ms  # noqa: E402
from mlxsparse.backend.tap_tree import LEAF, LETTERS  # noqa: E402

ROWS = 128  # of a tile
LEAVES = 8192
STRIDED = 8  # of so many surfaces one is also seen by a strided kernel
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


def masks(sites: np.ndarray, stride: int = 1) -> np.ndarray:
    """(M,) uint32: bit t tells whether tap t, (kx * 3 + ky) * 3 + kz, of an output reads one of the sites.

    Outputs are the sites, or of a stride above 1 all that a tap reaches.
    """
    coords = np.column_stack([np.zeros(len(sites)), sites]).astype(np.int32)
    x = ms.SparseTensor(coords, mx.zeros((len(sites), 1)))
    kernel, to = ms.Kernel.submanifold(3), x.key
    if stride > 1:
        to = x.manager.stride(x.key, stride, kernel_size=3, padding=1, support="touched")
        kernel = ms.Kernel.of(3, stride, 1)
    pairs = x.manager.kernel_map(x.key, to, kernel)
    found, bits = np.zeros(to.count, np.uint32), np.uint32(1) << np.arange(27, dtype=np.uint32)
    np.bitwise_or.at(found, pairs.out_rows, np.repeat(bits, np.diff(pairs.tap_ptr)))
    return found


def cost(having: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Taps computed for the rows of a node: having (..., 27) of its rows (...) have each tap."""
    share = having / np.maximum(rows, 1)[..., None]
    return (rows[..., None] * (1 - (1 - share) ** ROWS)).sum(axis=-1)


def best_tap(has: np.ndarray, many: np.ndarray) -> tuple[float, int] | None:
    """What is gained by asking for a tap, and that tap; None where all rows are alike.

    has (K, 27): taps of each kind of row; many (K,): rows of it.
    """
    both = (has * many[:, None]).T @ has  # rows that have taps t and s
    total, each = many.sum(), both.diagonal()
    after = cost(both, each) + cost(each - both, total - each)
    after[(each == 0) | (each == total)] = np.inf
    tap = int(np.argmin(after))
    return (float(cost(each, total) - after[tap]), tap) if np.isfinite(after[tap]) else None


def grown(rows: np.ndarray, leaves: int) -> str:
    """A tree of at most so many leaves: a tap's letter, what asks on without it, what asks on with it."""
    kinds, many = np.unique(rows[rows != 0], return_counts=True)
    has = (kinds[:, None] >> np.arange(27, dtype=np.uint32) & 1).astype(float)
    taps: dict[int, int] = {}  # of node i, whose children are 2 i + 1 and 2 i + 2
    open_: list[tuple[float, int, int, np.ndarray]] = []  # less the gain, node, tap, its kinds

    def look(node: int, here: np.ndarray) -> None:
        found = best_tap(has[here], many[here].astype(float)) if len(here) else None
        if found is not None:
            heapq.heappush(open_, (-found[0], node, found[1], here))

    look(0, np.arange(len(kinds)))
    while open_ and len(taps) + 1 < leaves:
        _, node, tap, here = heapq.heappop(open_)
        taps[node] = tap
        having = has[here, tap] == 1
        look(2 * node + 1, here[~having])
        look(2 * node + 2, here[having])

    def text(node: int) -> str:
        return LETTERS[taps[node]] + text(2 * node + 1) + text(2 * node + 2) if node in taps else LEAF

    return text(0)


def main() -> None:
    rng = np.random.default_rng(1)
    surfaces = [surface(rng, i % 5) for i in range(1000)]
    found = [masks(s) for s in surfaces]
    found += [masks(s, 2) for s in surfaces[::STRIDED]]
    tree = grown(np.concatenate(found), LEAVES)
    for start in range(0, len(tree), 100):
        print(f'    "{tree[start : start + 100]}"')


if __name__ == "__main__":
    main()
