#ifndef MLXSPARSE_TAP_KEY
#define MLXSPARSE_TAP_KEY
// Sort key of a row by the mask of its taps, a bit each of 27: window (5 bits), place of the mask in an order in which
// neighbours differ in few taps; 2^32 - 1 for rows without a tap, which so come last. The order is Gray code of the bits
// that a tree asks for on the row's way down, then of the others from the highest. Node i asks for bit tree[i] and goes on to
// node 2 i + 1 where it is 0, to 2 i + 2 where it is 1, depth times.
METAL_FUNC uint tap_key(uint mask, uint row, uint window, const device int* tree, int depth) {
  uint place = 0u, asked = 0u, node = 0u;
  for (int d = 0; d < depth; d++) {
    uint bit = uint(tree[node]) & 31u, one = mask >> bit & 1u;
    place = place << 1 | one;
    asked |= 1u << bit;
    node = 2u * node + 1u + one;
  }
  for (uint b = 27u; b-- > 0u;)
    if ((asked >> b & 1u) == 0u) place = place << 1 | (mask >> b & 1u);
  for (uint s = 1u; s < 32u; s *= 2u) place ^= place >> s;
  return mask == 0u ? ~0u : min(row / window, 30u) << 27 | place;
}
#endif
