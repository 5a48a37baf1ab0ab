"""Submanifold, strided, transposed and generative sparse convolution.

Weight (Co, Kx, Ky, Kz, Ci / groups), cross-correlation without flip, tap t = (kx*Ky + ky)*Kz + kz.
Strided: ``in = out * s - p + k * d``; transposed: ``out = in * s - p + k * d``. float16 and
bfloat16 accumulate in float32. An output that no active input reaches holds the bias.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from ..backend.autodiff import asked, traced, watched
from ..backend.status import raise_for
from ..coords import CoordinateMapKey, Kernel, KernelMap
from ..coords.geometry import Triple, TripleLike, divide, multiply, whole
from ..engine import conv_kernel, finish, origin
from ..engine.device_map import DeviceMap
from ..engine.gather_gemm import convolve
from ..engine.neighbors import TapPairs
from ..errors import DTypeError, IdentityError, MLXSparseError, ShapeError, StrideError, TracedOnHostError
from ..tensor import SparseTensor
from .check import check_groups, check_tensor

Target: TypeAlias = "SparseTensor | CoordinateMapKey | mx.array | np.ndarray"


@dataclass(frozen=True)
class Taps:
    """Some taps of a kernel, for a weight (Co, len(index), Ci / groups) that has only those.

    kernel_size (x, y, z) is the whole kernel's: sites and kernel map stay those of the whole kernel.
    index: taps t = (kx*Ky + ky)*Kz + kz, ascending. ShapeError for any other index.
    """

    kernel_size: Triple
    index: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("kernel_size", "index"):  # a list could be changed after the check
            value = getattr(self, name)
            value = value.tolist() if isinstance(value, np.ndarray) else value
            known = isinstance(value, (list, tuple))
            if not known or not all(type(v) is int or isinstance(v, np.integer) for v in value):
                raise ShapeError(f"Taps takes three ints and a tuple of ints, got {name} {value!r}")
            object.__setattr__(self, name, tuple(map(int, value)))
        if len(self.kernel_size) != 3:
            raise ShapeError(f"Taps takes three ints and a tuple of ints, got kernel_size {self.kernel_size}")
        volume = self.kernel_size[0] * self.kernel_size[1] * self.kernel_size[2]
        bounded = (-1, *self.index, volume)
        if any(a >= b for a, b in zip(bounded, bounded[1:])):
            raise ShapeError(f"taps must ascend and lie in [0, {volume}), got {self.index}")


def subm_conv3d(
    x: SparseTensor,
    w: mx.array,
    bias: mx.array | None = None,
    *,
    dilation: TripleLike = 1,
    padding: TripleLike | None = None,
    groups: int = 1,
    taps: Taps | None = None,
) -> SparseTensor:
    """Submanifold convolution: outputs on the sites (and the key) of the input.

    ``in = out - p + k * d``, p = ((K - 1) // 2) * d by default. An even size K then reaches
    0 .. K/2 past the centre on the high side; pass `padding` for the other anchoring.

    Args: w (Co, Kx, Ky, Kz, Ci / groups) and bias (Co,) in x's dtype; taps as in Taps.
    """
    size = _check_weight(x, w, bias, groups, taps)
    key, kernel = x.key, Kernel.submanifold(size, dilation, padding)
    return _apply(x, w, bias, key, x.manager.kernel_map(key, key, kernel), groups, taps)


def conv3d(
    x: SparseTensor,
    w: mx.array,
    bias: mx.array | None = None,
    *,
    stride: TripleLike = 1,
    padding: TripleLike = 0,
    dilation: TripleLike = 1,
    groups: int = 1,
    support: str = "touched",
    out: Target | None = None,
    capacity: int | None = None,
    taps: Taps | None = None,
) -> SparseTensor:
    """Strided convolution; the result's stride is ``x.stride * stride``.

    support: "touched", every output that some active input reaches, or "parents", floor(c / s);
    both sorted by (batch, x, y, z), and the same key where K == s, p = 0, d = 1. `out`, a tensor, a
    key or (n, 4) int32 coordinates of the result's stride, gives the output rows instead
    (StrideError if its stride differs). With `spatial_shape` S outputs stay within
    floor((S + 2p - d(K-1) - 1) / s) + 1, so inputs past the last whole window drop out.
    """
    kernel = Kernel.of(_check_weight(x, w, bias, groups, taps), stride, padding, dilation)
    key = output_key(x, kernel, support, out, capacity)
    return _apply(x, w, bias, key, x.manager.kernel_map(x.key, key, kernel), groups, taps)


def conv_transpose3d(
    x: SparseTensor,
    w: mx.array,
    bias: mx.array | None = None,
    *,
    stride: TripleLike = 1,
    padding: TripleLike = 0,
    dilation: TripleLike = 1,
    groups: int = 1,
    out: Target | None = None,
    taps: Taps | None = None,
) -> SparseTensor:
    """Transposed convolution onto known sites; the result's stride is ``x.stride / stride``.

    `out` is usually the encoder's tensor, with the encoder's K, s, p, d; its kernel map is then
    used backwards. Without `out`: the live key that x's key was made from, else IdentityError.
    """
    kernel = Kernel.of(_check_weight(x, w, bias, groups, taps), stride, padding, dilation)
    key = transposed_key(x, kernel, out)
    return _apply(x, w, bias, key, x.manager.kernel_map(key, x.key, kernel), groups, taps, backwards=True)


def generative_conv_transpose3d(
    x: SparseTensor,
    w: mx.array,
    bias: mx.array | None = None,
    *,
    stride: TripleLike = 1,
    padding: TripleLike = 0,
    dilation: TripleLike = 1,
    groups: int = 1,
    capacity: int | None = None,
    taps: Taps | None = None,
) -> SparseTensor:
    """Transposed convolution onto every site that it reaches, sorted by (batch, x, y, z).

    The result's stride is ``x.stride / stride``; with `spatial_shape` S its sites stay within
    (S - 1) s - 2p + d(K-1) + 1.
    """
    kernel = Kernel.of(_check_weight(x, w, bias, groups, taps), stride, padding, dilation)
    key = x.manager.stride(
        x.key,
        kernel.stride,
        kernel_size=kernel.size,
        padding=kernel.padding,
        dilation=kernel.dilation,
        support="generative",
        capacity=capacity,
    )
    return _apply(x, w, bias, key, x.manager.kernel_map(key, x.key, kernel), groups, taps, backwards=True)


def coverage(
    x: SparseTensor,
    kernel_size: TripleLike,
    stride: TripleLike = 1,
    padding: TripleLike = 0,
    dilation: TripleLike = 1,
    *,
    support: str = "touched",
    out: Target | None = None,
    capacity: int | None = None,
) -> mx.array:
    """How many outputs read each input row of such a convolution or pooling: (capacity,) int32.

    Rows with 0 are inputs that no tap reaches, possible with "parents", `out` or a spatial_shape. The sites
    are of this call alone, so that their CapacityError or CoordinateRangeError is raised here, and in a trace
    with the status of what mlxsparse.compile returns.
    """
    from ..backend.host import to_mlx

    check_tensor(x)
    kernel = Kernel.of(kernel_size, stride, padding, dilation)
    key = output_key(x, kernel, support, out, capacity)
    found = x.manager.kernel_map(x.key, key, kernel)
    if isinstance(found.relation, DeviceMap):
        with contextlib.suppress(TracedOnHostError):
            raise_for(key.status)
        return found.relation.transposed().counts()
    return to_mlx(np.bincount(found.in_rows, minlength=x.capacity).astype(np.int32))


# ---------------------------------------------------------------- shared with pooling


def output_key(
    x: SparseTensor, kernel: Kernel, support: str, out: Target | None, capacity: int | None
) -> CoordinateMapKey:
    """Key that a strided operator writes to."""
    if out is not None:
        if support != "touched":
            raise MLXSparseError(
                f"out gives the output sites, so support={support!r} has no meaning: leave one out"
            )
        if capacity is not None:
            raise MLXSparseError("out gives the output rows, so capacity has no meaning: leave one out")
        return _target_key(x, out, multiply(x.stride, kernel.stride))
    if support not in ("touched", "parents"):
        raise MLXSparseError(f'support must be "touched" or "parents", got {support!r}')
    return x.manager.stride(
        x.key,
        kernel.stride,
        kernel_size=kernel.size,
        padding=kernel.padding,
        dilation=kernel.dilation,
        support=support,
        capacity=capacity,
    )


def transposed_key(x: SparseTensor, kernel: Kernel, out: Target | None) -> CoordinateMapKey:
    """Key that a transposed operator writes to."""
    stride = divide(x.stride, kernel.stride)
    if out is not None:
        return _target_key(x, out, stride)
    parent = x.key.parent
    if parent is not None and parent.stride == stride:
        return parent
    why = (
        "its key was not made from another" if parent is None else f"it was made from stride {parent.stride}"
    )
    raise IdentityError(
        f"conv_transpose3d needs out=: no live tensor of stride {stride} is known for this input ({why}, "
        "or that one is gone); pass out=skip, the encoder's tensor, or use generative_conv_transpose3d "
        "to make new sites"
    )


def _target_key(x: SparseTensor, out: Target, stride: Triple) -> CoordinateMapKey:
    if isinstance(out, SparseTensor):
        key = out.key
    elif isinstance(out, CoordinateMapKey):
        key = out
    else:
        return x.manager.insert(out, stride, batch_size=x.batch_size)
    if key.stride != stride:
        raise StrideError(f"out has stride {key.stride}, the result has {stride}")
    if key.batch_size != x.batch_size:
        raise ShapeError(f"out has batch_size {key.batch_size}, the input {x.batch_size}")
    return key


def _check_weight(
    x: SparseTensor, w: mx.array, bias: mx.array | None, groups: int, taps: Taps | None = None
) -> Triple:
    check_tensor(x)
    if not isinstance(w, mx.array):
        raise ShapeError(f"weight must be an mlx array {_layout(taps)}, got {type(w).__name__}")
    groups = whole(groups, "groups", 1)
    if bias is not None and not isinstance(bias, mx.array):
        raise ShapeError(f"bias must be an mlx array ({w.shape[0]},), got {bias!r}")
    feats = x.feats
    start = None if bias is None else (bias.shape, bias.dtype)
    return _checked_size(feats.shape[1], feats.dtype, w.shape, w.dtype, start, groups, taps)


def _layout(taps: Taps | None) -> str:
    return "(Co, Kx, Ky, Kz, Ci / groups)" if taps is None else "(Co, taps, Ci / groups) with taps="


@functools.lru_cache(maxsize=1024, typed=True)
def _checked_size(
    channels: int,
    dtype: mx.Dtype,
    shape: tuple[int, ...],
    weight_dtype: mx.Dtype,
    bias: tuple[tuple[int, ...], mx.Dtype] | None,
    groups: int,
    taps: Taps | None,
) -> Triple:
    """Size of the kernel of a weight that fits; equal arguments are checked once."""
    if len(shape) != (5 if taps is None else 3):
        raise ShapeError(f"weight must be an mlx array {_layout(taps)}, got {shape}")
    co, *size, ci = shape
    if taps is not None:
        if size != [len(taps.index)]:
            raise ShapeError(f"weight {shape} has {size[0]} taps, taps= names {len(taps.index)}")
        size = list(taps.kernel_size)
    kx, ky, kz = size
    check_groups(groups, channels, co)
    if ci * groups != channels:
        raise ShapeError(f"weight {shape} takes {ci} * groups={groups} channels, the input has {channels}")
    if weight_dtype != dtype:
        raise DTypeError(f"weight is {weight_dtype}, feats are {dtype}: cast one (layer.set_dtype, x.astype)")
    if bias is not None:
        if bias[0] != (co,):
            raise ShapeError(f"bias must have shape ({co},), got {bias[0]}")
        if bias[1] != dtype:
            raise DTypeError(f"bias is {bias[1]}, feats are {dtype}: cast one")
    return kx, ky, kz


def _apply(
    x: SparseTensor,
    w: mx.array,
    bias: mx.array | None,
    key: CoordinateMapKey,
    found: KernelMap,
    groups: int,
    taps: Taps | None = None,
    *,
    backwards: bool = False,
) -> SparseTensor:
    on_device, groups = isinstance(found.relation, DeviceMap), int(groups)  # not NumPy's
    if on_device:
        y = on_map("convolution", found, x.feats, w, bias, groups, taps, backwards, x._made)
    else:
        y = convolve(x.feats, w, bias, _pairs(found, taps, backwards), key.capacity, groups)
    if key is x._key and on_device and not key.rebuilt:
        return x._with(1, y)
    return SparseTensor._of(key, y, x, clean=on_device)


def on_map(
    name: str,
    found: KernelMap,
    feats: mx.array,
    w: mx.array,
    bias: mx.array | None,
    groups: int = 1,
    taps: Taps | None = None,
    backwards: bool = False,
    made: bool = False,
) -> mx.array:
    """The product over a map of a GPU. What follows from shapes is worked out once and kept with the map.

    made: feats are those that an operator gave, so that they are what `origin` knows of them.
    """
    case: tuple[Any, ...] = backwards, groups, taps, conv_kernel.case(feats, w, bias)
    found.again()
    calls = found.calls
    norm = finish.take()
    if norm is not None:
        y = _with_norm(norm, found, feats, w, bias, case)
        if y is not None:
            return y
    free = not (traced(feats, w) if bias is None else traced(feats, w, bias))
    kind: origin.Kind = None
    more: tuple[mx.array, ...] = ()
    ordered = False
    if not free:
        kind, more = (made and origin.origin(feats)) or (None, ())
        if kind is None:
            origin.hold(feats)
        else:
            more = tuple(map(mx.stop_gradient, more))
        ordered, w = asked(w), watched(w)
    case = (*case, free, kind, ordered)
    call = calls.get(case)
    if call is None:
        pairs = _pairs(found, taps, backwards)
        assert isinstance(pairs, DeviceMap)
        call = conv_kernel.product(name, feats, w, bias, pairs, groups, kind, ordered, free)
        calls[case] = call
    return call(feats, w, *more) if bias is None else call(feats, w, bias, *more)


def _with_norm(
    norm: finish.Norm,
    found: KernelMap,
    feats: mx.array,
    w: mx.array,
    bias: mx.array | None,
    case: tuple[Any, ...],
) -> mx.array | None:
    """The product and the norm in one pass; None where that is not possible."""
    backwards, groups, taps, _ = case
    add, mix, parameters = norm.add, norm.mix, norm.parameters
    if traced(feats, w, *parameters, *[a for a in (bias, add, mix) if a is not None]):
        return None
    more = [a if a is None else (a.shape, a.dtype) for a in (add, mix, *parameters)]
    case, calls = (*case, norm.relu, norm.eps, *more), found.calls
    call = calls.get(case, found)  # of None is known that it is not possible
    if call is found:
        pairs = _pairs(found, taps, backwards)
        assert isinstance(pairs, DeviceMap)
        call = calls[case] = conv_kernel.finished(feats, w, bias, pairs, groups, norm)
    if call is None:
        return None
    norm.done = True
    y: mx.array = call(feats, w, bias, add, mix, *parameters)
    return y


def _pairs(found: KernelMap, taps: Taps | None, backwards: bool) -> TapPairs | DeviceMap:
    pairs = found.by_taps if taps is None else found.select(taps.index)
    return pairs.transposed() if backwards else pairs
