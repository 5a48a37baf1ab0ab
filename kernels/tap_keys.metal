// Sort key of each row: rows with like taps become neighbours. in: nbr[K, M] int32 (-1: none), bit[K] int32, 0 .. 26
//     dims = {M, K, rows of a window}   out: keys[M] uint32 (tap_key.h)
// grid: one thread a row
uint i = thread_position_in_grid.x;
uint m = uint(dims[0]);
if (i < m) {
  uint mask = 0u;
  for (int t = 0; t < dims[1]; t++)
    if (nbr[size_t(t) * m + i] >= 0) mask |= 1u << uint(bit[t]);
  keys[i] = tap_key(mask, i, uint(dims[2]));
}
