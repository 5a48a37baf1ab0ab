"""Weights of spconv, to and from the canonical layout (Co, Kx, Ky, Kz, Ci). NumPy in, NumPy out.

spconv 2.x stores KRSC, (Co, K0, K1, K2, Ci); spconv 1.x stores RSCK, (K0, K1, K2, Ci, Co). Taps run over
the columns of `indices` after the batch, last fastest, without a flip, so axis 0 is what the caller put in
that column (detection code often has z there). Transposed and inverse convolutions use the same layouts.

The one-tap quirk (spconv#450): where kernel and stride are 1, spconv 2.x multiplies by `weight.view(Ci, Co)`
though the array is shaped (Co, 1, 1, 1, Ci). The numbers are therefore in the order of the view, and reading
them by the stored shape gives wrong results without any error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ShapeError
from .layouts import check_canonical, kernel_axes

LAYOUTS = ("KRSC", "RSCK")


def to_canonical(weight: np.ndarray, kernel_size: int | Sequence[int], layout: str = "KRSC", *,
                 stride: int | Sequence[int] = 1) -> np.ndarray:
    """spconv `weight` as (Co, Kx, Ky, Kz, Ci).

    weight: KRSC (Co, *K, Ci) or RSCK (*K, Ci, Co), with one to three kernel axes; missing ones become 1.
    kernel_size: what the layer was made with; an int means a cube, or a square for a 2-D weight.
    stride: the layer's stride (1 for submanifold layers). It matters for one tap only: with stride > 1
        spconv 2.x uses the weight as shaped.
    Raises ShapeError where weight and kernel_size disagree.
    """
    sizes = _sizes(weight, kernel_size, layout)
    if layout == "RSCK":
        return np.moveaxis(weight, -1, 0).reshape(weight.shape[-1], *kernel_axes(sizes), weight.shape[-2])
    out, inp = weight.shape[0], weight.shape[-1]
    if _is_quirk(sizes, stride):
        return weight.reshape(inp, out).T.reshape(out, 1, 1, 1, inp)
    return weight.reshape(out, *kernel_axes(sizes), inp)


def from_canonical(weight: np.ndarray, layout: str = "KRSC", *, stride: int | Sequence[int] = 1,
                   ndim: int = 3) -> np.ndarray:
    """Inverse of `to_canonical`: a weight with `ndim` kernel axes; the axes that are left out must be 1."""
    _check_layout(layout)
    out, axes, inp = check_canonical(weight)
    if not 1 <= ndim <= 3 or any(n != 1 for n in axes[ndim:]):
        raise ShapeError(f"weight has kernel size {axes}, which does not fit ndim={ndim} (1 to 3)")
    sizes = axes[:ndim]
    if layout == "RSCK":
        return np.moveaxis(weight, 0, -1).reshape(*sizes, inp, out)
    if _is_quirk(sizes, stride):
        return weight.reshape(out, inp).T.reshape(out, *sizes, inp)
    return weight.reshape(out, *sizes, inp)


def _is_quirk(sizes: Sequence[int], stride: int | Sequence[int]) -> bool:
    return math.prod(sizes) == 1 and int(np.prod(stride)) == 1


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ShapeError(f"layout is {layout!r}; 'KRSC' (spconv 2.x) or 'RSCK' (spconv 1.x) is needed")


def _sizes(weight: np.ndarray, kernel_size: int | Sequence[int], layout: str) -> tuple[int, ...]:
    """The kernel axes of `weight`, which must be what `kernel_size` says."""
    _check_layout(layout)
    if not 3 <= weight.ndim <= 5:
        raise ShapeError(f"weight has shape {weight.shape}; one to three kernel axes and two channel axes "
                         "are needed")
    stored = weight.shape[1:-1] if layout == "KRSC" else weight.shape[:-2]
    single = isinstance(kernel_size, (int, np.integer))
    try:
        wanted = (kernel_size,) * len(stored) if single else tuple(kernel_size)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"kernel_size is {kernel_size!r}; an integer or several are needed") from None
    if stored != wanted:
        raise ShapeError(f"weight has shape {weight.shape}, as {layout} a kernel {stored}, but kernel_size "
                         f"is {kernel_size!r}; pass the layer's kernel_size, or another layout of {LAYOUTS}")
    return stored
