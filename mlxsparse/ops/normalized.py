"""Normalised convolution, which lets missing sites take no part instead of counting as 0.

H. Knutsson and C.-F. Westin, "Normalized and differential convolution: methods for interpolation
and filtering of incomplete and uncertain data", CVPR 1993. Their certainty is 1 on active sites and
0 elsewhere, their applicability the size of the weight.
"""

from __future__ import annotations

import mlx.core as mx

from ..coords.geometry import TripleLike
from ..tensor import SparseTensor
from .conv import Taps, _check_weight, subm_conv3d


def normalized_conv3d(
    x: SparseTensor,
    w: mx.array,
    bias: mx.array | None = None,
    *,
    dilation: TripleLike = 1,
    padding: TripleLike | None = None,
    groups: int = 1,
    taps: Taps | None = None,
) -> SparseTensor:
    """Submanifold convolution over the weight that met an active site, per output channel.

    ``y[o] = sum_k w_k x_k / sum_k |w_k| + bias``, both sums over the taps k that meet an active site
    and over the group's input channels; 0 + bias where the weights there are all 0. With weights
    >= 0 the result is a weighted mean, whatever the neighbourhood. Geometry, shapes and errors are
    those of subm_conv3d; half types are computed in float32 and rounded once.
    """
    _check_weight(x, w, bias, groups, taps)
    wide, weight = x.astype(mx.float32), w.astype(mx.float32)
    total = subm_conv3d(wide, weight, dilation=dilation, padding=padding, groups=groups, taps=taps).feats
    # Activity is the same in every channel, so the group's channels add up beforehand.
    activity = x.replace(mx.ones((x.capacity, 1)))
    sizes = mx.abs(weight).sum(axis=-1, keepdims=True)
    size = subm_conv3d(activity, sizes, dilation=dilation, padding=padding, taps=taps).feats
    y = mx.where(size > 0, total / mx.where(size > 0, size, 1), 0)
    return x.replace((y if bias is None else y + bias.astype(mx.float32)).astype(x.dtype))
