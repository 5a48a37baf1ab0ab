"""Convolution weights of other libraries, to and from this package's layout.

Canonical: (Co, Kx, Ky, Kz, Ci), channels last, tap t = (kx*Ky + ky)*Kz + kz, no flip. Every function takes
and gives NumPy arrays (views where a transpose does it). Layout is not all that a checkpoint implies: which
site tap 0 stands for differs too, and each docstring says which `padding` gives the library's own placement.
`spconv` has its own module.

kernel_size: int, or one to three ints in (x, y, z) order; missing axes are 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ShapeError


def kernel_axes(kernel_size: int | Sequence[int]) -> tuple[int, int, int]:
    """`kernel_size` as (Kx, Ky, Kz). An int means a cube; ShapeError unless one to three positive sizes."""
    try:
        sizes = (kernel_size,) * 3 if isinstance(kernel_size, (int, np.integer)) else tuple(kernel_size)
        fits = 1 <= len(sizes) <= 3 and all(int(n) == n and n >= 1 for n in sizes)
    except (TypeError, ValueError, OverflowError):  # no sequence, no numbers, NaN, infinity
        fits = False
    if not fits:
        raise ShapeError(f"kernel_size is {kernel_size!r}; an int or one to three ints from 1 are needed")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def check_canonical(weight: np.ndarray) -> tuple[int, tuple[int, int, int], int]:
    """(Co, (Kx, Ky, Kz), Ci) of a canonical weight; ShapeError unless it has 5 axes."""
    if weight.ndim != 5:
        raise ShapeError(f"weight has shape {weight.shape}; (Co, Kx, Ky, Kz, Ci) is needed")
    out, x, y, z, inp = weight.shape
    return out, (x, y, z), inp


def _taps_first(kernel: np.ndarray, sizes: tuple[int, int, int], name: str) -> np.ndarray:
    """[K, Ci, Co], or [Ci, Co] for one tap, as (K, Ci, Co); ShapeError if K is not the kernel's volume."""
    volume = math.prod(sizes)
    if kernel.ndim == 2 and volume == 1:
        return kernel[None]
    if kernel.ndim != 3 or kernel.shape[0] != volume:
        raise ShapeError(f"{name} has shape {kernel.shape}; kernel size {sizes} needs ({volume}, Ci, Co)")
    return kernel


def _x_fastest_to_canonical(kernel: np.ndarray, sizes: tuple[int, int, int]) -> np.ndarray:
    x, y, z = sizes
    return kernel.reshape(z, y, x, *kernel.shape[1:]).transpose(4, 2, 1, 0, 3)


def _z_fastest_to_canonical(kernel: np.ndarray, sizes: tuple[int, int, int]) -> np.ndarray:
    return kernel.reshape(*sizes, *kernel.shape[1:]).transpose(4, 0, 1, 2, 3)


def _canonical_to_x_fastest(weight: np.ndarray) -> np.ndarray:
    out, sizes, inp = check_canonical(weight)
    return weight.transpose(3, 2, 1, 4, 0).reshape(math.prod(sizes), inp, out)


def _canonical_to_z_fastest(weight: np.ndarray) -> np.ndarray:
    out, sizes, inp = check_canonical(weight)
    return weight.transpose(1, 2, 3, 4, 0).reshape(math.prod(sizes), inp, out)


def _one_tap_2d(kernel: np.ndarray, stride: int | Sequence[int]) -> np.ndarray:
    """MinkowskiEngine and torchsparse drop the tap axis where kernel and stride are both 1."""
    return kernel[0] if len(kernel) == 1 and int(np.prod(stride)) == 1 else kernel


def minkowski_engine_to_canonical(kernel: np.ndarray, kernel_size: int | Sequence[int]) -> np.ndarray:
    """MinkowskiEngine `kernel`: [K, Ci, Co], x fastest; [Ci, Co] for one tap. (Its bias is [1, Co].)

    Odd kernels are centred, padding (K-1)//2; even ones cover 0..K-1, padding 0.
    """
    sizes = kernel_axes(kernel_size)
    return _x_fastest_to_canonical(_taps_first(kernel, sizes, "kernel"), sizes)


