"""Normalisation over the rows of a batch item, over a row's channels, and over the taps of a kernel."""

from __future__ import annotations

import numpy as np

from mlxsparse.testing.oracle.relation import Array, Triple, conv_pairs, subm_padding


def _scaled(values: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        values = values * np.asarray(weight, dtype=np.float64)
    return values if bias is None else values + np.asarray(bias, dtype=np.float64)


def group_norm(
    coords: Array,
    feats: Array,
    channel_groups: list[list[int]],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """Each batch item's block of rows x a group's channels to mean 0 and biased variance 1."""
    feats = np.asarray(feats, dtype=np.float64)
    out = np.zeros_like(feats)
    for item in set(np.asarray(coords)[:, 0].tolist()):
        rows = [row for row, site in enumerate(coords) if site[0] == item]
        for channels in channel_groups:
            block = feats[np.ix_(rows, channels)]
            out[np.ix_(rows, channels)] = (block - block.mean()) / np.sqrt(block.var() + eps)
    return _scaled(out, weight, bias)


def layer_norm(
    feats: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """Each row to mean 0 and biased variance 1."""
    feats = np.asarray(feats, dtype=np.float64)
    mean, var = feats.mean(axis=1, keepdims=True), feats.var(axis=1, keepdims=True)
    return _scaled((feats - mean) / np.sqrt(var + eps), weight, bias)


def rms_norm(feats: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
    """Each row over the root of its mean square."""
    feats = np.asarray(feats, dtype=np.float64)
    return _scaled(feats / np.sqrt((feats**2).mean(axis=1, keepdims=True) + eps), weight, None)


def normalized_conv3d(
    coords: Array,
    feats: Array,
    weight: Array,
    bias: Array | None = None,
    dilation: Triple = 1,
    padding: Triple | None = None,
    groups: int = 1,
) -> Array:
    """sum_k w_k x_k / sum_k |w_k| over active taps and the group's channels; 0 where the latter is 0."""
    feats, weight = np.asarray(feats, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    out_channels, size, group_in = weight.shape[0], weight.shape[1:4], weight.shape[4]
    p = subm_padding(size, dilation) if padding is None else padding
    total, share = np.zeros((2, len(feats), out_channels))
    for pair in conv_pairs(coords, coords, size, 1, p, dilation):
        for co in range(out_channels):
            first = (co // (out_channels // groups)) * group_in
            w = weight[co].reshape(-1, group_in)[pair.tap]
            total[pair.out_row, co] += w @ feats[pair.in_row, first : first + group_in]
            share[pair.out_row, co] += np.abs(w).sum()
    mean = np.divide(total, share, out=np.zeros_like(total), where=share > 0)
    return mean if bias is None else mean + np.asarray(bias, dtype=np.float64)
