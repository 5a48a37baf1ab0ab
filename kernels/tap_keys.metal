// Sort key of each row: rows with like taps become neighbours. in: nbr[K, M] int32 (-1: none), bit[K] int32, 0 .. 26
//     dims = {M, K, rows of a window}   out: keys[M] uint32: window (5 bits), place of the tap mask in Gray code order;
//     2^32 - 1 for rows without a tap, which so come last
// grid: one thread a row
uint i = thread_position_in_grid.x;
uint m = uint(dims[0]);
if (i < m) {
  uint mask = 0u;
  for (int t = 0; t < dims[1]; t++)
    if (nbr[size_t(t) * m + i] >= 0) mask |= 1u << uint(bit[t]);
  for (uint s = 1u; s < 32u; s *= 2u) mask ^= mask >> s; // neighbours in Gray code order differ in few taps
  keys[i] = mask == 0u ? ~0u : min(i / uint(dims[2]), 30u) << 27 | mask;
}
