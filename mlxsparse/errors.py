"""Errors of mlxsparse. Each is a ValueError, so `except ValueError` catches any of them.

A message names the argument, what it got, what was wanted, and the call that fixes it.
"""


class MLXSparseError(ValueError):
    """Base of every error that mlxsparse raises on purpose."""


class ShapeError(MLXSparseError):
    """An array has the wrong rank, length or channel count."""


class DTypeError(MLXSparseError):
    """An array has an element type that the operator does not take."""


class StrideError(MLXSparseError):
    """Tensor strides do not fit: not divisible, or `out` lies on another lattice."""


class DuplicateCoordinatesError(MLXSparseError):
    """Two rows name the same site; `mlxsparse.coalesce` merges them."""


class CoordinateRangeError(MLXSparseError):
    """A coordinate lies outside the representable or the declared range."""


class IdentityError(MLXSparseError):
    """Two tensors do not share a coordinate key, or the key that was asked for is gone."""


class CapacityError(MLXSparseError):
    """More rows than the capacity holds, or a capacity is needed and was not given."""


class TracedOnHostError(MLXSparseError):
    """A host (CPU device) operator met a traced array, as inside `mx.compile` or `mx.vmap`."""


class TransformError(MLXSparseError):
    """A function transformation that an operator does not support (jvp, vmap, second gradients)."""


class DeviceError(MLXSparseError):
    """The device has no executor for the operator."""


class StaleViewError(MLXSparseError):
    """A view's parameter was replaced by one of another shape or dtype."""


class OverlapError(MLXSparseError):
    """Writes through a view whose elements overlap disagree."""


class CouplingError(MLXSparseError):
    """Coupled block specs do not fit each other."""


class CheckpointError(MLXSparseError):
    """A weights file is malformed, unsafe, or does not fit the model."""


class PointCloudError(MLXSparseError):
    """A point-cloud file is missing, truncated, of an unknown format, or lacks a field that is needed."""


def listed(values: list[int]) -> str:
    """Numbers as a message names them: the first 8, and how many follow."""
    return str(values) if len(values) <= 8 else f"{values[:8]} and {len(values) - 8} more"
