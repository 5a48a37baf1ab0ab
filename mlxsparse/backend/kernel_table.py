"""What each kernel in kernels/ takes and gives."""

from __future__ import annotations

from typing import NamedTuple

_I, _U, _L, _F, _T = "int32", "uint32", "uint64", "float32", "T"
FLOATS = "float32", "float16", "bfloat16"


class Kernel(NamedTuple):
    """Inputs and outputs (name -> dtype, "T" is the template parameter), headers, template parameters."""

    inputs: dict[str, str]
    outputs: dict[str, str]
    headers: tuple[str, ...] = ()
    template: tuple[str, ...] = ()
    floats: tuple[str, ...] = FLOATS  # what T can be


_HASH, _ROWS, _NORM = ("site_rows.h", "coord_hash.h"), ("rows.h",), ("unroll.h", "norm.h")
_NEAR = (*_HASH, "unroll.h", "near.h")
_FIXED = ("unroll.h", "norm.h", "norm_fixed.h")
_SITES, _OWN = ("site_rows.h", "site_bits.h"), {"nbr": _I, "keys": _U}
_BITS = {"bits": _U, "before": _I, "ends": _I}
_TILES = {"tiled": _I, "rows": _I, "masks": _U}
_TILE = ("unroll.h", "tile.h")
_BLOCK, _ATTEND = (*_TILE, "stage.h"), (*_TILE, "stage.h", "attend.h", "block_scores.h")
_CONV = (*_BLOCK, "group.h", "conv_sums.h", "packed.h")
_QKV = {"q": _T, "k": _T, "v": _T, "marks": _F, "scale": _F, "bias": _F}
_QKV |= {"q_ids": _I, "k_ids": _I, "ptr": _I, "other": _I}
_SEGMENTS = (*_ATTEND, "segment.h")
KERNELS: dict[str, Kernel] = {
    "bit_counts": Kernel({"bits": _U}, {"before": _I, "totals": _I}),
    "bit_ends": Kernel({"totals": _I, "status": _U}, {"ends": _I, "found": _I}),
    "bit_sites": Kernel(_BITS, {"sites": _I}),
    "block_attend": Kernel(_QKV, {"y": _T, "lse": _F}, _ATTEND, ("T", "DIM", "BM", "BN", "WM", "EXACT")),
    "block_flash": Kernel(
        {**_QKV, "order": _I}, {"y": _T, "lse": _F}, _ATTEND,
        ("T", "DIM", "BM", "BN", "WM", "STAGES", "HOLD", "TERMS", "MARKS"),
        FLOATS[1:],
    ),
    "block_flash_groups": Kernel(
        {**_QKV, "order": _I}, {"y": _T, "lse": _F}, (*_ATTEND, "group.h"),
        ("T", "DIM", "GROUPS", "BN", "STAGES", "TERMS", "MARKS"), FLOATS[1:],
    ),
    "block_gemm": Kernel(
        {"a": _T, "b": _T, "ptr": _I, "block": _I, "other": _I}, {"y": _T}, _BLOCK,
        ("T", "MODE", "TA", "TB", "BM", "BN", "WM", "WN", "SUB", "STAGES", "EXACT"),
    ),
    "block_groups": Kernel(
        {"a": _T, "b": _T, "line": _I, "ptr": _I, "block": _I, "other": _I, "order": _I}, {"y": _T},
        (*_BLOCK, "group.h"),
        ("T", "MODE", "TA", "TB", "LINES", "PARTS", "BK", "STAGES", "KEEP"), FLOATS[1:],
    ),
    "block_marks": Kernel({"k": _T, "v": _T, "keys": _F}, {"marks": _F}, ("block_scores.h",), ("T",)),
    "block_samples": Kernel(
        {"a": _T, "b": _T, "line": _I, "ptr": _I, "block": _I, "other": _I},
        {"y": _T, "maps": _U}, (*_BLOCK, "group.h"),
        ("T", "TA", "TB", "EACH", "SLOTS", "BK", "STAGES", "CLUSTER"), FLOATS[1:],
    ),
    "block_softmax": Kernel(
        {"x": _T, "scale": _F, "bias": _F, "keys": _F, "pairs": _F, "q_ids": _I, "k_ids": _I,
         "ptr": _I, "cols": _I},
        {"y": _T, "lse": _F}, ("block_scores.h",), ("T",),
    ),
    "block_softmax_grad": Kernel(
        {"ct": _T, "y": _T, "lse_ct": _F, "ptr": _I, "cols": _I}, {"dt": _F}, (), ("T",)
    ),
    "block_tiles": Kernel(
        {"a": _T, "b": _T, "line": _I, "ptr": _I, "block": _I, "other": _I}, {"y": _T}, _BLOCK,
        ("T", "MODE", "TA", "TB", "NA", "NB", "SIDE", "SLOTS", "BK", "STAGES", "KEEP", "EXACT"), FLOATS[1:],
    ),
    "candidates": Kernel({"coords": _I}, {"sites": _I, "status": _U}),
    "compact": Kernel({"flags": _U, "places": _I}, {"rows": _I}),
    "conv": Kernel({"x": _T, "weight": _T, "bias": _F, "nbr": _I}, {"y": _T}, _TILE, ("T", "EXACT")),
    "conv_weight_grad": Kernel({"ct": _T, "x": _T, "nbr": _I}, {"parts": _F}, _TILE, ("T", "EXACT")),
    "conv_tiles": Kernel(
        {"x": _T, "weight": _T, "bias": _F, "nbr": _I, "rows": _I, "masks": _U, "turns": _I, "line": _F,
         "add": _T, "mix": _T, "mean": _T, "var": _T, "gain": _T, "offset": _T},
        {"y": _T},
        (*_CONV, "norm.h", "finish.h"),
        ("T", "EXACT", "BM", "BN", "BK", "WM", "WN", "STAGES", "KEEP", "FOURS", "FINISH"),
    ),
    "conv_tiles_grad": Kernel(
        {"ct": _T, "x": _T, "nbr": _I, "rows": _I, "masks": _U},
        {"parts": _F}, _CONV, ("T", "EXACT", "BM", "BN", "BK", "WM", "WN", "STAGES", "FOURS"),
    ),
    "coord_hash_insert": Kernel({"coords": _I}, {"table": _U}, _HASH),
    "coord_hash_lookup": Kernel({"coords": _I, "table": _U, "queries": _I}, {"rows": _I}, _HASH),
    "digit_counts": Kernel({"keys": _U, "rows": _I}, {"totals": _I}, ("digit.h",), ("STEPS",)),
    "digit_places": Kernel(
        {"keys": _U, "rows": _I, "totals": _I}, {"order": _I}, ("digit.h",), ("STEPS",)
    ),
    "flip_map": Kernel({"nbr": _I}, {"back": _I}),
    "gather_sum": Kernel(
        {"x": _T, "nbr": _I, "weight": _F, "before": _F, "after": _F}, {"y": _T}, _ROWS, ("T",)
    ),
    "key_flags": Kernel({"keys": _L}, {"flags": _I}),
    "key_sites": Kernel({"keys": _L, "places": _I}, {"sites": _I}),
    "max_pool": Kernel({"x": _T, "nbr": _I}, {"y": _T, "winner": _I}, _ROWS, ("T",)),
    "max_pool_grad": Kernel({"ct": _T, "winner": _I, "back": _I}, {"dx": _T}, _ROWS, ("T",)),
    "near_blocks": Kernel(
        {"coords": _I, "table": _U, "bit": _I}, {"near": _U, "keys": _U}, (*_NEAR, "tap_key.h")
    ),
    "near_tiles": Kernel({"near": _U, "table": _U, "order": _I}, _TILES, _NEAR),
    "neighbour_map": Kernel(
        {"coords": _I, "table": _U, "queries": _I}, {"nbr": _I, "back": _I}, _HASH
    ),
    "norm_apply": Kernel({"x": _T, "add": _T, "coef": _F}, {"y": _T}, _NORM, ("T",)),
    "norm_coef": Kernel(
        {"parts": _F, "weight": _T, "bias": _T, "running_mean": _F, "running_var": _F},
        {"coef": _F, "moved_mean": _F, "moved_var": _F}, _NORM, ("T",),
    ),
    "norm_fixed": Kernel(
        {"x": _T, "add": _T, "mean": _T, "var": _T, "weight": _T, "bias": _T}, {"y": _T}, _FIXED, ("T",)
    ),
    "norm_fixed32": Kernel(
        {"x": _T, "add": _T, "mean": _F, "var": _F, "weight": _F, "bias": _F}, {"y": _T}, _FIXED, ("T",),
        FLOATS[1:],
    ),
    "norm_line": Kernel(
        {"mean": _T, "var": _T, "weight": _T, "bias": _T}, {"line": _F}, (), ("T",)
    ),
    "norm_grad": Kernel({"x": _T, "ct": _T, "coef": _F, "slopes": _F}, {"dx": _T}, _NORM, ("T",)),
    "norm_moments": Kernel({"x": _T}, {"parts": _F}, _NORM, ("T",)),
    "norm_slope": Kernel(
        {"parts": _F, "coef": _F}, {"slopes": _F, "weight_grad": _T, "bias_grad": _T}, _NORM, ("T",)
    ),
    "norm_sums": Kernel(
        {"x": _T, "ct": _T, "y": _T, "coef": _F}, {"parts": _F, "g": _T}, _NORM, ("T",)
    ),
    "row_dots": Kernel({"a": _T, "b": _T}, {"y": _F}, (), ("T",)),
    "scatter_rows": Kernel({"x": _T, "rows": _I}, {"y": _T}, _ROWS, ("T",)),
    "segment_attend": Kernel(
        {"q": _T, "k": _T, "v": _T, "scale": _F, "q_rows": _I, "k_rows": _I, "span": _I, "tiles": _I},
        {"y": _T, "lse": _F}, _SEGMENTS, ("T", "DIM", "BM", "BN", "WM", "EXACT"),
    ),
    "segment_attend_grad": Kernel(
        {"a": _T, "b": _T, "c": _T, "d": _T, "lse": _F, "delta": _F, "scale": _F,
         "a_rows": _I, "b_rows": _I, "span": _I, "tiles": _I},
        {"y": _T}, _SEGMENTS, ("T", "MODE", "DIM", "BM", "BN", "WM", "EXACT"),
    ),
    "segment_bounds": Kernel({"sorted": _I}, {"ptr": _I}),
    "segment_reduce": Kernel(
        {"x": _T, "order": _I, "ptr": _I, "weight": _F}, {"y": _F, "winner": _I}, _ROWS, ("T",)
    ),
    "set_facts": Kernel({"table": _U, "totals": _I, "outside": _U}, {"ends": _I, "facts": _U}),
    "site_bits": Kernel({"coords": _I, "boxes": _I}, {"bits": _U, "status": _U}, _SITES),
    "site_map": Kernel({"coords": _I, **_BITS}, {"source": _I}, _SITES),
    "site_keys": Kernel({"coords": _I}, {"keys": _L, "status": _U}),
    "submanifold_bits": Kernel({"coords": _I, **_BITS, "bit": _I}, _OWN, (*_SITES, "tap_key.h")),
    "submanifold_map": Kernel({"coords": _I, "table": _U, "bit": _I}, _OWN, (*_HASH, "tap_key.h")),
    "sum_parts": Kernel({"parts": _F}, {"y": _T}, (), ("T",)),
    "tap_keys": Kernel({"nbr": _I, "bit": _I}, {"keys": _U}, ("tap_key.h",)),
    "tap_tiles": Kernel({"nbr": _I, "order": _I}, _TILES),
    "tile_pack": Kernel({"nbr": _I, "heads": _I}, {"packed": _I}),
    "tile_starts": Kernel({"masks": _U}, {"heads": _I, "total": _I}),
    "tile_turns": Kernel({"masks": _U}, {"turns": _I}),
    "turn_weight": Kernel({"w": _T}, {"back": _T}, (), ("T",)),
    "window_map": Kernel({"coords": _I, "order": _I, "places": _I}, {"nbr": _I, "back": _I}),
    "window_outputs": Kernel({"window": _I, "tap": _I}, {"tiled": _I}),
    "window_rows": Kernel(
        {"coords": _I, **_BITS}, {"window": _I, "tap": _I, "rows": _I, "masks": _U}, _SITES
    ),
    "window_tiles": Kernel({"window": _I, "tap": _I, "ends": _I}, _TILES),
    "window_totals": Kernel({"tap": _I}, {"totals": _I}),
    "winner_grad": Kernel({"ct": _T, "winner": _I, "group": _I}, {"dx": _T}, _ROWS, ("T",)),
}  # fmt: skip
