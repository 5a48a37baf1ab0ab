"""Mutants (mutate.py) that mean the same as the kernel, and why.

File of kernels/ -> part of the broken line and the two after it, that is not in the whole text's -> reason.
"""

from __future__ import annotations

_SKIPS = "the test only skips work"
_ZEROS = "one more chunk of zeros"
_AGAIN = "the last pass again"
_NO_ROW = "one more pass over no row"
_TWICE = "another lane writes the same value"
_NO_QUERY = "a simdgroup without queries: it writes nothing"
_MASKS = "masks where nothing is to mask"
_NO_ROOM = "nothing is left from there on"
_STRONGER = "the test before is stronger"
_ASSERTED = "an assertion about shapes"
_CACHE = "what CUDA keeps in its cache"
_OTHER_ZERO = "the other factor is 0"
_CUDA = "the other case is CUDA's, where ps is not used"
_NOT_READ = "only says where nothing is read"
_OTHER_WAY = "the way for the others gives the same"
_WRONG = "a wrong list: what it gives means nothing, and stays inside"
_AFTER = "the test after is stronger"
_UNREAD = "copies that nobody reads"
_POISON = "what nobody wrote is -1 on the executor, as it is to be; only on a GPU another number"
_ROLE = "a role that does nothing"
_QUEUED = "CUDA's; elsewhere the barriers of the steps between are enough, or nothing is done"
_COLUMNS = "columns past the last one are not written"

