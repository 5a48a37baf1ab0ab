"""View: a strided window on a parameter that reads and writes the slot it lives in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..backend.host import view as host_view
from ..errors import DTypeError, MLXSparseError, OverlapError, ShapeError, TracedOnHostError
from . import layout
from .layout import Shape
from .param import ParamBox, ParamRef
from .strided import Strides, row_major


class View:
    """A window (shape, stride, offset) on the parameter in a slot, in elements of its row-major order.

    Args:
        param: ``(module, "weight")``, ParamRef, ParamBox, another View (its shape, stride and offset where
            no shape is given; else its parameter alone), or an array, which goes into a ParamBox of its own.
        shape, stride: one number an axis; default the parameter's, row-major. Strides may be negative or 0.
        offset: element of the parameter at index 0 ... 0.

    The view is bound to the slot: after an optimizer step, `load_weights` or `set_dtype` it reads and
    writes the array that is there then. It keeps the slot's owner alive. Bounds are checked when it is
    made (ShapeError); a parameter that changed its shape raises StaleViewError. Views are equal, and hash
    alike, if slot, shape, stride and offset are.
    """

    def __init__(
        self,
        param: Any,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        *,
        offset: int | None = None,
    ):
        base: Strides | None = param.strides if isinstance(param, View) else None
        self.param = _slot_of(param)
        if shape is None and stride is None:
            shape = self.param.shape if base is None else base.shape
            stride = None if base is None else base.stride
            offset = base.offset if base is not None and offset is None else offset
        elif shape is None:
            raise ShapeError("stride without shape: give both, or neither for the whole parameter")
        sizes = layout.integers(shape, "shape")
        steps = row_major(sizes) if stride is None else layout.integers(stride, "stride")
        start = 0 if offset is None else layout.integer(offset, "offset")
        self.strides: Strides = Strides(sizes, steps, start, self.param.shape)

    @classmethod
    def of(
        cls,
        model: Any,
        path: str,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        *,
        offset: int | None = None,
    ) -> View:
        """A view of ``path``, as "encoder.0.conv.weight", that is walked from `model` at each access."""
        return cls(ParamRef(model, path), shape, stride, offset=offset)

    @classmethod
    def from_existing(cls, x: Any) -> View:
        """`x` itself if it is a View, else a row-major view of all of it."""
        return x if isinstance(x, View) else cls(x)

    # ------------------------------------------------------------ description

    @property
    def shape(self) -> Shape:
        return self.strides.shape

    @property
    def stride(self) -> Shape:
        return self.strides.stride

    @property
    def offset(self) -> int:
        return self.strides.offset

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements of the view."""
        return self.strides.numel

    @property
    def cosize(self) -> int:
        """Elements from the lowest to the highest that the view reaches, 0 for an empty one."""
        low, high = self.strides.span
        return high - low + 1 if self.numel() else 0

    @property
    def is_injective(self) -> bool:
        """No element of the parameter is seen twice."""
        return self.strides.injective

    @property
    def is_complete(self) -> bool:
        """Every element of the parameter is seen."""
        return self.strides.complete

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        return self.param, self.shape, self.stride, self.offset

    def __repr__(self) -> str:
        place = f", offset={self.offset}" if self.offset else ""
        return f"View({self.param.key!r}, shape={self.shape}, stride={self.stride}{place})"

    # ------------------------------------------------------------ reading and writing

    @property
    def data(self) -> mx.array:
        """The elements now, as an array of the view's shape: a snapshot, writing to it changes nothing."""
        return self.read(self.param.value)

    @data.setter
    def data(self, v: Any) -> None:
        """Broadcast and cast `v` into the parameter; OverlapError where elements that coincide disagree."""
        self.param.assign(self.write(self.param.value, v))

    def read(self, p: mx.array) -> mx.array:
        """The view of `p`, an array of the parameter's shape; pure, for traced code."""
        self._check(p)
        return self.strides.read(p)

    def write(self, p: mx.array, v: Any) -> mx.array:
        """`p` with the view's elements replaced by `v`, broadcast and cast; pure, `p` stays as it is.

        OverlapError where elements that coincide get different values; in traced code, where values
        cannot be compared, always for a view with elements that coincide.
        """
        self._check(p)
        value = mx.array(v).astype(p.dtype)
        try:
            value = mx.broadcast_to(value, self.shape)
        except ValueError:
            raise ShapeError(f"a value of shape {tuple(value.shape)} does not fit {self}") from None
        written = self.strides.write(p, value)
        if not self.is_injective:
            same = mx.array_equal(self.strides.read(written), value, equal_nan=True)
            try:
                agree = bool(host_view(same))
            except TracedOnHostError:
                agree = False
            if not agree:
                raise OverlapError(f"elements of {self} coincide and were given different values")
        return written

    def _check(self, p: mx.array) -> None:
        if tuple(p.shape) != self.param.shape:
            raise ShapeError(f"{self} is of a parameter {self.param.shape}, got {tuple(p.shape)}")

    # ------------------------------------------------------------ blocks

    block_view_of = staticmethod(layout.block_view_of)
    unblock = staticmethod(layout.unblock)
    broadcast_block_to_element = staticmethod(layout.broadcast_block_to_element)

    def apply_multiplier(self, m: mx.array, block: Sequence[int]) -> None:
        """Multiply each block by its value in `m` (grid-shaped), in place."""
        self.param.assign(self.multiplied(self.param.value, m, block))

    def multiplied(self, p: mx.array, m: mx.array, block: Sequence[int]) -> mx.array:
        """Pure twin of apply_multiplier: `p` (the parameter's shape) with the view's blocks scaled."""
        sizes = self._blocks(block)
        if tuple(m.shape) != layout.grid_of(self.shape, sizes):
            raise ShapeError(f"m must have shape {layout.grid_of(self.shape, sizes)}, got {tuple(m.shape)}")
        return self.strides.write(p, self.read(p) * layout.broadcast_block_to_element(m, sizes))

    def apply_mask(self, mask: mx.array, block: Sequence[int]) -> None:
        """Set the blocks where `mask` (bool, grid-shaped) is True to 0, in place, whatever they hold.

        True prunes here; `get_masks` of specs and scopes says True for what is kept.
        """
        self.param.assign(self.masked(self.param.value, mask, block))

    def masked(self, p: mx.array, mask: mx.array, block: Sequence[int]) -> mx.array:
        """Pure twin of apply_mask: `p` (the parameter's shape) with masked blocks 0."""
        sizes = self._blocks(block)
        layout.check_mask(mask, layout.grid_of(self.shape, sizes))
        wide = layout.broadcast_block_to_element(mask, sizes)
        zero = mx.zeros((), p.dtype)
        return self.strides.write(p, mx.where(wide, zero, self.read(p)))

    def _blocks(self, block: Sequence[int]) -> Shape:
        if not self.is_injective:
            raise OverlapError(f"{self} sees elements twice: scaling or masking it has no one meaning")
        return layout.full_shape(block, self.shape, "block")

    # ------------------------------------------------------------ indices

    def linear_offset(self, idx: mx.array) -> mx.array:
        """Flat element of the parameter of each index: (.., ndim) integers -> (..) int32, offset included.

        Indices are not checked against the shape. MLXSparseError if the view reaches past 2**31 - 1.
        """
        idx = mx.array(idx)
        if idx.shape[-1:] != (self.ndim,) or not mx.issubdtype(idx.dtype, mx.integer):
            raise ShapeError(f"idx must be integers (.., {self.ndim}), got {idx.dtype} {tuple(idx.shape)}")
        if self.strides.span[1] > 2**31 - 1:
            raise MLXSparseError(f"{self} reaches past element 2**31 - 1, which an int32 cannot name")
        steps = mx.array(self.stride, mx.int32)
        return (idx.astype(mx.int32) * steps).sum(axis=-1).astype(mx.int32) + self.offset

    def to_param_index(self, idx: mx.array) -> mx.array:
        """Index in the parameter: (.., ndim) -> (.., parameter's ndim) int32."""
        flat = self.linear_offset(idx)
        sizes, steps = self.param.shape, row_major(self.param.shape)
        return mx.stack([(flat // s) % max(n, 1) for n, s in zip(sizes, steps)], axis=-1)

    def to_param_rc(self, idx: mx.array) -> mx.array:
        """(.., ndim) -> (.., 2) int32 (row, column) of a parameter with two axes; else ShapeError."""
        if len(self.param.shape) != 2:
            raise ShapeError(f"to_param_rc needs a 2-D parameter, got {self.param}")
        return self.to_param_index(idx)


def _slot_of(param: Any) -> ParamRef:
    if isinstance(param, View):
        return param.param
    if isinstance(param, ParamRef):
        return param
    if isinstance(param, ParamBox):
        return ParamRef(param)
    if isinstance(param, mx.array):
        return ParamRef(ParamBox(param))
    if isinstance(param, tuple) and len(param) == 2 and isinstance(param[1], str):
        return ParamRef(*param)
    raise DTypeError(
        'param must be (module, "weight"), a ParamRef, ParamBox, View or mlx array, '
        f"got {type(param).__name__}"
    )
