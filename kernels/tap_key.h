#ifndef MLXSPARSE_TAP_KEY
#define MLXSPARSE_TAP_KEY
// Sort key of a row by the mask of its taps, a bit each of 27: rows with near keys need nearly the same taps. It is the
// leaf of a tree whose nodes ask for two bits: for bit `node & 31`, then, where that is 0, for bit `node >> 5 & 31`, else for
// bit `node >> 10 & 31`. `node >> 15` is the first of the four nodes for 00, 01, 10 and 11; of a leaf, which is no more than
// 14 nodes away, ~node is the key. Without a tree (nodes = 0) it is the mask's place in Gray code order. none: key of rows
// without a tap.
METAL_FUNC uint tap_key(uint mask, const device int* tree, int nodes, uint none) {
  if (mask == 0u) return none;
  if (nodes > 0) {
    int node = tree[0];
    while (node >= 0) {
      uint one = mask >> (uint(node) & 31u) & 1u;
      uint other = mask >> (uint(node) >> (one != 0u ? 10u : 5u) & 31u) & 1u;
      node = tree[(uint(node) >> 15) + 2u * one + other];
    }
    return uint(~node);
  }
  uint place = mask;
  for (uint s = 1u; s < 32u; s *= 2u) place ^= place >> s;
  return place;
}
#endif
