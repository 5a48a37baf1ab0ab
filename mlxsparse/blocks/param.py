"""Where a parameter lives: a slot (owner, key), never an array.

MLX replaces a module's arrays in `value_and_grad`, optimizer steps and `load_weights`, so an array that
is held goes stale at the first training step; a slot does not.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..errors import MLXSparseError, ShapeError, StaleViewError


class ParamBox(dict[str, mx.array]):
    """A slot for an array that belongs to no module: ``box["value"]``, also ``box.value``."""

    def __init__(self, value: mx.array):
        super().__init__(value=mx.array(value))

    @property
    def value(self) -> mx.array:
        return self["value"]


class ParamRef:
    """The slot `key` of `owner`, a module or a ParamBox, looked up anew at each access.

    `key` may be a path, "encoder.0.conv.weight": it is walked each time, so that a submodule that was
    replaced is found. A slot whose array has another shape, or is no longer of real numbers (as after
    `nn.quantize`), raises StaleViewError. Equal slots are equal and hash alike.

    A bare reference to a leaf module cannot know that the module was replaced inside its model: bind
    with the model and a path where `nn.quantize` may come.
    """

    def __init__(self, owner: Any, key: str = "value"):
        self.root, self.key = owner, key
        self._owner, self._leaf = self._find()
        value = self._owner[self._leaf]
        if not isinstance(value, mx.array):
            raise MLXSparseError(f"{key!r} of {type(owner).__name__} is {type(value).__name__}, no array")
        self.shape: tuple[int, ...] = tuple(value.shape)
        self._floating = _is_floating(value)
        # The owner is kept, so its id cannot come to mean another object.
        self._slot = (id(self._owner), self._leaf)

    def _find(self) -> tuple[Any, Any]:
        """(container, key in it) of the slot."""
        *path, leaf = self.key.split(".")
        owner = self.root
        try:
            for name in path:
                owner = owner[int(name)] if isinstance(owner, (list, tuple)) else owner[name]
            last = int(leaf) if isinstance(owner, (list, tuple)) else leaf
            owner[last]
        except (KeyError, IndexError, ValueError, TypeError):
            raise StaleViewError(f"{type(self.root).__name__} has no parameter {self.key!r}") from None
        return owner, last

    @property
    def value(self) -> mx.array:
        """The array that is there now."""
        owner, leaf = self._find()
        value = owner[leaf]
        if not isinstance(value, mx.array):
            raise StaleViewError(f"{self.key!r} is no array any more but {type(value).__name__}")
        if tuple(value.shape) != self.shape or _is_floating(value) != self._floating:
            raise StaleViewError(
                f"{self.key!r} was bound with shape {self.shape} and is now {tuple(value.shape)} "
                f"{value.dtype}: make the view again"
            )
        return value

    def assign(self, value: mx.array) -> None:
        """Write into the array that is there now, in its dtype; whoever holds the array sees it."""
        here = self.value
        if tuple(value.shape) != self.shape:
            raise ShapeError(f"{self.key!r} has shape {self.shape}, got a value of {tuple(value.shape)}")
        here[()] = value  # any rank

    @property
    def module(self) -> Any:
        """The innermost owner, as found now."""
        return self._find()[0]

    @property
    def dtype(self) -> mx.Dtype:
        return self.value.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for n in self.shape:
            size *= n
        return size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParamRef) and self._slot == other._slot

    def __hash__(self) -> int:
        return hash(self._slot)

    def __repr__(self) -> str:
        return f"ParamRef({type(self.root).__name__}, {self.key!r}, shape={self.shape})"


def _is_floating(value: mx.array) -> bool:
    return mx.issubdtype(value.dtype, mx.floating)
