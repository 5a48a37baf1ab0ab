"""SparseTensor: features on the active sites of a sparse 3-D lattice."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np

from .arithmetic import HINT, operation
from .arithmetic import require_same_key as require_same_key
from .backend import executor, host
from .backend.features import FLOATS, as_features, zero_padding
from .backend.status import clear, combined, raise_for
from .coords import CoordinateManager, CoordinateMapKey, default_manager
from .coords.checks import check_coordinates, check_keys, manager_of
from .coords.geometry import Triple, TripleLike, triple, whole
from .errors import CapacityError, DTypeError, IdentityError, ShapeError, TracedOnHostError, listed

_LEAVES = "coords feats active_rows batch_counts status stride batch_size spatial_shape".split()


class SparseTensor(tuple):
    """Coordinates (capacity, 4) int32 (batch, x, y, z) and features (capacity, C) on them.

    Row i of `feats` belongs to row i of `coords`. Coordinates count in units of the tensor's own
    lattice, |x| < 2**30, and no two active rows are equal. Rows at and past `active_rows` are
    padding (coordinates (-1, 0, 0, 0), features 0).

    Args:
        coords: int32 (capacity, 4), MLX or NumPy.
        feats: float32, float16 or bfloat16 (capacity, C). An MLX array is kept, not copied, unless there is
            padding: what is written into it later (``feats[0] = 1``) is in the tensor too. Never write into
            `coords`.
        stride: lattice units of the original lattice per unit of this one, (x, y, z).
        active_rows: number of rows that are sites; the rest is padding. Default: all.
        batch_size: number of batch items; default the largest batch number + 1. Empty ones are legal.
        batch_counts: int32 (batch_size,) rows of each item; computed when not given.
        spatial_shape: sites lie in [0, spatial_shape); bounds the outputs of convolutions.
        manager: the CoordinateManager that makes the key; default the process-wide one.
        key: an existing key whose rows these are; coords must then be ``key.coords``.
        validate: check range and duplicates (and build the index that maps reuse).

    Raises ShapeError, DTypeError, CoordinateRangeError, DuplicateCoordinatesError.

    It is a tuple so that MLX's transformations take it apart and put it together again
    (``SparseTensor(leaves)``, with a fresh identity); it does not behave as one.
    """

    _key: CoordinateMapKey | None
    _manager: CoordinateManager
    __array_ufunc__ = None  # NumPy leaves operators to this class
    _made = False  # the features are what an operator gave, and nobody put others in their place

    def __new__(
        cls,
        coords: Any,
        feats: mx.array | np.ndarray | None = None,
        *,
        stride: TripleLike = 1,
        active_rows: int | mx.array | None = None,
        batch_counts: mx.array | None = None,
        batch_size: int | None = None,
        spatial_shape: TripleLike | None = None,
        manager: CoordinateManager | None = None,
        key: CoordinateMapKey | None = None,
        validate: bool = True,
    ) -> SparseTensor:
        if feats is None and not isinstance(coords, (mx.array, np.ndarray)):
            return cls._rebuild(coords)
        feats = as_features(feats)
        manager = manager_of(manager)
        if key is not None:
            check_keys(key=key)
            given: list[Any] = [active_rows, batch_size, spatial_shape, batch_counts]
            given += [None if triple(stride, "stride", least=1) == (1, 1, 1) else stride]
            given += [None if manager in (default_manager(), key.manager) else manager]
            if coords is not key.coords or any(v is not None for v in given):
                raise IdentityError("key= needs coords=key.coords; stride and the rest come from the key")
            return cls._of(key, feats)
        array = check_coordinates(coords)
        if array.shape[0] != feats.shape[0]:
            raise ShapeError(f"coords has {array.shape[0]} rows, feats has {feats.shape[0]}; they must agree")
        try:
            place: dict[str, Any] = {"batch_size": batch_size, "spatial_shape": spatial_shape}
            key = manager.insert(array, stride, active_rows, validate=validate, **place)
        except TracedOnHostError:
            return cls._traced(
                array, feats, stride, active_rows, batch_counts, batch_size, spatial_shape, manager
            )
        counts = host.view(batch_counts) if isinstance(batch_counts, mx.array) else batch_counts
        if counts is not None and not np.array_equal(counts, key.counts):
            raise ShapeError(
                f"batch_counts {batch_counts} does not match the rows: {listed(key.counts.tolist())}; items "
                "past the last row's are named by batch_size="
            )
        return cls._of(key, feats)

    @classmethod
    def _make(
        cls, leaves: Iterable[Any], key: CoordinateMapKey | None, manager: CoordinateManager
    ) -> SparseTensor:
        made = tuple.__new__(cls, leaves)
        made._key, made._manager = key, manager
        return made

    @classmethod
    def _of(
        cls, key: CoordinateMapKey, feats: mx.array, *sources: SparseTensor, clean: bool = False
    ) -> SparseTensor:
        """Tensor on an existing key; padding rows become 0 (or are: clean), errors of `sources` stay."""
        if feats.ndim != 2 or feats.shape[0] != key.capacity:
            raise ShapeError(f"feats must have shape ({key.capacity}, C) to fit its sites, got {feats.shape}")
        if not clean and not key.full:
            feats = mx.where(key.live, feats, mx.zeros((), feats.dtype))
        status = combined(key.status, *(x.status for x in sources))
        arrays = (key.coords, feats, key.active_rows, key.batch_counts, status)
        return cls._make((*arrays, key.stride, key.batch_size, key.spatial_shape), key, key.manager)

    @classmethod
    def _rebuild(cls, leaves: Iterable[Any]) -> SparseTensor:
        """What MLX does with the leaves it took apart: no checks, no evaluation, fresh identity."""
        leaves = tuple(leaves)
        if len(leaves) != len(_LEAVES):
            raise ShapeError(
                f"SparseTensor(coords, feats, ...) needs coords and feats; one argument is a sequence of the "
                f"{len(_LEAVES)} leaves {_LEAVES}, got {len(leaves)}"
            )
        return cls._make(leaves, None, default_manager())

    @classmethod
    def _traced(
        cls, coords: mx.array, feats: mx.array, stride: TripleLike, active_rows: int | mx.array | None,
        batch_counts: mx.array | None, batch_size: int | None, spatial_shape: TripleLike | None,
        manager: CoordinateManager,
    ) -> SparseTensor:  # fmt: skip
        """Construction inside a trace: nothing is read, so nothing is validated."""
        if batch_size is None:
            raise TracedOnHostError(
                "inside a traced function SparseTensor needs batch_size=: it cannot be read there"
            )
        rows = mx.array(coords.shape[0] if active_rows is None else active_rows, mx.int32)
        if batch_counts is None:
            live = mx.arange(coords.shape[0]) < rows
            same = (coords[:, :1] == mx.arange(batch_size)[None]) & live[:, None]
            batch_counts = same.sum(axis=0).astype(mx.int32)
        leaves = (
            mx.stop_gradient(coords),
            zero_padding(feats, rows) if active_rows is not None else feats,
            rows,
            batch_counts,
            clear(),
            triple(stride, "stride", least=1),
            batch_size,
            None if spatial_shape is None else triple(spatial_shape, "spatial_shape", least=0),
        )
        return cls._make(leaves, None, manager)

    # ------------------------------------------------------------ leaves and identity
    @property
    def coords(self) -> mx.array:
        """(capacity, 4) int32 (batch, x, y, z)."""
        return tuple.__getitem__(self, 0)

    @property
    def feats(self) -> mx.array:
        """(capacity, C)."""
        return tuple.__getitem__(self, 1)

    @property
    def active_rows(self) -> mx.array:
        """int32 scalar: rows before it are sites."""
        return tuple.__getitem__(self, 2)

    @property
    def batch_counts(self) -> mx.array:
        """(batch_size,) int32 rows of each batch item."""
        return tuple.__getitem__(self, 3)

    @property
    def status(self) -> mx.array:
        """(5,) int32: error bits; rows that the first overflow needed, and its stride. See `check`."""
        return tuple.__getitem__(self, 4)

    @property
    def stride(self) -> Triple:
        return tuple.__getitem__(self, 5)

    @property
    def batch_size(self) -> int:
        return tuple.__getitem__(self, 6)

    @property
    def spatial_shape(self) -> Triple | None:
        return tuple.__getitem__(self, 7)

    @property
    def capacity(self) -> int:
        """Rows including padding."""
        return self.coords.shape[0]

    @property
    def num_channels(self) -> int:
        return self.feats.shape[1]

    @property
    def dtype(self) -> mx.Dtype:
        return self.feats.dtype

    @property
    def manager(self) -> CoordinateManager:
        return self._manager

    @property
    def key(self) -> CoordinateMapKey:
        """Identity of the rows. A tensor that MLX rebuilt gets a fresh one at first use."""
        if self._key is None:
            rows, place = self.active, (self.stride, self.batch_size, self.spatial_shape)
            if isinstance(rows, int):
                self._key = self._manager.adopt(self.coords, rows, *place)
            else:
                self._key = self._manager.adopt_traced(self.coords, rows, self.status, *place)
        return self._key

    @property
    def active(self) -> int | mx.array:
        """Active rows as an int, or on a GPU as a scalar array where the device alone knows them."""
        if self._key is not None:
            return self._key.active
        try:
            return int(host.view(self.active_rows))
        except TracedOnHostError:
            if executor() == "host":
                raise
            return self.active_rows

    @property
    def clean(self) -> bool:
        """Whether padding rows are known to be 0; in one that MLX put together they can hold anything."""
        return self._key is not None and (not self._key.rebuilt or self._key.full)

    @property
    def num_active(self) -> int:
        """Number of active rows as a Python int; read from the device where only that knows it."""
        return self._key.count if self._key is not None else int(host.view(self.active_rows))

    # ------------------------------------------------------------ derived tensors

    def replace(self, feats: mx.array, *, clean: bool = False) -> SparseTensor:
        """The same sites (same key) with other features (capacity, C); clean: they are 0 in padding rows."""
        feats, key = as_features(feats), self._key
        if key is not None and (key.rebuilt or not (clean or key.full)):
            return SparseTensor._of(key, feats, self, clean=clean)
        if feats.shape[0] != self.capacity:
            raise ShapeError(f"feats must have {self.capacity} rows to fit its sites, got {feats.shape}")
        return self._with(1, feats if key is not None else zero_padding(feats, self.active_rows))

    def _with(self, place: int, leaf: mx.array) -> SparseTensor:  # unchecked
        leaves = list(self)
        leaves[place] = leaf
        return SparseTensor._make(leaves, self._key, self._manager)

    def noting(self, *others: SparseTensor) -> SparseTensor:
        """This tensor with the errors in the status of others too."""
        status = combined(self.status, *(x.status for x in others))
        return self if status is self.status else self._with(4, status)

    def astype(self, dtype: mx.Dtype) -> SparseTensor:
        """The same sites with features of another float type."""
        if dtype not in FLOATS:
            raise DTypeError(f"dtype must be float32, float16 or bfloat16, got {dtype}")
        return self.replace(self.feats.astype(dtype))

    def compact(self) -> SparseTensor:
        """Without padding rows: a new key, or the tensor itself where there are none."""
        self.check()
        if self.num_active == self.capacity and not self.key.fixed_capacity:
            return self
        key = self.manager.resized(self.key, self.num_active, fixed=False)
        return SparseTensor._of(key, self.feats[: self.num_active])

    def with_capacity(self, n: int) -> SparseTensor:
        """Padded to `n` rows, which outputs then keep; CapacityError if the sites do not fit.

        Where the device alone knows their number, that they do not fit is told by `check`.
        """
        rows, n = self.active, whole(n, "capacity")
        if isinstance(rows, int) and n < rows:
            raise CapacityError(f"with_capacity({n}): the tensor has {rows} active rows")
        key = self.manager.resized(self.key, n, fixed=True)
        feats = self.feats[: min(n, self.capacity)]
        if n > self.capacity:
            feats = mx.concatenate([feats, mx.zeros((n - self.capacity, self.num_channels), self.dtype)])
        return SparseTensor._of(key, feats, self)

    def check(self) -> SparseTensor:
        """Raise CapacityError if an operator behind this tensor overflowed its capacity; else self."""
        raise_for(self.status)
        return self

    def batch_rows(self, b: int) -> mx.array:
        """Rows of batch item `b`, int32, ascending."""
        if whole(b, "batch item") >= self.batch_size:
            raise ShapeError(f"batch item {b} does not exist; batch_size is {self.batch_size}")
        batch = host.view(self.coords)[: self.num_active, 0]
        return host.to_mlx(np.flatnonzero(batch == b).astype(np.int32))

    @property
    def decomposed_coordinates(self) -> list[mx.array]:
        """(n_b, 3) int32 (x, y, z) of each batch item."""
        return [self.coords[self.batch_rows(b), 1:] for b in range(self.batch_size)]

    @property
    def decomposed_features(self) -> list[mx.array]:
        """(n_b, C) of each batch item."""
        return [self.feats[self.batch_rows(b)] for b in range(self.batch_size)]

    __add__ = operation("+", operator.add)
    __sub__ = operation("-", operator.sub)
    __mul__ = operation("*", operator.mul)
    __truediv__ = operation("/", operator.truediv, divisor=1)
    __radd__ = operation("+", lambda a, b: b + a)
    __rsub__ = operation("-", lambda a, b: b - a)
    __rmul__ = operation("*", lambda a, b: b * a)
    __rtruediv__ = operation("/", lambda a, b: b / a, divisor=0)

    def __neg__(self) -> SparseTensor:
        return self.replace(-self.feats, clean=self.clean)

    # ------------------------------------------------------------ not a tuple

    def _not_a_sequence(self, *_: Any) -> NoReturn:
        raise TypeError("SparseTensor is not a sequence: use .coords, .feats, .num_active, .batch_rows(b)")

    __len__ = __getitem__ = __contains__ = _not_a_sequence
    __lt__ = __le__ = __gt__ = __ge__ = _not_a_sequence
    index = count = _not_a_sequence

    def __bool__(self) -> NoReturn:
        raise TypeError("the truth of a SparseTensor is ambiguous: ask x.num_active > 0 or x is not None")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"SparseTensor has no attribute {name!r}. {HINT}")

    def __matmul__(self, other: Any) -> NoReturn:
        raise TypeError(HINT)

    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__

    def __copy__(self) -> SparseTensor:
        return SparseTensor._make(self, self._key, self._manager)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        """Other features and another key, which copies share where the originals did, of the same sites."""
        coords, feats, *rest = self
        key = self._key
        if key is not None:
            key = memo.setdefault(id(key), self._manager.another(key))
        return SparseTensor._make((coords, mx.array(feats), *rest), key, self._manager)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._key is None:
            return SparseTensor._rebuild, (list(self),)
        return _unpickled, (self._key, list(self)[1:])

    def __repr__(self) -> str:
        shape = "" if self.spatial_shape is None else f", spatial_shape={self.spatial_shape}"
        try:
            rows = str(self.num_active)
            self.check()
        except TracedOnHostError:
            rows = "traced"
        return (
            f"SparseTensor(active={rows}, capacity={self.capacity}, channels={self.num_channels}, "
            f"dtype={str(self.dtype).removeprefix('mlx.core.')}, stride={self.stride}, "
            f"batch_size={self.batch_size}{shape})"
        )


def _unpickled(key: CoordinateMapKey, leaves: list[Any]) -> SparseTensor:
    """leaves: all but the coordinates; tensors that shared a key share the new one."""
    return SparseTensor._make((key.coords, *leaves), key, key.manager)


def sequence_like(value: Any, items: list[Any]) -> Any:
    """`items` as a list, tuple or named tuple, whichever `value` is."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