def canonical_to_minkowski_engine(weight: np.ndarray, stride: int | Sequence[int] = 1) -> np.ndarray:
    """Inverse of `minkowski_engine_to_canonical`; `stride` decides if one tap is stored as [Ci, Co]."""
    return _one_tap_2d(_canonical_to_x_fastest(weight), stride)


def torchsparse_to_canonical(kernel: np.ndarray, kernel_size: int | Sequence[int]) -> np.ndarray:
    """torchsparse 2.1 `kernel`: [K, Ci, Co], x fastest if the volume is odd, z fastest if it is even.

    One tap may be [Ci, Co]. Where its taps lie depends on torchsparse's `kmap_mode`. "hashmap": they cover
    -(K-1)//2 .. K//2 (2: 0..1; 4: -1..2), which is padding (K-1)//2. "hashmap_on_the_fly", its default:
    in = out * stride - padding + k with the layer's own padding (0 unless it was given) where stride > 1;
    submanifold kernels are centred if odd, and cover 0..K-1 if even.
    """
    sizes = kernel_axes(kernel_size)
    taps = _taps_first(kernel, sizes, "kernel")
    return (_x_fastest_to_canonical if len(taps) % 2 else _z_fastest_to_canonical)(taps, sizes)


def canonical_to_torchsparse(weight: np.ndarray, stride: int | Sequence[int] = 1) -> np.ndarray:
    """Inverse of `torchsparse_to_canonical`; `stride` decides if one tap is stored as [Ci, Co]."""
    odd = math.prod(check_canonical(weight)[1]) % 2
    kernel = _canonical_to_x_fastest(weight) if odd else _canonical_to_z_fastest(weight)
    return _one_tap_2d(kernel, stride)


def warpconvnet_to_canonical(weight: np.ndarray, kernel_size: int | Sequence[int]) -> np.ndarray:
    """WarpConvNet `weight`: [K, Ci, Co], z fastest.

    Odd kernels are centred, padding (K-1)//2; even ones cover 0..K-1, padding 0.
    """
    sizes = kernel_axes(kernel_size)
    return _z_fastest_to_canonical(_taps_first(weight, sizes, "weight"), sizes)


def canonical_to_warpconvnet(weight: np.ndarray) -> np.ndarray:
    """Inverse of `warpconvnet_to_canonical`: [K, Ci, Co]."""
    return _canonical_to_z_fastest(weight)


def fvdb_to_canonical(weight: np.ndarray) -> np.ndarray:
    """fVDB `weight`: [Co, Ci, Kx, Ky, Kz], or [Co, Ci] for one tap. Padding is dilation*(K-1)//2 before."""
    if weight.ndim == 2:
        weight = weight[:, :, None, None, None]
    if weight.ndim != 5:
        raise ShapeError(f"weight has shape {weight.shape}; (Co, Ci, Kx, Ky, Kz) is needed")
    return weight.transpose(0, 2, 3, 4, 1)


def canonical_to_fvdb(weight: np.ndarray) -> np.ndarray:
    """Inverse of `fvdb_to_canonical`: [Co, Ci, Kx, Ky, Kz], [Co, Ci] for one tap."""
    _, sizes, _ = check_canonical(weight)
    return weight[:, 0, 0, 0] if sizes == (1, 1, 1) else weight.transpose(0, 4, 1, 2, 3)


def flexgemm_to_canonical(weight: np.ndarray) -> np.ndarray:
    """FlexGEMM (TRELLIS.2) `weight`: [Co, Kx, Ky, Kz, Ci], canonical already; centred."""
    check_canonical(weight)
    return weight


def canonical_to_flexgemm(weight: np.ndarray) -> np.ndarray:
    """Inverse of `flexgemm_to_canonical`: the same array."""
    check_canonical(weight)
    return weight
