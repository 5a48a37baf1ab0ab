"""Pooling and upsampling layers; geometry, supports and targets as in mlxsparse.ops."""

from __future__ import annotations

import mlx.core as mx
from mlx.nn import Module

from .. import ops
from ..coords.geometry import Triple, TripleLike, triple
from ..ops.conv import Target
from ..ops.pool import check_empty
from ..tensor import SparseTensor
from .conv import check_support


class _Pool(Module):
    def __init__(
        self,
        kernel_size: TripleLike,
        stride: TripleLike | None = None,
        padding: TripleLike = 0,
        dilation: TripleLike = 1,
        support: str = "touched",
    ):
        super().__init__()
        self.kernel_size = triple(kernel_size, "kernel_size", least=1)
        self.stride = self.kernel_size if stride is None else triple(stride, "stride", least=1)
        self.padding = triple(padding, "padding")
        self.dilation = triple(dilation, "dilation", least=1)
        self.support = check_support(support)

    @property
    def _geometry(self) -> tuple[Triple, Triple, Triple, Triple, str]:
        return self.kernel_size, self.stride, self.padding, self.dilation, self.support

    def _extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool3d(_Pool):
    """Maximum over the active inputs of each window."""

    def __call__(
        self, x: SparseTensor, capacity: int | None = None, out: Target | None = None
    ) -> SparseTensor:
        return ops.max_pool3d(x, *self._geometry, out=out, capacity=capacity)


class AvgPool3d(_Pool):
    """Mean over the active inputs of each window; with `count_include_empty`, over all its sites."""

    def __init__(
        self,
        kernel_size: TripleLike,
        stride: TripleLike | None = None,
        padding: TripleLike = 0,
        dilation: TripleLike = 1,
        support: str = "touched",
        count_include_empty: bool = False,
    ):
        super().__init__(kernel_size, stride, padding, dilation, support)
        self.count_include_empty = count_include_empty

    def __call__(
        self, x: SparseTensor, capacity: int | None = None, out: Target | None = None
    ) -> SparseTensor:
        counted = self.count_include_empty
        return ops.avg_pool3d(x, *self._geometry, count_include_empty=counted, out=out, capacity=capacity)


class SumPool3d(_Pool):
    """Sum over the active inputs of each window."""

    def __call__(
        self, x: SparseTensor, capacity: int | None = None, out: Target | None = None
    ) -> SparseTensor:
        return ops.sum_pool3d(x, *self._geometry, out=out, capacity=capacity)


class GlobalMaxPool(Module):
    """Maximum over each batch item's sites: (B, C). `empty` is the value of an item without sites."""

    def __init__(self, empty: float | None = None):
        super().__init__()
        check_empty(empty)
        self.empty = empty

    def __call__(self, x: SparseTensor) -> mx.array:
        return ops.global_max_pool(x, empty=self.empty)


class GlobalAvgPool(Module):
    """Mean over each batch item's sites: (B, C)."""

    def __call__(self, x: SparseTensor) -> mx.array:
        return ops.global_avg_pool(x)


class GlobalSumPool(Module):
    """Sum over each batch item's sites: (B, C)."""

    def __call__(self, x: SparseTensor) -> mx.array:
        return ops.global_sum_pool(x)


class PoolTranspose3d(Module):
    """Mean of the inputs that reach each site of `out`: ``layer(x, out=skip)``."""

    def __init__(self, kernel_size: TripleLike, stride: TripleLike | None = None):
        super().__init__()
        self.kernel_size = triple(kernel_size, "kernel_size", least=1)
        self.stride = self.kernel_size if stride is None else triple(stride, "stride", least=1)

    def __call__(self, x: SparseTensor, out: Target) -> SparseTensor:
        return ops.pool_transpose3d(x, self.kernel_size, self.stride, out=out)

    def _extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}"


class UpsampleNearest(Module):
    """The value of the coarse site that holds each finer one: ``layer(x)`` or ``layer(x, out=skip)``."""

    def __init__(self, scale: TripleLike):
        super().__init__()
        self.scale = triple(scale, "scale", least=1)

    def __call__(self, x: SparseTensor, out: Target | None = None) -> SparseTensor:
        return ops.upsample_nearest(x, self.scale, out=out)

    def _extra_repr(self) -> str:
        return f"scale={self.scale}"


class UpsampleTrilinear(UpsampleNearest):
    """Interpolation between coarse voxel centres: ``layer(x)`` or ``layer(x, out=skip)``."""

    def __call__(self, x: SparseTensor, out: Target | None = None) -> SparseTensor:
        return ops.upsample_trilinear(x, self.scale, out=out)


class Subdivide(Module):
    """Each site becomes its prod(scale) children with its value: ``layer(x)``, ``layer(x, capacity=n)``."""

    def __init__(self, scale: TripleLike = 2):
        super().__init__()
        self.scale = triple(scale, "scale", least=1)

    def __call__(self, x: SparseTensor, capacity: int | None = None) -> SparseTensor:
        return ops.subdivide(x, self.scale, capacity=capacity)

    def _extra_repr(self) -> str:
        return f"scale={self.scale}"
