#ifndef MLXSPARSE_TAP_KEY
#define MLXSPARSE_TAP_KEY
// Sort key of a row by the mask of its taps, a bit each of 27: rows with near keys need nearly the same taps. It is the
// leaf of a tree: node i asks for bit `tree[i] & 31` and goes on to node i + 1 where that is 0, to `tree[i] >> 5` where it
// is 1; at a leaf, of which no node is more than 27 away, ~tree[i] is the key. Without a tree (nodes = 0) it is the
// mask's place in Gray code order. none: key of rows without a tap.
METAL_FUNC uint tap_key(uint mask, const device int* tree, int nodes, uint none) {
  if (mask == 0u) return none;
  if (nodes > 0) {
    int node = 0, found = tree[0];
    while (found >= 0) {
      node = (mask >> (uint(found) & 31u) & 1u) != 0u ? found >> 5 : node + 1;
      found = tree[node];
    }
    return uint(~found);
  }
  uint place = mask;
  for (uint s = 1u; s < 32u; s *= 2u) place ^= place >> s;
  return place;
}
#endif
