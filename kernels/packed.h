#ifndef MLXSPARSE_PACKED
#define MLXSPARSE_PACKED
// A packed map in tiles holds, of each block of 256 places, those taps alone that one of them has: 256 numbers a tap, -1 where a
// place lacks it. In front stand two numbers for each block: where its own begin, and which taps these are, a bit each.
METAL_FUNC uint packed_taps(const device int* nbr, int block) { return uint(nbr[2 * size_t(block) + 1]); }

// Where the pairs of a tap, which the block has, begin.
METAL_FUNC size_t packed_at(const device int* nbr, int block, uint taps, int tap) {
  return size_t(nbr[2 * size_t(block)]) + 256 * size_t(popcount(taps & ((1u << uint(tap)) - 1u)));
}
#endif
