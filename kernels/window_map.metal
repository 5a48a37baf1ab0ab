// Kernel map of windows that tile the lattice (K = s, p = 0, d = 1), from the sort that made the outputs.
// in: coords[N, 4] int32 (negative batch: padding), order[N] int32 input rows sorted by window,
//     places[N] int32 (inclusive sums of key_flags in that order); dims = {N, M, sx, sy, sz}
// out: nbr[T, M] int32 input row of each tap and output row; back[T, N] int32 output row; both -1 before.
// grid: one thread a place of order
uint i = thread_position_in_grid.x;
uint n = uint(dims[0]);
if (i < n) {
  int row = order[i], o = places[i] - 1;
  if (row >= 0 && row < dims[0] && o >= 0 && o < dims[1] && coords[4 * size_t(row)] >= 0) {
    int tap = 0;
    for (int a = 0; a < 3; a++) {
      int s = dims[2 + a], rest = coords[4 * size_t(row) + 1 + a] % s;
      tap = tap * s + (rest < 0 ? rest + s : rest);
    }
    nbr[size_t(tap) * size_t(dims[1]) + size_t(o)] = row;
    back[size_t(tap) * n + size_t(row)] = o;
  }
}
