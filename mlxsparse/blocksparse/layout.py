"""BlockLayout: which blocks of a matrix are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..engine.block_index import BlockIndex
from ..engine.sorting import distinct
from ..errors import CoordinateRangeError, DTypeError, MLXSparseError, ShapeError
from .check import as_mask, block_pair, whole_number, whole_numbers
from .sequences import check_cu_seqlens, intervals, ranges

MAX_BLOCKS = 2**31 - 1


class BlockLayout:
    """Stored blocks of an (M, N) matrix per head; immutable, equal and hashed by content.

    Args:
        mask: bool (H, R, C) or (R, C), NumPy or MLX: True where a block is stored.
        block: elements of a block, an int or (rows, columns).
        shape: (M, N) in elements, by default whole blocks. A last block may lie partly outside: what packed
            values hold there is not read, and results are 0 there.

    heads, rows, cols (nnz,) int32 are the stored blocks in packed order: row-major over (head, row, column).
    Raises ShapeError and DTypeError.
    """

    index: BlockIndex
    _digest: str

    def __init__(self, mask: Any, block: int | Sequence[int], *, shape: Sequence[int] | None = None):
        m = as_mask("mask", mask)
        if m.ndim == 2:
            m = m[None]
        if m.ndim != 3:
            raise ShapeError(f"mask has shape {m.shape}, wanted (H, R, C) or (R, C)")
        heads, rows, cols = np.nonzero(m)
        self._set(m.shape, block_pair(block), shape, heads, rows, cols)

    def _set(
        self,
        grid: tuple[int, ...],
        block: tuple[int, int],
        shape: Sequence[int] | None,
        heads: np.ndarray,
        rows: np.ndarray,
        cols: np.ndarray,
    ) -> None:
        """`heads`, `rows`, `cols` are sorted and distinct."""
        h, r, c = (int(v) for v in grid)
        size = (r * block[0], c * block[1]) if shape is None else whole_numbers("shape", shape)
        if len(size) != 2 or any(-(-s // b) != n for s, b, n in zip(size, block, (r, c))):
            raise ShapeError(
                f"shape {size} with blocks of {block} takes {tuple(-(-s // b) for s, b in zip(size, block))} "
                f"blocks, the mask has {(r, c)}"
            )
        places = [np.ascontiguousarray(a, np.int32) for a in (heads, rows, cols)]
        for a in places:
            a.flags.writeable = False
        self.index = BlockIndex((h, r, c), block, (size[0], size[1]), places[0], places[1], places[2])
        content = hashlib.sha256(repr((self.grid, self.block, self.shape)).encode())
        for a in places:
            content.update(a.data)
        self._digest = content.hexdigest()

    @classmethod
    def _of(
        cls,
        grid: tuple[int, int, int],
        block: tuple[int, int],
        shape: tuple[int, int] | None,
        key: np.ndarray,
    ) -> BlockLayout:
        """From sorted distinct keys (head * R + row) * C + column."""
        made = cls.__new__(cls)
        line, cols = np.divmod(key, max(grid[2], 1))
        heads, rows = np.divmod(line, max(grid[1], 1))
        made._set(grid, block, shape, heads, rows, cols)
        return made

    # ------------------------------------------------------------ makers

    @classmethod
    def from_mask(
        cls, mask: Any, block: int | Sequence[int], *, shape: Sequence[int] | None = None
    ) -> BlockLayout:
        """As the constructor: mask bool (H, R, C) or (R, C) in blocks."""
        return cls(mask, block, shape=shape)

    @classmethod
    def from_pairs(
        cls, pairs: Any, block: int | Sequence[int], *, shape: Sequence[int], heads: int = 1
    ) -> BlockLayout:
        """From block indices: pairs int (n, 2) (row, column) for every head, or (n, 3) (head, row, column).

        Any order; repeated pairs count once. CoordinateRangeError where one lies outside `shape` (M, N).
        """
        p = np.asarray(pairs)
        if p.size == 0:
            p = np.zeros((0, 2), np.int64)
        if p.ndim != 2 or p.shape[1] not in (2, 3):
            raise ShapeError(
                f"pairs has shape {p.shape}, wanted (n, 2) (row, column) or (n, 3) (head, row, column)"
            )
        if p.dtype.kind not in "iu":
            raise DTypeError(f"pairs is {p.dtype}, wanted integers")
        size, grid = _grid(shape, block_pair(block), heads)
        p = p.astype(np.int64)
        limits = np.array(grid[3 - p.shape[1] :])
        if len(p) and ((p < 0) | (p >= limits)).any():
            bad = p[((p < 0) | (p >= limits)).any(axis=1)][0]
            raise CoordinateRangeError(
                f"pair {bad.tolist()} lies outside the grid of {limits.tolist()} blocks"
            )
        if p.shape[1] == 2:
            key = distinct(p[:, 0] * grid[2] + p[:, 1])
            key = (np.arange(heads)[:, None] * (grid[1] * grid[2]) + key).reshape(-1)
        else:
            key = distinct((p[:, 0] * grid[1] + p[:, 1]) * grid[2] + p[:, 2])
        return cls._of(grid, block_pair(block), size, key)

    @classmethod
    def from_cu_seqlens(
        cls, cu_seqlens: Any, block: int | Sequence[int], *, cu_seqlens_k: Any = None, heads: int = 1
    ) -> BlockLayout:
        """Blocks in which a sequence attends to itself (or to its keys), without an N x N mask.

        cu_seqlens int (B + 1,): 0, then the ends of the sequences, not descending; cu_seqlens_k the same for
        the columns. A block that two sequences share is stored, so attention also needs
        ``segments=segment_ids(cu_seqlens)`` unless the ends are multiples of the block.
        """
        q = check_cu_seqlens("cu_seqlens", cu_seqlens)
        k = q if cu_seqlens_k is None else check_cu_seqlens("cu_seqlens_k", cu_seqlens_k)
        if len(q) != len(k):
            raise ShapeError(f"cu_seqlens has {len(q) - 1} sequences, cu_seqlens_k has {len(k) - 1}")
        size = block_pair(block)
        shape, grid = _grid((int(q[-1]), int(k[-1])), size, heads)
        rows, lo, hi = intervals(q, k, size)
        total = int((hi - lo).sum()) * heads
        if total > MAX_BLOCKS:
            raise MLXSparseError(f"{total} blocks pass {MAX_BLOCKS}; use larger blocks")
        key = np.repeat(rows, hi - lo) * grid[2] + ranges(lo, hi)
        if heads > 1:
            key = (np.arange(heads)[:, None] * (grid[1] * grid[2]) + key).reshape(-1)
        return cls._of(grid, size, shape, key)

    @classmethod
    def from_spec(cls, spec: Any, keep: Any) -> Any:
        """Blocks that a two-dimensional block spec keeps; of a coupling {spec: layout} for each spec in it.

        spec: a BlockSpec, which has grid_shape (R, C), block_shape (br, bc) and view.shape (M, N), or a
        BlockCoupling of such. keep: bool (R, C), a value for each block of `spec`; where a coupling turns the
        grid of one of its specs, the layout is that of the spec as it lies. Raises DTypeError and ShapeError.
        """
        # Couplings of scopes have orders, too, but no blocks of their own.
        coupled = hasattr(spec, "orders") and hasattr(spec, "block_numel")
        if not coupled and not (hasattr(spec, "block_shape") and hasattr(spec, "view")):
            raise DTypeError(f"spec is a {type(spec).__name__}, wanted a BlockSpec or a BlockCoupling")
        mask = as_mask("keep", keep)
        if len(spec.grid_shape) != 2 or mask.shape != tuple(spec.grid_shape):
            raise ShapeError(
                f"keep has shape {mask.shape}, wanted the grid {tuple(spec.grid_shape)}, two axes"
            )
        if not coupled:
            return cls(mask, tuple(spec.block_shape), shape=tuple(spec.view.shape))
        turned = ((one, mask.transpose(np.argsort(order))) for one, order in zip(spec.specs(), spec.orders))
        return {one: cls.from_spec(one, kept) for one, kept in turned}

    @classmethod
    def from_maskspec(
        cls,
        mask_spec: Any,
        layout: Any,
        src: str,
        dst: str,
        block: int | Sequence[int],
        *,
        fallback: str = "full",
    ) -> BlockLayout:
        """Blocks of a canvas's N positions (N, N) that hold a pair of `masks.mask_to_index_pairs`.

        mask_spec, layout (a CanvasLayout), src, dst and fallback are those of mask_to_index_pairs. Attention
        over the layout alone lets a block's other positions in; `masks.AttentionDispatcher` is exact. Voxels
        need an order of rows as well: VoxelLayout.compile. Raises DTypeError, ShapeError and MLXSparseError.
        """
        if not hasattr(layout, "index_pairs"):
            raise DTypeError(
                f"layout is a {type(layout).__name__}, wanted a CanvasLayout; over voxels use "
                "VoxelLayout.compile(Connection(src, dst, mask_spec))"
            )
        n, size = layout.num_positions, block_pair(block)
        mask = np.zeros([-(-n // side) for side in size], bool)
        for pair in layout.index_pairs(mask_spec, src, dst, fallback=fallback):
            mask[np.ix_(*(np.unique(np.array(at) // side) for at, side in zip(pair, size)))] = True
        return cls(mask, size, shape=(n, n))

    # ------------------------------------------------------------ description

    @property
    def grid(self) -> tuple[int, int, int]:
        """(H, R, C) in blocks."""
        return self.index.grid

    @property
    def block(self) -> tuple[int, int]:
        """(rows, columns) of a block."""
        return self.index.block

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N) in elements."""
        return self.index.shape

    @property
    def num_heads(self) -> int:
        return self.index.grid[0]

    @property
    def heads(self) -> np.ndarray:
        return self.index.heads

    @property
    def rows(self) -> np.ndarray:
        return self.index.rows

    @property
    def cols(self) -> np.ndarray:
        return self.index.cols

    @property
    def nnz(self) -> int:
        """Stored blocks over all heads."""
        return self.index.nnz

    @property
    def density(self) -> float:
        """Share of the grid's blocks that is stored; 0 for an empty grid."""
        return self.nnz / max(1, int(np.prod(self.grid)))

    @property
    def row_ptr(self) -> np.ndarray:
        """(H * R + 1,): block row (h, r) has the packed blocks row_ptr[h * R + r] up to the next."""
        return _read_only(self.index.by_row.ptr)

    @property
    def col_ptr(self) -> np.ndarray:
        """(H * C + 1,): where each block column starts in `col_order`."""
        return _read_only(self.index.by_col.ptr)

    @property
    def col_order(self) -> np.ndarray:
        """(nnz,): packed blocks sorted by (head, column, row)."""
        return _read_only(self.index.by_col.block)

    def packed_shape(self, batch: int = 1) -> tuple[int, int, int, int]:
        """Shape of packed values: (Z, nnz, br, bc)."""
        return (batch, self.nnz, *self.block)

    def to_dense(self) -> np.ndarray:
        """bool (H, R, C): True where a block is stored."""
        return self.index.places >= 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockLayout) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return (
            f"BlockLayout(shape={self.shape}, block={self.block}, heads={self.num_heads}, nnz={self.nnz}, "
            f"density={self.density:.3g})"
        )

    def __reduce__(self) -> Any:
        return _restore, (self.grid, self.block, self.shape, self._key)

    # ------------------------------------------------------------ algebra

    @cached_property
    def _key(self) -> np.ndarray:
        _, r, c = self.grid
        return (self.heads.astype(np.int64) * r + self.rows) * c + self.cols

    def _combined(self, other: BlockLayout, key: np.ndarray) -> BlockLayout:
        return BlockLayout._of(self.grid, self.block, self.shape, key)

    def _check_same_grid(self, other: Any, what: str) -> None:
        if not isinstance(other, BlockLayout):
            raise DTypeError(f"{what} is a {type(other).__name__}, wanted a BlockLayout")
        mine, theirs = (self.grid, self.block, self.shape), (other.grid, other.block, other.shape)
        if mine != theirs:
            raise ShapeError(f"{what} has grid, block and shape {theirs}, wanted {mine}")

    def __or__(self, other: BlockLayout) -> BlockLayout:
        self._check_same_grid(other, "the other layout")
        return self._combined(other, distinct(np.concatenate([self._key, other._key])))

    def __and__(self, other: BlockLayout) -> BlockLayout:
        self._check_same_grid(other, "the other layout")
        return self._combined(other, np.intersect1d(self._key, other._key, assume_unique=True))

    def __sub__(self, other: BlockLayout) -> BlockLayout:
        self._check_same_grid(other, "the other layout")
        return self._combined(other, np.setdiff1d(self._key, other._key, assume_unique=True))

    def __invert__(self) -> BlockLayout:
        return BlockLayout(~self.to_dense(), self.block, shape=self.shape)

    def t(self) -> BlockLayout:
        """The layout of the transposed matrix; the same object every time."""
        return self._transposed

    @cached_property
    def _transposed(self) -> BlockLayout:
        h, r, c = self.grid
        order = self.col_order
        key = (self.heads[order].astype(np.int64) * c + self.cols[order]) * r + self.rows[order]
        return BlockLayout._of((h, c, r), self.block[::-1], self.shape[::-1], key)

    def with_heads(self, heads: int) -> BlockLayout:
        """A layout of one head, the same for `heads` heads."""
        if heads == self.num_heads:
            return self
        if self.num_heads != 1:
            raise ShapeError(f"a layout of {self.num_heads} heads cannot become one of {heads}")
        found = self._widened.get(heads)
        if found is None:
            _, r, c = self.grid
            key = (np.arange(heads)[:, None] * (r * c) + self._key).reshape(-1)
            found = self._widened[heads] = BlockLayout._of((heads, r, c), self.block, self.shape, key)
        return found

    @cached_property
    def _widened(self) -> dict[int, BlockLayout]:
        return {}

    @cached_property
    def _causal(self) -> BlockLayout | None:
        """The blocks in which some query i sees a key j <= i + N - M; None if that is all: in a circle, the
        layout would stay until Python's collector comes."""
        (m, n), (br, bc) = self.shape, self.block
        last = np.minimum((self.rows.astype(np.int64) + 1) * br, m) - 1
        seen = self.cols.astype(np.int64) * bc <= last + n - m
        return None if seen.all() else BlockLayout._of(self.grid, self.block, self.shape, self._key[seen])

    def update(self, new: Any) -> tuple[BlockLayout, np.ndarray]:
        """Another choice of blocks on the same grid, and where each of its blocks was.

        new: a BlockLayout, or a bool mask (H, R, C) or (R, C). -> (layout, gather_idx (nnz,) int32): the
        packed place of each block in this layout, -1 for new ones; `carry(values, gather_idx)` moves values.
        """
        if not isinstance(new, BlockLayout):
            new = BlockLayout(new, self.block, shape=self.shape)
        self._check_same_grid(new, "new")
        if self.nnz == 0:
            return new, np.full(new.nnz, -1, np.int32)
        at = np.minimum(np.searchsorted(self._key, new._key), self.nnz - 1)
        return new, np.where(self._key[at] == new._key, at, -1).astype(np.int32)


def check_layout(layout: Any) -> BlockLayout:
    if not isinstance(layout, BlockLayout):
        raise DTypeError(f"layout is a {type(layout).__name__}, wanted a BlockLayout")
    return layout


def _read_only(a: np.ndarray) -> np.ndarray:
    view = a.view()
    view.flags.writeable = False
    return view


def _restore(grid: Any, block: Any, shape: Any, key: np.ndarray) -> BlockLayout:
    return BlockLayout._of(grid, block, shape, key)


def _grid(
    shape: Sequence[int], block: tuple[int, int], heads: int
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    size = whole_numbers("shape", shape)
    if len(size) != 2:
        raise ShapeError(f"shape must be (M, N), got {size}")
    m, n = size
    return (m, n), (whole_number("heads", heads), -(-m // block[0]), -(-n // block[1]))
