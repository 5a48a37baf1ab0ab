// Sort key of each row: rows with like taps become neighbours. in: nbr[K, M], by row [M, K], int32 (-1: none), bit[K + nodes] int32,
//     0 .. 26: of each tap, and a tree of bits (tap_key.h); dims = {M, K, by row, nodes, key without a tap}   out: keys[M] uint32 (tap_key.h)
// grid: one thread a row
uint i = thread_position_in_grid.x;
uint m = uint(dims[0]);
bool by_row = dims[2] != 0;
if (i < m) {
  uint mask = 0u;
  for (int t = 0; t < dims[1]; t++)
    if (nbr[by_row ? size_t(i) * size_t(dims[1]) + size_t(t) : size_t(t) * m + i] >= 0) mask |= 1u << uint(bit[t]);
  keys[i] = tap_key(mask, bit + dims[1], dims[3], uint(dims[4]));
}