EQUIVALENT: dict[str, dict[str, str]] = {
    "block_attend.metal": {
        "e <= BM * DIM": "zeros, or a row, where keys will be",
        "n >= 0 ? size_t(": _NOT_READ,
        "int at = s <= 0": "the first entry either way",
        "no barrier */; tile_apply": "CUDA's copies land there; others have passed the barrier before",
        "e <= BN * DIM / VEC; e += NT) { int r = e / (DIM / VEC), c = e % (DIM / VEC) * VEC; "
        "int n = r < keys": "zeros where scores will be",
        "mp[r <= keys": _STRONGER,
        "PSIZE >= VEC": _CUDA,
        "j <= sums.COLS": _COLUMNS,
    },
    "block_flash.metal": {
        "i <= BM / PASS": "overwritten with keys or scores",
        "count >= 0 ? size_t(": _NOT_READ,
        "PSIZE >= VEC": _CUDA,
        "i <= BN / PASS; i++) { bool there = ar + i * PASS < count && ac < channels; stage_zero16": (
            "zeros where the same thread's values will be"
        ),
        "keys <= BN": _MASKS,
        "c <= BN ? -INFINITY": _MASKS,
        "keep = r <= keys": "a row of zeros",
        "(r <= keys ? r": _STRONGER,
        "(c <= keys ? c": _STRONGER,
        "c <= VEC; c++) vs": "more of a masked row, or what is behind it",
        "j <= sums.COLS; j++) { int c": _COLUMNS,
    },
    "block_flash_groups.metal": {
        "STAGE >= QSIZE ? STAGE": "of two equal ones either",
        "i <= BM / PASS": "overwritten with scores",
        "count >= 0 && kthere": _NOT_READ,
        "count >= 0 && vthere": _NOT_READ,
        "keys <= BN": _MASKS,
        "c <= BN ? -INFINITY": _MASKS,
        "keep = r <= keys": "a row of zeros",
        "(r <= keys ? r": _STRONGER,
        "(c <= keys ? c": _STRONGER,
        "j <= sums.COLS; j++) { int c": _COLUMNS,
    },
    "block_gemm.metal": {
        "LDA = tile_ld<T>(ACOLS, TA == 0)": "rows of another length",
        "line <= 0 ||": "line 0 either way",
        "q <= 0 ? 0": "0 either way",
        "MODE == 0 || block_size": "a block's size is a multiple where its rows are",
        "kleft >= 0 ? blk": _NOT_READ,
        "n >= 0 ? from": _NOT_READ,
    },
    "block_softmax.metal": {"pass <= 2": _AGAIN},
    "block_softmax_grad.metal": {"pass <= 2": _AGAIN},
    "block_groups.metal": {
        "(64 + VEC)) < STAGE ? 2": _OTHER_WAY,
        "PARTS >= 1": _ASSERTED,
        "STAGES > 2": _ASSERTED,
        "STAGES < 32": _ASSERTED,
        "* LDY < STAGE": _ASSERTED,
        "ahead > most": "order is the launcher's, and names tiles",
        "later <= most": "order is the launcher's, and names tiles",
        "of > most": "order is the launcher's, and names tiles",
        "ahead <= 0 ? 0 : max(0, min(dims[8], ptr[g1": "tile 0 is in the first round",
        "pe <= entries": _STRONGER,
        "pe > entries": "one more step, in which nothing is multiplied",
        "pe >= 0 || pc": _UNREAD,
        "pc >= 0 || ahead": _UNREAD,
        "after[0] <= 0": "0 either way",
        "leader <= 0": "0 either way",
        "exist = entries >= 0": _UNREAD,
        "KEEP & 1) == 0": _CACHE,
        "KEEP & 2) == 0": _CACHE,
    },
    "block_samples.metal": {
        "STAGES > 2": _ASSERTED,
        "SLOTS <= 32": _ASSERTED,
        "* STAGE > P": _ASSERTED,
        "sb <= SLOTS": _AFTER,
        "STAGES < 8": _ASSERTED,
        "CLUSTER >= 1 ?": "the only one of its cluster is the first",
        "at / 2 <= heads": _WRONG,
        "& 1u) == 1u) any++": "a product that nobody stores",
        "mine <= 2 ? block": "simdgroups that only copy are CUDA's",
        "from[c] <= SLOTS": _AFTER,
        "with[c] > 0": _AFTER,
        "with[c] <= SLOTS": _AFTER,
        "role <= PANEL_ROLES": _ROLE,
        "it > STAGES": _QUEUED,
        "s <= SLOTS; s++) { if ((live": _AFTER,
        "it >= 0) panel_free": _QUEUED,
        "it <= steps": _ZEROS,
        "tid > NT ? P": "simdgroups that only copy are CUDA's",
        "sa <= SLOTS": _AFTER,
        "sb > 0": _AFTER,
    },
    "block_tiles.metal": {
        "TA == 0);": "rows of another length",
        "ASIZE >= BSIZE": "of two equal ones either",
        "COPIES >= 0": _ASSERTED,
        "SLOT > P * SIDE": _ASSERTED,
        "inside[g] = found <= 0": "0 either way",
        "g == 0 && found > 0": "0 either way",
        "if (s < na) at = at < 0 ? 0": _UNREAD,
        "sa > na": _WRONG,
        "sb > NS": _AFTER,
        "s <= NS; s++) { if ((live": _AFTER,
        "from[s <= G ? s": _NOT_READ,
        "KEEP == 0": _CACHE,
    },
    "conv.metal": {
        "tid <= BM && row0": "only the flag of the third simdgroup changes, which nobody reads",
        "if (thread_index_in_simdgroup == 1u) live[flag + sg]": _TWICE,
        "live[flag + 1] >= 0": _SKIPS,
        "c0 <= red": _ZEROS,
    },
    "conv_weight_grad.metal": {"first <= last": _ZEROS, "j <= rows_in)) {": _SKIPS},
    "conv_tiles.metal": {
        "/ int(sizeof(T))) < STAGES": "results are written in the other way",
        "i <= RN; i++) if (i * NT": "past the last row",
        "tid <= BM) outputs[": "a number behind the last row's that nobody reads",
        "to[i] <= dims[7] && !mixing) finish.read": "read, and not used",
        "AN >= 0": _ASSERTED,
        "BP >= 0": _ASSERTED,
        "ahead <= 0)": "row numbers that nobody uses",
        "word + 1 <= words": "a tap is left in these words",
        "mixing && fetched <= 0": "the same row numbers again",
        "t <= K; t++": "no place has a tap past the last",
        "EXACT == 0 && OWN": _SKIPS,
        "(KEEP & 1) == 0": _CACHE,
        "(KEEP & 2) == 0": _CACHE,
    },
    "conv_tiles_grad.metal": {
        "at <= last) start": _NOT_READ,
        "base + 32 * BK <= last": _NO_ROOM,
        "pending >= -STAGES": "CUDA's groups of copies: one more, empty",
        "AN >= 0": _ASSERTED,
        "BP >= 0": _ASSERTED,
        "g <= BK / 32": _ZEROS,
        "ja[i] <= rows_in": _OTHER_ZERO,
        "o <= rows_out && j >= 0 && j < rows_in && bc": _OTHER_ZERO,
        "place <= last ?": "pieces end where runs end",
        "pending >= 0 && open >= 0": "a piece has come by the first product",
        "e <= BM * BN": "another threadgroup writes the same value",
    },
    "coord_hash.h": {"four.w == 1u": "the search goes on behind a bucket with room, where nothing is"},
    "coord_hash_insert.metal": {"if (block <= n)": "a table with a slot for each row always has one"},
    "digit.h": {"b <= bits": "one more bit, which no digit has"},
    "finish.h": {
        "value <= 0.0f ? 0.0f": "0 either way",
    },
    "group.h": {
        "panel_room(threadgroup ulong*, uint) { /* no barrier */": _QUEUED,
        "item <= matrix.items": _STRONGER,
    },
    "max_pool.metal": {"start <= taps": _NO_ROW},
    "near.h": {"kx <= 3": "bits above those of the taps"},
    "near_blocks.metal": {
        "d <= 8": "once more, kept where nobody reads",
        "d <= 4 ||": "cells that are no neighbours",
        "start <= n ?": "nothing to write either way",
    },
    "near_tiles.metal": {
        "place <= uint(dims[2])": "the grid ends with the places",
        "if (lane == 1u) masks": _TWICE,
    },
    "norm_apply.metal": {
        "r <= last": _NO_ROW,
        "u <= U; u++) { norm_piece<T> z": _NO_ROW,
        "value <= 0.0f ? 0.0f": "0 either way",
    },
    "norm_fixed.h": {
        "r <= last": _NO_ROW,
        "u <= U; u++) { norm_piece<T> z": _NO_ROW,
        "value <= 0.0f ? 0.0f": "0 either way",
    },
    "norm_grad.metal": {"r <= last": _NO_ROW},
    "norm_moments.metal": {
        "if (row <= R)": "rows of no part, which count nothing",
        "mean = last >= first": "not read",
        "n = row <= R": "threads whose sums are dropped",
    },
    "norm_sums.metal": {"if (row <= R)": "what nobody adds", "r <= last": _NO_ROW},
    "segment_attend.metal": {
        "q0 <= q_size": _NO_ROOM,
        "k0 <= k_size": _NO_ROOM,
        "live >= 0 ? clamp": _NO_QUERY,
        "seen_to = sm <= live": _NO_QUERY,
        "whole_from = sm <= live": _NO_QUERY,
        "s <= steps; s++": "one more step, in which no query sees a key",
        "seen_from <= (s + 1)": _SKIPS,
        "seen_to >= s": _SKIPS,
        "s + 1 <= steps": _ZEROS,
        "whole_from >= s": _MASKS,
        "whole_to <= next": _MASKS,
        "PSIZE >= VEC": _CUDA,
        "j <= sums.COLS": _COLUMNS,
    },
    "segment_attend_grad.metal": {
        "a0 <= a_size": _NO_ROOM,
        "b0 <= b_size": _NO_ROOM,
        "live >= 0 ? clamp": _NO_QUERY,
        "seen_to = sm <= live": _NO_QUERY,
        "whole_from = sm <= live": _NO_QUERY,
        "seen_from <= at + BN": _SKIPS,
        "seen_to >= at": _SKIPS,
        "whole_from >= at": _MASKS,
        "whole_to <= at + BN": _MASKS,
        "PSIZE >= VEC": _CUDA,
        "j <= sums.COLS": _COLUMNS,
    },
    "site_map.metal": {"windows && site[0] > 0": _OTHER_WAY},
    "stage.h": {"n > VEC": "whole vectors are copied by elements, the same values"},
    "submanifold_bits.metal": {"taps < 27": _OTHER_WAY},
    "submanifold_map.metal": {"taps < 27": _OTHER_WAY},
    "sum_parts.metal": {"p + 8 < dims[0]": _OTHER_WAY},
    "tap_key.h": {"node > 0": "no node leads back to the first"},
    "tile_starts.metal": {
        "first <= blocks": _NO_ROW,
        "if (t == 1u) total": _TWICE,
    },
    "tap_tiles.metal": {
        "if (lane == 1u) masks": _TWICE,
        "r <= 32u; r++": "the row of no lane, which the executor makes negative",
    },
    "window_tiles.metal": {
        "if (group == 1u)": _POISON,
        "k < taps; k++) { int next": _POISON,
        "next = k <= taps": _POISON,
    },
}
